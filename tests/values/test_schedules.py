"""Every order in which late attempts can write between the steps of others; whatever comes, the values are exact.

An attempt takes four steps: it reads and writes its journal, and reads and writes its keys. One that was given up may
take each of its own at any later time, or never.
"""

import itertools
import random
from collections import Counter

import pytest

from statefx.errors import ValueMismatchError
from statefx.values import MemoryBackend
from tests.values.actors import Actor, values

BEFORE = {"both": 10, "late": 4, "live": 1}
LATE = {"both": 3, "late": 3, "new": 5}
LIVE = {"both": 2, "live": 2}
AFTER = {"both": 1, "late": 1, "new": 1}
STEPS = 4

FOLLOWING = {
    "both attempts have keys": (LIVE, AFTER),
    "the attempt that is committed has none": ({}, AFTER),
    "the next transaction has none": (LIVE, {}),
    "nothing comes any more": ({}, {}),
    "the attempt that is committed does not call the map": (None, AFTER),
}


class World:
    """A table after transaction 4, and what was committed of the bolt's state."""

    def __init__(self):
        self.backend = MemoryBackend("world")
        self.backend.rows.clear()
        self.state, self.expected = {}, Counter()
        self.commit(self.attempt(4, 0, BEFORE))

    def attempt(self, txid, attempt, changes):
        return Actor(self.backend, self.state, txid, attempt, changes)

    def commit(self, actor, meanwhile=lambda: None):
        """Run an attempt to its end, and commit it, as the driver does if it has raised nothing."""
        while not actor.ended:
            meanwhile()
            actor.step()
        assert actor.error is None
        self.state = actor.state
        self.expected.update(actor.changes)
        assert values(self.backend) == self.expected, f"after {actor.attempt}"


@pytest.mark.parametrize("following", FOLLOWING)
def test_a_late_attempt_changes_nothing_whenever_it_writes(following):
    """Each of its steps comes before any of those of attempt 1 and of transaction 6, or after them all."""
    live, after = FOLLOWING[following]
    refused = 0
    for when in itertools.combinations_with_replacement(range(2 * STEPS + 1), STEPS):
        world = World()
        late, left, moments = world.attempt(5, 0, LATE), list(when), itertools.count()

        def meanwhile(late=late, left=left, moments=moments):
            now = next(moments)
            while left and left[0] <= now:
                del left[0]
                late.step()

        if live is not None:
            world.commit(world.attempt(5, 1, live), meanwhile)
        world.commit(world.attempt(6, 0, after), meanwhile)
        late.finish()
        refused += late.error is not None
        assert late.error is None or isinstance(late.error, ValueMismatchError)
        assert values(world.backend) == world.expected, "it has ended late, and changed nothing"
        world.commit(world.attempt(7, 0, AFTER))
    assert refused > 300, "else its steps did not come late"


@pytest.mark.parametrize("seed", range(4))
def test_three_late_attempts_change_nothing_whenever_they_write(seed):
    """Attempts 0, 1 and 2 are given up in the middle, each between steps of the others."""
    chance = random.Random(seed)
    for _ in range(400):
        world = World()
        late = []
        for attempt in range(3):
            late.append(world.attempt(5, attempt, chance.choice([LATE, LIVE, AFTER, {}])))
            for _ in range(chance.randrange(3 * STEPS)):
                chance.choice(late).step()
        for txid, attempt in ((5, 3), (6, 0), (7, 0))[chance.randrange(2) :]:  # or attempt 3 does not call the map
            live = world.attempt(txid, attempt, chance.choice([LATE, LIVE, AFTER, {}]))
            world.commit(live, lambda late=late: chance.random() < 0.6 and chance.choice(late).step())
        for actor in late:
            actor.finish()
        world.commit(world.attempt(8, 0, AFTER))
