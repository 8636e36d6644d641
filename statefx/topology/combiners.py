"""What must hold of a bolt whose input is added up before it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from statefx.errors import TopologyError
from statefx.operators.bolts import Bolt
from statefx.operators.hooks import overrides
from statefx.operators.schema import parse_schema, to_ddl
from statefx.topology.checks import key_types, named, of_component
from statefx.topology.graph import Component
from statefx.topology.groupings import DeclaredInput, Promise


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
            _check_keys(reader, given, schema)
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


def _check_keys(reader: Component, given: DeclaredInput, schema: pa.Schema) -> None:
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
