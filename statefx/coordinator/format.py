"""The file that tells which release can read a checkpoint; it also tells a checkpoint from any other folder."""

from __future__ import annotations

import json

from statefx.coordinator.entries import FOLDER as LOG
from statefx.errors import AlreadyExistsError, CheckpointError, CheckpointFormatError, StorageError
from statefx.storage import Storage, is_remote
from statefx.storage.contract import PROBE

FORMAT = 2
FORMAT_NAME = "format"

PLACE = "a bucket that is there, and credentials in the environment that may list, read, write and delete in it"
"""What an object store must be for a checkpoint."""

IGNORED_PREFIXES = (FORMAT_NAME, PROBE, "lost+found")
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
                "checkpoint's folder, or an empty one for a new checkpoint",
                path=storage.url,
            ) from None
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and is_remote(storage.url):
            raise  # whoever asks says what a store must allow
        raise CheckpointFormatError(f"{path} can't be read: {error}", path=path) from error
    if found != FORMAT:
        raise CheckpointFormatError(
            f"{storage.url} has checkpoint format {found!r}, this statefx reads {FORMAT}: "
            "open it with the release that wrote it",
            path=path,
            format=found,
        )


def _other_part(storage: Storage) -> str | None:
    """Return the name of something that is not a checkpoint's beginning."""
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
    """Tell whether nothing has a name that begins with `prefix`."""
    return next(iter(storage.list(prefix)), None) is None
