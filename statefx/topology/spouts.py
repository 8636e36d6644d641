"""What must hold of the spouts of a topology before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from statefx.errors import TopologyError
from statefx.operators import (
    Committer,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    ReplayingSpout,
    TransactionalSpout,
    overrides,
    parse_streams,
)
from statefx.topology.graph import Component, ComponentKind

_BASES = (TransactionalSpout, PartitionedTransactionalSpout, OpaquePartitionedTransactionalSpout)


def check_spout(id: str, spout: Any) -> None:
    """Refuse what isn't a spout, and a partitioned one of which nobody could tell who makes its metadata."""
    if isinstance(spout, type) and issubclass(spout, ReplayingSpout):
        raise TopologyError(
            f"spout {id!r} is the class {spout.__name__}; pass an object: {spout.__name__}()", component=id
        )
    if not isinstance(spout, _BASES):
        given = f"the class {spout.__name__}" if isinstance(spout, type) else f"of type {type(spout).__name__}"
        raise TopologyError(
            f"spout {id!r} is {given}, not a spout; derive its class from TransactionalSpout, "
            "PartitionedTransactionalSpout or OpaquePartitionedTransactionalSpout",
            component=id,
        )
    name = type(spout).__name__
    if isinstance(spout, Committer):
        raise TopologyError(
            f"spout {id!r}: {name} is marked Committer, and a spout can be none: committers run when the transactions "
            "before are decided, and spouts emit before. What it has to do in their order, let a bolt do",
            component=id,
        )
    if not isinstance(spout, PartitionedTransactionalSpout):
        return
    both = ("planPartitionBatch", "emitPartitionBatchNew")
    defined = [hook for hook in both if overrides(type(spout), hook)]
    if len(defined) != 1:
        found = "defines both" if defined else "defines none of them"
        raise TopologyError(
            f"spout {id!r}: {name} {found}: planPartitionBatch makes the metadata of a batch on the driver, "
            "emitPartitionBatchNew makes it in the task. Define the one that can tell how far there is to read",
            component=id,
        )


def spout_streams(id: str, spout: ReplayingSpout) -> dict[str, pa.Schema]:
    """Return the schemas of the streams that a spout emits."""
    name = type(spout).__name__
    if spout.outputFields is None:
        raise TopologyError(
            f'spout {id!r}: {name} does not say what it emits: outputFields = "word string, count long"', component=id
        )
    try:
        return parse_streams(spout.outputFields)
    except TopologyError as error:
        raise TopologyError(
            f"spout {id!r}: outputFields of {name}: {error.message}", **{**error.data, "component": id}
        ) from None


def check_not_mixed(components: Sequence[Component]) -> None:
    """Refuse spouts beside DataFrames."""
    spouts = [one.id for one in components if one.kind is ComponentKind.SPOUT]
    streams = [one.id for one in components if one.is_stream]
    if spouts and streams:
        raise TopologyError(
            f"spout {spouts[0]!r} and DataFrame {streams[0]!r} stand in one topology, and no transaction could have "
            "input of both: Spark decides when a DataFrame has its next rows. Read the DataFrame's source with a spout "
            "too, or make two topologies, and let one read what a sink of the other has written",
            components=(spouts[0], streams[0]),
        )
