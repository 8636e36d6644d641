"""Deletes state files that no retained version needs, while transactions run."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from statefx import logs
from statefx.coordinator.participants import Participant
from statefx.errors import FencedError, StateError
from statefx.log.location import Folders
from statefx.log.takeover import check_newest
from statefx.protocol.identity import TaskId
from statefx.protocol.log_state import LogState
from statefx.state.changelog.files import check_fence
from statefx.state.contract.store import Namespace, Retention, StateProvider
from statefx.storage import Stored
from statefx.storage.contract import BATCH

logger = logging.getLogger("statefx")

MIN_AGE_SECS = 60.0
EVERY_TRANSACTIONS = 50
PAUSE_SHARE = 0.25
"""Of `MIN_AGE_SECS`, how long it waits at least from one sweep to the next: nothing younger may be deleted, and a sweep
looks at everything that is there. At 20 transactions a second those are 1,200 files for each task."""

WAIT_SECS = 10.0
VERSIONS_KEPT = 100
"""How many transactions back a version stays readable, whatever its files were merged into: for who has read the log
and opens state some seconds later, and for tasks that are late."""


_STATE = "state/"


class OwnThread:
    """Runs one callable at a time on its own thread; drops calls made while busy."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def __call__(self, do: Callable[[], object]) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=logs.carrying(_logged), args=(do,), name="statefx-janitor", daemon=True
            )
            self._thread.start()

    def wait(self, timeout_secs: float = WAIT_SECS) -> None:
        """Wait for the running call, but not for ever: a file system may hang, and a sweep can be killed anywhere."""
        if self._thread is not None:
            self._thread.join(timeout_secs)


def _logged(do: Callable[[], object]) -> None:
    try:
        do()
    except FencedError as error:  # the driver learns it from its next record
        logger.warning("state is not swept by this driver any more: %s", error)
    except Exception:
        logger.exception("state was not swept; that is tried again after %d transactions", EVERY_TRANSACTIONS)


@dataclass
class Janitor:
    """Sweeps the namespaces of one generation now and then.

    Why a sweep may not delete what is needed: this class lists all namespaces *before* it reads the log, once for
    all of them, and refuses to go on if a newer generation stands there; the provider deletes only what was listed,
    after it has made sure that no newer generation has fenced it. So a sweep may run while transactions do, and a
    driver that was replaced while it swept deletes nothing that its successor may need; why, says
    `statefx.state.changelog.sweeping`.
    """

    folders: Folders
    provider: StateProvider
    tasks: Iterable[TaskId]
    """The stateful ones."""
    lineage: str
    generation: int
    kept_as: Mapping[str, str] = field(default_factory=dict)
    """As in the log (`LogState`)."""
    others: Sequence[Participant] = ()
    """Other participants, whose leftovers are swept as well."""
    min_age_secs: float = MIN_AGE_SECS
    every: int = EVERY_TRANSACTIONS
    versions_kept: int = VERSIONS_KEPT
    run: OwnThread | Callable[[Callable[[], object]], None] = field(default_factory=OwnThread)
    clock: Callable[[], float] = time.monotonic
    _due: float = field(default=-math.inf, init=False)
    _strays: list[Stored] | None = field(default=None, init=False)
    _has_forgotten: bool = field(default=False, init=False)

    def committed(self, txid: int) -> None:
        """Sweep after every `every`-th transaction, whichever run it falls in, unless the last sweep was just now."""
        if txid % self.every == 0 and self.clock() >= self._due:
            self._due = self.clock() + PAUSE_SHARE * self.min_age_secs
            self.run(self.sweep)

    def close(self) -> None:
        """Wait for a running sweep: a caller that stopped the query may delete its folder."""
        if isinstance(self.run, OwnThread):
            self.run.wait()

    def sweep(self) -> int:
        """Sweep every namespace; return how many files were deleted. FencedError: a newer generation has taken over."""
        return self.delete(self.look())

    def look(self) -> dict[TaskId, Sequence[Any]]:
        found = {}
        if self._strays is None:  # once: while this driver is the newest, no bolt is dropped
            self._strays = list(self.folders.storage.list(_STATE))
        for task in self.tasks:
            try:
                namespace = Namespace(self.lineage, self.kept_as.get(task.component, task.component), task.task)
                found[task] = self.provider.artefacts(namespace, self.folders.storage)
            except (StateError, OSError) as error:
                _warn(task, error)
        return found

    def delete(self, found: dict[TaskId, Sequence[Any]]) -> int:
        """Read the log, then delete those of the listed files (`found`) that no retained version needs."""
        # Rule 4.3: listed first, read second. A file that was prepared in between is not among those that were listed,
        # and one whose COMMITTING came in between is named by what is read now.
        state = check_newest(self.folders, self.generation)
        pins = state.pinned_versions()
        gone = self._forget({state.namespace(task).id for task in self.tasks} | pins.keys(), state.decided)
        for task, files in found.items():
            retained = self._retained(state, task, pins)
            try:
                gone += self.provider.sweep(state.namespace(task), self.folders.storage, files, retained)
            except (StateError, OSError) as error:
                _warn(task, error)
        for participant in self.others:
            try:
                gone += participant.sweep(state)
            except Exception:  # a target may be out of reach for a while, and that of a user's own raises anything
                logger.warning("what %s has left behind was not swept", participant.name, exc_info=True)
        with suppress(OSError):  # the next sweep deletes what is left
            self.folders.storage.discard_unfinished("")  # of the log, of staged rows and of the sources' notes as well
        return gone

    def _forget(self, kept: Collection[TaskId], txid: int) -> int:
        """Delete what is kept under names of no bolt any more, unless a savepoint keeps it."""
        strays = [each for each in self._strays or () if _owner(each.name) not in kept]
        self._strays = []
        for at in range(0, len(strays), BATCH):
            check_fence(self.folders.storage, self.lineage, self.generation)  # rule 4.3: restore may bring a bolt back
            self.folders.storage.delete(each.name for each in strays[at : at + BATCH])
        if self._has_forgotten:
            return len(strays)
        try:
            gone = self.provider.forget(self.lineage, lambda task: task not in kept, self.generation, txid)
        except (StateError, OSError) as error:
            logger.warning("state that no bolt has any more was not deleted: %s", error)
            return len(strays)
        self._has_forgotten = True  # once, as with files
        return len(strays) + gone

    def _retained(self, state: LogState, task: TaskId, pins: Mapping[TaskId, Any]) -> Retention:
        name = str(task)
        kept = state.snapshots.get(name, ())
        head = state.head(name)
        # Rule 4.7: tasks of cancelled attempts and readers may still open an older version (rule 6.1).
        since = max(0, head.txid - self.versions_kept)
        pinned = pins.get(state.namespace(task).id, ())
        return Retention(self.generation, head, kept, self.min_age_secs, since, tuple(pinned))


def _owner(name: str) -> TaskId | None:
    """Return the task whose state a file is, by its name."""
    with suppress(ValueError):
        return TaskId.parse(name.removeprefix(_STATE).rpartition("/")[0])
    return None


def _warn(task: TaskId, error: Exception) -> None:
    logger.warning("state of %s was not swept: %s", task, error)
