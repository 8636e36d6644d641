"""Several transactions in flight: results are those of one after the other, whatever fails or crashes (rule 9)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statefx.testing.crashes import crashes
from statefx.testing.living import LocalRunEngine
from statefx.testing.steps import DurableSteps
from tests.coordinator.in_flight import InFlight
from tests.testing.topologies import REFERENCES, lines, totals, words

WORKS = [lines("to be or not to be"), lines("that is"), lines(), lines("the question"), lines("to be", "to do")]
TOPOLOGY = totals(works=WORKS)
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
        made = InFlight(TOPOLOGY, self.folder / "checkpoint", config=config, **given)
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
    tester.drain()
    here.check(tester)
    assert tester.at_once() == 3
    began = records(tester).index("PREPARING(3, 0)")
    assert began < records(tester).index("COMMITTING(1, 0)")


def test_what_they_came_to_is_told_once_each_and_in_order(here: Place) -> None:
    tester = here.start()
    tester.drain()
    told = tester._progress.recent()
    assert [done["txid"] for done in told] == [1, 2, 3, 4, 5]
    assert [done["numInputRows"] for done in told] == [1, 1, 0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_jobs_end_in_any_order(here: Place, seed: int) -> None:
    tester = here.start(seed=seed)
    tester.drain()
    here.check(tester)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, -1])
@pytest.mark.parametrize(
    "moment", ["PREPARING(2, 0)", "PREPARING(3, 0)", "COMMITTING(1, 0)", "COMMITTING(3, 0)", "prepare count/0 for 2"]
)
def test_what_fails_is_tried_again_with_what_is_behind_it(here: Place, moment: str, level: int) -> None:
    tester = here.start()
    assert isinstance(tester._engine, LocalRunEngine)
    runs = tester._engine.runs

    def lose() -> None:
        """Lose a slot, of spouts or of the last level."""
        assert runs
        runs[-1].lose(sorted(runs[-1].slots)[level])

    tester.when(f"after {moment}", lose)
    tester.drain()
    here.check(tester)
    assert len(runs) == 2


@pytest.mark.parametrize("now", [False, True])
def test_stop_rolls_back_what_is_not_the_lowest(here: Place, now: bool) -> None:
    tester = here.start()
    tester.when("after PREPARING(3, 0)", lambda: tester.stop(now=now))
    tester.drain()
    assert tester.txid == (0 if now else 1)
    kinds = records(tester)
    assert "ROLLED_BACK(3, 0)" in kinds
    assert "ROLLED_BACK(2, 0)" in kinds
    assert kinds.index("ROLLED_BACK(3, 0)") < kinds.index("ROLLED_BACK(2, 0)")
    assert ("ROLLED_BACK(1, 0)" in kinds) == now
    with here.start() as restarted:
        restarted.drain()
        here.check(restarted)


@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_crash_at_any_step_loses_and_doubles_nothing(place: Path, provider: str, stride: int) -> None:
    here, passed = Place(place, provider), set[str]()

    def life(steps: DurableSteps) -> None:
        with here.start(steps=steps) as tester:
            tester.drain()
        passed.update(steps.passed)

    for point in crashes(place, life, here.journal, every=stride):
        with here.start(cache=point.cache) as recovered:
            here.check(recovered, recovered.txid)
        if point.is_new(recovered.txid):
            with here.start(cache=point.cache) as tester:
                tester.drain()
                here.check(tester)
    for step in ("PREPARING(3, 0)", "COMMITTING(2, 0)", "prepare count/1 for 5"):
        assert {f"before {step}", f"after {step}"} <= passed
