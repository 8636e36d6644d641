"""What becomes of runs, seen from the driver: clocks, confirmations, runs that begin while others end."""

import threading
from asyncio import CancelledError

import pytest

from statefx import Spout, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.coordinator.attempt import Attempt
from statefx.coordinator.retrying import JobFailedError, StoppedError
from statefx.coordinator.runs import READY_SECS, STOPPING_SECS, RunEngine
from statefx.errors import TransactionError
from statefx.plan.levels import compile_plan
from statefx.protocol import messages
from statefx.protocol.commands import Resolution, Segment
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.messages import FrameKind
from statefx.protocol.order import Emission, EmissionOrder, Order, ResolutionOrder
from statefx.protocol.reports import Ack, TreeReport, root_of
from tests.testing.topologies import Count, Split


def plan(segments):
    builder = TopologyBuilder("runs")
    builder.setSpout("words", MemoryTransactionalSpout([[]], "word string"))
    builder.setBolt("split", Split()).fieldsGrouping("words", "word")
    builder.setBolt("count", Count()).fieldsGrouping("split", "word")
    return compile_plan(builder.createTopology(), segments)


class StubRun:
    def __init__(self, id):
        self.id = id
        self.sent = []
        self.outcomes = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.has_ended = False

    def send(self, chain, kind, body=b""):
        self.sent.append((chain, kind))
        if kind is FrameKind.OUTCOME:
            self.outcomes.append(messages.unpack_outcome(body)[1])

    def wait(self):
        pass

    def end(self):
        self.may_end.wait(10)
        self.has_ended = True


class StubEngine(RunEngine):
    def __init__(self, plan, timeout_secs, **more):
        super().__init__(plan, "runs", timeout_secs, **more)
        self.begun = []
        self.before = []

    def start_run(self):
        self.before.append([run.has_ended for run in self.begun])
        self.begun.append(StubRun(f"run-{len(self.begun)}"))
        return self.begun[-1]

    def call_aside(self, name, call):
        call()


class ThreadEngine(StubEngine):
    def call_aside(self, name, call):
        threading.Thread(target=call, daemon=True).start()


class Roots(tuple):
    looks = 0

    def __iter__(self):
        self.looks += 1
        return super().__iter__()


class Words(Spout):
    outputFields = "word string"

    def nextTuple(self, collector):
        pass


def start(engine, segment, txid):
    attempt = Attempt(TransactionAttempt(txid, 0))
    engine.start(attempt, segment, Order(attempt.name, 1))
    return attempt


def resolve(engine, which, txid):
    attempt = Attempt(TransactionAttempt(txid, 0))
    engine.resolve(attempt, "state", ResolutionOrder(which, Order(attempt.name, 1), tuple(engine._plan.stateful)))


def failures(engine):
    found = {}
    while not engine._answers.empty():
        each = engine.next(0.0)
        if each is not None:
            found[each.part, each.attempt.name.txid] = each.failure
    return found


def emitted(engine, txid):
    """Have the chains before the cut run a transaction."""
    start(engine, Segment.PROCESSING, txid)
    run = engine.begun[-1]
    if not engine._ready:
        engine.on_ready(run)
    for task in engine._segments[Segment.PROCESSING].tasks:
        ack = Ack(TransactionAttempt(txid, 0), *task, "token")
        engine.on_frame(run, engine._chain_of[task], FrameKind.ACK, ack.pack())
    assert failures(engine) == {(Segment.PROCESSING, txid): None}
    return run


@pytest.mark.slow
def test_the_first_attempt_of_a_run_has_a_time_limit_too():
    """The driver waits in `next` since before the run was ready, for ever, and nobody tells it that a clock runs."""
    engine = StubEngine(plan(1), 0.2)
    start(engine, Segment.WHOLE, 1)
    found = []
    waiting = threading.Thread(target=lambda: found.append(engine.next(None)), daemon=True)
    waiting.start()
    waiting.join(0.1)  # it waits by now; if it did not yet, the test could only pass
    engine.on_ready(engine.begun[0])
    for _ in range(30):  # `next` may also return None; then the coordinator calls it again
        waiting.join(0.1)
        if not waiting.is_alive():
            if found[-1] is not None:
                break
            waiting = threading.Thread(target=lambda: found.append(engine.next(None)), daemon=True)
            waiting.start()
    assert found, "after 3 s, of a limit of 0.2 s, the attempt is still waited for"
    assert found[-1].failure.data["timeout"]


def test_a_chain_that_restores_state_confirms_an_abandoned_attempt_later():
    now = [0.0]
    engine = StubEngine(plan(2), 10.0, clock=lambda: now[0])
    run = emitted(engine, 1)
    start(engine, Segment.ORDERED, 1)
    third = start(engine, Segment.PROCESSING, 3)
    now[0] = 5.0
    engine.cancel(third)  # another transaction's, in chains that are all free and confirm at once
    for chain in engine.chains:
        if chain.level < engine._plan.cut:
            engine.on_frame(engine.begun[0], chain, FrameKind.CONFIRMED, b"\0" * 7 + b"\x03" + b"\0" * 4)
    now[0] = 15.0
    engine.on_frame(run, engine.chains[-1], FrameKind.RESTORES, b"count/0")
    now[0] = 20.0
    assert engine.next(0.0) is None, "rule 6.9"
    now[0] = 45.0  # since a while it has not reported that it restores any more
    answer = engine.next(0.0) or engine.next(0.0)
    assert (answer.part, answer.failure.data["timeout"]) == (Segment.ORDERED, True)


def test_the_time_in_which_chains_commit_the_transaction_before_does_not_count():
    now = [0.0]
    engine = StubEngine(plan(2), 10.0, clock=lambda: now[0])
    emitted(engine, 2)
    resolve(engine, Resolution.COMMIT, 1)
    start(engine, Segment.ORDERED, 2)
    now[0] = 10.5
    assert engine.next(0.0) is None, "rule 6.9"


@pytest.mark.slow
def test_a_run_begins_when_the_one_before_has_ended():
    """With a port that is set, both listen there: the second is a ConfigError, which ends the query."""
    engine = StubEngine(plan(1), 10.0)
    start(engine, Segment.WHOLE, 1)
    first = engine.begun[0]
    engine.on_ready(first)
    first.may_end.clear()
    over = threading.Thread(target=engine.on_ended, args=(first, JobFailedError("a chain was lost")), daemon=True)
    over.start()
    over.join(0.1)
    starting = threading.Thread(target=start, args=(engine, Segment.WHOLE, 2), daemon=True)
    starting.start()
    starting.join(0.1)
    first.may_end.set()
    starting.join(5)
    over.join(5)
    assert engine.before[1:] == [[True]]


@pytest.mark.parametrize("which", list(Resolution))
def test_a_stop_ends_what_waits_for_slots_that_never_come(which):
    engine = StubEngine(plan(1), 0.2)
    resolve(engine, which, 1)  # its run is never ready
    engine.stop()
    found = [each for each in (engine.next(0.3), engine.next(0.3)) if each is not None]
    assert found, "nothing ends it: query.stop() waits for ever"


@pytest.mark.parametrize("raised", [OSError, CancelledError, SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_call_is_answered_whatever_it_raises(raised):
    """It has a thread of its own: a sink's commit that raised SystemExit was waited for for ever."""
    engine = ThreadEngine(plan(1), 10.0)

    def call():
        raise raised

    engine.call(Attempt(TransactionAttempt(1, 0)), "out", call)
    answer = engine.next(5.0)
    assert answer is not None, "nobody answers"
    assert type(answer.failure) is raised


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", list(Resolution))
def test_a_stop_waits_for_no_hook_that_never_returns(which, when):
    """One whose run is there is given a while; the next start goes on with what it leaves."""
    now = [0.0]
    engine = StubEngine(plan(1), 0.2, clock=lambda: now[0])
    engine.open()
    engine.on_ready(engine.begun[0])
    now[0] = 100.0
    if when == "before":
        resolve(engine, which, 1)
    engine.next(0.0)
    now[0] = 200.0
    engine.stop()
    if when == "after":
        resolve(engine, which, 1)
    found = failures(engine)
    assert bool(found) == (which is Resolution.COMMIT and when == "before"), "a rollback belongs to the stop"
    now[0] += STOPPING_SECS
    answers = [*found.values(), *(each.failure for each in (engine.next(0.0),) if each is not None)]
    assert list(map(type, answers)) == [StoppedError]


@pytest.mark.parametrize("another_has_begun", [False, True])
def test_what_reads_rows_of_a_run_that_is_over_fails_at_once(another_has_begun):
    """The run was lost when nothing of the attempt was under way: the chains of another one would wait for the rows."""
    engine = StubEngine(plan(2), 10.0)
    first = emitted(engine, 1)
    engine.on_ended(first, JobFailedError("a chain was lost"))
    if another_has_begun:
        emitted(engine, 2)
    start(engine, Segment.ORDERED, 1)
    assert type(failures(engine)[Segment.ORDERED, 1]) is JobFailedError
    assert len(engine.begun) == 1 + another_has_begun


def test_what_reads_rows_of_this_run_is_sent_its_order():
    engine = StubEngine(plan(2), 10.0)
    run = emitted(engine, 1)
    emitted(engine, 2)
    for txid in (1, 2):
        run.sent.clear()
        start(engine, Segment.ORDERED, txid)
        assert [kind for _, kind in run.sent] == [FrameKind.RUN]
    assert not engine._emitted


def test_a_run_whose_chains_do_not_come_is_over_after_a_while():
    """A worker that hangs before it connects: Spark sees a task that runs, and no clock of an attempt has begun."""
    now = [0.0]
    engine = StubEngine(plan(1), 10.0, clock=lambda: now[0])
    start(engine, Segment.WHOLE, 1)
    now[0] = READY_SECS - 1
    assert engine.next(0.0) is None
    now[0] = READY_SECS
    failure = engine.next(0.0).failure
    assert type(failure) is JobFailedError
    assert "not all of its 3 tasks of Spark were there after 300 s" in failure.message
    assert engine.begun[0].has_ended
    start(engine, Segment.WHOLE, 2)
    engine.on_ready(engine.begun[1])
    now[0] += 9
    assert not failures(engine), "the other one's time begins anew"


@pytest.mark.parametrize("is_ready", [True, False])
def test_orders_that_are_too_long_end_the_transaction_before_any_chain_begins(monkeypatch, is_ready):
    engine = StubEngine(plan(1), 10.0)
    if is_ready:
        start(engine, Segment.WHOLE, 1)
        engine.on_ready(engine.begun[0])
        assert len(engine.begun[0].sent) == len(engine.chains)
    told = {TaskId("words", 0): EmissionOrder(Emission.AGAIN, {"0": "x" * 10_000})}
    monkeypatch.setattr(messages, "FRAME_BYTES_MAX", 10_000)
    attempt = Attempt(TransactionAttempt(2, 0))
    engine.start(attempt, Segment.WHOLE, Order(attempt.name, 1, emissions=told))
    if not is_ready:
        engine.on_ready(engine.begun[0])
    failure = failures(engine)[Segment.WHOLE, 2]
    assert type(failure) is TransactionError, "no other attempt helps"
    assert "what transaction 2 tells words/0 is 10" in failure.message
    assert "setSpout(id, spout, parallelism=...)" in failure.message
    assert len(engine.begun[0].sent) == (len(engine.chains) if is_ready else 0)


def test_a_run_that_can_not_be_ended_or_begun_is_told():
    """As of a session that is stopped meanwhile; in `over`, which is called by threads in which nobody hears of it."""
    engine = StubEngine(plan(1), 10.0)
    start(engine, Segment.WHOLE, 1)
    engine.on_ready(engine.begun[0])
    engine.begun[0].end = lambda: {}["the session is gone"]
    engine.on_ended(engine.begun[0], JobFailedError("a chain was lost"))
    assert type(failures(engine)[Segment.WHOLE, 1]) is JobFailedError
    engine.start_run = lambda: {}["the session is gone"]
    start(engine, Segment.WHOLE, 2)
    assert type(failures(engine)[Segment.WHOLE, 2]) is KeyError


def test_each_outcome_is_told_to_the_chain_of_its_spout_and_not_looked_at_for_each_chain():
    """A root of an earlier start is told to the task that asked, whatever task has its number now."""
    tasks = 40
    builder = TopologyBuilder("runs")
    builder.setSpout("words", Words(), tasks)
    builder.setBolt("count", Count()).fieldsGrouping("words", "word")
    engine = StubEngine(compile_plan(builder.createTopology(), 1), 10.0)
    engine.open()
    [run] = engine.begun
    engine.on_ready(run)
    old = [[root_of(1, tasks + 1 - number, place) for place in range(4)] for number in range(tasks)]
    asked = {f"words/{number}": tuple((root, b"id") for root in roots) for number, roots in enumerate(old)}
    for txid, pending in ((2, asked), (3, {})):  # some end in the transaction in which they are told
        held = Roots(root_of(txid, number, 0) for number in range(tasks))
        acked, failed = (Roots(roots[2 * (txid - 2) + place] for roots in old) for place in range(2))
        report = TreeReport({"why": failed}, Roots((*acked, root_of(1, 3 * tasks, 0))), held, pending)
        engine.send_outcomes(txid, report)
        assert max(held.looks, failed.looks, report.acked.looks) <= 2
        assert run.outcomes == [
            TreeReport({"why": (ends[1],)}, (ends[0],), (ends[2],), {name: pending[name]} if pending else {})
            for name, *ends in zip(asked, acked, failed, held, strict=True)
        ]
        run.outcomes.clear()
