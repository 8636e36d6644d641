"""Stores for the tests of what lies above them: the real memory provider in a folder of the test's own."""

import pytest

from statefx import KeyValueState
from statefx.state import EMPTY, Namespace, StateContext
from statefx.storage import FolderStorage
from statefx_memory import MemoryStateProvider
from tests.testing.codecs import Marked

FORMATS = {
    "standard": dict,
    "own codec": lambda: {"codec": Marked()},
    "version 2": lambda: {"state_version": 2},
    "own codec, version 300": lambda: {"codec": Marked(), "state_version": 300},
}
"""Arguments of states whose bytes differ and whose behaviour does not."""


class Checkpoint:
    """Opens the state of one task, as a task does; what is committed is found again when it is next opened."""

    def __init__(self, folder, stored="standard"):
        self.format = FORMATS[stored]
        self.folder = folder
        self.provider = MemoryStateProvider({})
        self.namespace = Namespace("lineage", "count", 0)

    def store(self, version=EMPTY):
        context = StateContext(1, version, FolderStorage(self.folder), cache=str(self.folder / "cache"))
        return self.provider.newState(self.namespace, context)

    def open(self, version=EMPTY, **options):
        return KeyValueState(self.store(version), version=version, **{**self.format(), **options})


@pytest.fixture(scope="session")
def checkpoint_at():
    """Makes a checkpoint in a folder: for tests that need a new one for each example."""
    return Checkpoint


@pytest.fixture(params=FORMATS)
def checkpoint(request, tmp_path):
    return Checkpoint(tmp_path, request.param)


@pytest.fixture
def state(checkpoint):
    state = checkpoint.open()
    yield state
    state.close()
