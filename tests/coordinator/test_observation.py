"""The observation document: what is in it, that writing it harms nothing, and what its readers are told."""

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest

from statefx import BasicBolt, Checkpoint, TopologyBuilder
from statefx.coordinator import observation
from statefx.coordinator.attempt import Attempt
from statefx.coordinator.measuring import Rates
from statefx.coordinator.observation import Observer, health_of, masked
from statefx.errors import AttemptsExhaustedError, BoltError, FailedException
from statefx.log.location import OBSERVED, Folders
from statefx.log.log import Writing
from statefx.log.observation import (
    BYTES_MAX,
    STALE_SECS,
    WRONG,
    bounded,
    decided_sentence,
    health,
    is_copied,
    process,
    read_observation,
    secs_of,
)
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows
from statefx.testing.faults import JobFails
from tests.spouts import timed
from tests.spouts.timed import PlannedEnds, begun
from tests.testing.topologies import SMALL, lines, totals, word_count

WAIT_SECS = 20.0


def observer_of(tester, **more):
    return Observer(
        tester._launch,
        tester._coordinator.log,
        tester._progress,
        lambda: tester._progress.status() | {"run": "r", "isActive": True},
        **{"now": tester._progress.now, **more},
    )


@contextmanager
def written(tester, **more):
    """Have an observer write as a query does, and end it."""
    made = observer_of(tester, write_secs=0.01, **more)
    made.start()
    try:
        yield made
    finally:
        made.end(None, "It was stopped")


def until(holds):
    end = time.monotonic() + WAIT_SECS
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


class Poor(BasicBolt):
    outputFields = "value string"

    def execute(self, tup, collector):
        secret = tup.value
        raise ValueError(f"no {secret}")


# ---- what is in it


def test_rows_and_tasks_add_up_to_what_was_sent(place):
    with TopologyTester(word_count(), place) as tester:
        observer = observer_of(tester)
        for text in ("to be or not to be", "to to to"):
            tester.send(lines(text))
        found = observer.document()
    assert json.loads(json.dumps(found)) == found
    components = found["components"]
    assert {name: one["rowsIn"] for name, one in components.items()} == {"lines": 0, "split": 2, "count": 9}
    assert components["split"]["rowsOut"] == 9
    assert sum(task["rowsIn"] for task in components["count"]["tasks"]) == 9
    assert [(edge["from"], edge["to"], edge["rows"]) for edge in found["edges"]] == [
        ("lines", "split", 2),
        ("split", "count", 9),
    ]
    assert [(each["txid"], each["outcome"], each["rows"]) for each in found["transactions"]] == [
        (1, "committed", 1),
        (2, "committed", 1),
    ]
    assert found["graph"]["levels"] == 3
    assert [(one["name"], one["level"], one["kind"]) for one in found["graph"]["components"]] == [
        ("lines", 0, "stream"),
        ("split", 1, "bolt"),
        ("count", 2, "bolt"),
    ]
    assert all(task["msPerSec"]["execute"] > 0 for task in components["count"]["tasks"])


def test_tasks_of_a_transaction_are_placed_in_time(place):
    with TopologyTester(word_count(), place) as tester:
        observer = observer_of(tester)
        assert observer.document()["tasksOf"] == []
        tester.send(lines("to be"))
        tester.send(lines("or not"))
        first, found = observer.document()["tasksOf"]
    assert (first["txid"], first["attempt"]) == (1, 0)
    assert (found["txid"], found["count"]) == (2, 6)
    assert {(each["component"], each["task"]) for each in found["tasks"]} == {
        ("lines", 0), ("lines", 1), ("split", 0), ("split", 1), ("count", 0), ("count", 1),
    }  # fmt: skip
    assert min(each["beganMs"] for each in found["tasks"]) == 0
    for each in found["tasks"]:
        assert each["phases"][0][1] == each["beganMs"]
        assert each["phases"][-1][2] == pytest.approx(each["endedMs"], abs=0.01)
        assert all(before[2] == after[1] for before, after in pairwise(each["phases"]))


def test_components_of_statefx_are_left_out_and_their_edges_joined(place):
    topology = totals()
    with TopologyTester(topology, place, {"topology.tick.tuple.freq.secs": 1}) as tester:
        tester.send(lines("a"))
        found = observer_of(tester).document()
    names = {one["name"] for one in found["graph"]["components"]}
    assert not any(name.startswith("__") for name in names)
    assert {end for edge in found["graph"]["edges"] for end in (edge["from"], edge["to"])} <= names


def test_attempts_that_failed_are_there_with_reason_and_frames_but_no_values(place):
    builder = TopologyBuilder("poor")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("poor", Poor()).shuffleGrouping("lines")
    with TopologyTester(builder.createTopology(), place) as tester:
        observer = observer_of(tester)
        with pytest.raises(BoltError) as raised:
            tester.send(lines("password"))
        observer.end(raised.value, "")
        found = observer.document()
    assert found["transactions"][-1]["outcome"] == "rolled back"
    [error] = found["exceptions"]
    assert (error["component"], error["task"], error["type"], error["count"]) == ("poor", 0, "ValueError", 1)
    assert "in execute" in error["traceback"]
    assert "password" not in error["traceback"]
    assert found["health"]["state"] == "failed"
    assert "BoltError" in found["health"]["sentence"]


def test_transactions_of_former_drivers_come_first(place):
    with TopologyTester(word_count(), place) as tester:
        tester.send(lines("a"))
    with TopologyTester(word_count(), place) as tester:
        observer = observer_of(tester)
        tester.send(lines("b"))
        assert [each["txid"] for each in observer.document()["transactions"]] == [1, 2]


@pytest.mark.slow
def test_transactions_that_a_restore_gave_up_are_said_to_be(place):
    def outcomes(document):
        return [(each["txid"], each["outcome"]) for each in document["transactions"]]

    with TopologyTester(word_count(), place) as tester, written(tester):
        for number in range(3):
            tester.send(lines(f"{number}"))
    assert outcomes(Checkpoint(place).observation()) == [(1, "committed"), (2, "committed"), (3, "committed")]
    Checkpoint(place).restore(txid=1)
    given_up = [(1, "committed"), (2, "given up"), (3, "given up")]
    assert outcomes(Checkpoint(place).observation()) == given_up, "the driver wrote it before the restore"
    with TopologyTester(word_count(), place) as tester:
        observer = observer_of(tester)
        tester.send(lines("b"))
        assert outcomes(observer.document()) == [*given_up, (1, "restored"), (4, "committed")]


@pytest.mark.slow
def test_tasks_of_few_transactions_are_kept_where_each_has_many(place, monkeypatch):
    monkeypatch.setattr(observation, "TASKS_KEPT", 20)  # each of the transactions has 6
    with TopologyTester(word_count(), place) as tester:
        observer = observer_of(tester)
        for _ in range(5):
            tester.send(lines("a"))
        assert [each["txid"] for each in observer.document()["tasksOf"]] == [3, 4, 5]
        monkeypatch.setattr(observation, "TASKS_KEPT", 1)
        tester.send(lines("a"), JobFails())
        assert [(each["txid"], each["attempt"]) for each in observer.document()["tasksOf"]] == [(6, 1)]


def test_a_retried_transaction_shows_each_attempt(place):
    with TopologyTester(word_count(), place) as tester:
        observer = observer_of(tester)
        tester.send(lines("a"), JobFails())
        found = [(each["attempt"], each["outcome"]) for each in observer.document()["transactions"]]
    assert found == [(0, "rolled back"), (1, "committed")]


def test_event_time_of_partitions_that_are_finished_is_not_kept(place):
    """The first stays open and holds the others, which come and go."""
    ends = range(4)
    script = [[[1], *([2] if number < end else [3] if number == end else [] for end in ends)] for number in ends]
    with begun(timed.topology(PlannedEnds(script, [None, *ends])), place) as tester:
        observer = observer_of(tester)
        for _ in script:
            tester.emit()
            tester.advance(1)
            told = observer.document()["sources"]["spout"]["eventTime"]
            assert (told["heldBackBy"], told["silentSecs"]) == ("0", tester.txid - 1)
        assert observer._moved["spout"].keys() == tester._coordinator.log.state.unit_times.keys()


@pytest.mark.parametrize("secs", [-3600, -1, 3600])
def test_rates_are_those_of_the_time_that_has_passed_whatever_the_clock_is_set_to(secs, place):
    with TopologyTester(word_count(), place) as tester:
        observer = observer_of(tester)
        for number in range(3):
            tester.send(lines("to be"))
            tester.advance(2)
            if number == 1:
                tester._began += secs
        found = observer.document()
    assert found["ratesOverSecs"] == 6
    assert [edge["rowsPerSec"] for edge in found["edges"]] == [0.5, 1.0]
    assert [one["rowsInPerSec"] for one in found["components"].values()] == [0.0, 0.5, 1.0]


def add(rates, now, rows, began=0.0):
    sums = rates.until(now, began).setdefault("edge", {"rows": 0.0})
    sums["rows"] += rows


def test_rates_count_the_last_ten_seconds():
    rates = Rates()
    for second in range(1, 101):
        add(rates, float(second), 50.0 if second > 80 else 10.0)
    assert rates.per_sec(100.0)["edge"]["rows"] == pytest.approx(50.0, rel=0.1)
    assert rates.per_sec(200.0) == {}
    assert rates.secs(100.0) == pytest.approx(10.0, rel=0.3)
    assert rates.secs(200.0) == 0.0


def test_rates_begin_with_the_first_transaction():
    rates = Rates()
    assert rates.per_sec(5.0) == {}
    add(rates, 100.5, 50.0, began=100.0)
    assert rates.per_sec(100.5)["edge"]["rows"] == 100.0
    add(rates, 101.0, 50.0, began=100.5)
    assert rates.per_sec(101.0)["edge"]["rows"] == 100.0


def test_rates_of_a_long_transaction_are_those_of_its_whole_length():
    rates = Rates()
    add(rates, 100.0, 10.0)
    add(rates, 200.0, 1000.0)
    assert rates.per_sec(200.0)["edge"]["rows"] == pytest.approx(10.0, rel=0.2)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("db.password", "x", "***"),
        ("apiKey", 5, "***"),
        ("feed", "redis://ann:x@db/0", "redis://***@db/0"),
        ("feed", {"token": "x", "n": 1}, {"token": "***", "n": 1}),
        ("feeds", ["http://a:b@c"], ["http://***@c"]),
        ("limit", 5, 5),
        ("db.pwd", "x", "***"),
        ("fs.azure.account.key.shop", "x", "***"),
        ("aws.access.key", "x", "***"),
        ("feed", "redis://ann:x@y/z@db/0", "redis://***@db/0"),
        ("feed", 'PlainLoginModule required username="u" password="x";', "***"),
        ("feed", "https://host/data?since=5&sig=x", "***"),
        ("feed", "host=db user=ann password=x", "***"),
        ("feed", "Endpoint=sb://bus/;SharedAccessKey=x", "***"),
        ("header", ["Bearer x"], ["***"]),
        ("feed", "https://host/data?since=5", "https://host/data?since=5"),
        ("partition.key", "user", "user"),
        ("keyFields", ["user"], ["user"]),
    ],
)
def test_secrets_are_masked(key, value, shown):
    assert masked(key, value) == shown


def test_settings_are_shown_without_defaults_and_secrets(place):
    config = {"topology.max.spout.pending": 2, "feed.password": "x"}
    builder = TopologyBuilder("plain")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("poor", Poor()).shuffleGrouping("lines")
    with TopologyTester(builder.createTopology(), place, {"feed.password": config["feed.password"]}) as tester:
        assert observer_of(tester).document()["config"]["feed.password"] == "***"
        assert "topology.max.spout.pending" not in observer_of(tester).document()["config"]
        assert "topology.transactional.id" not in observer_of(tester).document()["config"], "it is the topology's name"


def test_a_sentence_has_times_that_people_read():
    said = health("stuck", "2026-11-27T14:19:56.880+00:00", "Stuck since 2026-11-27T14:19:56.880+00:00: db: x")
    assert said["sentence"].startswith("Stuck since 2026-11-27 14:19:56 UTC: db: x")
    assert said["since"] == "2026-11-27T14:19:56.880+00:00"


# ---- health


HEALTH = {
    "healthy": ({"run": "r"}, {"committed": 1}),
    "idle": ({"run": "r"}, {"committed": 1, "now": 1100.0}),
    "starting": ({"run": None}, {}),
    "stuck": ({"stuck": {"phase": "COMMITTING", "txid": 2, "since": "s", "reason": "the database is away"}}, {}),
    "failing": ({"failed": {"txid": 2, "attempt": 3, "since": "s", "reason": "no good"}}, {}),
    "ended": ({}, {"ended": 1000.0}),
    "failed": ({}, {"ended": 1000.0, "error": ValueError("no good")}),
}


@pytest.mark.parametrize("state", HEALTH)
def test_health_says_what_is_wrong_since_when_and_what_to_do(state):
    status, more = HEALTH[state]
    done = [{"txid": 1, "outcome": "committed", "began": at(999.0), "ended": at(1000.0)}]
    given = {"began": 900.0, "ended": None, "error": None, "committed": 0, "running": (), "now": 1001.0}
    found = health_of(status, transactions=done if "committed" in more else [], **given | more)
    assert (found["state"] in WRONG) == (state in ("stuck", "failing", "failed"))
    assert found["state"] == state
    assert found["sentence"]
    if state in ("stuck", "failing"):
        assert found["remedy"]
        assert found["since"] == "s"
        assert next(iter(status.values()))["reason"] in found["sentence"]


STUCK = {"phase": "COMMITTING", "txid": 2, "since": "s", "reason": "db: the database is locked"}
FAILED = {"txid": 2, "attempt": 7, "since": "s", "reason": "price[1]: no price", "tries": 8,
          "type": "FailedException", "place": "shop.py:12, in execute"}  # fmt: skip
AGAIN = (
    "Transaction 2 fails again and again since s: attempt 8 of 50 failed: FailedException in price[1]: no price "
    "(shop.py:12, in execute)"
)
LAST, THEN = "the last committed transaction is 1.", "1970-01-01 00:16:40 UTC"
SHELL, STOP = "It was stopped from outside, by statefx stop,", "It was stopped by query.stop()"
BOLT = BoltError("bolt 'price', task 1: no price")
DECIDED = "transaction 2 was decided and not published: db: the database is locked"
ENDS = {
    "from a shell": ({}, {"how": SHELL}, "ended", f"{SHELL} at {THEN}: {LAST}"),
    "its input": ({}, {"how": "Its input ended"}, "ended", f"Its input ended at {THEN}: {LAST}"),
    "nothing committed": ({}, {"how": STOP, "last": 0}, "ended",
                          f"{STOP} at {THEN}: no transaction was committed yet."),
    "failing": ({"failed": FAILED}, {"how": STOP}, "ended",
                f"{STOP} at {THEN} while a transaction failed. {AGAIN}; {LAST}"),
    "decided": ({"stuck": STUCK}, {"how": STOP, "decided": [2]}, "failed", f"{STOP} at {THEN} while {DECIDED}; {LAST}"),
    "error": ({"failed": FAILED}, {"error": BOLT}, "failed", f"The query was ended by BoltError: {BOLT}."),
    "error, decided": ({}, {"error": BOLT, "decided": [2]}, "failed",
                       f"The query was ended by BoltError: {BOLT}. {decided_sentence(2)}"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_an_end_says_by_what_it_came_and_what_is_left_undone(name):
    status, more, state, sentence = ENDS[name]
    given = {"began": 900.0, "ended": 1000.0, "error": None, "committed": 1, "running": (), "now": 1001.0}
    given |= {"transactions": [], "last": 1, "attempts_max": 50}
    found = health_of(status, **given | more)
    assert (found["state"], found["sentence"]) == (state, sentence)
    assert bool(found["remedy"]) == bool(status or "error" in more)
    if "decided" in more and "error" not in more:
        assert "Until then its rows are missing" in found["remedy"]


BARE = "price[1]: FailedException, without a reason (shop.py:12, in execute)"


@pytest.mark.parametrize(
    ("failed", "sentence"),
    [
        (FAILED, f"{AGAIN}."),
        (FAILED | {"tries": 1}, f"{AGAIN.replace('fails again and again', 'failed').replace('8 of', '1 of')}."),
        (FAILED | {"reason": BARE}, f"{AGAIN.partition(' FailedException')[0]} {BARE}."),
        ({"txid": 2, "attempt": 3, "since": "s", "reason": "a run was lost", "tries": 8},
         f"{AGAIN.partition(' FailedException')[0]} a run was lost."),
    ],
)  # fmt: skip
def test_a_transaction_that_fails_names_exception_line_and_attempts(failed, sentence):
    given = {"began": 900.0, "ended": None, "error": None, "committed": 1, "running": (), "now": 1001.0}
    found = health_of({"run": "r", "failed": failed}, transactions=[], attempts_max=50, **given)
    assert (found["state"], found["sentence"]) == ("failing", sentence)
    assert "After attempt 50 the query ends" in found["remedy"]
    assert ("onError" in found["remedy"]) == ("type" in failed)


def test_the_first_transaction_is_not_said_to_be_committed():
    given = {"began": 900.0, "ended": None, "error": None, "committed": 0, "transactions": [], "now": 1001.0}
    found = health_of({"run": "r"}, running=[Attempt(TransactionAttempt(1, 0), began=1000.0)], **given)
    assert found["state"] == "healthy"
    assert "are committed" not in found["sentence"]
    assert "no transaction was committed yet" in found["sentence"]


class HangingRecord:
    """A storage whose next record does not return before it is released."""

    def __init__(self, storage):
        self._storage, self.released = storage, threading.Event()

    def create(self, name, data):
        assert self.released.wait(WAIT_SECS)
        return self._storage.create(name, data)

    def __getattr__(self, name):
        return getattr(self._storage, name)


@pytest.mark.slow
def test_a_write_of_the_log_that_hangs_is_named_with_its_place(place, monkeypatch):
    monkeypatch.setattr(observation, "HANGS_SECS", 0.1)
    monkeypatch.setattr(observation, "CORE_SHARE", 1.0)
    with TopologyTester(word_count(), place) as tester, written(tester, now=time.time) as observer:
        tester.send(lines("a"))
        log = tester._coordinator.log
        hanging, log._clock = HangingRecord(log.storage), time.time
        log.storage = hanging
        said = f"Writing PREPARING to the log at {log.where} hangs since 20"  # an earlier record may look so too

        def look():
            try:
                until(lambda: Checkpoint(place).observation()["health"]["sentence"].startswith(said))
                return observer.health()
            finally:
                hanging.released.set()

        with ThreadPoolExecutor(1) as beside:
            looked = beside.submit(look)
            tester.send(lines("b"))
            found = looked.result()
        assert found["state"] == "stuck"
        assert str(place) in log.where
        assert found["sentence"].endswith("the last committed transaction is 1.")
        assert "Look at the disk or mount of it" in found["remedy"]
        assert "task" not in found["sentence"]
        until(lambda: "hangs since" not in observer.health()["sentence"])
        assert tester._coordinator.log.state.committed == 2


@pytest.mark.parametrize(("secs", "state"), [(9.0, "healthy"), (11.0, "stuck")])
def test_a_write_of_the_log_hangs_after_ten_seconds(secs, state):
    given = {"began": 0.0, "ended": None, "error": None, "committed": 1, "transactions": [], "now": 100.0}
    running = [Attempt(TransactionAttempt(2, 0), began=100.0 - secs)]
    writing = Writing("COMMITTING", 100.0 - secs)
    found = health_of({"run": "r"}, running=running, writing=writing, where="s3://bucket/ck/log", **given)
    assert found["state"] == state
    assert ("the network" in found["remedy"]) == (state == "stuck")


class Flaky(BasicBolt):
    outputFields = "value string"

    def execute(self, tup, collector):
        raise FailedException("away")


def test_a_bolt_that_fails_an_attempt_is_shown_by_its_line_and_how_often(place):
    builder = TopologyBuilder("flaky")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("flaky", Flaky()).shuffleGrouping("lines")
    config = {"topology.transaction.attempts.max": 3, "topology.transaction.retry.delay.ms": 0}
    seen = []
    with TopologyTester(builder.createTopology(), place, config) as tester:
        observer = observer_of(tester)
        tester._progress.watchers.append(lambda outcome: seen.append(observer.document()["health"]))
        with pytest.raises(AttemptsExhaustedError):
            tester.send(lines("a"))
    assert [each["state"] for each in seen] == ["failing"] * 3
    for tries, each in enumerate(seen, 1):
        assert f"attempt {tries} of 3 failed: FailedException in flaky[0]: away ({__file__}:" in each["sentence"]
        assert each["sentence"].endswith(", in execute).")


@pytest.mark.slow
def test_a_reader_with_the_log_knows_what_was_committed_since(place):
    """Of a driver that is gone, and of one that has not written since."""
    with TopologyTester(word_count(), place) as tester:
        with written(tester) as observer:
            tester.send(lines("a"))
            first = observer.document()
        tester.send(lines("b"))
    document = first | {"driver": ended_process(), "generation": 1}
    (place / OBSERVED).write_text(json.dumps(document))
    found = Checkpoint(place).observation()
    assert found["health"]["state"] == "dead"
    assert found["health"]["sentence"].endswith("The last committed transaction is 2.")
    assert [(each["txid"], each["outcome"]) for each in found["transactions"]] == [(1, "committed"), (2, "committed")]
    (place / OBSERVED).write_text(json.dumps(first | {"writtenAt": at(time.time())}))
    found = Checkpoint(place).observation()["health"]
    assert (found["state"], "last committed transaction is 2." in found["sentence"]) == ("healthy", True)
    running = [one | {"outcome": "running", "ended": None} for one in first["transactions"]]
    (place / OBSERVED).write_text(json.dumps(document | {"transactions": running}))
    found = Checkpoint(place).observation()["transactions"]
    assert [(each["txid"], each["outcome"]) for each in found] == [(1, "committed"), (2, "committed")]


def test_a_paused_query_says_so():
    given = {"began": 900.0, "ended": None, "error": None, "committed": 1, "running": (), "now": 1001.0}
    found = health_of({"run": "r", "paused": {"since": "s"}}, transactions=[], **given)
    assert (found["state"], found["since"]) == ("idle", "s")
    assert "is paused since s" in found["sentence"]
    assert "statefx resume" in found["remedy"]


def at(secs):
    return observation.iso(secs)


def test_a_transaction_that_hangs_is_stuck_and_the_tasks_it_waits_for_are_named():
    done = [{"txid": 1, "outcome": "committed", "began": at(0.0), "ended": at(0.2)}]
    attempt = Attempt(TransactionAttempt(2, 0), waiting={TaskId("count", 3)}, began=10.0)
    given = {"began": 0.0, "ended": None, "error": None, "committed": 1, "running": [attempt], "transactions": done}
    assert health_of({"run": "r"}, now=60.0, **given)["state"] == "healthy"
    found = health_of({"run": "r"}, now=100.0, **given)
    assert found["state"] == "stuck"
    assert "count/3" in found["sentence"]


def test_a_topology_without_slots_is_stuck():
    given = {"began": 0.0, "ended": None, "error": None, "committed": 0, "running": (), "transactions": []}
    found = health_of({"run": None, "waitsForSlotsSecs": 12.0}, now=100.0, **given)
    assert (found["state"], found["since"]) == ("stuck", at(88.0))
    assert "slots" in found["sentence"]


# ---- writing


def test_it_is_written_and_read_back_and_its_end_with_it(place):
    with TopologyTester(word_count(), place) as tester:
        with written(tester):
            tester.send(lines("a b"))
            until(lambda: Checkpoint(place).observation().get("components", {}).get("count", {}).get("rowsIn") == 2)
            now = tester._progress.now()  # the tester has a clock of its own
            assert read_observation(Folders(os.path.realpath(place)), now)["health"]["state"] == "healthy"
        found = Checkpoint(place).observation()
    assert found["health"]["state"] == "ended"
    assert found["endedAt"]
    assert found["status"]["isActive"] is False
    assert found["checkpoint"] == os.path.realpath(place)


class Away(FolderStorage):
    """A store that answers nothing any more."""

    asked = 0

    def read(self, *arguments):
        type(self).asked += 1
        raise OSError("away")


def test_a_store_that_is_away_costs_one_warning_and_no_transaction(place, monkeypatch, caplog):
    monkeypatch.setattr(observation, "FolderStorage", Away)
    monkeypatch.setattr(Away, "asked", 0)
    with caplog.at_level(logging.WARNING, "statefx"), TopologyTester(word_count(), place) as tester, written(tester):
        tester.send(lines("a"))
        until(lambda: Away.asked >= 3)
        tester.send(lines("b"))
        assert tester.state("count") == {"a": 1, "b": 1}
    assert [record.message for record in caplog.records if "beside the log" in record.message] != []
    assert len([record for record in caplog.records if "beside the log" in record.message]) == 1


class Hangs(FolderStorage):
    """A store that never answers."""

    released = threading.Event()
    asked = threading.Event()

    def read(self, *arguments):
        self.asked.set()
        self.released.wait(WAIT_SECS)
        raise FileNotFoundError


def test_a_store_that_hangs_keeps_no_transaction_and_no_end(place, monkeypatch):
    monkeypatch.setattr(observation, "FolderStorage", Hangs)
    monkeypatch.setattr(observation, "END_SECS", 0.05)
    with TopologyTester(word_count(), place) as tester:
        with written(tester):
            assert Hangs.asked.wait(WAIT_SECS)
            tester.send(lines("a"))
        Hangs.released.set()


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_raises_while_it_observes_harms_no_transaction(is_gone, place, caplog):
    """Also if another thread removes it meanwhile."""

    def broken(outcome):
        if is_gone:
            tester._progress.watchers.remove(broken)
        raise RuntimeError("a defect")

    with TopologyTester(word_count(), place) as tester:
        tester._progress.watchers.append(broken)
        tester.send(lines("a"))
        tester.send(lines("b"))
        assert tester.state("count") == {"a": 1, "b": 1}
    assert len([each for each in caplog.records if "no longer observed" in each.message]) == 1


def test_a_former_driver_does_not_replace_the_document_of_its_successor(place):
    with TopologyTester(word_count(), place) as zombie, TopologyTester(word_count(), place) as newer:
        with written(newer):
            until(lambda: read_observation(Folders(str(place)))["writtenAt"])
        with written(zombie):
            pass
    assert read_observation(Folders(os.path.realpath(place)))["generation"] == 2


def test_a_checkpoint_that_its_user_has_deleted_does_not_come_back(tmp_path):
    with TopologyTester(word_count(), tmp_path / "ck") as tester:
        with written(tester):
            until((tmp_path / "ck" / OBSERVED).exists)
            (tmp_path / "ck").rename(tmp_path / "gone")
        assert not (tmp_path / "ck").exists()


@pytest.mark.slow
def test_a_document_is_bounded_and_says_what_was_left_out():
    task = {"activity": {"busy": 0.5}, "rowsIn": 10**9, "rowsOut": 10**9, "rowsInPerSec": 1.5, "msPerSec": {}}
    components = {
        f"component-{number}": {"tasks": [{**task, "task": each} for each in range(64)]} for number in range(200)
    }
    document = {"generation": 1, "components": components, "exceptions": [{"traceback": "x" * 4000}] * 20}
    data = bounded(document)
    assert len(data) <= BYTES_MAX
    found = json.loads(data)
    shown = sum(len(one["tasks"]) for one in found["components"].values())
    assert found["leftOut"]["tasks"] == 200 * 64 - shown
    assert len(found["components"]) == 200
    assert len(document["components"]["component-0"]["tasks"]) == 64  # the caller's own is as it was


# ---- reading


def document(place, **more):
    return {"format": 1, "generation": 1, "lineage": "l", "topology": "t", "checkpoint": os.path.realpath(place),
            "driver": process(), "writtenAt": at(1000.0), "endedAt": None,
            "health": {"state": "healthy", "since": None, "sentence": "well", "remedy": ""}} | more  # fmt: skip


def read(place, now=1001.0, **more):
    FolderStorage(place).put(OBSERVED, json.dumps(document(place, **more)).encode())
    os.utime(place / OBSERVED, (1000.0, 1000.0))
    return read_observation(Folders(os.path.realpath(place)), now)


def ended_process():
    told = "import json; from statefx.log.observation import process; print(json.dumps(process()))"
    child = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(child.stdout)


ELSEWHERE = {"host": "elsewhere", "pid": 1, "machine": "another boot"}


@pytest.mark.slow
def test_a_reader_on_the_drivers_machine_sees_whether_it_runs(tmp_path):
    assert read(tmp_path)["health"]["state"] == "healthy"
    assert read(tmp_path, now=1000.0 + STALE_SECS - 1)["health"]["state"] == "healthy"
    found = read(tmp_path, driver=ended_process())["health"]
    assert found["state"] == "dead"
    assert "nothing is lost" in found["remedy"]


def test_a_driver_that_is_there_and_has_written_nothing_for_long_is_stuck_whatever_it_said(tmp_path):
    found = read(tmp_path, now=1000.0 + STALE_SECS + 1)["health"]
    assert found["state"] == "stuck"
    assert found["since"] == "1970-01-01T00:16:40.000+00:00"
    assert "suspended" in found["sentence"]


def test_a_pid_that_another_process_has_now_is_no_driver(tmp_path):
    assert read(tmp_path, driver=process() | {"began": "1"})["health"]["state"] == "dead"


def test_a_reader_on_another_machine_goes_by_the_age(tmp_path):
    assert read(tmp_path, driver=ELSEWHERE)["health"]["state"] == "healthy"
    assert read(tmp_path, now=1000.0 + STALE_SECS + 1, driver=ELSEWHERE)["health"]["state"] == "dead"


def test_what_has_ended_stays_ended(tmp_path):
    ended = {"state": "ended", "since": None, "sentence": "it was stopped", "remedy": ""}
    assert read(tmp_path, now=1e9, health=ended, driver=ELSEWHERE)["health"] == ended


def test_a_mount_at_another_path_shows_a_driver_at_work(tmp_path):
    assert read(tmp_path, checkpoint="/mnt/words", driver=ELSEWHERE)["health"]["state"] == "healthy"


def test_a_copy_says_where_it_was_copied_from(tmp_path):
    found = read(tmp_path, now=1000.0 + STALE_SECS + 1, checkpoint="/data/words")
    assert found["health"]["state"] == "unknown"
    assert "/data/words" in found["health"]["sentence"]


def test_a_copy_on_the_drivers_machine_is_seen_at_once(tmp_path):
    origin, copy = tmp_path / "ck", tmp_path / "copy"
    origin.mkdir()
    assert read(origin, checkpoint=str(origin))["health"]["state"] == "healthy"
    shutil.copytree(origin, copy)
    found = read_observation(Folders(str(copy)), 1001.0)["health"]
    assert (found["state"], f"was written 1970-01-01 00:16:40 UTC about {origin}" in found["sentence"]) == (
        "unknown",
        True,
    )
    link = tmp_path / "link"
    link.symlink_to(origin)
    assert read(origin, checkpoint=str(link))["health"]["state"] == "healthy", "the same folder at another path"


@pytest.mark.parametrize(
    ("origin", "location", "copied"),
    [
        ("s3://one/words", "s3://one/words", False),
        ("s3://one/words", "s3://two/words", True),
        ("/data/words", "s3://two/words", False),
        (None, "s3://two/words", False),
    ],
)
def test_in_object_stores_another_name_is_another_checkpoint(origin, location, copied):
    assert is_copied(origin, location, ELSEWHERE) is copied


@pytest.mark.parametrize(
    ("written", "stored", "state"),
    [
        (-STALE_SECS + 9, -9e9, "healthy"),
        (STALE_SECS - 9, -9e9, "healthy"),
        (-STALE_SECS - 9, -STALE_SECS - 9, "dead"),
        (-STALE_SECS - 9, -9, "unknown"),
        (STALE_SECS + 9, -9, "unknown"),
        (STALE_SECS + 9, 9, "unknown"),
        (STALE_SECS + 9, -STALE_SECS - 9, "dead"),
    ],
)
def test_clocks_that_differ_are_told_and_no_sickness(tmp_path, written, stored, state):
    """By how many seconds the driver's clock and that of the storage were from the reader's now."""
    now = 1_000_000.0
    FolderStorage(tmp_path).put(
        OBSERVED, json.dumps(document(tmp_path, driver=ELSEWHERE, writtenAt=at(now + written))).encode()
    )
    os.utime(tmp_path / OBSERVED, (now + max(stored, -now), now + max(stored, -now)))
    found = read_observation(Folders(os.path.realpath(tmp_path)), now)["health"]
    assert found["state"] == state
    assert state != "unknown" or ("clocks differ" in found["sentence"] and "statefx status" in found["remedy"])


@pytest.mark.parametrize("data", [None, b"", b'{"format": 1, "gener', b"[]", b'{"format": 99}', b"\xff\x00"])
def test_a_document_that_is_absent_or_torn_is_told_and_the_log_is_shown(place, data):
    with TopologyTester(word_count(), place) as tester:
        tester.send(lines("a"))
    if data is not None:
        (place / OBSERVED).write_bytes(data)
    found = Checkpoint(place).observation()
    assert found["health"]["state"] == "unknown"
    assert OBSERVED in found["health"]["sentence"]
    assert [(each["txid"], each["outcome"]) for each in found["transactions"]] == [(1, "committed")]
    assert found["topology"] == "word-count"


def test_a_newer_generation_that_has_written_nothing_is_told(place):
    with TopologyTester(word_count(), place) as tester, written(tester):
        tester.send(lines("a"))
    with TopologyTester(word_count(), place):
        found = Checkpoint(place).observation()
    assert found["health"]["state"] == "unknown"
    assert "Generation 2" in found["health"]["sentence"]


def test_times_that_are_none_are_none():
    assert [secs_of(each) for each in (None, 5, "yesterday")] == [None] * 3


# ---- beside the log


@pytest.mark.slow
def test_tools_and_sweeps_do_not_mind_it(place, tmp_path):
    with TopologyTester(word_count(), place, limits=SMALL) as tester, written(tester):
        for number in range(12):
            tester.send(lines(f"w{number}"))
    data = (place / OBSERVED).read_bytes()
    checkpoint = Checkpoint(place)
    assert not checkpoint.verify().damaged
    assert not checkpoint.repair(yes=True).damaged
    checkpoint.savepoint("now")
    checkpoint.restore("now", to=tmp_path / "copy")
    assert not (tmp_path / "copy" / OBSERVED).exists()
    checkpoint.restore("now", sinks="append")
    assert (place / OBSERVED).read_bytes() == data
    with TopologyTester(word_count(), place, limits=SMALL) as tester:
        tester.send(lines("again"))
    assert (place / OBSERVED).read_bytes() == data


def test_a_folder_with_nothing_but_a_document_may_become_a_checkpoint(place):
    (place / OBSERVED).write_text("{}")
    with TopologyTester(word_count(), place) as tester:
        tester.send(lines("a"))
        assert replace(tester.send(lines("b")).progress, trees=None).txid == 2


def test_a_pause_and_a_resume_at_once_leave_status_saying_what_is_done(place, monkeypatch):
    with TopologyTester(word_count(), place) as tester:
        coordinator, real = tester._coordinator, tester._progress.held
        assert coordinator.hold(True)
        assert not coordinator.hold(True), "it is paused already"
        pausing = threading.Thread(target=coordinator.hold, args=(True,))

        def held(value):
            if not value:
                pausing.start()
                pausing.join(0.05)  # it goes through meanwhile, unless it waits for this
            real(value)

        monkeypatch.setattr(tester._progress, "held", held)
        assert coordinator.hold(False)
        pausing.join()
        assert coordinator._held == ("paused" in tester._progress.status())
