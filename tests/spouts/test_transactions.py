"""Transactions of spouts: each row counts once, whatever fails; what is emitted again is what rule 9.4 says."""

from collections import defaultdict

import pytest

from statefx import TopologyBuilder
from statefx.coordinator import metadata
from statefx.coordinator.log import read_state
from statefx.errors import FailedException, FencedError, StateCorruptedError
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_is_replaced_at_any_moment_is_fenced_and_nothing_of_it_lands(kind, place, stride):
    config, rows = {"topology.max.spout.pending": 4}, 6 * TAKEN
    with TopologyTester(topology(kind(place, rows)), place / "rehearsal", config) as tester:
        started = len(tester.steps)
        tester.drain()
        moments = tester.steps[started + KINDS.index(kind) : -1 : stride]
    assert len(moments) > 6
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
    """Fails transaction 2 once, in the committer."""

    def prePrepare(self, txid):
        if txid == 2 and not self.context.attempt:
            raise FailedException("once")

    def open(self, context):
        self.context = context


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
    """Emits nothing of its second batch: there is one, and all its rows are left out."""

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
