"""How windows lie in state, by their kind.

==========================  =====================================  ==================================================
windows of time, a value    (start, key) -> value                  those that have ended are one range
the same, sliding           key -> {pane: value}                   each slide shows each key: one entry of state for it
windows of time, tuples     (pane, key, txid, shape, n) -> rows    a transaction writes what is new, a window is a range
sessions                    key -> [due, [[first, last, value]]]   and (due, key), to find those that have ended
windows of tuples           key -> [number, {block: value}]        given to the bolt when the slide is full
==========================  =====================================  ==================================================

A pane is the greatest common divisor of length and slide: what lies in one pane is in the same windows. What a
transaction changes is held in a dict, so that state is asked once for each key, and not for each row.

Beside them are a task's marks: ``next``, when the first window ends, or earlier; ``passed``, up to which time of the
clock windows have ended; ``shapes``, what the tuples that are kept were understood by. When a bolt gets other tasks,
entries go where their key does, and all tasks get the marks (`statefx.admin.layouts`).
"""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce
from operator import add, itemgetter
from typing import Any

from statefx.errors import CodecError
from statefx.operators.windows import WINDOWS, Layout, Window, WindowedBolt, Windowing, keeps_values
from statefx.state.encoding.values import is_settled, zone_in
from statefx.state.view.changes import Journal
from statefx.state.view.state import MapState
from statefx.state.view.task_state import TaskState, given_back, windows_of
from statefx.state.view.time_index import time_of

BEFORE_ALL = -(1 << 80)
CHUNK_ROWS = 1000
"""Tuples in one entry of state."""


Item = tuple[int, int, Sequence[Any]]
"""A tuple that is kept: its time, the number of its fields' names, and its values."""


class ValuesForm:
    """Keeps the user's own value of a window's tuples."""

    computes = True
    """Whether the user's hooks make a value of the value before."""
    expires = False
    """Whether what has left a window is asked for one slide later."""

    def __init__(
        self,
        bolt: WindowedBolt,
        give: Callable[[Window, Any], None],
        hook: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.init, self.add, self.merge = bolt.initWindow, bolt.addToWindow, bolt.mergeWindows
        self._give, self._hook = give, hook

    def give(self, window: Window, now: Sequence[Any], new: int = 0, expired: Sequence[Any] = ()) -> None:
        """Give a window to the bolt: the values of its parts, the last `new` of them new, and of what has left it."""
        value = now[0]
        if len(now) > 1:
            with self._hook("mergeWindows"):
                value = reduce(self.merge, now[1:], value)
                if value is None:
                    raise forgotten("mergeWindows")
        self._give(window, value)

    def items(self, times: Sequence[Any], tuples: Sequence[Any], shape: int | None) -> Iterable[Any]:
        """Return what is added for each tuple."""
        return tuples

    def own(self, values: list[Any]) -> list[Any]:
        """Return values that other windows share, for one window alone: hooks may change what they are given."""
        return [_copy(one) for one in values]


class RowsForm:
    """Keeps the tuples themselves."""

    computes = False
    expires = True

    def __init__(self, give: Callable[[Window, Sequence[list[Item]]], None]) -> None:
        self.give_rows = give
        self.init: Callable[[], Any] = list
        self.merge: Callable[[Any, Any], Any] = add

    @staticmethod
    def add(value: list[Item], item: Item) -> list[Item]:
        value.append(item)
        return value

    def give(self, window: Window, now: Sequence[Any], new: int = 0, expired: Sequence[Any] = ()) -> None:
        parts = now, now[len(now) - new :], expired
        rows = [[item for part in each for item in part] for each in parts]
        if window.start is not None:
            rows = [sorted(each, key=itemgetter(0)) for each in rows]
        self.give_rows(window, rows)

    def items(self, times: Sequence[Any], tuples: Sequence[Any], shape: int | None) -> Iterable[Any]:
        return zip(times, [shape] * len(tuples), map(tuple, tuples), strict=True)

    def own(self, values: list[Any]) -> list[Any]:
        """Return the items, with copies of those values of their fields that can be changed."""
        return [[(time, shape, _copy(row)) for time, shape, row in items] for items in values]


Form = ValuesForm | RowsForm


def _copy(value: Any) -> Any:
    return value if is_settled(value) else pickle.loads(pickle.dumps(value, -1))


def forgotten(hook: str = "addToWindow") -> TypeError:
    """Return the error of a hook that forgot to return the value."""
    return TypeError(
        f"{hook} returned None: it returns the new value of the window, also if it has changed the old one"
    )


class Kept(ABC):
    """The windows of one task, in one attempt; windows that end at `passed` or before were given to the bolt before."""

    def __init__(self, form: Form, opened: MapState[Any, Any], passed: int) -> None:
        self._form, self._map, self._passed = form, opened, passed
        self._changed: dict[Any, Any] = {}
        self.journal: Journal | None = None
        """While rows are taken that may be taken back: how."""

    @abstractmethod
    def take(self, keys: Sequence[Any], times: Sequence[Any], tuples: list[Any], shape: int | None) -> list[int]:
        """Put tuples into their windows, and return the places of those that are late."""

    @abstractmethod
    def end(self, now: int) -> int | None:
        """Put what has changed into state, give what has ended at `now` to the bolt; return the last end of these."""

    def first_end(self) -> int | None:
        """Return when the first window ends, after `end`; it may be too early. None: there is none."""
        return None

    def _load(self, places: Iterable[Any], fresh: Callable[[], Any]) -> dict[Any, Any]:
        """Return the dict of what changes, with all `places` in it."""
        changed, journal = self._changed, self.journal
        wanted = dict.fromkeys(places)
        missing = [place for place in wanted if place not in changed]
        new = set()
        if missing:
            found = self._map.getAll(missing)
            for place in missing:
                value = found.get(place, _NOTHING)
                if value is _NOTHING:
                    new.add(place)
                changed[place] = fresh() if value is _NOTHING else value
        if journal is not None:  # users change values in place, so that copies are made
            for place in wanted:
                if place in new:
                    journal.append(partial(changed.pop, place, None))
                else:
                    journal.append(partial(changed.__setitem__, place, copy.deepcopy(changed[place])))
        return changed

    def _save(self) -> None:
        self._map.putAll(self._changed)
        for key, value in self._changed.items():
            self._check(key, value)
        self._changed = {}

    def _put(self, key: Any, value: Any) -> None:
        self._map.put(key, value)
        self._check(key, value)

    def _check(self, key: Any, value: Any) -> None:
        """Refuse datetimes whose zone state does not keep, where hooks make a value of the value before.

        A window's value is read from state once in a transaction, however many tuples are added to it: what hooks
        compute would depend on where transactions end.
        """
        zoned = zone_in(value) if self._form.computes else None
        if zoned is None or given_back(self._map, zoned).tzinfo == zoned.tzinfo:  # a codec of one's own may keep it
            return
        raise CodecError(
            f"the window of key {key!r} has {zoned!r} in its value, and state keeps no zone of a place: in the next "
            "transaction it would have the offset of that moment. Return .astimezone(timezone.utc) of it, and give it "
            "the zone in emitWindow",
            path="value",
            type="datetime",
        )


_NOTHING: Any = object()


def _nothing() -> Any:
    return _NOTHING


class Tumbling(Kept):
    """Values of windows that share nothing."""

    def __init__(self, length: int, form: Form, opened: MapState[Any, Any], passed: int) -> None:
        super().__init__(form, opened, passed)
        self._length = self.pane = length
        self._from = None if passed == BEFORE_ALL else (passed - length + 1,)
        self._first = self._look()

    def _look(self) -> int | None:
        """Return the start of the first window; given windows are skipped, for they leave traces."""
        first = next(self._map.items(self._from), None)
        return None if first is None else first[0][0]

    def take(self, keys: Sequence[Any], times: Sequence[Any], tuples: list[Any], shape: int | None) -> list[int]:
        length, passed, add = self._length, self._passed, self._form.add
        starts = [BEFORE_ALL if time is None else time - time % length for time in times]
        late = [at for at, start in enumerate(starts) if start + length <= passed or start == BEFORE_ALL]
        places: list[Any] = list(zip(starts, keys, strict=True))
        for at in late:
            places[at] = None
        changed = self._load((place for place in places if place is not None), self._form.init)
        for place, item in zip(places, self._form.items(times, tuples, shape), strict=True):
            if place is not None:
                value = changed[place] = add(changed[place], item)
                if value is None:
                    raise forgotten()
        return late

    def last_late(self, passed: int) -> int:
        """Return the last start of a window that has ended."""
        return passed - self._length

    def merge(self, keys: Sequence[Any], starts: Sequence[int], values: Sequence[Any]) -> None:
        places = list(zip(starts, keys, strict=True))
        changed = self._load(places, _nothing)
        for place, value in zip(places, values, strict=True):
            before = changed[place]
            changed[place] = value if before is _NOTHING else self._form.merge(before, value)

    def end(self, now: int) -> int | None:
        first = min((start for start, _ in self._changed), default=self._first)
        self._first = first if self._first is None or first is None else min(first, self._first)
        self._save()
        if self._first is None or self._first + self._length > now:
            return None
        start = self._first
        bounds = self._from, (now - self._length + 1,)
        for (start, key), value in self._map.items(*bounds):
            self._form.give(Window(key, time_of(start), time_of(start + self._length)), [value])
        self._map.deleteRange(*bounds)
        self._from = bounds[1]
        self._first = self._look()
        return start + self._length

    def first_end(self) -> int | None:
        return None if self._first is None else self._first + self._length


class Slides:
    """Bounds of windows of a length, of which one begins each slide."""

    def __init__(self, windowing: Windowing) -> None:
        self.length, self.slide, self.pane = windowing.length, windowing.slide, windowing.pane

    def first_end(self, pane: int, after: int) -> int:
        """Return when the first window ends that a pane is in, after a time."""
        length, slide = self.length, self.slide
        return (max(pane - length, after - length) // slide + 1) * slide + length

    def last_end(self, pane: int) -> int:
        """Return when the last window ends that a pane is in."""
        return pane - pane % self.slide + self.length

    def panes(self, times: Sequence[Any], passed: int) -> tuple[list[Any], list[int]]:
        """Return the pane of each time, None if it is late; and the places of those."""
        size, slide, length = self.pane, self.slide, self.length
        panes: list[Any] = [None if time is None else time - time % size for time in times]
        late = [at for at, pane in enumerate(panes) if pane is None or pane - pane % slide + length <= passed]
        for at in late:
            panes[at] = None
        return panes, late


class Sliding(Kept):
    """Values of windows that share panes."""

    def __init__(self, windowing: Windowing, form: Form, opened: MapState[Any, Any], marks: Any, passed: int) -> None:
        super().__init__(form, opened, passed)
        self._slides, self._marks, self.pane = Slides(windowing), marks, windowing.pane
        self._known = self._next = marks.get("next")

    def take(self, keys: Sequence[Any], times: Sequence[Any], tuples: list[Any], shape: int | None) -> list[int]:
        panes, late = self._slides.panes(times, self._passed)
        changed = self._load((key for key, pane in zip(keys, panes, strict=True) if pane is not None), dict)
        form, new = self._form, set()
        for key, pane, item in zip(keys, panes, form.items(times, tuples, shape), strict=True):
            if pane is None:
                continue
            values = changed[key]
            if pane not in values:
                values[pane] = form.init()
                new.add(pane)
            value = values[pane] = form.add(values[pane], item)
            if value is None:
                raise forgotten()
        self._expect(new)
        return late

    def _expect(self, panes: set[int]) -> None:
        if panes:
            first = self._slides.first_end(min(panes), self._passed)
            self._next = first if self._next is None else min(first, self._next)

    def last_late(self, passed: int) -> int:
        """Return the last pane all of whose windows have ended."""
        slides = self._slides
        return (passed - slides.length) // slides.slide * slides.slide + slides.slide - slides.pane

    def merge(self, keys: Sequence[Any], panes: Sequence[int], values: Sequence[Any]) -> None:
        changed, merge = self._load(keys, dict), self._form.merge
        for key, pane, value in zip(keys, panes, values, strict=True):
            own = changed[key]
            own[pane] = merge(own[pane], value) if pane in own else value
        self._expect(set(panes))

    def end(self, now: int) -> int | None:
        self._save()
        due = self._next is not None and self._next <= now
        if due:
            self._fire(now)
        if self._next != self._known:
            self._marks.put("next", self._next)
        return self._slides.first_end(BEFORE_ALL, now) - self._slides.slide if due else None

    def _fire(self, now: int) -> None:
        slides, self._next = self._slides, None
        for key, values in self._map.items():
            panes = sorted(values)
            self._give(key, panes, values, now)
            live = bisect_left(panes, now - slides.length + 1)  # no pane before it is in a later window
            while live < len(panes) and slides.last_end(panes[live]) <= now:
                live += 1
            if live == len(panes):
                self._changed[key] = None
                continue
            first = slides.first_end(panes[live], now)
            self._next = first if self._next is None else min(first, self._next)
            if live * 4 >= len(panes):  # to write an entry costs more than to read it: not with each slide
                self._changed[key] = {pane: values[pane] for pane in panes[live:]}
        for key, values in self._changed.items():
            if values is None:
                self._map.delete(key)
            else:
                self._put(key, values)
        self._changed = {}

    def _give(self, key: Any, panes: list[int], values: dict[int, Any], now: int) -> None:
        slides, at = self._slides, 0
        end = slides.first_end(panes[0], self._passed)
        while end <= now:
            start = end - slides.length
            at = bisect_left(panes, start, at)
            stop = bisect_left(panes, end, at)
            if at < stop:
                parts = self._form.own([values[pane] for pane in panes[at:stop]])
                self._form.give(Window(key, time_of(start), time_of(end)), parts)
                end += slides.slide
            elif stop == len(panes):
                return
            else:
                end = slides.first_end(panes[stop], end)

    def first_end(self) -> int | None:
        return None if self._next is None else int(self._next)


class TimedRows(Kept):
    """The tuples of windows of time, tumbling or sliding."""

    def __init__(
        self, windowing: Windowing, form: RowsForm, opened: MapState[Any, Any], marks: Any, txid: int, passed: int
    ) -> None:
        super().__init__(form, opened, passed)
        self._give_rows = form.give_rows
        self._slides, self._txid, self._marks = Slides(windowing), txid, marks
        self._next: int | None = marks.get("next")
        self._known = self._next

    def _look(self, passed: int) -> int | None:
        """Return when the first window ends after a time."""
        start = None
        if passed != BEFORE_ALL:  # panes that are in no later window are kept for `getExpired`
            slide = self._slides.slide
            start = ((passed - self._slides.length) // slide * slide + slide,)
        first = next(self._map.items(start), None)
        return None if first is None else self._slides.first_end(first[0][0], passed)

    def take(self, keys: Sequence[Any], times: Sequence[Any], tuples: list[Any], shape: int | None) -> list[int]:
        panes, late = self._slides.panes(times, self._passed)
        gathered = self._changed
        for pane, key, time, tup in zip(panes, keys, times, tuples, strict=True):
            if pane is not None:
                place = pane, key, shape
                if place not in gathered:
                    gathered[place] = [], []
                times_of, rows = gathered[place]
                times_of.append(time)
                rows.append(tuple(tup))
        return late

    def end(self, now: int) -> int | None:
        # Up to where windows had ended when these tuples came: of those that had not, all later ones have them.
        seen = None if self._passed == BEFORE_ALL else self._passed
        for (pane, key, shape), (times, rows) in self._changed.items():
            for number, at in enumerate(range(0, len(rows), CHUNK_ROWS)):
                part = slice(at, at + CHUNK_ROWS)
                self._map.put((pane, key, self._txid, shape, number), [seen, times[part], rows[part]])
        if self._changed:
            first = self._slides.first_end(min(pane for pane, _, _ in self._changed), self._passed)
            self._next = first if self._next is None else min(first, self._next)
        self._changed = {}
        last = None
        while self._next is not None and self._next <= now:
            self._fire(self._next)
            last, self._next = self._next, self._look(self._next)
        if last is not None:
            # What was in the window before the first one that is still to come: `getExpired` may be asked for it.
            self._map.deleteRange(
                None, (self._slides.first_end(BEFORE_ALL, now) - self._slides.length - self._slides.slide,)
            )
        if self._next != self._known:
            self._marks.put("next", self._next)
        return last

    def _fire(self, end: int) -> None:
        slides = self._slides
        start, before = end - slides.length, end - slides.slide
        windows: dict[Any, tuple[list[Item], list[Item], list[Item]]] = {}
        for (pane, key, _, shape, _), (seen, times, rows) in self._map.items((start - slides.slide,), (end,)):
            was_in = pane < before and (seen is None or seen < before)
            is_in = pane >= start
            if not (is_in or was_in):
                continue
            now, new, expired = windows.setdefault(key, ([], [], []))
            items = list(zip(times, [shape] * len(times), rows, strict=True))
            if is_in:
                now += items
                if not was_in:
                    new += items
            else:
                expired += items
        for key, parts in windows.items():
            if parts[0]:
                span = Window(key, time_of(start), time_of(end))
                self._give_rows(span, [sorted(each, key=itemgetter(0)) for each in parts])

    def first_end(self) -> int | None:
        return self._next


class Sessions(Kept):
    """Runs of tuples that are less than a gap apart."""

    def __init__(self, gap: int, form: Form, opened: MapState[Any, Any], due: MapState[Any, Any], passed: int) -> None:
        super().__init__(form, opened, passed)
        self._gap, self._due = gap, due
        self._from = None if passed == BEFORE_ALL else (passed + 1,)

    def take(self, keys: Sequence[Any], times: Sequence[Any], tuples: list[Any], shape: int | None) -> list[int]:
        gap, form, late = self._gap, self._form, []
        changed = self._load(keys, lambda: [None, []])
        for at, (key, time, item) in enumerate(zip(keys, times, form.items(times, tuples, shape), strict=True)):
            sessions = changed[key][1]
            near = [] if time is None else [one for one in sessions if one[0] - gap < time < one[1] + gap]
            if near:
                one = near[0]
                for other in near[1:]:
                    one[1:] = max(one[1], other[1]), form.merge(one[2], other[2])
                    sessions.remove(other)
                one[:] = min(one[0], time), max(one[1], time), form.add(one[2], item)
            elif time is None or time + gap <= self._passed:
                late.append(at)
            else:
                sessions.append([time, time, form.add(form.init(), item)])
                sessions.sort(key=itemgetter(0))
        return late

    def end(self, now: int) -> int | None:
        self._schedule(self._changed)
        upto = (now + 1,)
        due = [key for (_, key), _ in self._due.items(self._from, upto)] if now > BEFORE_ALL else []
        if not due:
            return None
        self._due.deleteRange(self._from, upto)
        self._from = upto
        ended, left = [], {}
        for key in due:
            _, sessions = self._map[key]
            ended += [(one[1], key, one) for one in sessions if one[1] + self._gap <= now]
            left[key] = [None, [one for one in sessions if one[1] + self._gap > now]]
        for last, key, (first, _, value) in sorted(ended, key=itemgetter(0)):
            self._form.give(Window(key, time_of(first), time_of(last + self._gap)), [value], new=1)
        self._schedule(left)
        last_end: int | None = max((last + self._gap for last, _, _ in ended), default=None)
        return last_end

    def _schedule(self, entries: dict[Any, Any]) -> None:
        """Put entries into state, each to be found when its first session may have ended."""
        for key, entry in entries.items():
            due, sessions = entry
            if any(value is None for _, _, value in sessions):
                raise forgotten()
            first = min((one[1] for one in sessions), default=None)
            if first is None:
                self._map.delete(key)
                continue
            if due is None or first + self._gap < due:  # one that has grown is looked at too early, and then put later
                if due is not None:
                    self._due.delete((due, key))
                entry[0] = first + self._gap
                self._due.put((entry[0], key), None)
            self._put(key, entry)
        self._changed = {}

    def first_end(self) -> int | None:
        first = next(self._due.items(self._from), None)
        return None if first is None else first[0][0]


class Counted(Kept):
    """Windows of so many tuples."""

    def __init__(self, windowing: Windowing, form: Form, opened: MapState[Any, Any]) -> None:
        super().__init__(form, opened, BEFORE_ALL)
        self._slide, self._block = windowing.slide, windowing.pane
        self._blocks, self._step = windowing.length // self._block, windowing.slide // self._block

    def take(self, keys: Sequence[Any], times: Sequence[Any], tuples: list[Any], shape: int | None) -> list[int]:
        form = self._form
        changed = self._load(keys, lambda: [0, {}])
        for key, item in zip(keys, form.items(times, tuples, shape), strict=True):
            entry = changed[key]
            number, blocks = entry
            block = number // self._block
            blocks[block] = form.add(blocks[block] if block in blocks else form.init(), item)
            if blocks[block] is None:
                raise forgotten()
            entry[0] = number = number + 1
            if number % self._slide == 0:
                entry[1] = self._give(key, number // self._block, blocks)
        return []

    def _give(self, key: Any, stop: int, blocks: dict[int, Any]) -> dict[int, Any]:
        """Give a window to the bolt, which ends before a block; return the blocks that are left."""
        start = stop - self._blocks
        now = self._form.own([blocks[block] for block in range(max(0, start), stop)])
        expired = (
            [blocks[block] for block in range(max(0, start - self._step), max(0, start))] if self._form.expires else []
        )
        self._form.give(Window(key, None, None), now, min(self._step, len(now)), expired)
        keep = start if self._form.expires else start + self._step
        return {block: value for block, value in blocks.items() if block >= keep}

    def end(self, now: int) -> int | None:
        for key in [key for key, (_, blocks) in self._changed.items() if not blocks]:
            del self._changed[key]
            self._map.delete(key)
        self._save()
        return None


def kept_in(
    layout: Layout,
    windowing: Windowing,
    form: Form,
    state: TaskState,
    marks: MapState[Any, Any],
    txid: int,
    passed: int,
) -> Kept:
    """Return the windows that a task keeps in its state."""
    opened = windows_of(state, "open")
    match layout:
        case Layout.COUNTED:
            return Counted(windowing, form, opened)
        case Layout.SESSIONS:
            return Sessions(windowing.gap, form, opened, windows_of(state, "due"), passed)
        case Layout.ROWS:
            assert isinstance(form, RowsForm)
            return TimedRows(windowing, form, opened, marks, txid, passed)
        case Layout.TUMBLING:
            return Tumbling(windowing.length, form, opened, passed)
    return Sliding(windowing, form, opened, marks, passed)


def upgraded(bolt: WindowedBolt, kept: str, key: Any, value: Any, version: int) -> Any:
    """Return an entry of the windows `kept` with the users' values in it as they are now."""
    windowing = bolt._windowing
    assert windowing is not None
    if kept != "open" or not keeps_values(bolt):  # the shape of the rest is statefx's own
        return value
    own = (WINDOWS, key[1] if not (windowing.merges or windowing.counted) else key)
    if windowing.counted:
        return [value[0], {block: bolt.migrateState(version, own, each) for block, each in value[1].items()}]
    if windowing.gap:
        return [value[0], [[first, last, bolt.migrateState(version, own, each)] for first, last, each in value[1]]]
    if not windowing.merges:
        return bolt.migrateState(version, own, value)
    return {pane: bolt.migrateState(version, own, each) for pane, each in value.items()}
