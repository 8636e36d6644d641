"""What must stay the same of a topology for it to go on with a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from statefx.errors import ProviderError
from statefx.operators import overrides
from statefx.state.encoding.options import Encoding
from statefx.topology.checks import keyed, routing
from statefx.topology.graph import Component, Topology


def identify(
    topology: Topology,
    provider: str,
    source: str,
    encodings: Mapping[str, Encoding] | None = None,
    options: Mapping[str, Any] | None = MappingProxyType({}),
) -> dict[str, Any]:
    """Return what must stay the same for a topology to go on with a checkpoint.

    Parameters
    ----------
    topology : Topology
    provider : str
        Reference of the state provider, ``module:Class``: two names of one are one.
    source : str
        ``stream`` or ``batch``.
    encodings : Mapping[str, Encoding], optional
        Of stateful components; those it has none for have the standard one.
    options : Mapping[str, Any] or None
        What the provider's `public_options` says; for `openState`, and may change.

    Raises
    ------
    ProviderError
        JSON can't write them.
    """
    given = encodings or {}
    kept = None if options is None else dict(options)
    try:
        json.dumps(kept)
    except (TypeError, ValueError) as error:
        raise ProviderError(f"{provider}: public_options() must return what JSON can write: {error}") from None
    stateful = {
        c.id: _of_component(topology, c, {"provider": provider, "options": kept}, given.get(c.id, Encoding()))
        for c in topology.components
        if c.stateful
    }
    return {"name": topology.name, "source": source, "stateful": stateful}


def _of_component(
    topology: Topology, component: Component, place: Mapping[str, Any], encoding: Encoding
) -> dict[str, Any]:
    """``options`` and ``encoding`` (for `openState`) and ``migrates`` tell of it, and may change; all else must stay.

    Fields that rows are grouped by may be renamed.
    """
    version = getattr(component.operator, "stateVersion", 1)
    found = {
        "parallelism": component.parallelism,
        **place,
        "codec": encoding.name,
        "stateVersion": version,
        "keys": routing(topology, component.id),
        "fields": keyed(topology, component.id),
    }
    if encoding.own:
        found["encoding"] = encoding.own
    if version > 1:
        found["migrates"] = overrides(type(component.operator), "migrateState")
    return found
