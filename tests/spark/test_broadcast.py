"""Broadcast state on Spark: of spouts, of DataFrames, and over drivers that are killed."""

import json

import pytest

from statefx import TopologyBuilder
from tests.spark.drivers import ONCE, log_of
from tests.spark.ruling import expected, outcome
from tests.spark.running import feed, run
from tests.spark.spouting import Places
from tests.testing.ruling import PAYMENTS, RULES, Judge, given, recounted

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def driver(drivers, place):
    def start(seed, pending):
        return drivers(place, "rocksdb", program="tests.spark.ruling", seed=seed, pending=pending)

    return start


@pytest.fixture
def failing(place):
    """Attempts fail: among the rules, among the rows, and behind them."""
    for phase, txid in {"emit": 2, "execute": 4, "prepare": 5}.items():
        Places(place).fail(phase, txid)


@pytest.mark.soak
def test_every_row_is_judged_by_the_rules_of_its_transaction(player, place, failing):
    said = player.play("tests.spark.ruling", place, seed=3, pending=3)
    assert said["engine"] == "pipelined"
    assert outcome(place) == expected(3)


@pytest.mark.soak
def test_one_transaction_at_a_time_is_judged_alike(driver, place, failing):
    driver(3, 1).end()
    assert outcome(place) == expected(3)


@pytest.mark.soak
def test_drivers_are_killed_among_the_rules_and_among_the_rows(driver, place):
    places = Places(place)
    for generation, (phase, txid) in enumerate({"emit": 2, "execute": 4, "prepare": 6}.items(), 1):
        places.hold(phase, generation, txid)
        killed = driver(5, 2)
        killed.wait_until(
            lambda log, phase=phase, generation=generation: (
                log.generation == generation and places.held(phase, generation) and log.in_flight
            ),
            f"{phase} of generation {generation}",
        )
        killed.kill()
        places.release()
    driver(5, 2).end()
    assert outcome(place) == expected(5)
    assert log_of(place).generation == 4


def test_of_dataframes_each_micro_batch_is_judged_by_its_rules(spark, place):
    """A file of each is a micro-batch; of a file the later row counts."""
    payments, rules = ([[*parts[0], *parts[1]]] for parts in given(7, each=8))
    take = 4
    for name, fields, (part,) in (("payments", PAYMENTS, payments), ("rules", RULES, rules)):
        names = [each.split()[0] for each in fields.split(", ")]
        files = [part[start : start + take] for start in range(0, len(part), take)]
        texts = [[json.dumps(dict(zip(names, row, strict=True))) for row in file] for file in files]
        feed(place / name, **{f"file-{number:02}": lines for number, lines in enumerate(texts)})
    builder = TopologyBuilder("frames")
    for name, fields in (("payments", PAYMENTS), ("rules", RULES)):
        reader = spark.readStream.schema(fields).option("maxFilesPerTrigger", 1)
        builder.setStream(name, reader.json(str(place / name)))
    judges = {"judge": 3, "one": 1}
    for name, tasks in judges.items():
        declared = builder.setBolt(name, Judge(), tasks)
        declared.fieldsGrouping("payments", "account").broadcastGrouping("rules")
    run(builder.createTopology(), spark, place / "ck", {"topology.state.provider": "memory"}, trigger=ONCE)
    judged, known = recounted(payments, rules, take)
    for judge, tasks in judges.items():
        of_each = {(task, name): cents for task in range(tasks) for name, cents in known.items()}
        assert outcome(place, judge) == (judged, of_each)
