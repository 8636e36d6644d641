"""Folders of files as the target of a sink and as the input of transactions.

::

    sink      sink         tasks write files, the driver names them in a manifest
              manifest     what stands in the folder: who owns it, and which files are committed
              reading      what is published, as DataFrames
    spout     spout        the hooks; which file is which
              readers      how rows are read from files
"""

from typing import TYPE_CHECKING

from statefx.connectors.files.reading import readCommitted, readUncommitted
from statefx.connectors.files.sink import FileSink, committedFiles
from statefx.connectors.files.spout import FilePartitionedSpout
from statefx.elsewhere import lookup

__all__ = ["FilePartitionedSpout", "FileSink", "committedFiles", "readCommitted", "readUncommitted"]

if not TYPE_CHECKING:
    __getattr__ = lookup(__name__)
