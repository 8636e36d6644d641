"""A method of a spout that does not return: the driver warns, and names it."""

import logging

import pyarrow as pa
import pytest

from statefx import BasicBolt, Context, FailedException, Spout, TopologyBuilder
from statefx.protocol.identity import TaskId
from statefx.protocol.trees import TreeReport
from statefx.runtime import tracked_spout_task, user_objects
from statefx.runtime.tracked_spout_task import HANGS_SECS, SpoutHost
from statefx.testing import TopologyTester


class Calls(Spout):
    """Calls `inside` with the method's name from within each of its methods."""

    outputFields = "word string"

    def __init__(self, inside, *words):
        self.inside, self.left = inside, list(words)

    def nextTuple(self, collector):
        self.inside("nextTuple")
        if self.left:
            collector.emit((self.left[0],), id=self.left.pop(0))

    def ack(self, id):
        self.inside("ack")

    def fail(self, id):
        self.inside("fail")


class Alone:
    """A spout in its task, and another thread that looks, as the test says."""

    def __init__(self, *words):
        self.now, self.said, self.looks = 0.0, [], {}
        self.spout = Calls(self.inside, *words)
        self.spout.__dict__[user_objects._CONTEXT] = Context({}, "jobs", 3, 4, 1)
        schema = pa.schema([("word", pa.string())])
        self.host = SpoutHost(
            TaskId("jobs", 3), self.spout, {"default": schema}, 0, batch_secs=0.05, pending_max=None, clock=self.clock
        )

    def clock(self):
        return self.now

    def inside(self, name):
        for _ in range(self.looks.get(name, 0)):
            self.look()

    def look(self):
        """Look as with each sign of life, once a second."""
        self.now += 1
        self.said += filter(None, [self.host.hangs()])


def test_a_call_that_does_not_return_is_told_once_with_what_to_do():
    alone = Alone("a")
    alone.host.batch(1)
    alone.looks["nextTuple"] = int(HANGS_SECS)
    alone.host.ask()
    assert alone.said == []  # it has returned before its time was over
    alone.looks["nextTuple"] = int(HANGS_SECS) * 3
    alone.host.ask()
    alone.host.ask()
    (said,) = alone.said
    assert said == (
        "spout 'jobs', task 3: nextTuple has not returned for 10 s, and transactions, acks and fails wait for it: "
        "emit what there is now, and return without waiting for more; it is called again"
    )


@pytest.mark.parametrize(("failed", "name"), [({}, "ack"), ({"bolt 'check': no": None}, "fail")])
def test_acks_and_fails_are_told_too(failed, name):
    alone = Alone("a")
    ((*_, root),) = alone.host.batch(1)
    alone.looks[name] = int(HANGS_SECS) + 1
    alone.host.tell(1, TreeReport(dict.fromkeys(failed, (root,))))
    (said,) = alone.said
    assert said.startswith(f"spout 'jobs', task 3: {name} has not returned for 10 s")
    assert said.endswith("give what it calls a time-out")


def test_many_quick_calls_are_no_hanging_one():
    alone = Alone()
    alone.host.batch(1)
    alone.looks["nextTuple"] = 1
    for _ in range(5 * int(HANGS_SECS)):
        alone.host.ask()
    assert alone.said == []


def test_nothing_is_called_between_two_looks():
    alone = Alone()
    alone.host.batch(1)
    for _ in range(5 * int(HANGS_SECS)):
        alone.look()
    assert alone.said == []


def test_the_driver_logs_it_and_nothing_else_changes(place, caplog, monkeypatch):
    class Check(BasicBolt):
        def execute(self, tup, collector):
            if tup.word == "bad":
                raise FailedException("bad")

    seen = []

    def inside(name):
        seen.append(name)
        for slot in tester._engine.runs[-1].slots.values():  # as the thread that reads from the driver does
            slot.alive()
            slot.alive()

    monkeypatch.setattr(tracked_spout_task, "HANGS_SECS", 0.0)
    monkeypatch.setattr(Calls, "__deepcopy__", lambda self, memo: Calls(inside, *self.left), raising=False)
    builder = TopologyBuilder("slow")
    builder.setSpout("jobs", Calls(None, "a", "bad"))
    builder.setBolt("check", Check()).globalGrouping("jobs")
    with caplog.at_level(logging.WARNING), TopologyTester(builder.createTopology(), place) as tester:
        tester.drain()
    assert {"nextTuple", "ack", "fail"} <= set(seen)
    warnings = [each.split(" has not")[0] for each in caplog.messages if "has not returned" in each]
    assert sorted(warnings) == [f"slow: spout 'jobs', task 0: {name}" for name in ("ack", "fail", "nextTuple")]
