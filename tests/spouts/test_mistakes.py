"""What is wrong with a spout is said before it does harm, and names the remedy."""

import threading
import time
from asyncio import CancelledError

import pyarrow as pa
import pytest

from statefx import Committer, PartitionedTransactionalSpout, TopologyBuilder
from statefx.coordinator.driver_spout import DriverSpout
from statefx.coordinator.retrying import StoppedError
from statefx.coordinator.spouts import SpoutTrigger
from statefx.errors import BoltError, CheckpointMismatchError, ConfigError, FailedException, TopologyError
from statefx.protocol.identity import TaskId
from statefx.protocol.metadata import INLINE_MAX_BYTES
from statefx.protocol.order import EmissionOrder, Order
from statefx.runtime.outlets import Outbox
from statefx.runtime.spout_task import SpoutTask
from statefx.runtime.worker import Worker
from statefx.testing import Crash, TopologyTester, rows
from tests.runtime.one_chain import FIRST, deployment
from tests.runtime.test_bytes import collected
from tests.spouts.numbers import ALL, TAKEN, Count, Emitted, Opaque, Planned, Whole, topology
from tests.spouts.test_transactions import FailsOnce


class Half(PartitionedTransactionalSpout):
    outputFields = "number long"

    def numPartitions(self):
        return 1

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        pass


@pytest.mark.parametrize(
    ("spout", "words"),
    [
        (Planned, ["class Planned", "Planned(...)"]),
        (Count(), ["a bolt: setBolt('numbers', Count(...))"]),
        (object(), ["of type object", "derive"]),
        (Half(), ["planPartitionBatch", "emitPartitionBatchNew", "none"]),
        (type("Both", (Emitted, Planned), {})("."), ["defines both"]),
        (type("Ordered", (Whole, Committer), {})("."), ["Ordered is marked Committer", "let a bolt do"]),
        (type("Mute", (Whole,), {"outputFields": None})("."), ["Mute", "outputFields ="]),
        (type("Odd", (Whole,), {"outputFields": "number lung"})("."), ["Odd", "lung"]),
    ],
)
def test_what_is_no_spout_is_refused(spout, words):
    with pytest.raises(TopologyError) as error:
        TopologyBuilder("numbers").setSpout("numbers", spout)
    assert all(word in str(error.value) for word in ["spout 'numbers'", *words])


def test_spouts_and_dataframes_do_not_mix(tmp_path):
    builder = TopologyBuilder("numbers")
    builder.setSpout("numbers", Planned(tmp_path))
    builder.setStream("lines", rows("number long"))
    builder.setBolt("count", Count()).fieldsGrouping("numbers", "number").fieldsGrouping("lines", "number")
    with pytest.raises(TopologyError, match=r"'numbers' and DataFrame 'lines'.*two topologies"):
        builder.createTopology()


def test_a_spout_that_nobody_reads_is_refused(tmp_path):
    builder = TopologyBuilder("numbers")
    builder.setSpout("numbers", Planned(tmp_path))
    builder.setSpout("others", Planned(tmp_path))
    builder.setBolt("count", Count()).fieldsGrouping("numbers", "number")
    with pytest.raises(TopologyError, match="nobody reads the spout 'others'"):
        builder.createTopology()


def test_a_spout_that_was_renamed_does_not_read_all_again(tmp_path):
    with TopologyTester(topology(Planned(tmp_path)), tmp_path / "ck") as tester:
        tester.drain()
    builder = TopologyBuilder("numbers")
    builder.setSpout("digits", Planned(tmp_path), parallelism=2)
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("digits", "number")
    with pytest.raises(CheckpointMismatchError, match=r"'numbers'|digits"):
        TopologyTester(builder.createTopology(), tmp_path / "ck")


class Shrinking(Planned):
    less = 0

    def numPartitions(self):
        return super().numPartitions() - Shrinking.less


def test_partitions_may_not_go(tmp_path):
    with TopologyTester(topology(Shrinking(tmp_path)), tmp_path / "ck") as tester:
        tester.emit()
        Shrinking.less = 1
        try:
            with pytest.raises(CheckpointMismatchError, match=r"has 2 partitions, and partition 2 was read"):
                tester.emit()
        finally:
            Shrinking.less = 0
        with tester.restart() as other:
            other.drain()
            assert other.state("count") == ALL


def refused(place, spout, says):
    with TopologyTester(topology(spout), place / "ck") as tester, pytest.raises(BoltError, match=says):
        tester.emit()


@pytest.mark.parametrize("metadata", [{1: 2}, (1, 2), {"at": object()}, {"at": float("nan")}])
def test_metadata_that_json_would_change_is_refused(tmp_path, metadata):
    class Odd(Planned):
        def planPartitionBatch(self, partition, lastMetadata):
            return metadata

    refused(tmp_path, Odd(tmp_path), r"spout 'numbers'.*planPartitionBatch.*metadata is JSON")


def test_what_a_spout_raises_names_it(tmp_path):
    class Broken(Planned):
        def emitPartitionBatch(self, attempt, collector, partition, metadata):
            raise OSError("the disk is gone")

    refused(tmp_path, Broken(tmp_path), r"spout 'numbers', task \d, hook emitPartitionBatch.*the disk is gone")


@pytest.mark.parametrize("raised", [SystemExit, CancelledError])
@pytest.mark.parametrize("hook", ["open", "isReady", "initPartitions", "numPartitions", "planPartitionBatch"])
def test_a_spout_that_ends_its_process_on_the_driver_is_named(tmp_path, hook, raised):
    def ends(self, *args):
        raise raised("that is all")

    spout = type("Ends", (Planned,), {hook: ends})(tmp_path)
    with (
        pytest.raises(
            BoltError, match=rf"spout 'numbers', on the driver, hook {hook},.*{raised.__name__}: that is all"
        ),
        TopologyTester(topology(spout), tmp_path / "ck") as tester,
    ):
        tester.emit()


@pytest.mark.parametrize("hook", ["committed", "close"])
def test_a_spout_that_ends_its_process_where_nothing_depends_on_it_changes_nothing(tmp_path, hook):
    def ends(self, *args):
        raise SystemExit("that is all")

    spout = type("Ends", (Planned,), {hook: ends})(tmp_path)
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == ALL


def test_rows_can_be_emitted_as_arrow_batches_and_tables(tmp_path):
    class Arrow(Planned):
        def emit(self, collector, partition, metadata):
            numbers = [partition * 1000 + number for number in range(metadata["start"], metadata["stop"])]
            batches = [pa.record_batch([numbers[:1]], ["number"]), pa.record_batch([numbers[1:]], ["number"])]
            collector.emitBatch(pa.Table.from_batches(batches) if partition else pa.record_batch([numbers], ["number"]))

    with TopologyTester(topology(Arrow(tmp_path)), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == ALL


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Whole, Planned, Emitted, Opaque])
def test_cleanup_before_is_told_the_first_transaction_that_is_not_committed(tmp_path, kind):
    class Cleans(kind):
        def open(self, context):
            self.context = context

        def cleanupBefore(self, txid):
            with open(tmp_path / "cleaned", "a") as cleaned:
                cleaned.write(f"{self.context.txid} {self.context.task} {txid}\n")

    with TopologyTester(topology(Cleans(tmp_path)), tmp_path / "ck") as tester:
        tester.emit()
        tester.emit()
        with tester.restart() as other:
            other.emit()
    cleaned = [tuple(map(int, line.split())) for line in (tmp_path / "cleaned").read_text().splitlines()]
    assert sorted(cleaned) == [(txid, task, txid) for txid in (1, 2, 3) for task in (0, 1)]


@pytest.mark.parametrize("kind", [Emitted, Opaque])
def test_rows_without_metadata_are_refused(tmp_path, kind):
    """The same rows would come again in every transaction, without an end."""

    class Forgets(kind):
        def emitPartitionBatch(self, attempt, collector, partition, metadata):
            collector.emit((partition,))

        if kind is Emitted:
            emitPartitionBatchNew = emitPartitionBatch

    refused(tmp_path, Forgets(tmp_path), r"spout 'numbers'.*emitted 1 rows of partition \d and returned no metadata")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ((1, 2), r"spout 'numbers', task 0, hook emitPartitionBatch, .*spout 'numbers' emitted 2 values"),
        (
            ("1",),
            r"spout 'numbers', task 0, collector\.emit, .*spout 'numbers' emitted '1' \(str\)",
        ),  # when it is sent on
    ],
)
def test_rows_that_do_not_fit_name_the_spout(row, told, tmp_path):
    class Odd(Planned):
        def emitPartitionBatch(self, attempt, collector, partition, metadata):
            collector.emit(row)

    with (
        TopologyTester(topology(Odd(tmp_path)), tmp_path / "ck") as tester,
        pytest.raises(BoltError, match=told) as caught,
    ):
        tester.emit()
    assert "bolt 'numbers'" not in str(caught.value)


def test_a_tester_that_is_sent_rows_says_how_spouts_are_run(tmp_path):
    with (
        TopologyTester(topology(Planned(tmp_path)), tmp_path / "ck") as tester,
        pytest.raises(ConfigError, match=r"emit\(\)"),
    ):
        tester.send({"numbers": [(1,)]})


@pytest.mark.parametrize("changing", [False, True])
def test_rows_with_the_metadata_of_the_batch_before_are_refused(changing, tmp_path):
    """They could not be told from those, and would not be emitted again after a failure."""

    class Same(Emitted):
        def emitPartitionBatchNew(self, attempt, collector, partition, lastMetadata):
            collector.emit((partition,))
            if changing and lastMetadata:
                lastMetadata["stop"] = 1  # its own to change; it returns another one
            return {"stop": 0}

    with TopologyTester(topology(Same(tmp_path)), tmp_path / "ck") as tester:
        tester.emit()
        with pytest.raises(BoltError, match=r"returned the metadata of the batch before"):
            tester.emit()


@pytest.mark.slow
def test_a_batch_that_must_come_again_keeps_a_spout_from_becoming_opaque(tmp_path):
    moment = "after PREPARING(1, 0)"
    at = steps_of(Planned(tmp_path), tmp_path / "rehearsal").index(moment) + 1
    with pytest.raises(Crash):
        TopologyTester(topology(Planned(tmp_path)), tmp_path / "ck", crash_at=at).emit()
    with pytest.raises(CheckpointMismatchError, match=r"is opaque now.*start once with the former class"):
        TopologyTester(topology(Opaque(tmp_path)), tmp_path / "ck")
    with TopologyTester(topology(Planned(tmp_path)), tmp_path / "ck") as tester:
        tester.emit()
    with TopologyTester(topology(Opaque(tmp_path)), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == ALL


def steps_of(spout, place):
    with TopologyTester(topology(spout), place) as tester:
        tester.emit()
        return tester.steps


def test_one_source_does_not_become_partitions(tmp_path):
    with TopologyTester(topology(Whole(tmp_path)), tmp_path / "ck") as tester:
        tester.emit()
    with (
        TopologyTester(topology(Planned(tmp_path)), tmp_path / "ck") as tester,
        pytest.raises(CheckpointMismatchError, match=r"has read one source.*for partitions now"),
    ):
        tester.emit()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Emitted, Opaque])
def test_rows_that_a_spout_leaves_out_are_no_end(tmp_path, kind):
    class Evens(kind):
        def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
            stop = 0 if lastMetadata is None else lastMetadata["stop"]
            if stop > 3:
                return None
            if stop == 3:
                collector.emit((partition,))
            return {"stop": stop + 1}

        if kind is Emitted:
            emitPartitionBatchNew = emitPartitionBatch

    with TopologyTester(topology(Evens(tmp_path)), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == {0: 1, 1: 1, 2: 1}


# ---- What spouts do that nobody asked for: metadata of a megabyte, never ready, rows behind the end of a call.


MEGABYTE = "x" * (1 << 20)
RANGE = {"start": 0, "stop": 2}


class Fat:
    def upcoming(self, last):
        return {**super().upcoming(last), "fat": MEGABYTE}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Whole, Planned])
def test_a_megabyte_of_planned_metadata_is_carried_and_stays_out_of_the_log(kind, tmp_path):
    spout = type("Large", (Fat, kind), {})(tmp_path)
    with TopologyTester(topology(spout, FailsOnce()), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == ALL
    records = [path.stat().st_size for path in (tmp_path / "ck" / "transactions").iterdir()]
    assert max(records) < INLINE_MAX_BYTES
    assert tester.steps.count("after PREPARING(2, 1)") == 1
    with pytest.raises(Crash):
        TopologyTester(topology(spout), tmp_path / "other", crash_at=30).drain()
    with TopologyTester(topology(spout), tmp_path / "other") as successor:
        successor.drain()
        assert successor.state("count") == ALL


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Emitted, Opaque])
def test_a_megabyte_of_metadata_in_an_ack_is_refused_with_the_remedy(kind, tmp_path):
    spout = type("Large", (Fat, kind), {})(tmp_path)
    refused(tmp_path, spout, r"'numbers', task \d: its metadata has \d+ bytes.*planPartitionBatch")


@pytest.mark.parametrize("kind", [Emitted, Opaque])
@pytest.mark.parametrize("metadata", [{1: 2}, (1, 2), {"at": object()}, {"at": float("nan")}])
def test_metadata_that_json_would_change_is_refused_in_a_task_too(kind, metadata, tmp_path):
    class Odd(kind):
        def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
            return metadata

        if kind is Emitted:
            emitPartitionBatchNew = emitPartitionBatch

    refused(tmp_path, Odd(tmp_path), r"spout 'numbers'.*emitPartitionBatch.*metadata is JSON")


# ---- never ready


@pytest.mark.slow
def test_a_spout_that_is_never_ready_is_idle_and_not_busy(tmp_path):
    class Never(Planned):
        def isReady(self):
            return False

    looks, wait = [], threading.Event().wait

    def pause(secs):
        looks.append(secs)
        wait(secs)
        return len(looks) < 10

    with TopologyTester(topology(Never(tmp_path)), tmp_path / "ck") as tester:
        tester._coordinator.pause = pause
        tester._clock = tester._progress.clock = time.monotonic
        steps, began, busy = len(tester.steps), time.monotonic(), time.thread_time()
        with pytest.raises(StoppedError):
            tester._driving(lambda: tester._run_spouts(SpoutTrigger()))
        busy, passed = time.thread_time() - busy, time.monotonic() - began
    assert len(looks) == 10
    assert passed > 0.9
    assert busy < 0.05 * passed, "of a processor"
    assert len(tester.steps) == steps, "nothing durable happens"


@pytest.mark.soak
@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [Emitted, Opaque])
def test_empty_transactions_of_spouts_that_do_not_plan_come_ever_more_slowly(kind, tmp_path):
    (tmp_path / "0").write_text("")
    with TopologyTester(topology(kind(tmp_path)), tmp_path / "ck", {"topology.max.spout.pending": 4}) as tester:
        end = tester._now + 60

        def pause(secs):
            tester._now += secs
            return tester._now < end

        tester._coordinator.pause = pause
        with pytest.raises(StoppedError):
            tester._driving(lambda: tester._run_spouts(SpoutTrigger()))
        assert 50 < tester.txid < 80, "about one a second"


def test_a_spout_that_does_not_say_whether_it_is_ready_is_told(tmp_path):
    class Silent(Planned):
        def isReady(self):
            self.looked = True

    refused(tmp_path, Silent(tmp_path), r"spout 'numbers'.*isReady returns True or False, not None")


# ---- an emitter that raises, or emits when it should not


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Whole, Planned, Emitted, Opaque])
def test_rows_before_an_emitter_fails_count_nowhere(kind, tmp_path):
    class Stumbles(kind):
        def emit(self, collector, partition, metadata):
            super().emit(collector, partition, metadata)
            if collector.attempt.txid == 2 and not collector.attempt.attempt:
                raise FailedException("the source is away")

        if kind is Opaque:

            def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
                batch = self.upcoming(lastMetadata)
                self.emit(collector, partition, batch)
                yield
                return batch

    with TopologyTester(topology(Stumbles(tmp_path)), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == ALL
        assert tester.pauses


@pytest.mark.parametrize("kind", [Whole, Planned, Emitted, Opaque])
def test_rows_that_are_yielded_and_not_emitted_are_told(kind, tmp_path):
    class Yields(kind):
        def emitBatch(self, attempt, metadata, collector):
            yield (1,)

        def emitPartitionBatch(self, attempt, collector, partition, metadata):
            yield (1,)

        if kind is Emitted:
            emitPartitionBatchNew = emitPartitionBatch
        if kind is not Whole:
            del emitBatch
        else:
            del emitPartitionBatch

    (tmp_path / "0").write_text("1\n")
    refused(tmp_path, Yields(tmp_path), r"yielded \(1,\), which emits nothing: rows are emitted by collector.emit")


def test_rows_that_are_returned_and_not_emitted_are_told(tmp_path):
    class Returns(Planned):
        def emitPartitionBatch(self, attempt, collector, partition, metadata):
            return [(1,)]

    refused(tmp_path, Returns(tmp_path), r"returned \[\(1,\)\], which emits nothing")


class Keeps(Planned):
    """Keeps the collector, and emits through it later."""

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        self.emit(getattr(self, "kept", collector), partition, metadata)
        self.kept = collector


def test_a_collector_of_a_transaction_that_has_ended_takes_no_rows(tmp_path):
    with TopologyTester(topology(Keeps(tmp_path)), tmp_path / "ck", freshObjects=False) as tester:
        tester.emit()
        with pytest.raises(
            BoltError,
            match=r"spout 'numbers' emitted through a collector of transaction 1 whose rows had left.*emit\.\.\.Batch",
        ):
            tester.emit()


@pytest.mark.parametrize("kind", [Planned, Emitted, Opaque])
@pytest.mark.parametrize("then", ["another partition", "the end"])
def test_rows_that_are_emitted_after_the_call_has_returned_are_refused(kind, then, tmp_path):
    """As by a thread of the spout's. Nobody could say of which batch they are, nor whether they come again."""
    id = TaskId("numbers", 0)
    partitions = {"0": None, "2": None} if kind is not Planned else {"0": RANGE, "2": RANGE}
    told = EmissionOrder(DriverSpout("numbers", kind(tmp_path), 1).emission, partitions)
    task = SpoutTask(Worker(), deployment(tmp_path, topology(kind(tmp_path))), id)
    collector, _ = collected("number long")
    task.enter(Order(FIRST, 1, emissions={id: told}), "token", collector.outlets, Outbox(0, 0, (), pressing=True))
    task.begin()
    assert task.emit(), "it has paused behind a row or a partition, as there is much to send"
    while then == "the end" and task.resume():
        pass
    if then == "another partition" and kind is Opaque:  # a generator, whose rows come until it ends
        for _ in range(TAKEN):
            task.resume()
    task.attempt.collector.emit((7,))
    with pytest.raises(
        BoltError, match=r"spout 'numbers'.*1 rows were emitted after emitPartitionBatch\w* had returned"
    ):
        task.resume() if then == "another partition" else task.prepare()
