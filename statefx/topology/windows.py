"""Windowed bolts in a topology: by which times their tuples go, and what they can't be."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from statefx.errors import TopologyError
from statefx.operators.joins import LATE_BY
from statefx.operators.schema import parse_streams, to_ddl_type
from statefx.operators.windows import WINDOW, WindowedBolt, keeps_values, windowing_of
from statefx.topology.event_time import LATENESS, MAX_AHEAD, timings
from statefx.topology.graph import Component
from statefx.topology.groupings import DeclaredInput, Promise

logger = logging.getLogger("statefx")


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
            f"bolt {id!r}: its input {clash[0]!r} has a field {WINDOW!r}, and so is called what executeBatch is told "
            "of the window: give the field another name",
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
    """Find what the inputs of a windowed bolt decide, once all before it is known: its late stream and its times.

    If no component before has event time, the field that ``withTimestampField`` names begins it. `begun` has by source
    and stream which bolt began it so: others must agree with that one, and who names no field does not go by it.

    Raises
    ------
    TopologyError
        Its inputs, hooks and windows don't fit.
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
    """Tell that windows go by the clock, if there is a field that looks as if it were meant."""
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
    who, lag = f"bolt {id!r}: withTimestampField of {given.source!r}", bolt._lag or LATENESS
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
    """Tell whether what a component emits goes by a watermark of which the user has said where it begins."""
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
