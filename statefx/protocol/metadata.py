"""Metadata of spouts' partitions: from where to where a transaction reads each of them.

A transaction writes what it reads, of the partitions in which there is something new. So the metadata of one spout is a
stack of layers: the newest layer that names a partition says what holds for it. 10,000 partitions of which one has new
rows cost one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from statefx.protocol.identity import FileRef
from statefx.protocol.jsonform import Json

INLINE_MAX_BYTES = 64 << 10
"""What is larger lies in a file beside the log, which is read by who needs it. A record is read by everybody who opens
the log: a hundred of them, each with the metadata of 10,000 partitions, would make 50 MB of every look at the log."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """A spout's metadata in one transaction."""

    # Partition -> its metadata, of those that the transaction reads; null: it is forgotten.
    partitions: Mapping[str, Json] = field(default_factory=dict)
    file: FileRef | None = None  # where they are too large for a record: the file that has them
    whole: bool = False  # these are all partitions: no layer before this one counts any more


BySpout = Mapping[str, Metadata]
"""Spout id -> its metadata."""


def read_now(before: Iterable[str], now: Mapping[str, Json]) -> Metadata:
    """Return the metadata of a transaction that reads the partitions of `now`, after those of `before`.

    >>> read_now(["a", "b"], {"b": 5}).whole, read_now(["a", "b"], {"a": 2, "b": 5}).whole
    (False, True)
    """
    # Without `whole`, a fold of 100 transactions that read each of 10,000 partitions would read 100 files: 0.4 s.
    # Up to the first that is missing: of ever so many partitions one may have been read.
    return Metadata(now, whole=bool(now) and all(name in now for name in before))


def stacked(layers: tuple[Metadata, ...], newest: Metadata) -> tuple[Metadata, ...]:
    """Return the layers that count when `newest` lies on top of them."""
    return (newest,) if newest.whole else (*layers, newest)


def merged(layers: Iterable[Mapping[str, Json]]) -> dict[str, Json]:
    """Return what holds after these layers, oldest first.

    >>> merged([{"a": 1, "b": 2}, {"b": 5, "a": None}])
    {'b': 5}
    """
    found: dict[str, Json] = {}
    for layer in layers:
        found.update(layer)
    return {name: metadata for name, metadata in found.items() if metadata is not None}
