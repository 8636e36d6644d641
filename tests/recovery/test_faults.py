"""What befalls runs and their slots: nothing is lost, nothing doubled, and nothing of a dead attempt shows."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from statefx.errors import AttemptsExhaustedError
from statefx.testing import TopologyTester
from statefx.testing.faults import Fault, HooksFail, JobFails
from tests.testing.living import LivingTester, Zombie, lose_run
from tests.testing.topologies import SMALL, Driver, Lines, lines, totals, words

WORK = [lines("to be or not to be", "that is the question"), lines("to sleep", "to dream"), lines(), lines("no more")]

TASKS = [("count", 0), ("count", 1), ("total", 0)]


def check(tester: TopologyTester, works: list[Lines]) -> None:
    assert tester.state("count") == words(works)
    assert tester.state("total")["total"] == sum(words(works).values())


@pytest.mark.parametrize("fault", [JobFails(), HooksFail()], ids=repr)
def test_a_run_that_is_lost_in_an_attempt_costs_it_and_later_costs_nothing(place: Path, fault: Fault) -> None:
    attempt = int(isinstance(fault, JobFails))
    with Driver(place) as driver:
        tester = driver.start(totals())
        for n, work in enumerate(WORK):
            sent = tester.send(work, *([fault] if n in (0, 1) else []))
            check(tester, WORK[: n + 1])
            emitted = sent.emitted("count")
            assert len(emitted) == len(set(emitted)) == sum(words([work]).values())
        assert sorted({entry[1:3] for entry in driver.journal if entry[0] == "commit"}) == [
            (1, attempt), (2, attempt), (3, 0), (4, 0)
        ]  # fmt: skip
        tester.wake()
        assert driver.start(totals()).state("count") == words(WORK)


def moments(place: Path) -> list[str]:
    """Return the moments of the second transaction."""
    with Driver(place, name="rehearsal") as driver:
        tester = driver.start(totals())
        tester.send(WORK[0])
        passed = len(tester.steps)
        tester.send(WORK[1])
        return tester.steps[passed:]


@pytest.mark.slow
def test_a_run_that_is_lost_at_any_moment(place: Path, provider: str) -> None:
    found = moments(place)
    assert {"before PREPARING(2, 0)", "after prepare total/0 for 2", "before commit hooks total/0 for 2"} <= {*found}
    for number, moment in enumerate(found):
        with Driver(place, provider, f"run-{number}") as driver:
            tester = driver.start(totals())
            tester.send(WORK[0])
            lose_run(tester, moment)
            sent = tester.send(WORK[1])
            assert sent.progress.attempt == (" prepare " in moment), moment
            tester.send(WORK[3])
            tester.wake()
            check(driver.start(totals()), [*WORK[:2], WORK[3]])


def zombies() -> Iterator[tuple[str, str, int]]:
    for component, task in TASKS:
        for when in ("before", "after"):
            yield f"{when} prepare {component}/{task} for 2", component, task
    yield "before commit hooks total/0 for 2", "total", 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "later",
    ["before prepare count/0 for 2", "after COMMITTED(2)", "before prepare total/0 for 3", "after COMMITTED(3)"],
)
def test_a_zombie_that_goes_on_later_changes_nothing(place: Path, provider: str, later: str) -> None:
    """It prepares beside the attempts that follow, under a token that nobody names, and in their caches."""
    for number, (moment, component, task) in enumerate(zombies()):
        decided = "hooks" in moment
        if decided and later.endswith("for 2"):
            continue
        with Driver(place, provider, f"run-{number}") as driver:
            tester = driver.start(totals(), limits=SMALL)
            tester.send(WORK[0])
            zombie = Zombie(tester, moment, component, task)
            # Not in the attempt that it is of: its own slots go on for a while as well.
            since = "before COMMITTED(2)" if decided else "after PREPARING(2, 1)"
            tester.when(since, lambda tester=tester, zombie=zombie: tester.when(later, zombie.go_on))
            for n in (1, 2, 3):
                sent = tester.send(WORK[n])
                assert sent.progress.attempt == (n == 1 and not decided)
                check(tester, WORK[: n + 1])
            assert zombie.slot.ended
            prepares = [n for n, step in enumerate(tester.steps) if step == f"after prepare {component}/{task} for 2"]
            assert len(prepares) == (1 if decided else 2)
            restarted = driver.start(totals(), limits=SMALL)
            restarted.send(WORK[0])
            check(restarted, [*WORK, WORK[0]])


def test_a_zombie_of_an_older_generation_changes_nothing(place: Path, provider: str) -> None:
    with Driver(place, provider) as driver:
        driver.config["topology.transaction.attempts.max"] = 1
        old = driver.start(totals())
        old.send(WORK[0])
        first = Zombie(old, "before prepare count/1 for 2", "count", 1)
        with pytest.raises(AttemptsExhaustedError, match="silence"):
            old.send(WORK[1])
        new = driver.start(totals())
        new.send(WORK[1])
        first.go_on()
        assert old.steps[-1] == "after prepare count/1 for 2"
        new.send(WORK[3])
        assert new.state("count") == words([WORK[0], WORK[1], WORK[3]])
        assert new.sweep() == 0, "too young"
        new.advance(3600)
        assert new.sweep() > 0
        assert driver.start(totals()).state("count") == words([WORK[0], WORK[1], WORK[3]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 40))])
def test_any_faults_in_any_order(place: Path, provider: str, seed: int) -> None:
    """Slots are lost and freeze anywhere, with a sweep and a snapshot in every transaction."""
    chance = random.Random(seed)
    with Driver(place, provider) as driver:
        driver.config["topology.transaction.attempts.max"] = 1000
        limits = replace(SMALL, pauses=10_000)
        done: list[Lines] = []
        for life in range(3):
            with LivingTester(
                totals(), driver.folder, driver.config, seed=seed + life, breaks=True, cache=driver.cache, limits=limits
            ) as tester:
                for _ in range(4):
                    work = lines(*(" ".join(chance.choices("abcdefgh", k=5)) for _ in range(chance.randrange(4))))
                    tester.send(work, *chance.sample([JobFails(), HooksFail()], chance.randrange(3)))
                    done.append(work)
                    check(tester, done)
                tester.wake()
                check(tester, done)
        assert tester.txid == 12
