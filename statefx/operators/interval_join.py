"""`IntervalJoin`: pairs rows of two inputs that have the same key, and times that are near each other.

In state, what waits of a key is one entry: rows of both inputs, nearly always a few, so that a row costs one get and
one put. Rows beyond `TOGETHER_MAX` are entries of their own, ordered by key and time, so that a row of a key with many
of them costs what is in its interval. Beside them are the times of all rows, to find those that are over.
"""

from __future__ import annotations

import copy
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Self

import pyarrow as pa

from statefx.config import SPELLINGS, seconds_of
from statefx.errors import TopologyError
from statefx.operators.bolts import BatchBolt, ReadyMade
from statefx.operators.collector import DEFAULT_STREAM, Collector
from statefx.operators.context import Context
from statefx.operators.inputs import Input, Wired
from statefx.operators.joins import LATE_BY, Column, check_inputs, grouped, input_named, names_of, parse_select, picker
from statefx.operators.schema import parse_schema, to_ddl, to_ddl_type
from statefx.operators.ticks import isTick
from statefx.protocol.log_state import TIMERS_LEFT_MS
from statefx.protocol.topology_identity import StateLayout
from statefx.protocol.watermark import END
from statefx.state.view.time_index import LAST, micros, time_of

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
        return length // timedelta(microseconds=1)
    plain = length.removeprefix("-") if isinstance(length, str) else length
    secs = seconds_of(plain, zero=True)
    if secs is None or (plain != length and len(re.findall(r"[\d.]+", plain)) > 1):  # a sign is of one term
        raise TopologyError(
            "between takes two lengths of time, such as ('0 seconds', '1 hour') or ('-5 minutes', '5 minutes'), each a "
            f"timedelta or written as {SPELLINGS}; {length!r} is none"
        )
    return round(secs * 1e6) * (1 if plain == length else -1)


Kept = tuple[Any, ...]
"""A row that waits: whether it has had a partner, and its values, with its time in microseconds."""


class _Times:
    """The times of the rows of an input that wait, each with the key of its row; in state, in chunks.

    A chunk has the times of one transaction that follow each other, under the first of them; behind that stand the
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
    """What waits of a key: of each input, the rows that are kept together, and how many more are kept apart."""

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
    between : (str or timedelta, str or timedelta)
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
        between: tuple[str | timedelta, str | timedelta],
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
        """Join a row with what is there of the other input, and keep it for what is still to come."""
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
        """Have a row wait."""
        if len(waiting.rows[number]) < TOGETHER_MAX:
            waiting.rows[number].append(kept)
        else:
            self._sides[number].more.put((*key, at, self._context.txid, self._number), (self._version, *kept))
            self._number += 1
            waiting.more[number] += 1
        self._sides[number].times.add(at, key)
        waiting.changed = True

    def _waiting(self, key: tuple[Any, ...]) -> _Waiting:
        """Return what waits of a key."""
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
        """Keep what waits of a key."""
        name, (left, right), more = key if len(key) > 1 else key[0], waiting.rows, waiting.more
        if left or right or any(more):
            # All in one tuple: so state keeps it as it is while the transaction goes on.
            self._keys.put(name, (self._version, *more, len(left), *chain(*left), *chain(*right)))
        else:
            self._keys.delete(name)

    def _more(self, number: int, start: tuple[Any, ...], stop: tuple[Any, ...]) -> list[tuple[Any, Kept]]:
        """Return rows that wait apart, each with its place."""
        return [
            (place, kept if version == self._version else self._reader(version).read(number, tuple(kept)))
            for place, (version, *kept) in self._sides[number].more.items(start, stop)
        ]

    def _reader(self, version: int) -> _Reader:
        if version not in self._readers:
            self._readers[version] = _Reader(self._known[version][:2], self._sides)
        return self._readers[version]

    def _emit_alone(self, number: int, row: tuple[Any, ...], collector: Collector) -> None:
        """Emit a row that has no partner."""
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
                self.due_ms = TIMERS_LEFT_MS
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
        """Drop rows of an input, and emit those that had no partner; tell whether none are left to drop."""
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
