"""The observation document of a driver whose checkpoint is in an object store."""

import logging
import threading

import pytest

from statefx import Checkpoint
from statefx.coordinator.observation import Observer
from statefx.log.location import OBSERVED
from tests.spark.running import wait_for
from tests.storage.s3_server import as_users_have_it
from tests.storage.test_checkpoints import Remote
from tests.testing.topologies import lines, word_count

pytestmark = pytest.mark.slow

STATUS = {"run": "r", "isActive": True}


@pytest.fixture
def url(between):
    with as_users_have_it(between.address) as made:
        yield made()


@pytest.fixture
def driver(url, tmp_path):
    with Remote(tmp_path, url, "memory") as made:
        yield made


def observed(tester):
    made = Observer(
        tester._launch, tester._coordinator.log, tester._progress, lambda: dict(STATUS), write_secs=0.05,
        now=tester._progress.now,
    )  # fmt: skip
    made.start()
    return made


def test_it_is_written_to_the_store_and_read_from_there(url, driver):
    tester = driver.start(word_count())
    observer = observed(tester)
    tester.send(lines("a b"))
    wait_for(lambda: (Checkpoint(url).observation().get("components") or {}).get("count", {}).get("rowsIn") == 2, "it")
    observer.end(None, "It was stopped")
    found = Checkpoint(url).observation()
    assert found["health"]["state"] == "ended"
    assert found["checkpoint"] == url
    assert not Checkpoint(url).verify().damaged


def test_a_store_that_refuses_it_costs_one_warning_and_no_transaction(url, driver, caplog, monkeypatch):
    tester = driver.start(word_count())
    storage, tries = tester._launch.folders.storage, []
    put = type(storage).put

    def refuse(self, name, data):
        if name == OBSERVED:
            tries.append(name)
            raise PermissionError("AccessDenied")
        put(self, name, data)

    monkeypatch.setattr(type(storage), "put", refuse)
    with caplog.at_level(logging.WARNING, "statefx"):
        observer = observed(tester)
        wait_for(lambda: len(tries) > 2, "several tries")
        tester.send(lines("a"))
        observer.end(None, "It was stopped")
    assert tester.state("count") == {"a": 1}
    assert len([each for each in caplog.records if "beside the log" in each.message]) == 1
    assert not [each for each in threading.enumerate() if each.name == "statefx-observer"]
