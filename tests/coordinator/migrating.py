"""Topologies whose state is moved between providers, and providers at which a migration must not succeed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from statefx.admin.migration import Migration, Migrator
from statefx.admin.rewrite import copies
from statefx.errors import StateError
from statefx.log.location import Folders
from statefx.log.log import read_state
from statefx.protocol.identity import EMPTY
from statefx.state.contract.store import Namespace, Prepared, StateContext, StateStore, Write
from statefx.state.registry import load_provider
from statefx.storage import FolderStorage
from statefx.testing import Limits, TopologyTester
from statefx.testing.steps import DurableSteps, SteppedLog, SteppedProvider, SteppedStorage
from statefx_memory import MemoryStateProvider
from tests.providers.redis_server import RedisServer
from tests.testing.topologies import Driver, lines, totals, words

REFERENCES = {
    "memory": "statefx_memory:MemoryStateProvider",
    "rocksdb": "statefx_rocksdb:RocksDbStateProvider",
    "redis": "statefx_redis:RedisStateProvider",
}
PAIRS = [(one, other) for one in REFERENCES for other in REFERENCES if one != other]
TRANSACTIONS = [lines("to be or not to be", "that is"), lines(), lines("the question", "to be"), lines("be that")]
BEFORE = 2
"""How many of them are run before the state is moved."""


class Mover(Driver):
    """Starts testers on one checkpoint, with any provider."""

    def __init__(self, place: Path, server: RedisServer | None = None, name: str = "checkpoint", **redis: Any) -> None:
        super().__init__(place, name=name)
        url = {} if server is None else {"url": server.url, "retries": 1, "backoff_secs": 0.01, **redis}
        self.options: dict[str, dict[str, Any]] = {"memory": {}, "rocksdb": {}, "redis": url}

    def on(self, provider: str, **arguments: Any) -> TopologyTester:
        """Start a tester whose state is kept by `provider`."""
        config = {
            "topology.state.provider": REFERENCES.get(provider, provider),
            "topology.state.provider.config": self.options.get(provider, {}),
        }
        return self.start(totals(), config=config, **arguments)

    def begin(self, provider: str, **arguments: Any) -> None:
        """Run the transactions before the migration."""
        with self.on(provider, **arguments) as tester:
            tester.run(TRANSACTIONS[:BEFORE])

    def finish(self, provider: str, **arguments: Any) -> None:
        """Run the others, and compare with a run that was never moved."""
        tester = self.on(provider, **arguments)
        tester.run(TRANSACTIONS)
        assert tester.txid == len(TRANSACTIONS)
        assert tester.state("count") == words(TRANSACTIONS)
        assert tester.state("total") == {"total": sum(words(TRANSACTIONS).values()), "txid": len(TRANSACTIONS)}
        commits = [txid for what, txid, *_ in self.journal if what == "commit"]
        assert sorted(set(commits)) == [1, 2, 3, 4]

    def kept(self) -> str:
        """Return the reference of the provider that the log names."""
        return read_state(FolderStorage(self.folder)).topology.stateful["count"].provider

    def migrator(self, source: str, target: str, steps: DurableSteps, limits: Limits | None = None) -> Migrator:
        """Return a migration whose durable steps are counted."""
        providers = [load_provider(REFERENCES[name], self.options[name]) for name in (source, target)]
        folders = Folders(str(self.folder), wrap=lambda storage: SteppedStorage(storage, steps))
        return Migrator(
            folders,
            SteppedProvider(providers[0], steps),
            copies(read_state(folders.storage)),
            "migrate",
            opened=lambda storage: SteppedLog(storage, steps, (limits or Limits()).fold_after),
            target=SteppedProvider(providers[1], steps),
            to=REFERENCES[target],
        )

    def move(self, source: str, target: str, steps: DurableSteps | None = None, **more: Any) -> Migration:
        """Migrate, with its steps counted."""
        migrator = self.migrator(source, target, steps or DurableSteps(), **more)
        return migrator.move(read_state(migrator.folders.storage))


class _Around(StateStore):
    """A store that hands everything on."""

    def __init__(self, inner: StateStore) -> None:
        self.inner = inner

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.inner.get(keys)

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self.inner.scan(start, stop, reverse)

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        return self.inner.prepare(txid, token, writes)

    def commit(self, txid: int, token: str) -> None:
        self.inner.commit(txid, token)

    def rollback(self, txid: int, token: str) -> None:
        self.inner.rollback(txid, token)

    def close(self) -> None:
        self.inner.close()


class _Forgetful(_Around):
    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        return super().prepare(txid, token, writes[:-1])


class _Garbling(_Around):
    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        garbled = [(key, value and bytes([value[0] ^ 1]) + value[1:]) for key, value in writes]
        return super().prepare(txid, token, garbled)


class _Swapping(_Around):
    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        values = [value for _, value in writes]
        swapped = [(key, value) for (key, _), value in zip(writes, values[::-1], strict=True)]
        return super().prepare(txid, token, swapped)


class _Occupied(_Around):
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        yield b"somebody's", b"value"


class _Failing(_Around):
    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        for _ in writes:
            raise StateError("the disk is full")
        return super().prepare(txid, token, writes)


class Forgetful(MemoryStateProvider):
    """Loses a key."""

    store: type[_Around] = _Forgetful

    def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
        inner = super().newState(namespace, context)
        return self.store(inner) if self.wraps(context) else inner

    def wraps(self, context: StateContext) -> bool:
        return context.version == EMPTY


class Garbling(Forgetful):
    """Stores other values."""

    store = _Garbling


class Swapping(Forgetful):
    """Stores the values of other keys: as many keys, as many bytes."""

    store = _Swapping


class Occupied(Forgetful):
    """Has state of everyone."""

    store = _Occupied


class Failing(Forgetful):
    """Can't write."""

    store = _Failing


class Killed(MemoryStateProvider):
    """Ends its process, as a SIGKILL would, in the middle of the second task's copy."""

    opened = 0

    def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
        if context.version == EMPTY:
            type(self).opened += 1
            if self.opened == 2 and not os.path.exists(os.environ["STATEFX_TEST_MARKER"]):
                with contextlib.suppress(FileExistsError), open(os.environ["STATEFX_TEST_MARKER"], "x"):
                    os._exit(9)
        return super().newState(namespace, context)
