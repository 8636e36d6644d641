"""What a window keeps of its tuples, by the form of the bolt: the user's own value, or the tuples themselves."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from operator import add, itemgetter
from typing import Any, Protocol

from statefx.operators.windows import Window, WindowedBolt
from statefx.state.encoding.values import is_settled

Item = tuple[int, int, Sequence[Any]]
"""A tuple that is kept: its time, the number of its fields' names, and its values."""


class Form(Protocol):
    """What is kept of the tuples of a window."""

    @property
    def init(self) -> Callable[[], Any]:
        """Make the value of no tuple."""

    @property
    def add(self) -> Callable[[Any, Any], Any]:
        """Make a value with one item more."""

    @property
    def merge(self) -> Callable[[Any, Any], Any]:
        """Make the value of two, of which the first may be changed."""

    @property
    def computes(self) -> bool:
        """Whether the user's hooks make a value of the value before."""

    @property
    def expires(self) -> bool:
        """Whether what has left a window is asked for one slide later."""

    def give(self, window: Window, now: Sequence[Any], new: int = 0, expired: Sequence[Any] = ()) -> None:
        """Give a window to the bolt: the values of its parts, the last `new` of them new, and of what has left it."""

    def items(self, times: Sequence[Any], tuples: Sequence[Any], shape: int | None) -> Iterable[Any]:
        """Return what is added for each tuple."""

    def own(self, values: list[Any]) -> list[Any]:
        """Return values that other windows share, for one window alone: hooks may change what they are given."""


class ValuesForm:
    """The user's own value."""

    computes = True
    expires = False

    def __init__(
        self,
        bolt: WindowedBolt,
        give: Callable[[Window, Any], None],
        hook: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.init, self.add, self.merge = bolt.initWindow, bolt.addToWindow, bolt.mergeWindows
        self._give, self._hook = give, hook

    def give(self, window: Window, now: Sequence[Any], new: int = 0, expired: Sequence[Any] = ()) -> None:
        value = now[0]
        if len(now) > 1:
            with self._hook("mergeWindows"):
                value = reduce(self.merge, now[1:], value)
                if value is None:
                    raise forgotten("mergeWindows")
        self._give(window, value)

    def items(self, times: Sequence[Any], tuples: Sequence[Any], shape: int | None) -> Iterable[Any]:
        return tuples

    def own(self, values: list[Any]) -> list[Any]:
        return [_copy(one) for one in values]


class RowsForm:
    """The tuples themselves."""

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


def _copy(value: Any) -> Any:
    return value if is_settled(value) else pickle.loads(pickle.dumps(value, -1))


def forgotten(hook: str = "addToWindow") -> TypeError:
    """Return the error of a hook that forgot to return the value."""
    return TypeError(
        f"{hook} returned None: it returns the new value of the window, also if it has changed the old one"
    )
