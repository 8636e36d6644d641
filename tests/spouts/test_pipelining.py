"""Four batches at once, event by event: what Storm's own test of transactional topologies asks, and in which order.

The test says which job ends next, and how; what the driver makes of it is compared line by line.
"""

from statefx import BasicBolt, FailedException, TopologyBuilder
from statefx.coordinator.engine import Answer
from statefx.coordinator.retrying import JobFailedError
from statefx.protocol.commands import Segment
from statefx.testing import TopologyTester
from tests.spouts.numbers import PARTITIONS, TAKEN, Count, Planned

BATCHES = 5


class FailsOnce(BasicBolt):
    outputFields = "number long"

    def execute(self, tup, collector):
        if (collector.attempt.txid, collector.attempt.attempt) == (2, 0):
            raise FailedException("not at the first attempt")
        collector.emit(tup)


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


def test_d1_the_schedule_of_storms_test_with_four_batches_at_once(tmp_path):
    spout = Planned(tmp_path, each=TAKEN * BATCHES)
    builder = TopologyBuilder("storm")
    builder.setSpout("numbers", spout)
    builder.setBolt("a", FailsOnce()).globalGrouping("numbers")
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
