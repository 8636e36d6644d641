"""The order in which components come, and the cycle if there is none."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from statefx.errors import TopologyError


def topological(declared: Sequence[str], sources: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the ids so that each comes after its sources; ties in order of declaration.

    Parameters
    ----------
    declared : sequence of str
        All ids, in order of declaration.
    sources : Mapping[str, sequence of str]
        For each id that has inputs, the ids it reads.

    Raises
    ------
    TopologyError
        There is a cycle; the message has its path, and ``path`` too.
    """
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for id in declared:
        sorter.add(id, *sources.get(id, ()))
    try:
        sorter.prepare()
    except CycleError as error:
        path = list(error.args[1])
        raise TopologyError(
            f"the bolts form a cycle: {' -> '.join(path)}. Take one of these groupings away; rows can't come back "
            "to a bolt within one transaction.",
            path=path,
        ) from None
    # The sorter alone leaves ties open. The order numbers the edges and fills the levels, so the same program must come
    # to the same order each time: what Spark's pages show of two runs can then be compared.
    rank = {id: number for number, id in enumerate(declared)}
    ready: list[int] = []
    ordered: list[str] = []
    while sorter.is_active():
        for id in sorter.get_ready():
            heapq.heappush(ready, rank[id])
        ordered.append(declared[heapq.heappop(ready)])
        sorter.done(ordered[-1])
    return ordered
