"""The conformance suite finds the providers it is there to find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from statefx.errors import StatePhaseError
from statefx.state.store import Namespace, StateContext, StateStore, Write
from statefx.testing.provider_contract import StateProviderContract, state_machine
from statefx.testing.site import Site
from statefx_memory import MemoryStateProvider


class Wrapped(StateStore):
    def __init__(self, store: StateStore) -> None:
        self.store = store

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.store.get(keys)

    def scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self.store.scan(start, stop)

    def prepare(self, txid: int, writes: Sequence[Write]) -> str:
        return self.store.prepare(txid, writes)

    def commit(self, txid: int, token: str) -> None:
        self.store.commit(txid, token)

    def rollback(self, txid: int, token: str) -> None:
        self.store.rollback(txid, token)

    def close(self) -> None:
        self.store.close()


class RefusesSecondCommit(Wrapped):
    done = False

    def commit(self, txid: int, token: str) -> None:
        if self.done:
            raise StatePhaseError("committed already")
        self.store.commit(txid, token)
        self.done = True


class LosesDeletes(Wrapped):
    def prepare(self, txid: int, writes: Sequence[Write]) -> str:
        return self.store.prepare(txid, [each for each in writes if each[1] is not None])


class ScansOutOfOrder(Wrapped):
    def scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return iter(list(self.store.scan(start, stop))[::-1])


class CommitsAtPrepare(Wrapped):
    def prepare(self, txid: int, writes: Sequence[Write]) -> str:
        token = self.store.prepare(txid, writes)
        self.store.commit(txid, token)
        return token


def broken(kind: type[Wrapped]) -> MemoryStateProvider:
    class Broken(MemoryStateProvider):
        def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
            return kind(super().newState(namespace, context))

    return Broken({})


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (RefusesSecondCommit, "test_commit_again_changes_nothing"),
        (LosesDeletes, "test_any_bytes_can_be_deleted"),
        (ScansOutOfOrder, "test_any_bytes_are_a_key"),
        (CommitsAtPrepare, "test_what_is_prepared_is_invisible"),
    ],
)
def test_a_broken_provider_fails(kind: type[Wrapped], test: str, tmp_path: Path) -> None:
    site = Site(broken(kind), tmp_path)
    with pytest.raises((AssertionError, StatePhaseError)):
        getattr(StateProviderContract(), test)(site)


@pytest.mark.parametrize("kind", [LosesDeletes, ScansOutOfOrder, CommitsAtPrepare])
def test_a_broken_provider_fails_in_some_order_of_events(kind: type[Wrapped]) -> None:
    machine = state_machine(lambda: broken(kind))
    quick = settings(max_examples=200, deadline=None, database=None, phases=[Phase.generate], derandomize=True)
    with pytest.raises((AssertionError, StatePhaseError)):
        run_state_machine_as_test(machine, settings=quick)


def test_no_test_can_be_overridden() -> None:
    def override(name: str) -> dict[str, Any]:
        return {name: lambda self: None}

    with pytest.raises(TypeError, match="test_commit_again_changes_nothing"):
        type("Mine", (StateProviderContract,), override("test_commit_again_changes_nothing"))
    with pytest.raises(TypeError, match="_require"):
        type("Mine", (StateProviderContract,), override("_require"))
    mine = type("Mine", (StateProviderContract,), override("test_something_of_my_own"))
    with pytest.raises(TypeError, match="site"):
        type("Yours", (mine,), override("site"))
