"""Committed state, read without Spark and without disturbing the topology that writes it."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from operator import itemgetter
from types import TracebackType
from typing import Any, NoReturn, Self

import pyarrow as pa

from statefx.admin.columns import Decoder, scanned, shown_of, with_origin
from statefx.admin.layouts import OwnRows, OwnSpace, Read, form_of, kept_names, own_name, own_space
from statefx.config import Config
from statefx.errors import (
    AmbiguousKeyError,
    CheckpointError,
    CheckpointMismatchError,
    ConfigError,
    StateClosedError,
    StateCorruptedError,
)
from statefx.log.location import Folders, checkpoint_location
from statefx.log.takeover import read_checkpoint
from statefx.operators.state_schema import Form
from statefx.plan.deployment import cache_folder
from statefx.protocol.identity import Namespace, TaskId
from statefx.protocol.log_state import LogState
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.protocol.transaction import Phase
from statefx.state import Codec, MapState
from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.store import ChangelogProvider
from statefx.state.contract.ranges import in_blocks
from statefx.state.contract.spaces import NameKind, Space
from statefx.state.contract.store import EMPTY, StateContext, StateProvider, StateStore, Version, open_store
from statefx.state.encoding.options import Encoding
from statefx.state.registry import load_provider, name_of
from statefx.state.view.changes import Upgrade
from statefx.state.view.task_state import KeyValueState

_TRIES = 10
_ABSENT = object()

Progress = Callable[[int, int], object]
"""Told how many bytes are done, and of how many."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2 rows``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def openState(
    checkpointLocation: str | os.PathLike[str],
    component: str,
    task: int | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    codec: Codec | None = None,
    migrate: Upgrade | None = None,
    byTask: bool = False,
    map: str | None = None,
) -> StateView:
    """Open the committed state of one bolt for reading; also while the topology runs.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.
    component : str
        The stateful bolt's id.
    task : int, optional
        Read one task's state only; by default that of all tasks, as one mapping.
    config : Mapping, optional
        Settings as given to ``submit``: needed only for ``topology.state.provider.config``, where a secret is among
        the provider's options; the checkpoint has all others, as last given.
    codec : Codec, optional
        What the state was written with, if it was not the standard codec and its class can't be imported here; by
        default the class that the checkpoint names is loaded.
    migrate : callable (version, key, value) -> value, optional
        Is given what versions of the bolt before the present ``stateVersion`` have written, as ``migrateState`` is;
        by default every value is shown as it was written.
    byTask : bool
        Whether keys are shown as ``(task, key)``, for state in which several tasks hold one key.
    map : str, optional
        Show what the bolt keeps in ``state.map(name)``, and not what lies in the state itself; or in
        ``state.broadcast(name)``, which all tasks hold alike and is shown once. Of a windowed bolt ``"windows"`` are
        its open windows: ``(key, start, end)``, and the window's value or tuples. The view's `names` lists all maps.

    Returns
    -------
    StateView
        All tasks at one txid, the last whose commit is decided; close it, or use it in a ``with``.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or no such bolt, task or map in it; the message lists those there are. A map in which
        nothing is kept is known if the bolt's ``stateSchema`` has it. Or the state was written with another codec than
        `codec`.
    ConfigError
        The codec that the state was written with can't be loaded; or the provider's options have to be given.
    StateCorruptedError
        A file is damaged.

    Examples
    --------
    >>> with openState("checkpoints/word-count", "count") as counts:     # doctest: +SKIP
    ...     print(counts.txid, counts["spark"], len(counts))
    """
    folders = Folders(checkpoint_location(checkpointLocation))
    return StateView(_Request(folders, component, task, config, codec, migrate, byTask, map, time.time, checked=True))


def committed_at(
    now: Callable[[], float],
    location: str,
    component: str,
    task: int | None,
    config: Mapping[str, Any] | None,
    map: str | None,
) -> StateView:
    """Open the committed state of one bolt as `openState` does, by another clock; a map may have nothing in it yet."""
    return StateView(_Request(Folders(location), component, task, config, None, None, False, map, now))


_Rows = KeyValueState[Any, Any] | MapState[Any, Any] | OwnRows


@dataclass(frozen=True)
class _Opened:
    """The states of one moment."""

    txid: int
    kept: tuple[str, Mapping[str, Version]]
    """The lineage, and the versions of the bolt's tasks: state may be written anew between two transactions."""
    states: Mapping[int, KeyValueState[Any, Any]]
    stores: Mapping[int, StateStore]
    codec: Codec
    known: StatefulIdentity
    map: str | None
    own: OwnSpace | None
    """What is shown in place of the bolt's own entries."""
    name_of_own: tuple[str, bool] | None

    def read(self, task: int) -> Read:
        """Return what reads the entries of a task."""
        return self.stores[task].scan

    def names(self) -> dict[str, list[str]]:
        """Return under which names the bolt keeps something, by kind."""
        own, whole = self.name_of_own or ("", False)
        states = () if whole else self.states.values()
        kinds = [kind.value for kind in NameKind if kind is not NameKind.WINDOWS]  # which are statefx's own
        names = {kind: sorted({name for state in states for name in state.names(kind)}) for kind in kinds}
        return names | ({"statefx": [own]} if own else {})

    @property
    def kind(self) -> NameKind | None:
        """What the view is of: the state itself, a map, or one that all tasks hold alike."""
        if self.map is None:
            return None
        return NameKind.BROADCAST if next(iter(self.states.values())).broadcast(self.map) else NameKind.MAP

    def shown(self, by_task: bool) -> Mapping[int, _Rows]:
        """Return what the view is of; what all tasks hold alike once, unless it is wanted `by_task`."""
        if self.own is not None:
            return {task: OwnRows(self.own, self.read(task), self.codec) for task in self.states}
        if self.map is None:
            return self.states
        if self.kind is NameKind.BROADCAST:
            shown = self.states if by_task else dict([next(iter(self.states.items()))])
            return {task: state.broadcast(self.map) for task, state in shown.items()}
        return {task: state.map(self.map) for task, state in self.states.items()}

    def close(self) -> None:
        for state in self.states.values():
            state.close()


@dataclass(frozen=True)
class _Request:
    """What `openState` was given."""

    folders: Folders
    component: str
    task: int | None
    config: Mapping[str, Any] | None
    codec: Codec | None
    migrate: Upgrade | None
    by_task: bool
    map: str | None
    now: Callable[[], float]
    """Seconds since the epoch, by which entries of maps with a ttl are over."""
    checked: bool = False
    """Whether a map in which nothing is kept is a mistake."""

    def open(self, known: _Opened | None = None) -> _Opened | None:
        """Open the last transaction whose commit is decided; None if that is the one which is `known`."""
        for tries in range(_TRIES):
            state = read_checkpoint(self.folders)
            if known is not None and (known.txid, known.kept) == (state.shown_txid, self._kept(state)):
                return None
            try:
                opened = self._open(state)
                if known is None and self.checked:
                    self._check_map(opened, state)
            except StateCorruptedError as error:
                # A topology at work deletes files of old versions, and may do so between the reading of the log and
                # the opening: then the version that is the newest by now is the one to show (rule 4.4).
                swept = getattr(error, "missing", False)
                if not swept or tries == _TRIES - 1 or read_checkpoint(self.folders).decided == state.decided:
                    raise
            else:
                return opened
        raise AssertionError("unreachable")

    def _check_map(self, opened: _Opened, state: LogState) -> None:
        """Refuse a map that is in no task; `opened` is closed then."""
        if self.map is None or opened.own is not None or self.map in opened.known.schemas:
            return
        whole = opened
        try:
            if any(next(iter(shown.items()), None) is not None for shown in opened.shown(False).values()):
                return
            whole = opened if self.task is None else replace(self, task=None)._open(state)
            found = [kept_names(whole.read(task)) for task in whole.stores]
            check_map(self.folders, self.component, opened.known, self.map, found)
        except BaseException:
            opened.close()
            raise
        finally:
            if whole is not opened:
                whole.close()

    def _kept(self, state: LogState) -> tuple[str, Mapping[str, Version]]:
        heads = state.heads_to_come().items()
        return state.lineage, {name: head for name, head in heads if TaskId.parse(name).component == self.component}

    def _open(self, state: LogState) -> _Opened:
        found = component_of(state, self.component, self.folders)
        provider = kept_provider(state, found, self.component, self.config)
        codec = codec_of(self.component, found, self.codec)
        form: dict[str, Any] = {
            "state_version": found.state_version,
            "upgrade": self.migrate,
            "clock_ms": int(self.now() * 1000),
        }
        opened: dict[int, KeyValueState[Any, Any]] = {}
        stores: dict[int, StateStore] = {}
        try:
            for n in tasks_of(found.parallelism, self.component, self.task):
                store, version = open_task(provider, self.folders, state, self.component, n)
                stores[n] = store
                opened[n] = KeyValueState(store, codec, version=version, read_only=True, **form)
        except BaseException:
            for each in opened.values():
                each.close()
            raise
        own = own_space(found, state.topology.tracked, self.map, self.migrate)
        return _Opened(
            state.shown_txid,
            self._kept(state),
            opened,
            stores,
            codec,
            found,
            self.map,
            own,
            own_name(found),
        )


_WITH_CONFIG = "config={'topology.state.provider.config': {...}}, as they were given to submit"


def kept_options(found: StatefulIdentity, what: str, remedy: str) -> Mapping[str, Any]:
    """Return the provider's options that the checkpoint has for a component; ConfigError if they may hold a secret."""
    if found.options is None:
        raise ConfigError(
            f"{what} is kept by {name_of(found.provider)!r}, whose options are not in the checkpoint, since "
            f"there is a secret among them, or the provider does not say that there is none: give them, {remedy}",
            provider=found.provider,
        )
    return found.options


def kept_provider(
    state: LogState, found: StatefulIdentity, component: str, config: Mapping[str, Any] | None
) -> StateProvider:
    """Return the provider that keeps a bolt's state, with the options that the checkpoint has or `config` gives."""
    given = Config.parse(config, state.topology.name).state_provider_config
    return load_provider(found.provider, given or kept_options(found, f"the state of {component!r}", _WITH_CONFIG))


class StateView(Mapping[Any, Any]):
    """A read-only mapping over the committed state of one bolt.

    Attributes
    ----------
    txid : int
        The transaction it shows; 0: nothing has been committed.

    Contract
    --------
    * All tasks are shown at the same txid (rule 8.2), and what is committed later does not appear; where state lives
      in a server, which keeps no versions, each read shows its namespace as last committed.
    * A key that several tasks hold raises AmbiguousKeyError, also from iteration, when it comes to it, and ``len``.
      With ``byTask=True`` there is no such key: each is ``(task, key)``.
    * Entries of a map with a ttl are shown that were not over, by this machine's clock, when the view was opened or
      last refreshed.
    * Nothing is held in memory but a block of each task. ``len`` reads all keys where several tasks have some, unless
      ``byTask=True``.
    """

    def __init__(self, request: _Request) -> None:
        self._request = request
        self._closed = False
        opened = request.open()
        assert opened is not None
        self._show(opened)

    def _show(self, opened: _Opened) -> None:
        self._opened = opened
        self._states = opened.shown(self._request.by_task)
        self._encode: Callable[[Any], bytes] = opened.codec.encode_key
        self.txid = opened.txid

    def __repr__(self) -> str:
        tasks = "all tasks" if self._request.task is None else f"task {self._request.task}"
        return f"<StateView of {self._request.component!r}, {tasks}, at transaction {self.txid}>"

    def refresh(self) -> bool:
        """Show the last transaction whose commit is decided by now; return whether that is something new.

        New is also what a tool, such as `writeState`, has made of the same transaction. Costs a look at the transaction
        log, and opening the state if there is something new. Raises what `openState` does; this view then goes on
        showing what it did. An iterator from before ends with StateClosedError.
        """
        if self._closed:
            raise StateClosedError(f"the view of {self._request.component!r} is closed: call openState again")
        opened = self._request.open(self._opened)
        if opened is None:
            for state in self._opened.states.values():
                state._set_clock(int(self._request.now() * 1000))
            return False
        before = self._opened
        self._show(opened)
        before.close()
        return True

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        """Refuse: state is changed by its bolt."""
        raise TypeError("a view of committed state is read-only: its bolt changes it, in execute")

    def __getitem__(self, key: Any) -> Any:
        if self._request.by_task:
            state, own = self._state_of(key)
            if state is None or (value := state.get(own, _ABSENT)) is _ABSENT:
                raise KeyError(key)
            return value
        found = {n: value for n, state in self._states.items() if (value := state.get(key, _ABSENT)) is not _ABSENT}
        if not found:
            raise KeyError(key)
        if len(found) > 1:
            raise self._ambiguous(key, sorted(found))
        return next(iter(found.values()))

    def __contains__(self, key: Any) -> bool:
        if self._request.by_task:
            state, own = self._state_of(key)
            return state is not None and own in state
        return any(key in state for state in self._states.values())

    def _state_of(self, key: Any) -> tuple[_Rows | None, Any]:
        """Return the state of the task that a key names, if it is shown, and the task's own key."""
        if not isinstance(key, tuple) or len(key) != 2:
            raise TypeError(f"the view was opened with byTask=True, and its keys are (task, key), not {key!r}")
        return self._states.get(key[0]), key[1]

    def _ambiguous(self, key: Any, tasks: list[int]) -> AmbiguousKeyError:
        return AmbiguousKeyError(
            f"tasks {tasks} of {self._request.component!r} all hold {key!r}: open the state with byTask=True, which "
            "shows each key with its task, or one of them with task=",
            key=key,
            tasks=tasks,
        )

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def __len__(self) -> int:
        lengths = [_length(state) for state in self._states.values()]
        if self._request.by_task or sum(map(bool, lengths)) < 2:
            return sum(lengths)
        return sum(1 for _ in self.items())

    def items(  # type: ignore[override]  # an iterator with a range, as of KeyValueState: a view would look up each key
        self, start: Any = None, stop: Any = None, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Yield (key, value) with start <= key < stop in key order over all tasks, or the last first.

        With ``byTask=True`` `start` and `stop` are keys without a task, and a key comes once for each of its tasks.

        Raises
        ------
        AmbiguousKeyError
            When it comes to a key that several tasks hold.
        """
        if self._opened.own is not None:  # one row of a key, whose order is that of its task
            tasks = ((task, rows.items(start, stop, reverse)) for task, rows in self._states.items())
            return (
                ((task, key) if self._request.by_task else key, value) for task, rows in tasks for key, value in rows
            )
        tagged = [self._tagged(task, state.items(start, stop, reverse)) for task, state in self._states.items()]
        merged = heapq.merge(*tagged, key=itemgetter(0, 1), reverse=reverse)
        if self._request.by_task:
            return (((task, key), value) for _, task, key, value in merged)
        return self._unambiguous(merged)

    def _tagged(self, task: int, items: Iterator[tuple[Any, Any]]) -> Iterator[tuple[bytes, int, Any, Any]]:
        encode = self._encode
        return ((encode(key), task, key, value) for key, value in items)

    def _unambiguous(self, merged: Iterable[tuple[bytes, int, Any, Any]]) -> Iterator[tuple[Any, Any]]:
        before, former_task = None, 0
        for encoded, task, key, value in merged:
            if encoded == before:
                raise self._ambiguous(key, sorted((former_task, task)))
            before, former_task = encoded, task
            yield key, value

    def to_arrow(self, schema: Mapping[str, Any] | None = None, start: Any = None, stop: Any = None) -> pa.Table:
        """Return the keys with start <= key < stop and their values as a table, as ``statefx.readState`` does.

        Parameters
        ----------
        schema : Mapping, optional
            Types of key and value as Spark DDL, such as ``{"key": "word string", "value": "count long"}``; what is
            left out is a column of JSON text, ``key`` or ``value``. By default the bolt's ``stateSchema``.
        start, stop : optional
            Bounds, as of `items`.

        Returns
        -------
        pyarrow.Table
            Columns of key and value, ``task`` and ``space``; by task, then by key. A key that several tasks hold has
            a row for each of them.

        Raises
        ------
        ConfigError
            `schema` is wrong, or a key or value does not fit it.
        """
        opened = self._opened
        if opened.own is not None:
            return self._own_table(opened.own, schema)
        form = Form.parse(schema, opened.known.schemas.get(opened.map or ""))
        shown = shown_of(opened.kind, opened.map or "", opened.codec, start, stop)
        decoder = Decoder(opened.codec, shown.head, form, opened.known.state_version)
        batches: list[pa.RecordBatch] = []
        for task, state in opened.states.items():
            if task in self._states:
                living = shown.living(scanned(opened.stores[task], shown), state._clock_ms or 0)
                batches += with_origin(decoder.rows(living), task, shown.space, form.row)
        return pa.Table.from_batches(batches, form.row)

    def _own_table(self, own: OwnSpace, schema: Mapping[str, Any] | None) -> pa.Table:
        opened, (form, shaped) = self._opened, form_of(own, schema)
        decoder = Decoder(opened.codec, Space.USER.value, form, opened.known.state_version)
        batches: list[pa.RecordBatch] = []
        for task, rows in self._states.items():
            batches += with_origin(decoder.columns(map(shaped, rows.items())), task, own.name, form.row)
        return pa.Table.from_batches(batches, form.row)

    def names(self) -> dict[str, list[str]]:
        """Return under which names the bolt keeps something: of ``"map"``, ``"list"``, ``"value"``, ``"broadcast"``.

        Beside them, ``"statefx"`` is what statefx keeps for the bolt and ``map=`` shows: ``windows`` of a windowed
        bolt, ``waiting`` of an `IntervalJoin`, ``ids`` of the bolt that drops duplicates, ``trees`` of the acker.
        """
        return self._opened.names()

    def list(self, name: str) -> dict[int, list[Any]]:
        """Return what each task keeps in ``state.list(name)``, by task; those whose list is empty are left out."""
        found = {task: [*state.list(name)] for task, state in self._opened.states.items()}
        return {task: values for task, values in found.items() if values}

    def value(self, name: str) -> dict[int, Any]:
        """Return what each task keeps in ``state.value(name)``, by task; those that have none are left out."""
        found = {task: state.value(name).get(_ABSENT) for task, state in self._opened.states.items()}
        return {task: value for task, value in found.items() if value is not _ABSENT}

    def close(self) -> None:
        """Release what the view holds; again is a no-op."""
        self._closed = True
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _length(state: _Rows) -> int:
    try:
        return len(state)
    except TypeError:  # its provider does not count
        return sum(1 for _ in state.items())


def found_checkpoint(location: str | os.PathLike[str]) -> tuple[Folders, LogState]:
    """Return what the log of a checkpoint knows; CheckpointError if there is none."""
    folders = Folders(checkpoint_location(location))
    found = read_checkpoint(folders)
    check_started(found, folders)
    return folders, found


def provider_of(found: LogState, config: Mapping[str, Any] | None) -> StateProvider:
    """Return the checkpoint's state provider, or the configured one if no bolt is stateful."""
    some = next(iter(found.topology.stateful.items()), None)  # one provider keeps all of them
    if some is None:
        given = Config.parse(config, found.topology.name)
        return load_provider(given.state_provider, given.state_provider_config)
    component, bolt = some
    return kept_provider(found, bolt, component, config)


def check_started(state: LogState, folders: Folders) -> None:
    """Refuse what no topology has been started on."""
    if not state.generation:
        raise CheckpointError(
            f"there is no checkpoint in {folders.location}: has a topology been submitted there?", path=folders.location
        )


def check_idle(state: LogState, folders: Folders, what: str) -> None:
    """Refuse a checkpoint in which a transaction is under way; `what` is to be done when it has ended."""
    if not state.in_flight:
        return
    first = state.in_flight[0]
    rolled, instead = "forward", ""
    if first.phase is not Phase.COMMITTING:
        rolled, instead = "back", ", or call statefx.abort, which needs no topology"
    raise CheckpointError(
        f"transaction {first.txid} of the checkpoint in {folders.location} is {first.phase}. Stop the topology if it "
        f"runs; else start it once, so that the transaction is rolled {rolled}, and stop it{instead}. Then {what}",
        path=folders.location,
        txid=first.txid,
    )


def component_of(state: LogState, component: str, folders: Folders) -> StatefulIdentity:
    """Return how a bolt keeps its state; CheckpointError: there is no such bolt."""
    check_started(state, folders)
    stateful = state.topology.stateful
    if component not in stateful:
        raise CheckpointError(
            f"{folders.location} holds no state of {component!r}; its stateful bolts are {sorted(stateful) or 'none'}",
            path=folders.location,
            component=component,
        )
    return stateful[component]


def check_map(
    folders: Folders,
    component: str,
    known: StatefulIdentity,
    map: str,
    found: Iterable[Mapping[NameKind, Iterable[str]]],
) -> None:
    """Refuse a map that no task has, and of which the bolt does not say that it has it; `found`: names by task."""
    own, whole = own_name(known) or ("", False)
    kept = (
        ()
        if whole
        else (name for of in found for kind in (NameKind.MAP, NameKind.BROADCAST) for name in of.get(kind, ()))
    )
    there = {*kept, *known.schemas, own} - {""}
    if map not in there:
        raise CheckpointError(
            f"{component!r} keeps nothing in a map {map!r} in {folders.location}; its maps are "
            f"{sorted(there) or 'none'}. One that nothing is kept in yet is known if the bolt names it: "
            f"stateSchema = {{'maps': {{{map!r}: {{}}}}}}",
            path=folders.location,
            component=component,
        )


def codec_of(component: str, known: StatefulIdentity, given: Codec | None = None) -> Codec:
    """Return what the state was written with."""
    written = known.codec
    if given is not None and not isinstance(given, Codec):
        raise ConfigError(f"codec must be an object of a statefx.state.Codec, got {given!r}")
    encoding = Encoding(known.encoding)
    try:
        found, name = (given, given.name) if given is not None else (encoding.build(), encoding.name)
    except ConfigError as error:
        raise ConfigError(
            f"the state of {component!r} was written with codec {written!r}, which can't be loaded here: "
            f"{error.message}; or give one with codec=",
            **{**error.data, "component": component},
        ) from error
    if name != written:
        raise CheckpointMismatchError(
            f"the state of {component!r} was written with codec {written!r}, this one is {name!r}: give the one that "
            "wrote it with codec=",
            component=component,
            found=written,
            wanted=name,
        )
    return found


def tasks_of(parallelism: int, component: str, task: int | None) -> range:
    """Return the one task that is asked for, or all."""
    if task is None:
        return range(parallelism)
    if isinstance(task, bool) or not isinstance(task, int) or not 0 <= task < parallelism:
        raise ConfigError(f"bolt {component!r} has tasks 0..{parallelism - 1}, got task={task!r}")
    return range(task, task + 1)


def open_task(
    provider: StateProvider, folders: Folders, state: LogState, component: str, task: int
) -> tuple[StateStore, Version]:
    """Open the state of one task for reading, at the newest decided version of `state`, and return both."""
    context = _context_of(folders, state, component, task)
    return open_store(provider, state.namespace(TaskId(component, task)), context), context.version


def task_blocks(
    provider: StateProvider, folders: Folders, state: LogState, component: str, task: int
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield the state of one task, at the newest decided version of `state`, many entries at a time."""
    context = _context_of(folders, state, component, task)
    return blocks_at(provider, state.namespace(TaskId(component, task)), context)


def blocks_at(
    provider: StateProvider, namespace: Namespace, context: StateContext
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield what ``context.version`` holds, in order; files are read side by side, verified, and no cache is built."""
    if isinstance(provider, ChangelogProvider):
        changelog = Changelog(namespace, context.storage)
        yield from changelog.route(context.version, context.snapshot, None).entries(None, None)
        return
    with closing(open_store(provider, namespace, context)) as store:
        yield from in_blocks(store.scan(None, None))


def _context_of(folders: Folders, state: LogState, component: str, task: int) -> StateContext:
    name = str(TaskId(component, task))
    kept = state.snapshots.get(name, ())
    return StateContext(
        generation=state.generation,
        version=state.heads_to_come().get(name, EMPTY),
        storage=folders.storage,
        cache=cache_folder(),
        snapshot=kept[-1] if kept else None,
        read_only=True,
    )
