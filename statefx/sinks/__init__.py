"""Ready-made sinks, and the base of a user's own."""

from statefx.sinks.files import FileSink, committedFiles
from statefx.sinks.foreach import ForeachTransactionSink
from statefx.sinks.looking import CollectSink, ConsoleSink
from statefx.sinks.reading import readCommitted, readUncommitted
from statefx.sinks.sql import SqlSink
from statefx.sinks.staged import StagedRows, StagedSink, Target

__all__ = [
    "CollectSink",
    "ConsoleSink",
    "FileSink",
    "ForeachTransactionSink",
    "SqlSink",
    "StagedRows",
    "StagedSink",
    "Target",
    "committedFiles",
    "readCommitted",
    "readUncommitted",
]
