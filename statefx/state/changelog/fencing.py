"""Fence markers: files below ``<checkpointLocation>/state`` that name the newest generation of a lineage."""

from __future__ import annotations

import contextlib
import os

from statefx.errors import FencedError
from statefx.storage.folder import make_folder, sync_folder

_PREFIX = ".fence-"


def fence(folder: str, lineage: str, generation: int) -> None:
    """Refuse generations of `lineage` older than `generation` from now on, durably.

    One empty file per generation, and the highest counts: two drivers that fence at once can't undo each other.

    Raises
    ------
    FencedError
        A newer generation has been here.
    """
    check(folder, lineage, generation)
    make_folder(folder)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(_path(folder, lineage, generation), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    sync_folder(folder)
    for older in _generations(folder, lineage):
        if older < generation:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_path(folder, lineage, older))


def check(folder: str, lineage: str, generation: int) -> None:
    """Raise FencedError if a generation newer than `generation` has fenced `lineage`."""
    newest = max(_generations(folder, lineage), default=0)
    if newest > generation:
        raise FencedError(
            f"{folder}: generation {newest} has taken over from generation {generation}; stop this driver",
            folder=folder,
            generation=generation,
            newest=newest,
        )


def _path(folder: str, lineage: str, generation: int) -> str:
    return os.path.join(folder, f"{_PREFIX}{lineage}-{generation}")


def _generations(folder: str, lineage: str) -> list[int]:
    prefix = f"{_PREFIX}{lineage}-"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [int(name[len(prefix) :]) for name in names if name.startswith(prefix) and name[len(prefix) :].isdecimal()]
