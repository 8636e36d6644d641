"""A bolt that fails: what is said, what is rolled back, and that the next run goes on exactly."""

import pickle
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from statefx import BasicBolt, BatchBolt, FailedException, Stateful, StatefulBolt, TopologyBuilder, submit
from statefx.errors import AttemptsExhaustedError, BoltError
from tests.runtime.test_emitting import Does
from tests.spark.bolts import Keep, Once, Pass
from tests.spark.running import kept, kinds, reasons, run, state, wait_for

pytestmark = pytest.mark.slow

ROWS = [(number,) for number in range(10)]


class FaultyAtFirst(Stateful, BatchBolt):
    """Adds up; the hook in which it fails, while `switch` is a file, is named by its content."""

    outputFields = "total long"

    def __init__(self, switch):
        self.switch = switch

    def fault(self, hook):
        if Path(self.switch).exists() and Path(self.switch).read_text() == hook:
            raise ValueError(f"no good in {hook}")

    def open(self, context):
        self.fault("open")

    def initState(self, state):
        self.state = state
        self.fault("initState")

    def execute(self, tup, collector):
        self.add(tup.n)
        if tup.n == 7:
            self.fault("execute")

    def add(self, number):
        self.state.put("total", self.state.get("total", 0) + number)

    def finishBatch(self, collector):
        self.fault("finishBatch")

    def prePrepare(self, txid):
        self.fault("prePrepare")

    def preCommit(self, txid):
        self.fault("preCommit")

    def close(self):
        self.fault("close")


class Faulty(FaultyAtFirst):
    """As the first, with a hook that a rollback has to run, for which the object must be opened."""

    def preRollback(self):
        self.fault("preRollback")


class FaultyBatch(Faulty):
    def executeBatch(self, batch, collector):
        for number in batch.column(0).to_pylist():
            self.add(number)
        self.fault("executeBatch")


def topology_of(spark, bolt, rows=ROWS):
    builder = TopologyBuilder("faulty")
    builder.setStream("numbers", spark.createDataFrame(rows, "n long"))
    builder.setBolt("first", Pass("n long"), parallelism=2).shuffleGrouping("numbers")
    builder.setBolt("faulty", bolt).globalGrouping("first")
    return builder.createTopology()


KINDS = {"open": FaultyAtFirst, "initState": FaultyAtFirst, "executeBatch": FaultyBatch}
HOOKS = [*KINDS, "execute", "finishBatch", "prePrepare"]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_raises_ends_the_query_and_the_next_run_goes_on(spark, place, hook):
    switch = place / "switch"
    topology = topology_of(spark, KINDS.get(hook, Faulty)(str(switch)))
    run(topology, spark, place / "ck")
    switch.write_text(hook)
    query = submit(topology, spark, place / "ck")
    words = f"bolt 'faulty', task 0, hook {hook}, transaction 2: .*no good in {hook}"
    with pytest.raises(BoltError, match=words) as caught:
        query.awaitTermination(120)
    error = caught.value
    assert (error.component, error.task, error.hook, error.txid) == ("faulty", 0, hook, 2)
    assert query.exception() is error
    assert error.traceback.splitlines()[0] == "Traceback (most recent call last):"
    assert error.traceback.splitlines()[-1] == f"ValueError: no good in {hook}"
    assert f"{__file__}" in error.traceback
    assert "/statefx/" not in error.traceback
    assert query.status["message"] == error.message
    assert pickle.loads(pickle.dumps(error)).txid == 2
    assert state(place / "ck", "faulty") == {"total": 45}
    assert kinds(place / "ck")[-2:] == [("PREPARING", 2, 0), ("ROLLED_BACK", 2, 0)]
    switch.unlink()
    run(topology, spark, place / "ck")
    assert state(place / "ck", "faulty") == {"total": 90}
    assert kinds(place / "ck")[-3:] == [("PREPARING", 2, 1), ("COMMITTING", 2, 1), ("COMMITTED", 2, None)]


def test_pre_commit_is_repeated_until_it_succeeds_and_the_status_says_so(spark, place):
    switch = place / "switch"
    topology = topology_of(spark, Faulty(str(switch)))
    switch.write_text("preCommit")
    query = submit(topology, spark, place / "ck")
    stuck = wait_for(lambda: query.status.get("stuck"), "the commit to be stuck")
    assert (stuck["phase"], stuck["txid"]) == ("commit", 1)
    assert "no good in preCommit" in stuck["reason"]
    assert datetime.fromisoformat(stuck["since"]) <= datetime.now(UTC)
    query.stop(timeout=0.1)  # leaves it COMMITTING: it will be committed by whoever comes next
    assert kinds(place / "ck")[-1][0] == "COMMITTING"
    again = submit(topology, spark, place / "ck", batchId=1)  # comes back though the commit is still stuck
    wait_for(lambda: again.status.get("stuck"), "the commit to be stuck again")
    switch.unlink()
    again.awaitTermination(120)
    assert again.recoveries == [{"txid": 1, "rolled": "forward"}]
    assert "stuck" not in again.status
    assert state(place / "ck", "faulty") == {"total": 90}


def test_pre_rollback_is_repeated_and_gives_up_in_the_end(spark, place):
    class Both(Faulty):
        def fault(self, hook):
            if hook == "execute" and Path(self.switch).exists():
                raise ValueError("no good")
            super().fault(hook)

    switch = place / "switch"
    switch.write_text("preRollback")
    topology = topology_of(spark, Both(str(switch)))
    config = {"topology.transaction.attempts.max": 3}
    query = submit(topology, spark, place / "ck", config=config)
    with pytest.raises(BoltError, match="hook execute, transaction 1: ValueError: no good"):
        query.awaitTermination(120)
    assert kinds(place / "ck")[-1] == ("PREPARING", 1, 0)
    switch.unlink()
    again = run(topology, spark, place / "ck", config)
    assert again.recoveries == [{"txid": 1, "rolled": "back"}]
    assert state(place / "ck", "faulty") == {"total": 45}


def test_close_that_raises_changes_nothing(spark, place):
    switch = place / "switch"
    switch.write_text("close")
    topology = topology_of(spark, Faulty(str(switch)))
    for _ in range(2):
        run(topology, spark, place / "ck")
    assert state(place / "ck", "faulty") == {"total": 90}


class Unwilling(StatefulBolt):
    """Fails the transaction as long as `context.attempt` is below a number."""

    def __init__(self, times, by="raise"):
        self.times = times
        self.by = by

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("total", self.state.get("total", 0) + tup.n)
        if self.context.attempt < self.times:
            if self.by == "fail":
                collector.fail(tup)
            raise FailedException(f"not yet: {self.context.attempt}")


@pytest.mark.parametrize("by", ["raise", "fail"])
def test_failed_exception_fails_the_transaction_and_not_the_query(spark, place, by):
    query = run(topology_of(spark, Unwilling(2, by)), spark, place / "ck")
    assert query.lastProgress["attempt"] == 2
    assert state(place / "ck", "faulty") == {"total": 45}
    assert [("not yet" if by == "raise" else "collector.fail") in reason for reason in reasons(place / "ck")] == [
        True,
        True,
    ]


def test_failed_exception_for_ever_is_bounded(spark, place):
    topology = topology_of(spark, Unwilling(9))
    with pytest.raises(AttemptsExhaustedError, match=r"failed 2 times \(topology.transaction.attempts.max\).*not yet"):
        run(topology, spark, place / "ck", {"topology.transaction.attempts.max": 2})
    assert state(place / "ck", "faulty") == {}


THINGS = [
    (lambda state, tup, out: sys.exit(3), "execute", "SystemExit: 3"),
    (lambda state, tup, out: state.put("k", object()), "execute", r"CodecError: .*'k'.*object"),
    (
        lambda state, tup, out: out.emit((1, 2)),
        "collector.emit",
        r"SchemaError: bolt 'faulty' emitted 2 \(int\).*`word string`",
    ),
]
"""Of those in `tests/runtime/test_emitting.py`: what ends the worker, an error of ours in the bolt, and one of emit."""


@pytest.mark.parametrize(("thing", "hook", "words"), THINGS, ids=[words[:40] for _, _, words in THINGS])
def test_what_a_bolt_must_not_do(spark, place, thing, hook, words):
    builder = TopologyBuilder("does")
    builder.setStream("numbers", spark.createDataFrame([(1,)], "n long"))
    builder.setBolt("faulty", Does(thing)).globalGrouping("numbers")
    builder.setBolt("words", Keep()).shuffleGrouping("faulty")
    builder.setBolt("side", Keep(), parallelism=2).directGrouping("faulty", stream="side")
    where = hook if hook.startswith("collector.") else f"hook {hook}"
    with pytest.raises(BoltError, match=f"bolt 'faulty', task 0, {where}, transaction 1: .*{words}"):
        run(builder.createTopology(), spark, place / "ck")
    assert state(place / "ck", "faulty") == {}
    # Spark may give a task a worker whose connection it has closed with a test before: such an attempt is made again.
    *lost, told = reasons(place / "ck")
    assert re.search(words, told)
    assert all("ClosedChannelException" in reason for reason in lost)
    attempts = range(len(lost) + 1)
    assert kinds(place / "ck") == [(kind, 1, n) for n in attempts for kind in ("PREPARING", "ROLLED_BACK")]


class Twofold(BasicBolt):
    """Raises in one of its tasks, once."""

    outputFields = "n long"

    def __init__(self, once):
        self.once = once

    def execute(self, tup, collector):
        collector.emit((tup.n,))
        if tup.n == 3 and self.once:
            raise FailedException("one of two tasks")


def test_a_stateless_bolt_s_failure_takes_all_of_the_transaction_back(spark, place):
    builder = TopologyBuilder("twofold")
    builder.setStream("numbers", spark.createDataFrame(ROWS, "n long"))
    builder.setBolt("first", Twofold(Once(place)), parallelism=2).fieldsGrouping("numbers", "n")
    builder.setBolt("keep", Keep(), parallelism=2).fieldsGrouping("first", "n")
    run(builder.createTopology(), spark, place / "ck")
    assert sorted(row for task in kept(place / "ck", "keep", 2) for row in task) == ROWS
    (reason,) = reasons(place / "ck")
    assert reason.endswith(": one of two tasks")
