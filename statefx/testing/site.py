"""A checkpoint in a temporary folder, at which tests open stores as tasks on several machines would."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from statefx.state.contract.spaces import Space
from statefx.state.contract.store import (
    EMPTY,
    FILES_MAX,
    Namespace,
    Retention,
    SnapshotRef,
    StateContext,
    StateProvider,
    StateStore,
    Storage,
    Version,
    Write,
    prepare_as,
)
from statefx.state.view.keyvalue import KeyValueState
from statefx.storage import FolderStorage
from statefx.testing.steps import Crash, DurableSteps, SteppedStorage


def writes(changes: Mapping[bytes, bytes | None]) -> list[Write]:
    """Return `changes` as `StateStore.prepare` wants them."""
    return sorted(changes.items())


def prepare(store: StateStore, txid: int, changes: Sequence[Write]) -> str:
    """Prepare `changes` under a new token, which is returned, as a task attempt does."""
    return prepare_as(store, txid, uuid.uuid4().hex, changes).token


class Site:
    """One machine's view of one checkpoint.

    Parameters
    ----------
    provider : StateProvider
        What is tested.
    root : Path
        An empty folder of this machine.
    lineage : str, optional
        Default: a new one.
    place : callable, optional
        Makes the storage of an empty checkpoint, given such a folder; by default one in the folder.

    Attributes
    ----------
    storage : Storage
        The checkpoint.
    files_max : int
        As of `StateContext`; a test may want fewer.
    """

    def __init__(
        self,
        provider: StateProvider,
        root: Path,
        lineage: str | None = None,
        place: Callable[[Path], Storage] = lambda root: FolderStorage(root / "checkpoint"),
    ) -> None:
        self.provider = provider
        self.root = root
        self.lineage = lineage or uuid.uuid4().hex
        self.storage = place(root)
        self.cache = root / "cache"
        self.files_max = FILES_MAX
        self._place = place
        self._opened: list[StateStore | Site] = []

    def namespace(self, component: str = "count", task: int = 0) -> Namespace:
        """Return the namespace of one task."""
        return Namespace(self.lineage, component, task)

    def start(self, generation: int) -> None:
        """Do what a driver does that takes `generation`."""
        self.provider.fence(self.lineage, generation, self.storage)

    def open(
        self,
        version: Version = EMPTY,
        *,
        component: str = "count",
        task: int = 0,
        generation: int = 1,
        snapshot: SnapshotRef | None = None,
        read_only: bool = False,
    ) -> StateStore:
        """Open a store; it is closed with the site, if not before."""
        namespace = self.namespace(component, task)
        context = StateContext(
            generation=generation,
            version=version,
            storage=self.storage,
            cache=str(self.cache),
            snapshot=snapshot,
            read_only=read_only,
            files_max=self.files_max,
        )
        store = self.provider.newState(namespace, context)
        self._opened.append(store)
        return store

    def state(
        self, version: Version = EMPTY, *, generation: int = 1, space: Space = Space.USER
    ) -> KeyValueState[Any, Any]:
        """Open what a bolt sees; or what statefx keeps for the bolt in another space."""
        return KeyValueState(self.open(version, generation=generation), version=version, space=space)

    def commit(
        self,
        version: Version,
        changes: Mapping[bytes, bytes | None],
        *,
        component: str = "count",
        generation: int = 1,
        snapshot: SnapshotRef | None = None,
    ) -> Version:
        """Commit `changes` as the transaction after `version`, each phase in a store of its own."""
        store = self.open(version, component=component, generation=generation, snapshot=snapshot)
        after = Version(version.txid + 1, prepare(store, version.txid + 1, writes(changes)))
        store.close()
        store = self.open(version, component=component, generation=generation, snapshot=snapshot)
        store.commit(*after_parts(after))
        store.close()
        return after

    def elsewhere(self) -> Site:
        """Return the same checkpoint as a machine sees it that has no caches of it; it is closed with this one."""
        other = Site(self.provider, self.root / f"machine-{uuid.uuid4().hex}", self.lineage, self._place)
        self._opened.append(other)
        other.files_max = self.files_max
        other.root.mkdir()
        copy(self.storage, other.storage)
        return other

    def sweep(
        self,
        retained: Retention,
        *,
        component: str = "count",
        task: int = 0,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> int:
        """Do what a driver does that sweeps one namespace; `meanwhile` comes between the listing and the log."""
        namespace = self.namespace(component, task)
        found = self.provider.artefacts(namespace, self.storage)
        meanwhile()
        return self.provider.sweep(namespace, self.storage, found, retained)

    @contextlib.contextmanager
    def crashing(self, at: int) -> Iterator[DurableSteps]:
        """Crash in the block at moment `at`, counted from 1, before or after something in the checkpoint changes.

        What is opened in the block may crash; the moment is then in the steps' ``crashed``.
        """
        steady, steps = self.storage, DurableSteps(at)
        self.storage = SteppedStorage(steady, steps)
        try:
            with contextlib.suppress(Crash):
                yield steps
        finally:
            self.storage = steady

    def files(self) -> dict[str, bytes]:
        """Return everything in the checkpoint: name below it, and content."""
        return {each.name: self.storage.read(each.name) for each in self.storage.list()}

    def close(self) -> None:
        """Close what was opened here."""
        for opened in self._opened:
            opened.close()
        self._opened.clear()


def copy(storage: Storage, other: Storage) -> None:
    """Make `other`, which is empty, a copy."""
    if isinstance(storage, FolderStorage) and isinstance(other, FolderStorage):
        if Path(storage.root).exists():  # quicker than name by name, with what writers that died have left
            shutil.copytree(storage.root, other.root)
        return
    for each in storage.list():
        other.put(each.name, storage.read(each.name))


def after_parts(version: Version) -> tuple[int, str]:
    """Return a version as the arguments of `StateStore.commit` and `rollback`."""
    return version.txid, version.token


def image(store: StateStore, start: bytes | None = None, stop: bytes | None = None) -> dict[bytes, bytes]:
    """Return what `store` holds, having checked that a scan is in order and that `get` says the same."""
    rows = list(store.scan(start, stop))
    keys = [key for key, _ in rows]
    assert keys == sorted(set(keys)), "a scan must yield each key once, in order"
    assert list(store.scan(start, stop, reverse=True)) == rows[::-1], "a reverse scan must yield the same, last first"
    assert store.get(keys) == [value for _, value in rows], "get and scan must agree"
    if start is None and stop is None:
        for space, count in {b"s": 0, **Counter(key[:1] for key in keys if key)}.items():
            assert store.count(space) in (None, count), "count and scan must agree"
    return dict(rows)


def changed(base: Mapping[bytes, bytes], changes: Iterable[Write]) -> dict[bytes, bytes]:
    """Return `base` with `changes` applied."""
    result = dict(base)
    for key, value in changes:
        if value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result
