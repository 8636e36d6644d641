"""One lineage has one home: the folder in which its checkpoint is run. A second one is refused where it can be seen.

Two lives of one lineage would each commit transactions of the same numbers, under generations of the same numbers:
nothing that is kept by these, here or in a server, could tell them apart. Two places say where the other one may be.
The log names the folder of its last run. And each start leaves a note on its machine: nothing else knows of a copy that
was run while the original was out of sight.
"""

from __future__ import annotations

import contextlib
import os
import uuid

from statefx.coordinator.entries import FOLDER as LOG
from statefx.coordinator.location import Folders
from statefx.coordinator.log import read_state
from statefx.errors import CheckpointMismatchError, StatefxError
from statefx.protocol.log_state import LogState

NOTES_MAX = 256
"""Above that many, notes of checkpoints that are gone are deleted."""


def check_home(found: LogState, folders: Folders, adopt: str | None, cache: str) -> None:
    """Refuse a checkpoint whose lineage could be run in another folder too; changes nothing.

    A fork gets a lineage of its own, and is not refused.

    Parameters
    ----------
    found : LogState
        The log of the checkpoint in `folders`.
    folders : Folders
    adopt : str or None
        As given to ``submit``.
    cache : str
        This machine's folder for caches, where the notes are.

    Raises
    ------
    CheckpointMismatchError
        Names both folders and the remedy.
    """
    if not found.lineage or adopt == "fork":  # rule 1.1: a fork takes a lineage of its own
        return
    # The log's own word is good on every machine; a note sees what the log of this copy can't know.
    for other in (found.location, _noted_home(found.lineage, cache)):
        if other and other != folders.location and _is_home(Folders(other), found.lineage, folders):
            raise CheckpointMismatchError(
                f"the checkpoint in {folders.location} is there a second time, in {other}, where it has been run: two "
                f"that go on as one would mix up their state. If this one shall go on, delete or rename {other} first; "
                "if this is a copy that shall go its own way, submit it with adopt='fork'",
                location=folders.location,
                other=other,
            )


def note_home(state: LogState, cache: str) -> None:
    """Note on this machine where a lineage is run from now on.

    What can't be noted can't be seen later; nothing depends on it where there is one life, so that is no error.
    """
    folder = _notes_folder(cache)
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        names = os.listdir(folder)
        if len(names) >= NOTES_MAX:
            for name in names:
                if not name.startswith(".") and not os.path.isdir(_noted_home(name, cache)):
                    _forget(folder, name)
        # Renamed into place: two starts at a time leave one of two whole notes.
        temporary = os.path.join(folder, f".{uuid.uuid4().hex}")
        with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(state.location)
        os.replace(temporary, os.path.join(folder, state.lineage))


def _forget(folder: str, lineage: str) -> None:
    """Delete the note of a home that is gone, unless another start has just noted a new one under its name.

    Several starts may do so at a time: one that finds a note deleted already goes on, or its own would not be written.
    """
    note, aside = os.path.join(folder, lineage), os.path.join(folder, f".{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(note, aside)
        with open(aside, encoding="utf-8", errors="surrogateescape") as file:
            home = file.read()
        if os.path.isdir(home):
            with contextlib.suppress(FileExistsError):
                os.link(aside, note)
        os.unlink(aside)


def _noted_home(lineage: str, cache: str) -> str:
    try:
        with open(os.path.join(_notes_folder(cache), lineage), encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _notes_folder(cache: str) -> str:
    return os.path.join(cache, "homes")


def _is_home(other: Folders, lineage: str, folders: Folders) -> bool:
    """Tell whether `other` holds the lineage too, and could be submitted there, where nothing would refuse it."""
    try:
        first = next(iter(folders.storage.list(LOG))).name
        if folders.storage.shares(first, other.storage):  # mounted at two places
            return False
        state = read_state(other.storage)
    except (OSError, StatefxError):  # not there, out of sight, or damaged: it can't be run as it is
        return False
    # A copy that was never run where it lies names another location: there it would be refused without `adopt`.
    return state.lineage == lineage and state.location == other.location
