"""Ready-made sinks, and what a user's own is made of."""

from statefx.operators.sinks import (
    CommitterContext,
    Marker,
    Owner,
    Reached,
    Sink,
    SinkCommitter,
    SinkWriter,
    WriterContext,
    is_published,
    refuse_twin,
    starting_point,
)
from statefx.sinks.files import FileSink, committedFiles
from statefx.sinks.foreach import ForeachTransactionSink
from statefx.sinks.looking import CollectSink, ConsoleSink
from statefx.sinks.reading import readCommitted, readUncommitted
from statefx.sinks.sql import SqlSink
from statefx.sinks.staged import StagedRows, StagedSink, Target
from statefx.sinks.written import Catalog, RowsFile, WrittenFile, WrittenSink

__all__ = [
    "Catalog",
    "CollectSink",
    "CommitterContext",
    "ConsoleSink",
    "FileSink",
    "ForeachTransactionSink",
    "Marker",
    "Owner",
    "Reached",
    "RowsFile",
    "Sink",
    "SinkCommitter",
    "SinkWriter",
    "SqlSink",
    "StagedRows",
    "StagedSink",
    "Target",
    "WriterContext",
    "WrittenFile",
    "WrittenSink",
    "committedFiles",
    "is_published",
    "readCommitted",
    "readUncommitted",
    "refuse_twin",
    "starting_point",
]
