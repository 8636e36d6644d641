"""Joins: `IntervalJoin` of rows whose times are near each other, `JoinBolt` of the tuples of one window.

In the state of an `IntervalJoin`, what waits of a key is one entry: rows of both inputs, nearly always a few, so that a
row costs one get and one put. Rows beyond `TOGETHER_MAX` are entries of their own, ordered by key and time, so that a
row of a key with many of them costs what is in its interval. Beside them are the times of all rows, to find those that
are over.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple, Self

import pyarrow as pa

from statefx.config import MICROSECOND, NOT_WRITTEN, SPELLINGS, Span, micros_of
from statefx.errors import TopologyError
from statefx.operators.bolts import BatchBolt, ReadyMade
from statefx.operators.context import DEFAULT_STREAM, Collector, Context
from statefx.operators.schema import parse_schema, to_ddl, to_ddl_type
from statefx.operators.tuples import isTick
from statefx.operators.windows import Window, WindowedBolt
from statefx.protocol.log_state import TIMERS_LEFT_MS
from statefx.protocol.topology_identity import StateLayout
from statefx.protocol.watermark import BEGINNING, END
from statefx.state.view.time_index import LAST, micros, time_of

# What both have in common: what they emit, by which fields they join, and what they can't join.


@dataclass(frozen=True, eq=False)
class Input:
    """One grouping of a bolt."""

    source: str
    stream: str
    schema: pa.Schema
    grouping: str  # its kind
    fields: tuple[str, ...] = ()  # by which it groups, if it does
    timestamp: str | None = None  # the field that has the event time, if somebody has said which

    @property
    def name(self) -> str:
        """Its name, as users write it: ``"orders"``, or ``"parse:orders"`` for a stream that has a name.

        >>> Input("parse", "orders", pa.schema([]), "global").name
        'parse:orders'
        """
        return self.source if self.stream == DEFAULT_STREAM else f"{self.source}:{self.stream}"


class Wired(ABC):
    """A bolt whose streams depend on what it reads; its ``outputFields`` are known when the topology is made."""

    @abstractmethod
    def wired(self, inputs: Sequence[Input], parallelism: int) -> Self:
        """Return a copy of the bolt that knows its inputs, and has ``outputFields``; TopologyError: they do not fit."""


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


# IntervalJoin

EXPIRED_MAX = 100_000
"""Rows of an input that a task drops in one transaction: after a long pause millions may be over, and what is dropped
is in memory until it is prepared. The next transaction drops those that follow."""

CHUNK = 100
"""Times that are kept together."""

TOGETHER_MAX = 8
"""Rows of a key and an input that are kept together, and are read and written at once. More of them are kept apart."""

_NEVER = -(1 << 62)
"""Up to when rows were dropped in a task that has dropped none: before all times."""

_READ_AHEAD = 10
_OUTER = {None: (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}
_LATE = ("lateLeft", "lateRight")
_UNMATCHED = ("unmatchedLeft", "unmatchedRight")


def interval_micros(length: Any) -> int:
    """Return a length of time, which may be negative, in microseconds.

    >>> interval_micros("-5 minutes"), interval_micros(timedelta(seconds=1)), interval_micros("0 seconds")
    (-300000000, 1000000, 0)
    """
    if isinstance(length, timedelta):
        return length // MICROSECOND
    plain = length.removeprefix("-") if isinstance(length, str) else length
    micros = micros_of(plain, zero=True)
    if micros is None or (plain != length and len(re.findall(r"[\d.]+", plain)) > 1):  # a sign is of one term
        raise TopologyError(
            "between takes two lengths of time, such as ('0 seconds', '1 hour') or ('-5 minutes', '5 minutes'), each "
            f"written as {SPELLINGS}; {NOT_WRITTEN}; {length!r} is none"
        )
    return micros if plain == length else -micros


Kept = tuple[Any, ...]
"""A row that waits: whether it has had a partner, and its values, with its time in microseconds."""


class _Times:
    """The times of the waiting rows of an input, each with the key of its row; in state, in chunks.

    A chunk has the times of one transaction that follow each other, under the first of them; after that stand the
    transaction, the task, and a number, so that no two tasks of the bolt ever have the same. An entry for each time
    would cost as much as the row itself.
    """

    def __init__(self, entries: Any, width: int) -> None:
        self._entries = entries
        self._step = width + 1
        self._new: list[tuple[int, tuple[Any, ...]]] = []

    def add(self, at: int, key: tuple[Any, ...]) -> None:
        """Add a time."""
        self._new.append((at, key))

    def store(self, txid: int, task: int) -> None:
        """Put what was added into state, in chunks."""
        self._new.sort(key=itemgetter(0))
        for number, first in enumerate(range(0, len(self._new), CHUNK)):
            some = self._new[first : first + CHUNK]
            place = some[0][0], txid, task, number
            self._entries.put(place, tuple(value for at, key in some for value in (at, *key)))
        self._new.clear()

    def take(self, start: int | None, stop: int) -> Iterator[list[tuple[Any, ...]]]:
        """Remove the times before `stop`, of which none is before `start`; yield keys that had some, in parts."""
        begin: Any = None if start is None else (start,)
        while found := list(islice(self._entries.items(begin, (stop,)), _READ_AHEAD)):
            keys: dict[tuple[Any, ...], None] = {}
            for place, chunk in found:
                self._entries.delete(place)
                times = chunk[:: self._step]
                over = bisect_left(times, stop)
                keys |= dict.fromkeys(chunk[at + 1 : at + self._step] for at in range(0, over * self._step, self._step))
                if over < len(times):
                    self._entries.put((times[over], *place[1:]), chunk[over * self._step :])
            begin = place  # not from the beginning: a scan passes over all that is deleted
            yield list(keys)


class _Side:
    """One input of a join."""

    def __init__(self, name: str, given: Input, on: Sequence[str], low: int, high: int) -> None:
        assert given.timestamp is not None
        self.name = name
        self.schema = given.schema
        self.nulls = (None,) * len(given.schema)
        self.time = given.schema.names.index(given.timestamp)
        self.key_of = picker([given.schema.names.index(field) for field in on])
        # Its partners' times are from `low` to `high` beyond its own.
        self.low, self.high = low, high
        self.form = [to_ddl(given.schema), given.timestamp, *on]
        """What rows that wait are understood by."""

    def take(self, state: Any) -> None:
        """Take what the task has kept of it; called in ``initState``."""
        self.more = state.map(self.name)
        self.times = _Times(state.map(f"{self.name}Times"), len(self.form) - 2)

    def kept(self, row: tuple[Any, ...], at: int, paired: bool) -> Kept:
        """Return a row as it waits."""
        return (paired, *row[: self.time], at, *row[self.time + 1 :])

    def values(self, kept: Kept) -> tuple[Any, ...]:
        """Return a row that has waited as it came."""
        time = self.time + 1
        return (*kept[1:time], time_of(kept[time]), *kept[time + 1 :])


class _Waiting:
    """The waiting rows of a key: of each input, those that are kept together, and how many more are kept apart."""

    __slots__ = ("changed", "more", "rows")

    def __init__(self, rows: tuple[list[Kept], list[Kept]], more: list[int]) -> None:
        self.rows = rows
        self.more = more
        self.changed = False


Forms = Sequence[Sequence[str]]
"""What the rows that wait are understood by: of each input the fields, which has the time, and which are the key; and
the names of the inputs."""


class _Reader:
    """Reads rows that were kept when the inputs had other fields."""

    def __init__(self, older: Forms, sides: Sequence[_Side]) -> None:
        had = [parse_schema(form[0]).names for form in older]
        self.widths = [len(names) + 1 for names in had]
        self._places = [
            [names.index(field) + 1 if field in names else 0 for field in side.schema.names]
            for names, side in zip(had, sides, strict=True)
        ]

    def read(self, number: int, kept: Kept) -> Kept:
        """Return a row of an input with the fields of now; null where it had none."""
        return (kept[0], *(kept[place] if place else None for place in self._places[number]))


def _check_form(side: _Side, older: Sequence[str]) -> None:
    """Refuse an input that differs too much from what it was when rows were kept that still wait."""
    now = side.form
    if older[1:] != now[1:]:
        raise TypeError(
            f"the {side.name} input is joined by {', '.join(now[2:])} and has its time in {now[1]}; rows wait that "
            f"were joined by {', '.join(older[2:])}, with their time in {older[1]}. Leave that as it was, or start on "
            "a new checkpoint"
        )
    schema = parse_schema(older[0])
    for field in side.schema:
        if field.name not in schema.names:
            if not field.nullable:
                raise TypeError(
                    f"the {side.name} input has a new field {field.name!r} that is never null, and rows wait that do "
                    "not have it: make it nullable"
                )
        elif to_ddl_type(field.type) != (before := to_ddl_type(schema.field(field.name).type)):
            raise TypeError(
                f"the field {field.name!r} of the {side.name} input was {before} and is {to_ddl_type(field.type)} now, "
                "and rows wait that have it: give the new field another name"
            )


class IntervalJoin(Wired, ReadyMade, BatchBolt):
    """Joins rows of two inputs that have the same key, and times that are near each other.

    A pair is ``left.at + lower <= right.at <= left.at + upper``, by the event times of both inputs. Each row waits in
    state until the watermark says that no more partners of it can come.

    Parameters
    ----------
    left, right : str
        The ids of two components, or ``"id:stream"`` for a stream that has a name.
    on : str, sequence of str, or mapping
        The fields that are equal in a pair; ``{"orders": "id", "payments": "order"}`` if their names differ.
    between : two of Duration, str or timedelta
        How much later than the left row the right one is, at least and at most, such as ``("-5 minutes", "1 hour")``.
        Both are included; times are compared in microseconds.
    select : str or sequence of str
        The fields of a pair, ``"orders.id, payments.amount as paid"``. The name of the input may be left out if one
        input alone has the field, or if both are joined by it.
    outer : {"left", "right", "full"}, optional
        Whose rows are emitted without a partner as well, when none can come any more: with null for the fields of the
        other side.

    Raises
    ------
    TopologyError
        The arguments do not fit each other; ``createTopology`` refuses those that do not fit the inputs.

    Contract
    --------
    - Each pair is emitted once. Rows that are equal are rows of their own.
    - A left row is dropped when the watermark is beyond its time + `upper`, a right one when it is beyond its time -
      `lower`. If it had no partner, it is emitted to ``unmatchedLeft`` or ``unmatchedRight``, as it came.
    - A row that is older than the watermark is late: partners of it may be gone. It is emitted to ``lateLeft`` or
      ``lateRight``, with ``lateBy`` in seconds behind its fields, and is joined with nothing.
    - A row whose time is null, or a field of whose key, has no partners: it is unmatched at once.
    """

    _grouped: tuple[int, ...] = ()
    """For each field of `on`, which of the groupings' fields it is; -1: none of them."""

    _sides: tuple[_Side, _Side]
    _numbers: Mapping[tuple[str, str], int]
    _pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    _pick_right: Callable[[tuple[Any, ...]], tuple[Any, ...]]

    def __init__(
        self,
        left: str,
        right: str,
        on: str | Sequence[str] | Mapping[str, str | Sequence[str]],
        between: tuple[Span, Span],
        select: str | Sequence[str],
        outer: str | None = None,
    ) -> None:
        if left == right:
            raise TopologyError(
                f"IntervalJoin has {left!r} on both sides: let a bolt emit the rows again, and join with that"
            )
        if isinstance(between, str) or len(between) != 2:
            raise TopologyError(f"between takes two lengths of time, such as ('0 seconds', '1 hour'), not {between!r}")
        self._between = lower, upper = tuple(map(interval_micros, between))
        if lower > upper:
            raise TopologyError(f"between has its lower bound first: ({between[1]!r}, {between[0]!r})")
        if outer not in _OUTER:
            raise TopologyError(f"outer is 'left', 'right', 'full' or None, not {outer!r}")
        self._names, self._select, self._alone = (left, right), select, _OUTER[outer]
        self._on = [names_of(on, name) for name in self._names]
        if len(self._on[0]) != len(self._on[1]):
            raise TopologyError(f"on has as many fields of {left!r} as of {right!r}, not {on!r}")

    def wired(self, inputs: Sequence[Input], parallelism: int) -> Self:
        """Return a copy of the bolt that knows its inputs."""
        pair = [input_named(name, inputs) for name in self._names]
        check_inputs(inputs, pair, self._on, parallelism)
        lower, upper = self._between
        bolt = copy.copy(self)
        bolt._grouped = grouped(pair, self._on)
        bolt._sides = (
            _Side("left", pair[0], self._on[0], lower, upper),
            _Side("right", pair[1], self._on[1], -upper, -lower),
        )
        bolt._numbers = {(one.source, one.stream): number for number, one in enumerate(pair)}
        columns = parse_select(self._select, pair, self._on)
        bolt._pick = picker([self._place(column, pair, column.side) for column in columns])
        bolt._pick_right = picker([self._place(column, pair, 1) for column in columns])
        bolt.outputFields = {DEFAULT_STREAM: to_ddl([self._field(column, pair) for column in columns])}
        for one, given in zip(("Left", "Right"), pair, strict=True):
            bolt.outputFields[f"unmatched{one}"] = to_ddl(given.schema)
            bolt.outputFields[f"late{one}"] = to_ddl([*given.schema, LATE_BY])
        return bolt

    def _place(self, column: Column, pair: Sequence[Input], side: int) -> int:
        """Return where the value of a column stands in the values of both rows; if it may be of either, of `side`."""
        if column.key is None:
            side, field = column.side, column.field
        else:
            field = self._on[side][column.key]
        place: int = pair[side].schema.names.index(field)
        return place + len(pair[0].schema) if side else place

    def _field(self, column: Column, pair: Sequence[Input]) -> pa.Field:
        field = pair[column.side].schema.field(column.field).with_name(column.name)
        may_be_null = self._alone[1 - column.side] and column.key is None
        return field.with_nullable(True) if may_be_null else field

    def _layout(self, fields: int) -> StateLayout:
        keyed = sorted((field, at) for at, field in enumerate(self._grouped) if field >= 0)
        if not keyed:
            return StateLayout(
                "waiting",
                "rows of a join",
                fixed="its inputs are not grouped by the fields that it joins by. Group both by these, start it once "
                "with the tasks of now, and rescale then",
            )
        width, places = len(self._grouped), [at for _, at in keyed]
        in_key, in_row = (tuple((at + behind,) for at in places) for behind in (0, 1))
        sides = {"map left": in_key, "map right": in_key, "map leftTimes": in_row, "map rightTimes": in_row}
        return StateLayout(
            "waiting",
            "rows of a join",
            keys={"": in_key if width > 1 else ((),), **sides},
            rows={"map leftTimes": width + 1, "map rightTimes": width + 1},
            together={"value forms": "longest", "value swept": "least", "value between": "same"},
        )

    def open(self, context: Context) -> None:
        """Take the context."""
        self._context = context

    def initState(self, state: Any) -> None:
        """Take the rows that wait."""
        self.late = self.due_ms = self._number = 0
        self.left = None
        self._keys, self._forms = state, state.value("forms")
        self._noted_swept, self._noted_between = state.value("swept"), state.value("between")
        names = list(self._names)
        form = [*(side.form for side in self._sides), names]
        self._known: list[Forms] = self._forms.get([])
        self._is_new = form not in self._known
        if self._is_new:
            for *older, named in self._known:
                if named == names[::-1]:
                    raise TypeError(
                        f"{names[0]!r} was the right input and {names[1]!r} the left one when rows were kept that "
                        "wait: give them in that order, with the bounds of before"
                    )
                for side, before in zip(self._sides, older, strict=True):
                    _check_form(side, before)
            self._known.append(form)
        self._version = self._known.index(form)
        self._widths = [len(side.schema) + 1 for side in self._sides]
        self._readers: dict[int, _Reader] = {}
        for side in self._sides:
            side.take(state)
        self._noted = swept, between = self._noted_swept.get(), self._noted_between.get()
        self._swept: int | None = None if swept in (None, _NEVER) else swept
        # Where the bounds have changed, it is not known up to which times rows are gone.
        self._start = self._swept if between == self._between else None
        self._watermark = self._now()
        if self._watermark is None:
            self._watermark = self._swept

    def _now(self) -> int | None:
        at = self._context.watermark
        # The last time that Python has stands for all that are beyond it: event time is closed.
        return None if at is None else END if at == LAST else micros(at)

    def execute(self, tup: Any, collector: Collector) -> None:
        """Join a row with the rows of the other input that are there, and keep it for later ones."""
        if isTick(tup):
            return
        number, row = self._numbers[tup._source, tup._stream], tuple(tup)
        side, watermark = self._sides[number], self._watermark
        time, key = row[side.time], side.key_of(row)
        if time is None or None in key:
            self._emit_alone(number, row, collector)
            return
        at = micros(time)
        if watermark is not None and at < watermark:
            self.late += 1
            collector.emit((*row, (watermark - at) / 1e6), stream=_LATE[number])
            return
        waiting, paired = self._waiting(key), False
        for partner in self._partners(1 - number, key, at + side.low, at + side.high, waiting):
            collector.emit(self._pick(partner + row if number else row + partner))
            paired = True
        if watermark is None or at + side.high >= watermark:
            self._keep(number, key, at, side.kept(row, at, paired), waiting)
        elif not paired:
            self._emit_alone(number, row, collector)
        if waiting.changed:
            self._put(key, waiting)

    def _partners(
        self, number: int, key: tuple[Any, ...], low: int, high: int, waiting: _Waiting
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an input that have a key and a time in a range, and note that they have a partner."""
        side, rows = self._sides[number], waiting.rows[number]
        time = side.time + 1
        for place, kept in enumerate(rows):
            if low <= kept[time] <= high:
                if not kept[0]:
                    rows[place], waiting.changed = (True, *kept[1:]), True
                yield side.values(kept)
        if waiting.more[number]:
            for place, kept in self._more(number, (*key, low), (*key, high + 1)):
                if not kept[0]:
                    side.more.put(place, (self._version, True, *kept[1:]))
                yield side.values(kept)

    def _keep(self, number: int, key: tuple[Any, ...], at: int, kept: Kept, waiting: _Waiting) -> None:
        if len(waiting.rows[number]) < TOGETHER_MAX:
            waiting.rows[number].append(kept)
        else:
            self._sides[number].more.put((*key, at, self._context.txid, self._number), (self._version, *kept))
            self._number += 1
            waiting.more[number] += 1
        self._sides[number].times.add(at, key)
        waiting.changed = True

    def _waiting(self, key: tuple[Any, ...]) -> _Waiting:
        record = self._keys.get(key if len(key) > 1 else key[0])
        if record is None:
            return _Waiting(([], []), [0, 0])
        version, left_more, right_more, left_rows = record[:4]
        reader = None if version == self._version else self._reader(version)
        left, right = self._widths if reader is None else reader.widths
        middle = 4 + left_rows * left
        rows = (
            [record[first : first + left] for first in range(4, middle, left)],
            [record[first : first + right] for first in range(middle, len(record), right)],
        )
        if reader is not None:
            for number, some in enumerate(rows):
                some[:] = [reader.read(number, kept) for kept in some]
        return _Waiting(rows, [left_more, right_more])

    def _put(self, key: tuple[Any, ...], waiting: _Waiting) -> None:
        name, (left, right), more = key if len(key) > 1 else key[0], waiting.rows, waiting.more
        if left or right or any(more):
            # All in one tuple: so state keeps it as it is while the transaction goes on.
            self._keys.put(name, (self._version, *more, len(left), *chain(*left), *chain(*right)))
        else:
            self._keys.delete(name)

    def _more(self, number: int, start: tuple[Any, ...], stop: tuple[Any, ...]) -> list[tuple[Any, Kept]]:
        return [
            (place, kept if version == self._version else self._reader(version).read(number, tuple(kept)))
            for place, (version, *kept) in self._sides[number].more.items(start, stop)
        ]

    def _reader(self, version: int) -> _Reader:
        if version not in self._readers:
            self._readers[version] = _Reader(self._known[version][:2], self._sides)
        return self._readers[version]

    def _emit_alone(self, number: int, row: tuple[Any, ...], collector: Collector) -> None:
        collector.emit(row, stream=_UNMATCHED[number])
        if self._alone[number]:
            pick, nulls = self._pick_right if number else self._pick, self._sides[1 - number].nulls
            collector.emit(pick(nulls + row if number else row + nulls))

    def finishBatch(self, collector: Collector) -> None:
        """Drop the rows for which no partner is still to come."""
        for side in self._sides:
            side.times.store(self._context.txid, self._context.task)
        watermark = self._now()
        if watermark is not None and watermark != self._swept:
            drops = [self._drop(number, watermark, collector) for number in (0, 1)]
            if all(drops):
                self._swept = self._start = watermark
            else:
                self.due_ms, self.left = TIMERS_LEFT_MS, BEGINNING if self._swept is None else self._swept
        if self._is_new:
            self._forms.put(self._known)
        # Bounds that have changed are noted when a whole sweep has gone by them: until then it is not known up to which
        # times rows are gone, and whoever looks from `_swept` on would leave the others there for ever.
        known = self._start is not None or self._swept is None
        noted = _NEVER if self._swept is None else self._swept, self._between if known else None
        if noted != self._noted:
            self._noted_swept.put(noted[0])
            self._noted_between.put(noted[1])

    def _drop(self, number: int, watermark: int, collector: Collector) -> bool:
        """Drop rows of an input, and emit those that had no partner; return whether none are left to drop."""
        side, left = self._sides[number], EXPIRED_MAX
        stop = watermark - side.high
        for keys in side.times.take(None if self._start is None else self._start - side.high, stop):
            self._keys.prefetch([key if len(key) > 1 else key[0] for key in keys])
            for key in keys:
                left -= self._drop_of(number, key, stop, collector)
            if left <= 0:
                return False
        return True

    def _drop_of(self, number: int, key: tuple[Any, ...], stop: int, collector: Collector) -> int:
        """Drop the rows of a key whose times are before `stop`; return how many there were."""
        side, waiting = self._sides[number], self._waiting(key)
        own, time = waiting.rows[number], side.time + 1
        over = [kept for kept in own if kept[time] < stop]
        if over:
            own[:] = [kept for kept in own if kept[time] >= stop]
        if waiting.more[number]:
            apart = self._more(number, key, (*key, stop))
            for place, kept in apart:
                side.more.delete(place)
                over.append(kept)
            waiting.more[number] -= len(apart)
        for kept in over:
            if not kept[0]:
                self._emit_alone(number, side.values(kept), collector)
        if over:
            self._put(key, waiting)
        return len(over)


# JoinBolt


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
