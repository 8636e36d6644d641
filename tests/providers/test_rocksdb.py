from __future__ import annotations

import pytest
from hypothesis import settings

from statefx.testing.provider_contract import StateProviderContract, keyvalue_machine, state_machine
from statefx_rocksdb import RocksDbStateProvider

AT_ONCE = {"catch_up_kb": 0}
QUICK = settings(max_examples=15, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("options", [AT_ONCE, {}], ids=["written at once", "read over"], scope="class")
class TestRocksDb(StateProviderContract):
    @pytest.fixture
    def provider(self, options: dict[str, int]) -> RocksDbStateProvider:
        return RocksDbStateProvider(options)


TestRocksDbInAnyOrder = state_machine(lambda: RocksDbStateProvider(AT_ONCE)).TestCase
TestRocksDbInAnyOrder.settings = QUICK
TestRocksDbReadOverInAnyOrder = state_machine(lambda: RocksDbStateProvider({})).TestCase
TestRocksDbReadOverInAnyOrder.settings = QUICK
TestRocksDbUnderABolt = keyvalue_machine(lambda: RocksDbStateProvider(AT_ONCE)).TestCase
TestRocksDbUnderABolt.settings = QUICK
TestRocksDbReadOverUnderABolt = keyvalue_machine(lambda: RocksDbStateProvider({})).TestCase
TestRocksDbReadOverUnderABolt.settings = QUICK
