"""The file format of changelogs and snapshots, and how one is written: immutable, checksummed, of sorted entries.

::

    head    magic 8s | format u32 | identity bytes u32 | entries u64 | body bytes u64 | body xxh3_128 16s
    seal    xxh3_128 16s over head and identity; its hex is the file's `checksum`
    identity  JSON of an `Identity`
    body    chunks: payload bytes u32 | payload xxh3_64 8s | payload = msgpack [keys, values], nil deletes

Head, seal and identity lie like this in every format, so that a newer one is told from a damaged one.

A file gets its name only when it is complete and on disk, so a damaged one is corruption, never a crash's rest.
"""

from __future__ import annotations

import operator
import struct
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO, cast

import msgpack
import msgspec
from xxhash import xxh3_64_digest, xxh3_128

from statefx.errors import RESTORE_OR_REPAIR, StateCorruptedError, StateError
from statefx.protocol.identity import Namespace, Version
from statefx.state.contract.blocks import InBlocks, in_blocks, regrouped
from statefx.state.contract.store import Write
from statefx.storage import Storage, Stored

CHANGELOG = "changelog"
SNAPSHOT = "snapshot"
FORMAT = 1

MAGIC = b"statefx\n"
HEAD = struct.Struct(">8sIIQQ16s")
SEAL_BYTES = 16
_CHECKSUM_DIGITS = 2 * SEAL_BYTES
CHUNK = struct.Struct(">I8s")
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """What a file says it is, before any of its entries.

    Attributes
    ----------
    kind : str
        ``changelog`` (what one transaction changed) or ``snapshot`` (a full image).
    predecessor : Version
        The version that a changelog's entries are applied to; a snapshot's own version.
    covers : bytes
        The versions between, to which a changelog can be applied as well (`statefx.state.changelog.merging`).
    beneath : str
        The changelogs before it, newest first, a line for each (`line_of`), as far as they are known: who has read this
        file can read those all at once. One text, for most who read it need no line of it, and taking 60 apart costs
        as much as reading the file. What counts is each file's own `predecessor`.
    sizes : tuple of int
        Bytes of their entries.
    """

    kind: str
    namespace: Namespace
    version: Version
    generation: int
    predecessor: Version
    covers: bytes = field(default=b"", repr=False)
    beneath: str = ""
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Artefact:
    """A complete file, as its verified head describes it.

    `size_bytes` are those of all of it, `body_bytes` of its entries; `whole` is all of it, if it came with the head.
    """

    name: str
    identity: Identity
    entries: int
    size_bytes: int
    checksum: str
    body_bytes: int
    body_digest: bytes = field(repr=False)
    whole: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as a listing describes it."""

    name: str
    kind: str
    version: Version
    modified: float

    @property
    def txid(self) -> int:
        """The transaction in which it was written: a snapshot of t is written in t + 1, whose record may name it."""
        return self.version.txid + (self.kind == SNAPSHOT)


def changelog_name(prefix: str, version: Version) -> str:
    """Return the name of a version's changelog: to open one, nothing is listed.

    So the generation is in the file and not in its name: who knows a version need not know who wrote it.
    """
    return f"{prefix}/{_stem(version)}.{CHANGELOG}"


def snapshot_name(prefix: str, version: Version, checksum: str) -> str:
    """Return the name of the image of `version` that has `checksum`.

    Attempts of several generations write images of one version, and the generation is part of what is summed up:
    named by the version alone, a late one would replace the one that the log names.
    """
    return f"{prefix}/{_stem(version)}-{checksum}.{SNAPSHOT}"


def names_of(prefix: str, txid: int) -> str:
    """Return how the names begin of all files that were prepared for a transaction, by whichever attempt."""
    return f"{prefix}/{txid:020d}-"


def line_of(version: Version) -> str:
    """Return the line of a file among those beneath another.

    >>> version_of(line_of(Version(3, "a-b"))) == Version(3, "a-b")
    True
    """
    return f"{version.txid}-{version.token}"


def version_of(line: str) -> Version:
    """Return the version whose line it is."""
    txid, _, token = line.partition("-")
    return Version(int(txid), token)


def _stem(version: Version) -> str:
    return f"{version.txid:020d}-{version.token}"


def new_token() -> str:
    """Return a token that nothing else has, nor ever will."""
    return uuid.uuid4().hex


def corrupted(path: str, found: str, expected: str, *, missing: bool = False) -> StateCorruptedError:
    """Return the error for a file that isn't what it must be."""
    problem = f"{found}; expected {expected}"
    return StateCorruptedError(
        f"{path}: {problem}. {RESTORE_OR_REPAIR}; never edit files below state/",
        path=path,
        problem=problem,
        expected=expected,
        missing=missing,
    )


def problem_of(error: Exception) -> str:
    """Return what is wrong with a file, without its path and the remedy."""
    return str(getattr(error, "problem", error))


def write(storage: Storage, prefix: str, identity: Identity, entries: Iterable[Write]) -> Artefact:
    """Write `entries` (sorted by key, each key once) and make the file durable, all or nothing.

    Raises StateError: the file system or the store refused, for instance because the disk is full; carries ``path`` and
    ``errno``. Nothing is left behind.
    """
    name = changelog_name(prefix, identity.version)
    stem = f"{prefix}/{_stem(identity.version)}"
    written: list[Artefact] = []

    def ending() -> str:
        return written[0].name.removeprefix(stem)

    try:
        with storage.writer(stem, ending) as file:
            written.append(_write_to(file, prefix, identity, entries))
    except OSError as error:
        path = f"{storage.url}/{name.removesuffix(CHANGELOG)}{identity.kind}"
        raise StateError(f"{path}: cannot be written: {error.strerror}", path=path, errno=error.errno) from error
    return written[0]


def _write_to(file: BinaryIO, prefix: str, identity: Identity, entries: Iterable[Write]) -> Artefact:
    text = msgspec.json.encode(identity)
    start = HEAD.size + SEAL_BYTES + len(text)
    file.write(bytes(start))
    body = xxh3_128()
    count = size = 0
    for number, payload in _pack(entries):
        frame = CHUNK.pack(len(payload), xxh3_64_digest(payload))
        body.update(frame)
        body.update(payload)
        file.write(frame)
        file.write(payload)
        count += number
        size += len(frame) + len(payload)
    head = HEAD.pack(MAGIC, FORMAT, len(text), count, size, body.digest())
    seal = xxh3_128(head + text)
    file.seek(0)
    file.write(head + seal.digest() + text)
    checksum, version = seal.hexdigest(), identity.version
    if identity.kind == CHANGELOG:
        name = changelog_name(prefix, version)
    else:
        name = snapshot_name(prefix, version, checksum)
    return Artefact(name, identity, count, start + size, checksum, size, body.digest())


def _pack(entries: Iterable[Write]) -> Iterator[tuple[int, bytes]]:
    """Yield (entries, payload); chunk bounds depend on the entries alone, so equal images are equal files."""
    blocks: Iterator[tuple[list[bytes], list[Any]]]
    blocks = regrouped(entries.blocks()) if isinstance(entries, InBlocks) else in_blocks(entries)
    packer = msgpack.Packer(use_bin_type=True)
    last: bytes | None = None
    for keys, values in blocks:
        if (last is not None and keys[0] <= last) or any(map(operator.ge, keys, islice(keys, 1, None))):
            raise ValueError("entries must be sorted by key, each key once")
        last = keys[-1]
        for low, high in _slices(keys, values):
            yield high - low, cast(bytes, packer.pack((keys[low:high], values[low:high])))


def _slices(keys: list[bytes], values: list[bytes | None]) -> Iterator[tuple[int, int]]:
    if sum(map(len, keys)) + sum(map(len, filter(None, values))) <= _CHUNK_BYTES:
        yield 0, len(keys)
        return
    low = size = 0
    for high, (key, value) in enumerate(zip(keys, values, strict=True)):
        more = len(key) + len(value or b"")
        if high > low and size + more > _CHUNK_BYTES:
            yield low, high
            low, size = high, 0
        size += more
    yield low, len(keys)


def listed(found: Stored) -> Listed | None:
    """Return what a file's name says; None if it is not an artefact's."""
    stem, _, kind = found.name.rpartition("/")[2].partition(".")
    if kind == SNAPSHOT:
        stem, _, checksum = stem.rpartition("-")
        if len(checksum) != _CHECKSUM_DIGITS:
            return None
    txid, _, token = stem.partition("-")
    if kind not in (CHANGELOG, SNAPSHOT) or not token or not txid.isdecimal():
        return None
    return Listed(found.name, kind, Version(int(txid), token), found.modified)
