"""Rules of the log's records: how each changes the state, and where it may not stand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Never, cast

from statefx.errors import CheckpointFormatError, StateCorruptedError
from statefx.protocol.identity import TaskId, Version
from statefx.protocol.jsonform import NewerError, Written, from_json, to_json
from statefx.protocol.log_state import Fork, InFlight, LogState, Past, Published, TakenBack
from statefx.protocol.metadata import BySpout, stacked
from statefx.protocol.records import (
    BatchInput,
    Checkpoint,
    Committed,
    Committing,
    Generation,
    Input,
    Lineage,
    Migrated,
    Noted,
    Pin,
    Pinned,
    Preparing,
    Processed,
    Record,
    Rescaled,
    Restored,
    RolledBack,
    SourceNotes,
    StreamInput,
    Unpinned,
)
from statefx.protocol.topology_identity import StatefulIdentity, TopologyIdentity
from statefx.protocol.transaction import Event, Phase
from statefx.protocol.watermark import BEGINNING, DEFAULT_STREAM, UnitTime, then, unit_of

SNAPSHOTS_KEPT = 2
"""Of each task: a reader of a version that is older than the newest one needs the one before (rule 4.7)."""

if TYPE_CHECKING:
    from dataclasses import replace as evolved
else:

    def evolved(state: LogState, **changes: Any) -> LogState:
        """Return a state with other values of some fields, as `replace` does.

        That one hands each of the thirty fields to ``__init__``: 20 microseconds instead of one, several times for each
        record of a log that is read.
        """
        made = object.__new__(LogState)
        made.__dict__.update(state.__dict__, **changes)
        return made


def apply(state: LogState, record: Record, time_ms: int = 0) -> LogState:
    """Return the state after `record`, which was written at `time_ms`; `state` is unchanged.

    StateCorruptedError if the record can't follow what is before it.
    """
    rule = cast("Callable[[LogState, Any], LogState]", _RULES[type(record)])
    return rule(evolved(state, time_ms=time_ms), record)


def fold(records: Iterable[Record], state: LogState | None = None) -> LogState:
    """Apply `records`, in order, to `state`, or to the empty one."""
    state = state or LogState()
    for record in records:
        state = apply(state, record)
    return state


def checkpoint(state: LogState) -> Checkpoint:
    """Return the record that stands for everything so far."""
    return Checkpoint(Written(to_json(state)))


def _refuse(record: Record, reason: str) -> Never:
    raise StateCorruptedError(f"a {record.kind} record can't stand here: {reason}", kind=record.kind)


def _lineage(state: LogState, record: Lineage) -> LogState:
    if not record.lineage or record.lineage == state.lineage:
        _refuse(record, f"the lineage is {record.lineage!r} already")
    fork = state.fork
    # A start that died between LINEAGE and GENERATION has run nothing: it is not what the next one is a fork of.
    if state.generation and (fork is None or fork.generation != state.generation):
        # A fork of a fork that has decided nothing: a target may still have the marker of the first (rule 10.12).
        fork = Fork((*state.shared_origins, state.origin), state.generation, state.decided)
    # The original's rows are in targets of the original: a fork can't take them back.
    return evolved(state, lineage=record.lineage, origin=record.lineage, fork=fork, published=_fixed(state))


def _fixed(state: LogState) -> Mapping[str, Published]:
    """Return what sinks have published and can't take back any of later (rule 3.14)."""
    return {name: replace(each, fixed=each.last) for name, each in state.published.items()}


def _generation(state: LogState, record: Generation) -> LogState:
    if not state.lineage:
        _refuse(record, "there is no LINEAGE before it")
    if record.generation != state.generation + 1:
        _refuse(record, f"generation {record.generation} after {state.generation}")
    decided = state.committing
    if decided is not None and (record.renamed or record.dropped):  # its tokens name tasks that nobody would find
        _refuse(record, f"transaction {decided.txid} is COMMITTING")
    state = renamed(state, record.renamed, record.dropped)
    return evolved(
        _with_positions(state, record.topology),
        generation=record.generation,
        location=record.location,
        topology=replace(record.topology, tracked=_tracked(state, record), streams=_streams(state, record)),
        kept_as=_kept_as(state, record),
        # Another owner that had a target meanwhile has made the numbers of its rows unknown: they were not its own.
        published=_fixed(state) if record.takes_over else state.published,
    )


def _with_positions(state: LogState, becomes: TopologyIdentity) -> LogState:
    """Return the state in which what is known of event time by task is true of the tasks of another topology.

    Rule 14.10: a task has other partitions or keys than before where there is another number of tasks, so it has come
    as far as the slowest one had; where one had no row yet, nothing is known. Stateful bolts keep their watermarks:
    these say what they have closed. So do partitions, which read the same rows in whichever task.
    """
    was, now = state.topology.in_time, becomes.in_time
    if not was or was == now:
        return state
    watermarks = {
        name: known for name, known in state.watermarks.items() if TaskId.parse(name).component in becomes.stateful
    }
    unit_times = {unit: known for unit, known in state.unit_times.items() if "/" not in unit}
    streams: dict[str, set[str]] = {}
    for unit, known in state.unit_times.items():
        name, slash, rest = unit.partition("/")
        if name in becomes.by_partition or was.get(name) == now.get(name):
            unit_times[unit] = known
        elif slash:
            streams.setdefault(name, set()).add(rest.partition("/")[2] or DEFAULT_STREAM)
    for name in was.keys() & now.keys():
        own = [state.watermarks.get(str(TaskId(name, task)), BEGINNING) for task in range(was[name])]
        if name not in becomes.stateful and min(own) > BEGINNING:
            watermarks |= {str(TaskId(name, task)): min(own) for task in range(now[name])}
        for stream in streams.get(name, ()):
            units = [state.unit_times.get(unit_of(name, task, stream)) for task in range(was[name])]
            each = [unit for unit in units if unit is not None]
            if len(each) == len(units):
                slowest = UnitTime(min(unit.time_us for unit in each), max(unit.at_ms for unit in each))
                unit_times |= {unit_of(name, task, stream): slowest for task in range(now[name])}
    return evolved(state, watermarks=watermarks, unit_times=unit_times)


def renamed(state: LogState, names: Mapping[str, str], dropped: Collection[str] = ()) -> LogState:
    """Return the state with components renamed, and without those that are `dropped`."""
    if not names and not dropped:
        return state

    def by_component(given: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(one, one): value for one, value in given.items() if one not in dropped}

    def by_task(given: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name, value in given.items():
            component, slash, rest = name.partition("/")
            if component not in dropped:
                found[f"{names.get(component, component)}{slash}{rest}"] = value
        return found

    stateful = {
        one: replace(
            known, key_fields=tuple(replace(key, source=names.get(key.source, key.source)) for key in known.key_fields)
        )
        for one, known in state.topology.stateful.items()
    }
    kept_as = {one: state.kept_as.get(one, one) for one in stateful if one in names or one in state.kept_as}
    return evolved(
        state,
        topology=replace(
            state.topology,
            stateful=by_component(stateful),
            tracked=by_component(state.topology.tracked),
            in_time=by_component(state.topology.in_time),
            by_partition=tuple(by_component(dict.fromkeys(state.topology.by_partition))),
            streams=tuple(names.get(one, one) for one in state.topology.streams),  # none is ever dropped
        ),
        heads=by_task(state.heads),
        snapshots=by_task(state.snapshots),
        growth=by_task(state.growth),
        watermarks=by_task(state.watermarks),
        unit_times=by_task(state.unit_times),
        planned_metadata={txid: by_component(said) for txid, said in state.planned_metadata.items()},
        committed_metadata=by_component(state.committed_metadata),
        kept_as=by_component(kept_as),
        counters=by_component(state.counters),
    )


def _kept_as(state: LogState, record: Generation) -> Mapping[str, str]:
    """Return where the bolts of a topology keep their state: a new one not where a renamed one has its own."""
    known, wanted = state.topology.stateful, record.topology.stateful
    kept_as = {one: kept for one, kept in state.kept_as.items() if one in wanted}
    taken = {state.kept_as.get(one, one) for one in known}
    for one in sorted(wanted.keys() - known.keys()):
        name = one if one not in taken else new_name(one, taken, record.generation)
        taken.add(name)
        if name != one:
            kept_as[one] = name
    return kept_as


def _tracked(state: LogState, record: Generation) -> Mapping[str, str]:
    """Return the names of the spouts of a topology in trees.

    Whoever is new has a name of its own: trees may be open of one that was renamed, or dropped.
    """
    known, wanted = state.topology.tracked, record.topology.tracked
    if state.generation == 0:
        return wanted
    taken = {*known.values(), *wanted}
    return {one: known.get(one) or new_name(one, taken, record.generation) for one in wanted}


def _streams(state: LogState, record: Generation) -> tuple[str, ...]:
    """Return the streams of a topology in the order in which they were read at first (rule 3.15)."""
    known, wanted = state.topology.streams, record.topology.streams
    return (*(one for one in known if one in wanted), *(one for one in wanted if one not in known))


def new_name(component: str, taken: Collection[str], generation: int) -> str:
    """Return a name for a component in the log that no other one has."""
    # A copy of a savepoint begins again with generation 1, and brings the names that were given before.
    return next(name for number in count(generation) if (name := f"{component}~{number}") not in taken)


def _ended_before(state: LogState, record: Preparing | Committing) -> LogState:
    """Return the state after the COMMITTED that a record stands for as well."""
    return state if record.committed is None else _end(state, record, record.committed)


def _preparing(state: LogState, record: Preparing) -> LogState:
    state = _ended_before(state, record)
    _check_generation(state, record, record.generation)
    last = state.in_flight[-1].txid if state.in_flight else state.committed
    if record.txid != last + 1:
        _refuse(record, f"transaction {record.txid} after {last}")
    if record.attempt != state.next_attempt(
        record.txid
    ):  # a number used twice: late acks would pass for new ones (6.4)
        _refuse(record, f"attempt {record.attempt} of {record.txid}, not {state.next_attempt(record.txid)}")
    batch_id = _batch_id(record.input)
    if batch_id is not None and state.applied(batch_id):
        _refuse(record, f"batch {batch_id} after {state.batch_id}")
    source, notes = record.input, state.notes
    if isinstance(source, StreamInput):  # what is new of the notes counts from now on, whatever comes of the attempt
        source, notes = replace(source, notes=SourceNotes()), notes.then(source.notes)
    entry = InFlight(
        Phase.PREPARING,
        record.txid,
        record.attempt,
        generation=record.generation,
        input=source,
        prepared_ms=state.time_ms,
    )
    attempts = {**state.attempts, record.txid: record.attempt + 1}
    state = _with_metadata(state, record, record.txid, record.planned)
    return evolved(state, in_flight=(*state.in_flight, entry), attempts=attempts, notes=notes)


def _noted(state: LogState, record: Noted) -> LogState:
    _check_generation(state, record, record.generation)
    return evolved(state, notes=state.notes.then(record.notes))


def _processed(state: LogState, record: Processed) -> LogState:
    entry = _entry(state, record, record.txid, record.attempt, Phase.PREPARING)
    if entry.processed:
        _refuse(record, f"transaction {record.txid} has been processed already")
    state = _with_metadata(state, record, record.txid, record.emitted)
    return _with(state, replace(entry, processed=True))


def _with_metadata(state: LogState, record: Record, txid: int, metadata: BySpout) -> LogState:
    """Return the state with a transaction's input (rule 9.4).

    It is written once: the next attempt, perhaps another driver's, must read the same rows.
    """
    if not metadata:
        return state
    known = state.planned_metadata.get(txid, {})
    again = sorted(known.keys() & metadata.keys())
    if again:
        _refuse(record, f"what spout {again[0]!r} reads in transaction {txid} is durable already")
    return evolved(state, planned_metadata={**state.planned_metadata, txid: {**known, **metadata}})


def _committing(state: LogState, record: Committing) -> LogState:
    state = _ended_before(state, record)
    _check_generation(state, record, record.generation)
    entry = _entry(state, record, record.txid, record.attempt, Phase.PREPARING)
    if entry.generation != record.generation:  # rule 6.5: the acks went to a driver that is gone
        _refuse(record, f"it was prepared by generation {entry.generation}")
    if record.txid != state.committed + 1:  # rules 2.2, 2.4
        _refuse(record, f"transaction {state.committed + 1} is not committed")
    snapshots, growth = dict(state.snapshots), dict(state.growth)
    for name, snapshot in record.snapshots.items():
        kept = {each.version: each for each in (*snapshots.get(name, ()), snapshot)}
        snapshots[name] = tuple(sorted(kept.values(), key=lambda each: each.version))[-SNAPSHOTS_KEPT:]
        if snapshot.version == state.head(name):
            growth[name] = 0
    again = sorted(record.emitted.keys() & state.planned_metadata.get(record.txid, {}).keys())
    if again:
        _refuse(record, f"what spout {again[0]!r} reads in transaction {record.txid} is durable already")
    entry = replace(entry.step(Event.ALL_ACKED), committing=record, committing_ms=state.time_ms)
    watermarks = state.watermarks
    if record.watermarks:  # rule 14.3
        watermarks = dict(watermarks)
        for name, watermark in record.watermarks.items():
            watermarks[name] = max(watermark, watermarks.get(name, watermark))
    unit_times = then(state.unit_times, record.unit_times)
    if record.ended_units:
        ended = frozenset(record.ended_units)
        unit_times = {name: unit for name, unit in unit_times.items() if name not in ended}
    decided = evolved(
        _with(state, entry),
        snapshots=snapshots,
        growth=growth,
        watermarks=watermarks,
        unit_times=unit_times,
        due_ms=record.due_ms,
        closed=state.closed or (record.txid if record.closes else 0),
    )
    if record.hooks or record.committables:
        return decided
    return _end(decided, record, record.txid)  # rule 3.5: nobody has anything to do


def _committed(state: LogState, record: Committed) -> LogState:
    return _end(state, record, record.txid)


def _end(state: LogState, record: Record, txid: int) -> LogState:
    entry = state.committing
    if entry is None or entry.committing is None or entry.txid != txid:
        _refuse(record, f"transaction {txid} is not COMMITTING")
    growth = dict(state.growth)
    for name in entry.committing.tokens:
        # less than 0 where files were merged that are as old as the snapshot: they count with it
        growth[name] = max(0, growth.get(name, 0) + entry.committing.prepared_bytes.get(name, 0))
    batch_id = _batch_id(entry.input)
    metadata = dict(state.committed_metadata)
    for spout, said in (*state.planned_metadata.get(txid, {}).items(), *entry.committing.emitted.items()):
        metadata[spout] = stacked(metadata.get(spout, ()), said)
    return evolved(
        state,
        planned_metadata={number: said for number, said in state.planned_metadata.items() if number > txid},
        committed_metadata=metadata,
        history=state.history.with_last(entry.past("COMMITTED", state.time_ms)),
        committed=txid,
        restored=None,
        in_flight=state.in_flight[1:],
        last_input=entry.input,
        previous_input=state.last_input,
        planned=None,
        heads=state.heads_to_come(),
        growth=growth,
        attempts={number: attempt for number, attempt in state.attempts.items() if number > txid},
        targets=_targets(state.targets, entry.committing.committables),
        published=_published(state, entry.committing),
        batch_id=state.batch_id if batch_id is None else batch_id,
        counters=state.counters_to_come(),
    )


def _targets(targets: Mapping[str, str], committables: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the targets of sinks after a decision; participants that are no sinks name no target."""
    decided = {
        name: each["target"] for name, each in committables.items() if isinstance(each, dict) and "target" in each
    }
    return targets if decided.items() <= targets.items() else {**targets, **decided}


def _published(state: LogState, record: Committing) -> Mapping[str, Published]:
    """Return what sinks have published, after a decision (rule 3.14)."""
    found = dict(state.published)
    for name, each in record.committables.items():
        if not isinstance(each, dict) or "target" not in each:
            continue
        known = found.get(name, Published())
        if state.targets.get(name, each["target"]) != each["target"]:  # the sink reaches its former target no more
            known = replace(known, fixed=known.last)
        if each.get("tasks"):
            known = Published(record.txid, known.fixed if each.get("rewinds") else record.txid)
        if known.last:
            found[name] = known
    return found


def _rolled_back(state: LogState, record: RolledBack) -> LogState:
    entry = _entry(state, record, record.txid, record.attempt, Phase.PREPARING)
    if entry is not state.in_flight[-1]:  # rule 3.6: else a later one would be left that follows nothing
        _refuse(record, f"transaction {state.in_flight[-1].txid}, which comes after {record.txid}, is under way")
    planned = state.planned
    # Rule 3.9: the next attempt reads the same rows. Of later transactions it is not kept: they follow from this one.
    if isinstance(entry.input, StreamInput) and entry.txid == state.committed + 1 and _reads(entry.input, state):
        planned = entry.input
    history = state.history.with_last(entry.past(record.kind, state.time_ms, record.reason))
    return evolved(state, in_flight=state.in_flight[:-1], planned=planned, history=history)


def _reads(source: StreamInput, state: LogState) -> bool:
    """Return whether an input reads anything after the last committed one; that of a tick does not."""
    last = state.last_input
    return not isinstance(last, StreamInput) or (source.query_id, source.offsets) != (last.query_id, last.offsets)


def _migrated(state: LogState, record: Migrated) -> LogState:
    _check_generation(state, record, record.generation)
    if state.in_flight:
        _refuse(record, f"transaction {state.in_flight[0].txid} is under way")
    if not record.lineage or record.lineage == state.lineage:
        _refuse(record, f"the lineage is {record.lineage!r} already")
    if state.pinned:  # the provider that had the versions would not be asked for them any more
        _refuse(record, f"{sorted(state.pinned)} are pinned")
    if record.tokens.keys() != state.heads.keys():
        _refuse(record, f"it has the state of {sorted(record.tokens)}, there is that of {sorted(state.heads)}")
    return evolved(
        state,
        lineage=record.lineage,
        topology=state.topology.kept_by(record.provider, record.options),
        heads={name: Version(state.heads[name].txid, token) for name, token in record.tokens.items()},
        snapshots={},
        growth={name: record.prepared_bytes.get(name, 0) for name in record.tokens},
    )


def _pinned(state: LogState, record: Pinned) -> LogState:
    if not record.name or record.name in state.pinned:
        _refuse(record, f"{record.name!r} is pinned already")
    if record.txid != state.decided:
        _refuse(record, f"only what was decided last can be pinned, which is {state.decided}")
    return evolved(state, pinned={**state.pinned, record.name: pin_of(state)})


def _unpinned(state: LogState, record: Unpinned) -> LogState:
    if record.name not in state.pinned:
        _refuse(record, f"{record.name!r} is not pinned")
    return evolved(state, pinned={name: pin for name, pin in state.pinned.items() if name != record.name})


def pin_of(state: LogState) -> Pin:
    """Return a pin of the last decided transaction."""
    open_commit = state.committing
    if open_commit is not None and open_commit.committing is not None:
        state = _end(state, open_commit.committing, open_commit.txid)
    return Pin(
        state.committed,
        state.time_ms,
        state.topology,
        state.heads,
        {name: kept[-1] for name, kept in state.snapshots.items() if kept[-1].version <= state.head(name)},
        state.growth,
        state.kept_as,
        state.last_input,
        state.previous_input,
        # Perhaps with those of transactions that have begun since: sources then read again what these have read.
        state.notes,
        state.committed_metadata,
        state.batch_id,
        state.watermarks,
        state.unit_times,
        state.due_ms,
        state.closed,
        state.state_txid,
        state.given_up,
        state.counters,
    )


def _restored(state: LogState, record: Restored) -> LogState:
    """Return the state that goes on from a pin (rule 3.12).

    What counts up stays as it is: transactions, attempts, generations, and the targets of sinks, where what is given
    up was published.
    """
    _check_generation(state, record, record.generation)
    if state.in_flight:
        _refuse(record, f"transaction {state.in_flight[0].txid} is under way")
    pin = record.pin
    committed = max(state.committed, pin.txid)
    taken_back = state.taken_back
    if state.taking_back is not None:
        # Where no driver has started since, nothing was taken back. Else who knows: it may be begun, or done.
        begun = record.generation > taken_back[-1].generation + 1
        taken_back = (*taken_back[:-1], *([replace(taken_back[-1], targets={})] if begun else []))
    if record.taken_back:
        taken_back = (*taken_back, TakenBack(pin.state_txid, committed, record.generation, record.taken_back))
    first = pin.state_txid + 1
    given_up = tuple(span for span in pin.given_up if span[0] < first)
    if first <= committed:
        given_up = (*given_up, (first, committed))
    trace = Past(pin.state_txid, 0, record.generation, record.kind, ended_ms=state.time_ms)
    return evolved(
        state,
        committed=committed,
        given_up=given_up,
        history=state.history.with_last(trace),
        topology=pin.topology,
        heads=pin.heads,
        snapshots={name: (snapshot,) for name, snapshot in pin.snapshots.items()},
        growth=pin.growth,
        kept_as=pin.kept_as,
        # Rule 3.7: Spark goes on with the batch that has the number of the next transaction.
        last_input=_numbered(pin.last_input, committed),
        previous_input=_numbered(pin.previous_input, committed - 1),
        planned=state.planned if record.keeps_plans else None,
        planned_metadata=state.planned_metadata if record.keeps_plans else {},
        notes=pin.notes,
        committed_metadata=pin.committed_metadata,
        batch_id=pin.batch_id,
        watermarks=pin.watermarks,
        unit_times=pin.unit_times,
        due_ms=pin.due_ms,
        closed=pin.closed,
        restored=pin.state_txid,
        taken_back=taken_back,
        counters=pin.counters,  # rule 16.3: what comes after it is read, and counted, again
    )


def with_tasks(state: LogState, tasks: Mapping[str, int]) -> LogState:
    known = state.topology.stateful
    return with_stateful(state, {bolt: replace(known[bolt], parallelism=number) for bolt, number in tasks.items()})


def with_stateful(state: LogState, bolts: Mapping[str, StatefulIdentity]) -> LogState:
    return evolved(state, topology=replace(state.topology, stateful={**state.topology.stateful, **bolts}))


def with_names(state: LogState, names: Mapping[str, str]) -> LogState:
    return evolved(state, kept_as={**state.kept_as, **names})


def _rescaled(state: LogState, record: Rescaled) -> LogState:
    _check_generation(state, record, record.generation)
    if state.in_flight:
        _refuse(record, f"transaction {state.in_flight[0].txid} is under way")
    if lacking := record.tasks.keys() - state.topology.stateful.keys():
        _refuse(record, f"there is no stateful bolt {min(lacking)!r}")
    if {bolt: known.parallelism for bolt, known in record.stateful.items()}.items() - record.tasks.items():
        _refuse(record, f"what {sorted(record.stateful)} are is not what is said of their tasks, {record.tasks}")
    of_others = {name for name in state.heads if TaskId.parse(name).component not in record.tasks}
    moved = {name: each for name, each in state.watermarks.items() if TaskId.parse(name).component in record.tasks}
    watermarks = {name: each for name, each in state.watermarks.items() if name not in moved}
    for bolt, tasks in record.tasks.items():
        own = [each for name, each in moved.items() if TaskId.parse(name).component == bolt]
        if own:  # they read from the same senders
            watermarks |= {str(TaskId(bolt, task)): min(own) for task in range(tasks)}
    return evolved(
        with_names(with_stateful(with_tasks(state, record.tasks), record.stateful), record.kept_as),
        heads={
            **{name: state.heads[name] for name in of_others},
            **{name: Version(state.committed, token) for name, token in record.tokens.items()},
        },
        snapshots={name: kept for name, kept in state.snapshots.items() if name in of_others},
        growth={**{name: size for name, size in state.growth.items() if name in of_others}, **record.prepared_bytes},
        watermarks=watermarks,
    )


def _numbered(source: Input | None, txid: int) -> Input | None:
    return replace(source, batch_id=txid - 1) if isinstance(source, StreamInput) else source


def _checkpoint(state: LogState, record: Checkpoint) -> LogState:
    try:
        folded: LogState = from_json(LogState, record.state)
    except NewerError as error:
        raise CheckpointFormatError(f"a CHECKPOINT was written by a newer release of statefx ({error})") from error
    except ValueError as error:
        _refuse(record, f"its body can't be read ({error!r})")
    if state not in (LogState(), folded):
        _refuse(record, "it is not what the records before it amount to")
    return folded


def _batch_id(source: Input) -> int | None:
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
    return evolved(state, in_flight=tuple(entry if other.txid == entry.txid else other for other in state.in_flight))


_RULES: Mapping[type, Callable[..., LogState]] = {
    Lineage: _lineage,
    Generation: _generation,
    Preparing: _preparing,
    Noted: _noted,
    Processed: _processed,
    Committing: _committing,
    Committed: _committed,
    RolledBack: _rolled_back,
    Migrated: _migrated,
    Pinned: _pinned,
    Unpinned: _unpinned,
    Restored: _restored,
    Rescaled: _rescaled,
    Checkpoint: _checkpoint,
}
