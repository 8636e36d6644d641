"""The replay check: a transactional spout that emits something else is told, an opaque one may."""

import pyarrow as pa
import pytest

from statefx.errors import FailedException, InputError
from statefx.testing import Crash, TopologyTester
from tests.spouts.numbers import ALL, EACH, PARTITIONS, Count, Emitted, Opaque, Planned, Whole, topology
from tests.spouts.test_transactions import FailsOnce

CHECK = "topology.transaction.replay.check"


class Drifts:
    """From its second attempt on, transaction 2 has another number in partition 2."""

    drifts = True
    by = 500

    def emit(self, collector, partition, metadata):
        for number in range(metadata["start"], metadata["stop"]):
            last = self.drifts and collector.attempt.attempt and partition == 2 and number + 1 == metadata["stop"]
            collector.emit((partition * 1000 + number + self.by * bool(last and collector.attempt.txid == 2),))


class Shuffles:
    """Emits the same rows in another order, and by other means, in each attempt."""

    def emit(self, collector, partition, metadata):
        numbers = [partition * 1000 + number for number in range(metadata["start"], metadata["stop"])]
        if collector.attempt.attempt:
            for part in (numbers[2:], numbers[:2]):
                collector.emitBatch(pa.record_batch({"number": pa.array(part, pa.int64())}))
        else:
            for number in reversed(numbers):
                collector.emit((number,))


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("kind", [Whole, Planned, Emitted])
def test_other_rows_of_a_transactional_spout_end_the_query_and_name_the_place(kind, pending, tmp_path):
    spout = type("Drifting", (Drifts, kind), {})(tmp_path)
    config = {"topology.max.spout.pending": pending}
    place = "task 0" if kind is Whole else "partition 2"
    with TopologyTester(topology(spout, FailsOnce()), tmp_path / "ck", config) as tester:
        with pytest.raises(
            InputError, match=rf"spout 'numbers', {place}: transaction 2 was tried again.*[48] rows both times.*Opaque"
        ) as error:
            tester.drain()
        assert error.value.data["txid"] == 2
        assert len(tester.state("count")) == PARTITIONS * 4, "what was committed stays"


@pytest.mark.parametrize("kind", [Whole, Planned, Emitted])
def test_fewer_rows_are_told_with_both_numbers(kind, tmp_path):
    class Forgets(kind):
        def emit(self, collector, partition, metadata):
            if not collector.attempt.attempt or partition != 2:
                super().emit(collector, partition, metadata)

    with (
        TopologyTester(topology(Forgets(tmp_path), FailsOnce()), tmp_path / "ck") as tester,
        pytest.raises(InputError, match=r"[48] rows at first, and [04] rows now"),
    ):
        tester.drain()


@pytest.mark.parametrize("kind", [Whole, Planned, Emitted])
def test_the_same_rows_in_another_order_and_other_batches_are_the_same(kind, tmp_path):
    spout = type("Shuffling", (Shuffles, kind), {})(tmp_path)
    with TopologyTester(topology(spout, FailsOnce()), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == ALL


def test_an_opaque_spout_may_emit_other_rows(tmp_path):
    class Drifting(Drifts, Opaque):
        def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
            batch = self.upcoming(lastMetadata)
            self.emit(collector, partition, batch)
            return batch

    with TopologyTester(topology(Drifting(tmp_path), FailsOnce()), tmp_path / "ck") as tester:
        tester.drain()
        assert len(tester.state("count")) == PARTITIONS * EACH
        assert 2507 in tester.state("count")


@pytest.mark.parametrize("kind", [Whole, Planned, Emitted])
def test_the_check_can_be_left_out(kind, tmp_path):
    spout = type("Drifting", (Drifts, kind), {})(tmp_path)
    with TopologyTester(topology(spout, FailsOnce()), tmp_path / "ck", {CHECK: False}) as tester:
        tester.drain()
        assert 2507 in tester.state("count")


class DriftsLater(Drifts, Emitted):
    """Of which the attempt of another driver drifts."""


def crashed_behind_processed(spout, tmp_path):
    """Leave a checkpoint in which PROCESSED of transaction 2 is durable, and nothing behind it."""
    with TopologyTester(topology(spout), tmp_path / "rehearsal") as rehearsal:
        rehearsal.drain()
        at = rehearsal.steps.index("after PROCESSED(2, 0)") + 1
    with pytest.raises(Crash):
        TopologyTester(topology(spout), tmp_path / "ck", crash_at=at).drain()


def test_another_driver_compares_with_what_is_durable(tmp_path):
    spout = DriftsLater(tmp_path)
    crashed_behind_processed(spout, tmp_path)
    with (
        TopologyTester(topology(spout), tmp_path / "ck") as successor,
        pytest.raises(InputError, match=r"partition 2: transaction 2 was tried again \(attempt 1\)"),
    ):
        successor.drain()
    with (
        TopologyTester(topology(spout), tmp_path / "ck") as stubborn,
        pytest.raises(InputError, match=rf"start once with {CHECK}=False"),
    ):
        stubborn.drain()
    with TopologyTester(topology(spout), tmp_path / "ck", {CHECK: False}) as relenting:
        relenting.drain()
        assert 2507 in relenting.state("count")
    with TopologyTester(topology(Opaque(tmp_path)), tmp_path / "ck") as opaque:
        opaque.drain()


def test_another_driver_with_other_fields_does_not_compare(tmp_path):
    """Else a spout could not be given a field while a transaction waits to be tried again."""
    crashed_behind_processed(Emitted(tmp_path), tmp_path)

    class Wider(Emitted):
        outputFields = "number long, more string"

        def emit(self, collector, partition, metadata):
            for number in range(metadata["start"], metadata["stop"]):
                collector.emit((partition * 1000 + number, "x"))

    with TopologyTester(topology(Wider(tmp_path)), tmp_path / "ck") as successor:
        successor.drain()
        assert successor.state("count") == ALL


class FailsInTask(Planned):
    """Task 1 fails once behind its rows: what it had emitted is not known, and what task 0 had is."""

    def emit(self, collector, partition, metadata):
        for number in range(metadata["start"], metadata["stop"]):
            shift = 500 * (partition in self.drifting and collector.attempt.attempt > 0)
            collector.emit((partition * 1000 + number + shift,))
        if partition == 1 and not collector.attempt.attempt:
            raise FailedException("once")


@pytest.mark.parametrize(("drifting", "told"), [((0, 2), "partition [02]"), ((1,), None), ((), None)])
def test_of_a_task_that_never_acked_nothing_is_compared_and_of_the_others_all(drifting, told, tmp_path):
    spout = FailsInTask(tmp_path)
    spout.drifting = drifting
    with TopologyTester(topology(spout, Count()), tmp_path / "ck") as tester:
        if told:
            with pytest.raises(InputError, match=told):
                tester.emit()
        else:
            tester.emit()
            assert len(tester.state("count")) == PARTITIONS * 4
