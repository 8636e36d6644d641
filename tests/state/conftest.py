"""Stores for the tests of what lies above them: the real memory provider in a folder of the test's own."""

import pytest

from statefx.state import EMPTY, KeyValueState, Namespace, StateContext
from statefx_memory import MemoryStateProvider


class Checkpoint:
    """Opens the state of one task, as a task does; what is committed is found again when it is next opened."""

    def __init__(self, folder):
        self.folder = folder
        self.provider = MemoryStateProvider({})
        self.namespace = Namespace("lineage", "count", 0)

    def store(self, version=EMPTY):
        folder = self.folder / "state" / "count" / "0"
        context = StateContext(generation=1, version=version, folder=str(folder), cache=str(self.folder / "cache"))
        return self.provider.newState(self.namespace, context)

    def open(self, version=EMPTY, **options):
        return KeyValueState(self.store(version), version=version, **options)


@pytest.fixture(scope="session")
def checkpoint_at():
    """Makes a checkpoint in a folder: for tests that need a new one for each example."""
    return Checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path)


@pytest.fixture
def state(checkpoint):
    state = checkpoint.open()
    yield state
    state.close()
