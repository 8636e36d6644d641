"""A crash at every durable step, restarts, and the end: the run without failure, key by key."""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from statefx.coordinator.state import SnapshotPolicy
from statefx.testing import Crash, Limits, TopologyTester
from statefx.testing.crashes import CrashPoint, crashes
from statefx.testing.faults import Fault, HooksFail, JobFails
from statefx.testing.steps import DurableSteps
from tests.testing.living import Zombie
from tests.testing.topologies import Driver, lines, totals, words

pytestmark = pytest.mark.slow

TRANSACTIONS = [lines("to be or not to be", "that is"), lines(), lines("the question", "to be")]
LIMITS = Limits(SnapshotPolicy(min_bytes=1, ratio=0, share=1), fold_after=6, sweep_every=1, min_age_secs=0.0)
MERGING = Limits(files_max=1, fold_after=6, sweep_every=1, min_age_secs=0.0, versions_kept=0)
"""Every other transaction takes the file before it in, and the sweep after it deletes that one."""

TOTALS = totals()
FAULTS = (JobFails(), JobFails(), HooksFail())


class Runs:
    """Runs `TRANSACTIONS` with crashes on checkpoints below `place`."""

    def __init__(self, place: Path, provider: str, limits: Limits | None, faults: tuple[Fault, ...] = ()) -> None:
        self.place = place
        self.provider = provider
        self.limits = limits
        self.faults = faults

    def crash(self, every: int = 1) -> set[str]:
        """Crash in each state that there is, or in some; return all moments."""
        passed = set[str]()

        def life(steps: DurableSteps) -> None:
            self._drive(driver, self.place / "cache", steps)
            passed.update(steps.passed)

        with Driver(self.place, self.provider) as driver:
            for point in crashes(self.place, life, driver.journal, every=every):
                self._check(driver, point)
        return passed

    def crash_again(self, every: int) -> int:
        """Crash at some moments, then at every moment of each recovery; return how many pairs there were."""
        pairs = 0
        with Driver(self.place, self.provider) as driver:
            life = partial(self._drive, driver, self.place / "cache")
            for first in crashes(self.place, life, driver.journal, every=every):
                start = partial(self._start, driver, first.cache)
                for second in crashes(self.place, start, driver.journal, cache=first.cache.name, reruns=False):
                    self._check(driver, second)
                    pairs += 1
        return pairs

    def _start(self, driver: Driver, cache: Path, steps: DurableSteps | None = None) -> TopologyTester:
        with driver.start(TOTALS, cache=cache, steps=steps, limits=self.limits) as tester:
            return tester

    def _drive(self, driver: Driver, cache: Path, steps: DurableSteps | None = None) -> TopologyTester:
        with driver.start(TOTALS, cache=cache, steps=steps, limits=self.limits) as tester:
            tester.inject(*self.faults)
            if self.faults:
                zombie = Zombie(tester, "before prepare count/1 for 3", "count", 1)
                tester.when("after PREPARING(3, 1)", zombie.go_on)
            tester.run(TRANSACTIONS)
            return tester

    def _check(self, driver: Driver, point: CrashPoint) -> None:
        recovered = self._start(driver, point.cache)
        check(recovered, driver.journal, recovered.txid)
        if point.is_new(recovered.txid):
            check(self._drive(driver, point.cache), driver.journal, len(TRANSACTIONS))


def check(tester: TopologyTester, journal: list[tuple[Any, ...]], txid: int) -> None:
    """Compare with what the first transactions come to."""
    assert tester.txid == txid
    counts = words(TRANSACTIONS[:txid])
    assert tester.state("count") == counts
    assert tester.state("total") == ({"total": sum(counts.values()), "txid": txid} if txid else {})
    check_hooks(journal, txid)


def check_hooks(journal: list[tuple[Any, ...]], txid: int = len(TRANSACTIONS)) -> None:
    """Every transaction commits in one attempt alone, in order, and no attempt is both committed and rolled back."""
    committed, rolled_back = defaultdict(set), set()
    order = []
    for what, of, attempt, state_txid in journal:
        if what == "commit":
            committed[of].add(attempt)
            order.append(of)
            assert state_txid == of, "preCommit sees what was prepared"
        else:
            rolled_back.add((of, attempt))
            assert state_txid == of - 1, "preRollback sees what was committed before"
    assert sorted(committed) == list(range(1, txid + 1)), "preCommit came for every transaction"
    assert order == sorted(order), "commits are in the order of their txids"
    for of, attempts in committed.items():
        assert len(attempts) == 1, "a transaction was committed in two attempts"
        assert (of, *attempts) not in rolled_back, "an attempt was rolled back and committed"


def test_a_crash_at_any_step_loses_and_doubles_nothing(place: Path, provider: str) -> None:
    moments = Runs(place, provider, None).crash()
    for step in (
        "LINEAGE", "GENERATION(1)", "fence 1", "PREPARING(1, 0)", "prepare count/1 for 2", "prepare total/0 for 3",
        "COMMITTING(3, 0)", "commit hooks total/0 for 1", "COMMITTED(3)",
    ):  # fmt: skip
        assert {f"before {step}", f"after {step}"} <= moments


def test_a_crash_at_any_step_with_snapshots_folds_and_sweeps(place: Path) -> None:
    moments = Runs(place, "memory", LIMITS).crash()
    assert {"before snapshot count/0", "after CHECKPOINT", "after delete count/1"} <= moments


def test_a_crash_at_any_step_with_merges_and_sweeps(place: Path, provider: str) -> None:
    moments = Runs(place, provider, MERGING).crash()
    assert {"after delete count/0", "after delete total/0"} <= moments
    assert "before snapshot count/0" not in moments


@pytest.mark.parametrize("limits", [LIMITS, MERGING], ids=["snapshots", "merges"])
def test_a_crash_at_any_step_of_a_run_with_failures(place: Path, limits: Limits, stride: int) -> None:
    moments = Runs(place, "memory", limits, FAULTS).crash(every=stride)
    assert {"before ROLLED_BACK(1, 0)", "before ROLLED_BACK(1, 1)", "before ROLLED_BACK(3, 0)"} <= moments


def test_a_crash_during_the_recovery_from_a_crash(place: Path, provider: str) -> None:
    limits = replace(LIMITS, files_max=1, versions_kept=0)
    assert Runs(place, provider, limits).crash_again(every=17) > 30


def test_a_crash_in_the_recovery_is_a_crash_of_the_recovery(place: Path) -> None:
    """The samples above do reach what they are for."""
    with Driver(place) as driver:
        with pytest.raises(Crash):
            driver.start(totals(), crash_at=_moment(place, "after COMMITTING(1, 0)")).run(TRANSACTIONS)
        recovered = driver.start(totals())
        assert recovered.recoveries == [{"txid": 1, "rolled": "forward"}]
        assert recovered.txid == 1
        assert driver.journal == [("commit", 1, 0, 1)]


def _moment(place: Path, moment: str) -> int:
    with Driver(place, name="rehearsal") as driver:
        tester: TopologyTester = driver.start(totals())
        tester.run(TRANSACTIONS)
        return tester.steps.index(moment) + 1
