"""Spark's part of the checkpoint: one folder, which each driver that takes over makes its own by renaming it.

Spark looks whether a file is there and then renames one over it, so a driver that is being replaced could at any later
time write over what its successor has written. It can't: the folder it knows is gone. If it makes another one under the
old name, nobody reads it, and the next driver to take over removes it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace

from statefx.coordinator.generation import check_newest
from statefx.coordinator.location import Folders
from statefx.errors import CheckpointError, CheckpointMismatchError

TAKE_TRIES = 10

_NAME = re.compile(r"spark(?:-([1-9]\d*))?")
"""``spark-<generation>``; without a number as earlier releases named it."""


def number(folders: Folders) -> int:
    """Return the generation whose folder it is, 0 if its name tells none."""
    found = _NAME.fullmatch(folders.part)
    return int(found[1] or 0) if found else 0


def query_id(folders: Folders) -> str | None:
    """Return the id of the Spark query that wrote this part, or None if there is none yet."""
    path = os.path.join(folders.spark, "metadata")
    try:
        with open(path, encoding="utf-8") as file:
            return str(json.load(file)["id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointMismatchError(
            f"{path} can't be read ({error}): restore Spark's part of the checkpoint from a copy", path=path
        ) from error


def live(folders: Folders, wanted: str | None, generation: int) -> Folders:
    """Return `folders` with the part that counts: the newest of the query that is `wanted`, else the newest of any.

    Parameters
    ----------
    folders : Folders
    wanted : str or None
        The id of Spark's query that the transaction log knows.
    generation : int
        The newest in the log: it names the folder if there is none.
    """
    newest = next(_parts(folders), None) or replace(folders, part=_name(generation))
    return _find(folders, wanted) or newest


def take(folders: Folders, wanted: str | None, generation: int) -> Folders:
    """Make the live part that of `generation`, which was taken just now, and return `folders` with it.

    Raises
    ------
    FencedError
        A newer generation has taken over.
    CheckpointMismatchError
        The part of the query that is `wanted` was taken away meanwhile.
    CheckpointError
        It can't be renamed.
    """
    own = replace(folders, part=_name(generation))
    moved, tries = False, 0
    while not moved and tries < TAKE_TRIES:
        tries += 1
        try:
            moved = _move(_find(folders, wanted, generation), own, wanted)
        except OSError as error:
            raise CheckpointError(
                f"Spark's part of the checkpoint can't be renamed to {own.spark} ({error.strerror}): this user must "
                f"own what is in {folders.location}",
                path=own.spark,
            ) from error
        check_newest(folders, generation)
    if not moved or (wanted is not None and query_id(own) != wanted):
        raise CheckpointMismatchError(
            f"Spark's part of the checkpoint in {folders.location} was taken away while this driver started: submit "
            "again; if it is still missed, restore the whole folder from one copy",
            path=own.spark,
            wanted=wanted,
        )
    for dead in _parts(own, generation):
        shutil.rmtree(dead.spark, ignore_errors=True)
    return own


def _move(found: Folders | None, own: Folders, wanted: str | None) -> bool:
    """Rename what was found to our own; tell whether it was there. An older driver may rename it just before."""
    if found is None and wanted is not None:
        return False
    try:
        if found is None:
            os.mkdir(own.spark)
        else:
            os.rename(found.spark, own.spark)
    except FileNotFoundError:
        return False
    folder = os.open(own.location, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def _find(folders: Folders, wanted: str | None, below: int | None = None) -> Folders | None:
    """Return the newest part of the query, or of any if none is `wanted`; `below` a generation, if one is given."""
    for part in _parts(folders, below):
        try:
            if wanted is None or query_id(part) == wanted:
                return part
        except CheckpointMismatchError:
            pass
    return None


def _parts(folders: Folders, below: int | None = None) -> Iterator[Folders]:
    """Yield all parts that are there, the newest first."""
    try:
        names = os.listdir(folders.location)
    except FileNotFoundError:
        return
    parts = [replace(folders, part=name) for name in names if _NAME.fullmatch(name)]
    for part in sorted(parts, key=number, reverse=True):
        if below is None or number(part) < below:
            yield part


def _name(generation: int) -> str:
    return f"spark-{generation}"
