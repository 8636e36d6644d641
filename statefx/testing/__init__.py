"""Runs topologies without Spark, and tests state providers.

`TopologyTester` needs neither a JVM nor a test library. The suite for those who write a state provider,
``statefx.testing.provider_contract``, needs the extra ``testing``.
"""

from typing import TYPE_CHECKING

from statefx.coordinator.participants import SnapshotPolicy
from statefx.coordinator.progress import TransactionProgress
from statefx.elsewhere import lookup
from statefx.testing.feeding import rows
from statefx.testing.steps import Crash
from statefx.testing.tester import Limits, Sent, TopologyTester

__all__ = ["Crash", "Limits", "Sent", "SnapshotPolicy", "TopologyTester", "TransactionProgress", "rows"]

if not TYPE_CHECKING:
    __getattr__ = lookup(__name__)
