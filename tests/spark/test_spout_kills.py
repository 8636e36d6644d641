"""Spouts of three kinds with four transactions in flight: drivers are killed, and the next ones recover and go on."""

import pytest

from tests.spark.drivers import log_of
from tests.spark.spouting import PENDING, Places, expected, outcome

pytestmark = pytest.mark.slow

EACH = 20
"""Rows of a partition: five transactions, and some more where an opaque spout takes fewer."""


class Chain:
    """Drivers on one checkpoint; each is killed while its tasks wait in a phase."""

    def __init__(self, drivers, player, place):
        self.drivers, self.player, self.place, self.places = drivers, player, place, Places(place)
        self.fell, self.generation = [], 0

    def kill(self, phase, left=PENDING, processed=False, **held):
        """Start a driver, and kill it when so many transactions are in flight, and a task waits in `phase`."""
        self.generation += 1
        for each, txid in (held or {phase: 1}).items():
            self.places.hold(each, self.generation, txid)

        def reached(log):
            there = log.generation == self.generation and self.places.held(phase, self.generation)
            return there and len(log.in_flight) == left and (log.in_flight[-1].processed or not processed)

        driver = self.drivers(self.place, "rocksdb", program="tests.spark.spouting", each=EACH)
        driver.wait_until(reached, f"{phase} of generation {self.generation}")
        driver.kill()
        self.fell.append((phase, str(log_of(self.place).in_flight[0].phase)))
        self.places.release()

    def end(self):
        """Nobody kills the last driver; return what it recovers."""
        said = self.player.play("tests.spark.spouting", self.place, each=EACH)
        assert outcome(self.place) == (expected(EACH), expected(EACH))
        return said["recoveries"]


def test_the_driver_is_killed_while_tasks_commit(drivers, player, place):
    chain = Chain(drivers, player, place)
    chain.kill("commit")
    recoveries = chain.end()
    assert chain.fell == [("commit", "COMMITTING")]
    assert [each["rolled"] for each in recoveries] == ["forward", *["back"] * (PENDING - 1)]


@pytest.mark.soak
def test_the_driver_is_killed_in_every_phase(drivers, player, place):
    """Also in its recovery from what the one before has left."""
    chain = Chain(drivers, player, place)
    chain.kill("emit", execute=1, emit=PENDING)
    chain.kill("rollback", left=1)  # the later ones are rolled back by then
    chain.kill("execute", processed=True)
    chain.kill("prepare")
    chain.kill("commit")
    chain.kill("commit", left=2)  # committers of the second one may have run: its rollback waits for this commit
    assert chain.end() == [{"txid": 1, "rolled": "forward"}, {"txid": 2, "rolled": "back"}]
    assert [phase for _, phase in chain.fell] == ["PREPARING"] * 4 + ["COMMITTING"] * 2
