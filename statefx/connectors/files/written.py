"""What tasks of a FileSink have written: files under their final names, which count when the commit has named them.

::

    <folder>/part-<txid>-<task>-<token>-<n><suffix>      rows of one task in one attempt; they count once they are named
    <folder>/_statefx/lists/part-<txid>-<task>-<token>   names of a task's files, where those are too many for the log
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xxhash import xxh3_128

from statefx.errors import StagedRowsLostError
from statefx.operators.sinks import Committable
from statefx.storage import FolderStorage

LISTS = "_statefx/lists"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task has written: its name below the folder, its size, and when (since the epoch)."""

    name: str
    size_bytes: int
    modified_ms: int


def written_files(storage: FolderStorage, committables: Mapping[int, Committable]) -> list[WrittenFile]:
    """Return the files of a transaction, in the order of the tasks.

    StagedRowsLostError if one is missing, or has another length than it was given. Its bytes are not read: the driver
    would read again what all tasks have written.
    """
    found = [each for task in sorted(committables) for each in _files(storage, committables[task])]
    for file, size_bytes in zip(found, storage.sizes([each.name for each in found]), strict=True):
        if size_bytes != file.size_bytes:
            path = storage.path(file.name)
            seen = "is missing" if size_bytes is None else f"has {size_bytes} bytes, not {file.size_bytes}"
            raise StagedRowsLostError(
                f"{path} {seen}: it holds rows of a transaction that is decided, and that is not published yet. "
                "Restore the file; the sink goes on by itself then",
                file=path,
            )
    return found


def _files(storage: FolderStorage, committable: Committable) -> Iterator[WrittenFile]:
    """Yield the files of a task; a long list of them is in a file of its own."""
    if "files" not in committable:
        name = str(committable["list"])
        try:
            data = storage.read(name)
        except FileNotFoundError:
            data = b""
        if xxh3_128(data).hexdigest() != committable["checksum"]:
            raise StagedRowsLostError(
                f"{storage.url}/{name} is missing or damaged: it names files of a transaction that is decided. Restore "
                "it; the sink goes on by itself then",
                file=name,
            )
        committable = json.loads(data)
    for each in committable["files"]:
        yield WrittenFile(**each)


def txid_of_file(name: str) -> int | None:
    """Return the transaction of a file that a writer named; None if the name is not a writer's."""
    found = re.match(r"part-(\d{10})-", name.rpartition("/")[2])
    return None if found is None else int(found[1])
