"""The interval join on Spark: what comes out is what a plain recount says, also when drivers are killed."""

import pytest

from tests.runtime.joining import check
from tests.spark.drivers import log_of
from tests.spark.joining import life_of

pytestmark = [pytest.mark.slow, pytest.mark.spark]

SEED = 11
"""Of a life with rows in all streams."""


SLOWLY = {"processingTime": "200 milliseconds"}
"""Else all transactions of spouts are over before one is seen."""


@pytest.mark.soak
def test_a_join_of_spouts_is_as_a_recount_says(player, place):
    player.play("tests.spark.joining", place, more={"seed": SEED, "inputs": "spouts"})
    check_all(place)


@pytest.mark.soak
@pytest.mark.parametrize("inputs", ["frames", "spouts"])
def test_drivers_that_are_killed_change_nothing(drivers, place, inputs):
    more = {"seed": SEED, "inputs": inputs}
    driver = drivers(place, program="tests.spark.joining", more=more, trigger=SLOWLY)
    driver.wait_until(lambda log: log.committed >= 3, "three transactions")
    driver.kill()
    before = log_of(place).committed
    drivers(place, program="tests.spark.joining", more=more).end()
    assert log_of(place).committed > before + 3
    check_all(place)


def check_all(place):
    emitted = check(life_of(SEED), place)
    rows = (emitted["default"], emitted["unmatchedLeft"], emitted["unmatchedRight"])
    assert all((*rows, emitted["lateLeft"] + emitted["lateRight"])), "a stream had no rows: take another seed"
