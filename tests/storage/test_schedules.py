"""Drivers, tools and a network that fails, in a random order, on one checkpoint in S3: each word counts once."""

import contextlib
import random
from collections import Counter

import pyarrow.json as pj
import pytest

import statefx
from statefx import openState
from statefx.connectors.files import committedFiles
from statefx.errors import CheckpointFormatError, CheckpointMismatchError, StateCorruptedError, StatefxError
from statefx.log.log import read_state
from statefx.storage import storage_at
from statefx.testing.steps import Crash
from tests.storage.s3_server import as_users_have_it
from tests.storage.test_checkpoints import Remote
from tests.testing.topologies import SMALL, archived, lines, word_count, words

pytestmark = [pytest.mark.slow, pytest.mark.soak]

MANY = 200

LENGTH = 8
VOCABULARY = ("to", "be", "or", "not", "that", "is", "the", "question", "whether")

LOST = (CheckpointFormatError, CheckpointMismatchError, StateCorruptedError)
"""No failure of the network may look like damage."""


class Schedule:
    """One checkpoint, and what a seed lets happen to it."""

    def __init__(self, seed, driver, between, out):
        self.chance = random.Random(seed)
        self.driver, self.between, self.url = driver, between, driver.folder
        # what is published can't be taken back, so that only a checkpoint without a sink is restored
        self.out = out if self.chance.random() < 0.5 else None
        # by its first word each transaction tells which it is, also where others were taken back before it
        texts = [self.chance.choices(VOCABULARY, k=self.chance.randint(0, 5)) for _ in range(6)]
        self.work = [lines(" ".join((f"#{number}", *text))) for number, text in enumerate(texts)]
        self.testers = []
        self.told = []

    def topology(self):
        with contextlib.suppress(StatefxError, OSError, KeyError):  # there may be nothing yet
            self.tasks = read_state(storage_at(self.url)).topology.stateful["count"].parallelism
        return archived(self.out, self.tasks) if self.out else word_count(self.tasks)

    tasks = 2

    def run(self, upto=None, **given):
        tester = self.driver.start(self.topology(), limits=SMALL, **given)
        self.testers.append(tester)
        self.send(tester, upto)

    def send(self, tester, upto=None):
        done = sum(word.startswith("#") for word in tester.state("count"))
        for work in self.work[done:upto]:
            tester.send(work)

    # ---- what may happen

    def go_on(self):
        self.run(self.chance.randint(1, len(self.work) - 1))

    def crash(self):
        with contextlib.suppress(Crash):
            self.run(crash_at=self.chance.randint(1, 60))

    def zombie(self):
        """A driver that was replaced, or not, goes on."""
        if self.testers:
            with contextlib.suppress(Crash):
                self.send(self.chance.choice(self.testers))

    def savepoint(self):
        statefx.savepoint(self.url, self.chance.choice("abc"))

    def delete_savepoint(self):
        statefx.deleteSavepoint(self.url, self.chance.choice("abc"))

    def restore(self):
        if not self.out:
            statefx.restore(self.url, self.chance.choice("abc"))

    def rescale(self):
        statefx.rescale(self.url, {"count": self.chance.randint(1, 4)}, groupingKey={"count": lambda word: word})

    def repair(self):
        statefx.repair(self.url, yes=True)

    def verify(self):
        assert not statefx.verify(self.url).damaged

    def disturb(self):
        self.between.disturb(self.chance.choice((0.02, 0.06, 0.25)), self.chance.random())

    def calm(self):
        self.between.disturb(0)

    def happen(self):
        steps = self.chance.choices(
            (self.go_on, self.crash, self.zombie, self.disturb, self.calm, self.savepoint, self.delete_savepoint,
             self.restore, self.rescale, self.repair, self.verify),
            (3, 4, 1, 2, 1, 2, 1, 2, 1, 1, 1),
            k=LENGTH,
        )  # fmt: skip
        for what in (self.disturb, self.go_on, *steps):
            try:
                what()
                self.told.append(what.__name__)
            except LOST:
                raise
            except (StatefxError, OSError) as error:  # fenced, refused or given up: nothing may be lost by it
                self.told.append(f"{what.__name__}: {type(error).__name__}")

    def check(self):
        """However it went, what is committed is what its transactions come to; and the rest can be done."""
        self.between.disturb(0)
        self.run()
        assert dict(openState(self.url, "count").items()) == words(self.work)
        assert not statefx.verify(self.url).damaged
        if self.out:
            rows = [row for file in committedFiles(self.out) for row in pj.read_json(file).to_pylist()]
            total = words(self.work)
            wanted = Counter((word, number) for word in total for number in range(1, total[word] + 1))
            assert Counter((row["word"], row["count"]) for row in rows) == wanted


@pytest.mark.parametrize("seed", range(MANY))
def test_whatever_happens_each_word_counts_once(between, tmp_path, seed):
    provider = ("memory", "rocksdb")[seed % 2]
    with as_users_have_it(between.address) as made, Remote(tmp_path, made(), provider) as driver:
        schedule = Schedule(seed, driver, between, tmp_path / "out")
        try:
            schedule.happen()
            schedule.check()
        except BaseException as error:
            error.add_note(f"seed {seed}: {', '.join(schedule.told)}")
            raise
        finally:
            between.disturb(0)
