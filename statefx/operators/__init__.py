"""Classes that users derive from: bolts, spouts and sinks, their hooks, contexts and collectors."""

from statefx.operators.bolts import BasicBolt, BatchBolt, Bolt, Committer, Stateful, StatefulBolt
from statefx.operators.context import DEFAULT_STREAM, Collector, Context, SpoutCollector
from statefx.operators.dead_letters import ReplayDeadLetters
from statefx.operators.hooks import overrides
from statefx.operators.joins import IntervalJoin, JoinBolt
from statefx.operators.schema import parse_schema, parse_streams, to_ddl
from statefx.operators.sinks import Sink
from statefx.operators.spouts import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    ReplayingSpout,
    Spout,
    TransactionalSpout,
)
from statefx.operators.tuples import isTick, tuple_class
from statefx.operators.windows import Count, Duration, StatefulWindowedBolt, Window, WindowedBolt
from statefx.protocol.identity import TransactionAttempt

__all__ = [
    "DEFAULT_STREAM",
    "BasicBolt",
    "BatchBolt",
    "Bolt",
    "Collector",
    "Committer",
    "Context",
    "Count",
    "Duration",
    "IntervalJoin",
    "JoinBolt",
    "OpaquePartitionedTransactionalSpout",
    "PartitionedTransactionalSpout",
    "ReplayDeadLetters",
    "ReplayingSpout",
    "Sink",
    "Spout",
    "SpoutCollector",
    "Stateful",
    "StatefulBolt",
    "StatefulWindowedBolt",
    "TransactionAttempt",
    "TransactionalSpout",
    "Window",
    "WindowedBolt",
    "isTick",
    "overrides",
    "parse_schema",
    "parse_streams",
    "to_ddl",
    "tuple_class",
]
