"""Fence markers: names in a checkpoint that tell the newest generation of a lineage."""

from __future__ import annotations

from statefx.errors import FencedError
from statefx.storage import Storage


def fence(storage: Storage, lineage: str, generation: int) -> None:
    """Refuse generations of `lineage` older than `generation` from now on, durably.

    One marker per generation, and the highest counts: two drivers that fence at once can't undo each other.

    Raises FencedError: a newer generation has been here.
    """
    check(storage, lineage, generation)
    own = _name(lineage, generation)
    storage.create(own, b"")  # two that fence for one generation write the same
    storage.delete([each.name for each in storage.list(_name(lineage)) if each.name < own])


def check(storage: Storage, lineage: str, generation: int) -> None:
    """Raise FencedError if a generation newer than `generation` has fenced `lineage`."""
    newer = [each.name for each in storage.list(_name(lineage), after=_name(lineage, generation))]
    if newer:
        newest = int(max(newer).rpartition("/")[2])
        raise FencedError(
            f"{storage.url}: generation {newest} has taken over from generation {generation}; stop this driver",
            folder=storage.url,
            generation=generation,
            newest=newest,
        )


def _name(lineage: str, generation: int | None = None) -> str:
    return f"fences/{lineage}/" + ("" if generation is None else f"{generation:020d}")
