"""Frozen dataclasses as JSON and back, checked: the records of the transaction log, and its state in a CHECKPOINT.

The annotations of a dataclass say what its JSON looks like; nothing else is written down. A field with a default is
left out where it has that value, so a new field with a default costs its one line and is not seen by earlier releases
until it is used. A named tuple is a list: of rows of which there are many. What this release does not know (a field, a
kind, another version of a kind) was written by a newer one, and is told so: it is never passed over, and never called
damage. This is what msgspec can't do, which reads all values that hold no dataclass and no named tuple.

What reads a type is made once, from its annotations. Mappings and lists of plain values, which may have an item for
each task, are written as they are: item by item it took ten times as long, and records are on the way of every
transaction.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

Json = Any  # what json reads and writes

Reader = Callable[[Json], Any]

_PLAIN = frozenset({int, str, bool, float, types.NoneType})


class NewerError(ValueError):
    """A newer release wrote this: a field, a kind or a version that this one does not know."""


class Written(dict[str, Json]):
    """JSON text that `to_json` has made already."""


def from_json(shape: Any, body: Json) -> Any:
    """Read what `to_json` wrote of a `shape`.

    NewerError: it has a field, a kind or a version that this release does not know. ValueError: it is damaged, or
    edited.
    """
    return _reader(shape)(body)


def json_copy(value: Json) -> Json:
    """Return a copy of what `json.loads` has made; `deepcopy` takes several times as long."""
    if type(value) is dict:
        return {name: each if type(each) in _PLAIN else json_copy(each) for name, each in value.items()}
    if type(value) is list:
        return [each if type(each) in _PLAIN else json_copy(each) for each in value]
    return value


def to_json(value: Any) -> Json:
    """Return the JSON form of a dataclass, or of anything it may hold; it may share parts with `value`.

    TypeError if it holds what JSON does not.
    """
    if type(value) in _PLAIN or type(value) is Written:
        return value
    if is_dataclass(value):
        shape: Any = type(value)
        head, defaults = _written_as(shape)
        body = dict(head)
        for name, default in defaults:
            given = getattr(value, name)
            if given != default:
                body[name] = to_json(given)
        return body
    if isinstance(value, Mapping):
        if {str}.issuperset(map(type, value)) and _PLAIN.issuperset(map(type, value.values())):
            return dict(value)
        return {_key_text(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [each if type(each) in _PLAIN else to_json(each) for each in value]
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no place in the transaction log: {value!r}")


def _key_text(key: Any) -> str:
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise TypeError(f"{key!r} can't be a key in the transaction log")
    return str(key)


@cache
def _written_as(shape: Any) -> tuple[Mapping[str, Json], list[tuple[str, Any]]]:
    """Return the beginning of each value's JSON, and the fields of the dataclass with their defaults."""
    kind, version = _kind(shape), _version(shape)
    head = {} if kind is None else {"kind": kind} if version == 1 else {"kind": kind, "version": version}
    return head, [
        (field.name, field.default_factory() if field.default_factory is not MISSING else field.default)
        for field in fields(shape)
    ]


def _kind(shape: Any) -> str | None:
    """Return the name that tells a dataclass from the others that may stand in its place."""
    kind: str | None = getattr(shape, "kind", None)
    return kind if isinstance(kind, str) else None


def _version(shape: Any) -> int:
    """Which form of its kind a dataclass is: it grows when a field changes its meaning, and is written from 2 on."""
    version = getattr(shape, "version", 1)
    return version if isinstance(version, int) else 1


def _is_named_tuple(shape: Any) -> bool:
    return isinstance(shape, type) and issubclass(shape, tuple) and hasattr(shape, "_fields")


def _is_ours(shape: Any) -> bool:
    """Whether a type holds a dataclass or a named tuple, in which something newer may stand."""
    return is_dataclass(shape) or _is_named_tuple(shape) or any(map(_is_ours, get_args(shape)))


@cache
def _reader(shape: Any) -> Reader:
    if not _is_ours(shape):
        return partial(msgspec.convert, type=shape, str_keys=True)
    if is_dataclass(shape):
        return _dataclass_reader(shape)
    if _is_named_tuple(shape):
        return partial(_read_named_tuple, shape, [_reader(hint) for hint in get_type_hints(shape).values()])
    origin, given = get_origin(shape), get_args(shape)
    if origin in (Union, types.UnionType):
        return _union_reader(given)
    if origin is tuple and given[1:] == (...,):
        return partial(_read_list, _reader(given[0]))
    if origin is not None and issubclass(origin, Mapping):
        return partial(_read_mapping, given[0], _reader(given[1]))
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
    readers = {field.name: _reader(hints[field.name]) for field in fields(shape)}
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


def _read_list(read: Reader, body: Json) -> tuple[Any, ...]:
    _check(isinstance(body, list | tuple), "a list", body)
    return tuple(map(read, body))


def _read_named_tuple(shape: Any, readers: list[Reader], body: Json) -> Any:
    _check(isinstance(body, list | tuple), "a list", body)
    if len(body) > len(readers):
        raise NewerError(f"{shape.__name__} has {len(body)} values, {len(readers)} are known to this release")
    return shape(*(read(each) for read, each in zip(readers, body, strict=False)))


def _read_mapping(key: type, read: Reader, body: Json) -> dict[Any, Any]:
    _check(isinstance(body, dict), "a mapping", body)
    return {key(name): read(each) for name, each in body.items()}


def _check(fits: bool, wanted: str, found: Json) -> None:
    if not fits:
        raise ValueError(f"expected {wanted}, found {str(found)[:100]!r}")
