"""Changelogs and snapshots as they are read: heads first, many at a time; entries verified before they count."""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import msgpack
import msgspec
from xxhash import xxh3_64_digest, xxh3_128

from statefx.errors import CheckpointFormatError, StateCorruptedError, StateError
from statefx.state.changelog.artefacts import CHUNK, FORMAT, HEAD, MAGIC, SEAL_BYTES, Artefact, Identity, corrupted
from statefx.storage import Storage

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
    """Read and verify everything but the entries."""
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


def read(storage: Storage, artefact: Artefact) -> Iterator[Chunk]:
    """Yield the entries chunk by chunk, each verified; at the end the whole file has been verified.

    A caller that must not see a part of a damaged file acts when the iterator is exhausted.
    """
    path = f"{storage.url}/{artefact.name}"
    try:
        with io.BytesIO(artefact.whole) if artefact.whole else storage.reader(artefact.name) as file:
            file.seek(artefact.size_bytes - artefact.body_bytes)
            yield from _read_body(path, file, artefact)
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
    """Where a block of entries lies in its file."""

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
            yield from read(storage, replace(file, whole=content) if content else file)


def _read_body(path: str, file: BinaryIO, artefact: Artefact) -> Iterator[Chunk]:
    body, count, left = xxh3_128(), artefact.entries, artefact.body_bytes
    while left > 0:
        frame = file.read(CHUNK.size)
        size, wanted = CHUNK.unpack(frame) if len(frame) == CHUNK.size else (left, b"")
        payload = file.read(size) if size <= left - len(frame) else b""
        if xxh3_64_digest(payload) != wanted:
            raise corrupted(path, _DAMAGED_BLOCK, f"block checksum {wanted.hex()}")
        body.update(frame)
        body.update(payload)
        keys, values = msgpack.unpackb(payload, raw=True, use_list=True)
        yield keys, values
        count -= len(keys)
        left -= len(frame) + size
    if body.digest() != artefact.body_digest or count or left:
        raise corrupted(path, f"the checksum of its entries is {body.hexdigest()}", artefact.body_digest.hex())
    if file.read(1):
        raise corrupted(path, "it goes on after its entries", f"{artefact.size_bytes} bytes")


def _unreadable(path: str, error: OSError) -> StateError:
    if isinstance(error, FileNotFoundError):
        return corrupted(path, "the file is missing", "a file that a committed version needs", missing=True)
    return StateError(f"{path}: cannot be read: {error.strerror}", path=path, errno=error.errno)
