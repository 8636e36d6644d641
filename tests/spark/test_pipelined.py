"""Topologies of spouts in one Spark job that lives: what fails is rolled back in place, or a new run begins."""

import pytest

from statefx import submit
from statefx.errors import ConfigError
from tests.spark.spouting import Places, begun, expected, outcome

pytestmark = pytest.mark.slow

EACH = 20


@pytest.fixture
def places(place):
    return Places(place)


@pytest.fixture
def ran(drivers, place):
    """Run a driver with the pipelined engine to its end; return what it said."""

    def run(**more):
        driver = drivers(
            place, "rocksdb", program="tests.spark.spouting", more={"engine": "pipelined", **more}, each=EACH
        )
        driver.end()
        assert outcome(place) == (expected(EACH), expected(EACH))
        return driver.said

    return run


def test_attempts_that_fail_are_rolled_back_in_place(places, ran):
    """Before the cut, and behind it with others in flight: no other run begins."""
    places.fail("emit", 2)
    places.fail("execute", 3)
    places.fail("prepare", 4)
    said = ran()
    assert (said["engine"], said["runs"]) == ("pipelined", 1)


def test_a_worker_is_killed_at_each_step_and_another_run_goes_on(places, ran):
    places.kill("emit", 1)
    places.kill("execute", 2)
    places.kill("prepare", 3)
    places.kill("commit", 4)
    assert ran()["runs"] >= 5  # a machine that is very busy may lose another one


def test_a_worker_is_stopped_and_another_run_goes_on(places, ran):
    places.stop("execute", 2)
    assert ran(silence_secs=3)["runs"] >= 2


def test_too_few_slots_are_told_before_anything_runs(spark, place):
    with pytest.raises(ConfigError) as refused:
        submit(*begun(spark, place, {"each": EACH}, engine="pipelined"))
    assert "need 6 slots of Spark" in str(refused.value)
    assert "local[2] has 2: take local[n] for a larger n" in str(refused.value)
    assert not (place / "ck").exists()
