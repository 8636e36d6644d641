"""What a checkpoint says of itself: its last transactions, why a key has its value, which keys are in quarantine."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from statefx.admin.columns import Decoder
from statefx.admin.layouts import GONE, Read, plain
from statefx.admin.reading import (
    StateTable,
    component_of,
    found_checkpoint,
    kept_provider,
    open_task,
    read_newest,
    state_table,
)
from statefx.errors import CheckpointError
from statefx.log.location import Folders
from statefx.log.takeover import read_checkpoint
from statefx.operators.quarantine import GroupKeys, held
from statefx.operators.schema import parse_type
from statefx.operators.sealed_names import OwnerName, Sealed, sealed_in
from statefx.protocol.identity import SnapshotRef, TaskId
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Committing
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state import Codec
from statefx.state.changelog.chain import Changelog, committed
from statefx.state.changelog.files import SNAPSHOT, Artefact, listed, read_heads, read_range, snapshot_name
from statefx.state.changelog.store import ChangelogProvider
from statefx.state.contract.spaces import Space, end_of
from statefx.state.contract.store import StateProvider
from statefx.state.view.changes import codec_for

_TIMES = ("prepared_ms", "committing_ms", "ended_ms")

_HEADS = 64
"""Heads that are read at once."""

_QUARANTINE, _WAITING = Space.QUARANTINE.value, Space.WAITING.value


# ---- transactions


@dataclass(frozen=True, slots=True)
class Transaction:
    """One attempt of a transaction.

    Attributes
    ----------
    txid : int
        Its number.
    attempt : int
        Which try of it.
    generation : int
        Which driver's.
    state : str
        ``PREPARING``, ``COMMITTING``, ``COMMITTED`` or ``ROLLED_BACK``; ``GIVEN_UP`` for one that was committed, and
        that `Checkpoint.restore` or `Checkpoint.repair` went back beyond. ``RESTORED`` is no transaction: at this
        place, the checkpoint went back to what `txid` had left.
    prepared_ms, committing_ms, ended_ms : int or None
        When it began, when its commit was decided and when it ended, in milliseconds since the epoch, by the clock of
        the driver's machine; None: not yet, or never.
    input_rows, output_rows : int
        What was read from the sources, and what reached the ends of the topology; 0 before the commit is decided.
    state_bytes : int
        By how much stored state has grown.
    reason : str
        Why it was rolled back; the first 200 characters.
    sinks : Mapping[str, Mapping[str, int]]
        By sink, the ``rows`` and ``bytes`` that were decided to be published; without sinks that don't tell.
    queues : Mapping[str, Mapping[str, Any]]
        What one that is COMMITTING takes off queues, by spout: which ``queue``, and how many messages it has ``sealed``
        there. Empty before that, since what is sealed is not in the log before the decision (`Checkpoint.resolve`
        shows it), and when it has ended.
    """

    txid: int
    attempt: int
    generation: int
    state: str
    prepared_ms: int | None
    committing_ms: int | None
    ended_ms: int | None
    input_rows: int
    output_rows: int
    state_bytes: int
    reason: str
    sinks: Mapping[str, Mapping[str, int]]
    queues: Mapping[str, Mapping[str, Any]]

    @property
    def secs(self) -> float | None:
        """How long it took, in seconds; None: it has not ended. Less than 0 where the clock was set back."""
        if self.ended_ms is None or self.prepared_ms is None:
            return None
        return (self.ended_ms - self.prepared_ms) / 1000

    def __repr__(self) -> str:
        since = self.ended_ms or self.committing_ms or self.prepared_ms
        rows = "" if self.committing_ms is None else f", {self.input_rows} rows in, {self.output_rows} out"
        given = "".join(f", {each['rows']} to {sink}" for sink, each in self.sinks.items())
        given += "".join(f", {each['sealed']} messages of {spout} sealed" for spout, each in self.queues.items())
        why = f": {self.reason}" if self.reason else ""
        name = f"Transaction {self.txid}, attempt {self.attempt}, generation {self.generation}"
        when = f" {time_text(since)}" if since else ""
        return f"<{name}: {self.state}{when}{rows}{given}{why}>"


def transactions(folders: Folders) -> list[Transaction]:
    """Return the last attempts that the log of a checkpoint remembers, oldest first."""
    return attempts_in(found_checkpoint(folders))


def attempts_in(state: LogState) -> list[Transaction]:
    """Return the last attempts that the log remembers, oldest first."""
    found = []
    held = {(entry.txid, entry.attempt): _held(entry.committing) for entry in state.in_flight if entry.committing}
    for past in state.past():
        each: dict[str, Any] = past._asdict()
        each |= {name: each[name] or None for name in _TIMES}
        each["state"] = state.state_of(past)
        each["sinks"] = {given.sink: {"rows": given.rows, "bytes": given.bytes} for given in past.sinks}
        each["queues"] = {} if past.ended_ms else held.get((past.txid, past.attempt), {})
        found.append(Transaction(**each))
    return found


def _held(decision: Committing) -> dict[str, dict[str, Any]]:
    """Return what a decision takes off queues, by spout."""
    found: dict[str, dict[str, Any]] = {}
    for committable in decision.committables.values():
        for name, messages in sealed_in(committable).items():
            sealed = Sealed.read(name)
            owner = None if sealed is None else OwnerName.read(sealed.owner)
            if owner is not None and isinstance(committable, Mapping):
                each = found.setdefault(owner.component, {"queue": committable.get("target"), "sealed": 0})
                each["sealed"] += messages
    return found


def time_text(time_ms: int | None) -> str:
    """Show a time of the log, in UTC.

    >>> time_text(1_000), time_text(None)
    ('1970-01-01 00:00:01.000Z', '')
    """
    if time_ms is None:
        return ""
    shown = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "milliseconds")
    return shown.replace("+00:00", "Z")


# ---- why a key has its value


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
    """What `Checkpoint.explain` has found.

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
    folders: Folders,
    config: Mapping[str, Any] | None,
    component: str,
    key: Any,
    *,
    task: int | None = None,
    map: str | None = None,
    codec: Codec | None = None,
) -> Explained:
    """Return what each task has of a key, and the files that have it; of a file only the block of the key is read."""

    def explained(log: LogState) -> Explained:
        table = state_table(folders, log, config, component, task=task, map=map, codec=codec)
        built = table.codec or table.encoding.build()
        look: _Key | _OwnKey = _Key(table, built, key) if table.own is None else _OwnKey(table, built, key)
        found = []
        for each in table.tasks:
            values = look.values(each)
            kept = log.snapshots.get(str(TaskId(component, each)), ())
            files = tuple(file for head in _heads(table, each, kept) for file in look.files(head))
            if values or files:
                found.append(KeyTask(each, bool(values), values[0] if values else None, files))
        return Explained(component, key, table.moments[0].txid, tuple(found))

    return read_newest(folders, explained)


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


# ---- keys in quarantine


@dataclass(frozen=True)
class Quarantined:
    """A key whose rows are held back.

    Attributes
    ----------
    key : object
        The field of the bolt's ``fieldsGrouping``, or a tuple of its fields.
    task : int
    rows : int
        How many rows wait, each of which is a dead letter.
    first : int
        The ``number`` of the dead letter that has to be replayed first; those behind it count on from there.
    txid : int
        The transaction in which a row of the key raised an error.
    error : str
        That error, in one line.
    """

    key: Any
    task: int
    rows: int
    first: int
    txid: int
    error: str


def quarantined(folders: Folders, config: Mapping[str, Any] | None, component: str) -> Iterator[Quarantined]:
    """Yield the keys of a bolt whose rows are held back; in memory is a block of each task."""
    state = read_checkpoint(folders)
    known = component_of(state, component, folders)
    if len(_groupings(known)) != 1:
        raise CheckpointError(
            f"bolt {component!r} gets its rows by no fieldsGrouping, or by several: no key of it can be in quarantine",
            component=component,
        )
    return _held_back(kept_provider(state, known, component, config), folders, state, component)


def check_free(provider: StateProvider, folders: Folders, state: LogState, component: str) -> None:
    """Refuse that rows of a bolt get other keys while some are in quarantine, or wait for another call.

    Nothing tells which new key a row that waits has: it would be dropped when it is replayed, and later rows would pass
    it.

    Raises
    ------
    CheckpointError
        Names a key.
    """
    known = state.topology.stateful[component]
    if len(_groupings(known)) != 1 or not state.holds(component):
        return
    for task in range(known.parallelism):
        with closing(open_task(provider, folders, state, component, task)[0]) as store:
            if next(iter(store.scan(_WAITING, end_of(_WAITING))), None) is not None:
                raise CheckpointError(
                    f"bolt {component!r} can't group its rows otherwise than before: tuples of task {task} wait there "
                    "for another call, by their keys of before. Start it with the grouping of before until none waits",
                    component=component,
                )
    with closing(_held_back(provider, folders, state, component)) as found:
        first = next(found, None)
    if first is not None:
        raise CheckpointError(
            f"bolt {component!r} can't group its rows otherwise than before: of its key {first.key!r}, and maybe of "
            f"others, rows wait in quarantine, and would never be executed. Start it with the grouping of before, and "
            f"replay or forget them; Checkpoint(location).quarantined({component!r}) lists the keys",
            component=component,
        )


def _groupings(known: StatefulIdentity) -> list[Sequence[str]]:
    """Return the types of the fields that a bolt's rows are grouped by."""
    return [types for kind, *types in known.routing if kind == "fields"]


def _held_back(provider: StateProvider, folders: Folders, state: LogState, component: str) -> Generator[Quarantined]:
    known = state.topology.stateful[component]
    form = GroupKeys([parse_type(each) for each in _groupings(known)[0]])
    for task in range(known.parallelism):
        with closing(open_task(provider, folders, state, component, task)[0]) as store:
            for stored, value in store.scan(_QUARANTINE, end_of(_QUARANTINE)):
                fields, waits = form.fields(stored), held(value)
                key = fields[0] if len(fields) == 1 else fields
                yield Quarantined(key, task, waits.next - waits.first, waits.first, waits.txid, waits.why)
