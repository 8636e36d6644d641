"""Gives stateful bolts another number of tasks: each key goes to the task that its grouping's fields hash to.

A step of `statefx.admin.rewrite`. Every key is routed to a run of entries, in order, for its new task; the runs of a
task are merged as they are written. Which task a key belongs to is shown, see `statefx.admin.routing`: where several
workers route, only when all are done.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from statefx.admin.reading import Progress, counted, found_checkpoint, provider_of
from statefx.admin.rewrite import OpenSide, Piece, Rewrite, Source, Step, check_changeable
from statefx.admin.routing import MOVED, NOWHERE, GroupingKey, Proof, check_function, check_grouping, router_of
from statefx.admin.sorted_files import MergedRuns, SortedRun
from statefx.admin.work import Here, Report, Workers
from statefx.errors import CheckpointError, ConfigError
from statefx.log.location import Folders
from statefx.protocol.log_state import LogState
from statefx.protocol.topology_identity import StatefulIdentity

logger = logging.getLogger("statefx")

TASKS_MAX = 1 << 15

_PIECES_A_SLOT = 4
"""Tasks are not of one size: with smaller pieces the slots end at about the same time."""


@dataclass(frozen=True)
class Rescaling:
    """What `Checkpoint.rescale` has done.

    Attributes
    ----------
    tasks : Mapping[str, tuple of int]
        By bolt, how many tasks it had, and has now.
    keys, bytes : int
        How many entries of state were moved, with those of maps and timers, and the size of their keys and values.
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
        size = f"{counted(self.keys, 'entry', 'entries')}, {counted(self.bytes, 'byte')}"
        return f"{shown or 'nothing was to be done'}; {size}, {self.seconds:.1f} s"


def rescale(
    folders: Folders,
    config: Mapping[str, Any] | None,
    tasks: Mapping[str, int],
    *,
    grouping_key: Mapping[str, GroupingKey] | None = None,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> Rescaling:
    """Give bolts other numbers of tasks, by `workers`; by default in this process."""
    if not isinstance(grouping_key, Mapping | None):
        raise ConfigError(f"groupingKey must be a mapping such as {{'count': lambda key: key}}, got {grouping_key!r}")
    found = found_checkpoint(folders)
    build = partial(provider_of, found, config)
    steps = rescalings(found, tasks, grouping_key or {}, folders.location)
    if not steps:
        return Rescaling({}, 0, 0, 0.0)
    rewrite = Rewrite(folders, build(), steps, "rescale it", progress=progress, workers=workers or Here(), build=build)
    done = rewrite.run(found)
    changed = {bolt: (found.topology.stateful[bolt].parallelism, step.now) for bolt, step in steps.items()}
    return Rescaling(changed, done.keys, done.bytes, done.seconds)


def rescaling_plan(folders: Folders, tasks: Mapping[str, int], grouping_key: Mapping[str, GroupingKey]) -> str | None:
    """Return what `rescale` would do, None if nothing; refuses what shows without reading state."""
    found = found_checkpoint(folders)
    steps = rescalings(found, tasks, grouping_key, folders.location)
    if not steps:
        return None
    check_changeable(found, folders, "rescale it")
    said = []
    for bolt, step in steps.items():
        known = found.topology.stateful[bolt]
        if found.holds(bolt):
            step.check(found, known)
        said.append(f"give {bolt} {counted(step.now, 'task')} in place of {known.parallelism}")
    return f"{', '.join(said)} in {folders.location}"


def rescalings(
    found: LogState, tasks: Mapping[str, int], given: Mapping[str, GroupingKey], location: str
) -> dict[str, Rescale]:
    """Return the steps of the bolts that get another number of tasks; refuses what can't be one.

    Messages name the checkpoint by `location`.
    """
    if not isinstance(tasks, Mapping) or not tasks:
        raise ConfigError(f"rescale: tasks must be a mapping such as {{'count': 8}}, got {tasks!r}")
    stateful = found.topology.stateful
    for bolt, now in tasks.items():
        if bolt not in stateful:
            raise CheckpointError(
                f"the checkpoint in {location} has no stateful bolt {bolt!r}; there are {sorted(stateful) or 'none'}",
                component=bolt,
            )
        if isinstance(now, bool) or not isinstance(now, int) or not 1 <= now <= TASKS_MAX:
            raise ConfigError(f"rescale: {bolt!r} must have from 1 to {TASKS_MAX} tasks, got {now!r}", component=bolt)
    if unknown := sorted(set(given) - set(stateful)):
        raise ConfigError(f"groupingKey: {unknown[0]!r} is no stateful bolt of this checkpoint")
    for bolt, function in given.items():
        check_function(function, f"rescale {bolt!r}")
    changed = {bolt: now for bolt, now in tasks.items() if stateful[bolt].parallelism != now}
    return {bolt: Rescale(bolt, now, given.get(bolt)) for bolt, now in changed.items()}


@dataclass
class Rescale(Step):
    """Another number of tasks for one bolt; `given` returns what its grouping hashes, or None if keys show that."""

    bolt: str
    now: int
    given: GroupingKey | None = None

    def check(self, found: LogState, known: StatefulIdentity) -> None:
        if known.layout is not None and known.layout.fixed:
            raise CheckpointError(
                f"bolt {self.bolt!r} can't be given other tasks: {known.layout.fixed}", component=self.bolt
            )
        check_grouping(self.bolt, known, MOVED)
        router = router_of(self.bolt, known, self.given)
        if known.parallelism == 1 and router.given is None and router.own is None:
            raise CheckpointError(
                f"bolt {self.bolt!r} can't be given other tasks: {router.alone()}", component=self.bolt
            )

    def becomes(self, known: StatefulIdentity) -> StatefulIdentity:
        return replace(known, parallelism=self.now)

    def pieces(self, known: StatefulIdentity, slots: int) -> Sequence[Piece]:
        together = router_of(self.bolt, known, self.given).own is not None
        return pieces_of(known.parallelism, self.now, slots, together=together)

    def entries(
        self, source: OpenSide, piece: Piece, folder: str, report: Report
    ) -> tuple[Mapping[int, Source], Proof]:
        known = source.state.topology.stateful[self.bolt]
        was, router = known.parallelism, router_of(self.bolt, known, self.given)
        runs: dict[int, list[SortedRun]] = {task: [] for task in piece.now}
        for task in piece.was:
            with ExitStack() as stack:
                own = {new: SortedRun(os.path.join(folder, f"{task}-{new}"), stack) for new in piece.now}
                takers = [own.get(new, NOWHERE) for new in range(self.now)]
                router.route_blocks(source.blocks(self.bolt, task, report), task, was, takers)
            for new, run in own.items():
                if run.keys:
                    runs[new].append(run)
            logger.info("state of %s/%d is read (%d tasks)", self.bolt, task, was)
        if len(piece.was) == was:  # before anything is written
            router.check_proof(was)
        with ExitStack() as stack:
            common = SortedRun(os.path.join(folder, "common"), stack)
            for entry in router.common():
                common.add(*entry)
        shared = [common] if common.keys else []
        return {new: MergedRuns([*own_runs, *shared]) for new, own_runs in runs.items()}, router.proof

    def check_proof(self, proofs: Sequence[Proof], known: StatefulIdentity) -> None:
        router = router_of(self.bolt, known, self.given)
        for proof in proofs:
            router.proof.add(proof)
        router.check_proof(known.parallelism)


def pieces_of(was: int, now: int, slots: int, *, together: bool) -> list[Piece]:
    """Divide a rescaling among `slots` that work at the same time.

    A key with hash h moves from task h % was to h % now, and these agree modulo g = gcd(was, now): tasks that are r
    modulo g get nothing but what such tasks had, and no state is read twice. With fewer such classes than slots, the
    new tasks of a class are parted, and each part reads the class. `together`: every new task needs something of each
    former one.
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
