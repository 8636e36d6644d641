"""Random lives of topologies of spouts come to what one without failure comes to (rule 8.1); `make soak` plays more."""

import logging
import random

import pytest

from statefx.coordinator import metadata
from tests.spouts.fuzzing import Life
from tests.testing.lives import seeds


@pytest.fixture(autouse=True)
def loud():
    """What a test has silenced is heard again after it."""
    yield
    logging.disable(logging.NOTSET)


def play(seed, folder, monkeypatch):
    random.seed(seed)
    monkeypatch.setattr(metadata, "INLINE_MAX_BYTES", random.choice([10, 64 << 10]))
    life = Life(seed, folder)
    folder.mkdir()
    counts, published = life.play()
    expected = life.expected()
    assert counts == expected, f"seed {seed}: {life.spouts}, {life.told}"
    assert published == sorted(expected), f"seed {seed}: {life.spouts}, {life.told}"
    return life


@pytest.mark.slow
def test_random_lives_lose_and_double_nothing(place, monkeypatch):
    """Their slots and connections are lost at any step."""
    logging.disable(logging.CRITICAL)
    for seed in seeds(8):
        play(seed, place / str(seed), monkeypatch)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_random_lives(place, monkeypatch):
    """As many as there are in five minutes of work."""
    logging.disable(logging.CRITICAL)
    for seed in seeds(300):
        play(seed, place / str(seed), monkeypatch)
