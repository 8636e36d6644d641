"""How many requests a transaction and a start on S3 wait for, one after the other; and what a driver at work asks."""

import pytest

from statefx import Checkpoint, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.coordinator.requests import RequestServer
from statefx.errors import CheckpointError
from statefx.log.log import TransactionLog, read_state
from statefx.storage import FolderStorage, storage_at
from statefx.storage.contract import at_once
from tests.coordinator.histories import BEGINNING, transaction
from tests.coordinator.serving import take_savepoint, taken
from tests.spark.running import wait_for
from tests.storage.network import in_sequence
from tests.storage.s3_server import as_users_have_it
from tests.storage.test_checkpoints import Remote
from tests.testing.topologies import Count

pytestmark = pytest.mark.slow


@pytest.fixture
def url(between):
    with as_users_have_it(between.address) as made:
        yield made()


def test_the_log_is_read_by_one_listing_and_many_at_a_time(between, url, tmp_path):
    """100 records at 30 ms a request: under half a second."""
    folder, store = FolderStorage(tmp_path), storage_at(url)
    log = TransactionLog(folder, limit=1000)
    for record in (*BEGINNING, *(each for txid in range(1, 34) for each in transaction(txid))):
        log.append(record)
    names = [each.name for each in folder.list()]
    assert len(names) > 100
    at_once(names, lambda name: store.put(name, folder.read(name)))
    between.delay_secs = 0.03
    with between.watched() as requests:
        assert read_state(storage_at(url)) == log.state
    assert sum("list-type" in each.path for each in requests) == 1
    assert len(in_sequence(requests)) * 0.03 < 0.5


def words(tasks, transactions=10):
    builder = TopologyBuilder("word-count")
    rows = [[(f"word-{number}",) for number in range(20 * transactions)] for _ in range(tasks)]
    builder.setSpout("words", MemoryTransactionalSpout(rows, "word string", takePerBatch=20), parallelism=tasks)
    builder.setBolt("count", Count(), parallelism=tasks).fieldsGrouping("words", "word")
    return builder.createTopology()


@pytest.mark.parametrize("tasks", [1, 4])
def test_a_transaction_waits_for_its_begin_its_tasks_and_its_decision(between, url, tmp_path, tasks):
    """Three requests in a row; the tasks, which run one after the other here, make one each."""
    with Remote(tmp_path, url, "rocksdb") as driver:
        tester = driver.start(words(tasks))
        tester.emit()
        for _ in range(5):
            with between.watched() as requests:
                tester.emit()
            made = [(each.method, each.path.rsplit("/word-count/")[-1].partition("/")[0]) for each in requests]
            assert made == [("PUT", "transactions"), *[("PUT", "state")] * tasks, ("PUT", "transactions")]


def test_who_has_nothing_to_do_asks_for_nothing(between, url, tmp_path):
    with Remote(tmp_path, url, "rocksdb") as driver:
        tester = driver.start(words(1, transactions=2))
        while tester.emit() is not None:
            pass
        with between.watched() as requests:
            for _ in range(10):
                assert tester.emit() is None
    assert requests == []


def test_a_driver_that_nobody_asks_makes_one_get_a_look_and_one_that_is_asked_answers(between, url, tmp_path):
    with Remote(tmp_path, url, "memory") as driver:
        driver.start(words(1)).emit()
    log, storage = taken(url), storage_at(url)
    server = RequestServer(log, {"savepoint": lambda name: take_savepoint(log, name)}, look_secs=0.02)
    server.start()
    try:
        assert Checkpoint(url).savepoint("v1").txid == 1
        assert [each.name.rpartition("/")[2] for each in storage.list("requests/")] == ["driver.json"]
        with between.watched() as requests:
            before = len(between.requests)
            wait_for(lambda: len(between.requests) > before + 10, "some looks")
        asked = {(each.method, each.path.partition("?")[0].rpartition("/")[2]) for each in requests[1:]}
        assert asked == {("GET", "bell")}
    finally:
        server.end({"result": {}})
    assert list(storage.list("requests/")) == []
    late = RequestServer(log, {}, look_secs=0.02)
    late._beat()  # the sign of one that was killed
    with pytest.raises(CheckpointError, match=r"has not taken a request for 0\.5 s"):
        Checkpoint(url).pause(wait=0.5)
    assert [each.name.rpartition("/")[2] for each in storage.list("requests/")] == ["bell", "driver.json"]
