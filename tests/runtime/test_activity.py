"""How the time of a chain divides among its tasks."""

import threading
import time
from itertools import pairwise

import pytest

from statefx import BasicBolt, TopologyBuilder
from statefx.plan.levels import compile_plan
from statefx.protocol.identity import TaskId
from statefx.protocol.messages import FrameError, pack_activity, unpack_activity
from statefx.protocol.reports import ACTIVITIES
from statefx.runtime.activity import BLOCKED, COSTS, IDLE, ChainClock, Meter, Stolen
from statefx.runtime.worker import Worker
from statefx.testing import rows
from tests.bolts import Pass
from tests.runtime.one_chain import chain_attempt, deployment, order_of

FIRST, SECOND, THIRD = (TaskId(name, 0) for name in "abc")


class Hand:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def clock(hand):
    return ChainClock((FIRST, SECOND, THIRD), hand)


def spent(clock, task):
    return {activity: ms / 1000 for activity, ms in clock.of(task).items() if ms}


def test_a_busy_task_blocks_those_before_it(clock, hand):
    hand.now = 2
    clock.enter(clock.busy(SECOND))
    hand.now = 5
    clock.enter(IDLE)
    assert spent(clock, FIRST) == {"idle": 2, "blocked": 3}
    assert spent(clock, SECOND) == {"idle": 2, "busy": 3}
    assert spent(clock, THIRD) == {"idle": 5}


def test_rows_that_wait_to_leave_block_all(clock, hand):
    clock.enter(BLOCKED)
    hand.now = 4
    assert [spent(clock, task) for task in (FIRST, SECOND, THIRD)] == [{"blocked": 4}] * 3


def test_restoring_and_committing_are_the_tasks_own(clock, hand):
    clock.enter(clock.busy(SECOND))
    hand.now = 3
    clock.restored(SECOND, 2)
    clock.enter(clock.committing(THIRD))
    hand.now = 4
    assert spent(clock, SECOND) == {"busy": 1, "restoring": 2, "idle": 1}
    assert spent(clock, THIRD) == {"idle": 3, "committing": 1}
    assert spent(clock, FIRST) == {"blocked": 1, "idle": 3}


def test_states_nest(clock, hand):
    clock.enter(clock.busy(FIRST))
    before = clock.enter(clock.busy(SECOND))
    hand.now = 1
    clock.enter(before)
    hand.now = 3
    assert spent(clock, FIRST) == {"blocked": 1, "busy": 2}


def test_times_of_each_task_add_up_to_the_wall_clock(clock, hand):
    states = [IDLE, BLOCKED, *(clock.busy(task) for task in (FIRST, SECOND, THIRD)), clock.committing(SECOND)]
    for number in range(50):
        clock.enter(states[number * 7 % len(states)])
        hand.now += 0.1 * (number % 5)
    for task in (FIRST, SECOND, THIRD):
        assert sum(spent(clock, task).values()) == pytest.approx(hand.now, abs=0.01)


class Slow(BasicBolt):
    outputFields = "value string"

    def execute(self, tup, collector):
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            pass
        collector.emit(tuple(tup))


def test_a_chain_charges_a_task_with_what_it_does(tmp_path):
    builder = TopologyBuilder("slow")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("slow", Slow()).localOrShuffleGrouping("lines")
    plan = compile_plan(builder.createTopology())
    assert len(plan.levels) == 1, "one chain"
    own, acks = deployment(tmp_path, plan), []
    began = time.perf_counter()
    order = order_of(own, {"lines": [("a",), ("b",)]})
    list(chain_attempt(Worker(), own, order, acks=acks).run([]))
    wall_ms = (time.perf_counter() - began) * 1000
    assert [ack.failed for ack in acks] == [None, None]
    lines, slow = (ack.activity for ack in acks)
    assert slow["busy"] >= 40
    assert lines["blocked"] >= 40
    assert lines["busy"] < 40
    for activity in (lines, slow):
        assert list(activity) == list(ACTIVITIES)
        assert sum(activity.values()) <= wall_ms
    assert all(ack.sent_bytes for ack in acks[:1])


@pytest.fixture
def costs():
    return dict.fromkeys(COSTS, 0.0)


def test_a_thread_that_works_is_on_the_processor_or_ready_to_run(costs):
    """On any machine, however full."""
    meter, end = Meter.read(), time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    meter.charge(costs)
    assert costs["cpu"] >= 0.05
    assert costs["cpu"] + costs["queued"] >= 0.5 * costs["own"]


@pytest.mark.slow
def test_a_thread_that_waits_is_neither(costs):
    meter = Meter.read()
    threading.Event().wait(0.2)
    meter.charge(costs)
    assert costs["own"] >= 0.2
    assert costs["cpu"] < 0.1


def test_without_figures_of_the_queue_nothing_is_said_of_the_processor(costs, monkeypatch):
    monkeypatch.setattr("statefx.runtime.activity.queued_secs", lambda: None)
    meter, end = Meter.read(), time.thread_time() + 0.01
    while time.thread_time() < end:
        pass
    meter.charge(costs)
    assert costs["own"] >= 0.01
    assert costs["cpu"] == costs["queued"] == 0.0


def test_what_a_hypervisor_takes_is_counted_by_what_was_worked():
    now, lines = [0.0], ["cpu  100 0 100 900 50 0 0 10 0 0\ncpu0 1 2"]
    stolen = Stolen(lambda: lines[0], lambda: now[0])
    assert stolen.ratio() == 0.0
    lines[0] = "cpu  150 0 150 900 50 0 0 60 0 0\ncpu0 1 2"
    assert stolen.ratio() == 0.0, "not looked at twice in a second"
    now[0] = 1.5
    assert stolen.ratio() == 0.5
    for place, text in enumerate(("", "cpu  1 2", "cpu a b c d e f g h")):
        now[0], lines[0] = 3.0 + 2 * place, text
        assert stolen.ratio() == 0.5, "as before"


def test_the_clock_is_read_by_the_batch_and_never_by_the_row(tmp_path, monkeypatch):
    read = []
    enter = ChainClock.enter
    monkeypatch.setattr(ChainClock, "enter", lambda clock, state: (read.append(state), enter(clock, state))[1])
    builder = TopologyBuilder("passing")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("passes", Pass("value string")).localOrShuffleGrouping("lines")
    own = deployment(tmp_path, builder.createTopology())
    found = []
    for number in (1, 5_000):
        read.clear()
        list(chain_attempt(Worker(), own, order_of(own, {"lines": [("a",)] * number})).run([]))
        found.append(len(read))
    assert 0 < found[0] == found[1]


def test_activity_travels_in_a_frame():
    times = {FIRST: dict.fromkeys(ACTIVITIES, 1.5), SECOND: {}}
    assert unpack_activity(pack_activity(times)) == times
    with pytest.raises(FrameError, match="ACTIVITY"):
        unpack_activity(b"\xff")


def test_totals_of_a_chain_only_grow(clock, hand):
    seen = []
    for state in (clock.busy(FIRST), BLOCKED, IDLE, clock.committing(FIRST)):
        clock.enter(state)
        hand.now += 1
        seen.append(clock.of(FIRST))
    assert all(one[name] <= other[name] for one, other in pairwise(seen) for name in ACTIVITIES)
