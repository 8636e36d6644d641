"""What KafkaSpout's arguments may be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from statefx.errors import TopologyError
from statefx.spouts.kafka.planning import Start
from statefx.spouts.kafka.values import Avro, Bytes, Format, Json, Text


def topics_of(given: Any) -> list[str] | re.Pattern[str]:
    """Return names, or a pattern of them."""
    if isinstance(given, re.Pattern):
        return given
    names = [given] if isinstance(given, str) else list(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise TopologyError(f"topics are names of topics, or a pattern (re.compile('payments-.*')), not {given!r}")
    if len(set(names)) < len(names):
        raise TopologyError(f"a topic is named twice: {given!r}")
    return names


def start_of(given: Any) -> Start:
    """Return where a first run begins."""
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise TopologyError(f"start={given!r} has no time zone: datetime(..., tzinfo=timezone.utc)")
        return given
    if isinstance(given, Mapping):
        if all(isinstance(offsets, Mapping) for offsets in given.values()):
            return {topic: dict(offsets) for topic, offsets in given.items()}
        raise TopologyError(f"start={given!r} names no offsets: {{'payments': {{0: 17, 1: 5}}}}")
    if given not in ("earliest", "latest"):
        raise TopologyError(
            f"start is 'earliest', 'latest', a datetime, or offsets by topic and partition, not {given!r}"
        )
    return str(given)


def check_choice(name: str, given: str, allowed: Sequence[str]) -> None:
    """Refuse what is none of a few words."""
    if given not in allowed:
        raise TopologyError(f"{name} is {' or '.join(map(repr, allowed))}, not {given!r}")


def check_bound(name: str, most: int | None) -> None:
    """Refuse what bounds nothing."""
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise TopologyError(f"{name} is a whole number from 1, or None, not {most!r}")


def format_of(value: str, schema: Any, schemas: Mapping[int, Any] | None) -> Format:
    """Return what reads values."""
    if value not in ("bytes", "string", "json", "avro"):
        raise TopologyError(f"KafkaSpout has no values as {value!r}: there are bytes, string, json and avro")
    if (schema is None) != (value in ("bytes", "string")):
        wants = "needs schema=" if schema is None else "have no schema"
        raise TopologyError(f"KafkaSpout: values as {value} {wants}")
    if schemas is not None and value != "avro":
        raise TopologyError("KafkaSpout: schemas= is for values in Avro that begin with the number of one")
    if value == "avro":
        return Avro(schema, schemas)
    if value == "json":
        return Json(schema)
    return Bytes("value") if value == "bytes" else Text("value")
