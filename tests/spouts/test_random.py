"""Random lives of topologies of spouts come to what one without failure comes to (rule 8.1); `make soak` plays more."""

import logging
import random
import sys
import time

import pytest

from statefx.coordinator import metadata
from tests.spouts.fuzzing import Life

LIVES, LIVES_SOAK = 100, 5_000


@pytest.fixture(autouse=True)
def loud():
    """What a test has silenced is heard again after it."""
    yield
    logging.disable(logging.NOTSET)


def play(seed, folder, monkeypatch, living=False):
    random.seed(seed)
    monkeypatch.setattr(metadata, "INLINE_MAX_BYTES", random.choice([10, 64 << 10]))
    life = Life(seed, folder, living)
    folder.mkdir()
    counts, published = life.play()
    expected = life.expected()
    assert counts == expected, f"seed {seed}: {life.spouts}, {life.told}"
    assert published == sorted(expected), f"seed {seed}: {life.spouts}, {life.told}"
    return life


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_random_life_loses_and_doubles_nothing(place, monkeypatch, seed):
    play(seed, place / "life", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, LIVES, LIVES // 10))
def test_100_random_lives_of_tasks_that_live_lose_and_double_nothing(place, monkeypatch, first):
    """Of short lives `LIVES`, the same in each run of the suite; their slots and connections are lost at any step."""
    logging.disable(logging.CRITICAL)
    for seed in range(first, first + LIVES // 10):
        play(seed, place / str(seed), monkeypatch, living=True)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_many_random_lives(place, monkeypatch):
    """As many as there are in five minutes; the first seed is the time, so that each run plays others."""
    logging.disable(logging.CRITICAL)
    first, end = int(time.time()), time.monotonic() + 300
    seeds = iter(range(first, first + 1_000_000))
    while time.monotonic() < end:
        play(seed := next(seeds), place / str(seed), monkeypatch)
    sys.stdout.write(f"{seed - first + 1} random lives, from seed {first}\n")


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(5))
def test_5000_random_lives_of_tasks_that_live(place, monkeypatch, part):
    """In parts of a thousand; the first seed is the time, so that each run plays others."""
    logging.disable(logging.CRITICAL)
    first = int(time.time()) * 10 + part
    for seed in range(first, first + LIVES_SOAK // 5):
        play(seed, place / str(seed), monkeypatch, living=True)
    sys.stdout.write(f"1000 random lives of tasks that live, from seed {first}\n")
