"""Where the tests of whole topologies keep their checkpoints: in memory where there is such a file system."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = "/dev/shm"


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder. An fsync of a busy disk takes milliseconds, and these tests do thousands."""
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="statefx-tests-", dir=parent)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["memory", "rocksdb"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)
