"""The file that tells which release can read a checkpoint; it also tells a checkpoint from any other folder."""

from __future__ import annotations

import json
import os
import uuid

from statefx.coordinator.location import Folders
from statefx.errors import CheckpointError, CheckpointFormatError

FORMAT = 2

IGNORED_PREFIXES = (".", "format", "lost+found")
"""How names begin that a folder may hold before it is a checkpoint: left by a crash, or there from the start."""


def make_folders(folders: Folders) -> None:
    """Make the folder and its format file.

    Raises
    ------
    CheckpointError
        It can't be made or written.
    """
    try:
        os.makedirs(folders.location, exist_ok=True)
        if not os.path.exists(folders.format):
            temporary = f"{folders.format}.{uuid.uuid4().hex}"
            with open(temporary, "w", encoding="ascii") as file:
                json.dump({"format": FORMAT}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, folders.format)
    except OSError as error:
        raise CheckpointError(
            f"checkpointLocation {folders.location} can't be written ({error.strerror}): "
            "give a folder in which this user may create files",
            path=folders.location,
        ) from error


def check_format(folders: Folders) -> None:
    """Refuse a folder that another release has written, or that holds other things; changes nothing.

    Raises
    ------
    CheckpointFormatError, CheckpointError
        Names the file and the remedy.
    """
    try:
        with open(folders.format, encoding="ascii") as file:
            found = json.load(file)["format"]
    except FileNotFoundError:
        if os.path.exists(folders.format):  # another driver is just making the checkpoint
            check_format(folders)
            return
        if os.path.isdir(folders.log) and os.listdir(folders.log):
            raise CheckpointFormatError(
                f"{folders.format} is missing, but there is a transaction log beside it: restore the file "
                f'({{"format": {FORMAT}}} if this release wrote the checkpoint)',
                path=folders.format,
            ) from None
        _check_empty(folders)
        return
    except NotADirectoryError as error:
        raise CheckpointError(
            f"checkpointLocation {folders.location} is not a folder", path=folders.location
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointFormatError(f"{folders.format} can't be read: {error}", path=folders.format) from error
    if found != FORMAT:
        raise CheckpointFormatError(
            f"{folders.location} has checkpoint format {found!r}, this statefx reads {FORMAT}: "
            "open it with the release that wrote it",
            path=folders.format,
            format=found,
        )


def _check_empty(folders: Folders) -> None:
    """Refuse a folder of other things: a mistyped path would otherwise be a new checkpoint, with empty state."""
    try:
        found = sorted(name for name in os.listdir(folders.location) if not name.startswith(IGNORED_PREFIXES))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(
            f"checkpointLocation {folders.location} can't be read: {error.strerror}", path=folders.location
        ) from error
    if found:
        raise CheckpointFormatError(
            f"checkpointLocation {folders.location} is no checkpoint, and not empty (it holds {found[0]!r}): give a "
            "folder of this topology's own",
            path=folders.location,
        )
