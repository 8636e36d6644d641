"""Runs topologies without Spark, and tests state providers.

`TopologyTester` needs neither a JVM nor a test library. The suite for those who write a state provider,
``statefx.testing.provider_contract``, needs the extra ``testing``.
"""

from statefx.testing.crashes import Crash
from statefx.testing.limits import Limits
from statefx.testing.outcome import Sent
from statefx.testing.streams import RowStream, rows
from statefx.testing.tester import TopologyTester

__all__ = ["Crash", "Limits", "RowStream", "Sent", "TopologyTester", "rows"]
