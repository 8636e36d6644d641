"""Windowed bolts: what users subclass, how long windows are, and what `execute` is given of one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, Self

from statefx.config import MICROSECOND, NOT_WRITTEN, SPELLINGS, Duration, Span, micros_of
from statefx.errors import TopologyError
from statefx.operators.bolts import Declared, StatefulBolt
from statefx.operators.hooks import WINDOWED, HookNames, overrides
from statefx.protocol.topology_identity import StateLayout
from statefx.state.view.time_index import FIRST

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Count:
    """A length of a window in tuples.

    Raises
    ------
    TopologyError
        It is no whole number above 0.
    """

    tuples: int

    def __post_init__(self) -> None:
        if isinstance(self.tuples, bool) or not isinstance(self.tuples, int) or self.tuples < 1:
            raise TopologyError(f"Count takes a number of tuples, 1 or more, not {self.tuples!r}")

    def __str__(self) -> str:
        return f"{self.tuples} tuples"


Length = Count | Span


@dataclass(frozen=True, slots=True)
class Windowing:
    """How tuples are parted into windows; lengths in tuples if `counted`, else in microseconds.

    Attributes
    ----------
    length, slide : int
        0 for sessions.
    gap : int
        Of sessions, else 0.
    counted : bool
    """

    length: int = 0
    slide: int = 0
    gap: int = 0
    counted: bool = False

    @property
    def pane(self) -> int:
        """The unit that windows share: what is common to them is kept once."""
        return gcd(self.length, self.slide)

    @property
    def merges(self) -> bool:
        """Whether a window is made of several values."""
        return self.gap > 0 or self.pane < self.length

    def __str__(self) -> str:
        if self.gap:
            return f"sessions with a gap of {Duration(self.gap)}"
        kind = Count if self.counted else Duration
        if self.slide == self.length:
            return f"tumbling windows of {kind(self.length)}"
        return f"windows of {kind(self.length)} sliding by {kind(self.slide)}"


class Window:
    """A window that has ended.

    Attributes
    ----------
    key : Any
        Of which key it is: the value of the field of the ``fieldsGrouping``, a tuple if there are several; None behind
        another grouping.
    start, end : datetime or None
        In UTC; `start` is in it, and `end` is not. None for windows of tuples.
    """

    __slots__ = ("_expired", "_new", "_tuples", "end", "key", "start")

    def __init__(
        self,
        key: Any,
        start: datetime | None,
        end: datetime | None,
        tuples: list[Any] | None = None,
        new: list[Any] | None = None,
        expired: list[Any] | None = None,
    ) -> None:
        self.key, self.start, self.end = key, start, end
        self._tuples, self._new, self._expired = tuples or [], new or [], expired or []

    @property
    def maxTimestamp(self) -> datetime | None:
        """The last time that is in it: one microsecond before its end.

        As the event time of what is emitted for the window, it is in time for windows behind this bolt.
        """
        return None if self.end is None else max(self.end, FIRST + MICROSECOND) - MICROSECOND

    def get(self) -> list[Any]:
        """Return the tuples of the window: by time, those of one time as they came; of windows of tuples, as they came.

        Empty for a bolt that keeps a value of each window.
        """
        return self._tuples

    def getNew(self) -> list[Any]:
        """Return those tuples that were not in the window one slide before."""
        return self._new

    def getExpired(self) -> list[Any]:
        """Return the tuples that were in the window one slide before, and are not in this one."""
        return self._expired

    def __len__(self) -> int:
        return len(self._tuples)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tuples)

    def __getattr__(self, name: str) -> Any:
        """Say what a window has: who wrote ``execute(self, tup, collector)`` looks for the fields of a tuple."""
        raise AttributeError(
            f"a window has key, start, end, maxTimestamp, get(), getNew() and getExpired(), and no {name!r}; fields "
            "are those of its tuples: for tup in window"
        )

    def __repr__(self) -> str:
        span = f", {self.start:%Y-%m-%d %H:%M:%S} to {self.end:%Y-%m-%d %H:%M:%S}" if self.start and self.end else ""
        return f"<Window of {self.key!r}{span}, {len(self._tuples)} tuples>"


class WindowedBolt(Declared, StatefulBolt):
    """A bolt that is given windows of tuples, as Storm's BaseWindowedBolt; they are kept in the checkpoint.

    It defines ``execute(window, collector)``, and is given the tuples of each window. Or it defines `initWindow`,
    `addToWindow`, `emitWindow`, and for windows that share tuples `mergeWindows`: then a value is kept for each
    window, and not the tuples.

    Behind a ``fieldsGrouping`` each key has its own windows; behind another grouping each task has.

    Contract
    --------
    - A tuple is in each window that its time lies in, and that had not ended when it came; in none twice, whatever
      crashes. One that is in no window is late: it is counted, and goes to the late stream if there is one.
    - A window of time ends when the watermark, or without event time the driver's clock, has reached its end; it is
      given to the bolt in the transaction in which that is known, once. A window without tuples is not.
    - The windows of a key come in the order of their ends.
    - Windows of time begin at whole multiples of the slide since 1970 in UTC.

    Examples
    --------
    ::

        class Clicks(WindowedBolt):
            outputFields = "user string, minute timestamp, clicks long"

            def initWindow(self):
                return 0

            def addToWindow(self, clicks, tup):
                return clicks + 1

            def emitWindow(self, window, clicks, collector):
                collector.emit((window.key, window.start, clicks))

        builder.setBolt("clicks", Clicks().withTumblingWindow("1 minute")).fieldsGrouping("events", "user")
    """

    _hooks: ClassVar[HookNames] = WINDOWED
    _windowing: Windowing | None = None
    _timestamp_field: str | None = None
    _lag: Span | None = None
    _late_stream: str | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> WindowedBolt:
        """Refuse a bolt that defines none of the two forms, or parts of both."""
        defined = {hook for hook in WINDOWED.called if overrides(cls, hook)}
        if useless := [hook for hook in _USELESS if overrides(cls, hook)]:
            raise TypeError(
                f"{cls.__name__}.{useless[0]} would never be called: a WindowedBolt has no {useless[0]}. Let a bolt "
                "before or behind it have it, or give the method another name"
            )
        of_values = defined & frozenset().union(*_FORMS[1:])
        whole = _FORMS[2] <= defined if "executeBatch" in defined else _FORMS[1] <= defined
        if bool(of_values) == ("execute" in defined) or (of_values and not whole):
            found = ", ".join(sorted(defined & frozenset().union(*_FORMS))) or "none of its hooks"
            raise TypeError(
                f"{cls.__name__} defines {found}. A WindowedBolt defines def execute(self, window, collector), which "
                "is given the tuples of a window; or initWindow(self), addToWindow(self, value, tup) and "
                "emitWindow(self, window, value, collector), which keep a value for each window; or "
                "executeBatch(self, batch), mergeWindows(self, a, b) and emitWindow, which do so for Arrow batches"
            )
        return object.__new__(cls)

    def initState(self, state: Any) -> None:
        """Take the task's state; see ``Stateful.initState``. Windows are kept beside it."""

    def _layout(self, fields: int) -> StateLayout:
        windowing = self._windowing
        assert windowing is not None  # setBolt has seen to it
        form = layout_of(self, windowing)
        first = (1,) if form in (Layout.TUMBLING, Layout.ROWS) else ()  # behind the start or the pane
        numbers = {"length": windowing.length, "slide": windowing.slide, "gap": windowing.gap}
        return StateLayout(
            form.value,
            "windows",
            keys={"windows open": _ways(first, fields), "windows due": _ways((1,), fields)} if fields else {},
            together={f"windows marks {mark}": rule for mark, rule in _TOGETHER.items()},
            numbers={**numbers, "values": int(keeps_values(self))},
            fixed="" if fields else _WITHOUT_KEYS,
        )

    # ---- which windows

    def withTumblingWindow(self, length: Length) -> Self:
        """Part the tuples into windows of a length, one behind the other.

        Parameters
        ----------
        length : Duration, Count, str or timedelta

        Raises
        ------
        TopologyError
            It is no length.
        """
        size, counted = _length(length, "withTumblingWindow")
        return self._set(Windowing(size, size, counted=counted))

    def withWindow(self, length: Length, slide: Length | None = None) -> Self:
        """Have windows of a length, of which one begins each `slide`; without `slide`, with each tuple.

        Parameters
        ----------
        length, slide : Duration, Count, str or timedelta
            Both of one kind. ``Count`` windows need no `slide`.

        Raises
        ------
        TopologyError
            One is no length, the slide is longer than the window, or one is of time and the other of tuples.
        """
        size, counted = _length(length, "withWindow")
        if slide is None:
            if not counted:
                raise TopologyError(
                    f'withWindow: a window of time needs a slide, as in withWindow({str(length)!r}, "10 seconds")'
                )
            step, step_counted = 1, True
        else:
            step, step_counted = _length(slide, "withWindow")
        if counted != step_counted:
            raise TopologyError("withWindow: length and slide are both of time, or both a Count")
        if step > size:
            raise TopologyError(
                f"withWindow: the slide is longer than the window, so that tuples between windows would be lost: "
                f"{slide} and {length}"
            )
        return self._set(Windowing(size, step, counted=counted))

    def withSessionWindow(self, gap: Span) -> Self:
        """Have a window for each run of tuples that are less than `gap` apart in time; it ends `gap` after the last.

        Raises
        ------
        TopologyError
            `gap` is no length of time.
        """
        if isinstance(gap, Count):
            raise TopologyError(f"withSessionWindow takes a time, not {gap!r}")
        size, _ = _length(gap, "withSessionWindow")
        return self._set(Windowing(gap=size))

    def withTimestampField(self, field: str) -> Self:
        """Say which field of its input has the event time; needed only if the input's ``timestamp=`` names another.

        If no component before the bolt has a ``timestamp=``, this is one of its inputs, with the lateness of `withLag`.
        """
        if not isinstance(field, str):
            raise TopologyError(f"withTimestampField takes the name of a field, not {field!r}")
        self._timestamp_field = field
        return self

    def withLag(self, lag: Span) -> Self:
        """Say how much earlier than the latest tuple so far a tuple may be without being late: ``"30 seconds"``.

        With `withTimestampField`, where no component before the bolt has a ``timestamp=`` with a ``lateness=``.

        Parameters
        ----------
        lag : Duration, str or timedelta

        Raises
        ------
        TopologyError
            It is no length of time.
        """
        if micros_of(lag, zero=True) is None:
            raise TopologyError(f"withLag takes a time, such as {SPELLINGS}; {NOT_WRITTEN}; not {lag!r}")
        self._lag = lag
        return self

    def withLateTupleStream(self, stream: str) -> Self:
        """Have late tuples emitted to a stream: the fields of the input, then ``lateBy double``.

        ``lateBy`` is how many seconds the watermark was past the time of the tuple; null if that has no time. If inputs
        have different fields, the stream has all of them, with null where an input lacks one.
        """
        if not isinstance(stream, str) or not stream or stream == "default":
            raise TopologyError(f"withLateTupleStream takes the name of a stream of its own, not {stream!r}")
        self._late_stream = stream
        return self

    def _set(self, windowing: Windowing) -> Self:
        if self._windowing is not None:
            raise TopologyError(f"{type(self).__name__} has {self._windowing} already: a bolt has windows of one kind")
        self._windowing = windowing
        return self

    # ---- hooks

    def execute(self, window: Window, collector: Any) -> None:
        """Deal with a window that has ended.

        When it is called
            In the transaction in which the end of the window has passed, behind all tuples of the transaction; for
            windows of tuples as soon as they are full.
        Guaranteed
            Once for each window with tuples. The windows of a key come in their order.
        Not guaranteed
            An order between keys.
        Raising
            As ``execute`` of any bolt.

        Parameters
        ----------
        window : Window
            Iterate over it, or call ``get()``, ``getNew()``, ``getExpired()``.
        collector : Collector
            Takes what is emitted; anchored to nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps values of windows")

    def initWindow(self) -> Any:
        """Return the value of a window without tuples; a value of state."""
        raise NotImplementedError

    def addToWindow(self, value: Any, tup: Any) -> Any:
        """Return the value of a window with one tuple more; `value` may be changed and returned."""
        raise NotImplementedError

    def executeBatch(self, batch: pa.RecordBatch) -> Any:  # type: ignore[override]  # what it returns becomes state
        """Return the values of the windows of a batch: in the place of `initWindow` and `addToWindow`, and quicker.

        For windows of time that are no sessions. `mergeWindows` brings the values of several batches together.

        When it is called
            For every Arrow batch of the input, without the rows that are late.
        Guaranteed
            At least one row, all of one stream. The column ``window``, a timestamp, is put behind its fields: it begins
            what is kept together. For tumbling windows that is the window, for sliding ones a part of some of them.
        Not guaranteed
            The size of a batch.
        Raising
            As ``execute``.

        Parameters
        ----------
        batch : pyarrow.RecordBatch

        Returns
        -------
        pyarrow.RecordBatch or pyarrow.Table
            For each key and ``window`` a row: the fields of the ``fieldsGrouping``, ``window``, and the value in one
            other column; in several, if the value is a tuple of them.
        """
        raise NotImplementedError

    def mergeWindows(self, a: Any, b: Any) -> Any:
        """Return the value of the tuples of both; those of `a` are earlier. `a` may be changed and returned.

        Needed for sliding windows, which share what is kept of a slide, and for sessions, which grow together.
        """
        raise NotImplementedError

    def emitWindow(self, window: Window, value: Any, collector: Any) -> None:
        """Emit the value of a window that has ended; called as `execute` is."""
        raise NotImplementedError


class StatefulWindowedBolt(WindowedBolt):
    """A WindowedBolt with state of its own, as Storm's: ``initState(state)``, and all hooks of a stateful bolt."""

    @abstractmethod
    def initState(self, state: Any) -> None:
        """Take the task's state; see ``Stateful.initState``."""


_FORMS = (
    frozenset({"execute"}),
    frozenset({"initWindow", "addToWindow", "emitWindow"}),
    frozenset({"executeBatch", "mergeWindows", "emitWindow"}),
)
"""Hooks of a windowed bolt: one of these, and for the second one ``mergeWindows`` where windows share tuples."""

_USELESS = (
    "executeBroadcast", "onTimer", "finishBatch", "combine", "combineBatch", "initCombine", "combinedFields"
)  # fmt: skip

WINDOWS = "windows"
"""How tools call the open windows of a bolt, and ``migrateState`` is given their keys: (name, key)."""

WINDOW = "window"
"""The column in which ``executeBatch`` is told the window of a row."""


def keeps_values(bolt: WindowedBolt) -> bool:
    """Return whether a bolt keeps a value for each window, and not the tuples."""
    return not overrides(type(bolt), "execute")


class Layout(StrEnum):
    """How windows lie in state; `statefx.operators.window_state` says what each is."""

    TUMBLING = "tumbling"
    SLIDING = "sliding"
    ROWS = "rows"
    SESSIONS = "sessions"
    COUNTED = "counted"


def layout_of(bolt: WindowedBolt, windowing: Windowing) -> Layout:
    """Return how the windows of a bolt lie in state."""
    if windowing.counted:
        return Layout.COUNTED
    if windowing.gap:
        return Layout.SESSIONS
    if not keeps_values(bolt):
        return Layout.ROWS
    return Layout.SLIDING if windowing.merges else Layout.TUMBLING


def windowing_of(operator: object) -> Windowing | None:
    """Return how an operator's tuples are split into windows, or None if it is no windowed bolt."""
    return operator._windowing if isinstance(operator, WindowedBolt) else None


_TOGETHER = {"next": "least", "passed": "greatest", "shapes": "longest"}

_WITHOUT_KEYS = (
    "behind a grouping other than fieldsGrouping its windows belong to a task and to no key. Give its rows to a bolt "
    "of a new name"
)


def _ways(first: tuple[int, ...], fields: int) -> tuple[tuple[int, ...], ...]:
    """Return the ways to the fields of a window's key, which is the value of a single field, or a tuple."""
    return (first,) if fields == 1 else tuple((*first, number) for number in range(fields))


def _length(length: Any, call: str) -> tuple[int, bool]:
    """Return a length in microseconds or tuples, and whether it is of tuples."""
    if isinstance(length, Count):
        return length.tuples, True
    micros = micros_of(length)
    if micros is None:
        raise TopologyError(
            f"{call} takes a time, such as {SPELLINGS}; {NOT_WRITTEN}, or Count(100); above 0, and not {length!r}"
        )
    return micros, False
