"""Committers: what Storm's page on transactional topologies says of its bolts A, B, C and D; B and D are committers.

::

    spout -> A -> B (committer) -> C -> D (committer)
             A ------------------> C
"""

from collections import Counter

import pytest

from statefx import BatchBolt, Committer, TopologyBuilder
from statefx.errors import FailedException
from statefx.testing import TopologyTester
from tests.spouts.numbers import PARTITIONS, TAKEN, Planned

PENDING, BATCHES = 4, 5
EACH = TAKEN * (BATCHES - 1) + 2
ROWS = {txid: PARTITIONS * min(TAKEN, EACH - TAKEN * (txid - 1)) for txid in range(1, BATCHES + 1)}
"""What the spout emits, by transaction."""


class Step(BatchBolt):
    outputFields = "number long"

    def open(self, context):
        self.context = context
        self.left = []

    def execute(self, tup, collector):
        self.note("execute", collector)
        if tup.number % 2:
            collector.emit(tup)
        else:
            self.left.append(tup)

    def finishBatch(self, collector):
        self.note("finishBatch", collector)
        for tup in self.left:
            collector.emit(tup)

    def note(self, hook, collector):
        attempt = collector.attempt
        assert (attempt.txid, attempt.attempt) == (self.context.txid, self.context.attempt)
        self.context.config["calls"].append((self.context.component, hook, attempt.txid, attempt.attempt))
        failing = self.context.config["failing"].get((self.context.component, hook, attempt.txid), [])
        if failing:
            raise failing.pop()


class Last(Step):
    def finishBatch(self, collector):
        super().finishBatch(collector)
        self.context.config["counts"].append((collector.attempt.txid, len(self.left)))

    def execute(self, tup, collector):
        self.note("execute", collector)
        self.left.append(tup)


class CommitterStep(Step, Committer):
    pass


class CommitterLast(Last, Committer):
    pass


def flow(spout):
    builder = TopologyBuilder("flow")
    builder.setSpout("spout", spout, parallelism=2)
    builder.setBolt("a", Step()).globalGrouping("spout")
    builder.setBolt("b", CommitterStep()).globalGrouping("a")
    builder.setBolt("c", Step()).globalGrouping("a").globalGrouping("b")
    builder.setBolt("d", CommitterLast()).globalGrouping("c")
    return builder.createTopology()


class Flow:
    def __init__(self, tmp_path, *, pending=PENDING, **given):
        self.calls, self.counts, self.failing = [], [], {}
        self.spout = Planned(tmp_path, each=EACH)
        config = {
            "topology.max.spout.pending": pending,
            "calls": self.calls,
            "counts": self.counts,
            "failing": self.failing,
        }
        self.tester = TopologyTester(flow(self.spout), tmp_path / "ck", config, **given)
        for txid in ROWS:
            for attempt in (0, 1):
                moment = f"COMMITTING({txid}, {attempt})"
                self.tester.when(f"after {moment}", lambda moment=moment: self.calls.append(moment))

    def drain(self):
        with self.tester:
            assert self.tester.drain() == BATCHES
        return self

    def hold_until(self, *call):
        """Let nothing go on behind the cut until a bolt was called so."""

        def hold(engine):
            for run in engine.runs:
                for place, chain in run.chains.items():
                    chain.frozen = place.level >= self.tester._launch.plan.cut and call not in self.calls

        self.tester._engine.chances = hold

    def finished(self, *components):
        """The calls of finishBatch of some of the bolts, in their order."""
        return [call[:1] + call[2:] for call in self.calls if call[0] in components and call[1] == "finishBatch"]

    def check_counts(self):
        """Each batch came whole, once: C gets each row from A, and once more through B."""
        assert dict(self.counts) == {txid: 2 * rows for txid, rows in ROWS.items()}


@pytest.mark.slow
def test_d4_a_has_finished_its_batches_before_b_c_and_d_finish_theirs_in_the_order_of_txids(tmp_path):
    flow = Flow(tmp_path)
    flow.hold_until("a", "finishBatch", PENDING, 0)  # A waits for nobody
    flow.drain()
    assert flow.finished("a") == [("a", txid, 0) for txid in ROWS]
    in_order = [(bolt, txid, 0) for txid in ROWS for bolt in "bcd"]
    assert flow.finished("b", "c", "d") == in_order, "D waits for no second word that it may commit"
    flow.check_counts()
    emitted = flow.tester.emitted("spout")
    assert len(emitted) == sum(ROWS.values()), (
        "the tester keeps what all of them emitted, each in the attempt that counts"
    )
    assert flow.tester.emitted("a").count(emitted[0]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_nothing_behind_a_committer_sees_a_batch_before_the_one_before_it_is_decided(seed, tmp_path):
    """Unlike in Storm, their `execute` is ordered as well, and so is C, which is no committer."""
    flow = Flow(tmp_path, seed=seed).drain()
    for txid in list(ROWS)[1:]:
        decided = flow.calls.index(f"COMMITTING({txid - 1}, 0)")
        ordered = [number for number, call in enumerate(flow.calls) if call[0] in "bcd" and call[2] == txid]
        assert min(ordered) > decided
    flow.check_counts()


@pytest.mark.slow
def test_with_one_at_a_time_the_order_is_the_same(tmp_path):
    flow = Flow(tmp_path, pending=1).drain()
    assert flow.finished("a", "b", "c", "d") == [(bolt, txid, 0) for txid in ROWS for bolt in "abcd"]
    flow.check_counts()


@pytest.mark.slow
@pytest.mark.parametrize(("hook", "pending"), [("execute", 1), ("finishBatch", PENDING)])
@pytest.mark.parametrize("component", ["a", "b", "c", "d"])
def test_a_bolt_that_fails_a_batch_has_it_and_those_behind_it_replayed(component, hook, pending, tmp_path):
    flow = Flow(tmp_path, pending=pending)
    flow.failing[component, hook, 2] = [FailedException("not now")]
    flow.drain()
    flow.check_counts()
    assert [call for call in flow.calls if call == (component, hook, 2, 0)], "it failed"
    again = [txid for _, txid, attempt in flow.finished("d") if attempt]
    assert again in ([[2]] if pending == 1 else [[2, 3, 4], [2, 3, 4, 5]]), "batch 5 had begun or not; 1 is not touched"
    assert ("b", 3, 0) not in flow.finished("b") or pending == 1, "no committer of those behind it has run"
    batches = {}
    for txid, _, partition, batch in flow.spout.notes():
        batches.setdefault((txid, partition), []).append(batch)
    assert all(batch == found[0] for found in batches.values() for batch in found), "the same metadata each time"


@pytest.mark.slow
def test_what_a_committer_did_in_an_attempt_that_is_rolled_back_it_does_again(tmp_path):
    flow = Flow(tmp_path)

    def lose(engine):
        """D has finished batch 1, and its ack is lost with its chain."""
        run = engine.runs[-1] if engine.runs else None
        if ("d", "finishBatch", 1, 0) in flow.calls and len(engine.runs) == 1 and not run.is_over:
            run.lose(max(run.chains))

    flow.tester._engine.chances = lose
    flow.drain()
    assert Counter(flow.finished("d")) == Counter(
        [("d", 1, 0), *(("d", txid, 1) for txid in range(1, PENDING + 1)), ("d", 5, 0)]
    )
    flow.check_counts()
