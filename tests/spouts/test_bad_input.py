"""What spouts do that nobody asked for: metadata of a megabyte, never ready, rows behind the end of a call."""

import threading
import time

import pytest

from statefx.coordinator.driver_spout import DriverSpout
from statefx.coordinator.retrying import StoppedError
from statefx.coordinator.spouts import SpoutTrigger
from statefx.errors import BoltError, FailedException
from statefx.protocol.identity import TaskId
from statefx.protocol.metadata import INLINE_MAX_BYTES
from statefx.protocol.order import EmissionOrder, Order
from statefx.runtime.outlets import Outbox
from statefx.runtime.spout_task import SpoutTask
from statefx.runtime.worker import Worker
from statefx.testing import Crash, TopologyTester
from tests.runtime.one_slot import FIRST, deployment
from tests.runtime.test_bytes import collected
from tests.spouts.numbers import ALL, TAKEN, Emitted, Opaque, Planned, Whole, topology
from tests.spouts.test_transactions import FailsOnce

MEGABYTE = "x" * (1 << 20)
RANGE = {"start": 0, "stop": 2}


class Fat:
    """Its metadata have a megabyte each."""

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


@pytest.mark.parametrize("kind", [Emitted, Opaque])
def test_a_megabyte_of_metadata_in_an_ack_is_refused_with_the_remedy(kind, tmp_path):
    spout = type("Large", (Fat, kind), {})(tmp_path)
    with (
        TopologyTester(topology(spout), tmp_path / "ck") as tester,
        pytest.raises(BoltError, match=r"'numbers', task \d: its metadata has \d+ bytes.*planPartitionBatch"),
    ):
        tester.emit()


@pytest.mark.parametrize("kind", [Emitted, Opaque])
@pytest.mark.parametrize("metadata", [{1: 2}, (1, 2), {"at": object()}, {"at": float("nan")}])
def test_metadata_that_json_would_change_is_refused_in_a_task_too(kind, metadata, tmp_path):
    class Odd(kind):
        def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
            return metadata

        if kind is Emitted:
            emitPartitionBatchNew = emitPartitionBatch

    with (
        TopologyTester(topology(Odd(tmp_path)), tmp_path / "ck") as tester,
        pytest.raises(BoltError, match=r"spout 'numbers'.*emitPartitionBatch.*metadata is JSON"),
    ):
        tester.emit()


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

    with (
        TopologyTester(topology(Silent(tmp_path)), tmp_path / "ck") as tester,
        pytest.raises(BoltError, match=r"spout 'numbers'.*isReady returns True or False, not None"),
    ):
        tester.emit()


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
    with (
        TopologyTester(topology(Yields(tmp_path)), tmp_path / "ck") as tester,
        pytest.raises(BoltError, match=r"yielded \(1,\), which emits nothing: rows are emitted by collector.emit"),
    ):
        tester.emit()


def test_rows_that_are_returned_and_not_emitted_are_told(tmp_path):
    class Returns(Planned):
        def emitPartitionBatch(self, attempt, collector, partition, metadata):
            return [(1,)]

    with (
        TopologyTester(topology(Returns(tmp_path)), tmp_path / "ck") as tester,
        pytest.raises(BoltError, match=r"returned \[\(1,\)\], which emits nothing"),
    ):
        tester.emit()


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
