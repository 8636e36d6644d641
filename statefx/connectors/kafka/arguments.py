"""What KafkaSpout's arguments may be."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from statefx.connectors.kafka.avro import Avro
from statefx.connectors.kafka.planning import Start, is_named
from statefx.connectors.kafka.rows import COLUMNS
from statefx.connectors.kafka.settings import NAME
from statefx.connectors.kafka.values import Bytes, Format, Json, Text
from statefx.errors import TopologyError

_TOPICS = "topics are a name, a list of names, or a pattern, re.compile('payments-.*')"


def topics_of(given: Any) -> list[str] | re.Pattern[str]:
    """Return names, or a pattern of them."""
    if isinstance(given, re.Pattern):
        if isinstance(given.pattern, bytes):
            raise TopologyError(f"{_TOPICS}, of a text, not {given!r}")
        return given
    if not isinstance(given, str) and (isinstance(given, Mapping | bytes) or not isinstance(given, Collection)):
        raise TopologyError(f"{_TOPICS}, not {given!r}")
    names = [given] if isinstance(given, str) else list(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise TopologyError(f"{_TOPICS}, not {given!r}")
    for name in names:
        if NAME.fullmatch(name) is None:
            hint = "; several names are a list" if "," in name else ""
            raise TopologyError(f"no topic can be called {name!r}: letters, digits, '.', '_' and '-'{hint}. {_TOPICS}")
    if len(set(names)) < len(names):
        raise TopologyError(f"a topic is named twice: {given!r}")
    return names


def start_of(given: Any, topics: Sequence[str] | re.Pattern[str]) -> Start:
    """Return where a first run begins."""
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise TopologyError(f"start={given!r} has no time zone: datetime(..., tzinfo=timezone.utc)")
        return given
    if isinstance(given, Mapping):
        return {topic: _offsets_of(topic, offsets, topics) for topic, offsets in given.items()} or _no_start(given)
    return str(given) if given in ("earliest", "latest") else _no_start(given)


def _no_start(given: Any) -> Start:
    raise TopologyError(
        "start is 'earliest', 'latest', datetime(..., tzinfo=timezone.utc), or offsets by topic and partition, "
        f"{{'payments': {{0: 17, 1: 5}}}}, not {given!r}"
    )


def _offsets_of(topic: Any, offsets: Any, topics: Sequence[str] | re.Pattern[str]) -> dict[int, int]:
    if not is_named(str(topic), topics):
        raise TopologyError(f"start= has offsets of topic {topic!r}, which topics= does not name")
    if not isinstance(offsets, Mapping) or not all(
        isinstance(number, int) and not isinstance(number, bool) and number >= 0
        for pair in offsets.items()
        for number in pair
    ):
        raise TopologyError(
            f"start= has by topic the first offset of each partition, all whole numbers from 0, as in {{'payments': "
            f"{{0: 17, 1: 5}}}}, not {offsets!r}; partitions that it leaves out begin with the earliest"
        )
    return dict(offsets)


def is_target(target: str, servers: str, topics: Sequence[str] | re.Pattern[str]) -> bool:
    """Tell whether one of the topics is where a `KafkaSink` writes, by its `target`."""
    cluster = f"kafka://{servers}/"
    return target.startswith(cluster) and is_named(target.removeprefix(cluster).partition("#")[0], topics)


def columns_of(given: Any, values: Format) -> list[str]:
    """Return which columns are emitted."""
    names = [] if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
    if not names:
        raise TopologyError(f"columns= names what is emitted, as in ('value', 'timestamp'), not {given!r}")
    for name in names:
        if names.count(name) > 1:
            raise TopologyError(f"columns= names {name!r} twice: {given!r}")
        if name not in COLUMNS:
            hint = "; 'value' stands for all fields of schema=" if name in values.schema.names else ""
            raise TopologyError(f"KafkaSpout has no column {name!r}: there are {', '.join(COLUMNS)}{hint}")
    return names


def group_of(given: Any) -> str | None:
    """Return the name of a group, in which the names of application and spout may be left open."""
    if given is None:
        return None
    try:
        if isinstance(given, str) and given.format(application="a", spout="s").strip():
            return given
    except (LookupError, ValueError, AttributeError):
        pass
    raise TopologyError(
        "group is the name of a consumer group, in which {application} and {spout} stand for those of the topology, or "
        f"None, not {given!r}"
    )


def patience_of(given: Any) -> float:
    """Return seconds."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise TopologyError(f"patience is a number of seconds above 0, not {given!r}")
    return float(given)


def check_choice(name: str, given: str, allowed: Sequence[str]) -> None:
    """Refuse what is not one of a few words."""
    if given not in allowed:
        raise TopologyError(f"{name} is {' or '.join(map(repr, allowed))}, not {given!r}")


def check_bound(name: str, most: int | None) -> None:
    """Refuse what is not a bound."""
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise TopologyError(f"{name} is a whole number from 1, or None, not {most!r}")


def format_of(value: str, schema: Any) -> Format:
    """Return what reads values."""
    if value not in ("bytes", "string", "json", "avro"):
        raise TopologyError(f"KafkaSpout has no values as {value!r}: there are bytes, string, json and avro")
    if (schema is None) != (value in ("bytes", "string")):
        wants = (
            f"have no schema, and schema={schema!r} is given: say 'json' or 'avro', or leave it out"
            if schema is not None
            else "need schema=, such as 'account string, amount long'"
            if value == "json"
            else "need schema=, an Avro schema"
        )
        raise TopologyError(f"KafkaSpout: values as {value} {wants}")
    if value == "avro":
        return Avro(schema)
    if value == "json":
        return Json(schema)
    return Bytes("value") if value == "bytes" else Text("value")
