"""Spouts, four transactions in flight, on one Spark session: stops, second drivers, killed workers in every phase."""

import threading

import pytest

from statefx import submit
from statefx.testing import TopologyTester
from tests.spark.drivers import log_of
from tests.spark.running import BOUND_SECS, wait_for
from tests.spark.spouting import PENDING, PHASES, Places, config, expected, outcome, spouts

pytestmark = pytest.mark.slow

ON = {"processingTime": "0 seconds"}
HELD = {
    # phase: what is held, and from which transaction of the driver on
    "emit": {"execute": 1, "emit": PENDING},
    "execute": {"execute": 1},
    "prepare": {"prepare": 1},
    "commit": {"commit": 1},
    "rollback": {"execute": 1},  # which then fails: held from the start, the recovery would wait as well
}


class Phases:
    """Starts a driver, and waits until its tasks wait in a phase."""

    def __init__(self, spark, place, each):
        self.spark, self.place, self.each, self.places = spark, place, each, Places(place)
        self.generation = 0

    def started(self, phase):
        """A query whose lowest transaction waits in `phase`, with as many behind it as there may be."""
        self.generation += 1
        first = self.log.committed + 1
        first += self.log.committing is not None  # which is committed first of all
        for held, nth in HELD[phase].items():
            self.places.hold(held, self.generation, first + nth - 1)
        query = submit(spouts(self.place, self.each), self.spark, self.place / "ck", config(), ON)
        wait_for(lambda: self.held("execute" if phase == "rollback" else phase), f"a task to be in {phase}")
        wait_for(lambda: len(self.log.in_flight) == PENDING, "four transactions to be in flight")
        if phase == "rollback":
            self.places.hold("rollback", self.generation)
            self.places.fail("execute", first)
            self.places.release("execute")
            wait_for(lambda: self.held("rollback"), "a task to be told of the rollback")
        return query

    def held(self, phase):
        return self.places.held(phase, self.generation)

    @property
    def log(self):
        return log_of(self.place)

    def end(self):
        """What is left, without Spark."""
        self.places.release()
        with TopologyTester(spouts(self.place, self.each), self.place / "ck", config()) as tester:
            tester.drain()
        assert outcome(self.place) == (expected(self.each), expected(self.each))


@pytest.mark.soak
@pytest.mark.parametrize("timeout", [BOUND_SECS, 0])
def test_stop_in_every_phase(spark, place, timeout):
    """With time, the lowest transaction ends; without, it is rolled back, unless it is decided."""
    phases = Phases(spark, place, 60)
    for phase in PHASES:
        stopped(phases, phases.started(phase), timeout)
        assert not timeout or not phases.log.in_flight, "the next driver has nothing to recover"
    phases.end()


def stopped(phases, query, timeout):
    """Stop a query whose tasks wait, and let them go on when what is above the lowest transaction is rolled back."""
    stop = threading.Thread(target=query.stop, args=(timeout,))
    stop.start()
    wait_for(lambda: not query.isActive or len(phases.log.in_flight) < PENDING, "later ones to be rolled back")
    phases.places.release()
    stop.join(BOUND_SECS)
    assert not query.isActive
    assert query.exception() is None
