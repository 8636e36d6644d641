"""What Storm's tests of transactional topologies ask for, by their numbers, where no other file does.

D1 is in test_pipelining.py, D4 in test_committers.py, and D7 in tests/values.
"""

from functools import partial

import pytest

from statefx import BasicBolt, FailedException, OpaquePartitionedTransactionalSpout, TopologyBuilder
from statefx.coordinator.log import TransactionLog, read_state
from statefx.coordinator.metadata import committed_metadata, read_metadata, written_files
from statefx.errors import StatePhaseError
from statefx.protocol.batches import durable_batch
from statefx.protocol.metadata import INLINE_MAX_BYTES, Metadata
from statefx.protocol.records import Committing, Preparing, SpoutInput
from statefx.storage import FolderStorage
from statefx.testing import Crash, TopologyTester
from tests.coordinator.histories import BEGINNING
from tests.spouts.numbers import ALL, Count, Emitted, Notes, Opaque, Planned, topology
from tests.spouts.test_pipelining import Conductor


def topology_of(spout, count=Count):
    """Before the cut there is a bolt, so that there are two jobs."""
    builder = TopologyBuilder("numbers")
    builder.setSpout("numbers", spout)
    builder.setBolt("pass", Pass()).globalGrouping("numbers")
    builder.setBolt("count", count()).globalGrouping("pass")
    return builder.createTopology()


class Pass(BasicBolt):
    outputFields = "number long"

    def execute(self, tup, collector):
        collector.emit(tup)


def played(tester, *script):
    """Let jobs end in this order, then all the others; return what happened."""
    return Conductor(tester).play([f"processing {job}" if job[0].isdigit() else job for job in script])


@pytest.mark.parametrize("late", ["2/0", "2/0 fails"])
@pytest.mark.parametrize("kind", [Planned, Emitted, Opaque])
def test_d2_what_a_stale_attempt_reports_neither_counts_nor_drops_the_live_one(kind, late, tmp_path):
    """Storm's coordinator lets a stale attempt's failure drop the live one."""
    spout = kind(tmp_path)
    config = {"topology.max.spout.pending": 2}
    with TopologyTester(topology_of(spout), tmp_path / "ck", config, freshObjects=False) as tester:
        began = [] if kind is Planned else ["1/0"]  # where 2 begins behind what 1 emitted
        failed = "1/0 fails" if kind is Planned else "ordered 1/0 fails"
        events = played(tester, *began, failed, late)
        assert f"  processing {late}" in [event.removesuffix(" ends") for event in events]
        assert [event for event in events if event.startswith("ROLLED_BACK")] == [
            "ROLLED_BACK(2, 0)",
            "ROLLED_BACK(1, 0)",
        ]
        assert {"COMMITTING(1, 1)", "COMMITTING(2, 1)"} <= set(events)
        assert tester.state("count") == ALL


def test_d3_the_metadata_of_a_partition_is_created_in_order_read_again_and_kept_while_it_is_needed(tmp_path):
    storage = FolderStorage(tmp_path / "ck")
    log = TransactionLog(storage)
    for record in BEGINNING:
        log.append(record)

    def create(txid, **partitions):
        log.append(Preparing(txid, 0, 1, SpoutInput(), planned={"queue": Metadata(partitions)}))

    def read(txid):
        return durable_batch(read_state(storage), "queue", txid, partial(read_metadata, storage))

    large = "x" * INLINE_MAX_BYTES
    create(1, a=large, b=1)
    with pytest.raises(StatePhaseError, match="transaction 3 after 1"):
        create(3, a=3)
    create(2, b=2)
    with pytest.raises(StatePhaseError, match="transaction 1 after 2"):
        create(1, a=1)
    assert read(1) == read(1) == {"a": large, "b": 1}
    assert read(2) == {"b": 2}
    for txid in (1, 2):
        log.append(Committing(txid, 0, 1, {}))
    log.fold()
    assert committed_metadata(storage, read_state(storage), "queue") == {"a": large, "b": 2}
    assert len(written_files(storage)) == 1, "of what no transaction needs nothing is kept"
    create(3, a=3)
    log.append(Committing(3, 0, 1, {}))
    log.fold()
    assert committed_metadata(storage, read_state(storage), "queue") == {"a": 3, "b": 2}
    assert not written_files(storage)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Planned, Emitted])
def test_d5_a_batch_that_was_saved_is_replayed_as_it_was_and_nothing_is_read_twice(kind, tmp_path):
    spout = kind(tmp_path)
    crash(spout, tmp_path, "before COMMITTING(2, 0)")
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == ALL
    batches = [{str(note[2:4]) for note in spout.notes() if note[:2] == [2, attempt]} for attempt in (0, 1)]
    assert batches[0] == batches[1] != set()


def crash(spout, place, moment):
    """Have a driver crash at this moment."""
    with TopologyTester(topology(spout), place / "rehearsal") as tester:
        tester.drain()
        at = tester.steps.index(moment) + 1
    (place / "notes").unlink()
    with pytest.raises(Crash, match=moment.split("(")[0]):
        TopologyTester(topology(spout), place / "ck", crash_at=at).drain()


class LateRows(Emitted):
    """There is nothing to read when transaction 1 looks first."""

    def emitPartitionBatchNew(self, attempt, collector, partition, lastMetadata):
        if (attempt.txid, attempt.attempt) == (1, 0):
            return None
        return super().emitPartitionBatchNew(attempt, collector, partition, lastMetadata)


@pytest.mark.slow
def test_d5_an_empty_batch_that_was_saved_is_replayed_as_an_empty_one(tmp_path):
    spout = LateRows(tmp_path)
    with pytest.raises(Crash):
        TopologyTester(topology(spout), tmp_path / "ck", crash_at=moment_of(spout, tmp_path)).emit()
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        assert tester.emit().progress.input_rows == 0
        assert tester.state("count") == {}
        tester.drain()
        assert tester.state("count") == ALL
    assert {note[0] for note in spout.notes()} == {2, 3, 4, 5}


def moment_of(spout, place):
    with TopologyTester(topology(spout), place / "rehearsal") as tester:
        tester.emit()
        return tester.steps.index("before COMMITTING(1, 0)") + 1


class OnePartition(Notes, OpaquePartitionedTransactionalSpout):
    """Rows from 1 to 200; how many an attempt takes is written down here."""

    def numPartitions(self):
        return 1

    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        first = 1 if lastMetadata is None else lastMetadata["last"] + 1
        if first > 100:
            return None
        last = first + {(1, 0): 50, (2, 0): 50, (1, 1): 40, (2, 1): 50}.get((attempt.txid, attempt.attempt), 10) - 1
        self.note(attempt, first, last)
        for number in range(first, last + 1):
            collector.emit((number,))
        return {"last": last}


def test_d6_a_batch_that_is_replayed_may_differ_and_those_behind_it_begin_behind_it(tmp_path):
    spout = OnePartition(tmp_path)
    with TopologyTester(topology_of(spout), tmp_path / "ck", {"topology.max.spout.pending": 2}) as tester:
        events = played(tester, "1/0", "2/0", "ordered 1/0 fails")
        assert events.index("ROLLED_BACK(2, 0)") < events.index("ROLLED_BACK(1, 0)")
        assert tester.state("count") == dict.fromkeys(range(1, 101), 1)
    read = {(txid, attempt): (first, last) for txid, attempt, first, last in spout.notes()}
    a, b = [read[1, attempt] for attempt in (0, 1)], [read[2, attempt] for attempt in (0, 1)]
    assert (a, b) == ([(1, 50), (1, 40)], [(51, 100), (41, 90)])


class RefusesTwice(Count):
    def prePrepare(self, txid):
        if self.context.attempt < 2:
            raise FailedException("not yet")

    def open(self, context):
        self.context = context


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Planned, Emitted, Opaque])
def test_d8_a_batch_that_is_failed_does_not_end_the_query(kind, tmp_path):
    with TopologyTester(topology_of(kind(tmp_path), RefusesTwice), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == ALL
        assert f"after COMMITTING({tester.txid}, 2)" in tester.steps


class Recovers(Opaque):
    """Its source is away at the first attempt, which finds nothing."""

    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        if (attempt.txid, attempt.attempt) == (1, 0):
            return None
        return (yield from super().emitPartitionBatch(attempt, collector, partition, lastMetadata))


class RefusesOnce(RefusesTwice):
    def prePrepare(self, txid):
        if (txid, self.context.attempt) == (1, 0):
            raise FailedException("no rows")


def test_d6_an_attempt_that_found_nothing_and_was_rolled_back_is_no_end(tmp_path):
    config = {"topology.max.spout.pending": 2}
    with TopologyTester(topology_of(Recovers(tmp_path), RefusesOnce), tmp_path / "ck", config) as tester:
        tester.drain()
        assert tester.state("count") == ALL
