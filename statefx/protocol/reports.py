"""Reports of tasks: failures, outcomes of trees of tuples, barriers to readers, and acks to the driver.

The root of a tree is a number of 63 bits: the transaction that emitted the tuple, the task of a spout that did, and the
tuple's place in what the task emitted. So a task that meets a root can tell how old it is without asking anybody.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, Self, get_type_hints

import msgpack
import msgspec

from statefx.errors import StatefxError
from statefx.protocol.counting import NOTHING_COUNTED, Counted
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt
from statefx.protocol.jsonform import Json
from statefx.protocol.watermark import Part, TimeReport


class FailureKind(StrEnum):
    """The driver's reaction to a failure depends on its kind alone."""

    FAILED = "failed"
    """The bolt said so with a FailedException: another attempt may succeed."""
    BOLT = "bolt"
    """The code of the bolt raised."""
    MISUSE = "misuse"
    """A hook did what it must not do: no further try can succeed."""
    FENCED = "fenced"
    """A newer generation has taken over: this driver stops."""
    CORRUPTED = "corrupted"
    """State is damaged."""
    STORE = "store"
    """The state provider failed: another try may succeed."""
    INPUT = "input"
    """Rows that a DataFrame has brought are gone: they are read from the source again (rule 15.1)."""
    MISALIGNED = "misaligned"
    """Rows, barriers or tokens do not fit together."""
    UPSTREAM = "upstream"
    """Another task failed, and passed that on in its barrier."""
    MISSING = "missing"
    """There is no ack at all."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a task could not prepare a transaction."""

    kind: FailureKind
    # component, task: Who reports it.
    component: str
    task: int
    reason: str  # one sentence
    # More for the error that the driver makes of it: of ``bolt``, the attributes of the BoltError.
    facts: Mapping[str, Any] = field(default_factory=dict)


_PLACE_BITS, _TASK_BITS = 18, 10
ROOTS_MAX = 1 << _PLACE_BITS
"""Tuples of one task in one transaction. With 1,024 tasks, 35 bits are left for the transaction: 50 years of 20 a
second."""

SPOUT_TASKS_MAX = 1 << _TASK_BITS

REASONS_MAX, OTHERS = 100, "other reasons"
"""Of why trees have failed, in what one task says: a transaction may fail a hundred thousand, each with a text of its
own."""

TIMED_OUT = "it was not acked within"
"""How the reason begins of a tree that no bolt has failed."""

REASONS_TOLD_MAX = 10 * REASONS_MAX
"""In what a chain of spouts is told, which comes from many tasks."""


def root_of(txid: int, task: int, place: int) -> int:
    """Return the root of a tuple.

    >>> txid_of(root_of(7, 3, 200_000))
    7
    """
    return (txid << _TASK_BITS | task) << _PLACE_BITS | place


def txid_of(root: int) -> int:
    return root >> (_TASK_BITS + _PLACE_BITS)


def task_of(root: int) -> int:
    """Return the number of the task that has emitted a root.

    >>> task_of(root_of(7, 3, 200_000))
    3
    """
    return root >> _PLACE_BITS & SPOUT_TASKS_MAX - 1


class Handled(NamedTuple):
    """A task's handling of tuples of one tree in one transaction."""

    received: int
    held: int  # from this transaction on
    released: int  # that it held before, and has acked or failed
    failed: int


@dataclass(frozen=True, slots=True)
class TreeReport:
    """Outcomes of trees in one transaction; the default: every tree that began in it has ended well."""

    # Roots of trees that have failed, by why.
    failed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Roots of trees of earlier transactions that have ended well.
    acked: tuple[int, ...] = ()
    # Roots of trees of this transaction that go on: bolts hold tuples of them.
    held: tuple[int, ...] = ()
    # By task of a spout ("component/task") that has asked: the trees that go on, as (root, id as bytes).
    pending: Mapping[str, tuple[tuple[int, bytes], ...]] = field(default_factory=dict)
    # When the next tree times out, in milliseconds since the epoch; 0: none does.
    due_ms: int = 0
    # By how many tuples more a task of a bolt ("component/task") holds than before the transaction.
    holding: Mapping[str, int] = field(default_factory=dict)
    # With topology.trace: what a task of a bolt did with tuples of trees, by root.
    steps: Mapping[str, Mapping[int, Handled]] = field(default_factory=dict)

    def parts(self, chains: Iterable[Mapping[int, str]], restored: Mapping[int, int]) -> Iterator[TreeReport]:
        """Yield the part of each of some chains, given by number and name of its tasks of spouts.

        `restored` has the numbers for roots from before the start, when tasks may have had other ones.
        """

        def by_task(roots: Iterable[int]) -> dict[int, list[int]]:
            found: dict[int, list[int]] = defaultdict(list)
            for root in roots:
                # As `task_of`, whose call would take most of the time: the driver does this for each held message.
                found[restored.get(root, root >> _PLACE_BITS & SPOUT_TASKS_MAX - 1)].append(root)
            return found

        acked, held = by_task(self.acked), by_task(self.held)
        failed = {reason: by_task(roots) for reason, roots in self.failed.items()}
        for tasks in chains:

            def own(found: Mapping[int, Sequence[int]], tasks: Iterable[int] = tasks) -> tuple[int, ...]:
                return tuple(chain.from_iterable(found.get(task, ()) for task in tasks))

            told: dict[str, tuple[int, ...]] = {}
            for reason, found in failed.items():
                if roots := own(found):
                    said = reason if len(told) < REASONS_TOLD_MAX else OTHERS
                    told[said] = told.get(said, ()) + roots
            pending = {name: self.pending[name] for name in tasks.values() if name in self.pending}
            yield TreeReport(told, own(acked), own(held), pending)

    def __bool__(self) -> bool:
        said = self.failed or self.acked or self.held or self.pending or self.due_ms
        return bool(said or self.holding or self.steps)


def merged(reports: Iterable[TreeReport]) -> TreeReport:
    said = [report for report in reports if report]
    if not said:
        return NOTHING
    failed: dict[str, set[int]] = {}
    pending: dict[str, tuple[tuple[int, bytes], ...]] = {}
    holding: dict[str, int] = {}
    steps: dict[str, Mapping[int, Handled]] = {}
    for report in said:
        holding.update(report.holding)  # each task says it of itself
        steps.update(report.steps)
        for reason, roots in report.failed.items():
            failed.setdefault(reason, set()).update(roots)
        for task, trees in report.pending.items():
            pending[task] = (*pending.get(task, ()), *trees)
    return TreeReport(
        failed={reason: tuple(sorted(roots)) for reason, roots in failed.items()},
        acked=tuple(chain.from_iterable(report.acked for report in said)),
        held=tuple(chain.from_iterable(report.held for report in said)),
        pending=pending,
        due_ms=min((report.due_ms for report in said if report.due_ms), default=0),
        holding=holding,
        steps=steps,
    )


NOTHING = TreeReport()


WIRE_VERSION = 1

_ENCODER = msgspec.msgpack.Encoder()
_OUTER = msgspec.msgpack.Decoder(tuple[str, int, msgspec.Raw])


class _Message:
    """A message between tasks, or between them and the driver.

    As bytes it is its kind, the version, and the values of its fields in their order.
    """

    __slots__ = ()

    def pack(self) -> bytes:
        shape: Any = type(self)
        names, texts, attempts, _ = _wire_form(shape)
        values = [getattr(self, name) for name in names]
        for place in texts:
            values[place] = None if values[place] is None else json.dumps(values[place])
        for place in attempts:  # a pair: the names in a mapping would be a fifth of a barrier, of which there are many
            values[place] = (values[place].txid, values[place].attempt)
        body = (type(self).__name__, WIRE_VERSION, values)
        try:
            return _ENCODER.encode(body)
        # Half a surrogate pair in what users raise must not become an error of its own. Values have none: they are
        # JSON.
        except UnicodeEncodeError:
            packed: bytes = msgpack.packb(msgspec.to_builtins(body), unicode_errors="backslashreplace")
            return packed

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Read what `pack` wrote; StatefxError if driver and executors run different statefx releases."""
        shape: Any = cls
        kind: Any = "?"
        version: Any = "?"
        try:
            kind, version, body = _OUTER.decode(data)
            if (kind, version) == (cls.__name__, WIRE_VERSION):
                _, texts, attempts, decoder = _wire_form(shape)
                values = [*decoder.decode(body)]
                for place in texts:
                    values[place] = None if values[place] is None else json.loads(values[place])
                for place in attempts:
                    values[place] = TransactionAttempt(*values[place])
                return cls(*values)
        except (msgspec.DecodeError, json.JSONDecodeError):
            pass
        raise StatefxError(
            f"{cls.__name__} of version {WIRE_VERSION} was expected, found kind {kind!r}, version {version!r}: "
            "install the same statefx release on the driver and on every executor",
            expected=WIRE_VERSION,
        )


@cache
def _wire_form(kind: Any) -> tuple[list[str], list[int], list[int], msgspec.msgpack.Decoder[Any]]:
    """Return the fields of a message, the places of those that travel as JSON text or as a pair, and their decoder.

    MessagePack has no half surrogate pairs and no integers of more than 64 bits. The log and the tasks' orders have
    both, so that a spout or a sink finds in the next transaction what it has said in this one.
    """
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    wire_types: dict[Any, Any] = {TransactionAttempt: tuple[int, int], Json: str | None}
    types = [wire_types.get(hints[name], hints[name]) for name in names]
    texts, attempts = (
        [place for place, name in enumerate(names) if hints[name] is shape] for shape in (Json, TransactionAttempt)
    )
    return names, texts, attempts, msgspec.msgpack.Decoder(tuple[tuple(types)])  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Report(_Message):
    """The outcome of one task's commit or rollback."""

    component: str
    task: int
    error: str | None = None  # None: done
    kind: FailureKind | None = None  # of the error
    facts: Mapping[str, Any] = field(default_factory=dict)  # of ``bolt``, the attributes of the BoltError

    @property
    def id(self) -> TaskId:
        return TaskId(self.component, self.task)


ACTIVITIES = ("busy", "idle", "blocked", "restoring", "committing")
"""What a task does at each moment, one of these: its own code runs; it waits for an instruction, for rows, or for tasks
before it in its chain; what it sent waits to leave, or is worked on by tasks after it in its chain; its state is
opened; it prepares, commits, or rolls back."""


@dataclass(frozen=True, slots=True)
class Barrier(_Message):
    """Closes one transaction attempt on one channel, from an upstream task to a downstream task."""

    attempt: TransactionAttempt  # what it closes
    # source, task: The upstream component and task.
    source: str
    task: int
    token: str  # names the very task attempt whose rows it closes
    # Edge id -> rows sent to this very target task; an edge that is left out sent none.
    counts: Mapping[int, int] = field(default_factory=dict)
    failed: str | None = None  # the reason, if the upstream task could not prepare
    watermark: int | None = None  # how far event time has come; None: it does not hold that of the reader
    parts: Mapping[str, Part] = field(default_factory=dict)  # the same of spouts whose partitions can finish, by stream


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows that a spout skipped in its batches, as its user wants it."""

    # gone, refused: How many offsets were deleted before they were read, and how many records can't be rows.
    gone: int = 0
    refused: int = 0
    why: str = ""  # the first of the refused records, and the reason

    def __add__(self, other: LeftOut) -> LeftOut:
        return LeftOut(self.gone + other.gone, self.refused + other.refused, self.why or other.why)

    def __bool__(self) -> bool:
        return bool(self.gone or self.refused)

    def __str__(self) -> str:
        """Return it in words, for a warning."""
        gone = [f"{self.gone:,} offsets that were deleted before they were read"] if self.gone else []
        refused = [f"{self.refused:,} records, the first: {self.why}"] if self.refused else []
        return "; ".join(gone + refused)


@dataclass(frozen=True, slots=True)
class SetAside:
    """Rows that a bolt raised an error for, and that were skipped or became dead letters, as its user wants it."""

    rows: int = 0
    why: str = ""  # the task, the hook and the error of the first one

    def __add__(self, other: SetAside) -> SetAside:
        return SetAside(self.rows + other.rows, self.why or other.why)

    def __bool__(self) -> bool:
        return self.rows > 0


BREAKER_STATES = ("closed", "halfOpen", "open")
"""The states of a task's circuit breaker: calls are made; one is made, to see whether its service is back; none is."""


@dataclass(frozen=True, slots=True)
class CallReport:
    """What a task of an AsyncBolt with retries has to report of its calls."""

    waiting: int = 0  # tuples that wait in state for another call
    retried: int = 0  # calls that were made again in the attempt, or will be
    breaker: str = ""  # of `BREAKER_STATES`; empty: it has none
    changes: int = 0  # how often that has changed since the task's chain began

    def __bool__(self) -> bool:
        return self.waiting > 0 or self.breaker not in ("", BREAKER_STATES[0])


@dataclass(frozen=True, slots=True)
class Ack(_Message):
    """A task's report to the driver for one transaction attempt."""

    attempt: TransactionAttempt  # what is acknowledged
    # component, task, token: Who, and the name of what was prepared.
    component: str
    task: int
    token: str
    seen: Mapping[TaskId, str] = field(default_factory=dict)  # upstream task -> the token in its barrier
    # received, emitted: Edge id -> rows; `emitted` is counted before a row is multiplied for an allGrouping.
    received: Mapping[int, int] = field(default_factory=dict)
    emitted: Mapping[int, int] = field(default_factory=dict)
    failed: Failure | None = None  # why nothing can be committed
    # prepared_bytes, keys: By how much what has to be read has grown, and how many keys the transaction changed.
    prepared_bytes: int = 0
    snapshot: SnapshotRef | None = None  # a full image the task has written beside it
    keys: int = 0
    # committable, metadata: What the task adds to the decision (rule 4.5), and what a spout's emitter says of the rows
    # that it emitted.
    committable: Json = None
    metadata: Json = None
    # How many keys the state held when the transaction found it, where its provider counts; shown to people.
    found_keys: int | None = field(default=None, compare=False)
    # Edge id -> rows that were added up to those emitted, where they are; shown to people, and decides nothing.
    rows_before_combining: Mapping[int, int] = field(default_factory=dict, compare=False)
    # Milliseconds of what the task did, by kind; shown to people, and decides nothing: acks are equal without.
    metrics: Mapping[str, float] = field(default_factory=dict, compare=False)
    # Milliseconds by activity since the task's chain began (`ACTIVITIES`): totals, so that nothing is lost with an ack
    # that nobody reads; shown to people, and decides nothing.
    activity: Mapping[str, float] = field(default_factory=dict, compare=False)
    # Edge id -> bytes of the rows that were sent and received, as Arrow; shown to people, and decides nothing.
    sent_bytes: Mapping[int, int] = field(default_factory=dict, compare=False)
    received_bytes: Mapping[int, int] = field(default_factory=dict, compare=False)
    # What a spout has left out; shown to people, and decides nothing.
    left_out: LeftOut = field(default=LeftOut(), compare=False)
    # Rows that a bolt has set aside; shown to people, and decides nothing.
    set_aside: SetAside = field(default=SetAside(), compare=False)
    # What the task says of trees of tracked tuples.
    trees: TreeReport = field(default=NOTHING)
    # What a task of a spout that lives counts, since its object was made; shown to people, and decides nothing.
    counts: Mapping[str, int | float] = field(default_factory=dict, compare=False)
    time: TimeReport | None = None  # of a task that has event time
    # When the task's first timer of the clock is due, in milliseconds since 1970; 0: there is none.
    due_ms: int = 0
    # Milliseconds within those of `metrics` (`statefx.runtime.activity`); shown to people, and decides nothing.
    costs: Mapping[str, float] = field(default_factory=dict, compare=False)
    counted: Counted = field(default=NOTHING_COUNTED)  # metrics of the user's
    # W3C trace contexts of some of the records that a spout has read; shown to people, and decides nothing.
    traces: tuple[str, ...] = field(default=(), compare=False)
    calls: CallReport | None = field(default=None, compare=False)  # shown to people, and decides nothing

    @property
    def id(self) -> TaskId:
        return TaskId(self.component, self.task)
