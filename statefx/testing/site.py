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
    StateContext,
    StateProvider,
    StateStore,
    Storage,
    Version,
    Write,
    open_store,
    prepare_as,
)
from statefx.state.view.task_state import KeyValueState
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

    `root` is an empty folder of this machine; `place` makes the storage of an empty checkpoint, given such a folder.
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
        return Namespace(self.lineage, component, task)

    def start(self, generation: int) -> None:
        """Do what a driver does that takes `generation`."""
        self.provider.fence(self.lineage, generation, self.storage)

    def open(
        self, version: Version = EMPTY, *, component: str = "count", task: int = 0, generation: int = 1, **context: Any
    ) -> StateStore:
        """Open a store with this `StateContext`; it is closed with the site, if not before."""
        context = {"storage": self.storage, "cache": str(self.cache), "files_max": self.files_max, **context}
        found = StateContext(generation=generation, version=version, **context)
        store = open_store(self.provider, self.namespace(component, task), found)
        self._opened.append(store)
        return store

    def state(self, version: Version = EMPTY, *, space: Space = Space.USER) -> KeyValueState[Any, Any]:
        """Open what a bolt sees; or what statefx keeps for the bolt in another space."""
        return KeyValueState(self.open(version), version=version, space=space)

    def commit(self, version: Version, changes: Mapping[bytes, bytes | None], **where: Any) -> Version:
        """Commit `changes` as the transaction after `version`, each phase in a store of its own (see `open`)."""
        store = self.open(version, **where)
        after = Version(version.txid + 1, prepare(store, version.txid + 1, writes(changes)))
        store.close()
        store = self.open(version, **where)
        store.commit(*after_parts(after))
        store.close()
        return after

    def elsewhere(self) -> Site:
        """Return the same checkpoint as a machine sees it that has no caches of it; it is closed with this one."""
        other = Site(self.provider, self.root / f"machine-{uuid.uuid4().hex}", self.lineage, self._place)
        self._opened.append(other)
        other.files_max = self.files_max
        other.root.mkdir()
        if isinstance(self.storage, FolderStorage) and isinstance(other.storage, FolderStorage):
            if Path(self.storage.root).exists():  # quicker than name by name, with what writers that died have left
                shutil.copytree(self.storage.root, other.storage.root)
            return other
        for each in self.storage.list():
            other.storage.put(each.name, self.storage.read(each.name))
        return other

    def sweep(self, retained: Retention, *, task: int = 0, meanwhile: Callable[[], object] = lambda: None) -> int:
        """Do what a driver does that sweeps one namespace; `meanwhile` comes between the listing and the log."""
        namespace = self.namespace(task=task)
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


def after_parts(version: Version) -> tuple[int, str]:
    """Return a version as the arguments of `StateStore.commit` and `rollback`."""
    return version.txid, version.token


def image(store: StateStore) -> dict[bytes, bytes]:
    """Return what `store` holds, having checked that a scan is in order and that `get` says the same."""
    rows = list(store.scan(None, None))
    keys = [key for key, _ in rows]
    assert keys == sorted(set(keys)), "a scan must yield each key once, in order"
    assert list(store.scan(None, None, reverse=True)) == rows[::-1], "a reverse scan must yield the same, last first"
    assert store.get(keys) == [value for _, value in rows], "get and scan must agree"
    for space, count in {b"s": 0, **Counter(key[:1] for key in keys if key)}.items():
        assert store.count(space) in (None, count), "count and scan must agree"
    return dict(rows)


def changed(base: Mapping[bytes, bytes], changes: Iterable[Write]) -> dict[bytes, bytes]:
    """Return `base` with `changes` applied."""
    return {key: value for key, value in {**base, **dict(changes)}.items() if value is not None}
