"""What a package says of a name that it has not, and another one has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

PUBLIC = (
    "statefx", "statefx.checkpoint", "statefx.client", "statefx.connectors", "statefx.connectors.files",
    "statefx.connectors.kafka", "statefx.connectors.sql", "statefx.errors", "statefx.listeners", "statefx.logs",
    "statefx.metrics", "statefx.state", "statefx.testing", "statefx.topology", "statefx.values", "statefx_redis",
)  # fmt: skip
"""Where users import from. Providers are distributions of their own, which may not be there."""

_IMPORT = "<frozen importlib._bootstrap>"
"""Who asks for a name on behalf of ``from package import name``; it passes no AttributeError on."""


def lookup(package: str, loaded: Mapping[str, str] = MappingProxyType({})) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which names the package that has a public name in its place.

    `loaded` has names that are loaded when they are first used, each with its module. A package defines it only where
    no type checker looks, which would believe from then on that every name is there.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - becomes one in the package
        if name in loaded:
            return getattr(import_module(loaded[name]), name)
        place = None if name.startswith("_") or find_spec(f"{package}.{name}") else place_of(name)
        problem = f"module {package!r} has no attribute {name!r}"
        if place is None:
            raise AttributeError(problem)
        remedy = f"{name} is in {place}: from {place} import {name}"
        if sys._getframe(1).f_code.co_filename == _IMPORT:
            raise ImportError(f"cannot import name {name!r} from {package!r}: {remedy}", name=package)
        raise AttributeError(f"{problem}: {remedy}")

    return __getattr__


def place_of(name: str) -> str | None:
    """Return from where users import a public name, or None if there is none of this name."""
    for place in PUBLIC:
        try:
            module = import_module(place)
        except ImportError:
            continue
        if name in public(module):
            return place
    return None


def public(module: Any) -> list[str]:
    """Return the names that users import from a module: its ``__all__``, or else the classes that it defines."""
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
    return list(getattr(module, "__all__", own))
