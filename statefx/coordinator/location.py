"""Where a checkpoint is: what the caller gave as its location, and the parts of it."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from statefx.errors import ConfigError
from statefx.storage import Storage, path_of, storage_at

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

_STORE = re.compile(r"(s3|gs|az)://([^/?#@%\\\s]+)((?:/[^/?#%\\\s]+)+)/*")
"""An object store's URL: a bucket, and a prefix in it. Without `?`, `#` and `@`: nobody hides a password in it.
Without `%`: one place has one text."""

_STORES = ("s3a", "s3n", "s3", "gs", "az", "abfs", "abfss", "wasbs")
"""Schemes under which people know object stores."""


@dataclass(frozen=True)
class Folders:
    """The parts of a checkpoint location."""

    location: str
    wrap: Callable[[Storage], Storage] = field(default=lambda storage: storage, compare=False, repr=False)
    """What stands before the storage; for tests."""

    @cached_property
    def storage(self) -> Storage:
        """All of it, by name. One for all who ask: a store's client keeps its connections."""
        return self.wrap(storage_at(self.location))

    @property
    def log(self) -> str:
        """The transaction log."""
        return os.path.join(self.location, "transactions")


def checkpoint_location(location: str | os.PathLike[str]) -> str:
    """Return a checkpoint location as the log writes it: an absolute path, or an object store's URL.

    Raises
    ------
    ConfigError
        It is neither; or the package that talks to object stores is missing.
    """
    scheme = _SCHEME.match(location) if isinstance(location, str) else None
    if not isinstance(location, str) or scheme is None or scheme[0][:-1].lower() not in _STORES:
        return local_path(location)
    found = _STORE.fullmatch(location)
    if found is None or any(part.startswith(".") for part in found[3].split("/")):
        raise ConfigError(
            f"checkpointLocation {location!r} must name a bucket and a prefix in it, as s3://bucket/word-count, "
            "gs://bucket/word-count or az://container/word-count do; credentials come from the environment"
        )
    if importlib.util.find_spec("obstore") is None:
        raise ConfigError(
            f"checkpointLocation {location!r} is in an object store, which takes the package obstore: "
            "pip install 'statefx[s3]', on the executors too"
        )
    return f"{found[1]}://{found[2]}{found[3]}"


def local_path(location: str | os.PathLike[str]) -> str:
    """Return a checkpoint location as an absolute path; ConfigError if it names a file system other than a folder's."""
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    path = path_of(text) if isinstance(text, str) else ""
    if not isinstance(text, str) or not text.strip() or "\0" in path:
        raise ConfigError(f"checkpointLocation must be a folder's path, got {location!r}")
    if path == text and _SCHEME.match(text):
        raise ConfigError(
            f"checkpointLocation {text!r} names a file system of Spark's; it must be a folder: on a local disk with a "
            "local master, or on a mount (NFS, or another one with hard links, atomic rename and fsync) at the same "
            "path on the driver and the executors. Give that path, such as /mnt/shared/word-count, or file:/path (and "
            f"for a folder whose name has a colon: ./{text}); or an object store's s3://, gs:// or az://"
        )
    # Links are followed once and for all: the log knows a checkpoint by this text, and one folder must have one.
    return os.path.realpath(path)
