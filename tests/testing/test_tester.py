"""TopologyTester itself: what its users see of it."""

import gc
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from statefx import BasicBolt, Checkpoint, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import AmbiguousKeyError, BoltError, ConfigError, TransactionError
from statefx.testing import Crash, Sent, TopologyTester, rows
from statefx.testing.faults import HooksFail, JobFails
from statefx.testing.steps import DurableSteps
from tests.testing.topologies import Count, Driver, Split, hooks, lines, totals, witnessed, word_count, words


def test_a_transaction_is_sent_and_looked_at(place, provider):
    with TopologyTester(word_count(), place / "checkpoint", {"topology.state.provider": provider}) as tester:
        sent = tester.send({"lines": [("to be or not to be",)]})
        assert isinstance(sent, Sent)
        assert (sent.txid, tester.txid, tester.generation) == (1, 1, 1)
        assert sorted(sent.emitted("count")) == [
            ("be", 1), ("be", 2), ("not", 1), ("or", 1), ("to", 1), ("to", 2)
        ]  # fmt: skip
        assert sent.progress.rows == {"split": 1, "count": 6}
        assert sent.progress.keys == {"count": 4}
        assert tester.state("count") == {"to": 2, "be": 2, "or": 1, "not": 1}
        tester.send(lines("be"))
        assert len(tester.emitted("count")) == 7
        assert tester.emitted("count")[-1] == ("be", 3)
    with Checkpoint(place / "checkpoint").state("count") as counts:
        assert (counts.txid, counts["be"]) == (2, 3)


@pytest.mark.slow
def test_a_crash_ends_the_tester_and_a_restart_goes_on(driver):
    work = [lines("a"), lines("b")]
    tester = driver.start(crash_at=12)
    with pytest.raises(Crash) as crash:
        tester.run(work)
    assert tester.crashed == str(crash.value) == tester.steps[-1]
    with pytest.raises(TransactionError, match="this driver has ended"):
        tester.send(lines("c"))
    restarted = tester.restart()
    assert (restarted.generation, restarted.crashed) == (2, None)
    restarted.run(work)
    assert restarted.state("count") == words(work)
    restarted.close()


def test_a_crash_in_the_constructor_is_one_as_well(place):
    with pytest.raises(Crash):
        TopologyTester(word_count(), place / "checkpoint", crash_at=3)
    with TopologyTester(word_count(), place / "checkpoint") as tester:
        assert tester.generation == 1


@pytest.mark.slow
def test_steps_are_what_crash_at_counts(place):
    with Driver(place) as driver:
        tester = driver.start(totals())
        tester.send(lines("a"))
        steps = tester.steps
        assert steps[:8] == [
            "before create format", "after create format",
            "before LINEAGE", "after LINEAGE", "before GENERATION(1)", "after GENERATION(1)",
            "before fence 1", "after fence 1",
        ]  # fmt: skip
        assert steps[-4:] == [
            "before commit hooks total/0 for 1", "after commit hooks total/0 for 1",
            "before COMMITTED(1)", "after COMMITTED(1)",
        ]  # fmt: skip
    for n in (1, 4, len(steps)):
        with Driver(place, name=str(n)) as driver, pytest.raises(Crash, match=f"^{re.escape(steps[n - 1])}$"):
            driver.start(totals(), crash_at=n).send(lines("a"))


def test_faults_strike_once(driver):
    tester = driver.start()
    assert tester.send(lines("a"), JobFails(), JobFails()).progress.attempt == 2
    assert tester.send(lines("a")).progress.attempt == 0
    tester.inject(HooksFail("rollback"))
    assert tester.send(lines("a")).progress.attempt == 0, "nothing was rolled back, so nothing was struck"


def test_chains_of_a_run_that_is_lost_go_on_when_they_are_woken(driver):
    tester = driver.start()
    for n in (1, 2):
        tester.send(lines("a b c"), JobFails())
        before = len(tester.steps)
        tester.wake()
        assert not [step for step in tester.steps[before:] if "COMMITT" in step]
        assert tester.state("count") == {"a": n, "b": n, "c": n}


def test_time_passes_when_it_is_told_to(driver):
    tester = driver.start(totals())
    tester.when("before COMMITTING(1, 0)", lambda: tester.advance(2.5))
    sent = tester.send(lines("a"))
    assert sent.progress.duration_ms == {"run": 0.0, "hooks": 0.0, "log": 2500.0}
    assert tester.pauses == []
    tester.send(lines("a"), JobFails())
    assert tester.pauses == [0.1]


@pytest.mark.slow
def test_the_same_seed_is_the_same_run(place):

    def run(name: str, seed: int) -> list[object]:
        with Driver(place, name=name) as driver:
            tester = driver.start(seed=seed)
            return [tester.send(lines("a b c d", "b c e", "f")).emitted("count") for _ in range(3)]

    assert run("one", 1) == run("again", 1)
    assert len({str(run(f"seed-{seed}", seed)) for seed in range(5)}) > 1, "outputs arrive in several orders"


def test_a_task_of_another_run_has_a_bolt_of_its_own(driver):
    tester = driver.start(witnessed(), freshObjects=False)
    for faults in ((), (), (JobFails(),), ()):
        tester.send(lines("a"), *faults)
    in_hooks = 5
    assert hooks(driver.journal).count("open") == 2 + in_hooks
    assert tester.state("witness") == {"seen": 4}


def test_batch_streams_are_numbered_by_the_caller(place):
    builder = TopologyBuilder("batches")
    builder.setStream("lines", rows("value string", streaming=False))
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    builder.setBolt("count", Count()).fieldsGrouping("split", "word")
    topology = builder.createTopology()
    with Driver(place) as driver:
        tester = driver.start(topology)
        assert tester.apply(3, lines("a")) is not None
        assert tester.apply(3, lines("a")) is None
        assert tester.apply(2, lines("a")) is None
        tester = driver.start(topology)
        assert tester.apply(3, lines("a")) is None
        assert tester.apply(4, lines("b"), JobFails()) is not None
        tester.send(lines("b"))
        assert tester.state("count") == {"a": 1, "b": 2}
    with Driver(place, name="stream") as driver, pytest.raises(ConfigError, match="apply is for batch streams"):
        driver.start().apply(1, lines("a"))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("a", "a row of stream 'lines' is a tuple \\(value\\), not 'a'"),
        (("a", "b"), "not \\('a', 'b'\\)"),
        ((1,), "do not fit its schema"),
    ],
)
def test_rows_that_are_not_the_streams_are_refused(driver, row, says):
    with pytest.raises(ConfigError, match=says):
        driver.start().send({"lines": [row]})


def test_a_key_that_several_tasks_hold_is_ambiguous(driver):
    tester = driver.start(witnessed(2, "allGrouping"))
    tester.send(lines("a"))
    with pytest.raises(AmbiguousKeyError, match="'seen'"):
        tester.state("witness")
    assert tester.state("witness", task=1) == {"seen": 1}


class Divides(BasicBolt):
    outputFields = "n double"

    def execute(self, tup, collector):
        collector.emit((1 / tup.n,))


def test_a_bolts_error_keeps_its_cause(driver):
    builder = TopologyBuilder("divides")
    builder.setStream("numbers", rows("n long"))
    builder.setBolt("divides", Divides()).shuffleGrouping("numbers")
    with pytest.raises(BoltError, match="ZeroDivisionError") as caught:
        driver.start(builder.createTopology()).send({"numbers": [(1,), (0,)]})
    assert "in execute\n    collector.emit((1 / tup.n,))" in str(caught.value.__cause__)


@pytest.mark.soak
@pytest.mark.slow
def test_caches_are_deleted_with_the_tester(place):
    tester = TopologyTester(word_count(), place / "checkpoint")
    cache = tester._cache
    restarted = tester.restart()
    del tester
    gc.collect()
    assert os.path.isdir(cache), "the one that was restarted still uses them"
    restarted.close()
    del restarted
    gc.collect()
    assert not os.path.exists(cache)


@pytest.mark.soak
@pytest.mark.slow
def test_without_a_folder_the_checkpoint_is_in_one_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with TopologyTester(word_count()) as tester, TopologyTester(word_count()) as other:
        tester.send(lines("to be"))
        other.send(lines("not"))
        assert (tester.state("count"), other.state("count")) == ({"to": 1, "be": 1}, {"not": 1})
        place = tester._folders.location
        restarted = tester.restart()
    del tester
    gc.collect()
    restarted.send(lines("be"))
    again = restarted.restart()
    restarted.close()
    del restarted
    gc.collect()
    assert again.state("count") == {"to": 1, "be": 2}
    assert (again.txid, again.generation) == (2, 3)
    again.close()
    del again
    gc.collect()
    assert not os.path.exists(place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_tasks_of_spouts_live(place):
    """What is committed is the same, whatever order the seed makes."""
    texts = [[("to be",), ("or not",), ("to be",)], [("or",)]]
    builder = TopologyBuilder("living")
    builder.setSpout("lines", MemoryTransactionalSpout(texts, "value string", takePerBatch=1), parallelism=2)
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
    topology = builder.createTopology()
    outcomes = []
    for seed in (0, 7):
        with TopologyTester(topology, place / str(seed), seed=seed) as tester:
            first = tester.emit()
            assert first is not None
            assert sorted(first.emitted("split")) == [("be",), ("or",), ("to",)]
            tester.drain()
            again = tester.restart()
            assert again.drain() == 0
            again.close()
            outcomes.append((tester.txid, tester.state("count"), sorted(tester.emitted("count"))))
    assert outcomes[0][:2] == (3, {"to": 2, "be": 2, "or": 2, "not": 1})
    assert outcomes[0] == outcomes[1]


@pytest.mark.slow
def test_another_thread_is_refused_and_nothing_is_spoilt_by_it(place):
    with TopologyTester(word_count(), place) as tester, ThreadPoolExecutor(1, "other") as other:
        tester.send(lines("a"))
        for call in (partial(tester.send, lines("b")), tester.close):
            with pytest.raises(TransactionError, match=r"thread 'other_0' called .* that thread 'MainThread' made"):
                other.submit(call).result()
        tester.send(lines("c"))
        assert tester.state("count") == {"a": 1, "c": 1}


class Interrupted(BasicBolt):
    outputFields = "value string"

    def execute(self, tup, collector):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("moment", ["in its bolt", "after prepare count/0 for 1", "before PREPARING(1, 0)"])
def test_ctrl_c_ends_what_is_done_wherever_it_comes(place, moment):
    topology, steps = word_count(), DurableSteps()
    steps.when(moment, partial(os.kill, os.getpid(), signal.SIGINT))
    if moment == "in its bolt":
        builder = TopologyBuilder("interrupted")
        builder.setStream("lines", rows("value string"))
        builder.setBolt("bolt", Interrupted()).shuffleGrouping("lines")
        topology = builder.createTopology()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with TopologyTester(topology, place, steps=steps) as tester:
            with pytest.raises(KeyboardInterrupt):
                tester.send(lines("a"))
            with pytest.raises(TransactionError, match="this driver has ended"):
                tester.send(lines("b"))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


class TimeIsOver(BaseException):
    """As the handler of a signal raises it: pytest-timeout's."""


def test_what_a_signal_raises_in_a_task_ends_what_is_done(place):
    def handler():
        raise TimeIsOver

    steps = DurableSteps()
    steps.when("after prepare count/0 for 1", handler)
    with TopologyTester(word_count(), place, steps=steps) as tester, pytest.raises(TimeIsOver):
        tester.send(lines("a"))


@pytest.mark.slow
def test_neither_spark_nor_a_test_library_is_imported(place):
    script = f"""
import sys
sys.modules.update(dict.fromkeys(("pyspark", "py4j", "pytest", "hypothesis")))
from statefx import StatefulBolt, TopologyBuilder
from statefx.testing import TopologyTester, rows

class Count(StatefulBolt):
    def initState(self, state):
        self.state = state
    def execute(self, tup, collector):
        self.state.put(tup.value, self.state.get(tup.value, 0) + 1)

builder = TopologyBuilder("count")
builder.setStream("lines", rows("value string"))
builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("lines", "value")
with TopologyTester(builder.createTopology(), {str(place)!r} + "/checkpoint") as tester:
    tester.send({{"lines": [("a",), ("b",), ("a",)]}})
    print(tester.state("count"))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.strip() == "{'a': 2, 'b': 1}", run.stderr


@pytest.mark.slow
def test_a_job_that_holds_all_tasks_may_fail(place):
    builder = TopologyBuilder("living")
    builder.setSpout("lines", MemoryTransactionalSpout([[("to be",), ("or",)]], "value string", takePerBatch=1))
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
    with TopologyTester(builder.createTopology(), place / "checkpoint") as tester:
        sent = tester.emit(JobFails(reason="the executor is gone"), JobFails())
        assert sent is not None
        assert sent.progress.attempt == 2
        assert tester.state("count") == {"to": 1, "be": 1}
        assert tester.drain() == 1
        assert tester.pauses == [0.1, 0.2]
