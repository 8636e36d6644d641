"""Checks of a topology before Spark starts; every refusal names the thing and the remedy."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statefx.config import INT_MAX, NAME, NOT_WRITTEN, SPELLINGS, is_name, micros_of
from statefx.errors import ConfigError, TopologyError
from statefx.operators.bolts import Bolt, Stateful
from statefx.operators.context import DEFAULT_STREAM
from statefx.operators.dead_letters import DEAD_LETTER
from statefx.operators.hooks import overrides
from statefx.operators.joins import IntervalJoin, Wired
from statefx.operators.schema import declared_schemas, parse_schema, parse_streams, to_ddl, to_ddl_type
from statefx.operators.sinks import Sink
from statefx.operators.spouts import ReplayingSpout, Spout
from statefx.operators.windows import WindowedBolt
from statefx.state.encoding import options as encodings
from statefx.state.encoding.options import Encoding
from statefx.state.encoding.values import VERSION_MAX
from statefx.topology.graph import Component, ComponentKind, DeclaredInput, Edge, Promise, Topology

if TYPE_CHECKING:
    from statefx.config import Config

ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
ID_LENGTH_MAX = 128
"""File systems take names of 255 bytes; an id is also part of longer ones."""

PARALLELISM_MAX = 100_000
"""A typing error rather than a wish: each task takes a slot of Spark."""


def check_name(name: Any) -> None:
    """Refuse what can't name a topology."""
    if not is_name(name):
        raise TopologyError(f"the name of a topology is {NAME}, not {name!r}")


def check_micros(length: Any, what: str, *, zero: bool = False) -> int:
    """Return a length of time in microseconds; TopologyError, which names `what`, if it is none."""
    micros = micros_of(length, zero=zero)
    if micros is None:
        above = "" if zero else "above 0, and "
        raise TopologyError(f"{what} is a time, such as {SPELLINGS}; {NOT_WRITTEN}; {above}not {length!r}")
    return micros


def check_tick_secs(id: str, secs: Any) -> None:
    """Refuse what is no period of ticks."""
    is_number = isinstance(secs, (int, float)) and not isinstance(secs, bool)
    if not (is_number and 0 < secs <= INT_MAX):
        raise TopologyError(
            f"bolt {id!r}: setTicks takes a number of seconds, more than 0 and at most {INT_MAX}, as in setTicks(5); "
            f"not {secs!r}",
            component=id,
        )


def check_id(id: Any, taken: Iterable[str]) -> None:
    """Refuse an id that can't name a folder, or is taken."""
    if not isinstance(id, str) or not ID.fullmatch(id) or id.startswith("__") or len(id) > ID_LENGTH_MAX:
        raise TopologyError(
            f"{id!r} can't be a component's id, because it names a folder: use letters, digits, '_', '-' and '.', "
            f"not beginning with '.' or '__', at most {ID_LENGTH_MAX} of them",
            component=id,
        )
    for other in taken:
        if other == id:
            raise TopologyError(f"the id {id!r} is already used; give every stream and bolt its own", component=id)
        if other.lower() == id.lower():  # an id names a folder: on such a system two bolts would share their state
            raise TopologyError(
                f"the ids {other!r} and {id!r} differ only in capitals, which not every file system tells apart; "
                f"rename one",
                component=id,
            )


def stream_schema(id: str, dataframe: Any) -> pa.Schema:
    """Return the Arrow schema of a DataFrame."""
    if isinstance(dataframe, type) or not (hasattr(dataframe, "schema") and hasattr(dataframe, "isStreaming")):
        raise TopologyError(
            f"stream {id!r} is {_kind(dataframe)}, not a DataFrame; pass one, such as spark.readStream.text(...)",
            component=id,
        )
    try:
        schema = parse_schema(dataframe.schema)
    except TopologyError as error:
        raise of_component(error, f"stream {id!r}", id) from None
    if not schema.names:
        raise TopologyError(f"stream {id!r} has no columns; select at least one", component=id)
    return schema


def check_bolt(id: str, bolt: Any, parallelism: Any) -> None:
    """Refuse what isn't a bolt, and a parallelism that isn't a number of tasks."""
    check_operator("bolt", id, bolt, (Bolt,), "derive its class from BasicBolt or StatefulBolt", parallelism)
    if isinstance(bolt, Stateful):
        _check_version(id, bolt)
        _check_state_schema(id, bolt)


def check_operator(kind: str, id: str, given: Any, bases: tuple[type, ...], remedy: str, parallelism: Any) -> None:
    """Refuse what isn't an object of one of the classes, and a parallelism that isn't a number of tasks."""
    if isinstance(given, type) and issubclass(given, bases):
        raise TopologyError(
            f"{kind} {id!r} is the class {given.__name__}; pass an object: {given.__name__}(...)", component=id
        )
    if not isinstance(given, bases):
        raise TopologyError(f"{kind} {id!r} is {_kind(given)}, not a {kind.title()}; {remedy}", component=id)
    if not isinstance(parallelism, int) or isinstance(parallelism, bool) or not 1 <= parallelism <= PARALLELISM_MAX:
        raise TopologyError(
            f"{kind} {id!r}: parallelism is a whole number from 1 to {PARALLELISM_MAX}, not {parallelism!r}",
            component=id,
        )


def check_sinks(components: Mapping[str, Component], edges: Sequence[Edge]) -> None:
    """Refuse inputs of a sink that have different fields, rows that it can't hold, and sinks that can't be together."""
    sinks: dict[str, Sink] = {}
    for component in components.values():
        if not isinstance(component.operator, Sink):
            continue
        first, *others = [edge for edge in edges if edge.target == component.id]
        schema = components[first.source].outputs[first.stream]
        for edge in others:
            other = components[edge.source].outputs[edge.stream]
            if not other.equals(schema):
                raise TopologyError(
                    f"sink {component.id!r} reads {first.source!r} ({to_ddl(schema)}) and {edge.source!r} "
                    f"({to_ddl(other)}): the rows of a sink have the same fields. Use two sinks, or a bolt "
                    "between",
                    component=component.id,
                )
        try:
            component.operator.check_schema(schema)
        except TopologyError as error:
            raise of_component(error, named(component), component.id) from None
        for id, sink in sinks.items():
            if (why := sink.conflict(component.operator)) is not None:
                raise TopologyError(f"the sinks {id!r} and {component.id!r} {why}", component=component.id)
        sinks[component.id] = component.operator


def check_loops(components: Iterable[Component], wanted: Collection[str]) -> None:
    """Refuse spouts that read what a sink of the same topology writes, other than the sinks that are `wanted` so."""
    operators = [(component.id, component.operator) for component in components]
    spouts = [(id, operator) for id, operator in operators if isinstance(operator, ReplayingSpout | Spout)]
    sinks = [(id, operator.target) for id, operator in operators if isinstance(operator, Sink) and id not in wanted]
    for (spout, operator), (sink, target) in product(spouts, sinks):
        if operator.reads(target):
            raise TopologyError(
                f"sink {sink!r} writes to {target}, and spout {spout!r} reads it: the topology would be fed with its "
                f"own output, without end. Give the sink another target, or let the spout leave this one out. If that "
                f"is wanted, as for rows that are tried again later: setSink({sink!r}, ..., loop=True)",
                component=sink,
                source=spout,
            )


def _check_state_schema(id: str, bolt: Stateful) -> None:
    try:
        declared_schemas(bolt.stateSchema)
    except ConfigError as error:
        raise TopologyError(f"bolt {id!r}: {type(bolt).__name__}: {error.message}", component=id) from None


def _check_version(id: str, bolt: Stateful) -> None:
    version: Any = bolt.stateVersion
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION_MAX:
        raise TopologyError(
            f"bolt {id!r}: stateVersion of {type(bolt).__name__} is a whole number from 1 to {VERSION_MAX}, "
            f"not {version!r}",
            component=id,
        )
    given = [hook for hook in _OF_VERSIONS if overrides(type(bolt), hook)]
    if version == 1 and given:
        raise TopologyError(
            f"bolt {id!r}: {given[0]} of {type(bolt).__name__} would never be called, because there is no version "
            f"before 1; set stateVersion to 2 or more, or take {given[0]} out",
            component=id,
        )
    own = [hook for hook in given if hook != "migrateState"]
    if own and isinstance(bolt, WindowedBolt | IntervalJoin):
        kept = "a windowed bolt keeps of its windows" if isinstance(bolt, WindowedBolt) else "a join keeps"
        raise TopologyError(
            f"bolt {id!r}: {own[0]} of {type(bolt).__name__} would never be called: what {kept} lies under statefx's "
            "own keys, and is upgraded by migrateState alone",
            component=id,
        )


_OF_VERSIONS = ("migrateState", "migrateKey", "downgradeState", "downgradeKey")
"""Hooks that are of no use without a version before."""


def streams_of(kind: str, id: str, operator: Bolt | ReplayingSpout | Spout) -> dict[str, pa.Schema]:
    """Return the schemas of the streams that a bolt or a spout emits."""
    try:
        return parse_streams(operator.outputFields)
    except TopologyError as error:
        raise of_component(error, f"{kind} {id!r}: outputFields of {type(operator).__name__}", id) from None


def of_component(error: TopologyError, where: str, id: str) -> TopologyError:
    """Return an error of a schema as one that says where the schema stands."""
    return TopologyError(f"{where}: {error.message}", **{**error.data, "component": id})


def check_streams(name: str, components: Sequence[Component]) -> None:
    """Refuse a topology without a stream, and DataFrames that can't run in one query."""
    if any(component.kind is ComponentKind.SPOUT for component in components):
        return
    streams = [component for component in components if component.is_stream]
    if not streams:
        raise TopologyError(
            f"topology {name!r} has no stream; add a DataFrame with setStream, or a spout with setSpout"
        )
    first = streams[0]
    for other in streams[1:]:
        if first.dataframe.isStreaming != other.dataframe.isStreaming:
            live, batch = (first, other) if first.dataframe.isStreaming else (other, first)
            raise TopologyError(
                f"{live.id!r} is a streaming DataFrame and {batch.id!r} a batch one; one topology takes one kind. "
                f"Read both with readStream, or both with read.",
                components=(live.id, batch.id),
            )
        if getattr(first.dataframe, "sparkSession", None) is not getattr(other.dataframe, "sparkSession", None):
            raise TopologyError(
                f"the DataFrames {first.id!r} and {other.id!r} belong to different sessions; "
                f"make both with the session that is given to submit",
                components=(first.id, other.id),
            )


def check_sources(id: str, components: Mapping[str, Component], inputs: Sequence[DeclaredInput]) -> None:
    """Refuse a bolt or sink without inputs, and inputs from components that aren't there."""
    reader = named(components[id])
    if not inputs:
        setter = f"set{components[id].kind.title()}"
        raise TopologyError(
            f"{reader} has no input; chain a grouping to its {setter}, such as .shuffleGrouping(...)", component=id
        )
    _check_twice(reader, id, inputs)
    for given in inputs:
        if given.source not in components:
            raise TopologyError(
                f"{reader} reads {given.source!r}, which is not in the topology; {_nearest(given.source, components)}",
                component=id,
                source=given.source,
            )


def check_inputs(id: str, components: Mapping[str, Component], inputs: Sequence[DeclaredInput]) -> None:
    """Refuse inputs from streams that aren't there, and groupings that do not fit them."""
    reader = named(components[id])
    for given in inputs:
        source = components[given.source]
        if given.stream not in source.outputs:
            there = f"its streams are {', '.join(source.outputs)}" if source.outputs else "it emits nothing"
            raise TopologyError(
                f"{reader} reads stream {given.stream!r} of {source.id!r}, which does not declare it ({there}). "
                f"{_remedy(source, given.stream)}",
                component=id,
                source=source.id,
                stream=given.stream,
            )
        if source.is_stream and given.grouping.promise is Promise.NAMED:
            raise TopologyError(
                f"{reader} reads {source.id!r} by directGrouping, but a DataFrame names no tasks; use another "
                f"grouping, or a bolt between them that emits with task=",
                component=id,
                source=source.id,
            )
        _check_fields(reader, id, given, source.outputs[given.stream])


def check_broadcast(reader: Component, inputs: Sequence[DeclaredInput]) -> None:
    """Refuse a reader by broadcastGrouping that can't keep what it is sent, or has nothing to use it for."""
    rules = next((given.source for given in inputs if given.grouping.broadcast), None)
    hears = overrides(type(reader.operator), "executeBroadcast")
    kind = type(reader.operator).__name__
    if rules is None:
        if hears:
            raise TopologyError(
                f"{named(reader)}: executeBroadcast of {kind} would never be called: read what it is for with "
                "broadcastGrouping, or take the method out",
                component=reader.id,
            )
        return
    if not isinstance(reader.operator, Stateful):
        why = f"{kind} keeps no state, and what comes by broadcastGrouping is kept in state alone: "
        remedy = (
            "derive it from StatefulBolt, or use allGrouping"
            if reader.kind is ComponentKind.BOLT
            else "use allGrouping"
        )
    elif isinstance(reader.operator, WindowedBolt):
        why = f"{kind} puts all of its input into windows: "
        remedy = "let a bolt behind it go by them"
    elif not hears:
        why = f"{kind} does not say what becomes of its rows: "
        remedy = "define def executeBroadcast(self, tup, collector), or use allGrouping"
    elif reader.combines:
        why = f"{kind} has its input added up before it is sent: "
        remedy = "let a bolt behind it, or before it, read them"
    elif all(given.grouping.broadcast for given in inputs):
        why = "it has no other input, so no row would ever be judged by what comes: "
        remedy = "chain a grouping of the rows, such as fieldsGrouping, or use allGrouping and execute"
    else:
        return
    raise TopologyError(
        f"{named(reader)} reads {rules!r} by broadcastGrouping, but {why}{remedy}", component=reader.id, source=rules
    )


def _check_twice(reader: str, id: str, inputs: Sequence[DeclaredInput]) -> None:
    """Refuse an input that is declared twice: every row would come twice, and every count be doubled."""
    for given, count in Counter(inputs).items():
        if count > 1:
            raise TopologyError(
                f"{reader} reads stream {given.stream!r} of {given.source!r} by {given.grouping} grouping {count} "
                f"times: every row would come {count} times. Declare it once.",
                component=id,
                source=given.source,
                stream=given.stream,
            )


def check_edges(components: Mapping[str, Component], edges: Sequence[Edge]) -> None:
    """Refuse streams that nobody reads or nobody can share out, and keys of different types that meet in one bolt."""
    read = {edge.source for edge in edges}
    for component in components.values():
        if component.kind in (ComponentKind.STREAM, ComponentKind.SPOUT) and component.id not in read:
            raise TopologyError(
                f"nobody reads the {component.kind} {component.id!r}; give a bolt a grouping of it, or take it out",
                component=component.id,
            )
    # Each keyed input is compared with the first one of its consumer: equality is transitive, so no pair is left out.
    first: dict[str, Edge] = {}
    for edge in edges:
        if edge.grouping.by_key:
            _check_same_types(components, first.setdefault(edge.target, edge), edge)


def _check_fields(reader: str, id: str, given: DeclaredInput, schema: pa.Schema) -> None:
    for name in given.grouping.fields:
        if name not in schema.names:
            raise TopologyError(
                f"{reader} groups {given.source!r} by {name!r}, a field that it doesn't have; its fields are "
                f"{', '.join(schema.names)}",
                component=id,
                source=given.source,
                field=name,
            )
        if _holds_map(schema.field(name).type):
            raise TopologyError(
                f"{reader} groups {given.source!r} by {name!r}, which holds a map; a map has no hash. Group by a "
                f"value taken out of it.",
                component=id,
                source=given.source,
                field=name,
            )


def encodings_of(topology: Topology, config: Config) -> dict[str, Encoding]:
    """Return how the keys and values of each stateful bolt become bytes; called on the driver.

    ConfigError: an option or bolt is unknown, options exclude each other, or a class won't do.
    """
    found = encodings.parse(config.state_encoding, {one.id: one.stateful for one in topology.components})
    for component in topology.components:
        encoding = found.get(component.id, Encoding())
        is_windowed = isinstance(component.operator, WindowedBolt)
        own = encoding.own if is_windowed else encoding.classes  # a user's bolt may have typed state beside its windows
        if own and (is_windowed or isinstance(component.operator, Wired)):
            kept = "has windows, which are kept" if is_windowed else "is ready-made, and keeps its state"
            raise ConfigError(  # what a codec hides must not lie there openly
                f"bolt {component.id!r} {kept} in statefx's own form and not by {next(iter(own))}"
                f': give it none, as in {{"components": {{{component.id!r}: {{}}}}}} beside the options of the others',
                component=component.id,
            )
    return found


def _check_same_types(components: Mapping[str, Component], first: Edge, other: Edge) -> None:
    left, right = (
        key_types(components[edge.source].outputs[edge.stream], edge.grouping.fields) for edge in (first, other)
    )
    if left != right:
        raise TopologyError(
            f"{named(components[first.target])} groups {first.source!r} by {first.grouping} of type "
            f"({', '.join(left)}) and "
            f"{other.source!r} by {other.grouping} of type ({', '.join(right)}). Equal keys of different types have "
            f"different hashes, and would go to different tasks: cast one side, or use two bolts.",
            component=first.target,
            sources=(first.source, other.source),
        )


def key_types(schema: pa.Schema, fields: Sequence[str]) -> list[str]:
    """Return the types of the fields that rows are grouped by, as far as the hash of a key depends on them."""
    # Whether nulls are allowed has no part in the hash.
    return [to_ddl_type(schema.field(name).type).replace(" NOT NULL", "") for name in fields]


def _holds_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_holds_map(kind.field(number).type) for number in range(kind.num_fields))


def named(component: Component) -> str:
    """Name a component in a message."""
    return f"{component.kind} {component.id!r}"


def _nearest(name: str, known: Iterable[str]) -> str:
    return f"the nearest id is {difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]!r}"


def _remedy(source: Component, stream: str) -> str:
    if stream == DEAD_LETTER and source.kind is ComponentKind.BOLT:
        return f'If it is for rows of which it raises an error: onError="{DEAD_LETTER}" where it is set.'
    if source.is_stream:
        return f"A DataFrame has the stream {DEFAULT_STREAM!r} only."
    if isinstance(source.operator, WindowedBolt):
        return f"If it is for its late tuples: .withLateTupleStream({stream!r}); else add it to its outputFields."
    if isinstance(source.operator, Wired):
        return "It has no others."
    if not source.outputs and stream == DEFAULT_STREAM:
        return f'Declare what {type(source.operator).__name__} emits: outputFields = "word string, count long".'
    return f"Add it to outputFields of {type(source.operator).__name__}: {{{stream!r}: ...}}."


def _kind(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"of type {type(thing).__name__}"
