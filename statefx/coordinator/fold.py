"""What the transaction log amounts to: one value, moved on by one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Never, cast

from statefx.coordinator.records import (
    BatchInput,
    Checkpoint,
    Committed,
    Committing,
    Generation,
    Input,
    Json,
    Lineage,
    Migrated,
    Preparing,
    Processed,
    Record,
    RolledBack,
    committing_from,
    input_from,
    snapshot_body,
    snapshot_from,
)
from statefx.errors import StateCorruptedError
from statefx.protocol.identity import EMPTY, Version
from statefx.protocol.order import SnapshotName
from statefx.protocol.transaction import Event, Phase, TransactionState

SNAPSHOTS_KEPT = 2


@dataclass(frozen=True, slots=True)
class InFlight:
    """A transaction that has begun and not ended.

    Attributes
    ----------
    transaction : TransactionState
        Its phase, txid and attempt; PREPARING or COMMITTING.
    generation : int
        Who began it.
    input : Input
        What it reads.
    committing : Committing or None
        Its COMMITTING record, from which it is rolled forward.
    processed : bool
        Whether it has a PROCESSED record.
    metadata : Any
        What that record holds.
    """

    transaction: TransactionState
    generation: int
    input: Input
    committing: Committing | None = None
    processed: bool = False
    metadata: Json = None

    @property
    def phase(self) -> Phase:
        """PREPARING or COMMITTING."""
        return self.transaction.phase

    @property
    def txid(self) -> int:
        """Its transaction."""
        return self.transaction.txid

    @property
    def attempt(self) -> int:
        """Its attempt."""
        return self.transaction.attempt


@dataclass(frozen=True, slots=True)
class LogState:
    """The log, folded.

    Attributes
    ----------
    lineage, generation, location, topology, started_at
        From the newest LINEAGE and GENERATION records and what MIGRATED changed; empty before them.
    committed : int
        The last committed txid.
    in_flight : tuple of InFlight
        By txid, from ``committed + 1``.
    last_input, previous_input : Input or None
        What the last committed transaction read, and the one before it.
    heads : Mapping[str, Version]
        ``component/task`` -> its last committed version.
    snapshots : Mapping[str, tuple of SnapshotName]
        The newest two per task, oldest first.
    growth : Mapping[str, int]
        Bytes of what has been committed to each task since its newest snapshot, and is not merged into later files.
    attempts : Mapping[int, int]
        txid -> next attempt number, for transactions that have been tried and are not committed.
    batch_id : int or None
        The highest id given by a caller that has been committed.
    """

    lineage: str = ""
    generation: int = 0
    location: str = ""
    topology: Mapping[str, Json] = field(default_factory=dict)
    started_at: str = ""
    committed: int = 0
    in_flight: tuple[InFlight, ...] = ()
    last_input: Input | None = None
    previous_input: Input | None = None
    heads: Mapping[str, Version] = field(default_factory=dict)
    snapshots: Mapping[str, tuple[SnapshotName, ...]] = field(default_factory=dict)
    growth: Mapping[str, int] = field(default_factory=dict)
    attempts: Mapping[int, int] = field(default_factory=dict)
    batch_id: int | None = None

    @property
    def committing(self) -> InFlight | None:
        """The transaction that will be committed whatever happens, if there is one."""
        first = self.in_flight[0] if self.in_flight else None
        return first if first is not None and first.phase is Phase.COMMITTING else None

    def applied(self, batch_id: int) -> bool:
        """Tell whether a batch of this id, or of a higher one, has been committed."""
        return self.batch_id is not None and batch_id <= self.batch_id

    def next_attempt(self, txid: int) -> int:
        """Return the number of the next attempt of `txid`."""
        return self.attempts.get(txid, 0)

    def head(self, name: str) -> Version:
        """Return the last committed version of ``component/task``."""
        return self.heads.get(name, EMPTY)

    def heads_to_come(self) -> Mapping[str, Version]:
        """Return the heads as they will be once the transaction that is COMMITTING is committed."""
        open_commit = self.committing
        if open_commit is None or open_commit.committing is None:
            return self.heads
        tokens = open_commit.committing.tokens
        return {**self.heads, **{name: Version(open_commit.txid, token) for name, token in tokens.items()}}

    def apply(self, record: Record) -> LogState:
        """Return the state after `record`; this one is unchanged.

        Raises
        ------
        StateCorruptedError
            The record can't follow what is before it.
        """
        rule = cast("Callable[[LogState, Any], LogState]", _RULES[type(record)])
        return rule(self, record)

    def checkpoint(self) -> Checkpoint:
        """Return the record that stands for everything so far."""
        return Checkpoint(_body(self))


def fold(records: Iterable[Record]) -> LogState:
    """Apply `records`, in order, to the empty state."""
    state = LogState()
    for record in records:
        state = state.apply(record)
    return state


def _refuse(record: Record, reason: str) -> Never:
    raise StateCorruptedError(f"a {record.kind} record can't stand here: {reason}", kind=record.kind)


def _lineage(state: LogState, record: Lineage) -> LogState:
    if not record.lineage or record.lineage == state.lineage:
        _refuse(record, f"the lineage is {record.lineage!r} already")
    return replace(state, lineage=record.lineage)


def _generation(state: LogState, record: Generation) -> LogState:
    if not state.lineage:
        _refuse(record, "there is no LINEAGE before it")
    if record.generation != state.generation + 1:
        _refuse(record, f"generation {record.generation} after {state.generation}")
    return replace(
        state,
        generation=record.generation,
        location=record.location,
        topology=record.topology,
        started_at=record.started_at,
    )


def _ended_before(state: LogState, record: Preparing | Committing) -> LogState:
    """Return the state after the COMMITTED that a record stands for as well."""
    return state if record.committed is None else _end(state, record, record.committed)


def _preparing(state: LogState, record: Preparing) -> LogState:
    state = _ended_before(state, record)
    _check_generation(state, record, record.generation)
    last = state.in_flight[-1].txid if state.in_flight else state.committed
    if record.txid != last + 1:
        _refuse(record, f"transaction {record.txid} after {last}")
    if record.attempt != state.next_attempt(record.txid):
        _refuse(record, f"attempt {record.attempt} of {record.txid}, not {state.next_attempt(record.txid)}")
    given = _given(record.input)
    if given is not None and state.applied(given):
        _refuse(record, f"batch {given} after {state.batch_id}")
    entry = InFlight(TransactionState(Phase.PREPARING, record.txid, record.attempt), record.generation, record.input)
    attempts = {**state.attempts, record.txid: record.attempt + 1}
    return replace(state, in_flight=(*state.in_flight, entry), attempts=attempts)


def _processed(state: LogState, record: Processed) -> LogState:
    entry = _entry(state, record, record.txid, record.attempt, Phase.PREPARING)
    if entry.processed:
        _refuse(record, f"transaction {record.txid} has been processed already")
    return _with(state, replace(entry, processed=True, metadata=record.metadata))


def _committing(state: LogState, record: Committing) -> LogState:
    state = _ended_before(state, record)
    _check_generation(state, record, record.generation)
    entry = _entry(state, record, record.txid, record.attempt, Phase.PREPARING)
    if entry.generation != record.generation:
        _refuse(record, f"it was prepared by generation {entry.generation}")
    if record.txid != state.committed + 1:
        _refuse(record, f"transaction {state.committed + 1} is not committed")
    snapshots, growth = dict(state.snapshots), dict(state.growth)
    for name, snapshot in record.snapshots.items():
        kept = {each.version: each for each in (*snapshots.get(name, ()), snapshot)}
        snapshots[name] = tuple(sorted(kept.values(), key=lambda each: each.version))[-SNAPSHOTS_KEPT:]
        if snapshot.version == state.head(name):
            growth[name] = 0
    entry = replace(entry, transaction=entry.transaction.step(Event.ALL_ACKED), committing=record)
    decided = replace(_with(state, entry), snapshots=snapshots, growth=growth)
    return decided if record.hooks else _end(decided, record, record.txid)


def _committed(state: LogState, record: Committed) -> LogState:
    return _end(state, record, record.txid)


def _end(state: LogState, record: Record, txid: int) -> LogState:
    """Return the state in which `txid` is committed, as `record` says."""
    entry = state.committing
    if entry is None or entry.committing is None or entry.txid != txid:
        _refuse(record, f"transaction {txid} is not COMMITTING")
    growth = dict(state.growth)
    for name in entry.committing.tokens:
        # less than 0 where files were merged that are as old as the snapshot: they count with it
        growth[name] = max(0, growth.get(name, 0) + entry.committing.prepared_bytes.get(name, 0))
    given = _given(entry.input)
    return replace(
        state,
        committed=txid,
        in_flight=state.in_flight[1:],
        last_input=entry.input,
        previous_input=state.last_input,
        heads=state.heads_to_come(),
        growth=growth,
        attempts={number: attempt for number, attempt in state.attempts.items() if number > txid},
        batch_id=state.batch_id if given is None else given,
    )


def _rolled_back(state: LogState, record: RolledBack) -> LogState:
    entry = _entry(state, record, record.txid, record.attempt, Phase.PREPARING)
    if entry is not state.in_flight[-1]:  # else a later one would be left that follows nothing
        _refuse(record, f"transaction {state.in_flight[-1].txid}, which comes after {record.txid}, is under way")
    return replace(state, in_flight=state.in_flight[:-1])


def _migrated(state: LogState, record: Migrated) -> LogState:
    _check_generation(state, record, record.generation)
    if state.in_flight:
        _refuse(record, f"transaction {state.in_flight[0].txid} is under way")
    if not record.lineage or record.lineage == state.lineage:
        _refuse(record, f"the lineage is {record.lineage!r} already")
    if record.tokens.keys() != state.heads.keys():
        _refuse(record, f"it has the state of {sorted(record.tokens)}, there is that of {sorted(state.heads)}")
    kept = state.topology.get("stateful", {}).items()
    place = {"provider": record.provider, "options": record.options}
    return replace(
        state,
        lineage=record.lineage,
        topology={**state.topology, "stateful": {name: {**each, **place} for name, each in kept}},
        heads={name: Version(state.heads[name].txid, token) for name, token in record.tokens.items()},
        snapshots={},
        growth={name: record.prepared_bytes.get(name, 0) for name in record.tokens},
    )


def _checkpoint(state: LogState, record: Checkpoint) -> LogState:
    try:
        folded = _state(record.state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _refuse(record, f"its body can't be read ({error!r})")
    if state not in (LogState(), folded):
        _refuse(record, "it is not what the records before it amount to")
    return folded


def _given(source: Input) -> int | None:
    return source.batch_id if isinstance(source, BatchInput) else None


def _check_generation(state: LogState, record: Record, generation: int) -> None:
    if generation != state.generation or not generation:
        _refuse(record, f"it is of generation {generation}, the newest is {state.generation}")


def _entry(state: LogState, record: Record, txid: int, attempt: int, phase: Phase) -> InFlight:
    for entry in state.in_flight:
        if (entry.txid, entry.attempt, entry.phase) == (txid, attempt, phase):
            return entry
    _refuse(record, f"attempt {attempt} of transaction {txid} is not {phase}")


def _with(state: LogState, entry: InFlight) -> LogState:
    return replace(state, in_flight=tuple(entry if other.txid == entry.txid else other for other in state.in_flight))


_RULES: Mapping[type, Callable[..., LogState]] = {
    Lineage: _lineage,
    Generation: _generation,
    Preparing: _preparing,
    Processed: _processed,
    Committing: _committing,
    Committed: _committed,
    RolledBack: _rolled_back,
    Migrated: _migrated,
    Checkpoint: _checkpoint,
}


def _body(state: LogState) -> dict[str, Json]:
    return {
        "lineage": state.lineage,
        "generation": state.generation,
        "location": state.location,
        "topology": dict(state.topology),
        "started_at": state.started_at,
        "committed": state.committed,
        "in_flight": [
            {
                "txid": entry.txid,
                "attempt": entry.attempt,
                "generation": entry.generation,
                "input": entry.input.body(),
                "committing": entry.committing.body() if entry.committing else None,
                "processed": entry.processed,
                "metadata": entry.metadata,
            }
            for entry in state.in_flight
        ],
        "last_input": state.last_input.body() if state.last_input else None,
        "previous_input": state.previous_input.body() if state.previous_input else None,
        "heads": {name: [version.txid, version.token] for name, version in state.heads.items()},
        "snapshots": {name: [snapshot_body(each) for each in kept] for name, kept in state.snapshots.items()},
        "growth": dict(state.growth),
        "attempts": [[txid, attempt] for txid, attempt in sorted(state.attempts.items())],
        "batch_id": state.batch_id,
    }


def _state(body: Mapping[str, Json]) -> LogState:
    return LogState(
        lineage=body["lineage"],
        generation=body["generation"],
        location=body["location"],
        topology=body["topology"],
        started_at=body["started_at"],
        committed=body["committed"],
        in_flight=tuple(_in_flight(each) for each in body["in_flight"]),
        last_input=input_from(body["last_input"]) if body["last_input"] else None,
        previous_input=input_from(body["previous_input"]) if body["previous_input"] else None,
        heads={name: Version(*version) for name, version in body["heads"].items()},
        snapshots={name: tuple(snapshot_from(each) for each in kept) for name, kept in body["snapshots"].items()},
        growth=body["growth"],
        attempts=dict(body["attempts"]),
        batch_id=body["batch_id"],
    )


def _in_flight(body: Json) -> InFlight:
    committing = committing_from(body["committing"]) if body["committing"] else None
    phase = Phase.PREPARING if committing is None else Phase.COMMITTING
    transaction = TransactionState(phase, body["txid"], body["attempt"])
    return InFlight(
        transaction,
        body["generation"],
        input_from(body["input"]),
        committing,
        body["processed"],
        body["metadata"],
    )
