"""Four batches at once, event by event: what Storm's own test of transactional topologies asks, and in which order.

The test says which job ends next, and how; what the driver makes of it is compared line by line.
"""

import pytest

from statefx import OpaquePartitionedTransactionalSpout, TopologyBuilder
from statefx.coordinator.attempt import Answer
from statefx.coordinator.retrying import JobFailedError
from statefx.errors import FailedException
from statefx.protocol.commands import Segment
from statefx.testing import Crash, TopologyTester
from tests.bolts import FailsOnce, Pass
from tests.spouts.numbers import ALL, PARTITIONS, TAKEN, Count, Emitted, Notes, Opaque, Planned, topology

BATCHES = 5


class Told(Count):
    """Has something to do at a commit, so that a commit is a job."""

    def preCommit(self, txid):
        pass


class Conductor:
    """Tells the driver of jobs that have ended when the test says so; of one that was cancelled, too."""

    def __init__(self, tester):
        self.tester, self.engine = tester, tester._engine
        self.events, self._script, self._seen = [], [], 0
        self._started, self._ended = [], {}
        """Jobs of which is not written down that they have begun; and what came of those that were not told of."""
        self._attempts = {}
        """By the names of jobs."""
        engine = self.engine
        self._start, self._tell, self._cancel, self._run = engine.start, engine.resolve, engine.cancel, engine.next
        engine.start, engine.resolve = self._starting, self._telling
        engine.cancel, engine.next = self._cancelling, self._next

    def play(self, script):
        """Run the tester by a script of jobs that end, then the jobs that are left, as they come."""
        self._script = list(script)
        self.tester.drain()
        self._note()
        return self.events

    def _starting(self, attempt, segment, order):
        self._begin(attempt, segment)
        self._start(attempt, segment, order)

    def _telling(self, attempt, name, order):
        self._begin(attempt, name)
        self._tell(attempt, name, order)

    def _begin(self, attempt, part):
        self._attempts[_named(attempt, part)] = attempt, part
        self._started.append(_named(attempt, part))

    def _cancelling(self, attempt):
        self.events.append(f"cancel {_named(attempt, attempt.part)}")
        self._cancel(attempt)

    def _next(self, timeout_secs):
        if timeout_secs == 0:  # the delay of a retry is over
            return None
        self._note()
        self.engine.wake()  # all that can end has ended, whenever it is told
        while not self.engine._answers.empty():
            if (found := self._run(None)) is not None:
                self._ended[_named(found.attempt, found.part)] = found
        if not self._script:
            return self._ended.pop(next(iter(self._ended))) if self._ended else None
        step = self._script.pop(0)
        job_id, failed, _ = step.partition(" fails")
        self.events.append(f"  {step if failed else job_id + ' ends'}")
        if failed:
            attempt, part = self._attempts[job_id]
            self._cancel(attempt)  # nothing of it comes any more
            attempt.reports.clear()
            self._ended.pop(job_id, None)
            return Answer(attempt, part, JobFailedError("the executor was lost"))
        return self._ended.pop(job_id)

    def _note(self):
        """Write down which records and jobs there are since the last time."""
        steps = self.tester.steps
        self.events += [step[6:] for step in steps[self._seen :] if step.startswith("after ") and step[6].isupper()]
        self.events += [f"start {job_id}" for job_id in self._started]
        self._seen, self._started = len(steps), []


def _named(attempt, part):
    name = f"{attempt.name.txid}/{attempt.name.attempt}"
    return (
        f"{part} {name}"
        if isinstance(part, Segment)
        else f"{attempt.resolution} {name} of {part}, try {attempt.rounds}"
    )


SCHEDULE = """
LINEAGE
GENERATION(1)
PREPARING(1, 0)
PREPARING(2, 0)
PREPARING(3, 0)
PREPARING(4, 0)
start processing 1/0
start processing 2/0
start processing 3/0
start processing 4/0
  processing 2/0 ends         a bolt has refused the batch: 2, 3 and 4 are tried again, 1 is untouched
cancel processing 3/0
cancel processing 4/0
ROLLED_BACK(4, 0)
ROLLED_BACK(3, 0)
ROLLED_BACK(2, 0)
PREPARING(2, 1)
PREPARING(3, 1)
PREPARING(4, 1)
start processing 2/1
start processing 3/1
start processing 4/1
  processing 3/0 ends         late: what comes of a former attempt changes nothing, that it has failed neither
  processing 4/0 fails
  processing 2/1 ends         before batch 1 has: nothing is committed
  processing 4/1 ends
  processing 3/1 ends
  processing 1/0 ends
start ordered 1/0
  ordered 1/0 ends
COMMITTING(1, 0)
start commit 1/0 of state, try 1
start ordered 2/1
  ordered 2/1 ends            it waits until batch 1 is committed
  commit 1/0 of state, try 1 fails
start commit 1/0 of state, try 2
  commit 1/0 of state, try 2 ends
COMMITTING(2, 1)
PREPARING(5, 0)
start commit 2/1 of state, try 1
start ordered 3/1
start processing 5/0
"""


@pytest.mark.slow
def test_d1_the_schedule_of_storms_test_with_four_batches_at_once(tmp_path):
    spout = Planned(tmp_path, each=TAKEN * BATCHES)
    builder = TopologyBuilder("storm")
    builder.setSpout("numbers", spout)
    builder.setBolt("a", FailsOnce("number long", txid=2)).globalGrouping("numbers")
    builder.setBolt("count", Told()).globalGrouping("a")
    config = {"topology.max.spout.pending": 4, "topology.transaction.retry.delay.ms": 0}
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config) as tester:
        schedule = [line.split("     ")[0] for line in SCHEDULE.strip().splitlines()]  # without the remarks
        ends = [line.strip().removesuffix(" ends") for line in schedule if line[0] == " "]
        events = Conductor(tester).play(ends)
        assert events[: len(schedule)] == schedule
        committed = [event for event in events if event.startswith("COMMITTING")]
        assert committed == ["COMMITTING(1, 0)", *(f"COMMITTING({txid}, 1)" for txid in (2, 3, 4)), "COMMITTING(5, 0)"]
        counts = tester.state("count")
        assert len(counts) == PARTITIONS * TAKEN * BATCHES
        assert set(counts.values()) == {1}
    batches = {}
    for txid, attempt, partition, metadata in spout.notes():
        batches.setdefault((txid, partition), {})[attempt] = metadata
    for (txid, _), read in batches.items():
        assert set(read) == ({0, 1} if txid in (2, 3, 4) else {0})
        assert read[min(read)] == read[max(read)], "each attempt reads the same"


# ---- What Storm's tests of transactional topologies ask for, by their numbers, where no other file does.
#
# D4 is in test_committers.py, D7 in tests/values; a crash at any moment, as in test_transactions.py, asks D5 and D8.


def topology_of(spout, count=Count):
    """Before the cut there is a bolt, so that there are two jobs."""
    builder = TopologyBuilder("numbers")
    builder.setSpout("numbers", spout)
    builder.setBolt("pass", Pass("number long")).globalGrouping("numbers")
    builder.setBolt("count", count()).globalGrouping("pass")
    return builder.createTopology()


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


@pytest.mark.slow
def test_d6_a_batch_that_is_replayed_may_differ_and_those_behind_it_begin_behind_it(tmp_path):
    spout = OnePartition(tmp_path)
    with TopologyTester(topology_of(spout), tmp_path / "ck", {"topology.max.spout.pending": 2}) as tester:
        events = played(tester, "1/0", "2/0", "ordered 1/0 fails")
        assert events.index("ROLLED_BACK(2, 0)") < events.index("ROLLED_BACK(1, 0)")
        assert tester.state("count") == dict.fromkeys(range(1, 101), 1)
    read = {(txid, attempt): (first, last) for txid, attempt, first, last in spout.notes()}
    a, b = [read[1, attempt] for attempt in (0, 1)], [read[2, attempt] for attempt in (0, 1)]
    assert (a, b) == ([(1, 50), (1, 40)], [(51, 100), (41, 90)])


class Recovers(Opaque):
    """Its source is away at the first attempt, which finds nothing."""

    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        if (attempt.txid, attempt.attempt) == (1, 0):
            return None
        return (yield from super().emitPartitionBatch(attempt, collector, partition, lastMetadata))


class RefusesOnce(Count):
    def prePrepare(self, txid):
        if (txid, self.context.attempt) == (1, 0):
            raise FailedException("no rows")


def test_d6_an_attempt_that_found_nothing_and_was_rolled_back_is_no_end(tmp_path):
    config = {"topology.max.spout.pending": 2}
    with TopologyTester(topology_of(Recovers(tmp_path), RefusesOnce), tmp_path / "ck", config) as tester:
        tester.drain()
        assert tester.state("count") == ALL
