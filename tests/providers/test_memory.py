from __future__ import annotations

import pytest
from hypothesis import settings

from statefx.testing.provider_contract import StateProviderContract, keyvalue_machine, state_machine
from statefx_memory import MemoryStateProvider


class TestMemory(StateProviderContract):
    @pytest.fixture
    def provider(self) -> MemoryStateProvider:
        return MemoryStateProvider({})


TestMemoryInAnyOrder = state_machine(lambda: MemoryStateProvider({})).TestCase
TestMemoryInAnyOrder.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)

TestMemoryUnderABolt = keyvalue_machine(lambda: MemoryStateProvider({})).TestCase
TestMemoryUnderABolt.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
