"""Broadcast state on Spark: of spouts in both engines, of DataFrames, and over drivers that are killed."""

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
    def start(engine, seed, pending):
        more = {"engine": engine}
        return drivers(place, "rocksdb", program="tests.spark.ruling", more=more, seed=seed, pending=pending)

    return start


@pytest.mark.parametrize(
    ("engine", "pending"),
    [
        ("jobs", 2),
        ("pipelined", 3),
        *(pytest.param(engine, 1, marks=pytest.mark.soak) for engine in ("jobs", "pipelined")),
    ],
)
def test_every_row_is_judged_by_the_rules_of_its_transaction(driver, place, engine, pending):
    """Attempts fail meanwhile: among the rules, among the rows, and behind them."""
    places = Places(place)
    for phase, txid in {"emit": 2, "execute": 4, "prepare": 5}.items():
        places.fail(phase, txid)
    said = driver(engine, 3, pending).end()
    assert said["engine"] == engine
    assert outcome(place) == expected(3)


@pytest.mark.parametrize("engine", ["pipelined", pytest.param("jobs", marks=pytest.mark.soak)])
def test_drivers_are_killed_among_the_rules_and_among_the_rows(driver, place, engine):
    places = Places(place)
    for generation, (phase, txid) in enumerate({"emit": 2, "execute": 4, "prepare": 6}.items(), 1):
        places.hold(phase, generation, txid)
        killed = driver(engine, 5, 2)
        killed.wait_until(
            lambda log, phase=phase, generation=generation: (
                log.generation == generation and places.held(phase, generation) and log.in_flight
            ),
            f"{phase} of generation {generation}",
        )
        killed.kill()
        places.release()
    driver(engine, 5, 2).end()
    assert outcome(place) == expected(5)
    assert log_of(place).generation == 4


@pytest.mark.parametrize("tasks", [1, 3])
def test_of_dataframes_each_micro_batch_is_judged_by_its_rules(spark, place, tasks):
    """A file of each is a micro-batch; of a file the later row counts."""
    payments, rules = ([[*parts[0], *parts[1]]] for parts in given(7, each=8))
    take = 2
    for name, fields, (part,) in (("payments", PAYMENTS, payments), ("rules", RULES, rules)):
        names = [each.split()[0] for each in fields.split(", ")]
        files = [part[start : start + take] for start in range(0, len(part), take)]
        texts = [[json.dumps(dict(zip(names, row, strict=True))) for row in file] for file in files]
        feed(place / name, **{f"file-{number:02}": lines for number, lines in enumerate(texts)})
    builder = TopologyBuilder("frames")
    for name, fields in (("payments", PAYMENTS), ("rules", RULES)):
        reader = spark.readStream.schema(fields).option("maxFilesPerTrigger", 1)
        builder.setStream(name, reader.json(str(place / name)))
    judges = builder.setBolt("judge", Judge(), tasks)
    judges.fieldsGrouping("payments", "account").broadcastGrouping("rules")
    run(builder.createTopology(), spark, place / "ck", {"topology.state.provider": "memory"}, trigger=ONCE)
    judged, known = recounted(payments, rules, take)
    assert outcome(place) == (judged, {(task, name): cents for task in range(tasks) for name, cents in known.items()})
