"""Reads from a topology what must stay the same for it to go on with a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from statefx.errors import ProviderError
from statefx.operators.acker import ACKER
from statefx.operators.bolts import Declared, Stateful
from statefx.operators.hooks import overrides
from statefx.operators.schema import declared_schemas
from statefx.operators.spouts import has_partitions
from statefx.operators.waiting import LAYOUT
from statefx.protocol.topology_identity import KeyFields, StatefulIdentity, StateLayout, TopologyIdentity
from statefx.state.encoding.options import Encoding
from statefx.topology.checks import key_types
from statefx.topology.features import described
from statefx.topology.graph import Component, Promise, Topology


def identify(
    topology: Topology,
    provider: str,
    encodings: Mapping[str, Encoding] | None = None,
    options: Mapping[str, Any] | None = MappingProxyType({}),
) -> TopologyIdentity:
    """Return the identity of a topology; ProviderError if JSON can't write the options."""
    given = encodings or {}
    kept = None if options is None else dict(options)
    try:
        json.dumps(kept)
    except (TypeError, ValueError) as error:
        raise ProviderError(f"{provider}: public_options() must return what JSON can write: {error}") from None
    stateful = {
        component.id: _stateful(topology, component, provider, kept, given.get(component.id, Encoding()))
        for component in topology.components
        if component.stateful
    }
    input = "spout" if topology.reads_spouts else "stream" if topology.streaming else "batch"
    tracked = {id: id for id in topology.tracked_spouts} if ACKER in stateful else {}
    components = [each for each in topology.components if not each.is_stream]
    timed = any(each.timings for each in topology.components)
    return TopologyIdentity(
        topology.name,
        input,
        stateful,
        tracked,
        in_time={each.id: each.parallelism for each in components} if timed else {},
        by_partition=tuple(sorted(each.id for each in components if timed and has_partitions(each.operator))),
        streams=tuple(each.id for each in topology.components if each.is_stream) if topology.streaming else (),
    )


def _stateful(
    topology: Topology, component: Component, provider: str, options: Mapping[str, Any] | None, encoding: Encoding
) -> StatefulIdentity:
    version, keys = getattr(component.operator, "stateVersion", 1), grouping_types(topology, component.id)
    return StatefulIdentity(
        parallelism=component.parallelism,
        provider=provider,
        codec=encoding.name,
        state_version=version,
        routing=routing(topology, component.id),
        key_fields=key_fields(topology, component.id),
        upgrades=version > 1 and overrides(type(component.operator), "migrateState"),
        migrates_keys=version > 1 and overrides(type(component.operator), "migrateKey"),
        rolls_back=overrides(type(component.operator), "preRollback"),  # `Checkpoint.abort` has no topology to ask
        options=options,
        encoding=encoding.own,
        schemas=declared_schemas(getattr(component.operator, "stateSchema", None)),
        windows=described(component, keys),
        layout=_layout(component, len(keys)),
    )


def _layout(component: Component, fields: int) -> StateLayout | None:
    if isinstance(component.operator, Declared):
        return component.operator._layout(fields)
    return None if isinstance(component.operator, Stateful) else LAYOUT


def routing(topology: Topology, id: str) -> tuple[tuple[str, ...], ...]:
    """Return what decides which task of a bolt a row goes to: changing it moves keys away from their state.

    Each once, sorted: a grouping's kind, and the types of its fields. Groupings that promise no task are one, of kind
    ``shuffle``; ``all`` and ``broadcast`` beside another move nothing, because their rows go everywhere.
    """
    found = set()
    for edge in topology.inputs(id):
        kind = "shuffle" if edge.grouping.promise is Promise.ANY else edge.grouping.kind
        found.add((kind, *key_types(topology.schema(edge), edge.grouping.fields)))
    return tuple(sorted(found - {("all",), ("broadcast",)} or found))


def grouping_types(topology: Topology, id: str) -> list[str]:
    """Return the types of the fields that a bolt's rows are grouped by; of several groupings, those of the first."""
    edges = [edge for edge in topology.inputs(id) if edge.grouping.promise is Promise.KEY]
    return key_types(topology.schema(edges[0]), edges[0].grouping.fields) if edges else []


def key_fields(topology: Topology, id: str) -> tuple[KeyFields, ...]:
    """Return by which fields rows come to a bolt, for each of its keyed inputs, sorted."""
    found = [
        KeyFields(
            edge.source, edge.stream, edge.grouping.kind, edge.grouping.fields, tuple(topology.schema(edge).names)
        )
        for edge in topology.inputs(id)
        if edge.grouping.by_key
    ]
    # Sorted: inputs that are only declared in another order are the same topology.
    return tuple(sorted(found, key=lambda one: (one.source, one.stream, one.grouping, one.fields)))
