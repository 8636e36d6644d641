"""The files of the transaction log: how one is written as bytes, and how a folder of them is read and verified."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from statefx.coordinator.records import Checkpoint, Record, record_from
from statefx.errors import CheckpointFormatError, StateCorruptedError

FORMAT = 1
FIRST = 1
READ_TRIES = 10

_NAME = re.compile(r"(\d{20})\.json\Z")
_REMEDY = (
    "Restore this file from a copy of the checkpoint. If there is none, the checkpoint can't be continued: "
    "start with a new checkpointLocation."
)


def digest(data: bytes) -> str:
    """Return the hash that checksums a record and chains it to the one before."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as it is on disk.

    Attributes
    ----------
    number : int
        Its place in the log, from 1.
    previous : str
        Hash of the bytes of the file before it, empty for the first.
    nonce : str
        Of the append that wrote it.
    record : Record
        What it says.
    data : bytes
        The file.
    """

    number: int
    previous: str
    nonce: str
    record: Record
    data: bytes


def entry_path(folder: str, number: int) -> str:
    """Return the path of record `number`."""
    return os.path.join(folder, f"{number:020d}.json")


def entry_of(number: int, previous: str, nonce: str, record: Record) -> Entry:
    """Make the entry of a record that is to be written."""
    body = record.body()
    data = _render(number, record.kind, previous, nonce, body)
    return Entry(number, previous, nonce, record, data)


def as_read(record: Record) -> Record:
    """Return `record` as it will be read back: lists for tuples, text for keys, nothing shared with the caller."""
    return record_from(record.kind, json.loads(_text(record.body())))


def _render(number: int, kind: str, previous: str, nonce: str, body: Any) -> bytes:
    fields = {"format": FORMAT, "number": number, "kind": kind, "previous": previous, "nonce": nonce, "body": body}
    fields["checksum"] = digest(_text(fields))
    return _text(fields) + b"\n"


def _text(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def numbers(folder: str) -> list[int]:
    """Return the numbers of the records in `folder`, ascending; one listing."""
    found = (_NAME.match(name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in found if match)


def read_entry(folder: str, number: int) -> Entry:
    """Read and verify one file.

    Raises
    ------
    FileNotFoundError
        It isn't there.
    StateCorruptedError
        It is damaged or was edited.
    CheckpointFormatError
        A newer statefx wrote it.
    """
    path = entry_path(folder, number)
    with open(path, "rb") as file:
        data = file.read()
    try:
        fields = json.loads(data)
        version = fields["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise corrupted(path, f"it is not a complete record ({error})") from error
    if version != FORMAT:
        message = f"{path} has log format {version!r}, this statefx reads {FORMAT}: open it with the newer release"
        raise CheckpointFormatError(message, path=path, format=version)
    try:
        rendered = _render(fields["number"], fields["kind"], fields["previous"], fields["nonce"], fields["body"])
        if rendered != data:
            raise corrupted(path, f"its checksum does not match (stored {fields['checksum']})")
        if fields["number"] != number:
            raise corrupted(path, f"it holds record {fields['number']}")
        record = record_from(fields["kind"], fields["body"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise corrupted(path, f"its content can't be read ({error!r})") from error
    return Entry(number, fields["previous"], fields["nonce"], record, data)


def read_entries(folder: str) -> list[Entry]:
    """Read the newest CHECKPOINT and what follows it, or everything if there is none; verified as a chain.

    Others may append and fold meanwhile: a file that vanishes makes it start again, a bounded number of times.

    Raises
    ------
    FileNotFoundError
        There is no such folder.
    StateCorruptedError
        A record is damaged, missing or edited.
    """
    listing = numbers(folder)
    for _ in range(READ_TRIES):
        try:
            return _read_back(folder, listing)
        except FileNotFoundError as error:
            before, listing = listing, numbers(folder)
            if listing == before:
                raise corrupted(str(error.filename), "it is missing") from error
    raise StateCorruptedError(
        f"{folder} changed under each of {READ_TRIES} readings: is another process deleting files in it?", path=folder
    )


def _read_back(folder: str, listing: list[int]) -> list[Entry]:
    entries: list[Entry] = []
    number = listing[-1] if listing else 0
    while number >= FIRST:
        entry = read_entry(folder, number)
        if entries and entries[-1].previous != digest(entry.data):
            path = entry_path(folder, number)
            raise corrupted(path, f"it is not the record that {number + 1} follows")
        entries.append(entry)
        if isinstance(entry.record, Checkpoint):
            break
        number -= 1
    else:
        if entries and entries[-1].previous:
            raise corrupted(entry_path(folder, FIRST), "it claims to follow another record")
    entries.reverse()
    return entries


def corrupted(path: str, what: str) -> StateCorruptedError:
    """Make the error that names a file of the log, what is wrong and the remedy."""
    return StateCorruptedError(f"transaction log record {path}: {what}. {_REMEDY}", path=path, remedy=_REMEDY)
