"""Dead letters on Spark: workers and drivers are killed, and all that is left is as if nobody had been."""

import json

import pytest

from statefx import quarantined
from tests.spark.refusing import BAD, ROWS, left
from tests.spark.spouting import Places

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

ALL = {"execute": 2, "emit": 4, "commit": 6}
"""Where drivers are killed: among the rows, in a call that is about to be undone, and behind the decision; from which
transaction on."""

ENGINES = {"spouts": "pipelined", "frames": "jobs"}


@pytest.fixture
def played(player, place):
    def play(name, mode="deadLetter"):
        (place / name).mkdir(exist_ok=True)
        return player.play("tests.spark.refusing", place / name, more={"inputs": "spouts", "mode": mode})

    return play


@pytest.fixture
def start(drivers, place):
    def started(name, inputs, mode="deadLetter"):
        (place / name).mkdir(exist_ok=True)
        more = {"inputs": inputs, "mode": mode}
        return drivers(place / name, program="tests.spark.refusing", more=more)

    return started


def expected():
    """Balances, numbers by user, and rows that were refused, by a plain recount."""
    balances, log = {}, []
    for user, cents, number in ROWS:
        if cents >= 0:
            balances[user] = balances.get(user, 0) + cents
            log.append(number)
    return balances, log


def check_calm(place, said, inputs):
    """Whether all is there as a plain recount says; return what is."""
    assert said["engine"] == ENGINES[inputs]
    assert said["aside"] == len(BAD)
    calm = left(place)
    balances, log = expected()
    assert {**calm["state"][0], **calm["state"][1]} == balances
    assert sorted(row["number"] for row in calm["log"]) == log
    assert [tuple(row.values()) for row in sorted(calm["again"], key=lambda row: row["number"])] == BAD
    assert sorted(json.loads(letter["row"])["number"] for letter in calm["letters"]) == [row[2] for row in BAD]
    return calm


@pytest.mark.soak
def test_a_worker_is_killed_and_each_letter_is_there_once(played, place):
    calm = check_calm(place / "calm", played("calm"), "spouts")
    (place / "killed").mkdir()
    Places(place / "killed").kill("emit", 7)
    played("killed")
    assert (place / "killed" / "killed-emit").exists()
    assert left(place / "killed") == calm


@pytest.mark.soak
@pytest.mark.parametrize("inputs", ENGINES)
def test_drivers_and_workers_are_killed_and_each_letter_is_there_once(start, place, inputs):
    calm = check_calm(place / "calm", start("calm", inputs).end(), inputs)
    (place / "killed").mkdir()
    places = Places(place / "killed")
    for generation, (phase, txid) in enumerate(ALL.items(), 1):
        places.hold(phase, generation, txid)
        driver = start("killed", inputs)
        driver.wait_until(
            lambda log, phase=phase, generation=generation: places.held(phase, generation), f"{phase} of {generation}"
        )
        driver.kill()
        places.release()
    places.kill("emit", 7 + (inputs == "frames"))
    start("killed", inputs).end()
    assert (place / "killed" / "killed-emit").exists()
    assert left(place / "killed") == calm


@pytest.mark.soak
def test_keys_in_quarantine_stay_there_when_workers_are_killed(played, place):
    """One in a call that is about to be undone, and one when everything is held back."""
    (place / "killed").mkdir()
    for phase, txid in {"emit": 2, "commit": 5}.items():
        Places(place / "killed").kill(phase, txid)
    played("killed", "quarantineKey")
    assert (place / "killed" / "killed-emit").exists()
    check_quarantine(place)


@pytest.mark.soak
def test_keys_in_quarantine_stay_there_whoever_is_killed(start, place):
    """A driver is killed in a call that is about to be undone, and a worker when everything is held back."""
    (place / "killed").mkdir()
    places = Places(place / "killed")
    places.hold("emit", 1, 2)
    driver = start("killed", "spouts", "quarantineKey")
    driver.wait_until(lambda log: places.held("emit", 1), "a bad row of transaction 2")
    driver.kill()
    places.release()
    places.kill("commit", 5)
    start("killed", "spouts", "quarantineKey").end()
    check_quarantine(place)


def check_quarantine(place):
    assert (place / "killed" / "killed-commit").exists()
    balances, waiting = {}, {}
    for user, cents, number in ROWS:
        if user in waiting or cents < 0:
            waiting.setdefault(user, []).append(number)
        else:
            balances[user] = balances.get(user, 0) + cents
    found = left(place / "killed")
    assert {**found["state"][0], **found["state"][1]} == balances
    letters = sorted(found["letters"], key=lambda letter: letter["number"])
    held = [(row["user"], row["number"]) for row in (json.loads(letter["row"]) for letter in letters)]
    assert {user: [number for other, number in held if other == user] for user in waiting} == waiting
    assert len(held) == sum(map(len, waiting.values()))
    keys = quarantined(place / "killed" / "ck", "balances")
    assert {each.key: each.rows for each in keys} == {user: len(numbers) for user, numbers in waiting.items()}
