"""Finds state providers by name or by reference, and builds them.

A name is an entry point of the group ``statefx.state_providers``; a reference is ``module:Class``. The driver
resolves names, executors load references.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from statefx.errors import ProviderError
from statefx.state.contract.store import StateProvider
from statefx.state.encoding.options import find, nearest

GROUP = "statefx.state_providers"
"""The entry-point group in which distributions name their providers."""


def load_provider(name_or_reference: str, options: Mapping[str, Any]) -> StateProvider:
    """Build a provider, from a registered name or ``module:Class``.

    ProviderError: it is unknown, can't be imported (the message says what to install) or is no provider. ConfigError:
    the provider refuses an option.
    """
    reference = resolve(name_or_reference)
    provider = _load_class(reference)
    try:
        return provider(options)
    except ImportError as error:
        raise _not_importable(reference, error) from error


@cache  # an entry point is looked for in each distribution that is installed
def resolve(name_or_reference: str) -> str:
    """Return the reference ``module:Class`` of a provider, without importing it.

    ProviderError: the name is unknown, or claimed by two distributions.
    """
    if ":" in name_or_reference:
        return name_or_reference
    found = sorted({entry.value for entry in entry_points(group=GROUP, name=name_or_reference)})
    if not found:
        known = sorted({entry.name for entry in entry_points(group=GROUP)})
        raise ProviderError(
            f"no state provider is called {name_or_reference!r}{nearest(name_or_reference, known)} "
            f"(registered: {', '.join(known) or 'none'}; or give a reference, 'module:Class')",
            name=name_or_reference,
            known=known,
        )
    if len(found) > 1:
        raise ProviderError(
            f"several providers are called {name_or_reference!r}: give one by its reference, {' or '.join(found)}",
            name=name_or_reference,
        )
    return found[0]


def name_of(reference: str) -> str:
    """Return the name by which a provider is registered; the reference itself if it is not."""
    return min((entry.name for entry in entry_points(group=GROUP) if entry.value == reference), default=reference)


def _load_class(reference: str) -> type[StateProvider]:
    try:
        found = find(reference, ProviderError)
    except ImportError as error:
        raise _not_importable(reference, error) from error
    if not (isinstance(found, type) and issubclass(found, StateProvider)):
        raise ProviderError(f"{reference} is not a subclass of statefx.state.StateProvider", reference=reference)
    missing = sorted(found.__abstractmethods__)
    if not hasattr(found, "location"):
        missing.append("location")
    if missing:
        raise ProviderError(f"{reference} does not define {', '.join(missing)}", reference=reference, missing=missing)
    return found


def _not_importable(reference: str, error: ImportError) -> ProviderError:
    missing = error.name or str(error)
    remedy = f"install what provides {missing!r}, on the driver and on every executor"
    for entry in entry_points(group=GROUP):
        if entry.value == reference and entry.dist is not None:
            extras = entry.dist.metadata.get_all("Provides-Extra") or []
            extra = f"[{entry.name}]" if entry.name in extras else ""
            remedy = f"pip install {entry.dist.name}{extra}, on the driver and on every executor"
    return ProviderError(
        f"state provider {reference} can't be imported: {error}; {remedy}", reference=reference, missing=missing
    )
