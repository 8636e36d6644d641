"""A provider that has to be told of every commit, as one whose state is on a server has."""

from typing import ClassVar

from statefx.state.contract.store import StateLocation
from statefx_memory import MemoryStateProvider

REFERENCE = "tests.testing.eager:EagerProvider"


class EagerProvider(MemoryStateProvider):
    location: ClassVar[StateLocation] = StateLocation.SERVER
