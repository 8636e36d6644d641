"""Deletes the files of a namespace that no retained version needs.

::

    1 the folder is listed      2 the log is read: what is retained      3 the generation is checked      4 files go

In this order (`StateProvider.artefacts` is 1, `StateProvider.sweep` is 3 and 4): a file that is there at 1 was written
by a generation that had been taken by then, so whoever is the newest at 2 knows of all that can ever name it. It may
run beside transactions. What is deleted was written in a transaction that is committed at 2 and is not named by what is
retained then, and no later record names a file of a transaction that is committed: neither of this generation, nor of
one that takes over between 2 and 4. So one look at the generation for all files of the namespace is enough.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable

from statefx.errors import StateCorruptedError, StatePhaseError
from statefx.state import artefacts, fencing
from statefx.state.artefacts import Listed
from statefx.state.changelog import Changelog
from statefx.state.store import Retention


def sweep(
    changelog: Changelog, found: Iterable[str], retained: Retention, clock: Callable[[], float] = time.time
) -> int:
    """Delete what no retained version needs of the files `found`; return how many went (see `StateProvider.sweep`).

    Costs one head for each file of the chain and each that goes, and looks at the names of all others alone.

    Raises
    ------
    StateCorruptedError
        What is retained is not whole: nothing was deleted, for a file that seems to be of no use may help to mend it.
    """
    needed = _needed(changelog, retained)
    youngest = clock() - retained.min_age_secs
    passed = [
        listed
        for listed in artefacts.parsed(changelog.folder, found)
        if listed.txid <= retained.head.txid and listed.path not in needed and _older_than(listed.path, youngest)
    ]
    gone = [listed.path for listed in passed if _generation(listed) <= retained.generation]
    if gone:
        fencing.check(changelog.state_folder, changelog.namespace.lineage, retained.generation)
    deleted = 0
    for path in gone:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            deleted += 1
    return deleted


def _needed(changelog: Changelog, retained: Retention) -> set[str]:
    """Return the paths of what has to stay, all of it looked at."""
    snapshots = [changelog.find_snapshot(snapshot).path for snapshot in retained.snapshots]
    oldest = retained.snapshots[0] if retained.snapshots else None
    route = changelog.route(retained.head, oldest, None)
    if oldest is not None and route.snapshot is None:
        raise StatePhaseError(f"{changelog.folder}: {oldest.version} is no version that {retained.head} came from")
    return {*snapshots, *(step.path for step in route.steps)}


def _generation(listed: Listed) -> float:
    """Return who wrote a file; 0 of one that is not complete: its transaction is over, so whoever writes it is late."""
    if listed.kind.endswith(".tmp"):
        return 0
    try:
        return artefacts.read_head(listed.path).identity.generation
    except StateCorruptedError:
        return float("inf")  # nobody knows what it was


def _older_than(path: str, limit: float) -> bool:
    try:
        return os.stat(path).st_mtime <= limit
    except FileNotFoundError:
        return False
