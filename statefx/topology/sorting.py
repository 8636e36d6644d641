"""The order in which components come, and the cycle if there is none."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

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
    rank = {id: number for number, id in enumerate(declared)}
    waiting = {id: set(sources.get(id, ())) for id in declared}
    readers: dict[str, list[str]] = {id: [] for id in declared}
    for id, needed in waiting.items():
        for source in needed:
            readers[source].append(id)
    ready = [rank[id] for id in declared if not waiting[id]]
    ordered: list[str] = []
    while ready:
        id = declared[heapq.heappop(ready)]
        ordered.append(id)
        for reader in readers[id]:
            waiting[reader].discard(id)
            if not waiting[reader]:
                heapq.heappush(ready, rank[reader])
    if len(ordered) < len(declared):
        path = _cycle({id: needed for id, needed in waiting.items() if needed})
        raise TopologyError(
            f"the bolts form a cycle: {' -> '.join(path)}. Take one of these groupings away; rows can't come back "
            "to a bolt within one transaction.",
            path=path,
        )
    return ordered


def _cycle(waiting: Mapping[str, set[str]]) -> list[str]:
    """Return a path, in the direction of the rows, that ends where it begins."""
    seen: list[str] = []
    id = next(iter(waiting))
    while id not in seen:
        seen.append(id)
        id = min(source for source in waiting[id] if source in waiting)
    return [*seen[seen.index(id) :], id][::-1]
