"""Where a checkpoint is: what the caller gave as its location, and the parts of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from statefx.errors import ConfigError
from statefx.storage import FolderStorage, Storage

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL = re.compile(r"file:(?:/|///+|//localhost/+)((?:[^/].*)?)", re.IGNORECASE | re.DOTALL)
"""A path as a URI without a host: ``file:/x``, ``file:///x``, ``file://localhost/x``."""


@dataclass(frozen=True)
class Folders:
    """The parts of a checkpoint location."""

    location: str
    wrap: Callable[[Storage], Storage] = field(default=lambda storage: storage, compare=False, repr=False)
    """What stands before the storage; for tests."""

    @property
    def storage(self) -> Storage:
        """All of it, by name."""
        return self.wrap(FolderStorage(self.location))

    @property
    def log(self) -> str:
        """The transaction log."""
        return os.path.join(self.location, "transactions")


def local_path(location: str | os.PathLike[str]) -> str:
    """Return a checkpoint location as an absolute path; ConfigError if it names a file system other than a folder's."""
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"checkpointLocation must be a folder's path, got {location!r}")
    found = _LOCAL.fullmatch(text)
    if found is None and _SCHEME.match(text):
        raise ConfigError(
            f"checkpointLocation {text!r} names a file system of Spark's; it must be a folder: on a local disk with a "
            "local master, or on a mount (NFS, or another one with hard links, atomic rename and fsync) at the same "
            "path on the driver and the executors. Give that path, such as /mnt/shared/word-count, or file:/path (and "
            f"for a folder whose name has a colon: ./{text})"
        )
    # Links are followed once and for all: the log knows a checkpoint by this text, and one folder must have one.
    return os.path.realpath(f"/{found[1]}" if found else text)
