"""Where a checkpoint lies, what is in its folders, and the version of their format."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from statefx.errors import AlreadyExistsError, CheckpointError, CheckpointFormatError, ConfigError, StorageError
from statefx.log.entries import FOLDER as LOG
from statefx.storage import Storage, is_remote, path_of, storage_at
from statefx.storage.contract import PROBE

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

_STORE = re.compile(r"(s3|gs|az)://([^/?#@%\\\s]+)((?:/(?!\.)[^/?#%\\\s]+)+)/*")
"""An object store's URL: a bucket, and a prefix in it. Without `?`, `#` and `@`: nobody hides a password in it.
Without `%`: one place has one text."""

_STORES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    "gs": "gs",
    **dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), "az"),
}
"""Schemes under which people know object stores, and what each is here."""


@dataclass(frozen=True)
class Folders:
    """The parts of a checkpoint location."""

    location: str
    wrap: Callable[[Storage], Storage] = field(default=lambda storage: storage, compare=False, repr=False)
    """Wraps the storage; for tests."""

    @cached_property
    def storage(self) -> Storage:
        """All of it, by name. All callers share one: a store's client keeps its connections."""
        return self.wrap(storage_at(self.location))

    @property
    def log(self) -> str:
        return os.path.join(self.location, "transactions")


def checkpoint_location(location: str | os.PathLike[str]) -> str:
    """Return a checkpoint location as the log writes it: an absolute path, or an object store's URL.

    ConfigError: it is neither, or the package that talks to object stores is missing.
    """
    scheme = _SCHEME.match(location) if isinstance(location, str) else None
    own = None if scheme is None else _STORES.get(scheme[0][:-1].lower())
    if not isinstance(location, str) or scheme is None or own is None:
        return local_path(location)
    found = _STORE.fullmatch(location)
    if found is None:
        rest = location[scheme.end() :]
        written = f"{own}:{re.sub('@[^/]*', '', rest) if own == 'az' else rest}"  # the account is in the environment
        if _STORE.fullmatch(written):
            raise ConfigError(
                f"checkpointLocation {location!r}: statefx talks to the store itself, not by Spark, and has another "
                f"scheme for it: write {written}"
            )
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


FORMAT = 2
FORMAT_NAME = "format"

PLACE = "a bucket that is there, and credentials in the environment that may list, read, write and delete in it"
"""Requirements of an object store for a checkpoint."""

OBSERVED = "observed.json"
"""What a driver last wrote of itself, for people (`statefx.log.observation`)."""

IGNORED_PREFIXES = (FORMAT_NAME, PROBE, OBSERVED, "lost+found")
"""How names begin that a folder may hold before it is a checkpoint: left by a crash, or there from the start."""


def write_format(storage: Storage) -> None:
    """Make the checkpoint's format file, and with it its folder; CheckpointError if it can't be written."""
    try:
        if not _is_there(storage, FORMAT_NAME):  # looked for first: the file is there at every start but one
            if is_remote(storage.url):  # a link is exclusive on each file system that has links
                storage.check()
            storage.create(FORMAT_NAME, json.dumps({"format": FORMAT}).encode("ascii"))
    except AlreadyExistsError:
        pass  # another driver's, which makes the checkpoint at the same time; whoever reads the log next judges it
    except (StorageError, OSError) as error:
        place = PLACE if is_remote(storage.url) else "a folder in which this user may create files"
        raise CheckpointError(
            f"checkpointLocation {storage.url} can't be written ({error}): give {place}", path=storage.url
        ) from error


def check_format(storage: Storage) -> None:
    """Refuse a folder that another release has written, or that holds other things; changes nothing."""
    path = f"{storage.url}/{FORMAT_NAME}"
    try:
        found = json.loads(storage.read(FORMAT_NAME))["format"]
    except FileNotFoundError:
        logged, other = not is_empty(storage, LOG), _other_part(storage)
        if _is_there(storage, FORMAT_NAME):  # another driver is just making the checkpoint: it writes this file first
            check_format(storage)
            return
        if logged:
            raise CheckpointFormatError(
                f"{path} is missing, but there is a transaction log beside it: restore the file "
                f'({{"format": {FORMAT}}} if this release wrote the checkpoint)',
                path=path,
            ) from None
        if other is not None:  # a mistyped path would otherwise be a new checkpoint, with empty state
            raise CheckpointFormatError(
                f"checkpointLocation {storage.url} is no checkpoint, and not empty (it holds {other!r}): give a "
                "checkpoint's folder, or, to submit a new one, an empty folder",
                path=storage.url,
            ) from None
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and is_remote(storage.url):
            raise  # whoever asks says what a store must allow
        raise CheckpointFormatError(
            f"{path} can't be read ({error}): restore the file "
            f'({{"format": {FORMAT}}} if this release wrote the checkpoint)',
            path=path,
        ) from error
    if found != FORMAT:
        raise CheckpointFormatError(
            f"{storage.url} has checkpoint format {found!r}, this statefx reads {FORMAT}: "
            "open it with the release that wrote it",
            path=path,
            format=found,
        )


def _other_part(storage: Storage) -> str | None:
    """Return the name of something that is no part of a new checkpoint."""
    try:
        return next((part for part in storage.parts() if not part.startswith(IGNORED_PREFIXES)), None)
    except NotADirectoryError as error:
        raise CheckpointError(f"checkpointLocation {storage.url} is not a folder", path=storage.url) from error
    except OSError as error:
        raise CheckpointError(
            f"checkpointLocation {storage.url} can't be read: {error.strerror}", path=storage.url
        ) from error


def _is_there(storage: Storage, name: str) -> bool:
    return any(each.name == name for each in storage.list(name))


def is_empty(storage: Storage, prefix: str) -> bool:
    """Return whether no name begins with `prefix`."""
    return next(iter(storage.list(prefix)), None) is None
