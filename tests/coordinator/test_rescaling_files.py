"""State that is given to many tasks, where a process may have few files open."""

import os
import resource
from contextlib import contextmanager
from itertools import count, islice

import pytest

from statefx import Checkpoint
from tests.coordinator.changing import held
from tests.coordinator.test_rescaling import Plain, topology
from tests.testing.topologies import Driver, lines

FILES_MAX = 256
"""What macOS lets a process have open; Linux mostly 1024, and a bolt may have 32768 tasks."""

OWN = 32
"""Of those a process has had so many all along, such as its libraries and its log."""


@contextmanager
def few_files():
    """Let the process open a few files more than it has now: other tests, of the same process, have theirs."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(each) for each in os.listdir("/dev/fd")}
    free = (number for number in count() if number not in taken)
    limit = next(islice(free, FILES_MAX - OWN, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
@pytest.mark.soak
def test_there_may_be_more_tasks_than_open_files(place):
    many = FILES_MAX + 44
    with Driver(place, "rocksdb") as driver:
        with driver.start(topology(1, Plain)) as tester:
            tester.send(lines(*(f"word{number}" for number in range(3000))))
        before = held(driver, 1)
        with few_files():
            Checkpoint(driver.folder).rescale({"count": many}, groupingKey={"count": lambda key: key})
            assert sum(len(own[None]) for own in held(driver, many)) == 3000
            Checkpoint(driver.folder).rescale({"count": 1})
        assert held(driver, 1) == before
