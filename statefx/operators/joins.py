"""What joins have in common: what they emit, by which fields they join, and what they can't join."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from statefx.errors import TopologyError
from statefx.operators.inputs import Input
from statefx.operators.schema import to_ddl_type

LATE_BY = pa.field("lateBy", pa.float64())
"""Behind the fields of a row that came too late: by how many seconds."""


class Column(NamedTuple):
    """A field of what a join emits."""

    name: str
    side: int
    """Of which of the inputs it is."""
    field: str
    key: int | None = None
    """Which of the fields that are equal on all sides it is, if it was not said of which input."""


def parse_select(select: str | Sequence[str], inputs: Sequence[Input], on: Sequence[Sequence[str]]) -> list[Column]:
    """Return what a join emits; `on` has the fields by which each input is joined.

    Raises
    ------
    TopologyError
        A part of `select` names no field, a field of several inputs, or a name that another part has.

    Examples
    --------
    >>> sides = [Input(name, "default", pa.schema([("id", pa.int64()), ("at", pa.int64())]), "") for name in "ab"]
    >>> [tuple(column) for column in parse_select("id, a.at, b.at as paid", sides, [["id"], ["id"]])]
    [('id', 0, 'id', 0), ('at', 0, 'at', None), ('paid', 1, 'at', None)]
    """
    columns: dict[str, Column] = {}
    for part in select.split(",") if isinstance(select, str) else select:
        found = re.fullmatch(r"\s*(\S.*?)(?:\s+as\s+(\w+))?\s*", part, re.IGNORECASE)
        if found is None:
            raise TopologyError('select names the fields of a pair, as in "orders.id, payments.amount as paid"')
        column = _column(found[1], inputs, on)
        name = found[2] or column.field
        if name in columns:
            raise TopologyError(
                f"select has {name!r} twice: give one another name, as in "
                f'"{inputs[column.side].name}.{column.field} as {inputs[column.side].source}_{column.field}"'
            )
        columns[name] = column._replace(name=name)
    return list(columns.values())


def _column(part: str, inputs: Sequence[Input], on: Sequence[Sequence[str]]) -> Column:
    for side, one in enumerate(inputs):
        field = part.removeprefix(f"{one.name}.")
        if field != part and field in one.schema.names:
            return Column(field, side, field)
    having = [side for side, one in enumerate(inputs) if part in one.schema.names]
    for key, names in enumerate(zip(*on, strict=True)):
        if set(names) == {part}:
            return Column(part, 0, part, key)
    if len(having) == 1:
        return Column(part, having[0], part)
    if not having:
        there = "; ".join(f"{one.name} has {', '.join(one.schema.names)}" for one in inputs)
        raise TopologyError(f"select names {part!r}, which is not there: {there}")
    raise TopologyError(
        f'select names {part!r}, which several inputs have: say of which, as in "{inputs[having[0]].name}.{part}"'
    )


def picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that takes the values at some places out of a tuple, and can be pickled.

    >>> picker([1])("abc"), picker([2, 0])("abc")
    ('b', ('c', 'a'))
    """
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))


def names_of(on: Any, name: str) -> tuple[str, ...]:
    """Return the fields by which an input is joined, as `on` says."""
    if isinstance(on, Mapping):
        if name not in on:
            raise TopologyError(f"on has no field of {name!r}: it names {', '.join(map(repr, on))}")
        on = on[name]
    names = (on,) if isinstance(on, str) else tuple(on)
    if not names or not all(isinstance(one, str) for one in names):
        raise TopologyError(f'on names the fields by which {name!r} is joined, as in on="id" or on=("id", "line")')
    return names


def input_named(name: str, inputs: Sequence[Input]) -> Input:
    """Return the input that a join calls by a name."""
    found = [one for one in inputs if one.name == name]
    if len(found) != 1:
        there = ", ".join(repr(one.name) for one in inputs)
        raise TopologyError(f"it joins {name!r} and reads {there}: read each of its inputs once")
    return found[0]


def check_inputs(inputs: Sequence[Input], pair: Sequence[Input], on: Sequence[Sequence[str]], parallelism: int) -> None:
    """Refuse inputs that can't be joined."""
    if len(inputs) > len(pair):
        other = next(one.name for one in inputs if one not in pair)
        raise TopologyError(f"it reads {other!r} as well, and has no use for it: take the grouping out")
    for given, fields in zip(pair, on, strict=True):
        if given.timestamp is None:
            raise TopologyError(
                f"{given.name!r} has no event time: say which field has it where {given.source!r} is set, as in "
                'timestamp="at"'
            )
        for field in fields:
            check_key(given, field)
    for left, right in zip(*on, strict=True):
        kinds = [to_ddl_type(one.schema.field(name).type) for one, name in zip(pair, (left, right), strict=True)]
        if kinds[0] != kinds[1]:
            raise TopologyError(
                f"it joins {left!r} of {pair[0].name!r}, of type {kinds[0]}, with {right!r} of {pair[1].name!r}, of "
                f"type {kinds[1]}: cast one"
            )
    check_same_task(pair, on, parallelism)


def check_key(given: Input, field: str) -> None:
    """Refuse a field that is no key of a join."""
    if field not in given.schema.names:
        raise TopologyError(
            f"it joins {given.name!r} by {field!r}, a field that it does not have; its fields are "
            f"{', '.join(given.schema.names)}"
        )
    kind = given.schema.field(field).type
    if pa.types.is_floating(kind) or pa.types.is_nested(kind) or kind == pa.timestamp("us"):
        raise TopologyError(
            f"it joins {given.name!r} by {field!r}, of type {to_ddl_type(kind)}, which is no key: cast it to a type "
            "whose values are equal or not, such as bigint, decimal, string or timestamp"
        )


def grouped(pair: Sequence[Input], on: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return, for each field that inputs are joined by, which of their grouping's fields it is; -1: none of them.

    All are -1 if the groupings do not send rows of one key to one task.
    """
    places = [
        [names.index(field) if field in names else None for field in one.fields]
        for one, names in zip(pair, on, strict=True)
    ]
    same = all(one.grouping == "fields" for one in pair) and places[0] == places[1] and None not in places[0]
    return tuple(places[0].index(at) if same and at in places[0] else -1 for at in range(len(on[0])))


def check_same_task(pair: Sequence[Input], on: Sequence[Sequence[str]], parallelism: int) -> None:
    """Refuse groupings that may send the rows of a pair to different tasks."""
    if parallelism == 1 or all(one.grouping == "global" for one in pair) or any(at >= 0 for at in grouped(pair, on)):
        return
    remedy = "".join(
        f".fieldsGrouping({one.source!r}, {', '.join(map(repr, fields))})" for one, fields in zip(pair, on, strict=True)
    )
    raise TopologyError(f"the rows of a pair may come to different tasks: group both inputs by the key, {remedy}")
