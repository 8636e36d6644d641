"""What spouts say of their partitions: from where to where a transaction reads each of them.

A transaction writes what differs from the transaction before it. So the metadata of one spout is a stack of layers: the
newest layer that names a partition says what holds for it. 10,000 partitions of which one has new rows cost one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from statefx.protocol.identity import FileRef
from statefx.protocol.jsonform import Json

INLINE_MAX_BYTES = 64 << 10
"""What is larger lies in a file beside the log, which is read by who needs it. A record is read by everybody who opens
the log: a hundred of them, each with the metadata of 10,000 partitions, would make 50 MB of every `openState`."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What one spout says in one transaction.

    Attributes
    ----------
    partitions : Mapping[str, JSON]
        Partition -> its metadata, where that differs from the transaction before; null: there is none any more.
    file : FileRef or None
        Where they are too large for a record: the file that has them.
    whole : bool
        These are all partitions: no layer before this one counts any more.
    """

    partitions: Mapping[str, Json] = field(default_factory=dict)
    file: FileRef | None = None
    whole: bool = False


BySpout = Mapping[str, Metadata]
"""Spout id -> its metadata."""


def changed(before: Mapping[str, Json], now: Mapping[str, Json]) -> Metadata:
    """Return what a transaction has to write: the partitions in which `now` differs from `before`.

    >>> changed({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5}).partitions
    {'b': 5, 'c': None}
    >>> changed({"a": 1, "b": 2}, {"a": 2, "b": 5}).whole
    True
    """
    new = {name: metadata for name, metadata in now.items() if before.get(name) != metadata}
    # Without this, a fold of 100 transactions that changed each of 10,000 partitions would read 100 files: 0.4 s.
    if new and len(new) == len(now):
        return Metadata(new, whole=True)
    return Metadata(new | {name: None for name in before if name not in now})


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
