"""Random lives of topologies of spouts come to what a life without failure comes to; `make soak` plays more of them."""

import logging
import random
import sys
import time

import pytest

from statefx.coordinator import metadata
from tests.spouts.fuzzing import Life


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
@pytest.mark.parametrize("seed", range(8))
def test_a_random_life_of_tasks_that_live_loses_and_doubles_nothing(place, monkeypatch, seed):
    play(seed, place / "life", monkeypatch, living=True)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("living", [False, True])
def test_many_random_lives(place, monkeypatch, living):
    """As many as there are in five minutes; the first seed is the time, so that each run plays others."""
    logging.disable(logging.CRITICAL)
    first, end = int(time.time()), time.monotonic() + 300
    seeds = iter(range(first, first + 1_000_000))
    while time.monotonic() < end:
        play(seed := next(seeds), place / str(seed), monkeypatch, living)
    sys.stdout.write(f"{seed - first + 1} random lives, from seed {first}\n")
