"""The metadata of spouts beside the log: what is too large for a record lies in a file, which the record names.

::

    1 the file is durable      2 the record that names it      3 some fold later nobody names it      4 it goes

A fold deletes, and nobody else: it lists the files first, and the CHECKPOINT that it then appends proves that this
driver is still the newest (rule 4.3). What a successor writes, it writes after its GENERATION record: that was not
listed. The driver itself writes a file only between its folds, with the lock of the log held.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from uuid import uuid4

from statefx.errors import RESTORE_OR_REPAIR, StateCorruptedError
from statefx.protocol.identity import FileRef
from statefx.protocol.jsonform import Json
from statefx.protocol.log_state import LogState
from statefx.protocol.metadata import INLINE_MAX_BYTES, BySpout, Metadata, merged
from statefx.protocol.records import Committing, Pin, Preparing, Processed, Record, Restored
from statefx.storage import Storage

FOLDER = "metadata/"

Files = dict[str, bytes]
"""Name -> content of files that are to be written."""


def put_aside(record: Record, files: Files) -> Record:
    """Return the record as it is to be written: large parts go into `files`, and are named."""
    if isinstance(record, Preparing) and record.planned:
        return replace(record, planned=_put_each(record.planned, files))
    if isinstance(record, Processed):
        return replace(record, emitted=_put_each(record.emitted, files))
    if isinstance(record, Committing) and record.emitted:
        return replace(record, emitted=_put_each(record.emitted, files))
    if isinstance(record, Restored):
        return replace(record, pin=_closed_up(record.pin, files))
    return record


def _put_each(said: BySpout, files: Files) -> BySpout:
    return {spout: _put(metadata, files) for spout, metadata in said.items()}


def _put(metadata: Metadata, files: Files) -> Metadata:
    if metadata.file is not None or not metadata.partitions:
        return metadata
    # As it is, without `to_json`, which takes several times as long: `check_json` has seen all of it.
    data = json.dumps(metadata.partitions, separators=(",", ":")).encode("ascii")
    if len(data) <= INLINE_MAX_BYTES:
        return metadata
    name = f"{FOLDER}{uuid4().hex}.json"  # never used again: a sweep can't take a new file for an old one
    files[name] = data
    return replace(metadata, partitions={}, file=FileRef.of(name, data))


def read_metadata(storage: Storage, metadata: Metadata) -> Mapping[str, Json]:
    """Return a spout's metadata by partition, as a copy: a spout may change it in place.

    After FileNotFoundError, read the log again: it was folded away since.
    """
    file = metadata.file
    if file is None:
        return copy.deepcopy(metadata.partitions) if metadata.partitions else {}
    data = storage.read(file.name)
    if not file.fits(data):
        path = f"{storage.url}/{file.name}"
        raise StateCorruptedError(
            f"the metadata of a spout in {path} is damaged: its checksum does not match the one in the log. "
            f"{RESTORE_OR_REPAIR}",
            path=path,
        )
    read: Mapping[str, Json] = json.loads(data)
    return read


def lost_metadata(storage: Storage, metadata: Metadata) -> StateCorruptedError:
    """Return the error of the newest driver for a missing metadata file."""
    path = f"{storage.url}/{metadata.file.name if metadata.file else ''}"
    return StateCorruptedError(
        f"the metadata of a spout in {path} is gone, and the log names it. {RESTORE_OR_REPAIR}",
        path=path,
    )


def committed_metadata(storage: Storage, state: LogState, spout: str) -> dict[str, Json]:
    """Return by partition the last committed metadata of a spout."""
    return merged(read_metadata(storage, layer) for layer in state.committed_metadata.get(spout, ()))


def compacted(storage: Storage, state: LogState, files: Files) -> LogState:
    """Return the state with each spout's committed metadata in one place, and those of savepoints in fewer."""
    together = dict(state.committed_metadata)
    for spout, layers in state.committed_metadata.items():
        if len(layers) > 1:
            together[spout] = (_put(Metadata(committed_metadata(storage, state, spout), whole=True), files),)
    pinned = {name: _closed_up(pin, files) for name, pin in state.pinned.items()}
    return replace(state, committed_metadata=together, pinned=pinned)


def _closed_up(pin: Pin, files: Files) -> Pin:
    """Return the pin with neighbouring layers in one, where they lie in a record: up to 64 kB of each transaction.

    No file is put into another one: it would go, and somebody may be copying the savepoint.
    """
    closed: dict[str, tuple[Metadata, ...]] = {}
    for spout, layers in pin.committed_metadata.items():
        found: list[Metadata] = []
        for layer in layers:
            if found and found[-1].file is None and layer.file is None:
                found[-1] = replace(found[-1], partitions={**found[-1].partitions, **layer.partitions})
            else:
                found.append(layer)
        closed[spout] = tuple(_put(each, files) for each in found)
    return replace(pin, committed_metadata=closed)


class Newest:
    """The newest committed metadata of a spout's partitions, from look to look.

    A transaction adds a layer. Without this, each look would put together what all partitions ever said.
    """

    def __init__(self) -> None:
        self._layers: tuple[Metadata, ...] = ()
        self._partitions: dict[str, Json] = {}

    def after(self, layers: tuple[Metadata, ...], read: Callable[[Metadata], Mapping[str, Json]]) -> dict[str, Json]:
        count = len(self._layers)
        if len(layers) < count or any(old is not new for old, new in zip(self._layers, layers, strict=False)):
            count, self._partitions = 0, {}
        for layer in layers[count:]:
            said = layer.partitions if layer.file is None else read(layer)
            self._partitions.update(said)
            for name in [name for name, metadata in said.items() if metadata is None]:
                del self._partitions[name]
        self._layers = layers
        return self._partitions


def written_files(storage: Storage) -> set[str]:
    return {each.name for each in storage.list(FOLDER)}


def named_files(state: LogState) -> Iterator[FileRef]:
    """Yield the files that the log names; one may come twice."""
    known = (state.committed_metadata, *(pin.committed_metadata for pin in state.pinned.values()))
    said = [each for by_spout in known for layers in by_spout.values() for each in layers]
    # Rule 9.4: also of transactions that are rolled back, since their next attempt reads the same.
    said += [each for metadata in state.planned_metadata.values() for each in metadata.values()]
    said += [
        each for entry in state.in_flight if entry.committing is not None for each in entry.committing.emitted.values()
    ]
    yield from (each.file for each in said if each.file is not None)
