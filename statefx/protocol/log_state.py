"""The transaction log folded into one value, and the last attempts of transactions as people are shown them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from statefx.protocol.counting import Totals, then
from statefx.protocol.identity import EMPTY, Namespace, SnapshotRef, TaskId, Version
from statefx.protocol.jsonform import Json
from statefx.protocol.metadata import BySpout, Metadata
from statefx.protocol.records import BatchInput, Committing, Input, Pin, SourceNotes, StreamInput
from statefx.protocol.topology_identity import NO_TOPOLOGY, TopologyIdentity
from statefx.protocol.transaction import Phase, TransactionState
from statefx.protocol.watermark import UnitTime

KEPT = 1000
"""How many ended attempts are remembered. An attempt is a line of some 100 bytes in the CHECKPOINT, so 100 kB, written
with every fold: 2 kB for each of the 50 transactions between two folds, about what their own records take. It is a
quarter of an hour of transactions of one second, and a night of those of a minute."""

BATCH = 64
"""Ended attempts are taken over into the long tuple so many at a time. Each alone would copy `KEPT` of them."""

REASON_CHARS = 200
"""Of why an attempt was rolled back; its ROLLED_BACK record has all of it."""


class SinkVolume(NamedTuple):
    """Rows and bytes of one sink in a transaction, as its tasks report them."""

    sink: str
    rows: int
    bytes: int


def sink_volumes(committables: Mapping[str, Json]) -> tuple[SinkVolume, ...]:
    """Return what the sinks of a decision were given; those that don't tell rows and bytes are left out.

    Committables are a sink's own affair. This is for people alone, so that whatever stands there, it raises nothing: a
    record that can't be folded would end the topology.

    >>> sink_volumes({"out": {"tasks": {"0": {"rows": 2, "bytes": 90}, "1": {"rows": 1, "bytes": 40}}}, "mail": None})
    (SinkVolume(sink='out', rows=3, bytes=130),)
    """
    found = []
    for sink, decision in sorted(committables.items()):
        tasks = decision.get("tasks") if isinstance(decision, Mapping) else None
        if isinstance(tasks, Mapping) and all(_tells(each) for each in tasks.values()):
            rows, size = (sum(each[name] for each in tasks.values()) for name in ("rows", "bytes"))
            found.append(SinkVolume(sink, rows, size))
    return tuple(found)


def _tells(committable: Json) -> bool:
    return isinstance(committable, Mapping) and all(type(committable.get(name)) is int for name in ("rows", "bytes"))


class Past(NamedTuple):
    """An attempt that has ended."""

    txid: int
    attempt: int
    generation: int
    state: str  # ``COMMITTED`` or ``ROLLED_BACK``; or ``RESTORED``, of the transaction that was gone back to
    # prepared_ms, committing_ms, ended_ms: When PREPARING, COMMITTING and the last record were written, in milliseconds
    # since the epoch, by the driver's clock; 0: there is no such record.
    prepared_ms: int = 0
    committing_ms: int = 0
    ended_ms: int = 0
    # input_rows, output_rows: What was read from the sources, and what reached the ends of the topology.
    input_rows: int = 0
    output_rows: int = 0
    state_bytes: int = 0  # by how much stored state has grown
    reason: str = ""  # why it was rolled back
    sinks: tuple[SinkVolume, ...] = ()  # what was decided to be published


class History(NamedTuple):
    """The last attempts, `KEPT` of them and up to `BATCH` more.

    >>> history = History()
    >>> for txid in range(1, 3000):
    ...     history = history.with_last(Past(txid, 0, 1, "COMMITTED"))
    >>> history.past[-1].txid, KEPT <= len(history.past) < KEPT + BATCH
    (2999, True)
    """

    older: tuple[Past, ...] = ()
    newest: tuple[Past, ...] = ()

    @property
    def past(self) -> tuple[Past, ...]:
        return self.older + self.newest

    def with_last(self, past: Past) -> History:
        """Return the history after one more attempt has ended."""
        newest = (*self.newest, past)
        return History((*self.past[1 - KEPT :], past)) if len(newest) == BATCH else History(self.older, newest)


GIVEN_UP = "GIVEN_UP"
"""The state of an attempt that was committed, and that RESTORED went back beyond."""

TIMERS_LEFT_MS = 1
"""For when the next transaction is due, where one of event time is due that has not fired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight(TransactionState):
    """A transaction in flight: PREPARING or COMMITTING."""

    generation: int  # who began it
    input: Input  # what it reads
    committing: Committing | None = None  # its COMMITTING record, from which it is rolled forward
    processed: bool = False  # whether it has a PROCESSED record
    # prepared_ms, committing_ms: When its records were written.
    prepared_ms: int = field(default=0, compare=False)
    committing_ms: int = field(default=0, compare=False)

    def past(self, state: str, ended_ms: int, reason: str = "") -> Past:
        """Return it as people are shown it; without a `state` it has not ended."""
        decision = self.committing
        return Past(
            self.txid,
            self.attempt,
            self.generation,
            state or str(self.phase),
            self.prepared_ms,
            self.committing_ms,
            ended_ms,
            0 if decision is None else decision.input_rows,
            0 if decision is None else decision.output_rows,
            0 if decision is None else sum(decision.prepared_bytes.values()),
            reason[:REASON_CHARS],
            () if decision is None else sink_volumes(decision.committables),
        )


@dataclass(frozen=True, slots=True)
class Fork:
    """The point at which a copy of a checkpoint left the original's way."""

    origins: tuple[str, ...]  # the original's, and before it those of which it was such a copy itself
    generation: int  # the original's last one that the copy knows
    txid: int  # the last transaction that is the same in both: committed, or decided


@dataclass(frozen=True, slots=True)
class Published:
    """A sink's publications, as the log knows them."""

    last: int = 0  # the last transaction of which it had rows
    # The last of those whose rows nobody can take back: the sink can't, or has another target since. 0: none.
    fixed: int = 0


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Rows of the transactions after `after`, up to `until`, are in these targets no more, or will be taken back."""

    after: int
    until: int
    generation: int  # of RESTORED; the start that takes a later one may have done it
    targets: Mapping[str, str]  # sink -> target; none are left to do where another RESTORED has come since


@dataclass(frozen=True)  # no slots: `log_rules.evolved` copies its dict
class LogState:
    """The log, folded."""

    # lineage, generation, location, topology: From the newest LINEAGE and GENERATION records and what MIGRATED changed;
    # empty before them.
    lineage: str = ""
    # The first lineage: who owns what lives outside the checkpoint. A fork has its own; a move to another provider,
    # which takes another lineage, keeps it.
    origin: str = ""
    fork: Fork | None = None  # of a checkpoint that began as a copy
    # When the newest record was written. Times are shown to people, and are the clocks of attempts; nothing else is
    # decided by them: clocks are set back.
    time_ms: int = field(default=0, compare=False)
    generation: int = 0
    location: str = ""
    topology: TopologyIdentity = NO_TOPOLOGY
    committed: int = 0  # the last committed txid
    in_flight: tuple[InFlight, ...] = ()  # by txid, from ``committed + 1``
    # last_input, previous_input: What the last committed transaction read, and the one before it.
    last_input: Input | None = None
    previous_input: Input | None = None
    # What the next transaction reads, if an attempt of it was rolled back: the same rows come again (rule 3.9).
    planned: StreamInput | None = None
    notes: SourceNotes = field(default_factory=SourceNotes)  # all that the sources of a stream have written down
    heads: Mapping[str, Version] = field(default_factory=dict)  # ``component/task`` -> its last committed version
    # Stateful bolt -> the name under which its state is kept, where that is not its own: the one that it had at first,
    # or a new one, if a bolt that was renamed keeps its state under this one's.
    kept_as: Mapping[str, str] = field(default_factory=dict)
    # The newest two per task, oldest first.
    snapshots: Mapping[str, tuple[SnapshotRef, ...]] = field(default_factory=dict)
    # Bytes of what has been committed to each task since its newest snapshot, and is not merged into later files.
    growth: Mapping[str, int] = field(default_factory=dict)
    # txid -> next attempt number, for transactions that have been tried and are not committed.
    attempts: Mapping[int, int] = field(default_factory=dict)
    # txid -> what its transactional spouts read, from its first record that says so until it is committed: the same
    # rows come again after a rollback.
    planned_metadata: Mapping[int, BySpout] = field(default_factory=dict)
    # Spout -> what it said in committed transactions, oldest first: what holds is what the newest say. They are put
    # together when the log is folded.
    committed_metadata: Mapping[str, tuple[Metadata, ...]] = field(default_factory=dict)
    pinned: Mapping[str, Pin] = field(default_factory=dict)  # by name
    # The transaction whose state and sources these are, if nothing has been decided since it was gone back to.
    restored: int | None = None
    # Transactions, from one up to another, whose effects are not in the state: RESTORED went back beyond them.
    given_up: tuple[tuple[int, int], ...] = ()
    history: History = field(default_factory=History, compare=False)  # the last attempts that have ended
    # Sink -> where its last decided rows were committed, of every sink there ever was: one that comes back and finds no
    # marker there must not take the target for a new one (rule 10.2).
    targets: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, Published] = field(default_factory=dict)  # by sink
    taken_back: tuple[TakenBack, ...] = ()  # what restoring has had sinks take back, the oldest first
    batch_id: int | None = None  # the highest id given by a caller that has been committed
    # Event time as decided: the watermarks of tasks, by ``component/task``, and the times of the units of sources.
    watermarks: Mapping[str, int] = field(default_factory=dict)
    unit_times: Mapping[str, UnitTime] = field(default_factory=dict)
    due_ms: int = 0  # when the first timer of the clock is due, as the last decided transaction leaves them; 0: none
    closed: int = 0  # the transaction that has closed event time (rule 14.12); 0: none has
    # Counters of the user's: totals of what committed transactions have added (rule 16.1).
    counters: Totals = field(default_factory=dict)

    @property
    def closes(self) -> bool:
        """Whether closing event time has something left to do: rows were read, and not all that waited has ended."""
        was_read = bool(self.committed_metadata) or isinstance(self.last_input, StreamInput | BatchInput)
        return was_read and (not self.closed or self.due_ms == TIMERS_LEFT_MS)

    @property
    def committing(self) -> InFlight | None:
        """The decided transaction that is not committed yet, or None."""
        first = self.in_flight[0] if self.in_flight else None
        return first if first is not None and first.phase is Phase.COMMITTING else None

    @property
    def decided(self) -> int:
        """The last decided transaction."""
        return self.committed + (self.committing is not None)

    def namespace(self, task: TaskId) -> Namespace:
        return Namespace(self.lineage, self.kept_as.get(task.component, task.component), task.task)

    def pinned_versions(self) -> Mapping[TaskId, list[tuple[Version, SnapshotRef | None]]]:
        """Return the pinned versions of each namespace, by its id, under which its files lie."""
        found: dict[TaskId, list[tuple[Version, SnapshotRef | None]]] = {}
        for pin in self.pinned.values():
            for name, version in pin.heads.items():
                component, task = TaskId.parse(name)
                kept = TaskId(pin.kept_as.get(component, component), task)
                found.setdefault(kept, []).append((version, pin.snapshots.get(name)))
        return found

    def notes_files(self) -> frozenset[str]:
        """Return the files of sources' notes, now and where something is pinned."""
        return frozenset(ref.name for notes in (self.notes, *self._pinned_notes) for ref in notes.aside)

    @property
    def _pinned_notes(self) -> Iterator[SourceNotes]:
        return (pin.notes for pin in self.pinned.values())

    @property
    def taking_back(self) -> TakenBack | None:
        """The part of sinks that is taken back before the next transaction begins; repeated until one is decided."""
        last = self.taken_back[-1] if self.taken_back else None
        return last if last is not None and last.targets and last.until == self.decided else None

    @property
    def state_txid(self) -> int:
        """The transaction that left the committed state as it is: `committed`, unless an earlier one was restored."""
        return self.committed if self.restored is None else self.restored

    @property
    def shown_txid(self) -> int:
        """The transaction that leaves the state as readers see it: with the one that is COMMITTING, if there is one."""
        return self.decided if self.committing is not None else self.state_txid

    def is_given_up(self, txid: int) -> bool:
        """Return whether RESTORED went back beyond a transaction that was committed."""
        return any(first <= txid <= last for first, last in self.given_up)

    @property
    def shared_origins(self) -> tuple[str, ...]:
        """The checkpoints that this one is a fork of, as long as all have decided the same transactions; else none.

        Until then a marker of theirs at a target says how far this checkpoint's rows are there.
        """
        return self.fork.origins if self.fork is not None and self.decided <= self.fork.txid else ()

    def applied(self, batch_id: int) -> bool:
        """Return whether a batch of this id, or of a higher one, has been committed."""
        return self.batch_id is not None and batch_id <= self.batch_id

    def next_attempt(self, txid: int) -> int:
        return self.attempts.get(txid, 0)

    def clock_ms(self, txid: int) -> int | None:
        """Return the clock of the attempt of `txid` in flight (rule 9.9), or None if there is none."""
        return next((entry.prepared_ms for entry in self.in_flight if entry.txid == txid), None)

    def head(self, name: str) -> Version:
        return self.heads.get(name, EMPTY)

    def holds(self, component: str) -> bool:
        return any(TaskId.parse(name).component == component for name in self.heads)

    def stored_bytes(self) -> dict[str, int]:
        """Return, by component, the bytes of the newest snapshots and of what was committed since."""
        found: dict[str, int] = {}
        for name in self.heads:
            kept = self.snapshots.get(name, ())
            size = self.growth.get(name, 0) + (kept[-1].size_bytes if kept else 0)
            component = TaskId.parse(name).component
            found[component] = found.get(component, 0) + size
        return found

    def past(self) -> tuple[Past, ...]:
        """Return the last attempts, oldest first, and those that have not ended."""
        return (*self.history.past, *(entry.past("", 0) for entry in self.in_flight))

    def state_of(self, past: Past) -> str:
        """Return the state of an attempt as people are shown it: after a restore, of a committed one `GIVEN_UP`."""
        return GIVEN_UP if past.state == Phase.COMMITTED and self.is_given_up(past.txid) else past.state

    def counters_to_come(self) -> Totals:
        """Return the counters as they will be once the decided transaction is committed."""
        open_commit = self.committing
        if open_commit is None or open_commit.committing is None:
            return self.counters
        return then(self.counters, open_commit.committing.counters)

    def heads_to_come(self) -> Mapping[str, Version]:
        """Return the heads as they will be once the decided transaction is committed."""
        open_commit = self.committing
        if open_commit is None or open_commit.committing is None:
            return self.heads
        tokens = open_commit.committing.tokens
        return {**self.heads, **{name: Version(open_commit.txid, token) for name, token in tokens.items()}}
