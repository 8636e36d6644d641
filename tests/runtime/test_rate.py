"""How fast a task begins calls: within any span no more than the rate and its burst, and no less if time comes late."""

import random
import threading
import time

import pytest

from statefx.runtime.rate import BURST_SECS, Rate
from statefx.testing import TopologyTester
from tests.runtime.test_async_bolts import Later, built, given
from tests.runtime.test_batch_calls import Batches


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("per_second", [0.3, 1, 7, 100, 33_333.3])
@pytest.mark.parametrize("seed", range(4))
def test_no_span_has_more_calls_than_its_rate_and_one_burst(per_second, seed):
    chance, clock = random.Random(seed), Clock()
    rate = Rate(per_second, clock)
    begun = []
    while len(begun) < 400:
        wait = rate.wait_secs()
        if wait:
            assert rate.available == 0
            clock.now += wait * chance.choice([1.0, 1.0, 1.5, 0.5, 30.0])  # timers come late, or for another cause
            continue
        assert rate.available >= 1
        rate.take()
        begun.append(clock.now)
    burst = max(1.0, per_second * BURST_SECS)
    for first in range(0, 400, 7):
        for last in range(first, 400, 11):
            assert last - first + 1 <= burst + (begun[last] - begun[first]) * per_second + 1e-6


def test_a_timer_that_comes_late_costs_nothing_up_to_the_burst():
    clock = Clock()
    rate, number = Rate(1000, clock), 0
    while clock.now < 110.0:
        clock.now += 0.01
        while not rate.wait_secs():
            rate.take()
            number += 1
    assert number == pytest.approx(10_000, abs=60)


def test_it_tells_how_long_calls_have_waited():
    clock = Clock()
    rate = Rate(10, clock)
    rate.take()
    clock.now += 0.04
    assert rate.wait_secs() == pytest.approx(0.06)
    clock.now += 0.06
    assert rate.wait_secs() == 0
    clock.now += 5
    rate.take()
    assert rate.take_waited_secs() == pytest.approx(0.06)
    assert rate.take_waited_secs() == 0


class Timed(Later):
    """Notes when its calls began."""

    async def execute(self, tup, collector):
        TIMES.append(time.monotonic())


class TimedBatches(Batches):
    async def executeBatch(self, batch, collector):
        TIMES.append(time.monotonic())


class TimedInThreads(Timed):
    threads = 4

    def execute(self, tup, collector):
        threading.Event().wait(0.001)
        TIMES.append(time.monotonic())


TIMES = []


@pytest.mark.slow
@pytest.mark.parametrize(
    "bolt", [Timed(ratePerSecond=400), TimedBatches(ratePerSecond=400, maxBatch=1)], ids=["one", "batch"]
)
def test_calls_begin_no_faster_in_transactions_and_attempts(bolt):
    """The bucket of a task outlives its objects: a transaction begins with what the one before has left."""
    TIMES.clear()
    with TopologyTester(built(bolt)) as tester:
        for _ in range(3):
            tester.send({"in": given(20)})
    assert len(TIMES) == 60
    assert TIMES[-1] - TIMES[0] >= (60 - 1 - 400 * BURST_SECS) / 400 - 0.005


def test_a_batch_is_one_call():
    TIMES.clear()
    with TopologyTester(built(TimedBatches(ratePerSecond=1000, maxBatch=10))) as tester:
        tester.send({"in": given(100)})
    assert len(TIMES) == 10


def test_the_time_of_calls_in_threads_does_not_count_as_waiting():
    TIMES.clear()
    with TopologyTester(built(TimedInThreads(ratePerSecond=500, timeout="1 second"))) as tester:
        tester.send({"in": given(30)})
    assert len(TIMES) == 30
