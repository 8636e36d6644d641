"""The conformance suite that every state provider passes, shipped for those who write one."""

from __future__ import annotations

from typing import Any

from statefx.testing.keyvalue_contract import KeyValueContract
from statefx.testing.keyvalue_machine import keyvalue_machine
from statefx.testing.provider_machine import state_machine


class StateProviderContract(KeyValueContract):
    """Everything that statefx relies on in a state provider, as pytest tests.

    Subclass it in a test module, and define the fixture ``provider``. Tests that don't apply to what the
    provider declares in its `Capabilities` are skipped. No test may be overridden.

    Examples
    --------
    ::

        class TestMyProvider(StateProviderContract):
            @pytest.fixture
            def provider(self):
                return MyProvider({})

        TestMyProviderInAnyOrder = state_machine(lambda: MyProvider({})).TestCase
        TestMyProviderUnderABolt = keyvalue_machine(lambda: MyProvider({})).TestCase
    """

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        overridden = sorted(_CONTRACT & vars(cls).keys())
        if overridden:
            raise TypeError(f"{cls.__name__} overrides {', '.join(overridden)}: the contract holds as a whole")


_CONTRACT = {name for name in dir(StateProviderContract) if not name.startswith("__")} - {"provider"}

__all__ = ["StateProviderContract", "keyvalue_machine", "state_machine"]
