"""Loads the classes that options name, and says what they lack."""

from __future__ import annotations

import builtins
import difflib
import inspect
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from statefx.errors import ConfigError, StatefxError
from statefx.state.encoding.codec import Codec, StandardCodec


def find(reference: str, kind: type[StatefxError] = ConfigError) -> Any:
    """Import what a reference, ``module:Class``, names; what the import raises comes through.

    Raises StatefxError: of `kind`: it is no reference, names nothing, or something that workers could not import.
    """
    module_name, _, attributes = reference.partition(":")
    if not module_name or not attributes:
        raise kind(f"{reference!r} is not a reference: write 'module:Class'", reference=reference)
    if module_name == "__main__":
        raise kind(
            f"{reference} is in the script that is run, which workers don't import: move the class to a module that is "
            "installed on the driver and on every executor",
            reference=reference,
        )
    found: Any = import_module(module_name)
    for name in attributes.split("."):
        if not hasattr(found, name):
            near = nearest(name, [each for each in vars(found) if not each.startswith("_")])
            raise kind(f"{reference}: module {module_name} has no {attributes}{near}", reference=reference)
        found = getattr(found, name)
    return found


def load(reference: str) -> type[Any]:
    """Return the class that a reference names.

    Raises ConfigError: it can't be imported, or is no class.
    """
    try:
        found = find(reference)
    except StatefxError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{reference} can't be imported: {type(error).__name__}: {error}; install it, on the driver and on every "
            "executor",
            reference=reference,
        ) from error
    if not isinstance(found, type):
        raise ConfigError(f"{reference} is not a class", reference=reference)
    return found


def codec_class(reference: str) -> type[Codec]:
    """Return a class of codecs; ConfigError if it lacks something."""
    found = load(reference)
    if not issubclass(found, Codec):
        raise ConfigError(f"codec {reference} is not a subclass of statefx.state.Codec", reference=reference)
    missing = sorted(found.__abstractmethods__)
    name = getattr(found, "name", None)
    if not isinstance(name, str) or not name:
        missing.append("name (a text)")
    if missing:
        raise ConfigError(f"codec {reference} does not define {', '.join(missing)}", reference=reference)
    if found is not StandardCodec and name == StandardCodec.name:  # one that is derived from it has its name
        raise ConfigError(
            f"codec {reference} has the name of the standard codec, {name!r}: give it one of its own",
            reference=reference,
        )
    return _constructible(found, reference)


def serializer_class(reference: str) -> type:
    """Return a class of serializers, as Storm's: ``serialize(thing) -> bytes``, ``deserialize(bytes) -> thing``."""
    found = load(reference)
    missing = [name for name in ("serialize", "deserialize") if not callable(getattr(found, name, None))]
    missing += sorted(set(getattr(found, "__abstractmethods__", ())) - set(missing))
    if missing:
        raise ConfigError(f"serializer {reference} does not define {', '.join(missing)}", reference=reference)
    return _constructible(found, reference)


def value_class(reference: str) -> type:
    """Return a type that keys or values must be: a builtin one's name may stand alone."""
    if ":" in reference:
        return load(reference)
    found = getattr(builtins, reference, None)
    if not isinstance(found, type):
        raise ConfigError(f"{reference!r} is no builtin type; write others as 'module:Class'", reference=reference)
    return found


def _constructible(found: type, reference: str) -> type:
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ConfigError(f"{reference} is made without arguments, but {error}", reference=reference) from error
    except ValueError:  # written in C, without a signature
        pass
    return found


def construct(found: type) -> Any:
    """Return an object of a class; ConfigError if its constructor raises."""
    try:
        return found()
    except Exception as error:
        raise ConfigError(
            f"{found.__module__}:{found.__qualname__} can't be made: {type(error).__name__}: {error}"
        ) from error


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a question that names what was likely meant; nothing if nothing is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
