"""Transactions of spouts: each row counts once, whatever fails; what is emitted again is what rule 9.4 says."""

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from statefx import BasicBolt, BatchBolt, Stateful, TopologyBuilder
from statefx.errors import AttemptsExhaustedError, FailedException, FencedError, StateCorruptedError
from statefx.log import beside as metadata
from statefx.log.log import read_state
from statefx.operators.context import DRIVER
from statefx.storage import FolderStorage
from statefx.testing import Crash, Limits, TopologyTester
from statefx.testing.crashes import crashes
from tests.spouts.numbers import ALL, EACH, PARTITIONS, TAKEN, Count, Emitted, Opaque, Planned, Whole, topology

KINDS = [Whole, Planned, Emitted, Opaque]
BATCHES = -(-EACH // TAKEN)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_read_once_and_the_next_start_goes_on(kind, tmp_path):
    spout = kind(tmp_path)
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        sent = tester.emit()
        assert sent.progress.input_rows == PARTITIONS * TAKEN
    with tester.restart() as other:
        assert other.drain() >= BATCHES - 1
        assert other.state("count") == ALL
        assert other.emit() is None or kind in (Emitted, Opaque), "who plans knows that there is nothing left"
        assert other.state("count") == ALL


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "pending"), [(Whole, 1), (Planned, 4), (Emitted, 1), (Opaque, 4)])
def test_a_crash_at_any_moment_loses_and_doubles_nothing(kind, pending, place):
    spout, points = kind(place), 0

    def start(steps=None):
        config = {"topology.max.spout.pending": pending}
        return TopologyTester(topology(spout), place / "ck", config, steps=steps)

    def life(steps=None):
        with start(steps) as tester:
            tester.drain()
            return tester

    for point in crashes(place, life):
        points += 1
        with start() as recovered:
            assert set(recovered.state("count").values()) <= {1}
        if point.is_new(recovered.txid):
            assert life().state("count") == ALL
            check_replays(kind, spout)
    assert points > 20


def check_replays(kind, spout):
    """Whatever is durable of a batch is emitted again, and nothing else."""
    batches = defaultdict(dict)
    for txid, attempt, partition, batch, *new in spout.notes():
        batches[txid, partition].setdefault(attempt, []).append((batch, bool(new)))
    for runs in batches.values():
        if kind in (Whole, Planned):
            assert len({str(batch) for each in runs.values() for batch, _ in each}) == 1


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_is_replaced_at_any_moment_is_fenced_and_nothing_of_it_lands(kind, place, stride):
    config, rows = {"topology.max.spout.pending": 4}, 4 * TAKEN
    with TopologyTester(topology(kind(place, rows)), place / "rehearsal", config) as tester:
        started = len(tester.steps)
        tester.drain()
        moments = tester.steps[started + KINDS.index(kind) : -1 : stride]
    assert len(moments) > 2
    for number, moment in enumerate(moments):
        first = TopologyTester(topology(kind(place, rows)), place / str(number), config)
        second = []

        def take_over(first=first, second=second):
            second.append(first.restart())
            second[0].drain()

        first.when(moment, take_over)
        with pytest.raises(FencedError):
            first.drain()
        with second[0] as tester:
            expected = {partition * 1000 + row: 1 for partition in range(PARTITIONS) for row in range(rows)}
            assert tester.state("count") == expected, moment


@pytest.mark.slow
def test_once_is_one_transaction_also_where_a_driver_has_died_with_several(place):
    config = {"topology.max.spout.pending": 4}
    with TopologyTester(topology(Planned(place, 40)), place / "ck", config, crash_at=moment_of_four(place)) as tester:
        with pytest.raises(Crash):
            tester.drain()
        assert len(read_state(FolderStorage(place / "ck")).in_flight) == 4
    with TopologyTester(topology(Planned(place, 40)), place / "ck", config) as tester:
        tester.emit()
        assert tester.txid == 1
        tester.drain()
        assert set(tester.state("count").values()) == {1}


def moment_of_four(place):
    with TopologyTester(topology(Planned(place, 40)), place / "rehearsal", {"topology.max.spout.pending": 4}) as tester:
        tester.drain()
        return tester.steps.index("after PREPARING(4, 0)") + 1


class FailsOnce(Count):
    def prePrepare(self, txid):
        if txid == 2 and not self.context.attempt:
            raise FailedException("once")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_that_failed_in_a_committer_is_emitted_again(kind, tmp_path):
    spout = kind(tmp_path)
    with TopologyTester(topology(spout, FailsOnce()), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == ALL
        assert len(tester.pauses) == 1, "it waits before it tries again"
    second = [note for note in spout.notes() if note[0] == 2]
    assert {attempt for _, attempt, *_ in second} == {0, 1}
    first, again = ({str(note[3]) for note in second if note[1] == attempt} for attempt in (0, 1))
    if kind is Opaque:
        assert first != again, "it read other rows, and the state is exact all the same"
    else:
        assert first == again
    if kind is Emitted:
        assert {tuple(note[4:]) for note in second if note[1] == 1} == {()}, "its metadata was durable"


@pytest.mark.slow
def test_a_driver_that_was_replaced_is_fenced_also_where_the_metadata_that_it_asks_for_is_gone(place, monkeypatch):
    """Its successor has folded the log, and deleted the files of metadata that no record names any more."""
    monkeypatch.setattr(metadata, "INLINE_MAX_BYTES", 1)
    first = TopologyTester(topology(Opaque(place, 40)), place / "ck")

    def take_over():
        with TopologyTester(topology(Opaque(place, 40)), place / "ck", limits=Limits(fold_after=1)) as other:
            other.drain()

    first.when("after PREPARING(2, 0)", take_over)
    with pytest.raises(FencedError):
        first.drain()


def test_metadata_that_is_lost_is_named(place, monkeypatch):
    monkeypatch.setattr(metadata, "INLINE_MAX_BYTES", 1)
    with TopologyTester(topology(Opaque(place)), place / "ck") as tester:
        tester.emit()
        for file in (place / "ck" / "metadata").iterdir():
            file.unlink()
        with pytest.raises(StateCorruptedError, match=r"metadata of a spout in .*/metadata/.* is gone.*Restore"):
            tester.emit()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_spout_may_change_the_metadata_that_it_is_given(kind, tmp_path):
    """What the first transaction reads stays as it was when the second is planned, also if the first is tried again."""

    class InPlace(kind):
        def upcoming(self, last):
            if last is None:
                return super().upcoming(last)
            last.update(super().upcoming(last))
            return last

    class Refuses(Count):
        def execute(self, tup, collector):
            super().execute(tup, collector)
            mark = tmp_path / "refused"
            if not mark.exists():
                mark.touch()
                raise FailedException("once")

    spout = InPlace(tmp_path)
    with TopologyTester(topology(spout, Refuses()), tmp_path / "ck", {"topology.max.spout.pending": 3}) as tester:
        tester.drain()
        assert tester.state("count") == ALL
    check_replays(kind, spout)


class Filters:
    def emit(self, collector, partition, metadata):
        if metadata["start"] != TAKEN:
            super().emit(collector, partition, metadata)


LEFT = {number: 1 for number in ALL if not TAKEN <= number % 1000 < 2 * TAKEN}


@pytest.mark.slow
@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("kind", [Whole, Planned])
def test_a_planned_batch_without_rows_is_no_end_beside_a_spout_that_has_nothing(kind, pending, tmp_path):
    builder = TopologyBuilder("numbers")
    builder.setSpout("numbers", type("Filtered", (Filters, kind), {})(tmp_path), parallelism=2)
    builder.setSpout("idle", Opaque(tmp_path, each=0))
    counting = builder.setBolt("count", Count(), parallelism=2)
    counting.fieldsGrouping("numbers", "number").fieldsGrouping("idle", "number")
    config = {"topology.max.spout.pending": pending}
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config) as tester:
        tester.drain()
        assert tester.state("count") == LEFT


@pytest.mark.slow
@pytest.mark.parametrize("pending", [1, 3])
def test_a_saved_batch_without_rows_is_no_end_when_it_is_emitted_again(pending, tmp_path):
    """The task of the attempt that emits again says nothing of what it emits: it was told."""
    filtered = type("Filtered", (Filters, Emitted), {})(tmp_path)
    config = {"topology.max.spout.pending": pending}
    with TopologyTester(topology(filtered, FailsOnce()), tmp_path / "ck", config) as tester:
        tester.drain()
        assert len(tester.pauses) == 1, "transaction 2 was emitted again"
        assert tester.state("count") == LEFT


def test_a_batch_is_planned_once_also_if_another_spout_is_away_meanwhile(tmp_path):
    """Who takes a batch out of a queue, when asked what there is, would lose it."""
    asked = []

    class Noting(Whole):
        def initializeTransaction(self, txid, previous):
            asked.append(txid)
            return super().initializeTransaction(txid, previous)

    class Away(Planned):
        def planPartitionBatch(self, partition, lastMetadata):
            if not (tmp_path / "back").exists():
                (tmp_path / "back").touch()
                raise FailedException("away for a moment")
            return super().planPartitionBatch(partition, lastMetadata)

    builder = TopologyBuilder("numbers")
    builder.setSpout("one", Noting(tmp_path))
    builder.setSpout("two", Away(tmp_path, first=10_000))
    counting = builder.setBolt("count", Count(), parallelism=2)
    counting.fieldsGrouping("one", "number").fieldsGrouping("two", "number")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        tester.emit()
        assert asked == [1]
        tester.drain()
        assert tester.state("count") == ALL | {10_000 + number: 1 for number in ALL}


def test_spouts_are_asked_in_the_order_of_set_spout_as_long_as_all_are_ready(tmp_path):
    calls, ready = [], []

    def noting(name):
        class Noting(Planned):
            def isReady(self):
                calls.append(f"{name} isReady")
                return name in ready

            def numPartitions(self):
                calls.append(f"{name} numPartitions")
                return super().numPartitions()

            def planPartitionBatch(self, partition, lastMetadata):
                calls.append(f"{name} {partition}")
                return super().planPartitionBatch(partition, lastMetadata)

        return Noting(tmp_path)

    builder = TopologyBuilder("numbers")
    for name in ("b", "a", "c"):
        builder.setSpout(name, noting(name))
    counting = builder.setBolt("count", Count(), parallelism=2)
    counting.fieldsGrouping("c", "number").fieldsGrouping("a", "number").fieldsGrouping("b", "number")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        ready.append("b")
        assert tester.emit() is None
        assert calls == ["b isReady", "a isReady"]
        calls.clear()
        ready.extend("ac")
        tester.emit()
    parts = [f"{name} {what}" for name in "bac" for what in ("numPartitions", *range(PARTITIONS))]
    assert calls == ["b isReady", "a isReady", "c isReady", *parts]


# ---- What fails is tried again: which transactions, how often, when, and as which attempts.


FAILING_BATCHES = 5
LONG = TAKEN * FAILING_BATCHES


def drain(tester):
    with tester:
        tester.drain()
        return tester.state("count")


def rolled_back(tester):
    return [step.removeprefix("after ") for step in tester.steps if step.startswith("after ROLLED_BACK")]


class Pass(BasicBolt):
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
        "was rolled back. Fix the cause or raise the setting, then start again: the start retries it first"
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert f"retrying in 0.5 s: spout 'numbers', {hook}: not now" in caplog.text
    assert [f"retrying in {secs} s" in caplog.text for secs in (0.5, 1, 2)] == [True] * 3


@pytest.mark.slow
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


@pytest.mark.slow
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
