"""What Spark does to tasks: nothing is lost, nothing doubled, and nothing of a dead attempt shows."""

import itertools
import random
from pathlib import Path

import pytest

from statefx import TopologyBuilder
from statefx.plan.levels import compile_plan
from statefx.testing import rows
from statefx.testing.faults import (
    Doubled,
    Echo,
    Fault,
    HooksFail,
    JobFails,
    Killed,
    Lost,
    Moved,
    Rerun,
    Twins,
    Wake,
    Zombie,
)
from tests.testing.topologies import SMALL, Count, Driver, Split, Total, lines, totals, word_count, words

WORK = [lines("to be or not to be", "that is the question"), lines("to sleep", "to dream"), lines(), lines("no more")]

HARMLESS: list[Fault] = [
    Rerun("split"),
    Rerun("count", 1),
    Rerun("total"),
    Twins("split", 1),
    Twins("count", 0, winner=1),
    Twins("total", 0, winner=1),
    Killed("split"),
    Killed("count", 1),
    Moved("count"),
    Echo(),
    HooksFail(),
    HooksFail(done=1),
]
ROLLED_BACK: list[Fault] = [
    Lost("split"),
    Lost("split", 1, "barrier"),
    Lost("count", 1, "barrier"),
    Lost("total", 0, "ack"),
    Doubled("split"),
    Doubled("count", 1),
    JobFails(0),
    JobFails(1),
    JobFails(),
    Zombie("split"),
    Zombie("count", 0, executed=False),
    Zombie("count", 1),
    Zombie("total"),
]


def name(fault: Fault) -> str:
    return repr(fault)


@pytest.mark.parametrize("fault", HARMLESS, ids=name)
def test_what_spark_recovers_from_by_itself_costs_no_attempt(place: Path, fault: Fault) -> None:
    check(place, fault, attempt=0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ROLLED_BACK, ids=name)
def test_what_spark_does_not_recover_from_is_rolled_back_and_tried_again(place: Path, fault: Fault) -> None:
    check(place, fault, attempt=1)


def check(place: Path, fault: Fault, attempt: int) -> None:
    with Driver(place) as driver:
        tester = driver.start(totals())
        for n, work in enumerate(WORK):
            sent = tester.send(work, *([fault] if n in (0, 1) else []))
            assert tester.state("count") == words(WORK[: n + 1])
            assert tester.state("total")["total"] == sum(words(WORK[: n + 1]).values())
            emitted = [(word, count) for word, count in sent.emitted("count")]
            assert len(emitted) == len(set(emitted)) == sum(words([work]).values())
        assert sorted({entry[1:3] for entry in driver.journal if entry[0] == "commit"}) == [
            (1, attempt), (2, attempt), (3, 0), (4, 0)
        ]  # fmt: skip
        tester.wake()
        assert driver.start(totals()).state("count") == words(WORK)


@pytest.mark.parametrize("readers", [{0}, {1}])
def test_two_consumers_that_read_two_runs_of_one_task_are_told_apart(place: Path, readers: set[int]) -> None:
    """Both runs hold the same rows here; with a source that isn't deterministic they would not."""
    with Driver(place) as driver:
        tester = driver.start(word_count())
        sent = tester.send(lines("a b c d e f", "g h"), Rerun("split", 0, readers=readers))
        assert sent.progress.attempt == 1
        assert tester.state("count") == dict.fromkeys("abcdefgh", 1)


def test_a_task_whose_ack_is_the_first_runs_and_whose_barrier_is_the_seconds_is_found_out(place: Path) -> None:
    """The ack of count[1] is relayed by echo[0], its only consumer is total[0]; each reads another run of it."""
    builder = TopologyBuilder("relayed")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
    builder.setBolt("total", Total()).globalGrouping("count")
    builder.setBolt("other", Total()).globalGrouping("count")
    topology = builder.createTopology()
    place_of = compile_plan(topology).place
    assert [place_of[component, 0] for component in ("total", "other")] == [(2, 0), (2, 1)]
    with Driver(place) as driver:
        tester = driver.start(topology)
        sent = tester.send(lines("a b c d"), Rerun("count", 1, readers={place_of["total", 0][1]}))
        assert sent.progress.attempt == 1
        assert tester.state("total")["total"] == tester.state("other")["total"] == 4


@pytest.mark.slow
def test_a_zombie_that_goes_on_in_the_middle_of_a_later_transaction_changes_nothing(place: Path, provider: str) -> None:
    """It prepares beside the attempts that follow, under a token that nobody names."""
    for executed, later in itertools.product((True, False), (1, 2)):
        with Driver(place, provider, f"{executed}-{later}") as driver:
            tester = driver.start(totals())
            tester.send(WORK[0])
            sent = tester.send(WORK[1], Zombie("count", 1, executed))
            assert sent.progress.attempt == 1
            if later == 2:
                tester.send(WORK[2])
            tester.inject(Wake("count", 0))
            tester.send(WORK[3])
            own = tester.steps.index("after COMMITTED(2)")
            prepares = [n for n, step in enumerate(tester.steps) if step == "after prepare count/1 for 2"]
            assert len(prepares) == 2
            assert prepares[0] < own < prepares[1], "the second is the zombie's"
            sent = [*WORK[:2], *WORK[2 : later + 1], WORK[3]] if later == 2 else [*WORK[:2], WORK[3]]
            assert tester.state("count") == words(sent)
            restarted = driver.start(totals())
            restarted.send(WORK[0])
            assert restarted.state("count") == words([*sent, WORK[0]])


def test_a_zombie_in_the_attempt_that_follows_its_own_changes_nothing(place: Path, provider: str) -> None:
    with Driver(place, provider) as driver:
        tester = driver.start(totals())
        sent = tester.send(WORK[0], Zombie("count", 0), Wake("count", 0))
        assert sent.progress.attempt == 1
        prepares = [n for n, step in enumerate(tester.steps) if step == "after prepare count/0 for 1"]
        attempt = tester.steps.index("after PREPARING(1, 1)")
        assert attempt < prepares[0] < prepares[1], "both in the second attempt"
        assert tester.state("count") == words(WORK[:1])


def test_a_zombie_of_an_older_generation_changes_nothing(place: Path, provider: str) -> None:
    with Driver(place, provider) as driver:
        driver.config["topology.transaction.attempts.max"] = 1
        old = driver.start(totals())
        old.send(WORK[0])
        with pytest.raises(Exception, match=r"attempts\.max"):
            old.send(WORK[1], Zombie("count", 1))
        zombies = old._engine.workers
        new = driver.start(totals())
        new.send(WORK[1])
        zombies.wake()
        new.send(WORK[3])
        zombies.wake()
        assert new.state("count") == words([WORK[0], WORK[1], WORK[3]])
        assert new.sweep() == 0, "too young"
        new.advance(3600)
        assert new.sweep() > 0
        assert driver.start(totals()).state("count") == words([WORK[0], WORK[1], WORK[3]])


@pytest.mark.slow
def test_a_late_task_never_takes_a_cache_back_to_an_older_version(place: Path, provider: str) -> None:
    """The zombie opened its state two versions ago, in the process whose cache the others use."""
    with Driver(place, provider) as driver:
        tester = driver.start(totals(), limits=SMALL)
        tester.send(WORK[0], Zombie("count", 0, executed=False), Zombie("count", 1, executed=False))
        for n, work in enumerate(WORK[1:], 2):
            tester.send(work, *([Wake("count", 1)] if n == 3 else []))
            assert tester.state("count") == words(WORK[:n])
        tester.send(WORK[0])
        assert tester.state("count") == words([*WORK, WORK[0]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 40))])
def test_any_faults_in_any_processes_in_any_order(place: Path, provider: str, seed: int) -> None:
    """Many workers, outputs in any order, several faults at once, a sweep and a snapshot in every transaction."""
    chance = random.Random(seed)
    with Driver(place, provider) as driver:
        driver.config["topology.transaction.attempts.max"] = 100
        tester = driver.start(totals(), processes=3, seed=seed, limits=SMALL)
        done = []
        for n in range(12):
            faults = chance.sample([*HARMLESS, *ROLLED_BACK, Wake("count", 1), Wake("total")], chance.randrange(4))
            work = lines(*(" ".join(chance.choices("abcdefgh", k=5)) for _ in range(chance.randrange(4))))
            tester.send(work, *faults)
            done.append(work)
            assert tester.state("count") == words(done)
            assert tester.state("total")["total"] == sum(words(done).values())
            if n % 5 == 4:
                tester = driver.start(totals(), processes=2, seed=n, limits=SMALL)
        assert tester.txid == 12
