"""Reads all that a checkpoint needs, and tells what is damaged: which file, which keys, which transactions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from statefx.admin.reading import Progress, check_started, codec_of, kept_provider, task_entries
from statefx.errors import StateCorruptedError, StateError, StatefxError
from statefx.log.location import Folders
from statefx.log.takeover import read_checkpoint
from statefx.protocol.identity import EMPTY, FileRef, Namespace, TaskId
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Pin
from statefx.state.changelog.chain import Changelog, Damaged, find_damage
from statefx.state.changelog.store import ChangelogProvider
from statefx.state.contract.spaces import Space, name_of
from statefx.state.contract.store import StateProvider
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.view.changes import codec_for

_TRIES = 5
"""Of a task whose files are deleted while it is read, since newer ones have taken their place."""


@dataclass(frozen=True)
class Damage:
    """A file, or a part of it, that is not what it must be.

    Attributes
    ----------
    path : str
        The file; of state that a server keeps, whose state it is.
    problem : str
        What is wrong with it.
    component : str
        The bolt whose state it has; empty: none's.
    task : int or None
    keys : tuple of two (str or None)
        Between which keys the damage is, as Python writes them; None: from the first, or up to the last one.
    transactions : tuple of int or None
        The first and the last transaction whose changes are in the file; the first is 0 where nobody knows.
    """

    path: str
    problem: str
    component: str = ""
    task: int | None = None
    keys: tuple[str | None, str | None] = (None, None)
    transactions: tuple[int, int] | None = None

    def __str__(self) -> str:
        said = [f"{self.path}: {self.problem}"]
        if self.component:
            bounds = [f"{word} {key}" for word, key in zip(("after", "before"), self.keys, strict=True) if key]
            said.append(" ".join([f"it has keys of {self.component}/{self.task}", " and ".join(bounds)]).rstrip())
        if self.transactions is not None:
            first, last = self.transactions
            said.append(_transactions(first, last))
        return "; ".join(said)


def _transactions(first: int, last: int) -> str:
    if first == last:
        return f"transaction {last}"
    return f"transactions {first} to {last}" if first else f"transaction {last}, and perhaps some before it"


@dataclass(frozen=True)
class Verified:
    """What `Checkpoint.verify` has found.

    Attributes
    ----------
    txid : int
        The last transaction whose commit is decided; 0 if the log can't be read.
    files, bytes : int
        What was read, without the log.
    seconds : float
    damaged : tuple of Damage
        Empty: all that is needed is whole.
    """

    txid: int
    files: int
    bytes: int
    seconds: float
    damaged: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged

    def __str__(self) -> str:
        files = "1 file" if self.files == 1 else f"{self.files} files"
        what = f"{files} with {self.bytes} bytes, up to transaction {self.txid}"
        return "\n".join([f"{what}: {len(self.damaged) or 'nothing'} damaged", *map(str, self.damaged)])


def verify(folders: Folders, config: Mapping[str, Any] | None, progress: Progress | None = None) -> Verified:
    """Read all that a kept version needs, and compare it with its checksums; a damaged log is damage too."""
    began = time.monotonic()
    try:
        state = read_checkpoint(folders)
    except StateCorruptedError as error:
        path = os.path.relpath(str(getattr(error, "path", folders.log)), folders.location)
        return Verified(0, 0, 0, time.monotonic() - began, (Damage(path, error.message),))
    check_started(state, folders)
    reading = _Reading(folders, config, progress)
    reading.files_beside_the_log(state)
    for component in sorted(state.topology.stateful):
        reading.component(state, component)
    reading.left_in_savepoints(state)
    reading.end()
    return Verified(state.shown_txid, reading.files, reading.done, time.monotonic() - began, tuple(reading.damaged))


class _Reading:
    """One look at a checkpoint: what has been read, and what was found."""

    def __init__(self, folders: Folders, config: Mapping[str, Any] | None, progress: Progress | None) -> None:
        self._folders = folders
        self._storage = folders.storage
        self._config = config
        self._progress = progress
        self._total = sum(each.size_bytes for each in self._storage.list("state/")) if progress else 0
        self.damaged: list[Damage] = []
        self.files = self.done = 0

    def _read(self, size_bytes: int) -> None:
        self.files += 1
        self.done += size_bytes
        if self._progress is not None:
            self._progress(self.done, max(self.done, self._total))

    def end(self) -> None:
        """Say that all has been read: what no version needs is among the total, and was not."""
        if self._progress is not None:
            self._progress(self.done, self.done)

    def files_beside_the_log(self, state: LogState) -> None:
        """Check the files that records name."""
        for ref in _named(state):
            try:
                data = self._storage.read(ref.name)
            except OSError as error:
                self.damaged.append(Damage(ref.name, f"it can't be read: {error.strerror}"))
                continue
            self._read(len(data))
            if not ref.fits(data):
                self.damaged.append(Damage(ref.name, "its checksum does not fit the record that names it"))

    def component(self, state: LogState, component: str) -> None:
        """Check what all tasks of a bolt keep."""
        found = state.topology.stateful[component]
        provider = kept_provider(state, found, component, self._config)
        codec = codec_of(component, found)
        for task in range(found.parallelism):
            id = TaskId(component, task)
            if isinstance(provider, ChangelogProvider):
                self.damaged += [_damage(each, id, codec) for each in self._of_files(state, id)]
            else:
                self._of_server(state, provider, id)

    def left_in_savepoints(self, state: LogState) -> None:
        """Check what savepoints alone still have: of bolts that are gone, renamed or of another number of tasks."""
        now = {state.namespace(TaskId.parse(name)).id for name in state.heads_to_come()}
        for id, pins in state.pinned_versions().items():
            if id not in now:
                changelog = Changelog(Namespace(state.lineage, *id), self._storage)
                snapshots = {snapshot for _, snapshot in pins if snapshot is not None}
                found = find_damage(changelog, pins, list(snapshots), self._read)
                self.damaged += [_damage(each, id, StandardCodec()) for each in found]

    def _of_files(self, state: LogState, id: TaskId) -> list[Damaged]:
        damaged: list[Damaged] = []
        for _ in range(_TRIES):
            kept, namespace = state.snapshots.get(str(id), ()), state.namespace(id)
            head = state.heads_to_come().get(str(id), EMPTY)
            pins = state.pinned_versions().get(namespace.id, [])
            snapshots = {*kept, *(snapshot for _, snapshot in pins if snapshot is not None)}
            versions = [(head, kept[0] if kept else None), *pins]
            damaged = find_damage(Changelog(namespace, self._storage), versions, list(snapshots), self._read)
            before, state = state, read_checkpoint(self._folders)
            if state.decided == before.decided or not any(each.missing for each in damaged):
                break  # else a topology that runs may have deleted them, and they are needed no more
        return damaged

    def _of_server(self, state: LogState, provider: StateProvider, id: TaskId) -> None:
        try:
            for keys, values in task_entries(provider, self._folders, state, *id):
                self._read(sum(map(len, keys)) + sum(map(len, values)))
        except StateError as error:
            self.damaged.append(Damage(str(id), error.message, *id))


def _named(state: LogState) -> Iterator[FileRef]:
    """Yield the files that the log names beside state."""
    known: list[LogState | Pin] = [state, *state.pinned.values()]
    for each in known:
        yield from each.notes.aside
    said = [layer for each in known for layers in each.committed_metadata.values() for layer in layers]
    said += [layer for by_spout in state.planned_metadata.values() for layer in by_spout.values()]
    yield from (layer.file for layer in said if layer.file is not None)


def _damage(found: Damaged, id: TaskId, codec: Codec) -> Damage:
    keys = tuple(None if key is None else _shown(key, codec) for key in (found.after, found.before))
    return Damage(found.name, found.problem, *id, (keys[0], keys[1]), (found.first, found.last))


def _shown(key: bytes, codec: Codec) -> str:
    """Return a key as Python writes it, and whose it is if it is not the bolt's own."""
    try:
        if key[:1] == Space.USER.value:
            return repr(codec_for(codec, Space.USER.value)[0].decode_key(key))
        if key[:1] == Space.NAMED.value:
            kind, name = name_of(key)
            head = len(key) - len(key.split(b"\0", 2)[2])
            return f"{kind.value} {name}: {codec_for(codec, key[:head])[0].decode_key(key)!r}"
        if key[:1] == Space.QUARANTINE.value:
            return f"quarantine: {key[1:].decode()}"
    except (StatefxError, ValueError):
        pass
    return repr(key)
