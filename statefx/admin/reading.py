"""Committed state, read without Spark and without disturbing the topology that writes it.

A `StateView` is a mapping: it opens the state of tasks as a bolt would, and looks keys up. A `StateTable` is rows: it
is made where the log is read, and pickled to whoever reads its tasks, each by itself, in any process that sees the
checkpoint. State that is kept in files is read from these, side by side, a block of each at a time: no cache is built,
and nothing is held but those blocks.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import itemgetter
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import pyarrow as pa

from statefx.admin.columns import OWN_KEYS_SPACE, Decoder, Entries, Shown, shown_of, with_origin
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
from statefx.log.location import Folders
from statefx.log.pins import pinned
from statefx.log.takeover import read_checkpoint
from statefx.notebook import bounded, view_html
from statefx.operators.schema import Form
from statefx.protocol.identity import EMPTY, Namespace, SnapshotRef, TaskId, Version
from statefx.protocol.log_rules import apply
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Pin, Restored
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.protocol.transaction import Phase
from statefx.state import Codec, MapState
from statefx.state.changelog import merging
from statefx.state.changelog.chain import Changelog, committed
from statefx.state.changelog.files import Chunk, listed, names_of
from statefx.state.changelog.store import ChangelogProvider
from statefx.state.contract.caches import cache_folder
from statefx.state.contract.ranges import in_blocks
from statefx.state.contract.spaces import NameKind, Space, end_of
from statefx.state.contract.store import StateContext, StateProvider, StateStore, open_store
from statefx.state.encoding.options import Encoding
from statefx.state.registry import load_provider, name_of
from statefx.state.view.changes import Upgrade
from statefx.state.view.task_state import KeyValueState

T = TypeVar("T")

Progress = Callable[[int, int], object]
"""Told how many bytes are done, and of how many."""

_TRIES = 10
_ABSENT = object()


def counted(number: int, noun: str, several: str = "") -> str:
    """Return a number with its noun: ``1 row``, ``2 rows``; `several` is the plural if it has no mere s."""
    return f"{number} {noun}" if number == 1 else f"{number} {several or f'{noun}s'}"


def check_progress(progress: object) -> None:
    """Refuse what can't be told how far something is."""
    if progress is not None and not callable(progress):
        raise ConfigError(
            "progress must be a function of two numbers, such as lambda done, total: print(done, total), "
            f"got {progress!r}"
        )


# ---- what the log knows


def found_checkpoint(folders: Folders) -> LogState:
    """Return what the log of a checkpoint knows; CheckpointError if there is none."""
    found = read_checkpoint(folders)
    check_started(found, folders)
    return found


def read_newest(folders: Folders, read: Callable[[LogState], T]) -> T:
    """Return what `read` makes of the newest state that the log knows; called again if that is replaced meanwhile.

    A topology at work deletes files of old versions, and may do so between the reading of the log and that of the
    files: then the version that is the newest by now is the one to read (rule 4.4).
    """
    for tries in range(_TRIES):
        state = read_checkpoint(folders)
        try:
            return read(state)
        except (CheckpointError, StateCorruptedError) as error:
            swept = getattr(error, "missing", False)
            if not swept or tries == _TRIES - 1 or read_checkpoint(folders).decided == state.decided:
                raise
    raise AssertionError("unreachable")


def kept_provider(
    state: LogState, found: StatefulIdentity, component: str, config: Mapping[str, Any] | None
) -> StateProvider:
    """Return the provider that keeps a bolt's state, with the options that the checkpoint has or `config` gives."""
    options = Config.parse(config, state.topology.name).state_provider_config or found.options
    if options is None:
        raise ConfigError(
            f"the state of {component!r} is kept by {name_of(found.provider)!r}, whose options are not in the "
            "checkpoint, since there is a secret among them, or the provider does not say that there is none: give "
            "them as they were given to submit, Checkpoint(location, {'topology.state.provider.config': {...}})",
            provider=found.provider,
        )
    return load_provider(found.provider, options)


def provider_of(found: LogState, config: Mapping[str, Any] | None) -> StateProvider:
    """Return the checkpoint's state provider, or the configured one if no bolt is stateful."""
    some = next(iter(found.topology.stateful.items()), None)  # one provider keeps all of them
    if some is None:
        given = Config.parse(config, found.topology.name)
        return load_provider(given.state_provider, given.state_provider_config)
    component, bolt = some
    return kept_provider(found, bolt, component, config)


def at_pin(state: LogState, pin: Pin) -> LogState:
    """Return what the log would know if it had ended with `pin`: for readers of what is kept."""
    return apply(replace(state, in_flight=(), committed=pin.txid), Restored(state.generation, pin))


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
        rolled, instead = "back", ", or call Checkpoint(location).abort(), which needs no topology"
    raise CheckpointError(
        f"transaction {first.txid} of the checkpoint in {folders.location} is {first.phase}. Stop the topology if it "
        f"runs; else start it once, so that the transaction is rolled {rolled}, and stop it{instead}. Then {what}",
        path=folders.location,
        txid=first.txid,
    )


def component_of(state: LogState, component: str, folders: Folders) -> StatefulIdentity:
    """Return how a bolt keeps its state; CheckpointError: there is no such bolt; ConfigError: nor can there be one."""
    check_started(state, folders)
    stateful = state.topology.stateful
    if not isinstance(component, str):
        raise ConfigError(
            f"the id of a bolt is a text, got {component!r}; the stateful bolts of {folders.location} are "
            f"{sorted(stateful) or 'none'}"
        )
    if component not in stateful:
        raise CheckpointError(
            f"{folders.location} holds no state of {component!r}; its stateful bolts are {sorted(stateful) or 'none'}",
            path=folders.location,
            component=component,
        )
    return stateful[component]


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
    there = f"bolt {component!r} has tasks 0..{parallelism - 1}, got task={task!r}"
    if isinstance(task, bool) or not isinstance(task, int):
        raise ConfigError(f"{there}: give a number")
    if not 0 <= task < parallelism:
        raise CheckpointError(there, component=component, task=task)
    return range(task, task + 1)


def check_map(map: object) -> None:
    """Refuse what can't be the name of a map."""
    if map is not None and (not isinstance(map, str) or not map or "\0" in map):
        raise ConfigError(
            f"map={map!r} can't be the name of a map: give the one that it has in the bolt's state.map(...); "
            "the `names` of Checkpoint.state, in a shell `maps`, lists them"
        )


def check_yes(yes: object) -> None:
    """Refuse what says neither that something is to be done nor that it isn't."""
    if not isinstance(yes, bool):
        raise ConfigError(f"yes must be True or False, got {yes!r}: nothing was changed")


def open_task(
    provider: StateProvider, folders: Folders, state: LogState, component: str, task: int
) -> tuple[StateStore, Version]:
    """Open the state of one task for reading, at the newest decided version of `state`, and return both."""
    context = _context_of(folders, state, component, task)
    return open_store(provider, state.namespace(TaskId(component, task)), context), context.version


def task_entries(provider: StateProvider, folders: Folders, state: LogState, component: str, task: int) -> Entries:
    """Yield the state of one task, at the newest decided version of `state`."""
    context = _context_of(folders, state, component, task)
    return entries_at(provider, state.namespace(TaskId(component, task)), context)


_ALL: tuple[tuple[bytes | None, bytes | None]] = ((None, None),)


def entries_at(
    provider: StateProvider,
    namespace: Namespace,
    context: StateContext,
    ranges: Iterable[tuple[bytes | None, bytes | None]] = _ALL,
) -> Entries:
    """Yield what ``context.version`` holds in ranges of keys; files are read side by side, and no cache is built."""
    if isinstance(provider, ChangelogProvider):
        route = Changelog(namespace, context.storage).route(context.version, context.snapshot, None)
        for low, high in ranges:
            yield from route.entries(low, high)
        return
    with closing(open_store(provider, namespace, context)) as store:
        for low, high in ranges:
            yield from in_blocks(store.scan(low, high))


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


# ---- as a mapping


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

    def read(self, task: int) -> Read:
        """Return what reads the entries of a task."""
        return self.stores[task].scan

    def names(self) -> dict[str, list[str]]:
        """Return under which names the bolt keeps something, by kind."""
        own, whole = own_name(self.known) or ("", False)
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

    @property
    def space(self) -> str:
        """What a table says of the view's rows in its column ``space``."""
        if self.own is not None:
            return self.own.name
        return OWN_KEYS_SPACE if self.kind is None else f"{self.kind.value} {self.map}"

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
class ViewRequest:
    """What a view shows, and how it opens that."""

    folders: Folders
    config: Mapping[str, Any] | None
    component: str
    task: int | None = None
    map: str | None = None
    codec: Codec | None = None
    migrate: Upgrade | None = None
    by_task: bool = False
    now: Callable[[], float] = time.time
    """Seconds since the epoch, by which entries of maps with a ttl are over."""
    checked: bool = True
    """Whether a map in which nothing is kept is a mistake."""

    def open(self, known: _Opened | None = None) -> _Opened | None:
        """Open the last transaction whose commit is decided; None if that is the one which is `known`."""
        check_map(self.map)

        def opened(state: LogState) -> _Opened | None:
            if known is not None and (known.txid, known.kept) == (state.shown_txid, self._kept(state)):
                return None
            now = self._open(state)
            if known is None and self.checked:
                self._check_map(now, state)
            return now

        return read_newest(self.folders, opened)

    def _check_map(self, opened: _Opened, state: LogState) -> None:
        """Refuse a map that is in no task; `opened` is closed then."""
        if self.map is None or opened.own is not None or self.map in opened.known.schemas:
            return
        try:
            if all(next(iter(shown.items()), None) is None for shown in opened.shown(False).values()):
                state_table(self.folders, state, self.config, self.component, map=self.map, codec=self.codec)
        except BaseException:
            opened.close()
            raise

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
        )


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

    def __init__(self, request: ViewRequest) -> None:
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

    def _repr_html_(self) -> str | None:
        """Return the first entries, for notebooks."""
        map = self._request.map
        name = self._request.component + ("" if map is None else f", map {map}")
        return bounded(lambda: view_html(name, self.txid, self.items()))

    def refresh(self) -> bool:
        """Show the last transaction whose commit is decided by now; return whether that is something new.

        New is also what a tool, such as `Checkpoint.write`, has made of the same transaction. Costs a look at the log,
        and opening the state if there is something new. Raises what `Checkpoint.state` does; this view then goes on
        showing what it did. An iterator from before ends with StateClosedError.
        """
        if self._closed:
            raise StateClosedError(f"the view of {self._request.component!r} is closed: open another one")
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


# ---- as rows


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
                missing=True,
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
        context = StateContext(self.generation, version, self.folders.storage, cache_folder(), snapshot, read_only=True)
        return entries_at(self.provider, namespace, context, shown.ranges)


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
    folders: Folders,
    log: LogState,
    config: Mapping[str, Any] | None,
    component: str,
    *,
    task: int | None = None,
    map: str | None = None,
    start: Any = None,
    stop: Any = None,
    at: At = None,
    diff: tuple[At, At] | None = None,
    schema: Mapping[str, Any] | None = None,
    codec: Codec | None = None,
) -> StateTable:
    """Find what a table of committed state consists of; the arguments are those of ``Checkpoint.table``."""
    check_map(map)
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
    states = [at_pin(log, pinned(log, each, folders.location)) if isinstance(each, str) else log for each in wanted]
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
    own, owned = own_name(known) or ("", False)
    names = [] if owned else [kept_names(table.reader(*each)) for each in found]
    kept = (name for of in names for kind in (NameKind.MAP, NameKind.BROADCAST) for name in of.get(kind, ()))
    there = {*kept, *known.schemas, own} - {""}
    if map not in there:
        raise CheckpointError(
            f"{table.component!r} keeps nothing in a map {map!r} in {table.folders.location}; its maps are "
            f"{sorted(there) or 'none'}. One that nothing is kept in yet is known if the bolt names it: "
            f"stateSchema = {{'maps': {{{map!r}: {{}}}}}}",
            path=table.folders.location,
            component=table.component,
        )


def _of_map(table: StateTable, name: str, codec: Codec, start: Any, stop: Any) -> StateTable:
    """Return the table of a map; of one that all tasks hold alike, that of the first task."""
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
