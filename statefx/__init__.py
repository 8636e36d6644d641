"""Checkpointed stateful operators with exactly-once state and output, for Python on Spark.

What every program names is public here. Each other public name is in the package of its room, and in one place:

::

    statefx.connectors    sinks and spouts, and the bases of your own; of a system in its package: .files, .kafka, .sql
    statefx.state         types of state in hooks, codecs, and what a state provider implements
    statefx.values        values in a database of yours
    statefx.checkpoint    what a checkpoint hands out
    statefx.client        what a client hands out
    statefx.topology      what a builder hands out
    statefx.listeners     what is called with the events of a running query, and these events
    statefx.logs          a formatter of log records
    statefx.testing       TopologyTester; the contracts, each in its module
    statefx.errors        errors

What is in `_LATER` is loaded when it is first used. `submit`, `session` and `Query` need PySpark, nothing else does.
"""

import sys
from typing import TYPE_CHECKING

if sys.platform == "win32":  # neither locks on files nor forks are there as on other systems
    raise ImportError("statefx runs on Linux and macOS; on Windows, run it in WSL")

from statefx.config import Duration
from statefx.elsewhere import lookup
from statefx.operators.async_bolts import AsyncBolt, StatefulAsyncBolt
from statefx.operators.bolts import BasicBolt, BatchBolt, Bolt, Committer, Stateful, StatefulBolt
from statefx.operators.context import Collector, Context, SpoutCollector
from statefx.operators.dead_letters import ReplayDeadLetters
from statefx.operators.joins import IntervalJoin, JoinBolt
from statefx.operators.sinks import Sink
from statefx.operators.spouts import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    Spout,
    TransactionalSpout,
)
from statefx.operators.tuples import isTick
from statefx.operators.windows import Count, StatefulWindowedBolt, Window, WindowedBolt
from statefx.protocol.identity import TransactionAttempt
from statefx.state.view.task_state import KeyValueState
from statefx.topology.builder import TopologyBuilder
from statefx.topology.graph import Topology

if TYPE_CHECKING:
    from statefx.checkpoint import Checkpoint
    from statefx.client.client import TransactionalClient
    from statefx.spark.query import Query
    from statefx.spark.session import session
    from statefx.spark.submit import submit

__version__ = "0.1.0"

__all__ = [
    "AsyncBolt",
    "BasicBolt",
    "BatchBolt",
    "Bolt",
    "Checkpoint",
    "Collector",
    "Committer",
    "Context",
    "Count",
    "Duration",
    "IntervalJoin",
    "JoinBolt",
    "KeyValueState",
    "OpaquePartitionedTransactionalSpout",
    "PartitionedTransactionalSpout",
    "Query",
    "ReplayDeadLetters",
    "Sink",
    "Spout",
    "SpoutCollector",
    "Stateful",
    "StatefulAsyncBolt",
    "StatefulBolt",
    "StatefulWindowedBolt",
    "Topology",
    "TopologyBuilder",
    "TransactionAttempt",
    "TransactionalClient",
    "TransactionalSpout",
    "Window",
    "WindowedBolt",
    "isTick",
    "session",
    "submit",
]


_LATER = {
    "Checkpoint": "statefx.checkpoint",
    "TransactionalClient": "statefx.client.client",
    "Query": "statefx.spark.query",
    "session": "statefx.spark.session",
    "submit": "statefx.spark.submit",
}
"""Names that workers don't need, and what would load PySpark where nothing of Spark is used."""


if not TYPE_CHECKING:
    __getattr__ = lookup(__name__, _LATER)


def __dir__() -> list[str]:
    """Return the public names, also those that are not loaded yet: completion in notebooks goes by it."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
