"""A query that runs is asked from outside: savepoints, pauses, stops; its process killed, suspended, replaced."""

import json
import logging
import os
import threading

import pytest

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, submit
from statefx.command import main
from statefx.errors import CheckpointError
from statefx.log.requests import TAKEN, UnansweredError
from tests.spark.bolts import recount
from tests.spark.counting import begun
from tests.spark.drivers import EXPECTED, FILES, ON, hold, log_of, published
from tests.spark.running import BOUND_SECS, feed, kinds, lines_of, run, state, wait_for
from tests.spark.spouting import PENDING
from tests.spark.test_drivers import ALL, ALWAYS, AVAILABLE, at_work
from tests.spark.test_spouts import Phases


def test_from_a_shell_while_it_runs(drivers, place, capsys):
    def shell(command, *arguments):
        assert main([command, location, *arguments, "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    location = str(place / "ck")
    feed(place / "in", a=FILES["a"])
    driver = drivers(place, trigger=ON)
    driver.wait_until(lambda log: log.committed >= 1, "a transaction to be committed")

    assert shell("savepoint", "v1")["txid"] == 1
    shell("delete-savepoint", "v1")
    assert Checkpoint(location).savepoints() == ()
    found = shell("status")
    assert (found["asked"]["answered"], found["driver"]["pid"]) == (True, driver.process.pid)
    assert (found["status"]["isActive"], found["transactions"][-1]["txid"]) == (True, 1)
    assert shell("loglevel", "debug")["result"] == {"logger": "statefx", "level": "DEBUG", "was": "NOTSET"}

    assert "since" in shell("pause")["result"]["status"]["paused"]
    feed(place / "in", b=FILES["b"])
    assert shell("savepoint", "paused")["txid"] == 1
    found = shell("status")
    assert "is paused since" in found["health"]["sentence"]
    assert "paused" not in shell("resume")["result"]["status"]
    driver.wait_until(lambda log: log.committed >= 2, "the second transaction")

    result = shell("stop")["result"]
    assert (result["ended"], result["committed"], result["error"], result["health"]["state"]) == (
        True,
        2,
        None,
        "ended",
    )
    assert result["health"]["sentence"].startswith("It was stopped from outside, by statefx stop, at ")
    assert main(["status", location]) == 0
    assert "by statefx stop, at " in capsys.readouterr().out
    assert driver.end()["ended"], "the program goes on behind awaitTermination"
    assert log_of(place).generation == 1, "nobody was fenced"
    assert [each for each in (place / "ck" / "requests").rglob("*") if each.is_file()] == []
    assert main(["stop", location]) == 1
    assert "no driver is at work on the checkpoint in" in capsys.readouterr().err


@pytest.mark.parametrize("killed", ["as it drains", pytest.param("before it sees the request", marks=pytest.mark.soak)])
@pytest.mark.soak
def test_a_driver_that_is_killed(spark, drivers, place, killed):
    """Who asked learns what is known, and the next start is exact."""
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    driver = drivers(place, trigger=ON)
    driver.wait_until(lambda log: log.committed >= 1 and log.in_flight, "a second transaction to be PREPARING")
    checkpoint, found = Checkpoint(place / "ck"), []

    def ask():
        with pytest.raises(CheckpointError) as error:
            checkpoint.stop(wait=3.0)
        found.append(error.value)

    asking = threading.Thread(target=ask)
    if killed == "as it drains":
        asking.start()
        wait_for(lambda: list((place / "ck" / "requests").rglob(f"*{TAKEN}")), "the driver to take the request")
        driver.kill()
    else:
        driver.kill()
        asking.start()
    asking.join(BOUND_SECS)
    (error,) = found
    if killed == "as it drains":
        assert isinstance(error, UnansweredError)
        assert "took the request, and was killed" in str(error)
    else:
        assert "is gone without having ended" in str(error)
        assert "Nothing was changed" in str(error)
    assert f"process {driver.process.pid} on " in str(error)
    shown = checkpoint.status()
    assert (shown["asked"]["answered"], shown["health"]["state"]) == (False, "dead")

    run(*begun(spark, place))
    assert state(place / "ck", "count") == published(place) == EXPECTED


@pytest.mark.soak  # a process without Spark is suspended by tests/coordinator/test_requests.py
def test_a_driver_that_is_suspended_does_not_pause_late(drivers, place):
    feed(place / "in", a=FILES["a"])
    driver = drivers(place, trigger=ON)
    driver.wait_until(lambda log: log.committed >= 1, "a transaction to be committed")
    checkpoint = Checkpoint(place / "ck")
    assert checkpoint.status()["asked"]["answered"]
    driver.stop()
    shown = checkpoint.status(wait=0.5)
    assert (shown["asked"]["answered"], shown["health"]["state"]) == (False, "unknown")
    assert "has not taken a request for 0.5 s" in shown["health"]["sentence"]
    with pytest.raises(CheckpointError, match="has not taken a request for 1 s"):
        checkpoint.pause(wait=1.0)
    driver.go_on()
    found = checkpoint.status()
    assert found["asked"]["answered"]
    assert "paused" not in found["status"]
    feed(place / "in", b=FILES["b"])
    driver.wait_until(lambda log: log.committed >= 2, "the second transaction")
    assert checkpoint.stop().result["ended"]
    assert driver.end()["ended"]


@pytest.mark.soak
@pytest.mark.parametrize(
    "trigger",
    [pytest.param(ALWAYS, id="on and on"), pytest.param(AVAILABLE, id="what is there", marks=pytest.mark.soak)],
)
def test_a_query_that_is_paused_ends_what_is_in_flight_and_begins_nothing(spark, place, trigger):
    """Also not the end of its input."""
    topology, held, query = at_work(spark, place, trigger)
    query.pause()
    held.unlink()
    wait_for(lambda: not query.status["isTransactionActive"], "the transaction in flight to end")
    assert query.lastProgress["txid"] == 2
    assert query.isActive
    since = query.status["paused"]["since"]
    query.pause()
    assert query.status["paused"]["since"] == since
    assert not query.awaitTermination(1.0)
    assert not [each for each in kinds(place / "ck") if each[1] > 2]
    query.resume()
    wait_for(lambda: query.lastProgress["txid"] == 3, "the third transaction")
    assert "paused" not in query.status
    query.pause()
    query.stop()
    with pytest.raises(CheckpointError, match="has ended"):
        query.pause()
    run(topology, spark, place / "ck", trigger=AVAILABLE)  # which is not paused
    assert state(place / "ck", "count") == recount(ALL)


@pytest.mark.soak
def test_an_attempt_that_fails_while_the_query_is_paused_is_tried_again_when_it_goes_on(spark, place):
    """Rule 17.8."""
    _, held, query = at_work(spark, place, AVAILABLE)
    query.pause()
    spark.sparkContext.cancelAllJobs()
    wait_for(lambda: ("ROLLED_BACK", 2, 0) in kinds(place / "ck"), "the attempt to be rolled back")
    held.unlink()
    assert not query.awaitTermination(1.0)
    assert kinds(place / "ck")[-1] == ("ROLLED_BACK", 2, 0)
    query.resume()
    assert query.awaitTermination(BOUND_SECS)
    assert state(place / "ck", "count") == recount(ALL)


@pytest.mark.soak
def test_all_that_are_in_flight_end_when_the_query_is_paused(spark, place):
    phases = Phases(spark, place, 60)
    query = phases.started("execute")
    query.pause()
    phases.places.release()
    wait_for(lambda: not phases.log.in_flight, "all four to end")
    assert phases.log.committed == PENDING
    assert not query.awaitTermination(0.5)
    assert phases.log.committed == PENDING
    query.stop()
    phases.end()


class Tells(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        logging.getLogger("asked.bolts").debug("has seen %s", tup.value)


@pytest.mark.soak
def test_the_level_of_a_logger_reaches_the_workers(spark, place, caplog):
    feed(place / "in", a=["one"])
    builder = TopologyBuilder("asked")
    builder.setStream("lines", lines_of(spark, place / "in"))
    builder.setBolt("tells", Tells()).globalGrouping("lines")
    query = submit(builder.createTopology(), spark, place / "ck", trigger=ON)
    try:
        query.processAllAvailable()
        checkpoint = Checkpoint(place / "ck")
        assert checkpoint.loglevel("DEBUG", "asked.bolts").result["was"] == "NOTSET"
        feed(place / "in", b=["two"])
        wait_for(lambda: "has seen two" in caplog.text, "the worker's line")
        assert "has seen one" not in caplog.text
        query.stop()
    finally:
        logging.getLogger("asked.bolts").setLevel(logging.NOTSET)


def test_a_request_in_the_query_s_own_process(spark, place):
    feed(place / "in", a=FILES["a"])
    query = submit(*begun(spark, place, trigger=ON))
    query.processAllAvailable()
    checkpoint = Checkpoint(place / "ck")
    assert checkpoint.savepoint("v1").txid == 1
    with pytest.raises(CheckpointError, match="there is a savepoint 'v1' already"):
        checkpoint.savepoint("v1")
    assert checkpoint.status()["driver"]["pid"] == os.getpid()
    result = checkpoint.stop().result
    assert (result["ended"], result["committed"], result["error"]) == (True, 1, None)
    assert not query.isActive
