"""Durable bytes by name: the only code that touches what is in a checkpoint."""

from __future__ import annotations

from statefx.storage.contract import Storage, Stored
from statefx.storage.folder import FolderStorage, path_of, sync_secs

__all__ = ["FolderStorage", "Storage", "Stored", "is_remote", "path_of", "storage_at", "sync_secs"]


def is_remote(location: str) -> bool:
    """Return whether a location, as `Storage.url` writes it, is an object store's."""
    return "://" in location


def storage_at(location: str) -> Storage:
    """Return what keeps bytes at a location: a folder's absolute path, or the URL of an object store.

    Raises ImportError: the ``obstore`` package, which talks to object stores, is missing.
    """
    if not is_remote(location):
        return FolderStorage(location)
    from statefx.storage.objects import ObjectStorage  # noqa: PLC0415 - obstore is an extra

    return ObjectStorage(location)
