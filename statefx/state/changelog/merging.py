"""Which of the newest changelogs the next one takes in: their number stays small, at the cost of what they changed.

A changelog follows the version before it, or an older one. Then it holds the newest value of every key that was changed
since that one, and *covers* the versions between: it can be applied to any of them, because what it sets again is set
to what it has to be in the end. So a cache at a covered version is caught up with it, and the files that it took in
serve older versions only.

Files are told apart by size, in tiers. When the newest ones of a tier and of those below it are many, the next one
takes them in. So an entry is written again at most once for each tier, and few files of each are left. Those above the
last tier are left alone: merging them would make a transaction wait, and there are never many, since a snapshot is due
when they outgrow the last one.

It takes no name, no record and no job of its own. The file of an attempt is written whole and counts when a COMMITTING
record names its token, like any other; attempts of one transaction, and those of a task thought dead, each write
their own and leave what they took in alone. (Tried on paper: files of a kind of their own, beside the changelogs and
named in COMMITTING. Every order then carries the names of all files of all tasks.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast
from zlib import crc32

from xxhash import xxh3_64_digest

from statefx.protocol.identity import Namespace, Version
from statefx.state.changelog.files import Artefact, Chunk, read_file
from statefx.state.contract.store import Write
from statefx.storage import Storage

TIERS_BYTES = (16 << 10, 128 << 10, 1 << 20)
"""Where each tier ends. Eight files of one come to about one of the next; at the most eight times 1 MiB are merged in
one transaction, or twice that (see `files_of`). With a tier of up to 4 MiB, a task that changes 50,000 keys
took half as long again every tenth time; without it, there are 32 such files before a snapshot is due."""

TIERS = len(TIERS_BYTES)
COVERED_MAX = 1024
"""Versions that a file names as covered, the newest; a cache that is further behind is built again. 8 bytes each: where
transactions are small, every tenth file or so takes in all that is in the lowest tier, and names as many as this.
With 4,096 that was most of what a task wrote."""

LINKS_MAX = 64
"""Files that a file knows to be before it, the newest: three tiers of fourteen files are 42. There are more only where
large files are many, and the last of those that are known knows of the next ones."""

_MARK_BYTES = 8


def files_of(namespace: Namespace, files: int) -> int:
    """Return how many files of a tier a task leaves: `files` to twice as many, so that not all merge at once."""
    return files + crc32(f"{namespace.component}/{namespace.task}".encode()) % files


def marks_of(files: Sequence[Artefact]) -> bytes:
    """Return the marks of the versions that a file covers which takes in `files` (newest first), oldest first."""
    marks = [part for file in reversed(files) for part in (file.identity.covers, mark(file.identity.version))]
    return b"".join(marks)[-COVERED_MAX * _MARK_BYTES :]


def mark(version: Version) -> bytes:
    """Return the mark of a version among those that a file covers."""
    return xxh3_64_digest(f"{version.txid}-{version.token}".encode())


def covers(file: Artefact, version: Version) -> bool:
    """Return whether `file` can be applied to `version`, which is newer than its predecessor."""
    identity = file.identity
    if not identity.predecessor.txid < version.txid < identity.version.txid:
        return False
    wanted = mark(version)
    at = identity.covers.find(wanted)
    while at % _MARK_BYTES and at >= 0:
        at = identity.covers.find(wanted, at + 1)
    return at >= 0


def forgets(file: Artefact, version: Version) -> bool:
    """Return whether `file` covers so many versions that it may cover this one without naming it."""
    return file.identity.predecessor.txid < version.txid and len(file.identity.covers) >= COVERED_MAX * _MARK_BYTES


def start_of(file: Artefact, wanted: Iterable[Version | None]) -> Version:
    """Return where to come from with `file`: the first of the versions `wanted` that it covers, or its predecessor."""
    for version in wanted:
        if version is not None and covers(file, version):
            return version
    return file.identity.predecessor


def taken_in(sizes: Sequence[int], files_max: int, size: Callable[[], int]) -> int:
    """Return how many of the newest files a changelog takes in, where `files_max` of a tier are left.

    `sizes` are the bytes of the files' entries, newest first; `size`, of what the changelog itself has to hold, is
    called if it may take something in.
    """
    taken = 0
    if _run(sizes, TIERS - 1) < files_max:
        return taken
    total = size()
    while (tier := _tier(total)) < TIERS and (run := _run(sizes[taken:], tier)) >= files_max:
        total += sum(sizes[taken : taken + run])
        taken += run
    return taken


def _run(sizes: Sequence[int], tier: int) -> int:
    limit = TIERS_BYTES[tier]
    return next((at for at, size in enumerate(sizes) if size >= limit), len(sizes))


def merged(storage: Storage, writes: Iterable[Write], files: Sequence[Artefact]) -> Iterator[Write]:
    """Yield the newest value of every key, in key order; `files` are newest first, `writes` newer still.

    Deletes stay: they have to reach caches at the versions that are covered.
    """
    written = list(writes)
    sources = [read_file(storage, file) for file in reversed(files)]
    last = ([key for key, _ in written], [value for _, value in written])
    for parts in aligned([*sources, iter([last])]):
        yield from zip(*newest(parts), strict=True)


def aligned(sources: Sequence[Iterator[Chunk]]) -> Iterator[list[Chunk]]:
    """Yield the entries of several sources that are sorted by key, a range of keys at a time: what each has there."""
    # `heapq.merge` took 0.5 us an entry, and one transaction merges those of seven to fourteen others: where each has
    # 50,000, that came to 7 % of all of them. A dict of one block of each file takes a third of that time.
    blocks = [_Block(source) for source in sources]
    while left := [block.keys[-1] for block in blocks if block.keys]:
        bound = min(left)
        yield [block.take(bound) for block in blocks]


def newest(parts: Sequence[Chunk]) -> Chunk:
    """Return the newest value of every key, in key order, of what several files hold of a range, the oldest first."""
    found: dict[bytes, bytes | None] = {}
    for part in parts:
        found.update(zip(*part, strict=True))
    keys = sorted(found)
    return keys, list(map(found.__getitem__, keys))


def image_of(sources: Sequence[Iterator[Chunk]]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield the entries that files, the oldest first, come to: in key order, many at a time, without deleted ones."""
    for parts in aligned(sources):
        filled = [part for part in parts if part[0]]
        keys, values = filled[0] if len(filled) == 1 else newest(filled)  # most of a snapshot is not changed later
        if None in values:
            rows = [row for row in zip(keys, values, strict=True) if row[1] is not None]
            keys, values = [key for key, _ in rows], [value for _, value in rows]
        if keys:
            yield keys, cast("list[bytes]", values)


class _Block:
    """The rest of one block of a source, then the source's next block; without `keys` at the source's end."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._next()

    def _next(self) -> None:
        self.keys, self._values = next(self._chunks, ([], []))
        self._at = 0

    def take(self, bound: bytes) -> Chunk:
        """Return the entries up to and with the key `bound`, which no block ends before."""
        start, end = self._at, bisect_right(self.keys, bound, self._at)
        if start == 0 and end == len(self.keys):
            taken = self.keys, self._values
        else:
            taken = self.keys[start:end], self._values[start:end]
        if end == len(self.keys):
            self._next()
        else:
            self._at = end
        return taken


def _tier(size_bytes: int) -> int:
    return bisect_right(TIERS_BYTES, size_bytes)
