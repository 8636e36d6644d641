from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from statefx.testing.provider_contract import StateProviderContract, keyvalue_machine, state_machine
from statefx_redis import RedisStateProvider, store
from tests.providers.redis_server import RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="no") as server:
        yield server


class TestRedis(StateProviderContract):
    @pytest.fixture
    def provider(self, server: RedisServer) -> RedisStateProvider:
        return RedisStateProvider({"url": server.url})


@pytest.mark.daily(1)
@pytest.mark.parametrize("entries", [1, 500])
def test_any_order_of_events(server: RedisServer, monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    monkeypatch.setattr(store, "CHUNK_ENTRIES", entries)
    machine = state_machine(lambda: RedisStateProvider({"url": server.url}))
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None))


@pytest.mark.daily(1)
@pytest.mark.parametrize("keys", [1, 32])
def test_a_bolt_in_any_order_of_events(server: RedisServer, monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    monkeypatch.setattr(store, "FIRST_KEYS", keys)
    machine = keyvalue_machine(lambda: RedisStateProvider({"url": server.url}))
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=40, deadline=None))
