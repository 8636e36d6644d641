"""A Hypothesis state machine: a provider's stores in any order of events, against dicts."""

# the names of rules say what docstrings would

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statefx.errors import FencedError, StateError, StatePhaseError
from statefx.state.contract.store import EMPTY, Retention, SnapshotRef, StateProvider, Version
from statefx.testing.site import Site, changed, image, prepare, writes

KEYS = st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"ab", b"b", b"\xff"])
VALUES = st.binary(max_size=3)
CHANGES = st.dictionaries(KEYS, st.none() | VALUES, max_size=4)


def state_machine(provider_factory: Callable[[], StateProvider]) -> type[RuleBasedStateMachine]:
    """Return a state machine over what `provider_factory` makes; its ``TestCase`` is the test."""

    class ProviderMachine(_ProviderMachine):
        factory = staticmethod(provider_factory)

    return ProviderMachine


class _ProviderMachine(RuleBasedStateMachine):
    """One namespace: a current store, what it has pending and prepared, and every committed version as a dict."""

    factory: Callable[[], StateProvider]

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="statefx-machine-"))
        self.site = Site(self.factory(), self.root)
        self.site.files_max = 1
        self.generation = 1
        self.site.start(1)
        self.versions: list[tuple[Version, dict[bytes, bytes]]] = [(EMPTY, {})]
        self.snapshot: SnapshotRef | None = None
        self.pending: dict[bytes, bytes | None] = {}
        self.prepared: tuple[Version, dict[bytes, bytes]] | None = None
        self.decided = False
        self.since = 0
        self._reopen()

    @property
    def head(self) -> Version:
        """The last committed version."""
        return self.versions[-1][0]

    @property
    def committed(self) -> dict[bytes, bytes]:
        """What it holds."""
        return self.versions[-1][1]

    @property
    def oldest(self) -> int:
        """The oldest transaction whose version a provider that keeps versions still has."""
        return max(self.since, self.snapshot.version.txid if self.snapshot is not None else 0)

    def _reopen(self) -> None:
        self.store = self.site.open(self.head, generation=self.generation, snapshot=self.snapshot)
        self.pending = {}

    @rule(changes=CHANGES)
    def put_and_delete(self, changes: dict[bytes, bytes | None]) -> None:
        self.pending.update(changes)

    @rule(start=st.none() | KEYS, stop=st.none() | KEYS, reverse=st.booleans())
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> None:
        assert list(self.store.scan(start, stop, reverse)) == [
            (key, value)
            for key, value in sorted(self.committed.items(), reverse=reverse)
            if (start is None or key >= start) and (stop is None or key < stop)
        ]

    @rule(keys=st.lists(KEYS, max_size=6))
    def get(self, keys: list[bytes]) -> None:
        assert self.store.get(keys) == [self.committed.get(key) for key in keys]

    @precondition(lambda self: self.prepared is None)
    @rule()
    def prepare(self) -> None:
        txid = self.head.txid + 1
        token = prepare(self.store, txid, writes(self.pending))
        self.prepared = Version(txid, token), changed(self.committed, writes(self.pending))
        self.pending = {}
        self.decided = False

    @precondition(lambda self: self.prepared is None)
    @rule(changes=CHANGES, fresh=st.booleans())
    def transaction(self, changes: dict[bytes, bytes | None], fresh: bool) -> None:
        self.put_and_delete(changes)
        self.prepare()
        self.commit(fresh)

    @precondition(lambda self: self.prepared is not None)
    @rule(fresh=st.booleans())
    def commit(self, fresh: bool) -> None:
        assert self.prepared is not None
        if fresh:
            self._reopen()
        self.store.commit(self.prepared[0].txid, self.prepared[0].token)
        self.versions.append(self.prepared)
        self.prepared = None

    @precondition(lambda self: self.prepared is not None)
    @rule(read_only=st.booleans())
    def open_at_what_is_decided(self, read_only: bool) -> None:
        """The log has named it, and the store has not been told yet: it can't be rolled back any more."""
        assert self.prepared is not None
        self.decided = True
        version, expected = self.prepared
        store = self.site.open(version, generation=self.generation, snapshot=self.snapshot, read_only=read_only)
        assert image(store) == expected
        store.close()

    @precondition(lambda self: self.head.txid > 0 and self.versions[-2][0].txid >= self.oldest)
    @rule(times=st.integers(1, 2))
    def commit_again_from_the_version_before(self, times: int) -> None:
        """The report of the commit was lost."""
        store = self.site.open(self.versions[-2][0], generation=self.generation, snapshot=self.snapshot)
        for _ in range(times):
            store.commit(self.head.txid, self.head.token)
            assert image(store) == self.committed
        store.close()

    @precondition(lambda self: self.prepared is not None and not self.decided)
    @rule(fresh=st.booleans())
    def rollback(self, fresh: bool) -> None:
        assert self.prepared is not None
        if fresh:
            self._reopen()
        self.store.rollback(self.prepared[0].txid, self.prepared[0].token)
        self.prepared = None

    @rule()
    def crash(self) -> None:
        """The process is gone, unprepared changes with it; nothing was closed."""
        self._reopen()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._reopen()

    @rule()
    def reopen_elsewhere(self) -> None:
        there = self.site.elsewhere()
        assert image(there.open(self.head, generation=self.generation, snapshot=self.snapshot)) == self.committed
        there.close()

    @rule(data=st.data())
    def read_an_older_version(self, data: st.DataObject) -> None:
        """Where state lives in a server, which keeps none, it may be refused."""
        kept = [each for each in self.versions if each[0].txid >= self.oldest]
        version, expected = data.draw(st.sampled_from(kept))
        try:
            store = self.site.open(version, generation=self.generation, snapshot=self.snapshot)
            found = image(store)
        except StateError:
            if self.site.provider.capabilities.shared:
                return
            raise
        assert found == expected
        store.close()

    @rule(key=KEYS, value=VALUES)
    def second_store(self, key: bytes, value: bytes) -> None:
        """Spark runs the task once more; what that one prepares is not what the driver names."""
        other = self.site.open(self.head, generation=self.generation, snapshot=self.snapshot)
        token = prepare(other, self.head.txid + 1, [(key, value)])
        assert self.prepared is None or token != self.prepared[0].token
        other.close()

    @precondition(lambda self: self.site.provider.capabilities.fences_writers)
    @rule(key=KEYS)
    def new_generation(self, key: bytes) -> None:
        """A driver takes over; the older one's stores can't commit any more."""
        zombie = self.site.open(self.head, generation=self.generation, snapshot=self.snapshot)
        token = prepare(zombie, self.head.txid + 1, [(key, b"zombie")])
        self.generation += 1
        self.site.start(self.generation)
        with pytest.raises(FencedError):
            zombie.commit(self.head.txid + 1, token)
        self._reopen()

    @precondition(lambda self: self.head.txid > 1)
    @rule()
    def commit_an_older_one(self) -> None:
        version = self.versions[-2][0]
        with pytest.raises(StatePhaseError):
            self.store.commit(version.txid, version.token)

    @rule()
    def take_snapshot(self) -> None:
        store = self.site.open(self.head, generation=self.generation, snapshot=self.snapshot)
        self.snapshot = store.snapshot() or self.snapshot
        store.close()

    @rule(kept=st.integers(0, 5))
    def sweep(self, kept: int) -> None:
        """What serves only versions that are further back may go."""
        snapshots = () if self.snapshot is None else (self.snapshot,)
        self.since = max(self.since, self.head.txid - kept)
        self.site.sweep(Retention(self.generation, self.head, snapshots, 0, self.since))

    @invariant()
    def the_committed_image_is_what_is_read(self) -> None:
        assert image(self.store) == self.committed

    def teardown(self) -> None:
        """Delete what the run left."""
        self.site.close()
        shutil.rmtree(self.root, ignore_errors=True)
