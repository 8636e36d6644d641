"""Reads every file of a namespace that a kept version needs, and tells what is damaged instead of ending at it.

Heads come first, and then bodies. A file names up to 64 of those before it, so a damaged one does not hide the others:
the chain goes on with the next file that one above it has named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgpack
from xxhash import xxh3_64_digest, xxh3_128

from statefx.errors import StateError
from statefx.protocol.identity import SnapshotRef, Version
from statefx.state.changelog import artefacts, reading
from statefx.state.changelog.artefacts import CHANGELOG, CHUNK, SNAPSHOT, Artefact, version_of
from statefx.state.changelog.chain import Changelog, committed
from statefx.state.changelog.merging import start_of

_HEADS = 64
"""Heads that are read at once: with them come the first bytes of their files."""

Kept = tuple[Version, SnapshotRef | None]
"""A version that has to be readable, and the oldest snapshot that it is read from."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """What is wrong with a file, or with a part of it.

    Attributes
    ----------
    name : str
        Of the file.
    problem : str
    missing : bool
        There is no such file.
    first, last : int
        The transactions whose changes it has; `first` is 0 where nobody knows.
    after, before : bytes or None
        The keys between which the damage is, as far as neighbouring blocks tell.
    """

    name: str
    problem: str
    missing: bool
    first: int
    last: int
    after: bytes | None = None
    before: bytes | None = None


def check(
    changelog: Changelog, kept: Sequence[Kept], snapshots: Sequence[SnapshotRef], read: Callable[[int], object]
) -> list[Damaged]:
    """Return what is damaged of the files that the versions `kept` need, and of `snapshots`.

    `read` is told the size of each file that was read; 0 of one whose head is damaged.
    """
    found: dict[str, Damaged] = {}
    bodies: dict[str, Artefact] = {}
    for version, oldest in kept:
        steps = list(_chain(changelog, version, oldest, found))
        bodies.update({step.name: step for step in steps})
        listing = filter(None, map(artefacts.listed, changelog.storage.list(f"{changelog.namespace.prefix}/")))
        taken_in = [each for each in committed(listing, steps[::-1]) if each.name not in bodies]
        for version_in, head in _heads(changelog, [each.version for each in taken_in]):
            if isinstance(head, Artefact):
                bodies[head.name] = head
            elif not getattr(head, "missing", False):  # nobody needs it: what took it in may serve as well
                found.setdefault(*_of_head(changelog, version_in, 0, head))
    for snapshot in snapshots:
        try:
            head = changelog.find_snapshot(snapshot)
            bodies[head.name] = head
        except StateError as error:
            name = artefacts.snapshot_name(changelog.namespace.prefix, snapshot.version, snapshot.checksum)
            found[name] = Damaged(
                name, artefacts.problem_of(error), getattr(error, "missing", False), 1, snapshot.version.txid
            )
    damaged = list(found.values())
    for _ in (each for each in damaged if not each.missing):
        read(0)
    for body in bodies.values():
        damaged += _of_body(changelog, body)
        read(body.size_bytes)
    return sorted(damaged, key=lambda each: (each.last, each.name, each.after or b""))


def _chain(
    changelog: Changelog, version: Version, oldest: SnapshotRef | None, found: dict[str, Damaged]
) -> Iterator[Artefact]:
    """Yield the files from `version` back to `oldest`, newest first; those that can't be read are put into `found`."""
    base = None if oldest is None else oldest.version
    floor = 0 if base is None else base.txid
    heads: dict[Version, Artefact | StateError] = {}
    ahead: list[Version] = []
    while version.txid > floor:
        if version not in heads:
            heads.update(_heads(changelog, [version, *(each for each in ahead if each.txid > floor)]))
        head = heads[version]
        ahead = [each for each in ahead if each.txid < version.txid]
        if isinstance(head, Artefact):
            yield head
            ahead = list(map(version_of, head.identity.beneath.splitlines())) or ahead
            version = start_of(head, (base,))
            continue
        following = ahead[0] if ahead else Version(floor, "")
        found.setdefault(*_of_head(changelog, version, following.txid + 1 if ahead else 0, head))
        version = following


def _heads(changelog: Changelog, versions: Sequence[Version]) -> Iterator[tuple[Version, Artefact | StateError]]:
    for start in range(0, len(versions), _HEADS):
        part = versions[start : start + _HEADS]
        names = [artefacts.changelog_name(changelog.namespace.prefix, version) for version in part]
        for version, head in zip(part, reading.read_heads(changelog.storage, names), strict=True):
            if isinstance(head, Artefact):
                identity = head.identity
                if (identity.kind, identity.version, identity.namespace.id) != (
                    CHANGELOG,
                    version,
                    changelog.namespace.id,
                ):
                    yield version, StateError(f"it is the file of {identity}")
                    continue
                head = replace(head, whole=b"")  # a thousand of them are not held in memory
            yield version, head


def _of_head(changelog: Changelog, version: Version, first: int, error: StateError) -> tuple[str, Damaged]:
    name = artefacts.changelog_name(changelog.namespace.prefix, version)
    return name, Damaged(name, artefacts.problem_of(error), getattr(error, "missing", False), first, version.txid)


def _of_body(changelog: Changelog, file: Artefact) -> list[Damaged]:
    """Read the entries of a file to the end, also behind a block that is damaged."""
    first = 1 if file.identity.kind == SNAPSHOT else file.identity.predecessor.txid + 1
    whole = Damaged(file.name, "", missing=False, first=first, last=file.identity.version.txid)
    try:
        with changelog.storage.reader(file.name) as source:
            source.seek(file.size_bytes - file.body_bytes)
            found, last, left = list[Damaged](), None, file.body_bytes
            body = xxh3_128()
            while left > 0:
                frame = source.read(CHUNK.size)
                size, digest = CHUNK.unpack(frame) if len(frame) == CHUNK.size else (left, b"")
                payload = source.read(size) if size <= left - len(frame) else b""
                left -= len(frame) + len(payload)
                body.update(frame)
                body.update(payload)
                if xxh3_64_digest(payload) == digest:
                    keys, _ = msgpack.unpackb(payload, raw=True, use_list=True)
                    found = [each if each.before else replace(each, before=keys[0]) for each in found]
                    last = keys[-1]
                    continue
                found.append(replace(whole, problem="a block of entries is damaged", after=last))
                if not payload:
                    return [*found[:-1], replace(found[-1], problem="it does not go on as a block of entries does")]
            if not found and (body.digest() != file.body_digest or source.read(1)):
                found.append(replace(whole, problem="the checksum of its entries does not fit"))
            return found
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return [replace(whole, problem="the file is missing" if missing else str(error), missing=missing)]
