"""Folders of files as the target of a sink and as the input of transactions.

::

    sink      sink         tasks write files, the driver names them in a manifest
              written      files that tasks have written
              writers      how rows become the bytes of a file
              layout       what a folder's files have in common
              manifest     who owns the folder, and which files are committed, as Spark's own file source reads it
              reading      what is published, as DataFrames
    spout     spout        the hooks
              logs         which file is which, when logs are rotated
              readers      how rows are read from files
"""

from statefx.connectors.files.reading import readCommitted, readUncommitted
from statefx.connectors.files.sink import FileSink, committedFiles
from statefx.connectors.files.spout import FilePartitionedSpout

__all__ = ["FilePartitionedSpout", "FileSink", "committedFiles", "readCommitted", "readUncommitted"]
