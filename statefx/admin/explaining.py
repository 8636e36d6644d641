"""Why a key has the value that it has: which task keeps it, which files, and which transactions have changed it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from statefx.admin.columns import Decoder
from statefx.admin.layouts import GONE, Read, plain
from statefx.admin.state_table import StateTable, state_table
from statefx.log.takeover import read_checkpoint
from statefx.protocol.identity import SnapshotRef, TaskId
from statefx.state import Codec
from statefx.state.changelog.chain import Changelog, committed
from statefx.state.changelog.files import SNAPSHOT, Artefact, listed, read_heads, read_range, snapshot_name
from statefx.state.changelog.store import ChangelogProvider
from statefx.state.view.changes import codec_for

_HEADS = 64
"""Heads that are read at once."""


@dataclass(frozen=True)
class KeyFile:
    """A file that has the key.

    Attributes
    ----------
    path : str
        In the checkpoint.
    kind : str
        ``changelog``: of the transactions `first` to `txid`, the last that changed the key has left `value`.
        ``snapshot``: the whole state as it was at `txid`.
    first, txid : int
        Equal, unless files of several transactions were merged.
    deleted : bool
        The key was deleted; `value` is None.
    value : object
    """

    path: str
    kind: str
    first: int
    txid: int
    deleted: bool
    value: Any

    def __str__(self) -> str:
        held = "deleted" if self.deleted else repr(self.value)
        if self.kind == SNAPSHOT:
            return f"snapshot at {self.txid}: {held}  ({self.path})"
        when = f"in {self.txid}" if self.first == self.txid else f"between {self.first} and {self.txid}"
        return f"changed {when}: {held}  ({self.path})"


@dataclass(frozen=True)
class KeyTask:
    """What one task has of the key.

    Attributes
    ----------
    task : int
    present : bool
        Whether it has the key now; else `value` is None.
    value : object
    files : tuple of KeyFile
        The newest first; without those that are deleted by now. Empty where a server keeps the state.
    """

    task: int
    present: bool
    value: Any
    files: tuple[KeyFile, ...]

    @property
    def transactions(self) -> tuple[tuple[int, int], ...]:
        """The transactions that changed the key, as far as files tell, the newest first: (first, last) of each file."""
        return tuple((file.first, file.txid) for file in self.files if file.kind != SNAPSHOT)


@dataclass(frozen=True)
class Explained:
    """What `explain` has found.

    Attributes
    ----------
    component : str
    key : object
    txid : int
        The last transaction whose commit is decided.
    tasks : tuple of KeyTask
        Those that have the key, or have had it as far as files tell.
    """

    component: str
    key: Any
    txid: int
    tasks: tuple[KeyTask, ...]

    def __str__(self) -> str:
        lines = [f"{self.key!r} of {self.component!r} at transaction {self.txid}"]
        for task in self.tasks:
            lines.append(f"task {task.task}: {repr(task.value) if task.present else 'not there'}")
            lines += [f"    {file}" for file in task.files]
        return "\n".join(lines if self.tasks else [f"{lines[0]}: no task has it, and no file"])


def explain(
    checkpointLocation: str | os.PathLike[str],
    component: str,
    key: Any,
    *,
    task: int | None = None,
    map: str | None = None,
    config: Mapping[str, Any] | None = None,
    codec: Codec | None = None,
) -> Explained:
    """Tell which tasks have a key, with which value, which files hold it, and which transactions have changed it.

    Changes nothing; the topology may be running. Of each file only the block is read in which the key is, or would be.

    Parameters
    ----------
    checkpointLocation, component, config, codec
        As of `openState`.
    key : object
        A key of the bolt's.
    task : int, optional
        Look into one task only; by default into all.
    map : str, optional
        The key is one of ``state.map(name)`` or ``state.broadcast(name)``; or of the grouping of a windowed bolt, for
        ``"windows"``: a value is a list of the key's open windows then.

    Returns
    -------
    Explained
        ``print`` shows it.

    Raises
    ------
    CodecError
        `key` can't be a key.
    CheckpointError, ConfigError
        As of `openState`.
    StateCorruptedError
        A file is damaged: `verify` tells all that are.

    Examples
    --------
    >>> print(explain("checkpoints/word-count", "count", "spark"))     # doctest: +SKIP
    """
    table = state_table(checkpointLocation, component, task=task, map=map, config=config, codec=codec)
    built = table.codec or table.encoding.build()
    snapshots = read_checkpoint(table.folders).snapshots
    look: _Key | _OwnKey = _Key(table, built, key) if table.own is None else _OwnKey(table, built, key)
    found = []
    for each in table.tasks:
        values = look.values(each)
        kept = snapshots.get(str(TaskId(component, each)), ())
        files = tuple(file for head in _heads(table, each, kept) for file in look.files(head))
        if values or files:
            found.append(KeyTask(each, bool(values), values[0] if values else None, files))
    return Explained(component, key, table.moments[0].txid, tuple(found))


class _Key:
    """A key of the bolt's own, or of a map."""

    def __init__(self, table: StateTable, codec: Codec, key: Any) -> None:
        encoded = codec_for(codec, table.shown.head)[0].encode_key(key)
        self._table, self._shown = table, replace(table.shown, ranges=((encoded, encoded + b"\0"),))
        self._decoder = Decoder(codec, table.shown.head, table.form, table.state_version)

    def values(self, task: int) -> list[Any]:
        """Return the value that a task has now; nothing if it has none."""
        table, shown = self._table, self._shown
        live = list(islice(shown.living(table.entries(table.moments[0], task, shown), table.now_ms), 1))
        return self._decoder.decoded(live[0][1]) if live else []

    def files(self, head: Artefact) -> Iterator[KeyFile]:
        """Yield what a file has of it."""
        for _, values in read_range(self._table.folders.storage, head, *self._shown.ranges[0]):
            bare = [self._shown.bare(value) for value in values[:1] if value is not None]
            yield _file(head, self._decoder.decoded(bare))


class _OwnKey:
    """A key of what statefx keeps for a bolt: all rows of it, such as its open windows, are its value."""

    def __init__(self, table: StateTable, codec: Codec, key: Any) -> None:
        assert table.own is not None
        self._table, self._codec, self._key, self._own = table, codec, key, table.own

    def values(self, task: int) -> list[Any]:
        """Return a list of the rows that a task has now, in a list; nothing if it has none."""
        read = self._table.reader(self._table.moments[0], task)
        self._own.learn(read, self._codec)
        return self._rows(read)[0]

    def files(self, head: Artefact) -> Iterator[KeyFile]:
        """Yield what a file has of the rows, as the task understands them now; comes after `values`."""

        def read(low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes | None]]:
            for keys, values in read_range(self._table.folders.storage, head, low, high):
                yield from zip(keys, values, strict=True)

        values, touched = self._rows(read)
        if touched:
            yield _file(head, values)

    def _rows(self, read: Read) -> tuple[list[Any], bool]:
        rows = list(self._own.rows(read, self._key))
        live = [plain(self._own.record(key, value)) for key, value in rows if value is not GONE]
        return ([live] if live else []), bool(rows)


def _heads(table: StateTable, task: int, snapshots: tuple[SnapshotRef, ...]) -> Iterator[Artefact]:
    """Yield the files of a task, newest first."""
    if not isinstance(table.provider, ChangelogProvider):
        return
    storage = table.folders.storage
    namespace, version, _ = table.moments[0].tasks[task]
    changelog = Changelog(namespace, storage)
    steps = changelog.route(version, snapshots[0] if snapshots else None, None).steps
    prefix = changelog.namespace.prefix
    listing = list(filter(None, map(listed, storage.list(f"{prefix}/"))))
    named = {snapshot_name(prefix, each.version, each.checksum) for each in snapshots}
    known = [*committed(listing, steps), *(each for each in listing if each.name in named)]
    known.sort(key=lambda each: each.txid, reverse=True)
    for start in range(0, len(known), _HEADS):
        for head in read_heads(storage, [each.name for each in known[start : start + _HEADS]]):
            if isinstance(head, Artefact):
                yield head
            elif not getattr(head, "missing", False):  # deleted meanwhile by a topology that runs
                raise head


def _file(head: Artefact, values: list[Any]) -> KeyFile:
    """Return what a file says; no value: the key was deleted."""
    identity = head.identity
    txid = identity.version.txid
    first = txid if identity.kind == SNAPSHOT else identity.predecessor.txid + 1
    return KeyFile(head.name, identity.kind, first, txid, not values, values[0] if values else None)
