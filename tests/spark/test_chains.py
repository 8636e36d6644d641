"""What one topology publishes is another one's input: each row counted once, whoever is killed, and whenever."""

import os
import random
import time

import pyarrow.parquet as pq
import pytest

from statefx import committedFiles
from tests.spark.bolts import recount
from tests.spark.chaining import both
from tests.spark.drivers import ON, ONCE, log_of
from tests.spark.running import feed, state, wait_for

pytestmark = pytest.mark.slow

PROGRAM = "tests.spark.chaining"


@pytest.mark.soak
def test_a_chain_in_one_process_that_is_killed(spark, drivers, place):
    """At any moment: that of a transaction of the first differs from that of the second."""
    first, second, expected = prepared(place, files=5)
    fell = []
    for work in (first, second):
        driver = drivers(first, program=PROGRAM, feeds=str(second))
        go_on(driver, work, 1, random.random() / 4)
        driver.kill()
        fell.append([log_of(each).in_flight for each in (first, second)])
    both(spark, first, second)
    check(second, expected, fell)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_a_chain_of_two_processes_that_are_killed_often(drivers, place, seed):
    """Each has moved on a little since it was last killed: what comes in is fed bit by bit."""
    first, second, _ = prepared(place)
    chance, fell = random.Random(seed), []
    start = {
        first: lambda trigger=ON: drivers(first, program=PROGRAM, trigger=trigger),
        second: lambda trigger=ON: drivers(second, program=PROGRAM, trigger=trigger, reads=str(first / "out")),
    }
    running = {first: start[first]()}
    wait_for(lambda: os.path.exists(first / "out" / "_statefx" / "owners"), "the first to have begun")
    running[second] = start[second]()
    for number, work in enumerate(chance.sample([first, second] * 8, 16)):
        feed(first / "in", **texts(range(3 * number, 3 * number + 3)))
        go_on(running[work], work, 1, chance.random())
        fell.append((work.name, running[work].kill()))
        running[work] = start[work]()
    for work in (first, second):
        running[work].kill()
        start[work](ONCE).end()
    check(second, recount(line for lines in texts(range(48)).values() for line in lines), fell)


def prepared(place, files=0):
    """Folders of the two; files for the first; how often each word is in those."""
    first, second = place / "first", place / "second"
    first.mkdir()
    second.mkdir()
    given = texts(range(files))
    feed(first / "in", **given)
    return first, second, recount(line for lines in given.values() for line in lines)


def texts(numbers):
    return {f"f{number:03}": [f"w{number % 7} w{line}" for line in range(20)] for number in numbers}


def go_on(driver, work, transactions, more_secs=0):
    """Wait until so many more are committed, and a while longer; or until the driver has ended."""
    target = log_of(work).committed + transactions
    wait_for(lambda: driver.process.poll() is not None or log_of(work).committed >= target, f"{work.name} to go on")
    end = time.monotonic() + more_secs
    wait_for(lambda: time.monotonic() >= end, "a random moment")


def check(second, expected, fell):
    assert state(second / "ck", "count") == expected, fell
    files = committedFiles(second / "out")
    counted = [tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(counted) == sorted((word, n + 1) for word in expected for n in range(expected[word])), fell
