"""Rewrites the committed state of bolts: the one way of all tools that change it, or copy it elsewhere.

::

    1 what can be refused is, and nothing is in flight
    2 each step reads what may refuse it: new forms of keys, which are sorted in files; rows, against state
    3 the next generation is taken, unless state has gone on meanwhile: former drivers are fenced
    4 workers write each task's entries on top of nothing, read them back and compare
    5 keys that were only read in 4 were shown to lie where they belong
    6 one record of the log, RESCALED (rule 3.13) or MIGRATED, names what was written: from then on it is the state

A failure before 6 leaves all as it was; what was written is named by no record, and swept. What can refuse without
writing stands before 3 (rule 1.5: a start that is refused fences nobody).
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, Protocol, overload

import numpy as np
from xxhash import xxh3_128

from statefx.admin.reading import Progress, check_idle, counted, entries_at, task_entries
from statefx.admin.routing import Proof
from statefx.admin.work import Here, ProgressMeter, Report, Workers, metered
from statefx.errors import CheckpointError, StateCorruptedError, StateError
from statefx.log.adoption import NOTHING_ADOPTED, check_adoption
from statefx.log.location import Folders
from statefx.log.log import TransactionLog
from statefx.log.takeover import NOTHING_RENAMED, Renaming, check_newest, take_generation
from statefx.protocol.identity import EMPTY, TaskId, Version
from statefx.protocol.log_rules import new_name, pin_of, with_names
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Record, Rescaled
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.ranges import Block
from statefx.state.contract.store import StateContext, StateLocation, StateProvider, Write, open_store, prepare_as
from statefx.storage import Storage

logger = logging.getLogger("statefx")

_ROOM = "Nothing was changed: the checkpoint needs room for the state once more. Make room, and do it again"
_REFUSED = "Nothing was changed: see why, and do it again"

FULL = (errno.ENOSPC, errno.EDQUOT)


class Sum(NamedTuple):
    """Number of entries, bytes of their keys and values, and a checksum of all; equal sums are equal entries."""

    keys: int
    bytes: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.keys} keys, {self.bytes} bytes, checksum {self.checksum}"


class Summing:
    """Sums up entries that come in blocks; how they are cut into blocks makes no difference."""

    def __init__(self) -> None:
        self._keys = self._bytes = 0
        # Lengths tell where one ends and the next begins. Each part is a stream of its own, so that it can be summed up
        # by a pass over all of a block.
        self._parts = [(xxh3_128(), xxh3_128()) for _ in range(2)]

    def add(self, keys: list[bytes], values: list[bytes]) -> None:
        for part, (lengths, data) in zip((keys, values), self._parts, strict=True):
            sizes = np.fromiter(map(len, part), np.dtype("<u8"), len(part))
            lengths.update(sizes.tobytes())
            data.update(b"".join(part))
            self._bytes += int(sizes.sum())
        self._keys += len(keys)

    @property
    def sum(self) -> Sum:
        digests = b"".join(digest.digest() for part in self._parts for digest in part)
        return Sum(self._keys, self._bytes, xxh3_128(digests).hexdigest())


def sum_of(blocks: Iterable[Block]) -> Sum:
    """Sum up entries in blocks."""
    summing = Summing()
    for keys, values in blocks:
        summing.add(keys, values)
    return summing.sum


class Source(Protocol):
    """The entries of one task in key order."""

    @property
    def keys(self) -> int:
        """The number of entries."""

    @property
    def sum(self) -> Sum | None:
        """What they amount to, or None if that is not known before they are read."""

    def blocks(self) -> Iterator[Block]:
        """Yield all entries; each call begins at the first one."""


class Writes(Sequence[Write]):
    """The entries of a source, for ``StateStore.prepare``: never in memory as a whole.

    Going through it once, by entries, slices or blocks, reads the source once. Going back reads it again.

    `sum` is known once a reading has come to its end.
    """

    def __init__(self, source: Source, report: Report = lambda size: None) -> None:
        self._source = source
        self._report = report
        self._rows: Iterator[Write] = iter(())
        self._at = len(self)
        self.sum: Sum | None = None

    def __len__(self) -> int:
        return self._source.keys

    def blocks(self) -> Iterator[Block]:
        summing = Summing()
        for keys, values in metered(self._source.blocks(), self._report):
            summing.add(keys, values)
            yield keys, values
        self.sum = summing.sum

    def __iter__(self) -> Iterator[Write]:
        for keys, values in self.blocks():
            yield from zip(keys, values, strict=True)

    @overload
    def __getitem__(self, at: int) -> Write: ...
    @overload
    def __getitem__(self, at: slice) -> list[Write]: ...
    def __getitem__(self, at: int | slice) -> Write | list[Write]:
        wanted = range(len(self))[at]
        if isinstance(wanted, int):
            return self._read(wanted, wanted + 1)[0]
        return self._read(wanted.start, wanted.stop) if wanted.step == 1 else [self[number] for number in wanted]

    def _read(self, start: int, stop: int) -> list[Write]:
        if start >= stop:
            return []
        if start < self._at:
            self._rows, self._at = iter(self), 0
        rows = list(islice(self._rows, start - self._at, stop - self._at))
        self._at = stop
        return rows


# ---- what differs from tool to tool


@dataclass(frozen=True)
class Side:
    """A checkpoint that is read, or written to; executors get it.

    Attributes
    ----------
    build : callable
        Builds the provider, once for each piece of work.
    state : LogState
        What the log knows; of the side that is written to with the names, the lineage and the generation under which
        state is written.
    room : str
        What an error says where a disk is full; empty: who has asked says it.
    """

    folders: Folders
    build: Callable[[], StateProvider]
    state: LogState
    room: str = _ROOM

    def open(self) -> OpenSide:
        return OpenSide(self, self.build())


@dataclass(frozen=True)
class OpenSide:
    """A side with its provider."""

    side: Side
    provider: StateProvider

    @property
    def state(self) -> LogState:
        return self.side.state

    def blocks(self, bolt: str, task: int, report: Report) -> Iterator[Block]:
        """Yield the state of one task, at its newest decided version."""
        return metered(task_entries(self.provider, self.side.folders, self.state, bolt, task), report)


@dataclass(frozen=True)
class Piece:
    """Work that is done in one place: tasks that are read, and those that are written, whose keys are all in these."""

    was: Sequence[int]
    now: Sequence[int]


class Step(ABC):
    """What becomes of the state of one bolt; executors get it if it has several pieces."""

    bolt: str

    def check(self, found: LogState, known: StatefulIdentity) -> None:
        """Refuse what shows without reading; called for bolts that have state."""

    def read(self, source: OpenSide, path: str, report: Report) -> None:
        """Read what may refuse the step, before any driver is fenced; temporary files may begin with `path`."""

    def becomes(self, known: StatefulIdentity) -> StatefulIdentity:
        """Return how the bolt keeps its state afterwards."""
        return known

    def txid(self, state: LogState, task: TaskId) -> int:
        """Return the transaction at which a task's new state stands."""
        return state.committed

    def pieces(self, known: StatefulIdentity, slots: int) -> Sequence[Piece]:
        """Divide the work among `slots` that work at the same time."""
        return [Piece(range(known.parallelism), range(self.becomes(known).parallelism))]

    @abstractmethod
    def entries(
        self, source: OpenSide, piece: Piece, folder: str, report: Report
    ) -> tuple[Mapping[int, Source], Proof]:
        """Return the entries of the piece's new tasks, and what their keys have shown."""

    def check_proof(self, proofs: Sequence[Proof], known: StatefulIdentity) -> None:
        """Refuse what may be chance, once all pieces are done."""


@dataclass
class WrittenTasks:
    """State that was written, and has been read back.

    Attributes
    ----------
    tokens, sizes : dict
        By ``component/task``.
    keys, bytes : int
        Number of entries, and the size of their keys and values.
    seconds : float
        How long all took.
    """

    tokens: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    keys: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, other: WrittenTasks) -> None:
        self.tokens.update(other.tokens)
        self.sizes.update(other.sizes)
        self.keys += other.keys
        self.bytes += other.bytes


# ---- what is common


@dataclass
class Rewrite:
    """One rewriting of a checkpoint, in place; subclasses write elsewhere.

    Attributes
    ----------
    steps : Mapping[str, Step]
        By bolt.
    then : str
        What is to be done when nothing runs; completes messages.
    workers : Workers
        Where state is read and written, by default this process.
    build : callable, optional
        Builds `provider` where the workers are; None if that is here.
    """

    folders: Folders
    provider: StateProvider
    steps: Mapping[str, Step]
    then: str
    opened: Callable[[Storage], TransactionLog] = TransactionLog
    adopt: frozenset[str] = NOTHING_ADOPTED
    progress: Progress | None = None
    workers: Workers = field(default_factory=Here)
    build: Callable[[], StateProvider] | None = None
    log: TransactionLog = field(init=False)
    """Of the generation that was taken."""

    def run(self, found: LogState) -> WrittenTasks:
        """Do it; return what was written.

        Raises
        ------
        CheckpointError
            A transaction is in flight, a step refuses, or the checkpoint has gone on meanwhile; nothing was changed.
        FencedError
            Another driver or tool has taken over; nothing was changed.
        StateCorruptedError
            What is read is damaged, or what was read back is not what was written; nothing was changed.
        """
        began = time.monotonic()
        holding = {bolt: step for bolt, step in self.steps.items() if found.holds(bolt)}
        check_idle(found, self.folders, self.then)
        self.check(found)
        for bolt, step in holding.items():
            step.check(found, found.topology.stateful[bolt])
        meter = ProgressMeter.of(self.progress, pin_of(found), holding)
        written = WrittenTasks()
        with tempfile.TemporaryDirectory(prefix="statefx-", ignore_cleanup_errors=True) as folder:
            for number, step in enumerate(holding.values()):
                step.read(self._side(found).open(), os.path.join(folder, str(number)), meter.add)
            state, target = self.begin(found)
            with self.writing(state):
                for step in holding.values():
                    written.add(self._written(step, self._side(state), target, meter))
        self.end(state, target, written)
        meter.end()
        written.seconds = time.monotonic() - began
        size = f"{counted(written.keys, 'entry', 'entries')}, {written.bytes} bytes, {written.seconds:.1f} s"
        logger.info("%s: state of %s is rewritten: %s", self.folders.location, [*holding] or "no bolt", size)
        return written

    def _side(self, state: LogState) -> Side:
        return Side(self.folders, self.build or (lambda: self.provider), state)

    def _written(self, step: Step, source: Side, target: Side, meter: ProgressMeter) -> WrittenTasks:
        known = source.state.topology.stateful[step.bolt]
        # On a server, a piece that is done twice would write twice under one name.
        workers = Here() if self.target_provider.location is StateLocation.SERVER else self.workers
        pieces = step.pieces(known, workers.slots)
        if len(pieces) == 1:  # what the step has read may lie in temporary files, which other machines don't have
            workers = Here()
        written, proofs = WrittenTasks(), list[Proof]()
        for number, (done, proof) in enumerate(workers.run(Work(step, source, target).do, pieces, meter.add), start=1):
            written.add(done)
            proofs.append(proof)
            logger.info("%s: %d of %d pieces are done", step.bolt, number, len(pieces))
        step.check_proof(proofs, known)
        return written

    # ---- what a subclass does otherwise

    @property
    def target_provider(self) -> StateProvider:
        """The provider that is written to."""
        return self.provider

    def check(self, found: LogState) -> None:
        """Refuse what shows without reading."""
        shared = self.provider.location is StateLocation.SERVER
        check_adoption(found, None, self.folders, self.adopt, shared=shared)

    def begin(self, found: LogState) -> tuple[LogState, Side]:
        """Take the next generation and fence; return what the log knows, and where state is written to.

        On a server it is written under new names. Under the same ones it would be written over what is there, and a
        crash would leave neither of the two whole.
        """
        state, names = self.take(found), dict[str, str]()
        if self.provider.location is StateLocation.SERVER:
            known = {*state.topology.stateful, *state.kept_as.values()}
            names = {bolt: new_name(bolt, known, state.generation) for bolt in self.steps}
        return state, self._side(with_names(state, names))

    def take(self, found: LogState) -> LogState:
        """Take the next generation, unless state has changed since it was `found`; fence."""
        self.log = taken(self.folders, self.then, lambda state: self._check_same(found, state), self.opened, self.adopt)
        fence(self.provider, self.folders, self.log.state)
        return self.log.state

    def _check_same(self, found: LogState, state: LogState) -> None:
        if (state.heads, state.topology.stateful) != (found.heads, found.topology.stateful):
            raise CheckpointError(
                f"the checkpoint in {self.folders.location} has gone on meanwhile: stop its topology, and {self.then}",
                path=self.folders.location,
            )

    def writing(self, state: LogState) -> AbstractContextManager[None]:
        return unless_overtaken(self.folders, state)

    def end(self, state: LogState, target: Side, written: WrittenTasks) -> None:
        """Make what was written the bolts' state."""
        self.log.append(self.record(state, target, written))

    def record(self, state: LogState, target: Side, written: WrittenTasks) -> Record:
        stateful = state.topology.stateful
        becomes = {bolt: step.becomes(stateful[bolt]) for bolt, step in self.steps.items()}
        tasks = {bolt: now.parallelism for bolt, now in becomes.items()}
        other = {b: now for b, now in becomes.items() if now != replace(stateful[b], parallelism=now.parallelism)}
        names = {bolt: target.state.kept_as[bolt] for bolt in self.steps if bolt in target.state.kept_as}
        return Rescaled(state.generation, tasks, written.tokens, written.sizes, names, other)


@dataclass(frozen=True)
class Work:
    """Writes the new tasks of a piece; executors get it."""

    step: Step
    source: Side
    target: Side

    def do(self, piece: Piece, report: Report) -> tuple[WrittenTasks, Proof]:
        """Return what was written, and what the keys have shown."""
        target, written = self.target.open(), WrittenTasks()
        with tempfile.TemporaryDirectory(prefix="statefx-", ignore_cleanup_errors=True) as folder:
            sources, proof = self.step.entries(self.source.open(), piece, folder, report)
            for number, source in sources.items():
                task = TaskId(self.step.bolt, number)
                txid = self.step.txid(self.source.state, task)
                written.add(write_task(target, task, txid, source, os.path.join(folder, "cache"), report))
        return written, proof


def write_task(target: OpenSide, task: TaskId, txid: int, source: Source, cache: str, report: Report) -> WrittenTasks:
    """Write the state of a task on top of nothing, read it back and compare.

    Raises
    ------
    StateError
        There is no room for it; says what to do. Or the provider has state of the task already.
    StateCorruptedError
        What was read back is not what was written.
    """
    namespace, token, writes = target.state.namespace(task), uuid.uuid4().hex, Writes(source, report)
    provider, generation, storage = target.provider, target.state.generation, target.side.folders.storage
    with closing(open_store(provider, namespace, StateContext(generation, EMPTY, storage, cache))) as store:
        if next(iter(store.scan(None, None)), None) is not None:
            raise StateError(
                f"{type(provider).__name__} holds state of {namespace} before anything was written there: it does not "
                "keep lineages apart",
                namespace=namespace,
            )
        try:
            prepared = prepare_as(store, txid, token, writes)
        except StateError as error:
            number, room = error.data.get("errno"), target.side.room
            if number is None or not room:
                raise
            raise StateError(f"{error.message}. {room if number in FULL else _REFUSED}", **error.data) from error
        if provider.location is StateLocation.SERVER:  # no later record would tell the store
            store.commit(txid, token)
    expected = source.sum or writes.sum or sum_of(source.blocks())
    # Another store: the one that wrote could answer from its memory.
    context = StateContext(generation, Version(txid, token), storage, cache, read_only=True)
    found = sum_of(metered(entries_at(provider, namespace, context), report))
    if found != expected or found.keys != source.keys:
        raise StateCorruptedError(
            f"what was written of {task} is not what was read: {found} for {expected}. Nothing was changed; look for "
            "the fault in the provider, its server or the disk",
            component=task.component,
            task=task.task,
            found=found,
            expected=expected,
        )
    logger.info("state of %s is written and read back: %d keys, %d bytes", task, found.keys, found.bytes)
    return WrittenTasks({str(task): token}, {str(task): prepared.size_bytes}, found.keys, found.bytes)


class Copy(Step):
    """The state of a bolt, task by task as it is."""

    def __init__(self, bolt: str) -> None:
        self.bolt = bolt

    def txid(self, state: LogState, task: TaskId) -> int:
        return state.heads[str(task)].txid

    def pieces(self, known: StatefulIdentity, slots: int) -> Sequence[Piece]:
        return [Piece([task], [task]) for task in range(known.parallelism)]

    def entries(
        self, source: OpenSide, piece: Piece, folder: str, report: Report
    ) -> tuple[Mapping[int, Source], Proof]:
        tasks = (task for task in piece.was if str(TaskId(self.bolt, task)) in source.state.heads)
        return {task: _Stored(source, self.bolt, task, report) for task in tasks}, Proof()


def copies(found: LogState) -> dict[str, Step]:
    """Return the steps that copy all that stateful bolts keep."""
    return {bolt: Copy(bolt) for bolt in found.topology.stateful}


class _Stored:
    """What a task has; read once to know how much that is."""

    def __init__(self, source: OpenSide, bolt: str, task: int, report: Report) -> None:
        self._source, self._bolt, self._task = source, bolt, task
        self.sum = sum_of(source.blocks(bolt, task, report))
        self.keys = self.sum.keys

    def blocks(self) -> Iterator[Block]:
        return self._source.blocks(self._bolt, self._task, lambda size: None)


# ---- generations


def check_changeable(found: LogState, folders: Folders, then: str) -> None:
    """Refuse what no tool changes: a transaction is in flight, or no topology has gone on with a copy."""
    check_idle(found, folders, then)
    check_adoption(found, None, folders, NOTHING_ADOPTED, shared=False)


def taken(
    folders: Folders,
    then: str,
    check: Callable[[LogState], None] = lambda state: None,
    opened: Callable[[Storage], TransactionLog] = TransactionLog,
    adopt: frozenset[str] = NOTHING_ADOPTED,
    renaming: Renaming = NOTHING_RENAMED,
) -> TransactionLog:
    """Take the next generation, after a last look."""

    def looked_at(storage: Storage) -> TransactionLog:
        log = opened(storage)
        # At each try to take the generation: a driver that runs may have begun something since the last look.
        check_idle(log.state, folders, then)
        check(log.state)
        return log

    return take_generation(folders, None, adopt, shared=False, renaming=renaming, opened=looked_at)


def fence(provider: StateProvider, folders: Folders, state: LogState) -> None:
    """Have no task of a former driver write any more, once the next generation was `taken`.

    Rule 4.2: the log fences records alone; a task of the former driver could still prepare.
    """
    provider.fence(state.lineage, state.generation, folders.storage)


@contextmanager
def unless_overtaken(folders: Folders, state: LogState) -> Iterator[None]:
    """Raise FencedError where reading or writing fails since a newer generation has gone on, or has swept."""
    try:
        yield
    except StateError:
        check_newest(folders, state.generation)
        raise
