"""What fails is tried again: which transactions, how often, when, and as which attempts."""

import re
from collections import Counter
from pathlib import Path

import pytest

from statefx import BasicBolt, BatchBolt, FailedException, Stateful, TopologyBuilder
from statefx.errors import AttemptsExhaustedError
from statefx.operators.context import DRIVER
from statefx.testing import Crash, TopologyTester
from tests.spouts.numbers import ALL, PARTITIONS, TAKEN, Count, Emitted, Opaque, Planned, Whole, topology

BATCHES = 5
LONG = TAKEN * BATCHES


def drain(tester):
    with tester:
        tester.drain()
        return tester.state("count")


def rolled_back(tester):
    return [step.removeprefix("after ") for step in tester.steps if step.startswith("after ROLLED_BACK")]


class Pass(BasicBolt):
    """Runs before the committers; fails transactions as often as ``config["failures"]`` says."""

    outputFields = "number long"

    def open(self, context):
        self.failures = context.config["failures"]

    def execute(self, tup, collector):
        if self.failures[collector.attempt.txid] > 0:
            self.failures[collector.attempt.txid] -= 1
            raise FailedException("the price feed is stale.")
        collector.emit(tup)


def passing(spout):
    builder = TopologyBuilder("passing")
    builder.setSpout("numbers", spout, parallelism=2)
    builder.setBolt("pass", Pass()).globalGrouping("numbers")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("pass", "number")
    return builder.createTopology()


def starting(tmp_path, failures, **settings):
    config = {f"topology.{key.replace('__', '.')}": value for key, value in settings.items()}
    spout = Planned(tmp_path, each=LONG)
    return TopologyTester(passing(spout), tmp_path / "ck", {**config, "failures": Counter(failures)})


@pytest.mark.slow
@pytest.mark.parametrize(("delay_ms", "pauses"), [(250, [0.25, 0.5, 1.0]), (0, [0.0] * 3), (60_000, [60.0] * 3)])
def test_the_delay_is_doubled_with_each_further_failure_of_a_transaction(delay_ms, pauses, tmp_path):
    tester = starting(tmp_path, {2: 3}, transaction__retry__delay__ms=delay_ms)
    assert len(drain(tester)) == PARTITIONS * LONG
    assert tester.pauses == pauses


@pytest.mark.slow
def test_it_begins_anew_with_each_transaction(tmp_path):
    tester = starting(tmp_path, {2: 2, 4: 1})
    drain(tester)
    assert tester.pauses == [0.1, 0.2, 0.1]


@pytest.mark.slow
@pytest.mark.parametrize("pending", [1, 4])
def test_giving_up_says_which_transaction_where_why_and_what_to_do(pending, tmp_path):
    settings = {"transaction__attempts__max": 3, "max__spout__pending": pending}
    tester = starting(tmp_path, {2: 3}, **settings)
    says = (
        "transaction 2 failed 3 times (topology.transaction.attempts.max); last: pass[0]: the price feed is stale. It "
        "is rolled back. Mend what failed, or raise that setting, and start again: it is the first that is tried"
    )
    with pytest.raises(AttemptsExhaustedError, match=re.escape(says)) as caught:
        tester.drain()
    assert (caught.value.txid, caught.value.attempts, caught.value.component) == (2, 3, "pass")
    mended = tester.restart(config={"failures": Counter()})
    assert len(drain(mended)) == PARTITIONS * LONG
    assert "after PREPARING(2, 3)" in mended.steps, "attempts go on counting; tries begin anew"


@pytest.mark.slow
def test_only_the_transaction_that_failed_uses_up_a_try(tmp_path):
    """Each of 1 to 4 fails as often as it may; 4 is rolled back with each of them, far more often than it may fail."""
    failures = dict.fromkeys((1, 2, 3, 4), 2)
    tester = starting(tmp_path, failures, transaction__attempts__max=3, max__spout__pending=4)
    assert len(drain(tester)) == PARTITIONS * LONG
    times = Counter(record.split("(")[1].split(",")[0] for record in rolled_back(tester))
    assert times["1"] == 2
    assert times["4"] > 3


# ---- FailedException, wherever it is raised


class Once:
    """Raises FailedException in one hook, once; where that has happened a file says."""

    def __init__(self, folder, hook):
        self.marks, self.hook = str(folder), hook

    def strike(self, hook, txid, driver):
        mark = Path(self.marks, "struck")
        if hook == self.hook and not driver and txid != 1 and not mark.exists():
            mark.write_text(str(txid))
            raise FailedException("not now")


def striking(base, *hooks):
    """Return `base` with hooks that may raise before they do what they do."""

    def wrapped(name):
        inner = getattr(base, name)

        def hook(self, *arguments):
            context = arguments[0] if name == "open" else self.where
            self.where = context
            self.once.strike(name, context.txid, context.task == DRIVER)
            return inner(self, *arguments)

        return hook

    return type(base.__name__, (base,), {name: wrapped(name) for name in hooks})


class Tally(Stateful, BatchBolt):
    def open(self, context):
        pass

    def initState(self, state):
        self.counts = state
        self.seen = []

    def execute(self, tup, collector):
        self.seen.append(tup.number)

    def finishBatch(self, collector):
        for number in self.seen:
            self.counts[number] = self.counts.get(number, 0) + 1


BOLT_HOOKS = ["open", "initState", "execute", "finishBatch", "prePrepare"]


@pytest.mark.parametrize("pending", [1, 4])
@pytest.mark.parametrize("hook", BOLT_HOOKS)
def test_in_any_hook_of_a_bolt_it_fails_that_batch_and_not_the_query(hook, pending, tmp_path):
    bolt = striking(Tally, *BOLT_HOOKS)()
    bolt.once = Once(tmp_path, hook)
    tester = TopologyTester(topology(Planned(tmp_path), bolt), tmp_path / "ck", {"topology.max.spout.pending": pending})
    assert drain(tester) == ALL
    assert Path(tmp_path, "struck").read_text() == "2"
    assert rolled_back(tester)[-1] == "ROLLED_BACK(2, 0)"
    assert "ROLLED_BACK(1, 0)" not in rolled_back(tester)


IN_TASKS = [
    *[(kind, hook) for kind in (Whole, Planned, Emitted, Opaque) for hook in ("open", "cleanupBefore")],
    (Whole, "emitBatch"),
    (Planned, "emitPartitionBatch"),
    (Emitted, "emitPartitionBatchNew"),
    (Opaque, "emitPartitionBatch"),
]


@pytest.mark.parametrize(("kind", "hook"), IN_TASKS)
def test_in_any_method_that_a_task_calls_of_a_spout_it_fails_that_batch(kind, hook, tmp_path):
    spout = striking(kind, *dict.fromkeys(("open", hook)))(tmp_path)
    spout.once = Once(tmp_path, hook)
    tester = TopologyTester(topology(spout), tmp_path / "ck")
    tester.emit()
    assert drain(tester) == ALL
    assert Path(tmp_path, "struck").read_text() == "2"
    assert rolled_back(tester) == ["ROLLED_BACK(2, 0)"]


ON_THE_DRIVER = [
    *[(kind, "isReady") for kind in (Whole, Planned, Emitted, Opaque)],
    (Whole, "initializeTransaction"),
    (Planned, "numPartitions"),
    (Planned, "planPartitionBatch"),
]


class OnDriver(Once):
    """Raises three times; there is no transaction that it could fail, so none is rolled back."""

    times = 3

    def strike(self, hook, txid, driver):
        if hook == self.hook and driver and OnDriver.times:
            OnDriver.times -= 1
            raise FailedException("not now")


@pytest.mark.parametrize(("kind", "hook"), ON_THE_DRIVER)
def test_on_the_driver_a_spout_is_asked_again_later_and_that_is_no_end(kind, hook, tmp_path, caplog):
    OnDriver.times = 3
    spout = striking(kind, "open", hook)(tmp_path)
    spout.once = OnDriver(tmp_path, hook)
    tester = TopologyTester(topology(spout), tmp_path / "ck", {"topology.transaction.retry.delay.ms": 500})
    assert drain(tester) == ALL
    assert OnDriver.times == 0
    assert rolled_back(tester) == []
    assert sum(tester.pauses) >= 0.5 + 1 + 2, "later each time"
    assert f"asked again in 0.5 s: spout 'numbers', {hook}: not now" in caplog.text
    assert [f"asked again in {secs} s" in caplog.text for secs in (0.5, 1, 2)] == [True] * 3


@pytest.mark.parametrize("kind", [Emitted, Opaque])
def test_a_spout_that_can_not_count_its_partitions_when_a_batch_begins_fails_that_batch(kind, tmp_path):
    """Who does not plan is asked for its partitions when the transaction has begun."""
    spout = striking(kind, "open", "numPartitions")(tmp_path)
    spout.once = OnDriver(tmp_path, "numPartitions")
    OnDriver.times = 1
    tester = TopologyTester(topology(spout), tmp_path / "ck")
    assert drain(tester) == ALL
    assert rolled_back(tester) == ["ROLLED_BACK(1, 0)"]


# ---- attempts


class Tells(Stateful, BatchBolt):
    """Writes down which attempt it is told of, by its collector and by its context; its count is of one attempt."""

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        attempt = collector.attempt
        assert (attempt.txid, attempt.attempt) == (self.context.txid, self.context.attempt)
        self.context.config["told"].append(attempt)
        self.counts[tup.number] = self.counts.get(tup.number, 0) + 1

    def finishBatch(self, collector):
        left = self.context.config["left"]
        if collector.attempt.txid == 2 and left:
            raise left.pop()


@pytest.mark.slow
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("kind", [Planned, Opaque])
def test_attempts_count_on_over_failures_and_drivers_and_spouts_and_bolts_are_told_the_same(kind, pending, tmp_path):
    told, spout = [], kind(tmp_path)
    config = {"topology.max.spout.pending": pending, "told": told, "left": [FailedException("once")]}
    for moment in ("after PREPARING(2, 1)", "before COMMITTING(2, 2)"):
        tester = TopologyTester(topology(spout, Tells()), tmp_path / "ck", config)
        tester.when(moment, crash)
        with pytest.raises(Crash):
            tester.drain()
    tester = TopologyTester(topology(spout, Tells()), tmp_path / "ck", config)
    assert drain(tester) == ALL
    assert "after COMMITTING(2, 3)" in tester.steps
    bolts = {(attempt.txid, attempt.attempt) for attempt in told}
    spouts = {(txid, attempt) for txid, attempt, *_ in spout.notes()}
    assert bolts <= spouts
    assert {(2, 0), (2, 2), (2, 3)} <= bolts, "attempt 1 had begun, and its driver died before its tasks did"
    assert max(attempt for txid, attempt in spouts if txid == 2) == 3
    assert max(attempt for txid, attempt in spouts if txid == 1) == 0


def crash():
    raise Crash("the driver dies")


class Sizes(BatchBolt):
    """Counts the batch in an attribute, as Storm's batch bolts do."""

    outputFields = "number long"

    def __init__(self):
        self.rows = []

    def execute(self, tup, collector):
        self.rows.append(tup.number)

    def finishBatch(self, collector):
        for number in self.rows:
            collector.emit((number,))
        if collector.attempt.txid == 2 and collector.attempt.attempt < 2:
            raise FailedException("when all of it was gathered and emitted")


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("kind", [Planned, Opaque])
def test_nothing_of_one_attempt_shows_in_another(kind, fresh, tmp_path):
    builder = TopologyBuilder("sizes")
    builder.setSpout("numbers", kind(tmp_path), parallelism=2)
    builder.setBolt("sizes", Sizes(), parallelism=2).fieldsGrouping("numbers", "number")
    builder.setBolt("count", Count()).globalGrouping("sizes")
    tester = TopologyTester(builder.createTopology(), tmp_path / "ck", freshObjects=fresh)
    assert drain(tester) == ALL
    assert rolled_back(tester) == ["ROLLED_BACK(2, 0)", "ROLLED_BACK(2, 1)"]
