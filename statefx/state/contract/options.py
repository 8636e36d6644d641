"""Options of a provider, checked on the driver by the types and limits of a msgspec Struct's fields."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from statefx.errors import ConfigError

_Options = TypeVar("_Options", bound=msgspec.Struct)


def checked_options(kind: type[_Options], options: Mapping[str, Any], source: str) -> _Options:
    """Return `options` as a `kind`; no message holds a value, for a value may be a password.

    Raises
    ------
    ConfigError
        Says what is wrong, and that it was given in `source`.
    """
    for name in options:
        if name not in kind.__struct_fields__:
            known = sorted(kind.__struct_fields__)
            nearest = difflib.get_close_matches(str(name), known, 1, 0.0)[0]
            raise ConfigError(
                f"{source}: unknown option {name!r}; did you mean {nearest!r}? Known: {', '.join(known)}", option=name
            )
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        name = path.removesuffix("`")
        raise ConfigError(f"{source}: {name}: {what[0].lower()}{what[1:]}", option=name) from None
