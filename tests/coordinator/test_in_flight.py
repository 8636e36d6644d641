"""Several transactions in flight: results are those of one after the other, whatever fails or crashes (rule 9)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statefx.errors import AttemptsExhaustedError
from statefx.testing.crashes import crashes
from statefx.testing.faults import Fault, HooksFail, JobFails, Lost, Zombie
from statefx.testing.steps import DurableSteps
from tests.coordinator.in_flight import InFlight
from tests.testing.topologies import REFERENCES, lines, totals, words

WORKS = [lines("to be or not to be"), lines("that is"), lines(), lines("the question"), lines("to be", "to do")]
TOPOLOGY = totals()
"""`split` is before the cut; `count` and `total` are committers, and `total` has hooks."""

PROVIDERS = ["memory", "tests.testing.eager:EagerProvider"]


class Place:
    """Drivers on one checkpoint."""

    def __init__(self, folder: Path, provider: str = "memory") -> None:
        self.folder = folder
        self.journal: list[tuple[Any, ...]] = []
        self.config = {"topology.state.provider": REFERENCES.get(provider, provider), "journal": self.journal}
        self.made: list[InFlight] = []

    def start(self, **given: Any) -> InFlight:
        config = {**self.config, **given.pop("config", {})}
        given = {"cache": self.folder / "cache", **given}
        made = InFlight(TOPOLOGY, self.folder / "checkpoint", config, **given)
        self.made.append(made)
        return made

    def check(self, tester: InFlight, txid: int = len(WORKS)) -> None:
        """All of the first transactions is there once, and hooks came in the order of transactions."""
        counts = words(WORKS[:txid])
        assert tester.txid == txid
        assert tester.state("count") == counts
        assert tester.state("total") == ({"total": sum(counts.values()), "txid": txid} if txid else {})
        commits = [(of, attempt) for what, of, attempt, _ in self.journal if what == "commit"]
        assert sorted({of for of, _ in commits}) == list(range(1, txid + 1))
        assert [of for of, _ in commits] == sorted(of for of, _ in commits)
        assert len(set(commits)) == txid, "each transaction was committed in one attempt alone"
        for what, of, attempt, seen in self.journal:
            assert seen == (of if what == "commit" else of - 1), "hooks see the version before, or their own"
            assert what == "commit" or (of, attempt) not in commits

    def close(self) -> None:
        for each in self.made:
            each.close()


@pytest.fixture
def here(place: Path) -> Iterator[Place]:
    found = Place(place)
    yield found
    found.close()


def records(tester: InFlight) -> list[str]:
    return [step.removeprefix("after ") for step in tester.steps if step.startswith("after ") and step[6].isupper()]


@pytest.mark.slow
def test_transactions_begin_before_those_before_them_are_decided(here: Place) -> None:
    tester = here.start()
    tester.drive(WORKS)
    here.check(tester)
    assert tester.at_once() == 3
    began = records(tester).index("PREPARING(3, 0)")
    assert began < records(tester).index("COMMITTING(1, 0)")


def test_what_they_came_to_is_told_once_each_and_in_order(here: Place) -> None:
    tester = here.start()
    tester.drive(WORKS)
    told = tester._progress.recent()
    assert [done["txid"] for done in told] == [1, 2, 3, 4, 5]
    assert [done["numInputRows"] for done in told] == [1, 1, 0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_jobs_end_in_any_order(here: Place, seed: int) -> None:
    tester = here.start(seed=seed, processes=2)
    tester.drive(WORKS)
    here.check(tester)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize(
    "fault",
    [JobFails(0), JobFails(2), Lost("split", 1, "barrier"), Lost("count", 0), Zombie("total"), HooksFail(done=0)],
    ids=repr,
)
def test_what_fails_is_tried_again_with_what_is_behind_it(here: Place, fault: Fault, seed: int | None) -> None:
    tester = here.start(seed=seed)
    tester.inject(fault, fault)
    tester.drive(WORKS)
    here.check(tester)


def test_a_failure_in_the_middle_leaves_alone_what_is_below_it(here: Place) -> None:
    tester = here.start()
    tester.when("after PREPARING(3, 0)", lambda: tester.when("after PREPARING(4, 0)", lambda: fail(tester)))
    tester.drive(WORKS)
    here.check(tester)
    rolled_back = [record for record in records(tester) if record.startswith("ROLLED_BACK")]
    assert rolled_back == ["ROLLED_BACK(4, 0)", "ROLLED_BACK(3, 0)", "ROLLED_BACK(2, 0)"]
    assert tester.pauses == [0.1], "one try, of the transaction that failed alone"


def fail(tester: InFlight) -> None:
    tester.inject(JobFails(2))


@pytest.mark.slow
def test_one_that_fails_too_often_ends_the_run_and_all_behind_it_is_rolled_back(here: Place) -> None:
    tester = here.start()
    tester.inject(*[JobFails(0)] * 30)
    with pytest.raises(AttemptsExhaustedError, match="transaction 1 failed 8 times"):
        tester.drive(WORKS)
    with here.start() as restarted:
        restarted.drive(WORKS)
        here.check(restarted)


@pytest.mark.parametrize("now", [False, True])
def test_stop_rolls_back_what_is_not_the_lowest(here: Place, now: bool) -> None:
    tester = here.start()
    tester.when("after PREPARING(3, 0)", lambda: tester.stop(now=now))
    tester.drive(WORKS)
    assert tester.txid == (0 if now else 1)
    kinds = records(tester)
    assert "ROLLED_BACK(3, 0)" in kinds
    assert "ROLLED_BACK(2, 0)" in kinds
    assert kinds.index("ROLLED_BACK(3, 0)") < kinds.index("ROLLED_BACK(2, 0)")
    assert ("ROLLED_BACK(1, 0)" in kinds) == now
    with here.start() as restarted:
        restarted.drive(WORKS)
        here.check(restarted)


@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_crash_at_any_step_loses_and_doubles_nothing(place: Path, provider: str, stride: int) -> None:
    here, passed = Place(place, provider), set[str]()

    def life(steps: DurableSteps) -> None:
        with here.start(steps=steps) as tester:
            tester.drive(WORKS)
        passed.update(steps.passed)

    for point in crashes(place, life, here.journal, every=stride):
        with here.start(cache=point.cache) as recovered:
            here.check(recovered, recovered.txid)
        if point.is_new(recovered.txid):
            with here.start(cache=point.cache) as tester:
                tester.drive(WORKS)
                here.check(tester)
    for step in ("PREPARING(3, 0)", "COMMITTING(2, 0)", "commit hooks total/0 for 4", "prepare count/1 for 5"):
        assert {f"before {step}", f"after {step}"} <= passed
