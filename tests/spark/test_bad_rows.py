"""Dead letters on Spark: drivers and workers are killed, and all that is left is as if nobody had been."""

import json

import pytest

from tests.spark.refusing import BAD, ROWS, left
from tests.spark.spouting import Places

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

ALL = {"execute": 2, "emit": 4, "commit": 6}
"""Where drivers are killed: among the rows, in a call that is about to be undone, and behind the decision; from which
transaction on."""

KILLS = [
    ("spouts", "pipelined", {"emit": 4}),
    pytest.param("spouts", "pipelined", ALL, marks=pytest.mark.soak),
    pytest.param("frames", "jobs", ALL, marks=pytest.mark.soak),
]


@pytest.fixture
def start(drivers, place):
    def started(name, inputs, engine):
        (place / name).mkdir(exist_ok=True)
        return drivers(place / name, program="tests.spark.refusing", more={"inputs": inputs, "engine": engine})

    return started


def expected():
    """Balances, numbers by user, and rows that were refused, by a plain recount."""
    balances, log = {}, []
    for user, cents, number in ROWS:
        if cents >= 0:
            balances[user] = balances.get(user, 0) + cents
            log.append(number)
    return balances, log


@pytest.mark.parametrize(("inputs", "engine", "kills"), KILLS)
def test_drivers_and_workers_are_killed_and_each_letter_is_there_once(start, place, inputs, engine, kills):
    said = start("calm", inputs, engine).end()
    assert said["engine"] == engine
    assert said["aside"] == len(BAD)
    calm = left(place / "calm")
    balances, log = expected()
    assert {**calm["state"][0], **calm["state"][1]} == balances
    assert sorted(row["number"] for row in calm["log"]) == log
    assert [tuple(row.values()) for row in sorted(calm["again"], key=lambda row: row["number"])] == BAD
    assert sorted(json.loads(letter["row"])["number"] for letter in calm["letters"]) == [row[2] for row in BAD]

    (place / "killed").mkdir()
    places = Places(place / "killed")
    for generation, (phase, txid) in enumerate(kills.items(), 1):
        places.hold(phase, generation, txid)
        driver = start("killed", inputs, engine)
        driver.wait_until(
            lambda log, phase=phase, generation=generation: places.held(phase, generation), f"{phase} of {generation}"
        )
        driver.kill()
        places.release()
    places.kill("emit", 7 + (inputs == "frames"))
    start("killed", inputs, engine).end()
    assert (place / "killed" / "killed-emit").exists()
    assert left(place / "killed") == calm
