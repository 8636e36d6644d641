"""Folders of files as the target of a sink and as the input of transactions.

::

    sink      sink         its arguments; tasks write files, the driver names them in a manifest
              written      files that tasks have written, and that are not named yet
              writers      how rows become the bytes of a file
              layout       what a folder's files have in common
              manifest     which files are committed, as Spark's own file source reads it
              fences       who owns the folder
              reading      what is published, as DataFrames
    spout     spout        the hooks
              folders      the folder that is read
              logs         which file is which, when logs are rotated
              ranges       bytes of a file
              readers      how rows are read from files
"""

from statefx.connectors.files.reading import readCommitted, readUncommitted
from statefx.connectors.files.sink import FileSink, committedFiles
from statefx.connectors.files.spout import FilePartitionedSpout

__all__ = ["FilePartitionedSpout", "FileSink", "committedFiles", "readCommitted", "readUncommitted"]
