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

import io
import operator
import struct
import uuid
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, BinaryIO, cast

import msgpack
import msgspec
from xxhash import xxh3_64_digest, xxh3_128

from statefx.errors import RESTORE_OR_REPAIR, CheckpointFormatError, FencedError, StateCorruptedError, StateError
from statefx.protocol.identity import Namespace, Version
from statefx.state.contract.ranges import InBlocks, in_blocks, regrouped
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
    """The head of a file, before any of its entries.

    `kind` is ``changelog`` (what one transaction changed) or ``snapshot`` (a full image). `predecessor` is the version
    that a changelog's entries are applied to, or a snapshot's own. `covers` are the versions between, to which a
    changelog can be applied as well (`statefx.state.changelog.merging`). `beneath` are the changelogs before it, newest
    first, a line for each (`line_of`), as far as they are known: a reader of this file can read those all at once. It
    is one text, since most readers need no line of it, and taking 60 apart costs as much as reading the file. What
    counts is each file's own `predecessor`. `sizes` are the bytes of their entries.
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

    Attempts of several generations write images of one version, and the generation is part of what is summed up: named
    by the version alone, a late one would replace the one that the log names.
    """
    return f"{prefix}/{_stem(version)}-{checksum}.{SNAPSHOT}"


def names_of(prefix: str, txid: int) -> str:
    """Return the prefix of all files that were prepared for a transaction, by whichever attempt."""
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
    return uuid.uuid4().hex


def corrupted(path: str, found: str, expected: str, *, missing: bool = False) -> StateCorruptedError:
    problem = f"{found}; expected {expected}"
    return StateCorruptedError(
        f"{path}: {problem}. {RESTORE_OR_REPAIR}; never edit files below state/",
        path=path,
        problem=problem,
        expected=expected,
        missing=missing,
    )


def problem_of(error: Exception) -> str:
    return str(getattr(error, "problem", error))


def write_file(storage: Storage, prefix: str, identity: Identity, entries: Iterable[Write]) -> Artefact:
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
    """Return what a file's name says, or None if it is not an artefact's."""
    stem, _, kind = found.name.rpartition("/")[2].partition(".")
    if kind == SNAPSHOT:
        stem, _, checksum = stem.rpartition("-")
        if len(checksum) != _CHECKSUM_DIGITS:
            return None
    txid, _, token = stem.partition("-")
    if kind not in (CHANGELOG, SNAPSHOT) or not token or not txid.isdecimal():
        return None
    return Listed(found.name, kind, Version(int(txid), token), found.modified)


_IDENTITY_BYTES_MAX = 64 << 10

FIRST_BYTES = 128 << 10
"""Read of a file at once, with its head: all of most files (the two lowest tiers of `statefx.state.changelog.merging`),
so that these take one request and not two, and room for the longest identity."""

_TOGETHER_BYTES = 16 << 20
"""Of larger files so much is read at a time, by several requests at once, and held in memory until it is used."""

_PEEKED_BYTES = 500
"""Of a block these are read to see its first key."""

_DAMAGED_BLOCK = "a block of entries is damaged"

Chunk = tuple[list[bytes], list[bytes | None]]


def read_head(storage: Storage, name: str) -> Artefact:
    [found] = read_heads(storage, [name])
    if isinstance(found, StateError):
        raise found
    return found


def read_heads(storage: Storage, names: Sequence[str]) -> list[Artefact | StateError]:
    """Read the heads of many files at once: for each what its verified head says, or what is wrong with it."""
    read = zip(names, storage.read_all(names, FIRST_BYTES), strict=True)
    return [_head_or_error(storage, name, found) for name, found in read]


def _head_or_error(storage: Storage, name: str, found: bytes | OSError) -> Artefact | StateError:
    path = f"{storage.url}/{name}"
    if isinstance(found, OSError):
        return _unreadable(path, found)
    try:
        return _parse_head(name, path, found)
    except StateCorruptedError as error:
        return error


def _parse_head(name: str, path: str, first: bytes) -> Artefact:
    """Verify the head of a file of which the first `FIRST_BYTES` are given, or all if it has fewer."""
    fixed = HEAD.size + SEAL_BYTES
    if len(first) < fixed:
        raise corrupted(path, f"only {len(first)} bytes", "a complete file")
    magic, version, length, count, body_bytes, digest = HEAD.unpack_from(first)
    if magic != MAGIC:
        raise corrupted(path, "it does not begin as a state file does", "a statefx changelog or snapshot")
    if length > _IDENTITY_BYTES_MAX:
        raise corrupted(path, "its head is damaged", f"at most {_IDENTITY_BYTES_MAX} bytes of identity")
    text = first[fixed : fixed + length]
    seal = xxh3_128(first[: HEAD.size] + text)
    if seal.digest() != first[HEAD.size : fixed]:
        raise corrupted(path, f"the checksum of its head is {seal.hexdigest()}", first[HEAD.size : fixed].hex())
    if version > FORMAT:
        raise CheckpointFormatError(f"{path}: format {version} is newer than {FORMAT}; upgrade statefx", path=path)
    size = fixed + length + body_bytes
    if len(first) < min(size, FIRST_BYTES) or size < len(first):
        raise corrupted(path, f"{len(first)} bytes", f"{size} bytes")
    whole = first if len(first) == size else b""
    identity = msgspec.json.decode(text, type=Identity)
    return Artefact(name, identity, count, size, seal.hexdigest(), body_bytes, digest, whole)


def read_file(storage: Storage, artefact: Artefact) -> Iterator[Chunk]:
    """Yield the entries chunk by chunk, each verified; at the end the whole file has been verified.

    A caller that must not see a part of a damaged file acts when the iterator is exhausted.
    """
    path = f"{storage.url}/{artefact.name}"
    try:
        with io.BytesIO(artefact.whole) if artefact.whole else storage.reader(artefact.name) as file:
            for chunk in read_blocks(path, file, artefact):
                if isinstance(chunk, StateCorruptedError):
                    raise chunk
                yield chunk
    except OSError as error:
        raise _unreadable(path, error) from error


def read_range(storage: Storage, artefact: Artefact, start: bytes | None, stop: bytes | None) -> Iterator[Chunk]:
    """Yield the entries with start <= key < stop, block by block, each block verified; None is unbounded.

    Of the other blocks only the first key is read, but of the first one behind the range, which is verified too: a
    damaged key of a block must not make it seem to lie behind. One that made a block seem to lie before the range would
    show in the next one, which is read then.
    """
    path = f"{storage.url}/{artefact.name}"
    try:
        with io.BytesIO(artefact.whole) if artefact.whole else storage.reader(artefact.name) as file:
            blocks = _blocks(path, file, artefact)
            block = next(blocks, None)
            while block is not None:
                if stop is not None and block.first >= stop:
                    block.read(path, file)
                    break
                following = next(blocks, None)
                if start is None or following is None or following.first > start:
                    keys, values = block.read(path, file)
                    low = 0 if start is None else bisect_left(keys, start)
                    high = len(keys) if stop is None else bisect_left(keys, stop)
                    if low < high:
                        yield (keys, values) if high - low == len(keys) else (keys[low:high], values[low:high])
                block = following
    except OSError as error:
        raise _unreadable(path, error) from error


@dataclass(frozen=True, slots=True)
class _Block:
    """The place of a block of entries in its file."""

    at: int
    size_bytes: int
    digest: bytes
    first: bytes
    """Its first key, as it stands there, not verified."""

    def read(self, path: str, file: BinaryIO) -> Chunk:
        file.seek(self.at)
        payload = file.read(self.size_bytes)
        if len(payload) < self.size_bytes or xxh3_64_digest(payload) != self.digest:
            raise corrupted(path, _DAMAGED_BLOCK, f"block checksum {self.digest.hex()}")
        keys, values = msgpack.unpackb(payload, raw=True, use_list=True)
        return keys, values


def _blocks(path: str, file: BinaryIO, artefact: Artefact) -> Iterator[_Block]:
    at = artefact.size_bytes - artefact.body_bytes
    while at < artefact.size_bytes:
        file.seek(at)
        begin = file.read(CHUNK.size + _PEEKED_BYTES)
        size, digest = CHUNK.unpack_from(begin) if len(begin) > CHUNK.size else (0, b"")
        at += CHUNK.size
        if not size or at + size > artefact.size_bytes:
            raise corrupted(path, _DAMAGED_BLOCK, "a block that ends within the file")
        yield _Block(at, size, digest, _first_key(path, file, at, begin[CHUNK.size :][:size], size))
        at += size


def _first_key(path: str, file: BinaryIO, at: int, begin: bytes, size: int) -> bytes:
    """Return the first key of the block of `size` bytes at `at`, from its first bytes or, if it is long, all."""
    try:
        unpacker = msgpack.Unpacker(raw=True, max_buffer_size=0)
        unpacker.feed(begin)
        unpacker.read_array_header()
        unpacker.read_array_header()
        first = unpacker.unpack()
    except msgpack.OutOfData:
        if len(begin) < size:
            file.seek(at)
            return _first_key(path, file, at, file.read(size), size)
        first = None
    except ValueError:
        first = None
    if type(first) is not bytes:
        raise corrupted(path, _DAMAGED_BLOCK, "a block that begins with a key")
    return first


def read_in_order(storage: Storage, files: Sequence[Artefact]) -> Iterator[Chunk]:
    """Yield the entries of all `files`, one after the other; of small ones several are read at a time."""
    left = list(files)
    while left:
        group = [left.pop(0)]
        while left and sum(file.size_bytes for file in (*group, left[0])) <= _TOGETHER_BYTES:
            group.append(left.pop(0))
        absent = [file for file in group if not file.whole] if len(group) > 1 else []
        names = [file.name for file in absent]
        contents = dict(zip(names, storage.read_all(names), strict=True))
        for file in group:
            content = contents.pop(file.name, b"")
            if isinstance(content, OSError):
                raise _unreadable(f"{storage.url}/{file.name}", content) from content
            yield from read_file(storage, replace(file, whole=content) if content else file)


def read_blocks(path: str, file: BinaryIO, artefact: Artefact) -> Iterator[Chunk | StateCorruptedError]:
    """Yield the entries chunk by chunk, each verified; an error in the place of a damaged one, and then go on."""
    file.seek(artefact.size_bytes - artefact.body_bytes)
    body, count, left, is_whole = xxh3_128(), artefact.entries, artefact.body_bytes, True
    while left > 0:
        frame = file.read(CHUNK.size)
        size, wanted = CHUNK.unpack(frame) if len(frame) == CHUNK.size else (left, b"")
        payload = file.read(size) if size <= left - len(frame) else b""
        body.update(frame)
        body.update(payload)
        left -= len(frame) + len(payload)
        if xxh3_64_digest(payload) == wanted:
            keys, values = msgpack.unpackb(payload, raw=True, use_list=True)
            yield keys, values
            count -= len(keys)
            continue
        is_whole = False
        yield corrupted(path, _DAMAGED_BLOCK, f"block checksum {wanted.hex()}")
        if not payload:
            return
    if is_whole and (body.digest() != artefact.body_digest or count):
        yield corrupted(path, f"the checksum of its entries is {body.hexdigest()}", artefact.body_digest.hex())
    elif is_whole and file.read(1):
        yield corrupted(path, "it goes on after its entries", f"{artefact.size_bytes} bytes")


def _unreadable(path: str, error: OSError) -> StateError:
    if isinstance(error, FileNotFoundError):
        return corrupted(path, "the file is missing", "a file that a committed version needs", missing=True)
    return StateError(f"{path}: cannot be read: {error.strerror}", path=path, errno=error.errno)


def fence(storage: Storage, lineage: str, generation: int) -> None:
    """Refuse generations of `lineage` older than `generation` from now on, durably.

    One marker per generation, and the highest counts: two drivers that fence at once can't undo each other.

    Raises FencedError: a newer generation has been here.
    """
    check_fence(storage, lineage, generation)
    own = _fence_name(lineage, generation)
    storage.create(own, b"")  # two that fence for one generation write the same
    storage.delete([each.name for each in storage.list(_fence_name(lineage)) if each.name < own])


def check_fence(storage: Storage, lineage: str, generation: int) -> None:
    """Raise FencedError if a generation newer than `generation` has fenced `lineage`."""
    newer = [each.name for each in storage.list(_fence_name(lineage), after=_fence_name(lineage, generation))]
    if newer:
        newest = int(max(newer).rpartition("/")[2])
        raise FencedError(
            f"{storage.url}: generation {newest} has taken over from generation {generation}; stop this driver",
            folder=storage.url,
            generation=generation,
            newest=newest,
        )


def _fence_name(lineage: str, generation: int | None = None) -> str:
    return f"fences/{lineage}/" + ("" if generation is None else f"{generation:020d}")
