"""The records of the transaction log as bytes under numbered names: how one is rendered, and how all are verified."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from statefx.errors import CheckpointError, CheckpointFormatError, StateCorruptedError
from statefx.protocol.jsonform import NewerError, from_json, to_json
from statefx.protocol.records import Checkpoint, Generation, Lineage, Record
from statefx.storage import Storage
from statefx.storage.contract import DAMAGED, READERS

logger = logging.getLogger("statefx")

FORMAT = 2
FIRST = 1
READ_TRIES = 10
RECORD_BYTES_MAX = 16 << 20
"""Of one record, but for a CHECKPOINT, which has what is true. Everybody who opens the log reads a hundred of them.
16 MB is the decision of 250 tasks whose acks carry all that they may (rule 4.5), or of 50,000 with state alone."""

FOLDER = "transactions/"

FENCING = (Generation, Lineage)
"""The first records of a driver that takes over. An older driver meets it at its next append: it is never deleted
(rule 3.3)."""

FOLDED = f"{FOLDER}folded"
"""Made before the first record of a log is deleted; never deleted itself. A log that has it begins at a CHECKPOINT. It
lists the numbers of `FENCING` records, so that no later driver has to read these."""

_NAME = re.compile(r"transactions/(\d{20})\.json\Z")
_REMEDY = (
    "Restore this file from a copy of the checkpoint. If there is none, the checkpoint can't be continued: "
    "start with a new checkpointLocation."
)


def digest(data: bytes) -> str:
    """Return the hash that checksums a record and chains it to the one before."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as it is stored."""

    number: int
    """Its place in the log, from 1."""
    previous: str
    """Hash of the bytes of the record before it, empty for the first."""
    nonce: str
    """Of the append that wrote it."""
    time_ms: int
    """When it was written, in milliseconds since the epoch, by the writer's clock. Shown to people."""
    record: Record
    data: bytes


def entry_name(number: int) -> str:
    return f"{FOLDER}{number:020d}.json"


def text_of(record: Record) -> str:
    """Return the JSON text of a record; TypeError if it holds something that JSON does not."""
    return json.dumps(to_json(record), separators=(",", ":"))


def check_size(record: Record, text: str, where: str) -> None:
    """Refuse a record that is too large for the log in `where`: CheckpointError, which names its largest part."""
    if len(text) <= RECORD_BYTES_MAX:
        return
    sizes = {
        f"{field} of {key!r}" if key else field: len(json.dumps(value))
        for field, body in json.loads(text).items()
        for key, value in (body.items() if isinstance(body, dict) else [("", body)])
    }
    largest = max(sizes, key=lambda name: sizes[name])
    raise CheckpointError(
        f"nothing was appended to {where}: a {record.kind} record would have {len(text)} bytes, and "
        f"{RECORD_BYTES_MAX} is the most. Its largest part is the {largest} with {sizes[largest]} bytes: write that to "
        "a file, and name the file with its checksum",
        path=where,
        size_bytes=len(text),
    )


def as_read(record: Record, text: str | None = None) -> Record:
    read: Record = from_json(type(record), json.loads(text or text_of(record)))
    return read


def entry_of(
    number: int, previous: str, nonce: str, record: Record, time_ms: int = 0, text: str | None = None
) -> Entry:
    """Make the entry of a record that is to be written; `text` is the record's, if that is known already."""
    head = {"format": FORMAT, "number": number, "previous": previous, "nonce": nonce, "time_ms": time_ms}
    # the text of the record is put in as it is: with 1,000 tasks, writing it takes longer than all else of an append
    body = f'{json.dumps(head, separators=(",", ":"))[:-1]},"record":{text or text_of(record)}'.encode("ascii")
    return Entry(number, previous, nonce, time_ms, record, body + _tail(body))


def _tail(body: bytes) -> bytes:
    return f',"checksum":"{digest(body + b"}")}"}}\n'.encode("ascii")


_TAIL_BYTES = len(_tail(b""))


def numbers(storage: Storage) -> list[int]:
    """Return the numbers of the records, ascending; one listing, in whatever order a store gives it."""
    found = (_NAME.match(each.name) for each in storage.list(FOLDER))
    return sorted(int(match[1]) for match in found if match)


def verified(storage: Storage, number: int, data: bytes) -> Entry:
    """Return the record of these bytes; StateCorruptedError or CheckpointFormatError if it is not whole, or another."""
    path = _path(storage, number)
    try:
        fields = json.loads(data)
        version = fields["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise corrupted(path, f"it is not a complete record ({error})") from error
    # Before the checksum: a newer format may have another one, and must not be called damaged (rule 3.11).
    if version != FORMAT:
        message = f"{path} has log format {version!r}, this statefx reads {FORMAT}: use the release that wrote it"
        raise CheckpointFormatError(message, path=path, format=version)
    try:
        if data[-_TAIL_BYTES:] != _tail(data[:-_TAIL_BYTES]):
            raise corrupted(path, f"its checksum does not match (stored {fields['checksum']})")
        if fields["number"] != number:
            raise corrupted(path, f"it holds record {fields['number']}")
        record = from_json(Record, fields["record"])
        return Entry(number, fields["previous"], fields["nonce"], fields["time_ms"], record, data)
    except NewerError as error:  # rule 3.11; the checksum fits, so it is no damage
        message = f"{path} was written by a newer release of statefx ({error}): open it with that one"
        raise CheckpointFormatError(message, path=path) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise corrupted(path, f"its content can't be read ({error!r})") from error


def followers_kept(storage: Storage, first: Entry | None) -> bool:
    """Return whether no record after `first`, where a reading of the log begins, has been deleted by now.

    A fold makes `FOLDED`, deletes the older CHECKPOINTs, and only then the other records. So while the CHECKPOINT that
    a reading begins at is there as it was, all that followed it is there. A reading that begins at no CHECKPOINT looks
    for `FOLDED`.
    """
    begun = first if first is not None and isinstance(first.record, Checkpoint) else None
    try:
        found = storage.read(FOLDED if begun is None else entry_name(begun.number))
    except FileNotFoundError:
        return begun is None
    # A fold keeps what it can't read, and would not know that a damaged record is a CHECKPOINT.
    return begun is not None and found == begun.data


def folded_mark(fencing: Iterable[int]) -> bytes:
    """Return the content of `FOLDED`; `fencing` are numbers of `FENCING` records."""
    return json.dumps({"fencing": sorted(fencing)}, separators=(",", ":")).encode("ascii")


def kinds_of(storage: Storage, unknown: Sequence[int]) -> dict[int, type[Record] | None]:
    """Return the kinds of records of earlier drivers; None for a record that is damaged, or of a newer release.

    OSError: one can't be read now. A kind of `FENCING` stands for the other as well.
    """
    known: dict[int, type[Record] | None] = {}
    if unknown:
        with suppress(OSError, ValueError, KeyError, TypeError):  # without the list, all are read
            known |= dict.fromkeys(set(unknown).intersection(json.loads(storage.read(FOLDED))["fencing"]), Generation)
    unread = [number for number in unknown if number not in known]
    for at in range(0, len(unread), READERS):
        several = unread[at : at + READERS]
        for number, found in zip(several, storage.read_all([entry_name(each) for each in several]), strict=True):
            known[number] = _kind_of(storage, number, found)
    return known


def _kind_of(storage: Storage, number: int, found: bytes | OSError) -> type[Record] | None:
    if isinstance(found, OSError) and found.errno not in DAMAGED:
        raise found
    try:
        if isinstance(found, OSError):
            raise corrupted(_path(storage, number), f"it can't be read ({found})")
        return type(verified(storage, number, found).record)
    except (StateCorruptedError, CheckpointFormatError) as error:
        logger.warning("an old record of the log is not deleted, since it may fence older drivers: %s", error)
        return None


def read_entries(storage: Storage) -> list[Entry]:
    """Read the newest CHECKPOINT and what follows it, or everything if there is none; verified as a chain.

    Others may append and fold meanwhile: a record that vanishes makes it start again, a bounded number of times.
    """
    newest, vanished = set[int](), list[FileNotFoundError]()
    for _ in range(READ_TRIES):
        listing = numbers(storage)
        newest.add(listing[-1] if listing else 0)
        try:
            return _read_back(storage, listing[-1] if listing else 0)
        except FileNotFoundError as error:  # a driver that folds has deleted it; or somebody else has, by mistake
            vanished.append(error)
    if len(newest) == 1:  # twice is no proof: what a fold deletes and what it appends can be missed by both listings
        raise corrupted(str(vanished[-1].filename), "it is missing") from vanished[-1]
    raise StateCorruptedError(
        f"{storage.url}/{FOLDER} changed under each of {READ_TRIES} readings: is another process deleting in it?",
        path=storage.url,
    )


def _read_back(storage: Storage, newest: int) -> list[Entry]:
    """Read from `newest` down to a CHECKPOINT, or to the first record.

    A listing is no instant: with what a fold deletes while the names are read, and a CHECKPOINT that comes too late for
    them, a log of thousands of records seems to end at its second one, which is never deleted (rule 3.4). That the
    CHECKPOINT could be read, after the names, proves that nothing behind it was missed.
    """
    entries: list[Entry] = []
    for entry in _backwards(storage, newest):
        if entries and entries[-1].previous != digest(entry.data):
            raise corrupted(_path(storage, entry.number), f"it is not the record that {entry.number + 1} follows")
        entries.append(entry)
        if isinstance(entry.record, Checkpoint):
            return entries[::-1]  # what is before it may be half deleted (rule 3.10)
    if not followers_kept(storage, None):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), _path(storage, newest + 1))
    if entries and entries[-1].previous:
        raise corrupted(_path(storage, FIRST), "it claims to follow another record")
    return entries[::-1]


def _backwards(storage: Storage, newest: int) -> Iterator[Entry]:
    """Yield the records from `newest` down to the first, for as long as somebody asks; many are read at a time.

    Raises what reading one of them raised, when its turn comes: what is before a CHECKPOINT may be gone.
    """
    for last in range(newest, FIRST - 1, -READERS):
        several = range(last, max(last - READERS, FIRST - 1), -1)
        for number, found in zip(several, storage.read_all([entry_name(each) for each in several]), strict=True):
            if isinstance(found, OSError):
                raise found
            yield verified(storage, number, found)


def corrupted(path: str, what: str) -> StateCorruptedError:
    """Return the error that names a record, what is wrong and the remedy."""
    return StateCorruptedError(f"transaction log record {path}: {what}. {_REMEDY}", path=path, remedy=_REMEDY)


def _path(storage: Storage, number: int) -> str:
    return f"{storage.url}/{entry_name(number)}"
