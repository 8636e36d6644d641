"""Deletes state files that no retained version needs, while transactions run."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
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
LOOK_SECS = 1.0
"""How long it lists before it deletes: a small part of `WAIT_SECS`."""

VERSIONS_KEPT = 100
"""How many transactions back a version stays readable, whatever its files were merged into: for who has read the log
and opens state some seconds later, and for tasks that are late."""


_STATE = "state/"

_Whose = TaskId | Participant | None
"""Whose files are swept; None: nobody's, of bolts that were dropped and writers that died."""


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

    Why a sweep may not delete what is needed: this class lists some namespaces *before* it reads the log, once for
    all of these, and refuses to go on if a newer generation stands there; the provider deletes only what was listed,
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
        """Sweep all that there is; return how many files were deleted. FencedError: a newer generation has taken over.

        What was listed in `LOOK_SECS` is deleted before more is: who ends the driver does not wait for long, and in a
        store some hundred listings take longer than that.
        """
        left, gone = self.in_turn(), 0
        while left:
            gone += self.delete(self.look(left))
        return gone

    def in_turn(self) -> deque[_Whose]:
        """Return what there is to sweep. Each driver begins elsewhere: what one does not come to, another one does."""
        found: deque[_Whose] = deque([*self.tasks, *self.others, None])
        found.rotate(random.Random(self.generation).randrange(len(found)))
        return found

    def look(self, left: deque[_Whose]) -> list[tuple[_Whose, Sequence[Any]]]:
        """Take what is `left` to sweep, and list its files, for `LOOK_SECS`."""
        found: list[tuple[_Whose, Sequence[Any]]] = []
        until = self.clock() + LOOK_SECS
        while left and (not found or self.clock() < until):
            swept = left.popleft()
            try:
                found.append((swept, self._files(swept)))
            except (StateError, OSError) as error:
                _warn(swept, error)
        return found

    def _files(self, swept: _Whose) -> Sequence[Any]:
        storage = self.folders.storage
        if isinstance(swept, Participant):  # it lists for itself
            return ()
        if swept is None:  # once: while this driver is the newest, no bolt is dropped
            return () if self._has_forgotten else list(storage.list(_STATE))
        namespace = Namespace(self.lineage, self.kept_as.get(swept.component, swept.component), swept.task)
        return self.provider.artefacts(namespace, storage)

    def delete(self, found: list[tuple[_Whose, Sequence[Any]]]) -> int:
        """Read the log, then delete those of the listed files (`found`) that no retained version needs."""
        # Rule 4.3: listed first, read second. A file that was prepared in between is not among those that were listed,
        # and one whose COMMITTING came in between is named by what is read now.
        state = check_newest(self.folders, self.generation)
        pins, gone = state.pinned_versions(), 0
        for swept, files in found:
            try:
                if swept is None:
                    kept = {state.namespace(task).id for task in self.tasks} | pins.keys()
                    gone += self._forget(files, kept, state.decided)
                elif isinstance(swept, Participant):
                    gone += _sweep_other(swept, state)
                else:
                    retained = self._retained(state, swept, pins)
                    gone += self.provider.sweep(state.namespace(swept), self.folders.storage, files, retained)
            except (StateError, OSError) as error:
                _warn(swept, error)
        return gone

    def _forget(self, files: Sequence[Stored], kept: Collection[TaskId], txid: int) -> int:
        """Delete what is kept under names of no bolt any more, unless a savepoint keeps it, and what is unfinished."""
        storage, gone = self.folders.storage, 0
        if not self._has_forgotten:
            strays = [each.name for each in files if _owner(each.name) not in kept]
            for at in range(0, len(strays), BATCH):
                check_fence(storage, self.lineage, self.generation)  # rule 4.3: restore may bring a bolt back
                storage.delete(strays[at : at + BATCH])
            gone = len(strays) + self.provider.forget(
                self.lineage, lambda task: task not in kept, self.generation, txid
            )
            self._has_forgotten = True
        with suppress(OSError):  # the next sweep deletes what is left
            storage.discard_unfinished("")  # of the log, of staged rows and of the sources' notes as well
        return gone

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


def _sweep_other(participant: Participant, state: LogState) -> int:
    try:
        return participant.sweep(state)
    except Exception:  # a target may be out of reach for a while, and that of a user's own raises anything
        logger.warning("what %s has left behind was not swept", participant.name, exc_info=True)
        return 0


def _warn(swept: _Whose, error: Exception) -> None:
    what = "what no bolt has any more" if swept is None else f"state of {swept}"
    logger.warning("%s was not swept: %s", what, error)
