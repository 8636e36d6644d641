"""Committed state as a table: which versions of which tasks are read, and their entries as Arrow batches.

A `StateTable` is made on the driver, where the log is read, and pickled to whoever reads its tasks: each of them by
itself, in any process that sees the checkpoint. State that is kept in files is read from these, side by side, a block
of each at a time: no cache is built, and nothing is held but those blocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from statefx.admin.columns import Decoder, Entries, Shown, scanned, shown_of, with_origin
from statefx.admin.layouts import OwnRows, OwnSpace, Read, form_of, kept_names, own_space
from statefx.admin.reading import check_map, codec_of, component_of, kept_provider, tasks_of
from statefx.admin.savepoints import at_pin
from statefx.errors import CheckpointError, ConfigError, StateCorruptedError
from statefx.log.location import Folders, checkpoint_location
from statefx.log.pins import pinned
from statefx.log.takeover import read_checkpoint
from statefx.operators.schema import Form
from statefx.plan.deployment import cache_folder
from statefx.protocol.identity import EMPTY, Namespace, SnapshotRef, TaskId, Version
from statefx.protocol.log_state import LogState
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.changelog import merging
from statefx.state.changelog.chain import Changelog, committed
from statefx.state.changelog.files import Chunk, listed, names_of
from statefx.state.changelog.store import ChangelogProvider
from statefx.state.contract.spaces import NameKind, Space, end_of
from statefx.state.contract.store import StateContext, StateProvider, open_store
from statefx.state.encoding.codec import Codec
from statefx.state.encoding.options import Encoding
from statefx.state.registry import name_of

At = int | str | None
"""A transaction, the name of a savepoint, or None: the last transaction whose commit is decided."""


@dataclass(frozen=True)
class Moment:
    """A transaction, and where the state of each task was then."""

    txid: int
    tasks: Mapping[int, tuple[Namespace, Version, SnapshotRef | None]]


@dataclass(frozen=True)
class StateTable:
    """What `state_table` has found; `read` gives the rows of one of its tasks."""

    folders: Folders
    component: str
    generation: int
    provider: StateProvider
    encoding: Encoding
    state_version: int
    codec: Codec | None
    form: Form
    shown: Shown
    tasks: tuple[int, ...]
    moments: tuple[Moment, ...]
    """One; or two, which are compared."""
    now_ms: int
    own: OwnSpace | None = None
    """What is shown in place of the bolt's own entries."""
    own_form: Mapping[str, Any] | None = None
    """The schema that was asked for."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return self.form.row if len(self.moments) == 1 else self.form.change

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, in the order of their keys.

        Raises
        ------
        CheckpointError
            A file was deleted since, for newer versions are all that is kept by now.
        StateCorruptedError
            A file is damaged.
        """
        codec = self.codec or self.encoding.build()
        decoder = Decoder(codec, self.shown.head, self.form, self.state_version)
        if self.own is not None:
            own = OwnRows(self.own, self.reader(self.moments[0], task), codec)
            rows = decoder.columns(map(form_of(self.own, self.own_form)[1], own.items()))
            yield from with_origin(rows, task, self.shown.space, self.schema)
            return
        images = [self._living(moment, task) for moment in self.moments]
        rows = decoder.rows(images[0]) if len(images) == 1 else _changes(decoder, *images)
        yield from with_origin(rows, task, self.shown.space, self.schema)

    def table(self) -> pa.Table:
        """Return the rows of all tasks."""
        batches = [batch for task in self.tasks for batch in self.read(task)]
        return pa.Table.from_batches(batches, self.schema)

    def _living(self, moment: Moment, task: int) -> Entries:
        try:
            yield from self.shown.living(self.entries(moment, task, self.shown), self.now_ms)
        except StateCorruptedError as error:
            if not getattr(error, "missing", False) or moment.txid == read_checkpoint(self.folders).shown_txid:
                raise
            raise CheckpointError(
                f"transaction {moment.txid} of the state of {self.component!r} is not kept any more: its files were "
                "deleted since the table was made. Make it again; or take a savepoint of what has to stay",
                path=self.folders.location,
                component=self.component,
                txid=moment.txid,
            ) from error

    def reader(self, moment: Moment, task: int) -> Read:
        """Return what reads the entries of a task, of all spaces."""

        def read(low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
            for keys, values in self.entries(moment, task, Shown(Space.USER.value, "", ((low, high),))):
                yield from zip(keys, values, strict=True)

        return read

    def entries(self, moment: Moment, task: int, shown: Shown) -> Entries:
        """Yield what a task keeps of the keys that are shown, many at a time."""
        namespace, version, snapshot = moment.tasks[task]
        storage = self.folders.storage
        if isinstance(self.provider, ChangelogProvider):
            route = Changelog(namespace, storage).route(version, snapshot, None)
            return chain.from_iterable(route.entries(low, high) for low, high in shown.ranges)
        context = StateContext(self.generation, version, storage, cache_folder(), snapshot, read_only=True)
        return _read_store(self.provider, namespace, context, shown)


def _read_store(provider: StateProvider, namespace: Namespace, context: StateContext, shown: Shown) -> Entries:
    with closing(open_store(provider, namespace, context)) as store:
        yield from scanned(store, shown)


def _changes(decoder: Decoder, earlier: Entries, later: Entries) -> Iterator[list[pa.Array]]:
    sources: list[Iterator[Chunk]] = [((keys, [*values]) for keys, values in each) for each in (earlier, later)]
    for first, second in merging.aligned(sources):
        if first == second:
            continue
        before, after = (dict(zip(*part, strict=True)) for part in (first, second))
        keys = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
        if keys:
            old, new = list(map(before.get, keys)), list(map(after.get, keys))
            op = [
                "insert" if was is None else "delete" if now is None else "update"
                for was, now in zip(old, new, strict=True)
            ]
            values = [decoder.values(keys, old), decoder.values(keys, new)]
            yield [pa.array(op, pa.string()), *decoder.keys(keys), *values]


def state_table(
    checkpointLocation: str | os.PathLike[str],
    component: str,
    *,
    task: int | None = None,
    start: Any = None,
    stop: Any = None,
    map: str | None = None,
    at: At = None,
    diff: tuple[At, At] | None = None,
    schema: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    codec: Codec | None = None,
) -> StateTable:
    """Find what a table of committed state consists of; the arguments are those of ``statefx.readState``."""
    if diff is not None and at is not None:
        raise ConfigError("at= shows one transaction and diff= compares two: give one of them")
    if diff is not None and (not isinstance(diff, tuple | list) or len(diff) != 2):
        raise ConfigError(f"diff={diff!r}: give two transactions, or names of savepoints, such as diff=(3, 7)")
    wanted = diff or (at,)
    for each in wanted:
        if each is not None and (
            isinstance(each, bool) or not isinstance(each, int | str) or (isinstance(each, int) and each < 0)
        ):
            raise ConfigError(f"at={each!r}: give the number of a transaction, or the name of a savepoint")
    folders = Folders(checkpoint_location(checkpointLocation))
    log = read_checkpoint(folders)
    states = [at_pin(log, pinned(log, each)) if isinstance(each, str) else log for each in wanted]
    bolts = [component_of(each, component, folders) for each in states]
    found = bolts[-1]
    if (bolts[0].parallelism, bolts[0].codec) != (found.parallelism, found.codec):
        raise ConfigError(
            f"diff={diff!r}: {component!r} had another number of tasks or another codec in one of them, and its keys "
            "can't be compared as they are kept. Join two tables by their keys"
        )
    form = Form.parse(schema, found.schemas.get(map or ""))
    built = codec_of(component, found, codec)
    tasks = tuple(tasks_of(found.parallelism, component, task))
    provider = kept_provider(states[-1], found, component, config)
    moments = [
        moment_of(folders, state, provider, component, tasks, None if isinstance(each, str) else each)
        for state, each in zip(states, wanted, strict=True)
    ]
    table = StateTable(
        folders=folders,
        component=component,
        generation=log.generation,
        provider=provider,
        encoding=Encoding(found.encoding),
        state_version=found.state_version,
        codec=codec,
        form=form,
        shown=shown_of(None, "", built, start, stop),
        tasks=tasks,
        moments=tuple(moments),
        now_ms=int(time.time() * 1000),
    )
    own = own_space(found, states[-1].topology.tracked, map)
    if own is not None:
        return _of_own(table, own, schema, ranged=not (start is None and stop is None))
    if map is None:
        return table
    shown = _of_map(table, map, built, start, stop)
    _check_map(replace(shown, tasks=tuple(range(found.parallelism))), found, map, states, provider)
    return shown


def _of_own(table: StateTable, own: OwnSpace, schema: Mapping[str, Any] | None, *, ranged: bool) -> StateTable:
    if len(table.moments) > 1 or ranged:
        raise ConfigError(
            f"start=, stop= and diff= are for keys of the bolt's own; {own.name!r} are statefx's: read them at both "
            "transactions, and join the tables"
        )
    return replace(
        table,
        form=form_of(own, schema)[0],
        own_form=schema,
        own=own,
        shown=Shown(Space.USER.value, own.name, ()),
    )


def _check_map(
    table: StateTable, known: StatefulIdentity, map: str, states: Sequence[LogState], provider: StateProvider
) -> None:
    """Refuse a map that no task has at any of the moments."""
    if map in known.schemas:
        return
    found, head = [], table.shown.head
    whole = replace(table.shown, ranges=((head, end_of(head)),))
    for state, moment in zip(states, table.moments, strict=True):
        tasks = dict(moment.tasks)
        if len(tasks) < len(table.tasks):
            others = [task for task in table.tasks if task not in tasks]
            tasks |= moment_of(table.folders, state, provider, table.component, others, moment.txid).tasks
        everyone = replace(moment, tasks=tasks)
        for task in table.tasks:
            if next(table.entries(everyone, task, whole), None):
                return
            found.append((everyone, task))
    check_map(table.folders, table.component, known, map, [kept_names(table.reader(*each)) for each in found])


def _of_map(table: StateTable, name: str, codec: Codec, start: Any, stop: Any) -> StateTable:
    """Return the table of a map; of one that all tasks hold alike, that of the first task."""
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConfigError(f"map={name!r}: give the name that it has in the bolt's state.map(...)")
    rules, first = shown_of(NameKind.BROADCAST, name, codec), table.tasks[:1]
    if any(next(table.entries(moment, task, rules), None) for moment in table.moments for task in first):
        return replace(table, shown=shown_of(NameKind.BROADCAST, name, codec, start, stop), tasks=first)
    return replace(table, shown=shown_of(NameKind.MAP, name, codec, start, stop))


def moment_of(
    folders: Folders, state: LogState, provider: StateProvider, component: str, tasks: Sequence[int], txid: int | None
) -> Moment:
    """Find the versions of a bolt's tasks at a transaction; None: where the log stands.

    Raises
    ------
    ConfigError
        The provider keeps the newest version alone.
    CheckpointError
        The transaction is not committed yet, or not kept any more.
    """
    ids = {task: TaskId(component, task) for task in tasks}
    if txid is not None and state.is_given_up(txid):
        raise CheckpointError(
            f"transaction {txid} of {folders.location} was given up by restore or repair: the state is that of "
            f"transaction {state.shown_txid}",
            path=folders.location,
            txid=txid,
        )
    if txid is None or txid == state.shown_txid:
        heads = state.heads_to_come()
        return Moment(state.shown_txid, {n: _from(state, id, heads.get(str(id), EMPTY)) for n, id in ids.items()})
    if not isinstance(provider, ChangelogProvider):
        keeper = name_of(state.topology.stateful[component].provider)
        raise ConfigError(
            f"the state of {component!r} is kept by {keeper!r}, which has the newest version alone, that of "
            f"transaction {state.shown_txid}: leave out {txid}"
        )
    if txid > state.decided:
        raise CheckpointError(
            f"transaction {txid} is not committed in {folders.location}: the last one is {state.shown_txid}",
            path=folders.location,
            txid=txid,
        )
    return Moment(txid, {n: _from(state, id, _former(folders, state, id, txid)) for n, id in ids.items()})


def _former(folders: Folders, state: LogState, id: TaskId, txid: int) -> Version:
    """Return the version of a task that was committed in `txid`; the files tell, for the log has been folded."""
    if not txid:
        return EMPTY
    changelog, kept = Changelog(state.namespace(id), folders.storage), state.snapshots.get(str(id), ())
    listing = folders.storage.list(names_of(changelog.namespace.prefix, txid))
    files = [each for each in map(listed, listing) if each is not None]
    head = state.heads_to_come().get(str(id), EMPTY)
    found = committed(files, changelog.route(head, kept[0] if kept else None, None).steps)
    if not found:
        raise CheckpointError(
            f"transaction {txid} of the state of {id} is not kept any more: the newest is {state.shown_txid}, and of "
            "those before it only the last stay readable. Take a savepoint of what has to stay",
            path=folders.location,
            txid=txid,
        )
    return found[0].version


def _from(state: LogState, id: TaskId, version: Version) -> tuple[Namespace, Version, SnapshotRef | None]:
    """Return where a version is kept, and the newest snapshot that it can be read from."""
    kept = [each for each in state.snapshots.get(str(id), ()) if each.version.txid <= version.txid]
    return state.namespace(id), version, kept[-1] if kept else None
