"""Which field has the event time of a stream: what users say of it, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from statefx.errors import TopologyError
from statefx.operators.context import DEFAULT_STREAM
from statefx.operators.schema import to_ddl_type
from statefx.protocol.watermark import Timing
from statefx.topology.checks import check_seconds

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
    lateness: str,
    max_ahead: str,
    idle_after: str | None,
) -> Mapping[str, Timing]:
    """Return how the event time of a component's streams is read, by stream; empty: it has none.

    Raises
    ------
    TopologyError
        A stream, a field or a length of time is none, or the field is of another type; `who` is named.
    """
    if timestamp is None:
        given = {"lateness": lateness != LATENESS, "maxAhead": max_ahead != MAX_AHEAD, "idleAfter": idle_after}
        if useless := [name for name, value in given.items() if value]:
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
    late_secs = check_seconds(lateness, f"{who}: lateness", zero=True)
    ahead_secs = check_seconds(max_ahead, f"{who}: maxAhead")
    idle_secs = None if idle_after is None else check_seconds(idle_after, f"{who}: idleAfter")
    for stream, field in fields.items():
        _check_field(who, id, streams, stream, field)
    return {
        stream: Timing(
            field, int(late_secs * 1e6), int(ahead_secs * 1e6), None if idle_secs is None else int(idle_secs * 1000)
        )
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
