"""Deletes the files of a namespace that no retained version needs.

::

    1 the names are listed      2 the log is read: what is retained      3 the generation is checked      4 files go

In this order (`StateProvider.artefacts` is 1, `StateProvider.sweep` is 3 and 4): a file that is there at 1 was written
by a generation that had been taken by then, so whoever is the newest at 2 knows of all that can ever name it. It may
run while transactions do. What is deleted was written in a transaction that is committed at 2 and is not named by what
is retained then, and no later record names a file of a transaction that is committed: neither of this generation, nor
of one that takes over between 2 and 4. So one look at the generation for each batch of deletions is enough.
"""

from __future__ import annotations

import contextlib
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from statefx.errors import StateCorruptedError, StatePhaseError
from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.files import CHANGELOG, SNAPSHOT, Artefact, Listed, check_fence, listed, read_heads
from statefx.state.changelog.merging import covers, forgets
from statefx.state.contract.store import Retention
from statefx.storage import Stored, is_remote
from statefx.storage.contract import BATCH

_HEADS = 64
"""Heads that are read at once: with them come the first bytes of their files."""


def sweep(
    changelog: Changelog, found: Iterable[Stored], retained: Retention, clock: Callable[[], float] = time.time
) -> int:
    """Delete what no retained version needs of the files `found`; return how many went (see `StateProvider.sweep`).

    Costs one head for each file of the chain and each that goes, and looks at the names of all others alone.

    Raises StateCorruptedError: what is retained is not whole: nothing was deleted, for a file that seems to be of no
    use may help to mend it.
    """
    files = filter(None, map(listed, found))
    known = [each for each in files if each.txid <= retained.head.txid]
    needed = _Needed(changelog, known, retained)
    youngest = clock() - retained.min_age_secs
    passed = [each.name for each in known if each.modified <= youngest and not needed.keeps(each)]
    gone = 0
    for part in _parts(passed, BATCH):  # one after the other: a sweep that is killed has deleted what it has looked at
        names = [name for few in _parts(part, _HEADS) for name in _of_generation(changelog, few, retained.generation)]
        if names:
            check_fence(changelog.storage, changelog.namespace.lineage, retained.generation)
            changelog.storage.delete(names)
            gone += len(names)
    return gone


def _parts(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[start : start + size] for start in range(0, len(names), size)]


def _of_generation(changelog: Changelog, names: Sequence[str], newest: int) -> list[str]:
    """Return those of the files that a generation up to `newest` wrote, without damaged ones."""
    heads = read_heads(changelog.storage, names)
    return [head.name for head in heads if isinstance(head, Artefact) and head.identity.generation <= newest]


class _Needed:
    """Files to keep: the chains of the head and of the versions since `Retention.since`, those looked at whole.

    A chain is a stack: a changelog lies on top of what was there, or takes the place of the newest files. So the chains
    of all versions after some F consist of files of F's chain and of files written after it. F is the newest version
    that was committed and is not after `since`: of what was written up to it, its chain is all that anybody needs, and
    of what was written after it, everything that was ever committed. A file of the head's chain names what it covers,
    which tells what was committed from what attempts have left.
    """

    def __init__(self, changelog: Changelog, found: Iterable[Listed], retained: Retention) -> None:
        snapshots = [changelog.find_snapshot(snapshot).name for snapshot in retained.snapshots]
        oldest = retained.snapshots[0] if retained.snapshots else None
        route = changelog.route(retained.head, oldest, None)
        if oldest is not None and route.snapshot is None:
            raise StatePhaseError(f"{changelog.where}: {oldest.version} is no version that {retained.head} came from")
        self._chain = route.steps
        self._txids = [step.identity.version.txid for step in route.steps]
        self._names = {*snapshots, *(step.name for step in route.steps)}
        self._floor = route.start.txid
        # S3 dates an object by when its upload began: a snapshot that took minutes is old before the log can name it.
        # So in a store, one that is newer than those named is never taken for nobody's; the next one that is named is.
        named = max((snapshot.version.txid for snapshot in retained.snapshots), default=0)
        self._snapshot_txid = named if is_remote(changelog.storage.url) else sys.maxsize
        for version, snapshot in retained.pinned:  # its files may be merged into others since: it is looked at whole
            pinned = changelog.route(version, snapshot, None)
            self._names.update(step.name for step in pinned.steps)
            if snapshot is not None:
                self._names.add(changelog.find_snapshot(snapshot).name)
        before = [each.version for each in found if each.version.txid <= retained.since and self._committed(each)]
        if before:
            with contextlib.suppress(StateCorruptedError):  # if it can't be read, all that is committed stays
                steps = changelog.route(max(before), oldest, None).steps
                self._names.update(step.name for step in steps)
                self._floor = max(before).txid

    def keeps(self, listed: Listed) -> bool:
        """Return whether a file that is not newer than the head is needed."""
        if listed.name in self._names or self._committed(listed):
            return True
        if listed.kind == SNAPSHOT and listed.version.txid > self._snapshot_txid:
            return True
        step = self._at(listed)
        return step is not None and forgets(step, listed.version)

    def _committed(self, listed: Listed) -> bool:
        """Return whether a changelog after the floor is known to have been committed."""
        step = self._at(listed)
        return step is not None and (listed.name == step.name or covers(step, listed.version))

    def _at(self, listed: Listed) -> Artefact | None:
        """Return the file of the chain that would hold the changes of a changelog after the floor."""
        if listed.kind != CHANGELOG or listed.version.txid <= self._floor:
            return None
        return self._chain[bisect_left(self._txids, listed.version.txid)]
