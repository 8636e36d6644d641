"""Tuple classes: namedtuples of a stream's fields, with look-up by name."""

from __future__ import annotations

import os
import random
from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from statefx.operators.schema import in_source, parse_schema
from statefx.state.encoding.values import register_namedtuples

if TYPE_CHECKING:
    import pyarrow as pa


def tuple_class(fields: pa.Schema | Sequence[str]) -> type[Any]:
    """Return the namedtuple class for a stream's fields; the same class for the same names.

    Build with ``cls(*values)`` or ``cls._make(values)``; ``cls._names`` has the fields' own names.

    Contract
    --------
    - ``tup.word`` costs what it costs on a plain namedtuple.
    - ``tup["word"]``, ``tup[0]`` and ``tup[1:]`` work; an unknown name is a KeyError that lists the fields there are.
    - ``tup.name`` finds a field whose name Python takes for another one (its NFKC form), and ``tup["name"]`` as well.
    - A name that can't be an attribute (a keyword, no identifier, a leading underscore) is reached by
      ``tup["..."]``.
    - Tuples can be pickled, copied, hashed, and compared with plain tuples.

    Examples
    --------
    >>> tup = tuple_class(["word", "class"])("spark", 3)
    >>> tup.word, tup["class"], tup[1]
    ('spark', 3, 3)
    """
    names: Sequence[str] = fields if isinstance(fields, (list, tuple)) else fields.names  # type: ignore[union-attr]
    return _tuple_class(tuple(names))


def tuple_maker(fields: pa.Schema, source: str, stream: str, *, rooted: bool = False) -> type[Any]:
    """Return what makes the tuples that a bolt is given, each out of one iterable of its values.

    A tuple has all that those of `tuple_class` have, and ``_source`` and ``_stream``, where it came from. Its own class
    is no subclass of that: a namedtuple's ``__new__`` takes the values one by one, and so every tuple would run Python
    code, or take two more steps around it. Without it ``map(maker, rows)`` is C alone, in 0.09 us a tuple, not 0.15.

    `rooted` tuples may be given the trees that they belong to.
    """
    named = tuple_class(fields)
    namespace = {name: value for kind in reversed(named.__mro__[:-2]) for name, value in vars(kind).items()}
    del namespace["__new__"]
    if rooted:
        del namespace["__slots__"]
    return type(named.__name__, (tuple,), {**namespace, "_source": source, "_stream": stream})


def held_number(tup: Any) -> int:
    """Return the number by which the acker knows a tuple that its bolt holds: random, and never 0."""
    number: int | None = getattr(tup, "_held", None)
    if number is None:
        number = tup._held = _numbers.getrandbits(62) | 1 << 62
    return number


def is_tuple(value: Any) -> bool:
    """Return whether a bolt was given `value` as a tuple, or kept it in its state."""
    return isinstance(value, tuple) and hasattr(type(value), "_names")


# Not those of `random`, which users seed. And Spark forks its workers from one process: with the same numbers, two
# tasks would ack each other's tuples.
_numbers = random.Random()
os.register_at_fork(after_in_child=_numbers.seed)

_BY_TYPE = ("Value", "String", "Integer", "Long", "Double", "Float", "Boolean", "Short", "Byte", "Binary")

STORM = {
    **{f"get{kind}": "tup[position]" for kind in _BY_TYPE},
    **{f"get{kind}ByField": 'tup["field"], or tup.field' for kind in _BY_TYPE},
    "getSourceComponent": "tup._source",
    "getSourceStreamId": "tup._stream",
    "getSourceTask": "tup.task, a field in which the source emits its context.task",
    "getMessageId": "tup.id, a field in which the spout emits the id",
    "getValues": "tup, which is a tuple of the values",
    "getFields": "tup._names",
    "size": "len(tup)",
}
"""Methods of Storm's tuples, and what is written here instead."""


class _Storm:
    """A method of Storm's tuples that ours lack; costs nothing where it is not asked for, as ``__getattr__`` would."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, tup: object, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__} has no {self._name}, which is Storm's: write {STORM[self._name]}")


@cache
def _tuple_class(names: tuple[str, ...]) -> type[Any]:
    if len(set(names)) != len(names):
        raise ValueError(f"field names must differ: {', '.join(names)}")
    # Python reads a name in source in its NFKC form: tup.\N{MICRO SIGN}m asks for the attribute with a Greek mu.
    parent: Any = namedtuple("Tuple", list(map(in_source, names)), rename=True)  # type: ignore[misc]
    # One dict finds the attribute for a name and for an index: getattr is quicker than tuple.__getitem__ here.
    attributes: dict[Any, str] = dict(zip(names, parent._fields, strict=True))
    for position in range(len(names)):
        attributes[position] = attributes[position - len(names)] = parent._fields[position]
    plain = tuple.__getitem__
    listed = ", ".join(name if name.isprintable() else repr(name) for name in names)

    def __getitem__(self: tuple[Any, ...], key: Any) -> Any:  # noqa: N807 - becomes a method below
        if type(key) is slice:
            return plain(self, key)
        try:
            return getattr(self, attributes[key])
        except KeyError:
            pass
        if isinstance(key, str):
            raise KeyError(f"no field {key!r}; the fields are {listed}")
        return plain(self, key)

    def __repr__(self: tuple[Any, ...]) -> str:  # noqa: N807 - becomes a method below
        return f"Tuple({', '.join(f'{name}={value!r}' for name, value in zip(names, self, strict=True))})"

    def __reduce__(self: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: N807 - becomes a method below
        if (roots := getattr(self, "_roots", None)) is not None:  # also in a state whose values are pickled
            return _rebuild_rooted, (names, tuple(self), roots, held_number(self) if roots else None)
        return _rebuild, (names, tuple(self))

    # Python puts the class's name into "'...' object has no attribute": so it lists the fields.
    return type(
        f"Tuple({listed})",
        (parent,),
        {
            "__slots__": (),
            "__module__": __name__,
            "__doc__": f"A tuple with the fields {listed}.",
            "__getitem__": __getitem__,
            "__repr__": __repr__,
            "__reduce__": __reduce__,
            "_names": names,
            **{name: _Storm(name) for name in STORM if name not in names},
        },
    )


@cache
def _rooted_class(names: tuple[str, ...]) -> type[Any]:
    """Return the class of tuples that come back from state with the trees that they belong to."""
    named = _tuple_class(names)
    return type(named.__name__, (named,), {"__module__": __name__})


def _rebuild_rooted(names: tuple[str, ...], values: Sequence[Any], roots: Any, held: int | None) -> Any:
    made = _rooted_class(names)._make(values)
    made._roots, made._held = roots, held
    return made


def _rebuild(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _tuple_class(names)._make(values)


def _remade(fields: Sequence[str], elements: Sequence[Any], names: Any) -> Any:
    """Make a tuple again that was kept in state: `names` as `_renamed` returned it."""
    if isinstance(names, dict):
        return _rebuild_rooted(tuple(names["names"] or fields), elements, names["roots"], names["held"])
    return tuple_class(tuple(names or fields))._make(elements)


def _renamed(tup: Any) -> Any:
    """Return the stream's own names, where attributes can't have them; with its trees, if it belongs to some."""
    names: tuple[str, ...] = getattr(tup, "_names", tup._fields)
    own = None if names == tup._fields else list(names)
    roots = getattr(tup, "_roots", None)
    if roots is None:
        return own
    return {"names": own, "roots": roots, "held": held_number(tup) if roots else None}  # one without trees is not held


register_namedtuples(_remade, _renamed)


# ---- ticks: the tuples by which a bolt is told that its period is over, with Storm's names

SYSTEM, TICK = "__system", "__tick"
"""Component and stream that a tick comes from."""

TICK_ROWS = parse_schema("rate_secs double").with_metadata({"source": SYSTEM, "stream": TICK})
"""The schema of a tick as a batch."""


class Tick(tuple_class(TICK_ROWS)):  # type: ignore[misc]  # a class that is made at run time
    """A tick, as ``execute`` is given it."""

    __slots__ = ()
    _source, _stream = SYSTEM, TICK


def isTick(tup: Any) -> bool:
    """Return whether what a bolt was given is a tick, as Storm's ``TupleUtils.isTick``.

    Parameters
    ----------
    tup : tuple or pyarrow.RecordBatch
        What ``execute`` or ``executeBatch`` was given.

    Examples
    --------
    ::

        def execute(self, tup, collector):
            if isTick(tup):
                self.flush(collector)
            else:
                self.rows.append(tup)
    """
    if isinstance(tup, tuple):
        return (getattr(tup, "_source", None), getattr(tup, "_stream", None)) == (SYSTEM, TICK)
    metadata = getattr(getattr(tup, "schema", None), "metadata", None) or {}
    return (metadata.get(b"source"), metadata.get(b"stream")) == (SYSTEM.encode(), TICK.encode())
