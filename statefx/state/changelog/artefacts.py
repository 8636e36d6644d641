"""The file format of changelogs and snapshots: one immutable, checksummed file of sorted entries.

::

    head    magic 8s | format u32 | identity bytes u32 | entries u64 | body bytes u64 | body xxh3_128 16s
    seal    xxh3_128 16s over head and identity; its hex is the file's `checksum`
    identity  JSON: kind, lineage, component, task, txid, token, generation, predecessor, covers, beneath
    body    chunks: payload bytes u32 | payload xxh3_64 8s | payload = msgpack [keys, values], nil deletes

Head, seal and identity lie like this in every format, so that a newer one is told from a damaged one.

A file gets its name only when it is complete and on disk, so a damaged one is corruption, never a crash's rest.
"""

from __future__ import annotations

import base64
import contextlib
import json
import operator
import os
import struct
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO, cast

import msgpack
from xxhash import xxh3_64_digest, xxh3_128

from statefx.errors import CheckpointFormatError, StateCorruptedError, StateError
from statefx.protocol.identity import Namespace, Version
from statefx.state.contract.store import Write
from statefx.storage.folder import make_folder, sync_folder

CHANGELOG = "changelog"
SNAPSHOT = "snapshot"
FORMAT = 1

_MAGIC = b"statefx\n"
_HEAD = struct.Struct(">8sIIQQ16s")
_SEAL_BYTES = 16
_CHECKSUM_DIGITS = 2 * _SEAL_BYTES
_CHUNK = struct.Struct(">I8s")
_CHUNK_ENTRIES = 8192
_CHUNK_BYTES = 4 << 20
_HEAD_READ_BYTES = 1024
_IDENTITY_BYTES_MAX = 64 << 10

Chunk = tuple[list[bytes], list[bytes | None]]

_REMEDY = (
    "Restore the file from a backup of the checkpoint, or start over on a new checkpointLocation; "
    "never edit files below state/."
)


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
    beneath : tuple of int
        For each tier of sizes, how many changelogs come next before it, without a larger one between.
    """

    kind: str
    namespace: Namespace
    version: Version
    generation: int
    predecessor: Version
    covers: bytes = field(default=b"", repr=False)
    beneath: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Artefact:
    """A complete file, as its verified head describes it."""

    path: str
    identity: Identity
    entries: int
    size_bytes: int
    checksum: str
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as its name alone describes it; temporary files have a kind ending in ``.tmp``."""

    path: str
    kind: str
    version: Version

    @property
    def txid(self) -> int:
        """The transaction in which it was written: a snapshot of t is written in t + 1, whose record may name it."""
        return self.version.txid + self.kind.startswith(SNAPSHOT)


def changelog_name(version: Version) -> str:
    """Return the name of a version's changelog: to open one, no folder is listed.

    So the generation is in the file and not in its name: who knows a version need not know who wrote it.
    """
    return f"{version.txid:020d}-{version.token}.{CHANGELOG}"


def snapshot_name(version: Version, checksum: str) -> str:
    """Return the name of the image of `version` that has `checksum`.

    Attempts of several generations write images of one version, and the generation is part of what is summed up:
    named by the version alone, a late one would replace the one that the log names.
    """
    return f"{version.txid:020d}-{version.token}-{checksum}.{SNAPSHOT}"


def new_token() -> str:
    """Return a token that nothing else has, nor ever will."""
    return uuid.uuid4().hex


def corrupted(path: str, found: str, expected: str, *, missing: bool = False) -> StateCorruptedError:
    """Return the error for a file that isn't what it must be."""
    return StateCorruptedError(
        f"{path}: {found}; expected {expected}. {_REMEDY}", path=path, expected=expected, missing=missing
    )


def write(folder: str, identity: Identity, entries: Iterable[Write]) -> Artefact:
    """Write `entries` (sorted by key, each key once) and make the file durable, all or nothing.

    Raises
    ------
    StateError
        The operating system refused, for instance because the disk is full; carries ``path`` and ``errno``.
        Nothing is left behind.
    """
    version = identity.version
    intended = os.path.join(folder, f"{version.txid:020d}-{version.token}.{identity.kind}")
    temporary = os.path.join(folder, f".{os.path.basename(intended)}.{new_token()}.tmp")
    try:
        make_folder(folder)
        try:
            with open(temporary, "xb") as file:
                artefact = _write_to(file, folder, identity, entries)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, artefact.path)
        except Exception:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(folder)
    except OSError as error:
        raise StateError(
            f"{intended}: cannot be written: {error.strerror}", path=intended, errno=error.errno
        ) from error
    return artefact


def _write_to(file: BinaryIO, folder: str, identity: Identity, entries: Iterable[Write]) -> Artefact:
    text = json.dumps(_to_json(identity), sort_keys=True).encode()
    start = _HEAD.size + _SEAL_BYTES + len(text)
    file.write(bytes(start))
    body = xxh3_128()
    count = size = 0
    for number, payload in _pack(entries):
        frame = _CHUNK.pack(len(payload), xxh3_64_digest(payload))
        body.update(frame)
        body.update(payload)
        file.write(frame)
        file.write(payload)
        count += number
        size += len(frame) + len(payload)
    head = _HEAD.pack(_MAGIC, FORMAT, len(text), count, size, body.digest())
    seal = xxh3_128(head + text)
    file.seek(0)
    file.write(head + seal.digest() + text)
    checksum = seal.hexdigest()
    name = changelog_name(identity.version) if identity.kind == CHANGELOG else snapshot_name(identity.version, checksum)
    return Artefact(os.path.join(folder, name), identity, count, start + size, checksum, size)


def _pack(entries: Iterable[Write]) -> Iterator[tuple[int, bytes]]:
    """Yield (entries, payload); chunk bounds depend on the entries alone, so equal images are equal files."""
    source = iter(entries)
    packer = msgpack.Packer(use_bin_type=True)
    last: bytes | None = None
    while batch := list(islice(source, _CHUNK_ENTRIES)):
        keys = [key for key, _ in batch]
        values = [value for _, value in batch]
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


def read_head(path: str) -> Artefact:
    """Read and verify everything but the entries."""
    try:
        with open(path, "rb", buffering=0) as file:
            return _read_head(path, file)
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_head(path: str, file: BinaryIO) -> Artefact:
    raw = file.read(_HEAD_READ_BYTES)
    fixed = _HEAD.size + _SEAL_BYTES
    if len(raw) < fixed:
        raise corrupted(path, f"only {len(raw)} bytes", "a complete file")
    magic, version, length, count, body_bytes, _ = _HEAD.unpack_from(raw)
    if magic != _MAGIC:
        raise corrupted(path, "it does not begin as a state file does", "a statefx changelog or snapshot")
    if length > _IDENTITY_BYTES_MAX:
        raise corrupted(path, "its head is damaged", f"at most {_IDENTITY_BYTES_MAX} bytes of identity")
    if len(raw) < fixed + length:
        raw += file.read(fixed + length - len(raw))
    text = raw[fixed : fixed + length]
    seal = xxh3_128(raw[: _HEAD.size] + text)
    if seal.digest() != raw[_HEAD.size : fixed]:
        raise corrupted(path, f"the checksum of its head is {seal.hexdigest()}", raw[_HEAD.size : fixed].hex())
    if version > FORMAT:
        raise CheckpointFormatError(f"{path}: format {version} is newer than {FORMAT}; upgrade statefx", path=path)
    size = os.fstat(file.fileno()).st_size
    if size != fixed + length + body_bytes:
        raise corrupted(path, f"{size} bytes", f"{fixed + length + body_bytes} bytes")
    return Artefact(path, _from_json(json.loads(text)), count, size, seal.hexdigest(), body_bytes)


def read(artefact: Artefact) -> Iterator[Chunk]:
    """Yield the entries chunk by chunk, each verified; at the end the whole file has been verified.

    A caller that must not see a part of a damaged file acts when the iterator is exhausted.
    """
    path = artefact.path
    try:
        with open(path, "rb") as file:
            if _read_head(path, cast(BinaryIO, file.raw)) != artefact:
                raise corrupted(path, "it was replaced while it was read", f"checksum {artefact.checksum}")
            file.seek(0)
            _, _, length, count, body_bytes, digest = _HEAD.unpack(file.read(_HEAD.size))
            file.seek(_HEAD.size + _SEAL_BYTES + length)
            yield from _read_body(path, file, count, body_bytes, digest)
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_body(path: str, file: BinaryIO, count: int, left: int, digest: bytes) -> Iterator[Chunk]:
    body = xxh3_128()
    while left > 0:
        frame = file.read(_CHUNK.size)
        size, wanted = _CHUNK.unpack(frame) if len(frame) == _CHUNK.size else (left, b"")
        payload = file.read(size) if size <= left - len(frame) else b""
        if xxh3_64_digest(payload) != wanted:
            raise corrupted(path, "a block of entries is damaged", f"block checksum {wanted.hex()}")
        body.update(frame)
        body.update(payload)
        keys, values = msgpack.unpackb(payload, raw=True, use_list=True)
        yield keys, values
        count -= len(keys)
        left -= len(frame) + size
    if body.digest() != digest or count or left:
        raise corrupted(path, f"the checksum of its entries is {body.hexdigest()}", digest.hex())


def listing(folder: str) -> list[str]:
    """Return the names of all that is in `folder`; none if the folder isn't there."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(folder, error) from error


def parsed(folder: str, names: Iterable[str]) -> list[Listed]:
    """Return those of `names` that are artefacts' in `folder`."""
    return [listed for name in names if (listed := _parse(folder, name)) is not None]


def _parse(folder: str, name: str) -> Listed | None:
    stem, _, kind = name.lstrip(".").partition(".")
    if kind.endswith(".tmp"):
        kind = f"{kind.partition('.')[0]}.tmp"
    if kind == SNAPSHOT:
        stem, _, checksum = stem.rpartition("-")
        if len(checksum) != _CHECKSUM_DIGITS:
            return None
    txid, _, token = stem.partition("-")
    if kind.removesuffix(".tmp") not in (CHANGELOG, SNAPSHOT) or not token or not txid.isdecimal():
        return None
    return Listed(os.path.join(folder, name), kind, Version(int(txid), token))


def _unreadable(path: str, error: OSError) -> StateError:
    if isinstance(error, FileNotFoundError):
        return corrupted(path, "the file is missing", "a file that a committed version needs", missing=True)
    return StateError(f"{path}: cannot be read: {error.strerror}", path=path, errno=error.errno)


def _to_json(identity: Identity) -> dict[str, Any]:
    return {
        "kind": identity.kind,
        "lineage": identity.namespace.lineage,
        "component": identity.namespace.component,
        "task": identity.namespace.task,
        "txid": identity.version.txid,
        "token": identity.version.token,
        "generation": identity.generation,
        "predecessor": [identity.predecessor.txid, identity.predecessor.token],
        "covers": base64.b64encode(identity.covers).decode("ascii"),
        "beneath": identity.beneath,
    }


def _from_json(data: dict[str, Any]) -> Identity:
    return Identity(
        kind=data["kind"],
        namespace=Namespace(data["lineage"], data["component"], data["task"]),
        version=Version(data["txid"], data["token"]),
        generation=data["generation"],
        predecessor=Version(*data["predecessor"]),
        covers=base64.b64decode(data["covers"]),
        beneath=tuple(data["beneath"]),
    )
