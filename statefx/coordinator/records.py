"""The records of the transaction log: frozen values, and their JSON bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from statefx.protocol.identity import Version
from statefx.protocol.order import SnapshotName

Json = Any  # what json reads and writes


@dataclass(frozen=True, slots=True)
class StreamInput:
    """The input of a transaction is a micro-batch of Spark: its query, its number and the text of its offsets."""

    query_id: str
    batch_id: int
    offsets: str

    def body(self) -> Json:
        """Return the JSON form."""
        return {"kind": "stream", "query_id": self.query_id, "batch_id": self.batch_id, "offsets": self.offsets}


@dataclass(frozen=True, slots=True)
class BatchInput:
    """The input is a batch DataFrame, which the caller may have given an id that grows from run to run."""

    batch_id: int | None = None

    def body(self) -> Json:
        """Return the JSON form."""
        return {"kind": "batch", "batch_id": self.batch_id}


@dataclass(frozen=True, slots=True)
class SpoutInput:
    """The input comes from transactional spouts, by this metadata (JSON)."""

    metadata: Json = None

    def body(self) -> Json:
        """Return the JSON form."""
        return {"kind": "spout", "metadata": self.metadata}


Input = StreamInput | BatchInput | SpoutInput


def input_from(body: Json) -> Input:
    """Read the JSON form of an input identity."""
    match body["kind"]:
        case "stream":
            return StreamInput(body["query_id"], body["batch_id"], body["offsets"])
        case "batch":
            return BatchInput(body["batch_id"])
        case "spout":
            return SpoutInput(body["metadata"])
    raise ValueError(f"unknown kind of input {body['kind']!r}")


def snapshot_body(snapshot: SnapshotName) -> Json:
    """Return the JSON form of a snapshot's name."""
    return [snapshot.version.txid, snapshot.version.token, snapshot.checksum, snapshot.size_bytes]


def snapshot_from(body: Json) -> SnapshotName:
    """Read the JSON form of a snapshot's name."""
    txid, token, checksum, size = body
    return SnapshotName(Version(txid, token), checksum, size)


@dataclass(frozen=True, slots=True)
class Lineage:
    """First record of a checkpoint, and of a fork: the random id of its life."""

    lineage: str

    kind: ClassVar[str] = "LINEAGE"

    def body(self) -> Json:
        """Return the JSON form."""
        return {"lineage": self.lineage}


@dataclass(frozen=True, slots=True)
class Generation:
    """A driver has started here; `topology` is the identity of what it runs, as JSON."""

    generation: int
    location: str
    topology: Mapping[str, Json]
    started_at: str

    kind: ClassVar[str] = "GENERATION"

    def body(self) -> Json:
        """Return the JSON form."""
        return {
            "generation": self.generation,
            "location": self.location,
            "topology": dict(self.topology),
            "started_at": self.started_at,
        }


@dataclass(frozen=True, slots=True)
class Preparing:
    """An attempt is about to run.

    Attributes
    ----------
    committed : int or None
        The transaction whose COMMITTED this record stands for as well.
    """

    txid: int
    attempt: int
    generation: int
    input: Input
    committed: int | None = None

    kind: ClassVar[str] = "PREPARING"

    def body(self) -> Json:
        """Return the JSON form."""
        return {
            "txid": self.txid,
            "attempt": self.attempt,
            "generation": self.generation,
            "input": self.input.body(),
            "committed": self.committed,
        }


@dataclass(frozen=True, slots=True)
class Processed:
    """An attempt has passed its processing phase, with what the spouts said about it (JSON)."""

    txid: int
    attempt: int
    metadata: Json = None

    kind: ClassVar[str] = "PROCESSED"

    def body(self) -> Json:
        """Return the JSON form."""
        return {"txid": self.txid, "attempt": self.attempt, "metadata": self.metadata}


@dataclass(frozen=True, slots=True)
class Committing:
    """The attempt will be committed whatever happens.

    Attributes
    ----------
    tokens : Mapping[str, str]
        ``component/task`` -> what it prepared; roll-forward takes its tasks from here.
    snapshots : Mapping[str, SnapshotName]
        Full images written beside it; they count from now on.
    prepared_bytes : Mapping[str, int]
        By how much what has to be read has grown; less than 0 where files were merged.
    hooks : tuple of str
        Tasks whose commit has something to run; the others are committed by this record. Where there are none, the
        transaction is COMMITTED with it.
    rows : Mapping[str, int]
        What each bolt received, for the reader of the log.
    committed : int or None
        The transaction whose COMMITTED this record stands for as well.
    """

    txid: int
    attempt: int
    generation: int
    tokens: Mapping[str, str]
    snapshots: Mapping[str, SnapshotName] = field(default_factory=dict)
    prepared_bytes: Mapping[str, int] = field(default_factory=dict)
    hooks: tuple[str, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    committed: int | None = None

    kind: ClassVar[str] = "COMMITTING"

    def body(self) -> Json:
        """Return the JSON form."""
        return {
            "txid": self.txid,
            "attempt": self.attempt,
            "generation": self.generation,
            "tokens": dict(self.tokens),
            "snapshots": {name: snapshot_body(snapshot) for name, snapshot in self.snapshots.items()},
            "prepared_bytes": dict(self.prepared_bytes),
            "hooks": list(self.hooks),
            "rows": dict(self.rows),
            "committed": self.committed,
        }


@dataclass(frozen=True, slots=True)
class Committed:
    """Every task has committed."""

    txid: int

    kind: ClassVar[str] = "COMMITTED"

    def body(self) -> Json:
        """Return the JSON form."""
        return {"txid": self.txid}


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The attempt has ended without effect."""

    txid: int
    attempt: int
    reason: str

    kind: ClassVar[str] = "ROLLED_BACK"

    def body(self) -> Json:
        """Return the JSON form."""
        return {"txid": self.txid, "attempt": self.attempt, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Migrated:
    """All committed state is kept by another provider from now on, at the same txids, under another lineage.

    Attributes
    ----------
    lineage : str
        That under which it was copied.
    provider : str
        Reference of the provider that has the copy, ``module:Class``.
    tokens : Mapping[str, str]
        ``component/task`` -> the token of its copy; there is one for every task that has committed state.
    prepared_bytes : Mapping[str, int]
        Size of what was prepared.
    options : Mapping[str, Any] or None
        What the provider's `public_options` says.
    """

    generation: int
    lineage: str
    provider: str
    tokens: Mapping[str, str]
    prepared_bytes: Mapping[str, int]
    options: Mapping[str, Any] | None = field(default_factory=dict)

    kind: ClassVar[str] = "MIGRATED"

    def body(self) -> Json:
        """Return the JSON form."""
        return {
            "generation": self.generation,
            "lineage": self.lineage,
            "provider": self.provider,
            "tokens": dict(self.tokens),
            "prepared_bytes": dict(self.prepared_bytes),
            "options": None if self.options is None else dict(self.options),
        }


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything before it, folded: the JSON form of the log's state."""

    state: Mapping[str, Json]

    kind: ClassVar[str] = "CHECKPOINT"

    def body(self) -> Json:
        """Return the JSON form."""
        return dict(self.state)


Record = Lineage | Generation | Preparing | Processed | Committing | Committed | RolledBack | Migrated | Checkpoint


def committing_from(body: Json) -> Committing:
    """Read the JSON form of a COMMITTING record."""
    return Committing(
        body["txid"],
        body["attempt"],
        body["generation"],
        body["tokens"],
        {name: snapshot_from(value) for name, value in body["snapshots"].items()},
        body["prepared_bytes"],
        tuple(body["hooks"]),
        body["rows"],
        body["committed"],
    )


def record_from(kind: str, body: Json) -> Record:
    """Read the JSON body of a record of `kind`.

    Raises
    ------
    KeyError, TypeError, ValueError
        The kind is unknown, or the body is not one of its kind.
    """
    match kind:
        case "LINEAGE":
            return Lineage(**body)
        case "GENERATION":
            return Generation(**body)
        case "PREPARING":
            source = input_from(body["input"])
            return Preparing(body["txid"], body["attempt"], body["generation"], source, body["committed"])
        case "PROCESSED":
            return Processed(**body)
        case "COMMITTING":
            return committing_from(body)
        case "COMMITTED":
            return Committed(**body)
        case "ROLLED_BACK":
            return RolledBack(**body)
        case "MIGRATED":
            return Migrated(**body)
        case "CHECKPOINT":
            return Checkpoint(body)
    raise ValueError(f"unknown kind of record {kind!r}")
