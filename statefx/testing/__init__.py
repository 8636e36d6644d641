"""Runs topologies without Spark, and tests state providers.

`TopologyTester` needs neither a JVM nor a test library. The suite for those who write a state provider,
``statefx.testing.provider_contract``, needs the extra ``testing``.
"""

from statefx.testing.feeding import rows
from statefx.testing.steps import Crash
from statefx.testing.tester import Limits, Sent, TopologyTester

__all__ = ["Crash", "Limits", "Sent", "TopologyTester", "rows"]
