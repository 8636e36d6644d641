"""The records of the transaction log: frozen values, whose annotations are their JSON (`statefx.protocol.jsonform`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from statefx.protocol.counting import Totals
from statefx.protocol.identity import FileRef, SnapshotRef, Version
from statefx.protocol.jsonform import Json
from statefx.protocol.metadata import BySpout, Metadata
from statefx.protocol.topology_identity import NO_TOPOLOGY, StatefulIdentity, TopologyIdentity
from statefx.protocol.watermark import UnitTime


@dataclass(frozen=True, slots=True)
class SourceNotes:
    """Notes of a stream's sources, below Spark's ``sources/``.

    A record has what is new since the record before it: with a million files read, a transaction that reads one more
    adds one line to the log. Large notes lie in files beside the log.
    """

    # Path below ``sources/`` -> content; None for one that is no longer needed.
    files: Mapping[str, str | None] = field(default_factory=dict)
    # Files that hold such mappings, the oldest first; `files` comes after them. In a record: these stand for everything
    # before, unless there are none.
    aside: tuple[FileRef, ...] = ()

    def then(self, later: SourceNotes) -> SourceNotes:
        """Return both together, `later` being a record's."""
        if later.aside:
            return later
        if not later.files:
            return self
        files = {**self.files, **later.files}
        if not self.aside:  # nothing is left that would have to be taken back
            files = {path: content for path, content in files.items() if content is not None}
        return SourceNotes(files, self.aside)


@dataclass(frozen=True, slots=True)
class StreamInput:
    """The input of a transaction is a micro-batch of Spark (rule 3.7)."""

    query_id: str  # of Spark's query; it stays the same from start to start
    batch_id: int
    offsets: str  # the text of the batch's offsets, as Spark wrote it
    # What the sources have written down since the record before. The offsets alone may not say what the batch reads:
    # those of a file source are the number of a list of files.
    notes: SourceNotes = field(default_factory=SourceNotes)

    kind: ClassVar[str] = "stream"

    def is_batch_of(self, other: Input | None) -> bool:
        """Return whether both read the same rows: query, number and offsets are equal."""
        return isinstance(other, StreamInput) and (self.query_id, self.batch_id, self.offsets) == (
            other.query_id,
            other.batch_id,
            other.offsets,
        )


@dataclass(frozen=True, slots=True)
class BatchInput:
    """The input is a batch DataFrame, which the caller may have given an id that grows from run to run."""

    batch_id: int | None = None

    kind: ClassVar[str] = "batch"


@dataclass(frozen=True, slots=True)
class SpoutInput:
    """The input comes from spouts; what they read is in the metadata of the records."""

    kind: ClassVar[str] = "spout"


Input = StreamInput | BatchInput | SpoutInput


@dataclass(frozen=True, slots=True)
class Lineage:
    """First record of a checkpoint, and of a fork: the random id of its life."""

    lineage: str

    kind: ClassVar[str] = "LINEAGE"


@dataclass(frozen=True, slots=True)
class Generation:
    """A driver has started here; `topology` is the identity of what it runs.

    Renamed stateful bolts and spouts, old name to new one, keep what they have; that of the `dropped` ones is given up.
    Where it `takes_over` targets of sinks, others may have had them meanwhile.
    """

    generation: int
    location: str
    topology: TopologyIdentity
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    takes_over: bool = False

    kind: ClassVar[str] = "GENERATION"


@dataclass(frozen=True, slots=True)
class Preparing:
    """An attempt is about to run."""

    txid: int
    attempt: int
    generation: int
    input: Input
    committed: int | None = None  # the transaction whose COMMITTED this record stands for as well
    # What the driver has planned that each transactional spout reads. It is written once for a transaction: it is kept
    # over a rollback, and never changes. Of a spout that emits its metadata or that may read other rows the next time
    # there is none.
    planned: BySpout = field(default_factory=dict)

    kind: ClassVar[str] = "PREPARING"


@dataclass(frozen=True, slots=True)
class Noted:
    """The sources of a stream have written notes while no transaction was beginning (rule 3.8).

    A source that begins with what is newest notes where that is, and may then wait for hours for its first row: the
    next driver must begin there too.
    """

    generation: int
    notes: SourceNotes

    kind: ClassVar[str] = "NOTED"


@dataclass(frozen=True, slots=True)
class Processed:
    """An attempt has passed its processing phase; `emitted` is the metadata of its transactional spouts.

    It is durable before a committer runs, and kept and never changed as what is planned.
    """

    txid: int
    attempt: int
    emitted: BySpout = field(default_factory=dict)

    kind: ClassVar[str] = "PROCESSED"


@dataclass(frozen=True, slots=True)
class Committing:
    """The attempt is decided."""

    txid: int
    attempt: int
    generation: int
    tokens: Mapping[str, str]  # ``component/task`` -> what it prepared; roll-forward takes its tasks from here
    # Full images written beside it; they count from now on.
    snapshots: Mapping[str, SnapshotRef] = field(default_factory=dict)
    # By how much what has to be read has grown; less than 0 where files were merged.
    prepared_bytes: Mapping[str, int] = field(default_factory=dict)
    # Tasks whose commit has something to run; the others are committed by this record. Where there are none, and no
    # committables, the transaction is COMMITTED with it.
    hooks: tuple[str, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)  # what each bolt received, for the reader of the log
    # input_rows, output_rows: What was read from the sources, and what reached the ends of the topology: for the reader
    # as well.
    input_rows: int = 0
    output_rows: int = 0
    # What opaque spouts say that they emitted: they may emit other rows after a rollback, so it counts from here.
    emitted: BySpout = field(default_factory=dict)
    # By participant other than state, what it needs to commit, also after a restart (rule 10).
    committables: Mapping[str, Json] = field(default_factory=dict)
    acknowledged: Mapping[str, Json] = field(default_factory=dict)  # by spout, which tuples have been processed
    committed: int | None = None  # the transaction whose COMMITTED this record stands for as well
    # Event time, where it has got on: the watermarks of tasks, by ``component/task``, and the times of units.
    watermarks: Mapping[str, int] = field(default_factory=dict)
    unit_times: Mapping[str, UnitTime] = field(default_factory=dict)
    ended_units: tuple[str, ...] = ()  # units of finished partitions, whose times are in that of all of them (14.11)
    # Rule 14.8: when a timer of the clock is due, in milliseconds since 1970: a transaction begins then.
    due_ms: int = 0
    closes: bool = False  # whether it has closed event time (rule 14.12)
    counters: Totals = field(default_factory=dict)  # what it adds to counters of the user's (rule 16.1)

    kind: ClassVar[str] = "COMMITTING"


@dataclass(frozen=True, slots=True)
class Committed:
    """Every participant has committed."""

    txid: int

    kind: ClassVar[str] = "COMMITTED"


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The attempt has ended without effect."""

    txid: int
    attempt: int
    reason: str

    kind: ClassVar[str] = "ROLLED_BACK"


@dataclass(frozen=True, slots=True)
class Migrated:
    """All committed state is kept by another provider from now on, at the same txids, under another lineage."""

    generation: int
    lineage: str  # that under which it was copied
    provider: str  # reference of the provider that has the copy, ``module:Class``
    # ``component/task`` -> the token of its copy; there is one for every task that has committed state.
    tokens: Mapping[str, str]
    prepared_bytes: Mapping[str, int]  # size of what was prepared
    options: Mapping[str, Json] | None = field(default_factory=dict)  # what the provider's `public_options` says

    kind: ClassVar[str] = "MIGRATED"


@dataclass(frozen=True, slots=True)
class Pinned:
    """The state of now, as it is decided, can be restored under this name, however much is committed and swept later.

    It may stand anywhere, also while a transaction is COMMITTING: that one will be committed whatever happens.
    """

    name: str
    txid: int

    kind: ClassVar[str] = "PINNED"


@dataclass(frozen=True, slots=True)
class Unpinned:
    """The pin of this name is deleted."""

    name: str

    kind: ClassVar[str] = "UNPINNED"


@dataclass(frozen=True, slots=True)
class Pin:
    """A transaction's outcome: the state of its tasks, and how far its sources were read."""

    txid: int
    time_ms: int = 0  # when it was pinned
    topology: TopologyIdentity = NO_TOPOLOGY
    # heads, snapshots: What each task's version was, and the snapshot it can be read from. growth: as in the log.
    heads: Mapping[str, Version] = field(default_factory=dict)
    snapshots: Mapping[str, SnapshotRef] = field(default_factory=dict)
    growth: Mapping[str, int] = field(default_factory=dict)
    kept_as: Mapping[str, str] = field(default_factory=dict)  # as in the log
    # What the transaction read, and the one before it; what sources had written down, and what spouts had said.
    last_input: Input | None = None
    previous_input: Input | None = None
    notes: SourceNotes = field(default_factory=SourceNotes)
    committed_metadata: Mapping[str, tuple[Metadata, ...]] = field(default_factory=dict)
    batch_id: int | None = None
    watermarks: Mapping[str, int] = field(default_factory=dict)
    unit_times: Mapping[str, UnitTime] = field(default_factory=dict)
    due_ms: int = 0
    closed: int = 0  # the transaction that has closed event time; 0: none
    # The transaction that left it so: `txid`, unless it was restored, and nothing has been decided since.
    state_txid: int = 0
    given_up: tuple[tuple[int, int], ...] = ()  # as in the log
    counters: Totals = field(default_factory=dict)  # as in the log


@dataclass(frozen=True, slots=True)
class Restored:
    """State and sources are again where `pin` has left them; what was committed since then is given up.

    Transactions are counted on: the number of one that was given up is never used again. The targets of sinks have
    published it, and would take another one of this number for the same.
    """

    generation: int
    pin: Pin
    # Sink -> its target, of those that take back what they have published after the pin (rule 3.14).
    taken_back: Mapping[str, str] = field(default_factory=dict)
    # Nothing is given up, and what an attempt that was rolled back has read is read again (rules 3.9 and 9.4).
    keeps_plans: bool = False

    kind: ClassVar[str] = "RESTORED"


@dataclass(frozen=True, slots=True)
class Rescaled:
    """Stateful bolts have these many tasks, whose state was written anew at the last committed transaction.

    Or their keys or values have another form, and so another version.
    """

    generation: int
    tasks: Mapping[str, int]  # bolt -> how many it has now
    tokens: Mapping[str, str]  # ``component/task`` -> what it was written as; none for a bolt that has no state yet
    prepared_bytes: Mapping[str, int]
    # Bolt -> the name under which these tasks keep their state: a new one, where a server has the newest version alone.
    kept_as: Mapping[str, str] = field(default_factory=dict)
    stateful: Mapping[str, StatefulIdentity] = field(default_factory=dict)  # of those with another form, what they are

    kind: ClassVar[str] = "RESCALED"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything before it, folded: the JSON form of the log's state."""

    state: Mapping[str, Json]

    kind: ClassVar[str] = "CHECKPOINT"


Record = (
    Lineage
    | Generation
    | Preparing
    | Noted
    | Processed
    | Committing
    | Committed
    | RolledBack
    | Migrated
    | Pinned
    | Unpinned
    | Restored
    | Rescaled
    | Checkpoint
)
