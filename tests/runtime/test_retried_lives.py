"""Random lives of a service that fails, and crashes at every step: each row comes out once, or is a dead letter once.

They are compared with a plain recount, key by key. `make soak` plays more.
"""

import json
import logging
import os
import random
import time
from datetime import timedelta

import pytest

from statefx.errors import CheckpointError, FailedException
from statefx.runtime import retries
from statefx.runtime.async_task import AsyncBoltTask
from statefx.testing import Crash, TopologyTester
from statefx.testing.crashes import crashes
from statefx.testing.faults import JobFails
from tests.runtime.test_retries import NOON, SERVICE, Asks, Lists, topology

CONFIG = {"topology.state.provider": "memory", "topology.transaction.attempts.max": 50}
KEYS = "abcdef"


@pytest.fixture(autouse=True)
def loud():
    SERVICE.__init__()
    yield
    logging.disable(logging.NOTSET)


def fail_by_chance(chances, tup):
    if random.random() < chances["transaction"]:
        raise FailedException("by chance")
    if random.random() < chances["call"]:
        SERVICE.calls[tup.n] += 1
        raise TimeoutError("by chance")


CHANCES = {}
"""Of a call that it fails, or fails its transaction."""


class Fails(Asks):
    async def execute(self, tup, collector):
        fail_by_chance(CHANCES, tup)
        await super().execute(tup, collector)


class FailsWithState(Lists):
    async def execute(self, tup, collector):
        fail_by_chance(CHANCES, tup)
        await super().execute(tup, collector)

    def groupingKey(self, key):
        return key


class Life:
    """What one seed stands for: a bolt, its input, when its service fails, and what happens to its drivers."""

    def __init__(self, seed, folder):
        random.seed(seed)
        self.rng, self.folder = random.Random(seed), folder
        chosen = self.rng.choice
        self.kind, self.by = chosen([(Fails, "key"), (Fails, None), (FailsWithState, "key")])
        self.settings = {
            "ordered": self.by == "key" and chosen([True, True, False]),
            "capacity": chosen([1, 3, 100]),
            "retries": chosen([0, 1, 4, 30]),
            "retryDelay": chosen(["1 millisecond", "5 seconds"]),
            "breakerFailures": chosen([1, 3, None]),
            "breakerDelay": chosen(["1 millisecond", "20 seconds"]),
        }
        if self.settings["retries"] == 0:
            self.settings["breakerFailures"] = 1
        self.keeps_order = self.settings["ordered"] or self.kind is FailsWithState
        self.rows, self.works = [], []

    def topology(self):
        return topology(self.kind(**self.settings), self.rng.choice([1, 2, 3]), by=self.by)

    def crash_at(self):
        return self.rng.choice([None, None, self.rng.randrange(1, 100)])

    def next_work(self):
        """Let time pass, and return the rows of the next transaction."""
        chosen = self.rng.choice
        CHANCES.update(transaction=chosen([0, 0, 0.02]), call=chosen([0, 0.2, 0.6]))
        self.tester.advance(chosen([0, 0, 3, 9, 60]))
        if self.rng.random() < 0.2:
            SERVICE.until = NOON + timedelta(seconds=self.tester._now + chosen([5, 30]))
        count = chosen([0, 1, 4, 12])
        self.rows += (new := [(len(self.rows) + n, chosen(KEYS)) for n in range(count)])
        return {"in": new}

    def is_done(self):
        letters, lined = self.tester.state("letters"), self.tester.state("lined")
        return sum(letters.values()) + sum(map(len, lined.values())) == len(self.rows)

    def run(self):
        """Run what is to be run, by as many drivers as it takes."""
        while True:
            try:
                if self.rng.random() < 0.2:
                    self.tester.inject(JobFails())
                self.tester.run(self.works)
                return
            except Crash:
                self.restart()

    def restart(self):
        while True:
            try:
                rescaled = {"topology": self.topology(), "rescale": True} if self.rng.random() < 0.3 else {}
                self.tester = self.tester.restart(**rescaled, crash_at=self.crash_at())
                return
            except (Crash, CheckpointError):  # it is not rescaled while a transaction is in flight
                self.tester = self.tester.restart(rescale=True)  # back, if it was before the crash
                return

    def play(self):
        self.tester = TopologyTester(self.topology(), self.folder, CONFIG, now=NOON, seed=self.rng.randrange(99))
        self.restart()
        for _ in range(self.rng.randint(2, 5)):
            self.works.append(self.next_work())
            self.run()
        CHANCES.update(transaction=0, call=0)
        for _ in range(10):
            if self.is_done():
                break
            self.tester.advance(1000)
            self.works.append({"in": []})
            self.run()
        return self.tester


def check(life, tester):
    letters = sorted(json.loads(row)["n"] for (row, _), count in tester.state("letters").items() for _ in range(count))
    lined = tester.state("lined")
    assert sorted([*letters, *(n for found in lined.values() for n in found)]) == list(range(len(life.rows)))
    expected = {}
    for n, key in life.rows:
        if n not in letters:
            expected.setdefault(key, []).append(n)
    assert (lined if life.keeps_order else {key: sorted(found) for key, found in lined.items()}) == expected
    if life.kind is FailsWithState:
        assert tester.state("asks") == expected
    assert all(SERVICE.calls[n] > life.settings["retries"] for n in letters)
    if life.by is None:  # with several tasks tuples have no key, and the life had several only at times
        return
    several = {n: found for n, found in SERVICE.keys.items() if len(found) > 1}
    assert not several, f"several keys of one tuple: {life.kind, life.by, life.settings, several}"
    assert len({*map(min, SERVICE.keys.values())}) == len(SERVICE.keys)


@pytest.mark.slow
@pytest.mark.parametrize("lives", [15, pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_random_lives_of_a_service_lose_and_double_nothing(place, lives, monkeypatch):
    monkeypatch.setattr(retries, "INSIDE_SECS", 0.01)
    logging.disable(logging.CRITICAL)
    first = int(os.environ.get("STATEFX_SEED") or time.time_ns() // 1_000_000 % 1_000_000_000)
    for seed in range(first, first + lives):
        print(f"STATEFX_SEED={seed}")  # noqa: T201 - pytest shows it where a test fails
        SERVICE.__init__()
        life = Life(seed, place / str(seed))
        with life.play() as tester:
            check(life, tester)


# ---- crashes


def script():
    """Rows by the seconds since those before: a service that is away for a while, and for one row for ever."""
    yield 0, [(n, f"key {n % 50}") for n in range(100)]
    yield 5, [(100, "key 1"), (101, "new")]
    yield 10, [(102, "key 2")]
    yield 20, []
    yield 60, [(103, "key 0")]


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [Asks, Lists])
def test_a_crash_at_any_step_leaves_what_is_left_without_one(place, stride, kind, monkeypatch):
    """With 100 in flight: what waits, its tries and its dead letters are as they are without a crash."""
    logging.disable(logging.CRITICAL)
    monkeypatch.setattr(AsyncBoltTask, "random", staticmethod(lambda: 0.5))
    monkeypatch.setattr(AsyncBoltTask, "clock", staticmethod(lambda: 0.0))

    class Bad(kind):
        async def execute(self, tup, collector):
            SERVICE.until = NOON + timedelta(seconds=12 if tup.n else 1e6)
            await kind.execute(self, tup, collector)

    def life(steps=None):
        made = topology(Bad(retries=2))
        with TopologyTester(made, place / "ck", CONFIG, steps=steps, now=NOON) as tester:

            def works():
                for secs, rows in script():
                    tester.advance(secs)
                    yield {"in": rows}

            tester.run(works())
            return {name: tester.state(name) for name in ("lined", "letters", *["asks"] * (kind is Lists))}

    expected, found = None, 0
    for _point in crashes(place, life, every=stride):
        left = life()
        expected = expected or left
        assert left == expected
        found += 1
    assert found > 50 // stride
    assert [json.loads(row)["n"] for row, _ in expected["letters"]] == [0]
    assert sum(map(len, expected["lined"].values())) == 103
    assert all(sorted(found) == found for found in expected["lined"].values())
