"""Checkpointed stateful operators with exactly-once state and output, for Python on Spark.

What is in `_WITH_PYSPARK` imports pyspark and is loaded when first used; everything else works without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statefx.checkpoint import Checkpoint
from statefx.client import TransactionalClient, transaction
from statefx.connectors import (
    CollectSink,
    ConsoleSink,
    ForeachTransactionSink,
    StagedSink,
)
from statefx.connectors.files import FileSink, committedFiles, readCommitted, readUncommitted
from statefx.connectors.sql import SqlSink
from statefx.errors import FailedException, StatefxError
from statefx.operators import (
    BasicBolt,
    BatchBolt,
    Bolt,
    Collector,
    Committer,
    Context,
    Count,
    Duration,
    IntervalJoin,
    JoinBolt,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    ReplayDeadLetters,
    Sink,
    Spout,
    SpoutCollector,
    Stateful,
    StatefulBolt,
    StatefulWindowedBolt,
    TransactionalSpout,
    TransactionAttempt,
    Window,
    WindowedBolt,
    isTick,
)
from statefx.state import KeyValueState
from statefx.topology import Topology, TopologyBuilder

if TYPE_CHECKING:
    from statefx.spark.query import Query
    from statefx.spark.session import session
    from statefx.spark.submit import submit

__version__ = "0.1.0.dev0"

__all__ = [
    "BasicBolt",
    "BatchBolt",
    "Bolt",
    "Checkpoint",
    "CollectSink",
    "Collector",
    "Committer",
    "ConsoleSink",
    "Context",
    "Count",
    "Duration",
    "FailedException",
    "FileSink",
    "ForeachTransactionSink",
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
    "SqlSink",
    "StagedSink",
    "Stateful",
    "StatefulBolt",
    "StatefulWindowedBolt",
    "StatefxError",
    "Topology",
    "TopologyBuilder",
    "TransactionAttempt",
    "TransactionalClient",
    "TransactionalSpout",
    "Window",
    "WindowedBolt",
    "committedFiles",
    "isTick",
    "readCommitted",
    "readUncommitted",
    "session",
    "submit",
    "transaction",
]


_WITH_PYSPARK = {
    "Query": "statefx.spark.query",
    "session": "statefx.spark.session",
    "submit": "statefx.spark.submit",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_PYSPARK:
        return getattr(import_module(_WITH_PYSPARK[name]), name)
    raise AttributeError(f"module 'statefx' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, also those that are not loaded yet: completion in notebooks goes by it."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
