"""Windows, timers and a time to live on Spark: drivers and workers are killed, and a plain recount says the same."""

import pytest

from tests.spark.counting import ONCE
from tests.spark.drivers import ON, log_of
from tests.spark.running import wait_for
from tests.spark.spouting import Places
from tests.spark.windowing import (
    ON_UNTIL_RUNG,
    ROWS_EACH,
    TRANSACTIONS,
    alarmed,
    recounted,
    recounted_alarms,
    told,
)

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

PLACES = {"execute": 4, "emit": 12, "commit": 14}
"""Among the rows, among the windows or timers, and behind the decision; and from which transaction on."""

END_SECS = 300
"""For twenty transactions of jobs, on a machine that does much else."""


class Lives:
    """Drivers on one checkpoint, one after the other."""

    def __init__(self, drivers, place, what):
        self.drivers, self.place, self.more = drivers, place, {"what": what}
        self.places, self.generation = Places(place), 0

    def start(self, trigger=ONCE):
        self.generation += 1
        return self.drivers(self.place, program="tests.spark.windowing", more=self.more, trigger=trigger)

    def end(self):
        """Start the last driver, and wait for its end."""
        driver = self.start()
        driver.process.wait(END_SECS)
        return driver.end()

    def kill(self, phase, txid):
        """Start a driver, and kill it when a task is at a place."""
        self.places.hold(phase, self.generation + 1, txid)
        driver = self.start()
        driver.wait_until(lambda log: self.places.held(phase, self.generation), f"{phase} of {self.generation}")
        driver.kill()
        self.places.release()
        assert log_of(self.place).in_flight


@pytest.mark.soak
@pytest.mark.parametrize("inputs", ["spouts", "frames"])
def test_drivers_and_a_worker_are_killed_among_rows_among_windows_and_in_a_commit(drivers, place, inputs):
    lives = Lives(drivers, place, inputs)
    for phase, txid in PLACES.items():
        lives.kill(phase, txid)
    lives.places.kill("execute", 17)
    said = lives.end()
    assert (place / "killed-execute").exists()
    assert [each["rolled"] for each in said["recoveries"]] == ["forward"]
    assert told(place) == recounted(inputs)


@pytest.mark.soak
def test_workers_are_killed_among_rows_among_windows_and_in_a_commit(player, place):
    for phase, txid in PLACES.items():
        Places(place).kill(phase, txid)
    player.play("tests.spark.windowing", place, more={"what": "spouts"})
    assert {each.name for each in place.glob("killed-*")} == {f"killed-{phase}" for phase in PLACES}
    assert told(place) == recounted("spouts")


@pytest.mark.soak
def test_of_dataframes_workers_are_killed_too(drivers, place):
    lives = Lives(drivers, place, "frames")
    for phase, txid in PLACES.items():
        lives.places.kill(phase, txid + (phase == "emit"))  # windows end a transaction later
    lives.end()
    assert {each.name for each in place.glob("killed-*")} == {f"killed-{phase}" for phase in PLACES}
    assert told(place) == recounted("frames")


def test_timers_and_entries_that_expire_outlive_a_worker(player, place):
    """Each timer fires once; an entry is seen until its time has passed."""
    Places(place).kill("emit", PLACES["emit"])
    more = {"what": "alarms"}
    player.play("tests.spark.windowing", place, trigger=ON_UNTIL_RUNG, more=more)
    player.play("tests.spark.windowing", place, more=more)
    assert (place / "killed-emit").exists()
    assert alarmed(place) == recounted_alarms()


@pytest.mark.soak
def test_timers_and_entries_that_expire_outlive_drivers_and_workers(drivers, place):
    """Each timer fires once; an entry is seen until its time has passed, also by a driver that came meanwhile."""
    lives = Lives(drivers, place, "alarms")
    for phase, txid in PLACES.items():
        lives.kill(phase, txid)
    lives.places.kill("emit", 15)
    last = lives.start(ON)
    rows = TRANSACTIONS * ROWS_EACH
    wait_for(lambda: len(alarmed(place)["rung"]) == rows if last.process.poll() is None else True, "all timers")
    last.kill()
    lives.end()
    assert (place / "killed-emit").exists()
    assert alarmed(place) == recounted_alarms()
