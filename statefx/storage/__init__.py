"""Durable bytes by name: the only code that touches what is in a checkpoint."""

from __future__ import annotations

from statefx.storage.contract import Storage, Stored
from statefx.storage.folder import FolderStorage

__all__ = ["FolderStorage", "Storage", "Stored"]
