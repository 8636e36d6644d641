"""Gives a stateful bolt another number of tasks: each key goes to the task that its grouping's fields hash to.

::

    1 what can be refused is                        2 the next generation: who ran before is fenced
    3 each task's state is read, and every key is routed: a run of entries, in order, for each new task
    4 the runs of a new task are merged into one file of state, which is read back and compared
    5 RESCALED is durable (rule 3.13): the bolt has so many tasks, and these files

A failure before 5 leaves the bolt as it was; what was written is named by nobody, and swept.

Which task a key belongs to is shown, see `statefx.admin.routing`.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from statefx.admin.parallel import Here, Told, Workers
from statefx.admin.progress import ProgressMeter, telling
from statefx.admin.reading import Progress, counted, task_blocks
from statefx.admin.routing import MOVED, GroupingKey, Proof, Router, check_grouping, router_of
from statefx.admin.runs import Run, Runs
from statefx.admin.savepoints import fence, found_checkpoint, provider_of, taken
from statefx.admin.task_writing import TaskWriter, WrittenTasks, new_names, unless_overtaken
from statefx.coordinator.adoption import NOTHING_ADOPTED
from statefx.coordinator.location import Folders
from statefx.coordinator.log import TransactionLog
from statefx.errors import CheckpointError, ConfigError
from statefx.protocol.identity import TaskId
from statefx.protocol.log_rules import pin_of, with_names
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Rescaled
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.store import StateProvider
from statefx.storage import Storage

logger = logging.getLogger("statefx")

TASKS_MAX = 1 << 15

_PIECES_A_SLOT = 4
"""Tasks are not of one size: with smaller pieces the slots end at about the same time."""

_PASSES = 3
"""State is read, written, and read back."""


@dataclass(frozen=True)
class Rescaling:
    """What `rescale` has done.

    Attributes
    ----------
    tasks : Mapping[str, tuple of int]
        By bolt, how many tasks it had, and has now.
    keys, bytes : int
        How many entries of state were moved, and the size of their keys and values.
    seconds : float
        How long it took.
    """

    tasks: Mapping[str, tuple[int, int]]
    keys: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        shown = ", ".join(
            f"{bolt} has {counted(now, 'task')}, and had {was}" for bolt, (was, now) in self.tasks.items()
        )
        size = f"{counted(self.keys, 'key')}, {counted(self.bytes, 'byte')}"
        return f"{shown or 'nothing was to be done'}; {size}, {self.seconds:.1f} s"


def rescale_checkpoint(
    location: str | os.PathLike[str],
    tasks: Mapping[str, int],
    config: Mapping[str, Any] | None = None,
    *,
    grouping_key: Mapping[str, GroupingKey] | None = None,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> Rescaling:
    """Do as `statefx.rescale`, by `workers`; by default here."""
    if not isinstance(grouping_key, Mapping | None):
        raise ConfigError(f"groupingKey must be a mapping such as {{'count': lambda key: key}}, got {grouping_key!r}")
    folders, found = found_checkpoint(location)
    build = partial(provider_of, found, config)
    keys = dict(grouping_key or {})
    rescaler = Rescaler(folders, build(), keys, progress=progress, workers=workers or Here(), build=build)
    return rescaler.run(found, tasks)


@dataclass
class Rescaler:
    """One rescaling."""

    folders: Folders
    provider: StateProvider
    grouping_key: Mapping[str, GroupingKey]
    opened: Callable[[Storage], TransactionLog] = TransactionLog
    clock: Callable[[], float] = time.monotonic
    adopt: frozenset[str] = NOTHING_ADOPTED
    progress: Progress | None = None
    workers: Workers = field(default_factory=Here)
    build: Callable[[], StateProvider] | None = None
    """Builds `provider` where the workers are; None: it can be sent to them."""

    def run(self, found: LogState, tasks: Mapping[str, int]) -> Rescaling:
        """Do it."""
        began = self.clock()
        changed = self._checked(found, tasks)
        if not changed:
            return Rescaling({}, 0, 0, self.clock() - began)
        log = taken(self.folders, "rescale it", partial(self._check_same, tasks, changed), self.opened, self.adopt)
        state = log.state
        fence(self.provider, self.folders, state)
        meter = ProgressMeter.of(self.progress, pin_of(state), _PASSES, changed)
        names = new_names(self.provider, state, changed)
        written = WrittenTasks()
        with unless_overtaken(self.folders, state):
            for bolt, now in changed.items():
                if state.holds(bolt):  # else it has committed nothing
                    written.add(self._moved(state, bolt, now, names, meter))
        log.append(Rescaled(state.generation, changed, written.tokens, written.sizes, names))
        done = Rescaling(
            {bolt: (found.topology.stateful[bolt].parallelism, now) for bolt, now in changed.items()},
            written.keys,
            written.bytes,
            self.clock() - began,
        )
        meter.end()
        logger.info("%s: %s", self.folders.location, done)
        return done

    def _moved(
        self, state: LogState, bolt: str, now: int, names: Mapping[str, str], meter: ProgressMeter
    ) -> WrittenTasks:
        """Have the state of a bolt written for its new tasks, and show that each key lies where its grouping says."""
        becomes = with_names(state, names)
        build = self.build or _giving(self.provider)
        moving = Moving(self.folders, build, state, becomes, bolt, now, self.grouping_key.get(bolt))
        # On a server, a piece that is done twice would write twice under one name.
        workers = Here() if self.provider.capabilities.shared else self.workers
        router = moving.router
        pieces = pieces_of(moving.was, now, workers.slots, together=router.own is not None)
        written = WrittenTasks()
        for number, (done, proof) in enumerate(workers.run(moving.do, pieces, meter.add), start=1):
            router.proof.add(proof)
            written.add(done)
            logger.info("%s: %d of %d pieces are done", bolt, number, len(pieces))
        router.check_proof(moving.was)
        return written

    # ---- what is refused

    def _checked(self, found: LogState, tasks: Mapping[str, int]) -> dict[str, int]:
        """Return the bolts that get another number of tasks."""
        if not isinstance(tasks, Mapping) or not tasks:
            raise ConfigError(f"rescale: tasks must be a mapping such as {{'count': 8}}, got {tasks!r}")
        stateful = found.topology.stateful
        for bolt, now in tasks.items():
            if bolt not in stateful:
                raise CheckpointError(
                    f"the checkpoint in {self.folders.location} has no stateful bolt {bolt!r}; there are "
                    f"{sorted(stateful) or 'none'}",
                    component=bolt,
                )
            if isinstance(now, bool) or not isinstance(now, int) or not 1 <= now <= TASKS_MAX:
                raise ConfigError(
                    f"rescale: {bolt!r} must have from 1 to {TASKS_MAX} tasks, got {now!r}", component=bolt
                )
        if unknown := sorted(set(self.grouping_key) - set(stateful)):
            raise ConfigError(f"groupingKey: {unknown[0]!r} is no stateful bolt of this checkpoint")
        changed = {bolt: now for bolt, now in tasks.items() if stateful[bolt].parallelism != now}
        for bolt in filter(found.holds, changed):
            self._check_routing(bolt, stateful[bolt])
        return changed

    def _check_same(self, tasks: Mapping[str, int], changed: Mapping[str, int], state: LogState) -> None:
        if self._checked(state, tasks) != changed:
            raise CheckpointError(f"another one has rescaled the checkpoint in {self.folders.location} meanwhile")

    def _check_routing(self, bolt: str, known: StatefulIdentity) -> None:
        if known.layout is not None and known.layout.fixed:
            raise CheckpointError(f"bolt {bolt!r} can't be given other tasks: {known.layout.fixed}", component=bolt)
        check_grouping(bolt, known, MOVED)
        router = router_of(bolt, known, self.grouping_key.get(bolt))
        if known.parallelism == 1 and router.given is None and router.own is None:
            raise CheckpointError(f"bolt {bolt!r} can't be given other tasks: {router.alone()}", component=bolt)


def _giving(provider: StateProvider) -> Callable[[], StateProvider]:
    return lambda: provider


class _Elsewhere:
    """Takes entries of tasks that another piece writes."""

    def add(self, key: bytes, value: bytes) -> None:
        """Leave it."""

    def extend(self, keys: list[bytes], values: list[bytes]) -> None:
        """Leave them."""


_ELSEWHERE = _Elsewhere()


@dataclass(frozen=True)
class Piece:
    """Tasks of before that are read, and those of now that are written: all keys of these are in the former."""

    was: Sequence[int]
    now: Sequence[int]


def pieces_of(was: int, now: int, slots: int, *, together: bool) -> list[Piece]:
    """Divide a rescaling among `slots` that work at the same time.

    A key with hash h moves from task h % was to h % now, and these agree modulo g = gcd(was, now): tasks that are r
    modulo g get nothing but what such tasks had, and no state is read twice. With fewer such classes than slots, the
    new tasks of a class are parted, and each part reads the class.

    Parameters
    ----------
    together : bool
        Every new task needs something of each former one.
    """
    if slots == 1:
        return [Piece(range(was), range(now))]
    classes = 1 if together else math.gcd(was, now)
    if classes >= slots:
        count = min(classes, _PIECES_A_SLOT * slots)
        residues = [range(number, classes, count) for number in range(count)]
        return [Piece(_of(mine, was, classes), _of(mine, now, classes)) for mine in residues]
    parts = min(-(-slots // classes), now // classes)
    return [
        Piece(range(was) if together else _of([residue], was, classes), _of([residue], now, classes)[part::parts])
        for residue in range(classes)
        for part in range(parts)
    ]


def _of(residues: Iterable[int], tasks: int, classes: int) -> list[int]:
    return [task for residue in residues for task in range(residue, tasks, classes)]


@dataclass(frozen=True)
class Moving:
    """What is the same for all pieces of a bolt's rescaling; executors get it."""

    folders: Folders
    provider: Callable[[], StateProvider]
    before: LogState
    becomes: LogState
    """With the names under which the new tasks keep their state."""
    bolt: str
    now: int
    given: GroupingKey | None

    @property
    def was(self) -> int:
        """How many tasks there are before."""
        return self.before.topology.stateful[self.bolt].parallelism

    @property
    def router(self) -> Router:
        """What finds the tasks of keys; has seen none yet."""
        return router_of(self.bolt, self.before.topology.stateful[self.bolt], self.given)

    def do(self, piece: Piece, told: Told) -> tuple[WrittenTasks, Proof]:
        """Write the state of a piece's tasks of now; return what was written, and what the keys have shown."""
        provider, router = self.provider(), self.router
        writer = TaskWriter(self.folders.storage, provider, partial(telling, told=told))
        with tempfile.TemporaryDirectory(prefix="statefx-rescale-", ignore_cleanup_errors=True) as folder:
            runs: dict[int, list[Run]] = {task: [] for task in piece.now}
            for task in piece.was:
                with ExitStack() as stack:
                    own = {new: Run(os.path.join(folder, f"{task}-{new}"), stack) for new in piece.now}
                    takers = [own.get(new, _ELSEWHERE) for new in range(self.now)]
                    blocks = task_blocks(provider, self.folders, self.before, self.bolt, task)
                    router.route_blocks(telling(blocks, told), task, self.was, takers)
                for new, run in own.items():
                    if run.keys:
                        runs[new].append(run)
                logger.info("state of %s/%d is read (%d tasks)", self.bolt, task, self.was)
            if len(piece.was) == self.was:
                router.check_proof(self.was)
            with ExitStack() as stack:
                common = Run(os.path.join(folder, "common"), stack)
                for entry in router.common():
                    common.add(*entry)
            for new in piece.now:
                own_runs = Runs([*runs[new], *([common] if common.keys else ())])
                writer.write(self.becomes, TaskId(self.bolt, new), self.now, own_runs, folder)
        return writer.done, router.proof
