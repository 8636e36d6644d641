import os
import signal

import pytest

from tests.spark.drivers import Driver, Player


@pytest.fixture(scope="session")
def player(tmp_path_factory):
    """The one process that runs topologies pipelined, but for those of drivers that are killed."""
    playing = Player(tmp_path_factory.mktemp("player"))
    yield playing
    playing.close()


@pytest.fixture
def own_player(tmp_path):
    """A process of a test's own: what others killed in theirs can cost the first run of the next play."""
    playing = Player(tmp_path)
    yield playing
    playing.close()


@pytest.fixture
def drivers():
    started = []

    def start(*arguments, **more):
        started.append(Driver(*arguments, **more))
        return started[-1]

    yield start
    for driver in started:
        if driver.process.poll() is None:
            os.killpg(driver.process.pid, signal.SIGKILL)
            driver.process.wait()
