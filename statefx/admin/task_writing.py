"""Writes the state of tasks, which one record of the log then makes that of their bolts."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from statefx.admin.migration import Entries, Scanned, Sum, Summing, sum_of
from statefx.admin.reading import blocks_at
from statefx.admin.runs import Runs
from statefx.coordinator.generation import check_newest
from statefx.coordinator.location import Folders
from statefx.errors import StateCorruptedError, StateError
from statefx.protocol.identity import EMPTY, TaskId, Version
from statefx.protocol.log_rules import new_name
from statefx.protocol.log_state import LogState
from statefx.state.contract.ranges import Block, InBlocks, in_blocks
from statefx.state.contract.store import StateContext, StateLocation, StateProvider, open_store, prepare_as
from statefx.storage import Storage

logger = logging.getLogger("statefx")


def new_names(provider: StateProvider, state: LogState, bolts: Iterable[str]) -> dict[str, str]:
    """Return under which names bolts keep state that is written anew: others where a server has the newest alone.

    Under the same names it would be written over what is there, and a crash would leave neither of the two whole.
    """
    if provider.location is not StateLocation.SERVER:
        return {}
    taken = {*state.topology.stateful, *state.kept_as.values()}
    return {bolt: new_name(bolt, taken, state.generation) for bolt in bolts}


@contextmanager
def unless_overtaken(folders: Folders, state: LogState) -> Iterator[None]:
    """Raise FencedError where reading or writing fails since a newer generation has gone on, or has swept."""
    try:
        yield
    except StateError:
        check_newest(folders, state.generation)
        raise


@dataclass
class WrittenTasks:
    """State that was written for the record RESCALED.

    Attributes
    ----------
    tokens, sizes : dict
        By ``component/task``.
    keys, bytes : int
        How many entries that is, and the size of their keys and values.
    """

    tokens: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    keys: int = 0
    bytes: int = 0

    def add(self, other: WrittenTasks) -> None:
        """Count in what somebody else has written."""
        self.tokens.update(other.tokens)
        self.sizes.update(other.sizes)
        self.keys += other.keys
        self.bytes += other.bytes


@dataclass
class TaskWriter:
    """Writes the state of tasks on top of nothing, reads it back and compares.

    Parameters
    ----------
    storage, provider
        Where, and by whom.
    told : callable, optional
        Is given blocks that are written and read back, and yields them: it sees how far this is.
    """

    storage: Storage
    provider: StateProvider
    told: Callable[[Iterable[Block]], Iterator[Block]] = iter
    done: WrittenTasks = field(default_factory=WrittenTasks, init=False)

    def write(self, state: LogState, task: TaskId, tasks: int, source: Scanned, folder: str) -> None:
        """Write the state of a task, of so many that its bolt has; `folder` is for temporary files.

        Raises
        ------
        StateError
            There is no room for it; says what to do.
        StateCorruptedError
            What was read back is not what was written.
        """
        namespace, storage, token = state.namespace(task), self.storage, uuid.uuid4().hex
        count = source.keys if isinstance(source, Runs) else sum_of(source.scan(None, None)).keys
        given = _Given(source, count, self.told)
        cache = os.path.join(folder, "cache")
        context = StateContext(state.generation, EMPTY, storage, cache)
        with closing(open_store(self.provider, namespace, context)) as store:
            try:
                written = prepare_as(store, state.committed, token, given)
            except StateError as error:
                if error.data.get("errno") is None:
                    raise
                raise StateError(
                    f"{error.message}. Nothing was changed: the checkpoint needs room for the state once more. Make "
                    "room, or see why the place refuses, and do it again",
                    **error.data,
                ) from error
            if self.provider.location is StateLocation.SERVER:  # no later record would tell it
                store.commit(state.committed, token)
        there = given.sum or sum_of(source.scan(None, None))
        context = StateContext(state.generation, Version(state.committed, token), storage, cache, read_only=True)
        summing = Summing()
        for keys, values in self.told(blocks_at(self.provider, namespace, context)):
            summing.add(keys, values)
        found = summing.sum
        if found != there or found.keys != count:
            raise StateCorruptedError(
                f"what was written of {task} is not what was read: {found} for {there}. Nothing was changed; look for "
                "the fault in the provider or the disk",
                component=task.component,
                task=task.task,
                found=found,
                expected=there,
            )
        name = str(task)
        self.done.add(WrittenTasks({name: written.token}, {name: written.size_bytes}, found.keys, found.bytes))
        logger.info("state of %s is written: %d keys (%d of %d)", name, found.keys, task.task + 1, tasks)


class _Given(Entries):
    """The entries of a new task as they are given to its store; summed up while they are, so that they are read once.

    `sum` is None until all of them were taken in one go.
    """

    def __init__(self, source: Scanned, count: int, told: Callable[[Iterable[Block]], Iterator[Block]]) -> None:
        super().__init__(source, count)
        self._source = source
        self._told = told
        self.sum: Sum | None = None

    def blocks(self) -> Iterator[Block]:
        """Yield them in blocks."""
        summing, source = Summing(), self._source
        blocks = source.blocks() if isinstance(source, InBlocks) else in_blocks(source.scan(None, None))
        for keys, values in self._told(blocks):
            summing.add(keys, values)
            yield keys, values
        self.sum = summing.sum

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]:
        for keys, values in self.blocks():
            yield from zip(keys, values, strict=True)
