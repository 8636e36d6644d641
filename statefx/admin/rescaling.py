"""Gives a stateful bolt another number of tasks: each key goes to the task that its grouping's fields hash to.

::

    1 what can be refused is                        2 the next generation: who ran before is fenced
    3 each task's state is read once, and every key is routed: a run of entries, in order, for each new task
    4 the runs of a new task are merged into one file of state, which is read back and compared
    5 RESCALED is durable: the bolt has so many tasks, and these files

A failure before 5 leaves the bolt as it was; what was written is named by nobody, and swept.

Which task a key belongs to is shown, see `statefx.admin.routing`.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from statefx.admin.reading import Progress, task_blocks
from statefx.admin.routing import MOVED, GroupingKey, check_grouping, router_of
from statefx.admin.runs import Run, Runs
from statefx.admin.savepoints import found_checkpoint, provider_of, taken
from statefx.admin.task_writing import TaskWriter
from statefx.coordinator.adoption import NOTHING_ADOPTED
from statefx.coordinator.location import Folders
from statefx.coordinator.log import TransactionLog
from statefx.errors import CheckpointError, ConfigError
from statefx.protocol.identity import TaskId
from statefx.protocol.log_rules import new_name
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Rescaled
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.blocks import Block
from statefx.state.contract.store import StateProvider
from statefx.storage import Storage

logger = logging.getLogger("statefx")

TASKS_MAX = 1 << 15

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
        shown = ", ".join(f"{bolt} has {now} tasks, and had {was}" for bolt, (was, now) in self.tasks.items())
        return f"{shown or 'nothing was to be done'}; {self.keys} keys, {self.bytes} bytes, {self.seconds:.1f} s"


def rescale(
    checkpointLocation: str | os.PathLike[str],
    tasks: Mapping[str, int],
    config: Mapping[str, Any] | None = None,
    *,
    groupingKey: Mapping[str, GroupingKey] | None = None,
    progress: Progress | None = None,
) -> Rescaling:
    """Give stateful bolts another number of tasks; their topology must not run.

    Afterwards submit it with this parallelism. ``submit(..., rescale=True)`` does both.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.
    tasks : Mapping
        Bolt to the number of tasks that it shall have.
    config : Mapping, optional
        Settings as given to ``submit``: needed only where a secret is among the provider's options.
    groupingKey : Mapping, optional
        Bolt to a function that is given a key of its state (of what is kept under a name: name and key) and returns
        the field, or the tuple of fields, that its grouping hashes. Not needed where a key is that field or these
        fields, or a tuple that begins with them, and the bolt has more than one task and more than a few keys.
    progress : callable (done, total), optional
        Is told the bytes that were read, written and read back, and about how many there are.

    Returns
    -------
    Rescaling
        How much was moved.

    Raises
    ------
    ConfigError
        The arguments are wrong; nothing was changed.
    CheckpointError
        There is no checkpoint, no such bolt, a transaction is under way, the bolt does not get its rows by
        ``fieldsGrouping``, or it keeps what belongs to a task and not to a key; nothing was changed.
    StateCorruptedError
        What is read is damaged, or what was read back is not what was written; the bolt is as it was.
    StateError
        A disk is full, that of the checkpoint or that of temporary files; the bolt is as it was.

    Contract
    --------
    * For every key, the fields of its grouping are shown to name the task that it lies in. One task holds all keys, so
      that nothing can be shown, and a few keys may lie so by chance: then `groupingKey` has to be given.
    * One record makes it so: after a crash each bolt has its old tasks, or all have their new ones.
    * A driver that runs on the checkpoint is fenced.
    * State in a server is written under new names there. The former tasks' is deleted by the next start's first sweep.
    * Savepoints of before stay: a checkpoint that is restored has the tasks that it had then.
    * Memory does not grow with state: it is read, sorted into temporary files, and written.

    Examples
    --------
    >>> print(rescale("checkpoints/word-count", {"count": 8}))     # doctest: +SKIP
    """
    if not isinstance(groupingKey, Mapping | None):
        raise ConfigError(f"groupingKey must be a mapping such as {{'count': lambda key: key}}, got {groupingKey!r}")
    folders, found = found_checkpoint(checkpointLocation)
    provider = provider_of(found, config)
    return Rescaler(folders, provider, dict(groupingKey or {}), progress=progress).run(found, tasks)


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
    _done: int = field(default=0, init=False)
    _total: int = field(default=0, init=False)

    def run(self, found: LogState, tasks: Mapping[str, int]) -> Rescaling:
        """Do it."""
        began = self.clock()
        changed = self._checked(found, tasks)
        if not changed:
            return Rescaling({}, 0, 0, self.clock() - began)
        log = taken(self.folders, "rescale it", partial(self._check_same, tasks, changed), self.opened, self.adopt)
        state = log.state
        writer = TaskWriter(self.folders.storage, self.provider, self._told).fenced(state)
        self._total = _PASSES * self._size(state, changed) if self.progress else 0
        names = self._names(state, changed)
        for bolt, now in changed.items():
            with tempfile.TemporaryDirectory(prefix="statefx-rescale-", ignore_cleanup_errors=True) as folder:
                self._rescaled(state, bolt, now, names, folder, writer)
        log.append(Rescaled(state.generation, changed, writer.tokens, writer.sizes, names))
        done = Rescaling(
            {bolt: (found.topology.stateful[bolt].parallelism, now) for bolt, now in changed.items()},
            writer.keys,
            writer.bytes,
            self.clock() - began,
        )
        if self.progress is not None:
            self.progress(self._done, self._done)
        logger.info("%s: %s", self.folders.location, done)
        return done

    def _size(self, state: LogState, bolts: Iterable[str]) -> int:
        """Return about how many bytes the state of bolts has: its files, with some that are not needed any more."""
        ids = [TaskId(bolt, task) for bolt in bolts for task in range(state.topology.stateful[bolt].parallelism)]
        prefixes = [f"{state.namespace(each).prefix}/" for each in ids]
        return sum(file.size_bytes for prefix in prefixes for file in self.folders.storage.list(prefix))

    def _told(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield blocks, and tell how far this is."""
        for keys, values in blocks:
            yield keys, values
            if self.progress is not None:
                self._done += sum(map(len, keys)) + sum(map(len, values))
                self.progress(self._done, max(self._done, self._total))

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

    def _names(self, state: LogState, bolts: Iterable[str]) -> dict[str, str]:
        """Return under which names new tasks keep their state: others where a server has the newest version alone.

        There, new tasks would write over what those of before have, and a crash would leave neither of them whole.
        """
        if not self.provider.capabilities.shared:
            return {}
        taken = {*state.topology.stateful, *state.kept_as.values()}
        return {bolt: new_name(bolt, taken, state.generation) for bolt in bolts}

    def _check_same(self, tasks: Mapping[str, int], changed: Mapping[str, int], state: LogState) -> None:
        if self._checked(state, tasks) != changed:
            raise CheckpointError(f"another one has rescaled the checkpoint in {self.folders.location} meanwhile")

    def _check_routing(self, bolt: str, known: StatefulIdentity) -> None:
        if known.layout and not any(kind == "fields" for kind, *_ in known.routing):
            raise CheckpointError(
                f"bolt {bolt!r} can't be given other tasks: behind a grouping other than fieldsGrouping its windows "
                "belong to a task and to no key. Give its rows to a bolt of a new name",
                component=bolt,
            )
        if known.joined and max(known.joined) < 0:
            raise CheckpointError(
                f"bolt {bolt!r} can't be given other tasks: its inputs are not grouped by the fields that it joins by. "
                "Group both by these, start it once with the tasks of now, and rescale then",
                component=bolt,
            )
        check_grouping(bolt, known, MOVED)
        router = router_of(bolt, known, self.grouping_key.get(bolt))
        if known.parallelism == 1 and router.given is None and router.own is None:
            raise CheckpointError(f"bolt {bolt!r} can't be given other tasks: {router.alone()}", component=bolt)

    # ---- keys and tasks

    def _rescaled(
        self, state: LogState, bolt: str, now: int, names: Mapping[str, str], folder: str, writer: TaskWriter
    ) -> None:
        was = state.topology.stateful[bolt].parallelism
        if not state.holds(bolt):
            return  # nothing has been committed by it
        router = router_of(bolt, state.topology.stateful[bolt], self.grouping_key.get(bolt))
        target = replace(state, kept_as={**state.kept_as, **names})
        runs: list[list[Run]] = [[] for _ in range(now)]
        for task in range(was):
            with ExitStack() as stack:
                own = [Run(os.path.join(folder, f"{task}-{number}"), stack) for number in range(now)]
                blocks = task_blocks(self.provider, self.folders, state, bolt, task)
                router.route_blocks(self._told(blocks), task, was, own)
            for number, run in enumerate(own):
                if run.keys:
                    runs[number].append(run)
            logger.info("state of %s/%d is read (%d of %d)", bolt, task, task + 1, was)
        router.check_proof(was)
        with ExitStack() as stack:
            common = Run(os.path.join(folder, "common"), stack)
            for entry in router.common():
                common.add(*entry)
        for task in range(now):
            own_runs = Runs([*runs[task], *([common] if common.keys else ())])
            writer.write(target, TaskId(bolt, task), now, own_runs, folder)
