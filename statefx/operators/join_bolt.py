"""The join of the tuples of a window, as Storm's JoinBolt."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from statefx.errors import TopologyError
from statefx.operators.context import DEFAULT_STREAM, Collector
from statefx.operators.inputs import Input, Wired
from statefx.operators.joins import check_key, check_same_task, input_named, parse_select
from statefx.operators.schema import to_ddl, to_ddl_type
from statefx.operators.windows import Window, WindowedBolt


class _Joined(NamedTuple):
    """One input of a join; the first has no `prior`."""

    name: str
    field: str
    prior: str = ""
    outer: bool = False


class JoinBolt(Wired, WindowedBolt):
    """Joins the tuples of several inputs that are in one window and have the same key, as Storm's JoinBolt.

    Give it windows, as any `WindowedBolt`: ``JoinBolt(...).join(...).select(...).withTumblingWindow("1 hour")``.

    Parameters
    ----------
    source : str
        The input that the others are joined with: the id of a component, or ``"id:stream"``.
    field : str
        Its field that the key is in.

    Contract
    --------
    - Of each window each combination of tuples is emitted once. One that sliding windows share is emitted for each.
    - Null is equal to nothing.

    Examples
    --------
    ::

        join = JoinBolt("orders", "id").join("payments", "order", "orders").leftJoin("coupons", "order", "orders")
        join.select("orders.id, payments.cents, coupons.code").withTumblingWindow("1 hour")
        paid = builder.setBolt("paid", join, parallelism=4)
        paid.fieldsGrouping("orders", "id").fieldsGrouping("payments", "order").fieldsGrouping("coupons", "order")
    """

    def __init__(self, source: str, field: str) -> None:
        self._joined = [_Joined(source, field)]
        self._select: str | Sequence[str] = ()

    def join(self, source: str, field: str, prior: str) -> Self:
        """Join one more input, where its `field` equals that of `prior`; tuples without a partner are dropped.

        Raises
        ------
        TopologyError
            The input is joined already, or `prior` is not joined before it.
        """
        return self._add(_Joined(source, field, prior))

    def leftJoin(self, source: str, field: str, prior: str) -> Self:
        """Join one more input as `join` does; where it has no partner, its fields are null."""
        return self._add(_Joined(source, field, prior, outer=True))

    def _add(self, joined: _Joined) -> Self:
        names = [one.name for one in self._joined]
        if joined.name in names:
            raise TopologyError(f"JoinBolt has {joined.name!r} already: let a bolt emit the rows again, and join that")
        if joined.prior not in names:
            raise TopologyError(
                f"JoinBolt joins {joined.name!r} with {joined.prior!r}, which is not joined before it: there are "
                f"{', '.join(names)}"
            )
        self._joined.append(joined)
        return self

    def select(self, fields: str | Sequence[str]) -> Self:
        """Say which fields are emitted: ``"orders.id, payments.cents as paid"``, as of `IntervalJoin`."""
        self._select = fields
        return self

    def wired(self, inputs: Sequence[Input], parallelism: int) -> Self:
        """Return a copy of the bolt that knows its inputs."""
        if len(self._joined) < 2:
            raise TopologyError(
                f'JoinBolt joins {self._joined[0].name!r} with nothing: JoinBolt(...).join("payments", ...)'
            )
        sides = [input_named(one.name, inputs) for one in self._joined]
        if len(inputs) > len(sides):
            other = next(one.name for one in inputs if one not in sides)
            raise TopologyError(f"it reads {other!r} as well, and has no use for it: take the grouping out")
        self._check_fields(sides)
        on = [[one.field] for one in self._joined]
        for side, own in zip(sides[1:], on[1:], strict=True):
            check_same_task([sides[0], side], [on[0], own], 2)  # windows are by key: also in one task
        if not self._select:
            raise TopologyError('say what JoinBolt emits: select("orders.id, payments.cents")')
        bolt = copy.copy(self)
        columns = parse_select(self._select, sides, [[]] * len(sides))
        bolt._numbers = {(one.source, one.stream): number for number, one in enumerate(sides)}
        bolt._places = [(column.side, sides[column.side].schema.names.index(column.field)) for column in columns]
        emitted = [sides[column.side].schema.field(column.field).with_name(column.name) for column in columns]
        may_miss = [self._joined[column.side].outer for column in columns]
        fields = [one.with_nullable(one.nullable or null) for one, null in zip(emitted, may_miss, strict=True)]
        bolt.outputFields = {DEFAULT_STREAM: to_ddl(fields)}
        names = [one.name for one in self._joined]
        bolt._priors = [-1, *(names.index(one.prior) for one in self._joined[1:])]
        bolt._keys = [side.schema.names.index(one.field) for side, one in zip(sides, self._joined, strict=True)]
        return bolt

    def _check_fields(self, sides: Sequence[Input]) -> None:
        for side, one in zip(sides, self._joined, strict=True):
            check_key(side, one.field)
        kinds = [to_ddl_type(side.schema.field(one.field).type) for side, one in zip(sides, self._joined, strict=True)]
        for side, one, kind in zip(sides, self._joined, kinds, strict=True):
            if kind != kinds[0]:
                raise TopologyError(
                    f"it joins {sides[0].name!r} by {self._joined[0].field!r}, of type {kinds[0]}, with {side.name!r} "
                    f"by {one.field!r}, of type {kind}: cast one"
                )

    def execute(self, window: Window, collector: Collector) -> None:
        """Emit the combinations of the tuples of a window."""
        found: list[dict[Any, list[Any]]] = [defaultdict(list) for _ in self._joined]
        for tup in window:
            number = self._numbers.get((tup._source, tup._stream))
            if number is not None:  # else it came from an input that is gone
                found[number][tup[self._keys[number]]].append(tup)
        for key, firsts in found[0].items():
            rows: list[tuple[Any, ...]] = [(tup,) for tup in firsts]
            for number in range(1, len(self._joined)):
                partners = [] if key is None else found[number].get(key, [])
                rows = [(*row, other) for row in rows for other in self._partners(row, number, partners)]
            for row in rows:
                collector.emit(tuple(None if row[side] is None else row[side][place] for side, place in self._places))

    def _partners(self, row: tuple[Any, ...], number: int, partners: list[Any]) -> list[Any]:
        """Return what a row is joined with: of an input that itself had no partner, nothing is."""
        if partners and row[self._priors[number]] is not None:
            return partners
        return [None] if self._joined[number].outer else []

    _numbers: Mapping[tuple[str, str], int]
    _places: Sequence[tuple[int, int]]
    _priors: Sequence[int]
    _keys: Sequence[int]
