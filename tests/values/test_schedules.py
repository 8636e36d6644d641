"""Every order in which late attempts can write between the steps of others; whatever comes, the values are exact.

An attempt takes four steps: it reads and writes its journal, and reads and writes its keys; two, if the backend is
atomic. One that was given up may
take each of its own at any later time, or never.
"""

import itertools
import random
import re
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
    """A table after transaction 4, or one that nobody has written yet; and what was committed of the bolt's state."""

    def __init__(self, backend=None, begun=True):
        self.backend = backend or MemoryBackend("world")
        self.backend.rows.clear()
        self.state, self.expected = {}, Counter()
        if begun:
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

    def commit_uncalled(self, txid, attempt):
        """Commit an attempt that has made the map, as each does, and has not called it."""
        self.state = self.attempt(txid, attempt, {}).state


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("following", FOLLOWING)
def test_a_late_attempt_changes_nothing_whenever_it_writes(following, atomic, begun):
    """Each of its steps comes before any of those of attempt 1 and of transaction 6, or after them all."""
    live, after = FOLLOWING[following]
    refused = 0
    for when in itertools.combinations_with_replacement(range(2 * STEPS + 1), STEPS):
        world = World(MemoryBackend("world", atomic), begun)
        late, left, moments = world.attempt(5, 0, LATE), list(when), itertools.count()

        def meanwhile(late=late, left=left, moments=moments):
            now = next(moments)
            while left and left[0] <= now:
                del left[0]
                late.step()

        if live is None:
            world.commit_uncalled(5, 1)
        else:
            world.commit(world.attempt(5, 1, live), meanwhile)
        world.commit(world.attempt(6, 0, after), meanwhile)
        late.finish()
        refused += late.error is not None
        assert late.error is None or isinstance(late.error, ValueMismatchError)
        assert values(world.backend) == world.expected, "it has ended late, and changed nothing"
        world.commit(world.attempt(7, 0, AFTER))
    assert refused > (50 if atomic else 300), "else its steps did not come late"


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_values_are_exact_or_refused_behind_a_state_that_went_back_alone(atomic, fails):
    """As by `Checkpoint.restore`: numbers go on, so the table is ahead as it is after failed attempts.

    An attempt takes back one transaction; of more, the values before are gone.
    """
    for given, back in itertools.product(itertools.product([LATE, {}, None], repeat=3), range(3)):
        world, states = World(MemoryBackend("world", atomic)), []
        for txid, changes in enumerate(given, 5):
            states.append((world.state, Counter(world.expected)))
            if fails:
                assert world.attempt(txid, 0, LIVE).finish()
            if changes is None:
                world.commit_uncalled(txid, 1)
            else:
                world.commit(world.attempt(txid, 1, changes))
        if fails:
            assert world.attempt(8, 0, LIVE).finish()
        world.state, world.expected = states[back]
        given_up = sum(changes is not None for changes in given[back:])
        if given_up < (1 if fails else 2):
            world.commit(world.attempt(8, 1, AFTER))
        else:
            refused = world.attempt(8, 1, AFTER)
            assert not refused.finish(), (given, back)
            assert isinstance(refused.error, ValueMismatchError)
            assert re.search("the bolt's state is at .*and the journal .*Restore both as they were", str(refused.error))


class Blind(MemoryBackend):
    """Can't compare versions: it writes whatever is there."""

    def multiPut(self, rows, expected):
        self.rows.update(rows)
        return []


@pytest.mark.parametrize("goes_on", [False, True])
def test_without_comparing_versions_values_are_exact_unless_a_late_task_goes_on(goes_on):
    """What docs/values.md says of databases that can't."""
    wrong = 0
    for steps in range(STEPS + 1):
        world = World(Blind("blind"))
        late = world.attempt(5, 0, LATE)
        for _ in range(steps):
            late.step()
        world.commit(world.attempt(5, 1, LIVE))
        if goes_on:
            late.finish()
        wrong += values(world.backend) != world.expected
    assert (wrong > 0) is goes_on


class Life:
    """A driver and its tasks, by chance: attempts fail, run twice at once, are rolled back, and go on when given up."""

    def __init__(self, seed):
        self.world = World(MemoryBackend("world", atomic=seed % 2 == 1), begun=seed % 3 > 0)
        self.chance, self.late = random.Random(seed), []

    def run(self, *actors):
        """Let actors take steps in any order, with those that were given up among them; some may be given up too."""
        steps = self.chance.choice([None, self.chance.randrange(4 * STEPS)])
        while steps != 0 and any(not actor.ended for actor in actors):
            self.chance.choice([*actors, *actors, *self.late]).step()
            steps = None if steps is None else steps - 1

    def transaction(self, txid):
        for attempt in itertools.count():
            runs = [
                self.world.attempt(txid, attempt, self.chance.choice([LATE, LIVE, AFTER, {}]))
                for _ in range(self.chance.choice([1, 1, 2]))
            ]
            self.run(*runs)
            if self.chance.random() < 0.1:
                self.late += runs
                self.world.commit_uncalled(txid, attempt + 1)
                return
            done = [run for run in runs if run.ended and run.error is None]
            assert len(done) < 2, "the driver would commit one, and the other has written"
            if done and self.chance.random() < 0.6:
                self.late += runs
                self.world.commit(done[0])
                return
            self.late += runs
            if self.chance.random() < 0.3:
                rollback = Actor(self.world.backend, self.world.state, txid, attempt, {}, rolls_back=True)
                self.run(rollback)
                self.late.append(rollback)
                if rollback.ended:
                    assert rollback.error is None
                    assert values(self.world.backend) == self.world.expected


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600, 100))
def test_lives_in_which_anything_goes_on_at_any_time_end_exact(first):
    for seed in range(first, first + 100):
        life = Life(seed)
        for txid in range(5, 5 + 4):
            life.transaction(txid)
        for actor in life.late:
            actor.finish()
        life.world.commit(life.world.attempt(9, 0, AFTER))
