"""The contract of a state provider: a bytes-level store per namespace, opened at one version."""

from __future__ import annotations

import difflib
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, ClassVar, TypeVar

import msgspec

from statefx.errors import ConfigError, ProviderError, StateClosedError, StateError, StatefxError, StatePhaseError
from statefx.protocol.identity import EMPTY, Namespace, SnapshotRef, TaskId, Version
from statefx.storage import Storage

Write = tuple[bytes, bytes | None]

FILES_MAX = 7
"""Default of ``StateContext.files_max``."""


class StateLocation(Enum):
    """Where a provider keeps state, and so what commits it."""

    CHECKPOINT = "checkpoint"
    """In files of the checkpoint. Any machine that sees its folder sees the state, also of older versions. Naming a
    token in the transaction log commits it: no task is called."""

    SERVER = "server"
    """In a server that every machine reaches, and that has the newest version alone: ``commit`` is called in each
    task."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared version of a store.

    Attributes
    ----------
    token : str
        The name under which the store keeps it; the one that it was given.
    size_bytes : int
        By how much what has to be read to build the state has grown, where the store knows; less than 0 where what
        was there before need not be read any more. A new snapshot is due by that.
    """

    token: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StateContext:
    """Where and at which version a store is opened.

    Attributes
    ----------
    generation : int
        The generation of the driver that asks.
    version : Version
        The committed version to open at.
    snapshot : SnapshotRef | None
        The newest snapshot at or before `version` that the transaction log names.
    storage : Storage
        The checkpoint, seen by driver and executors. What a provider keeps in it of a namespace has names that begin
        with ``f"{namespace.prefix}/"``.
    cache : str
        Folder on this machine that caches of this checkpoint may use; may be lost at any time.
    read_only : bool
        The store will be read only; nothing may be written outside private temporary folders.
    files_max : int
        How many files of like size a store that keeps what it prepares in files leaves, before the next one takes
        them in; some tasks leave up to twice as many, so that not all of a bolt do that in one transaction.
    """

    generation: int
    version: Version
    storage: Storage
    cache: str
    snapshot: SnapshotRef | None = None
    read_only: bool = False
    files_max: int = FILES_MAX


@dataclass(frozen=True, slots=True)
class Retention:
    """The versions of one namespace that must be kept, as read from the log.

    Attributes
    ----------
    generation : int
        The newest generation.
    head : Version
        The last committed version.
    snapshots : tuple of SnapshotRef
        Retained snapshots, oldest first; every version from the oldest one's to `head` must stay readable
        (from the empty state on, if there is none) whose txid is at or above `since`.
    min_age_secs : float
        Files younger than this are kept in any case, for readers that are under way.
    since : int
        A txid; what serves only versions before it may go.
    pinned : tuple of (Version, SnapshotRef or None)
        Versions that must stay readable however old they are, from their snapshot or from the empty state on. Only who
        keeps versions in files can do that: a store that holds the newest version alone has none of them any more.
    """

    generation: int
    head: Version
    snapshots: tuple[SnapshotRef, ...]
    min_age_secs: float
    since: int = 0
    pinned: tuple[tuple[Version, SnapshotRef | None], ...] = ()


class StateStore(ABC):
    """The state of one namespace, opened at one committed version (see the module's contract).

    Attributes
    ----------
    read_secs : float
        How long `get` has waited so far for what no cache of this process had; shown to people. 0 if it does not count.
    """

    read_secs: float = 0.0

    @abstractmethod
    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the committed values of `keys`, None where absent, in one round trip."""

    @abstractmethod
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed (key, value) with start <= key < stop, in key order; None is unbounded.

        Costs what is read of it, and finding where it begins: bolts scan for each tuple, and often take the first
        entry only. `reverse`: the same entries, the last one first.
        """

    def count(self, space: bytes) -> int | None:
        """Return how many committed entries have keys that begin with the byte `space`.

        None if only reading them could tell: this is asked for at every transaction.
        """
        return None

    @abstractmethod
    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        """Make `writes` durable and invisible, under `token`.

        Called when all tuples of `txid` have been executed. Rows that are on their way carry `token` already, and the
        transaction log will name it: nothing else ever finds what is prepared here (rule 1.3). What another
        attempt has prepared for `txid` stays as it is (rule 4.1).

        Parameters
        ----------
        txid : int
        token : str
            Given to no other call, except to the same one again: that is as once (rule 4.6).
        writes : sequence of (key, value)
            Sorted by key; None deletes.

        Raises
        ------
        StatePhaseError
            Something else is prepared in this store, or `txid` is not later than the committed one.
        """

    @abstractmethod
    def commit(self, txid: int, token: str) -> None:
        """Make what `token` names the committed version; doing it again is a no-op.

        The log has decided it (rule 2.5). The store that is told may be another object, in another process and later: a
        driver that starts tells all tasks of the last transaction again (rule 6.5).

        Raises
        ------
        CommitFailedError
            It has not happened.
        CommitOutcomeUnknownError
            It may have happened; it will be told again.
        """

    def advance(self, txid: int, token: str, writes: Sequence[Write]) -> bool:
        """Let reads see what this object has prepared, of which the log says that it is committed; without any I/O.

        Called by a task that lives, in the place of closing the store and opening another one. Not called where
        `commit` has to be.

        Parameters
        ----------
        txid, token
            As they were prepared.
        writes : sequence of (bytes, bytes or None)
            As they were given to `prepare`.

        Returns
        -------
        bool
            False: the store stays as it was, and is closed; another one is opened.
        """
        return False

    @abstractmethod
    def rollback(self, txid: int, token: str) -> None:
        """Say that what `token` names will never be committed; doing it again is a no-op."""

    @abstractmethod
    def close(self) -> None:
        """Release what the store holds; closing again is a no-op."""

    def snapshot(self) -> SnapshotRef | None:
        """Write a full image of the committed version; None if this provider needs none.

        It counts when a COMMITTING record names it (rule 4.4).
        """
        return None


def prepare_as(store: StateStore, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
    """Prepare, and refuse a store that keeps what is prepared under another name than it was given.

    Barriers, acks and the transaction log carry the name that was given. A store that made one up would be noticed only
    after the transaction is in the log, when no store can be opened at it any more.

    Raises
    ------
    StateError
        What comes back is not `token`; nothing may be committed.
    """
    prepared = store.prepare(txid, token, writes)
    if not isinstance(prepared, Prepared) or prepared.token != token:
        raise StateError(
            f"{type(store).__name__}.prepare({txid}, {token!r}, ...) returned {prepared!r}: a state provider must "
            "keep what is prepared under the token that it is given, and return Prepared(token)",
            txid=txid,
            token=token,
        )
    return prepared


class StateProvider(ABC):
    """Makes stores; built on the driver from the user's options, pickled to the executors.

    Parameters
    ----------
    options : Mapping[str, Any]
        ``topology.state.provider.config``. Checked here, on the driver.

    Raises
    ------
    ConfigError
        An option is unknown, or its value is of the wrong type or out of range.
    """

    location: ClassVar[StateLocation]
    option_names: ClassVar[Collection[str]] = ()
    """Names of its options, so that one which stands beside ``topology.state.provider.config`` is noticed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)

    @abstractmethod
    def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
        """Open the store of `namespace` at ``context.version``; never deletes and never fences (rule 4.2)."""

    def public_options(self) -> Mapping[str, Any] | None:
        """Return the options that anybody may read who can read the checkpoint, for `Checkpoint` to go by.

        Called on the driver at every start; what is returned is written into the transaction log, as JSON. So it
        must hold no password, nor a url that has one. None: `Checkpoint` has to be given the options,
        for one of them is a secret, or, as here, nobody has said that none is.
        """
        return None if self.options else {}

    @abstractmethod
    def fence(self, lineage: str, generation: int, storage: Storage) -> None:
        """Refuse commits and deletions of generations older than `generation` from now on.

        Called by the driver at start, with the checkpoint, after the generation is in the log.
        """

    def artefacts(self, namespace: Namespace, storage: Storage) -> Sequence[Any]:
        """Return all that `sweep` may have to judge, as it wants it: what has been prepared, and not gone since.

        The driver calls this for all namespaces first, reads the transaction log second, and calls `sweep` third. So
        what a record may yet name is either not among the names, or of a transaction that the log does not have.
        """
        return ()

    def sweep(self, namespace: Namespace, storage: Storage, found: Sequence[Any], retained: Retention) -> int:
        """Delete what nothing needs of the artefacts `found`; return how many were deleted.

        Called by the driver now and then, while transactions run, on a thread of its own. Only artefacts may go that
        are among `found`, of a generation and written in a transaction at or below those retained, and that no retained
        version names.

        Raises
        ------
        FencedError
            A newer generation has taken over since: stop, nothing more may be deleted.
        """
        return 0

    def forget(self, lineage: str, is_left: Callable[[TaskId], bool], generation: int, txid: int) -> int:
        """Delete the namespaces of a lineage that are left behind, as `is_left` tells of each; return how many went.

        Called by the driver at a start, for tasks that begin anew, and with its first sweep, after it has read the log:
        these are of bolts that were dropped or got other tasks, and of a rescaling that was killed. Only for what lies
        outside of the checkpoint: files in it the driver deletes itself. Nothing may go that a newer generation has
        written, or that has come further than `txid`, the last decided transaction of the log.

        Raises
        ------
        FencedError
            A newer generation has taken over since: stop, nothing more may be deleted.
        StateCorruptedError
            One has come further: the checkpoint is an older copy.
        """
        return 0


def open_store(provider: StateProvider, namespace: Namespace, context: StateContext) -> StateStore:
    """Open a store; ProviderError if ``newState`` returned no `StateStore`: no retry would change that."""
    store = provider.newState(namespace, context)
    if not isinstance(store, StateStore):
        raise ProviderError(
            f"{type(provider).__name__}.newState returned {reprlib.repr(store)} ({type(store).__name__}): it has to "
            "return a StateStore (from statefx.state), opened at context.version",
            component=namespace.component,
        )
    return store


class StoreCalls:
    """The calls of a store, as far as they decide which calls may follow.

    `version` is the committed one that reads see; `prepared` is what this store has prepared, or None.
    """

    __slots__ = ("_namespace", "_read_only", "closed", "prepared", "version")

    def __init__(self, namespace: Namespace, context: StateContext) -> None:
        self._namespace = namespace
        self._read_only = context.read_only
        self.version = context.version
        self.prepared: Version | None = None
        self.closed = False

    def check_open(self, call: str) -> None:
        """Refuse `call` after `close`: StateClosedError."""
        if self.closed:
            raise StateClosedError(f"{call} after close of the state of {self._namespace}")

    def check_writable(self, call: str) -> None:
        """Refuse `call` after `close`, and on what was opened read-only: StatePhaseError."""
        self.check_open(call)
        if self._read_only:
            raise self.refusal(f"{call} on state that was opened read-only")

    def check_prepare(self, version: Version) -> None:
        """Refuse to prepare `version` where another one is prepared, or a later one committed: StatePhaseError.

        What is prepared already, under the same token, may be prepared again.
        """
        self.check_writable("prepare")
        if self.prepared is not None and self.prepared != version:
            raise self.refusal(f"prepare of {version} while {self.prepared} is prepared: commit or roll it back first")
        if version.txid <= self.version.txid:
            raise self.refusal(f"prepare({version.txid}) at or below the committed txid {self.version.txid}")

    def commit(self, version: Version) -> None:
        self.version, self.prepared = version, None

    def rollback(self, version: Version) -> None:
        if self.prepared == version:
            self.prepared = None

    def refusal(self, message: str) -> StatePhaseError:
        return StatePhaseError(f"{message} ({self._namespace})", namespace=self._namespace, version=self.version)


_Options = TypeVar("_Options", bound=msgspec.Struct)


def checked_options(kind: type[_Options], options: Mapping[str, Any], source: str) -> _Options:
    """Return `options` as a `kind`; no message holds a value, for a value may be a password.

    ConfigError says what is wrong, and that it was given in `source`.
    """
    for name in options:
        if name not in kind.__struct_fields__:
            known = sorted(kind.__struct_fields__)
            nearest = difflib.get_close_matches(str(name), known, 1, 0.0)[0]
            raise ConfigError(
                f"{source}: unknown option {name!r}; did you mean {nearest!r}? Known: {', '.join(known)}", option=name
            )
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        name = path.removesuffix("`")
        raise ConfigError(f"{source}: {name}: {what[0].lower()}{what[1:]}", option=name) from None


def require(package: str, extra: str, who: str, where: str, refusal: type[StatefxError] = ProviderError) -> None:
    """Refuse to go on without a package, the client of an extra of statefx."""
    try:
        import_module(package)
    except ImportError as error:
        raise refusal(
            f"{who} needs {package}, which can't be imported on {where} ({error}): pip install statefx[{extra}]"
        ) from error


__all__ = [
    "EMPTY",
    "Namespace",
    "Prepared",
    "Retention",
    "SnapshotRef",
    "StateContext",
    "StateLocation",
    "StateProvider",
    "StateStore",
    "Storage",
    "StoreCalls",
    "TaskId",
    "Version",
    "Write",
    "checked_options",
    "open_store",
    "prepare_as",
    "require",
]
