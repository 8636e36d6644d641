"""Where rows come from and go to: what a user's own sink is made of, and ready-made sinks and spouts.

::

    files/ kafka/ sql/    one package for each: its sink, its spout, and what both need to reach the system
    staged                base of a sink to which the driver publishes the rows that tasks have staged
    fields                the fields that a user gives a spout: types that Spark has
    foreach               a function as a sink
    queue                 base of a spout for a queue, which waits to hear of each message
    simple                rows on the console, in a list, from a list: for a first look and for tests

RedisSink is in ``statefx_redis``: it shares its client with the state provider, and statefx imports no provider.
"""

from typing import TYPE_CHECKING

from statefx.connectors.foreach import ForeachTransactionSink
from statefx.connectors.queue import Message, PendingAcks, QueueSpout
from statefx.connectors.simple import CollectSink, ConsoleSink, MemoryTransactionalSpout
from statefx.connectors.staged import StagedRows, StagedSink, Target
from statefx.elsewhere import lookup
from statefx.operators.sinks import (
    CheckpointPosition,
    CommitterContext,
    Marker,
    Owner,
    SinkCommitter,
    SinkWriter,
    WriterContext,
    is_published,
    refuse_twin,
    starting_point,
)
from statefx.operators.spouts import Backlog

__all__ = [
    "Backlog",
    "CheckpointPosition",
    "CollectSink",
    "CommitterContext",
    "ConsoleSink",
    "ForeachTransactionSink",
    "Marker",
    "MemoryTransactionalSpout",
    "Message",
    "Owner",
    "PendingAcks",
    "QueueSpout",
    "SinkCommitter",
    "SinkWriter",
    "StagedRows",
    "StagedSink",
    "Target",
    "WriterContext",
    "is_published",
    "refuse_twin",
    "starting_point",
]

if not TYPE_CHECKING:
    __getattr__ = lookup(__name__)
