"""What a transaction tells of itself: rows, keys, bytes, and where its time went."""

import logging
import os
import re
import time
from pathlib import Path

import pytest

from statefx import BatchBolt, Stateful, TopologyBuilder
from statefx.coordinator.progress import SUMMARY_SECS, Summary, TransactionProgress
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.reports import Ack
from statefx.testing import TopologyTester, rows
from statefx.testing.faults import JobFails
from statefx_memory import MemoryStateProvider
from tests.bolts import WithState
from tests.testing.topologies import lines, totals, word_count

STEPS = {"restore": 30, "open": 10, "execute": 40, "finish": 20}
"""Milliseconds that `Slow` and the store below it spend, at least."""


def progress_of(txid, rows):
    return TransactionProgress(txid, 0, {"statefx_input_rows": {(): rows}}, 0.0)


def spend(step):
    """Keep a processor busy: what takes time must not depend on a clock that others can turn."""
    end = time.perf_counter() + STEPS[step] / 1000
    while time.perf_counter() < end:
        pass


class SlowToOpen(MemoryStateProvider):
    def newState(self, namespace, context):
        if not context.read_only:
            spend("restore")
        return super().newState(namespace, context)


class Slow(Stateful, BatchBolt):
    def open(self, context):
        spend("open")

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.value, "x" * 100)
        spend("execute")

    def finishBatch(self, collector):
        spend("finish")


class Twice(WithState):
    outputFields = "value string"

    def execute(self, tup, collector):
        self.state.putAll({tup.value: 1, "n": self.state.get("n", 0) + 1})
        collector.emit(tuple(tup))


def slow():
    builder = TopologyBuilder("slow")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("twice", Twice(), parallelism=2).fieldsGrouping("lines", "value")
    builder.setBolt("slow", Slow()).globalGrouping("twice")
    return builder.createTopology()


@pytest.mark.slow
def test_the_time_of_each_bolt_by_what_it_did(place):
    config = {"topology.state.provider": f"{__name__}:SlowToOpen"}
    with TopologyTester(slow(), place, config) as tester:
        told = tester.send({"lines": [("a",)]}).progress.as_dict()
        again = tester.send({"lines": [("a",)]}).progress.as_dict()
    spent = told["boltMs"]["slow"]
    assert list(spent) == [*STEPS, "slowest"]
    assert all(spent[step] >= least for step, least in STEPS.items())
    assert spent["slowest"] >= sum(STEPS.values())
    assert again["boltMs"]["slow"]["restore"] == 0  # it stays open while its task lives
    both = told["boltMs"]["twice"]
    assert both["restore"] >= 2 * STEPS["restore"]  # of two tasks
    assert both["slowest"] < sum(both.values()) - both["slowest"]


@pytest.mark.slow
def test_keys_and_bytes_of_each_stateful_bolt(place):
    with TopologyTester(slow(), place) as tester:
        told = tester.send({"lines": [("a",), ("b",), ("b",)]}).progress.as_dict()
    assert told["numInputRows"] == 3
    assert told["rows"] == {"twice": 3, "slow": 3}
    assert told["stateKeysChanged"]["slow"] == 2
    assert told["stateBytesChanged"]["slow"] > 200
    on_disk = sum(os.path.getsize(path) for path in Path(place, "state", "slow").rglob("*") if path.is_file())
    assert told["stateBytesChanged"]["slow"] == on_disk


def test_the_size_of_each_state(driver, provider):
    tester = driver.start(word_count())
    told = [tester.send(lines(text)).progress.as_dict() for text in ("a b", "b c", "d")]
    counted = [progress["stateKeys"] for progress in told]
    assert counted == ([{}] * 3 if provider == "rocksdb" else [{"count": 0}, {"count": 2}, {"count": 3}])
    on_disk = sum(path.stat().st_size for path in (driver.folder / "state" / "count").rglob("*.changelog"))
    assert told[-1]["stateBytes"] == {"count": on_disk}
    assert driver.start(word_count()).send(lines("a")).progress.stored_bytes["count"] > on_disk


def test_the_time_of_the_driver_by_phase(driver):
    """Attempts that were rolled back are not in it."""
    tester = driver.start(totals())

    def passes(step, secs, then=None):
        tester.when(step, lambda: (tester.advance(secs), then and then()))

    def of_the_second_attempt():  # both prepare
        passes("before prepare total/0 for 1", 2.0)
        passes("before COMMITTING(1, 1)", 4.0)
        passes("before commit hooks total/0 for 1", 8.0)
        passes("before COMMITTED(1)", 16.0)

    passes("before ROLLED_BACK(1, 0)", 100.0)
    passes("before PREPARING(1, 1)", 1.0, of_the_second_attempt)
    told = tester.send(lines("a b"), JobFails()).progress
    assert told.duration_ms == {"run": 2000.0, "hooks": 8000.0, "log": 21000.0}
    assert told.rows_per_second == 1 / 31


def test_at_debug_each_committed_transaction_is_a_line(driver, caplog):
    with caplog.at_level(logging.DEBUG, "statefx"):
        tester = driver.start(word_count())
        tester.when("before COMMITTING(2, 0)", lambda: tester.advance(1.5))
        for line in ("a b", "a c"):
            tester.send(lines(line))
    told = [record.getMessage() for record in caplog.records if "transaction" in record.getMessage()]
    assert told == [
        "word-count: transaction 1, attempt 0: 1 rows, 2 keys, 0 ms (run 0, hooks 0, log 0)",
        "word-count: transaction 2, attempt 0: 1 rows, 2 keys, 1500 ms (run 0, hooks 0, log 1500)",
    ]


def test_what_a_task_measured_decides_nothing():
    """Two acks that differ in nothing else say the same."""
    one, other = (Ack(TransactionAttempt(1, 0), "count", 0, "t", metrics={"execute": ms}) for ms in (1.0, 2.0))
    assert one == other
    assert Ack.unpack(one.pack()).metrics == {"execute": 1.0}


def test_at_info_transactions_of_ten_seconds_are_one_line(caplog):
    """However quick they are: what is logged grows with time alone, and all rows are told."""
    caplog.set_level(logging.INFO, "statefx")
    now = [0.0]
    summary = Summary("t", lambda: now[0])
    for txid in range(1, 1001):
        now[0] += 0.125
        summary.add(progress_of(txid, rows=txid))
    summary.flush()
    summary.flush()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 + 12 + 1, "the first one at once, then each ten seconds; the rest at the end"
    assert lines[1].startswith("t: transactions 2 to 81 in 10.0 s: 3,320 rows, 332 rows/s; the last: transaction 81")
    spans = [re.search(r"transactions (\d+) to (\d+) .*?: ([\d,]+) rows", line).groups() for line in lines[1:]]
    assert [int(first) for first, _, _ in spans] == [2, *(int(last) + 1 for _, last, _ in spans[:-1])]
    assert 1 + sum(int(count.replace(",", "")) for _, _, count in spans) == sum(range(1, 1001))


def test_at_info_each_slow_transaction_is_a_line(caplog):
    caplog.set_level(logging.INFO, "statefx")
    now = [0.0]
    summary = Summary("t", lambda: now[0])
    for txid in range(1, 4):
        now[0] += SUMMARY_SECS
        summary.add(progress_of(txid, rows=1))
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        f"t: transaction {n}" for n in (1, 2, 3)
    ]
