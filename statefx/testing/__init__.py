"""Runs topologies without Spark, and tests state providers.

`TopologyTester` needs neither a JVM nor a test library. The suite for those who write a state provider,
``statefx.testing.provider_contract``, needs the extra ``testing``.
"""

from statefx.testing.crashes import Crash
from statefx.testing.limits import Limits
from statefx.testing.outcome import Sent
from statefx.testing.streams import rows
from statefx.testing.tester import TopologyTester
from statefx.topology.streams import RowStream

__all__ = ["Crash", "Limits", "RowStream", "Sent", "TopologyTester", "rows"]
