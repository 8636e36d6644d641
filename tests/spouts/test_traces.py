"""What is told of messages that have failed: which bolts hold, and with ``topology.trace`` what each bolt did."""

import pytest

from statefx import BasicBolt, Bolt, Spout, TopologyBuilder
from statefx.coordinator import tracing
from statefx.coordinator.tracing import Traces
from statefx.errors import FailedException
from statefx.protocol.identity import TaskId
from statefx.protocol.reports import Handled, TreeReport, root_of
from statefx.runtime import trees
from statefx.runtime.trees import Trees
from statefx.testing import TopologyTester

FED, WHY = [], {}
TIMEOUT = {"topology.message.timeout.secs": 10}
TRACE = {**TIMEOUT, "topology.trace": True}


@pytest.fixture(autouse=True)
def cleared():
    FED.clear()
    WHY.clear()


class Fed(Spout):
    outputFields = "word string"

    def open(self, context):
        self.context = context

    def nextTuple(self, collector):
        while FED:
            collector.emit((FED[0],), id=FED.pop(0))

    def ack(self, id):
        WHY[id] = "acked"

    def fail(self, id):
        WHY[id] = self.context.failure


class Split(BasicBolt):
    outputFields = "word string, letter string"

    def execute(self, tup, collector):
        for letter in tup.word:
            collector.emit((tup.word, letter))


class Letters(Bolt):
    """Forgets ``x``, refuses ``-``, acks all that it has kept with ``!``; acks other letters."""

    outputFields = "word string, letter string"

    def open(self, context):
        self.kept = []

    def execute(self, tup, collector):
        if tup.letter == "x":
            self.kept.append(tup)
            return
        if tup.letter == "!":
            for each in self.kept:
                collector.ack(each)
            self.kept = []
        if tup.letter == "-":
            raise FailedException("a dash")
        collector.ack(tup)


def begun(place, config):
    builder = TopologyBuilder("traced")
    builder.setSpout("fed", Fed())
    builder.setBolt("split", Split()).globalGrouping("fed")
    builder.setBolt("letters", Letters()).globalGrouping("split")
    tester = TopologyTester(builder.createTopology(), place, config, freshObjects=False)
    tester.emit()
    return tester


def feed(tester, *words):
    FED.extend(words)
    tester.emit()


def heard():
    return dict(WHY)


def warnings(caplog):
    return [each for each in caplog.messages if "have failed" in each]


def test_the_warning_of_a_time_out_names_the_bolts_that_hold_tuples(place, caplog):
    with begun(place, TIMEOUT) as tester:
        feed(tester, "axx", "x")
        tester.advance(11)
        feed(tester)
    assert heard() == dict.fromkeys(("axx", "x"), "it was not acked within 10 s")
    (warning,) = warnings(caplog)
    assert warning == (
        "traced: transaction 3: 2 tuples of spouts have failed, the first: it was not acked within 10 s. Since the "
        "query began these have held tuples and neither acked nor failed them: letters/0 (3)"
    )


@pytest.mark.slow
def test_what_was_acked_later_is_not_held_any_more(place, caplog):
    with begun(place, TIMEOUT) as tester:
        feed(tester, "xx")
        feed(tester, "!")
        feed(tester, "x")
        tester.advance(11)
        feed(tester)
    assert heard() == {"xx": "acked", "!": "acked", "x": "it was not acked within 10 s"}
    assert warnings(caplog)[0].endswith("neither acked nor failed them: letters/0 (1)")


def test_the_warning_of_a_time_out_says_if_no_bolt_holds_a_tuple():
    """What was held in attributes is lost with its worker; what was held before the driver began, it does not know."""
    traces = Traces()
    traces.explained(4, TreeReport(holding={A: -2}))
    late = TreeReport({"it was not acked within 10 s": (1,)})
    assert traces.warning(5, late).endswith(
        "Since the query began no bolt has held a tuple that it has not acked or failed by now"
    )


def test_a_trace_says_who_held_the_message_since_when(place, caplog):
    with begun(place, TRACE) as tester:
        feed(tester, "axx", "ok")
        tester.advance(11)
        feed(tester)
        assert tester._coordinator.traces._known == {}
    trace = (
        "it was not acked within 10 s; emitted by fed/0 in transaction 2; split/0 received 1, acked 1; letters/0 "
        "received 3, acked 1, holds 2 since transaction 2"
    )
    assert heard() == {"ok": "acked", "axx": trace}
    assert trace in warnings(caplog)[0]


def test_a_trace_says_what_was_acked_before_a_bolt_failed_the_message(place):
    with begun(place, TRACE) as tester:
        feed(tester, "a-")
        feed(tester, "x-")
    assert heard() == {
        word: f"bolt 'letters': a dash; emitted by fed/0 in transaction {txid}; split/0 received 1, acked 1; "
        f"letters/0 received 2, {did}failed 1{held}"
        for txid, word, did, held in ((2, "a-", "acked 1, ", ""), (3, "x-", "", ", holds 1 since transaction 3"))
    }


@pytest.mark.slow
def test_a_trace_goes_over_transactions(place):
    class Late(Letters):
        def execute(self, tup, collector):
            if tup.letter == "?":
                collector.fail(self.kept.pop(), "too late")
            super().execute(tup, collector)

    builder = TopologyBuilder("traced")
    builder.setSpout("fed", Fed())
    builder.setBolt("split", Split()).globalGrouping("fed")
    builder.setBolt("late", Late()).globalGrouping("split")
    with TopologyTester(builder.createTopology(), place, TRACE, freshObjects=False) as tester:
        for words in ([], ["xx"], [], ["?"]):
            feed(tester, *words)
    assert heard() == {
        "?": "acked",
        "xx": "bolt 'late': too late; emitted by fed/0 in transaction 2; split/0 received 1, acked 1; late/0 "
        "received 2, failed 1, holds 1 since transaction 2",
    }


# ---- by itself

FED_0, A, B = TaskId("fed", 0), "a/0", "b/0"


def failed(*roots, why="bolt 'a': no", **more):
    return TreeReport({why: roots}, **more)


def test_a_driver_that_began_later_says_what_it_does_not_know():
    root = root_of(3, 0, 5)
    report = Traces([FED_0], ["fed", "a", "b"], tracing=True).explained(
        9, failed(root, steps={A: {root: Handled(0, 0, 1, 1)}})
    )
    assert report.failed == {
        "bolt 'a': no; emitted by a spout in transaction 3; what bolts did before transaction 9 an earlier driver "
        "knew; a/0 failed 1": (root,)
    }


def test_one_that_two_bolts_have_failed_is_told_once():
    root = root_of(1, 0, 0)
    both = TreeReport({"bolt 'a': no": (root,), "bolt 'b': no": (root,)})
    traces = Traces([FED_0], ["fed", "a", "b"], tracing=True)
    assert traces.explained(1, both).failed == {"bolt 'a': no; emitted by fed/0 in transaction 1": (root,)}
    assert "1 tuples of spouts have failed" in traces.warning(1, both)


def test_traces_are_bounded(monkeypatch):
    monkeypatch.setattr(tracing, "KNOWN_MAX", 2)
    monkeypatch.setattr(tracing, "EXPLAINED_MAX", 3)
    monkeypatch.setattr(tracing, "TASKS_SHOWN", 1)
    roots = [root_of(1, 0, place) for place in range(5)]
    traces = Traces([FED_0], ["fed", "a", "b"], tracing=True)
    did = dict.fromkeys(roots, Handled(1, 1, 0, 0))
    traces.explained(1, TreeReport(held=tuple(roots), steps={A: did, B: did}))
    assert list(traces._known) == roots[:2]
    found = traces.explained(2, failed(*roots)).failed
    emitted = "bolt 'a': no; emitted by fed/0 in transaction 1"
    assert found == {
        f"{emitted}; a/0 received 1, holds 1 since transaction 1; and 1 more tasks": tuple(roots[:2]),
        emitted: (roots[2],),
        "bolt 'a': no": tuple(roots[3:]),
    }
    assert traces._known == {}


def test_what_is_held_is_held_since_the_first_of_its_transactions_and_forgotten_when_it_is_acked():
    traces, roots = Traces([FED_0], ["fed", "a"], tracing=True), (root_of(1, 0, 0), root_of(1, 0, 1))
    for txid in (1, 2):
        traces.explained(txid, TreeReport(held=roots, steps={A: dict.fromkeys(roots, Handled(1, 1, 0, 0))}))
    traces.explained(3, TreeReport(acked=roots[1:]))
    assert list(traces._known) == [roots[0]]
    (why,) = traces.explained(4, failed(roots[0])).failed
    assert why.endswith("; a/0 received 2, holds 2 since transaction 1")


def test_without_tracing_nothing_is_kept_of_a_message():
    traces, root = Traces([FED_0]), root_of(1, 0, 0)
    report = TreeReport({"no": (root,)}, held=(root,), steps={A: {root: Handled(1, 1, 0, 0)}})
    assert traces.explained(1, report) is report
    assert traces._known == {}


def test_a_task_traces_so_many_trees_and_none_if_it_is_off(monkeypatch):
    monkeypatch.setattr(trees, "TRACED_MAX", 2)
    task = Trees("a", by_hand=False, acker=False, tracing=True)
    assert list(task.received([1, [2, 3], None, 1])) == [1, [2, 3], None, 1]
    assert task.report(A).steps == {A: {1: Handled(2, 0, 0, 0), 2: Handled(1, 0, 0, 0)}}
    task = Trees("a", by_hand=False, acker=False)
    task.fail_tuple(None, 1, "no")
    assert task.report(A) == TreeReport({"bolt 'a': no": (1,)})
