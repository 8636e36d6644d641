"""What a provider checks on the driver: its options, and that its client is installed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

import msgspec

from statefx.errors import ConfigError, ProviderError, StatefxError

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


def require(package: str, extra: str, who: str, where: str, refusal: type[StatefxError] = ProviderError) -> None:
    """Refuse to go on without a package, the client of an extra of statefx."""
    try:
        import_module(package)
    except ImportError as error:
        raise refusal(
            f"{who} needs {package}, which can't be imported on {where} ({error}): pip install statefx[{extra}]"
        ) from error
