"""Features that need something of a topology: event time, windows, combining, and bolts that survive bad rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from statefx.config import Span
from statefx.errors import TopologyError
from statefx.operators.bolts import Bolt, Stateful, may_hold
from statefx.operators.context import DEFAULT_STREAM
from statefx.operators.dead_letters import DEAD_LETTER, DEAD_LETTERS, ReplayDeadLetters
from statefx.operators.hooks import overrides
from statefx.operators.joins import LATE_BY, Wired
from statefx.operators.json_values import refuse_keys
from statefx.operators.schema import parse_schema, parse_streams, to_ddl, to_ddl_type
from statefx.operators.spouts import Spout
from statefx.operators.windows import WINDOW, WindowedBolt, keeps_values, windowing_of
from statefx.protocol.watermark import Timing
from statefx.topology.checks import check_micros, key_types, named, of_component
from statefx.topology.graph import Component, ComponentKind, DeclaredInput, Edge, OnError, Promise

logger = logging.getLogger("statefx")


LATENESS, MAX_AHEAD = "0 seconds", "1 day"
"""Of a stream whose user says nothing of it. A day: clocks of machines differ by zones if they are set wrongly."""

_REMEDIES = {
    pa.timestamp("us"): "it says nothing of the zone: make it a timestamp before, as by to_utc_timestamp(field, zone)",
    pa.date32(): "make it a timestamp before, as by to_timestamp(field)",
    pa.string(): "make it a timestamp before, as by to_timestamp(field)",
}
_NUMBER = "make it a timestamp before, as by timestamp_seconds(field), timestamp_millis or timestamp_micros"


def timings(
    who: str,
    id: str,
    streams: Mapping[str, pa.Schema],
    timestamp: str | Mapping[str, str] | None,
    lateness: Span,
    max_ahead: Span,
    idle_after: Span | None,
) -> Mapping[str, Timing]:
    """Return how the event time of a component's streams is read, by stream, or nothing if it has none.

    TopologyError, which names `who`: a stream, a field or a length of time is none, or the field is of another type.
    """
    if timestamp is None:
        given = (("lateness", lateness, LATENESS), ("maxAhead", max_ahead, MAX_AHEAD), ("idleAfter", idle_after, None))
        if useless := [name for name, value, default in given if value != default]:
            raise TopologyError(
                f'{who}: {useless[0]} needs event time: say which field has it, as timestamp="at", or leave it out',
                component=id,
            )
        return {}
    fields = timestamp if isinstance(timestamp, Mapping) else {DEFAULT_STREAM: timestamp}
    if not fields:
        raise TopologyError(
            f'{who}: timestamp names no field: timestamp="at", or {{"stream": "at"}}, or leave it out', component=id
        )
    late_us = check_micros(lateness, f"{who}: lateness", zero=True)
    ahead_us = check_micros(max_ahead, f"{who}: maxAhead")
    idle_us = None if idle_after is None else check_micros(idle_after, f"{who}: idleAfter")
    for stream, field in fields.items():
        _check_field(who, id, streams, stream, field)
    return {
        stream: Timing(field, late_us, ahead_us, None if idle_us is None else idle_us // 1000)
        for stream, field in fields.items()
    }


def _check_field(who: str, id: str, streams: Mapping[str, pa.Schema], stream: Any, field: Any) -> None:
    if stream not in streams:
        raise TopologyError(
            f"{who}: timestamp names the stream {stream!r}; its streams are {', '.join(streams) or 'none'}",
            component=id,
        )
    schema = streams[stream]
    if not isinstance(field, str) or field not in schema.names:
        raise TopologyError(
            f"{who}: timestamp names the field {field!r} of stream {stream!r}; its fields are "
            f"{', '.join(schema.names)}",
            component=id,
            field=field,
        )
    kind = schema.field(field).type
    if kind != pa.timestamp("us", tz="UTC"):
        remedy = _REMEDIES.get(kind, _NUMBER if pa.types.is_integer(kind) else "name a field that is a timestamp")
        raise TopologyError(
            f"{who}: the field {field!r} has the type {to_ddl_type(kind)}, and event time is a timestamp: {remedy}",
            component=id,
            field=field,
        )


def _check(id: str, bolt: WindowedBolt, inputs: Sequence[tuple[DeclaredInput, pa.Schema]]) -> None:
    """Refuse a windowed bolt of which nobody has said which windows it has, or whose hooks or inputs don't fit them."""
    if bolt._late_stream is not None and windowing_of(bolt) is not None and bolt._windowing.counted:  # type: ignore[union-attr]
        raise TopologyError(
            f"bolt {id!r}: nothing is late for windows of tuples: leave out withLateTupleStream", component=id
        )
    widths = {len(one.grouping.fields) if one.grouping.promise is Promise.KEY else 0 for one, _ in inputs}
    if len(widths) > 1:
        raise TopologyError(
            f"bolt {id!r} has windows by the fields of its fieldsGrouping, and its inputs are not all grouped by as "
            "many: group all of them alike",
            component=id,
        )
    for one, schema in inputs:
        _check_keys(id, schema, one)
    name, windowing = type(bolt).__name__, windowing_of(bolt)
    if windowing is None:
        raise TopologyError(
            f"bolt {id!r}: say which windows {name} has, as in {name}().withTumblingWindow('1 minute'); or withWindow, "
            "or withSessionWindow",
            component=id,
        )
    if keeps_values(bolt) and windowing.merges and not _merges(bolt):
        raise TopologyError(
            f"bolt {id!r}: {name} has {windowing}, of which values become one: define def mergeWindows(self, a, b)",
            component=id,
        )
    if bolt.vectorised and (windowing.counted or windowing.gap):
        raise TopologyError(
            f"bolt {id!r}: {name} defines executeBatch, and has {windowing}: only windows of time are known before "
            "their rows are put into them. Define initWindow(self) and addToWindow(self, value, tup)",
            component=id,
        )
    if bolt.vectorised and (clash := [one.source for one, schema in inputs if WINDOW in schema.names]):
        raise TopologyError(
            f"bolt {id!r}: its input {clash[0]!r} has a field {WINDOW!r}, which is the name of the column in which "
            "executeBatch gets the window: give the field another name",
            component=id,
        )
    if bolt._lag is not None and (bolt._timestamp_field is None or windowing.counted):
        raise TopologyError(
            f"bolt {id!r}: withLag is of no use without withTimestampField and windows of time; say lateness= where "
            "timestamp= is said",
            component=id,
        )


def _merges(bolt: WindowedBolt) -> bool:
    return type(bolt).mergeWindows is not WindowedBolt.mergeWindows


def described(component: Component, keys: Sequence[str]) -> str:
    """Say which windows a component has, by which times, of which types of `keys`, and what is kept of them.

    Nothing if it has none. It is part of what a checkpoint is recognised by.
    """
    bolt, windowing = component.operator, windowing_of(component.operator)
    if windowing is None:
        return ""
    assert isinstance(bolt, WindowedBolt)
    times = "" if windowing.counted else " by event time" if component.time_fields else " by the clock"
    of = f" for each key ({', '.join(keys)})" if keys else ""
    return f"{windowing}{times}{of}, of which {'values' if keeps_values(bolt) else 'tuples'} are kept"


def wire_windows(
    id: str,
    components: dict[str, Component],
    inputs: Mapping[str, Sequence[DeclaredInput]],
    begun: dict[tuple[str, str], str],
) -> None:
    """Set a windowed bolt's late stream and times, which follow from its inputs, once all before it is known.

    If no component before has event time, the field that ``withTimestampField`` names begins it. `begun` has by source
    and stream which bolt began it so: others must agree with that one, and a bolt that names no field does not go by
    it. TopologyError: its inputs, hooks and windows don't fit.
    """
    bolt, given = components[id].operator, inputs[id]
    assert isinstance(bolt, WindowedBolt)
    _check(id, bolt, [(one, components[one.source].outputs[one.stream]) for one in given])
    found = {} if bolt._windowing.counted else _time_fields(id, bolt, components, inputs, begun)  # type: ignore[union-attr]  # checked
    if not found and not bolt._windowing.counted:  # type: ignore[union-attr]  # checked
        if components[id].timings:
            raise TopologyError(
                f"bolt {id!r}: timestamp= says which field of what it emits has the event time, and its input has none"
                f": say it where {given[0].source!r} is set, or withTimestampField of the bolt",
                component=id,
            )
        _warn(id, given, components)
    schemas = [components[one.source].outputs[one.stream] for one in given]
    outputs = components[id].outputs if bolt._late_stream is None else _with_late_stream(components[id], schemas)
    components[id] = replace(components[id], outputs=outputs, time_fields=found)


def _with_late_stream(component: Component, schemas: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
    assert isinstance(component.operator, WindowedBolt)
    stream, id = component.operator._late_stream, component.id
    assert stream is not None
    parse_streams({stream: "late long"})  # refuses names that no stream can have
    if stream in component.outputs:
        raise TopologyError(
            f"bolt {id!r}: the late stream {stream!r} is in outputFields too, and statefx emits it: take it out there",
            component=id,
        )
    try:
        fields = pa.unify_schemas([schema.remove_metadata() for schema in schemas])
    except pa.ArrowException as error:
        raise TopologyError(
            f"bolt {id!r}: fields of its inputs have the same name and different types, and a late stream has the "
            f"fields of all ({error}): give one another name, or leave out withLateTupleStream",
            component=id,
        ) from None
    if LATE_BY.name in fields.names:
        raise TopologyError(
            f"bolt {id!r}: its input has a field lateBy, which the late stream adds: give the field another name",
            component=id,
        )
    everywhere = set.intersection(*(set(schema.names) for schema in schemas))
    known = [field.with_nullable(field.nullable or field.name not in everywhere) for field in fields]
    return {**component.outputs, stream: pa.schema([*known, LATE_BY])}


def _warn(id: str, inputs: Sequence[DeclaredInput], components: Mapping[str, Component]) -> None:
    """Warn that windows go by the clock, if there is a field that looks as if it were meant."""
    for one in inputs:
        for field in components[one.source].outputs[one.stream]:
            if field.type == pa.timestamp("us", tz="UTC"):
                logger.warning(
                    "the windows of bolt %r go by the driver's clock, for no input has event time. If %r of %r says "
                    "when a row happened: timestamp=%r where %r is set",
                    id, field.name, one.source, field.name, one.source,
                )  # fmt: skip
                return


def _time_fields(
    id: str,
    bolt: WindowedBolt,
    components: dict[str, Component],
    inputs: Mapping[str, Sequence[DeclaredInput]],
    begun: dict[tuple[str, str], str],
) -> Mapping[tuple[str, str], str]:
    """Return the field of each input that has the event time; empty: the tuples go by the clock."""
    fields = {(one.source, one.stream): _field(components, inputs, begun, id, bolt, one) for one in inputs[id]}
    without = [source for (source, _), field in fields.items() if field is None]
    if without and len(without) < len(fields):
        raise TopologyError(
            f"bolt {id!r}: its input {without[0]!r} has no event time, and others have: give it a timestamp=, or say "
            "withTimestampField of one that all inputs have",
            component=id,
        )
    return {name: field for name, field in fields.items() if field is not None}


def _field(
    components: dict[str, Component],
    inputs: Mapping[str, Sequence[DeclaredInput]],
    begun: dict[tuple[str, str], str],
    id: str,
    bolt: WindowedBolt,
    given: DeclaredInput,
) -> str | None:
    source, named, place = components[given.source], bolt._timestamp_field, (given.source, given.stream)
    other = begun.get(place)
    timing = None if other else source.timings.get(given.stream)
    has_time = timing is not None or _has_time(components, inputs, begun, given.source)
    if named is None:
        if has_time and timing is None:
            raise TopologyError(
                f"bolt {id!r}: the event time of its input {given.source!r} comes from further ahead: say which of its "
                "fields has it, withTimestampField('at')",
                component=id,
            )
        return None if timing is None else timing.field
    if has_time and bolt._lag is not None:
        raise TopologyError(
            f"bolt {id!r}: withLag is of no use behind {given.source!r}, which has event time already: say lateness= "
            "where its timestamp= is said",
            component=id,
        )
    # Checked as a timestamp= is, also where the watermark comes from elsewhere.
    who, lag = f"bolt {id!r}: withTimestampField of {given.source!r}", LATENESS if bolt._lag is None else bolt._lag
    own = timings(who, id, source.outputs, {given.stream: named}, lag, MAX_AHEAD, None)
    if other is not None and own[given.stream] != source.timings[given.stream]:
        raise TopologyError(
            f"bolt {id!r} and bolt {other!r} say withTimestampField and withLag of {given.source!r}, and not the same: "
            f"the rows of a stream have one event time. Say it once, by timestamp= and lateness= of {given.source!r}",
            component=id,
        )
    if not has_time:
        begun[place] = other or id
        components[source.id] = replace(source, timings={**source.timings, **own})
    return named


def _has_time(
    components: Mapping[str, Component],
    inputs: Mapping[str, Sequence[DeclaredInput]],
    begun: Mapping[tuple[str, str], str],
    id: str,
) -> bool:
    """Return whether a component's rows go by a watermark whose beginning the user has declared."""
    return any((id, stream) not in begun for stream in components[id].timings) or any(
        _has_time(components, inputs, begun, one.source) for one in inputs.get(id, ())
    )


def _check_keys(id: str, schema: pa.Schema, given: DeclaredInput) -> None:
    """Refuse keys of windows that state can't hold."""
    if given.grouping.promise is Promise.KEY:
        for name in given.grouping.fields:
            kind = schema.field(name).type
            if pa.types.is_nested(kind) or kind == pa.timestamp("us"):
                raise TopologyError(
                    f"bolt {id!r} has windows by {name!r}, of type {to_ddl_type(kind)}, which is no key: group by a "
                    "plain value, and by a timestamp that knows its zone",
                    component=id,
                    field=name,
                )


def combined_schema(id: str, bolt: Bolt) -> pa.Schema | None:
    """Return the schema of a bolt's sums, if it declares one; TopologyError for hooks that don't belong together."""
    has = [name for name in ("combine", "combineBatch") if overrides(type(bolt), name)]
    who = f"bolt {id!r}: {type(bolt).__name__}"
    if len(has) > 1:
        raise TopologyError(f"{who} has combine and combineBatch, which do the same: take one out", component=id)
    if overrides(type(bolt), "initCombine") and has != ["combine"]:
        raise TopologyError(
            f"{who} has initCombine, which is called for combine only: define def combine(self, a, b)", component=id
        )
    if bolt.combinedFields is None:
        return None
    if not has:
        raise TopologyError(
            f"{who} has combinedFields and nothing that makes them: define def combine(self, a, b) or "
            "def combineBatch(self, batch)",
            component=id,
        )
    try:
        return parse_schema(bolt.combinedFields)
    except TopologyError as error:
        raise of_component(error, f"{who}: combinedFields", id) from None


def check_combiner(components: Mapping[str, Component], id: str, inputs: Sequence[DeclaredInput]) -> None:
    """Refuse inputs that a bolt's combiner can't add up."""
    reader = components[id]
    if not reader.combines:
        return
    by_tuple = overrides(type(reader.operator), "combine")
    for given in inputs:
        schema = components[given.source].outputs[given.stream]
        _check_grouping(reader, given, by_tuple)
        if reader.combined is not None:
            _check_key_fields(reader, given, schema)
        if by_tuple:
            _check_tuples(reader, given, schema)


def _check_grouping(reader: Component, given: DeclaredInput, by_tuple: bool) -> None:
    if by_tuple and not given.grouping.by_key:
        raise TopologyError(
            f"{named(reader)} has combine, which adds up tuples of one key, and reads {given.source!r} by "
            f"{given.grouping} grouping: use fieldsGrouping, or combineBatch",
            component=reader.id,
            source=given.source,
        )
    if given.grouping.promise is Promise.NAMED:
        raise TopologyError(
            f"{named(reader)} has combineBatch and reads {given.source!r} by directGrouping: rows that were sent to "
            "different tasks can't be added up. Use another grouping, or let another bolt add them up behind",
            component=reader.id,
            source=given.source,
        )


def _check_key_fields(reader: Component, given: DeclaredInput, schema: pa.Schema) -> None:
    """Refuse sums without the key, or with a key of another type: its hash would be another one."""
    combined, fields = reader.combined, given.grouping.fields
    assert combined is not None
    lacking = [name for name in fields if name not in combined.names]
    if lacking or key_types(schema, fields) != key_types(combined, fields):
        what = f"does not have {lacking[0]!r}" if lacking else "has them with other types"
        raise TopologyError(
            f"{named(reader)} groups {given.source!r} by {', '.join(fields)}, and its combinedFields "
            f"`{to_ddl(combined)}` {what}: the fields that rows are grouped by stay as they are in "
            f"`{to_ddl(schema)}`",
            component=reader.id,
            source=given.source,
        )


def _check_tuples(reader: Component, given: DeclaredInput, schema: pa.Schema) -> None:
    nested = [name for name in given.grouping.fields if pa.types.is_nested(schema.field(name).type)]
    if nested:
        raise TopologyError(
            f"{named(reader)} has combine and groups {given.source!r} by {nested[0]!r}, which is an array or a struct: "
            "use combineBatch, or group by a plain value",
            component=reader.id,
            source=given.source,
            field=nested[0],
        )
    combined = schema if reader.combined is None else reader.combined
    if not combined.equals(schema) and not overrides(type(reader.operator), "initCombine"):
        raise TopologyError(
            f"{named(reader)} reads `{to_ddl(schema)}` from {given.source!r}, and its combinedFields are "
            f"`{to_ddl(combined)}`: define def initCombine(self, tup), which returns these of one tuple",
            component=reader.id,
            source=given.source,
        )


def mode_of(id: str, bolt: Bolt, given: Any) -> OnError:
    """Return what ``onError=`` says; TopologyError if it is no such word, or the bolt can't do it."""
    if given not in list(OnError):
        raise TopologyError(
            f"bolt {id!r}: onError is one of {', '.join(repr(str(one)) for one in OnError)}, not {given!r}",
            component=id,
        )
    mode = OnError(given)
    if mode is OnError.FAIL:
        return mode
    name = type(bolt).__name__
    if isinstance(bolt, WindowedBolt) and mode is OnError.QUARANTINE_KEY:
        why = (
            f"{name} has windows, and rows that are held back would come late for them: say "
            f'onError="{OnError.DEAD_LETTER}", which holds back no later rows'
        )
    elif isinstance(bolt, Wired):
        why = f"{name} is ready-made, and runs no code of yours: leave out onError"
    elif bolt.combines:
        why = (
            f"{name} has its input added up before it is sent, so that an error is one of a sum of many rows: leave "
            "out the combiner, or let a bolt before it look at the rows, and have the onError"
        )
    elif mode is OnError.QUARANTINE_KEY and not isinstance(bolt, Stateful):
        why = (
            f"{name} keeps no state, in which the keys in quarantine have to be: derive it from StatefulBolt, or say "
            f'onError="{OnError.DEAD_LETTER}", which holds back no later rows'
        )
    else:
        return mode
    raise TopologyError(f"bolt {id!r} can't have onError={str(mode)!r}: {why}", component=id)


def with_dead_letters(id: str, mode: OnError, streams: Mapping[str, pa.Schema]) -> Mapping[str, pa.Schema]:
    """Return the streams of a bolt with that of its dead letters, if it has some."""
    if not mode.writes_letters:
        return streams
    if DEAD_LETTER in streams:
        raise TopologyError(
            f"bolt {id!r}: the stream {DEAD_LETTER!r} is in outputFields too, and with onError={str(mode)!r} statefx "
            "emits it: take it out there",
            component=id,
        )
    return {**streams, DEAD_LETTER: DEAD_LETTERS}


def check_bad_rows(components: Mapping[str, Component], edges: Sequence[Edge]) -> None:
    """Refuse dead letters that nobody would read or that can't be written, and bolts that ack by hand."""
    _check_quarantines(components, edges)
    tracked = any(isinstance(one.operator, Spout) for one in components.values())
    for one in components.values():
        if one.kind is not ComponentKind.BOLT or one.on_error is OnError.FAIL:
            continue
        id = one.id
        if tracked and may_hold(one.operator):
            raise TopologyError(
                f"bolt {id!r} can't have onError={str(one.on_error)!r}: {type(one.operator).__name__} acks its tuples "
                "itself, and an ack can't be undone with the rest of a call. Derive it from BasicBolt or StatefulBolt, "
                "which ack what has been dealt with; or leave out onError",
                component=id,
            )
        if not one.on_error.writes_letters:
            continue
        for edge in edges:
            if edge.target == id and not edge.grouping.broadcast:
                refuse_keys(components[edge.source].outputs[edge.stream], f"dead letters of bolt {id!r}")
        if not any((edge.source, edge.stream) == (id, DEAD_LETTER) for edge in edges):
            raise TopologyError(
                f"bolt {id!r} has onError={str(one.on_error)!r}, and nobody reads its dead letters: rows would be "
                f"lost. Let a sink or a bolt read them, as in "
                f'.shuffleGrouping({id!r}, stream="{DEAD_LETTER}"). If they may be lost: onError="skip"',
                component=id,
            )


def _check_quarantines(components: Mapping[str, Component], edges: Sequence[Edge]) -> None:
    """Refuse keys in quarantine where rows have no key, letters without fields, or replayed without their numbers."""
    for edge in edges:
        target = components[edge.target]
        if isinstance(target.operator, ReplayDeadLetters):
            names = components[edge.source].outputs[edge.stream].names
            if missing := [name for name in target.operator.needs if name not in names]:
                raise TopologyError(
                    f"bolt {target.id!r}, a ReplayDeadLetters, needs the field {missing[0]!r} of dead letters, and "
                    f"{edge.source!r} has {', '.join(names)}: name it in the schema of what reads the letters",
                    component=target.id,
                    field=missing[0],
                )
        holds = target.on_error is OnError.QUARANTINE_KEY
        operator = components[edge.source].operator
        if isinstance(operator, ReplayDeadLetters) and operator.quarantined is not holds:
            why = 'with quarantined=True, and only a bolt with onError="quarantineKey" can read it: leave that out'
            if holds:
                why = (
                    "without quarantined=True: the bolt would take the rows for later ones of their keys, and hold "
                    "them back. Say ReplayDeadLetters(..., quarantined=True)"
                )
            raise TopologyError(
                f"{target.kind} {target.id!r} reads from {edge.source!r}, a ReplayDeadLetters {why}",
                component=target.id,
            )
        if holds and not edge.grouping.broadcast and edge.grouping.promise is not Promise.KEY:
            raise TopologyError(
                f"bolt {target.id!r} can't have onError={str(target.on_error)!r}: it reads {edge.source!r} by "
                f"{edge.grouping}, and only the fields of a fieldsGrouping tell which rows belong to one key. Group by "
                f'the key\'s fields, or say onError="{OnError.DEAD_LETTER}", which holds back no later rows',
                component=target.id,
            )
