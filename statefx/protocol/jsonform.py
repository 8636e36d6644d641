"""Frozen dataclasses as JSON and back, checked: the records of the transaction log, and its state in a CHECKPOINT.

The annotations of a dataclass say what its JSON looks like; nothing else is written down. A field with a default is
left out where it has that value, so a new field with a default costs its one line and is not seen by earlier releases
until it is used. A named tuple is a list: of rows of which there are many. What this release does not know (a field, a
kind, another version of a kind) was written by a newer one, and is told so: it is never passed over, and never called
damage.

What reads and writes a type is made once, from its annotations. Mappings and lists of plain values, which may have an
item for each task, are taken as they are, and only the types of their items are looked at: item by item it took ten
times as long, and records are on the way of every transaction.

Libraries that do this (pydantic, msgspec, cattrs) were looked at: the first two bring compiled code for 200 lines, and
none tells what is unknown from what is wrong.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

Json = Any  # what json reads and writes

Reader = Callable[[Json], Any]
Writer = Callable[[Any], Json]

_PLAIN: Mapping[Any, frozenset[type]] = {
    int: frozenset({int}),
    str: frozenset({str}),
    bool: frozenset({bool}),
    float: frozenset({float, int}),
    types.NoneType: frozenset({types.NoneType}),
}


class NewerError(ValueError):
    """A newer release wrote this: a field, a kind or a version that this one does not know."""


def to_json(value: Any) -> Json:
    """Return the JSON form of a dataclass, or of anything it may hold; it may share parts with `value`.

    Raises
    ------
    TypeError
        It holds what JSON does not.
    """
    if not is_dataclass(value):
        return _write_anything(value)
    shape: Any = type(value)
    return _writer(shape)(value)


def from_json(shape: Any, body: Json) -> Any:
    """Read what `to_json` wrote of a `shape`.

    Raises
    ------
    NewerError
        There is a field, a kind or a version that this release does not know.
    ValueError
        It is not of this shape: damaged, or edited.
    """
    return _reader(shape)(body)


# ---- what a type is


class Written(dict[str, Json]):
    """What `to_json` has made already: it is not gone through again."""


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _kind(shape: Any) -> str | None:
    """The name by which a dataclass is told from the others that may stand in its place."""
    kind: str | None = getattr(shape, "kind", None)
    return kind if isinstance(kind, str) else None


def _version(shape: Any) -> int:
    """Which form of its kind a dataclass is: it grows when a field changes its meaning, and is written from 2 on."""
    version = getattr(shape, "version", 1)
    return version if isinstance(version, int) else 1


def _is_named_tuple(shape: Any) -> bool:
    return isinstance(shape, type) and issubclass(shape, tuple) and hasattr(shape, "_fields")


@cache
def _plain(shape: Any) -> frozenset[type]:
    """The types of the values that stand for a type which JSON has itself; none: it does not have it."""
    if get_origin(shape) in (Union, types.UnionType):
        parts = [_plain(each) for each in get_args(shape)]
        return frozenset().union(*parts) if all(parts) else frozenset()
    return _PLAIN.get(shape, frozenset())


def _as_it_is(shape: Any) -> bool:
    """Whether json itself writes the values of a type."""
    return bool(_plain(shape)) or (isinstance(shape, type) and issubclass(shape, Enum) and issubclass(shape, str | int))


# ---- writing


@cache
def _writer(shape: Any) -> Writer:
    """Return what makes the JSON form of values of a type."""
    if _as_it_is(shape):
        return lambda value: value
    if is_dataclass(shape):
        return _dataclass_writer(shape)
    if _is_named_tuple(shape):
        hints = list(get_type_hints(shape).values())
        if all(_as_it_is(hint) for hint in hints):
            return list
        return partial(_write_named_tuple, {n: _writer(hint) for n, hint in enumerate(hints) if not _as_it_is(hint)})
    origin, given = get_origin(shape), get_args(shape)
    if origin in (Union, types.UnionType):
        return lambda value: None if value is None else to_json(value)
    if origin is frozenset:
        return sorted
    if origin is tuple and given[1:] == (...,):
        write_item = _writer(given[0])
        return list if _as_it_is(given[0]) else lambda value: [write_item(each) for each in value]
    if origin is not None and issubclass(origin, Mapping) and given[0] is str and given[1] is not Any:
        write_item = _writer(given[1])
        return dict if _as_it_is(given[1]) else lambda value: {key: write_item(each) for key, each in value.items()}
    return _write_anything


def _write_named_tuple(writers: Mapping[int, Writer], value: tuple[Any, ...]) -> Json:
    """Write those values that are not written as they are: of a row of which there are a thousand, one or two."""
    body = list(value)
    for place, write in writers.items():
        body[place] = write(body[place])
    return body


def _dataclass_writer(shape: Any) -> Writer:
    hints = get_type_hints(shape)
    named = [(field.name, _default(field), _writer(hints[field.name])) for field in fields(shape)]
    kind, version = _kind(shape), _version(shape)
    head = {} if kind is None else {"kind": kind} if version == 1 else {"kind": kind, "version": version}

    def write(value: Any) -> Json:
        body = dict(head)
        for name, default, write_field in named:
            given = getattr(value, name)
            if given != default:
                body[name] = write_field(given)
        return body

    return write


def _write_anything(value: Any) -> Json:
    if type(value) is Written:
        return value
    if is_dataclass(value):
        return to_json(value)
    if isinstance(value, Mapping):
        return {_key_text(key): _write_anything(each) for key, each in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [_write_anything(each) for each in (sorted(value) if isinstance(value, frozenset) else value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no place in the transaction log: {value!r}")


def _key_text(key: Any) -> str:
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise TypeError(f"{key!r} can't be a key in the transaction log")
    return str(key)


# ---- reading


@cache
def _reader(shape: Any) -> Reader:
    """Return what reads the JSON form of a type."""
    if shape is Any:
        return lambda body: body
    if _plain(shape):
        return partial(_read_plain, shape)
    if is_dataclass(shape):
        return _dataclass_reader(shape)
    if isinstance(shape, type) and issubclass(shape, Enum):
        return shape
    if _is_named_tuple(shape):
        return partial(_read_named_tuple, shape, [_reader(hint) for hint in get_type_hints(shape).values()])
    origin, given = get_origin(shape), get_args(shape)
    if origin in (Union, types.UnionType):
        return _union_reader(given)
    if origin in (tuple, frozenset):
        if origin is frozenset or given[1:] == (...,):
            return partial(_read_list, origin, given[0])
        return partial(_read_fixed, tuple(_reader(each) for each in given))
    if origin is not None and issubclass(origin, Mapping):
        return partial(_read_mapping, given[0], given[1])
    raise TypeError(f"{shape!r} has no JSON form")


def _union_reader(shapes: tuple[Any, ...]) -> Reader:
    records: list[Any] = [shape for shape in shapes if is_dataclass(shape)]
    by_kind = {_kind(shape): _reader(shape) for shape in records}
    if len(by_kind) > 1:

        def read_kind(body: Json) -> Any:
            _check(isinstance(body, dict) and isinstance(body.get("kind"), str), "something with a kind", body)
            if body["kind"] not in by_kind:
                raise NewerError(f"kind {body['kind']!r} is not known to this release")
            return by_kind[body["kind"]](body)

        inner: Reader = read_kind
    else:
        (inner,) = (_reader(shape) for shape in shapes if shape is not types.NoneType)
    if types.NoneType not in shapes:
        return inner
    return lambda body: None if body is None else inner(body)


def _dataclass_reader(shape: Any) -> Reader:
    hints = get_type_hints(shape)
    readers = {field.name: _reader(hints[field.name]) for field in fields(shape) if hints[field.name] is not ClassVar}
    kind, version = _kind(shape), _version(shape)

    def read(body: Json) -> Any:
        _check(isinstance(body, dict), shape.__name__, body)
        if kind is not None and body.get("version", 1) != version:
            raise NewerError(f"version {body.get('version', 1)!r} of {kind} is not known to this release")
        given = {}
        for name, value in body.items():
            reader = readers.get(name)
            if reader is None:
                if kind is not None and name in ("kind", "version"):
                    continue
                raise NewerError(f"{shape.__name__} has a field {name!r} that is not known to this release")
            try:
                given[name] = reader(value)
            except NewerError:
                raise
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name}: {error}") from error
        try:
            return shape(**given)
        except TypeError as error:
            raise ValueError(str(error)) from error

    return read


def _read_plain(shape: Any, body: Json) -> Any:
    _check(type(body) in _plain(shape), getattr(shape, "__name__", str(shape)), body)
    return body


def _read_items(shape: Any, items: Iterable[Json]) -> Iterable[Any]:
    """Read many values of one type; plain ones are only looked at."""
    if _plain(shape).issuperset(map(type, items)):
        return items
    reader = _reader(shape)
    return [reader(each) for each in items]


def _read_list(make: Callable[..., Any], shape: Any, body: Json) -> Any:
    _check(isinstance(body, list | tuple), "a list", body)
    return make(_read_items(shape, body))


def _read_fixed(readers: tuple[Reader, ...], body: Json) -> tuple[Any, ...]:
    _check(isinstance(body, list | tuple) and len(body) == len(readers), f"a list of {len(readers)}", body)
    return tuple(read(each) for read, each in zip(readers, body, strict=True))


def _read_named_tuple(shape: Any, readers: list[Reader], body: Json) -> Any:
    _check(isinstance(body, list | tuple), "a list", body)
    if len(body) > len(readers):
        raise NewerError(f"{shape.__name__} has {len(body)} values, {len(readers)} are known to this release")
    return shape(*(read(each) for read, each in zip(readers, body, strict=False)))


def _read_mapping(key: type, shape: Any, body: Json) -> dict[Any, Any]:
    _check(isinstance(body, dict), "a mapping", body)
    names = body.keys() if key is str else map(key, body)
    return dict(zip(names, _read_items(shape, body.values()), strict=True))


def _check(fits: bool, wanted: str, found: Json) -> None:
    if not fits:
        raise ValueError(f"expected {wanted}, found {str(found)[:100]!r}")
