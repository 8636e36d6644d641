"""Frozen dataclasses as JSON and back, checked: the records of the transaction log, and its state in a CHECKPOINT.

The annotations of a dataclass say what its JSON looks like; nothing else is written down. A field with a default is
left out where it has that value, so a new field with a default costs its one line and is not seen by earlier releases
until it is used. What this release does not know (a field, a kind) was written by a newer one, and is told so: it is
never passed over, and never called damage.

Libraries that do this (pydantic, msgspec, cattrs) were looked at: the first two bring compiled code for 200 lines, and
none tells what is unknown from what is wrong.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

Json = Any  # what json reads and writes

_SCALARS: Mapping[type, tuple[type, ...]] = {int: (int,), str: (str,), bool: (bool,), float: (float, int)}


class NewerError(ValueError):
    """A newer release wrote this: a field or a kind that this one does not know."""


def to_json(value: Any) -> Json:
    """Return the JSON form of a dataclass, or of anything it may hold.

    Raises
    ------
    TypeError
        It holds what JSON does not.
    """
    if is_dataclass(value):
        body = {
            field.name: to_json(getattr(value, field.name))
            for field in fields(value)
            if getattr(value, field.name) != _default(field)
        }
        kind = _kind(type(value))
        return body if kind is None else {"kind": kind, **body}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_key_text(key): to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [to_json(each) for each in (sorted(value) if isinstance(value, frozenset) else value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} has no place in the transaction log: {value!r}")


def from_json(shape: Any, body: Json) -> Any:
    """Read what `to_json` wrote of a `shape`.

    Raises
    ------
    NewerError
        There is a field, or a kind, that this release does not know.
    ValueError
        It is not of this shape: damaged, or edited.
    """
    return _reader(shape)(body)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _kind(shape: Any) -> str | None:
    """The name by which a dataclass is told from the others that may stand in its place."""
    kind: str | None = getattr(shape, "kind", None)
    return kind if isinstance(kind, str) else None


def _key_text(key: Any) -> str:
    if not isinstance(key, str | int) or isinstance(key, bool):
        raise TypeError(f"{key!r} can't be a key in the transaction log")
    return str(key)


Reader = Callable[[Json], Any]


@cache
def _reader(shape: Any) -> Reader:
    """Return what reads the JSON form of a type."""
    if shape is Any:
        return lambda body: body
    if is_dataclass(shape):
        return partial(_read_dataclass, shape)
    if shape in _SCALARS:
        return partial(_read_scalar, shape)
    if isinstance(shape, type) and issubclass(shape, Enum):
        return shape
    origin, given = get_origin(shape), get_args(shape)
    if origin in (Union, types.UnionType):
        return _union_reader(given)
    if origin in (tuple, frozenset):
        if origin is frozenset or given[1:] == (...,):
            return partial(_read_list, origin, _reader(given[0]))
        return partial(_read_fixed, tuple(_reader(each) for each in given))
    if origin is not None and issubclass(origin, Mapping):
        return partial(_read_mapping, given[0], _reader(given[1]))
    raise TypeError(f"{shape!r} has no JSON form")


def _union_reader(shapes: tuple[Any, ...]) -> Reader:
    by_kind = {_kind(shape): partial(_read_dataclass, shape) for shape in shapes if is_dataclass(shape)}
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


def _read_dataclass(shape: Any, body: Json) -> Any:
    _check(isinstance(body, dict), shape.__name__, body)
    readers = _field_readers(shape)
    unknown = sorted(body.keys() - readers.keys() - ({"kind"} if _kind(shape) else set()))
    if unknown:
        raise NewerError(f"{shape.__name__} has a field {unknown[0]!r} that is not known to this release")
    given = {}
    for name, body_of in body.items():
        if name in readers:
            try:
                given[name] = readers[name](body_of)
            except NewerError:
                raise
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name}: {error}") from error
    try:
        return shape(**given)
    except TypeError as error:
        raise ValueError(str(error)) from error


@cache
def _field_readers(shape: Any) -> Mapping[str, Reader]:
    hints = get_type_hints(shape)
    return {field.name: _reader(hints[field.name]) for field in fields(shape) if hints[field.name] is not ClassVar}


def _read_scalar(shape: type, body: Json) -> Any:
    accepted = _SCALARS[shape]
    _check(isinstance(body, accepted) and (shape is bool or not isinstance(body, bool)), shape.__name__, body)
    return body


def _read_list(make: Callable[..., Any], read: Reader, body: Json) -> Any:
    _check(isinstance(body, list), "a list", body)
    return make(read(each) for each in body)


def _read_fixed(readers: tuple[Reader, ...], body: Json) -> tuple[Any, ...]:
    _check(isinstance(body, list) and len(body) == len(readers), f"a list of {len(readers)}", body)
    return tuple(read(each) for read, each in zip(readers, body, strict=True))


def _read_mapping(key: type, read: Reader, body: Json) -> dict[Any, Any]:
    _check(isinstance(body, dict), "a mapping", body)
    return {key(name): read(each) for name, each in body.items()}


def _check(fits: bool, wanted: str, found: Json) -> None:
    if not fits:
        raise ValueError(f"expected {wanted}, found {str(found)[:100]!r}")
