"""A crash at every durable step, restarts, and the end: the run without failure, key by key."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statefx.coordinator.state import SnapshotPolicy
from statefx.testing import Crash, Limits, TopologyTester
from statefx.testing.faults import Fault, HooksFail, JobFails, Zombie
from tests.testing.topologies import Driver, lines, totals, words

pytestmark = pytest.mark.slow

TRANSACTIONS = [lines("to be or not to be", "that is"), lines(), lines("the question", "to be")]
LIMITS = Limits(SnapshotPolicy(min_bytes=1, ratio=0, share=1), fold_after=6, sweep_every=1, min_age_secs=0.0)
MERGING = Limits(files_max=1, fold_after=6, sweep_every=1, min_age_secs=0.0, versions_kept=0)
"""Every other transaction takes the file before it in, and the sweep after it deletes that one."""

STEPS_MAX = 400
TOTALS = totals()
PROVIDERS = ["memory", "rocksdb"]
FAULTS = [JobFails(), Zombie("total"), HooksFail(done=1)]


class Runs:
    """Runs `TRANSACTIONS` with crashes, each run on a checkpoint of its own."""

    def __init__(self, place: Path, provider: str, limits: Limits | None, faults: tuple[Fault, ...] = ()) -> None:
        self.place = place
        self.provider = provider
        self.limits = limits
        self.faults = faults

    def crash(self, first: int, stride: int) -> set[str]:
        """Crash at every `stride`-th moment from the `first` on; return all moments of a run without a crash."""
        with Driver(self.place, self.provider, "rehearsal") as driver:
            moments = self._drive(driver).steps
        for at in range(first % stride + 1, len(moments) + 1, stride):
            assert self.run(at) == moments[at - 1]
        assert self.run(len(moments) + 1) is None
        return set(moments)

    def run(self, *crash_at: int) -> str | None:
        """Run with a crash at a moment of the first driver, of the second, ...; return the last one's, if it came."""
        name = "-".join(map(str, crash_at))
        with Driver(self.place, self.provider, name) as driver:
            hits = [self._crash(driver, moment) for moment in crash_at]
            self._check(driver)
        return hits[-1]

    def _crash(self, driver: Driver, crash_at: int) -> str | None:
        try:
            self._drive(driver, crash_at)
        except Crash as crash:
            return str(crash)
        return None

    def _drive(self, driver: Driver, crash_at: int | None = None) -> TopologyTester:
        tester = driver.start(TOTALS, crash_at=crash_at, limits=self.limits)
        tester.inject(*self.faults)
        tester.run(TRANSACTIONS)
        return tester

    def _check(self, driver: Driver) -> None:
        tester = self._drive(driver)
        assert tester.txid == len(TRANSACTIONS)
        assert tester.state("count") == words(TRANSACTIONS)
        assert tester.state("total") == {"total": sum(words(TRANSACTIONS).values()), "txid": len(TRANSACTIONS)}
        check_hooks(driver.journal)


def check_hooks(journal: list[tuple[Any, ...]]) -> None:
    """Every transaction commits in one attempt alone, in order, and no attempt is both committed and rolled back."""
    committed, rolled_back = defaultdict(set), set()
    order = []
    for what, txid, attempt, state_txid in journal:
        if what == "commit":
            committed[txid].add(attempt)
            order.append(txid)
            assert state_txid == txid, "preCommit sees what was prepared"
        else:
            rolled_back.add((txid, attempt))
            assert state_txid == txid - 1, "preRollback sees what was committed before"
    assert sorted(committed) == list(range(1, len(TRANSACTIONS) + 1)), "preCommit came for every transaction"
    assert order == sorted(order), "commits are in the order of their txids"
    for txid, attempts in committed.items():
        assert len(attempts) == 1, "a transaction was committed in two attempts"
        assert (txid, *attempts) not in rolled_back, "an attempt was rolled back and committed"


def test_a_crash_at_any_step_loses_and_doubles_nothing(place: Path, provider: str, stride: int) -> None:
    moments = Runs(place, provider, None).crash(PROVIDERS.index(provider), stride)
    for step in (
        "LINEAGE", "GENERATION(1)", "fence 1", "PREPARING(1, 0)", "prepare count/1 for 2", "prepare total/0 for 3",
        "COMMITTING(3, 0)", "commit hooks total/0 for 1", "COMMITTED(3)",
    ):  # fmt: skip
        assert {f"before {step}", f"after {step}"} <= moments


def test_a_crash_at_any_step_with_snapshots_folds_and_sweeps(place: Path, stride: int) -> None:
    moments = Runs(place, "memory", LIMITS).crash(0, stride)
    assert {"before snapshot count/0", "after CHECKPOINT", "after delete count/1"} <= moments


def test_a_crash_at_any_step_with_merges_and_sweeps(place: Path, provider: str, stride: int) -> None:
    moments = Runs(place, provider, MERGING).crash(PROVIDERS.index(provider), stride)
    assert {"after delete count/0", "after delete total/0"} <= moments
    assert "before snapshot count/0" not in moments


@pytest.mark.parametrize("limits", [LIMITS, MERGING], ids=["snapshots", "merges"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_crash_at_any_step_of_a_run_with_a_failure(place: Path, fault: Fault, limits: Limits, stride: int) -> None:
    moments = Runs(place, "memory", limits, (fault,)).crash(FAULTS.index(fault), stride)
    rolled_back = not isinstance(fault, HooksFail)
    assert ("before ROLLED_BACK(1, 0)" in moments) == rolled_back


def test_a_crash_during_the_recovery_from_a_crash(place: Path, provider: str) -> None:
    runs = Runs(place, provider, replace(LIMITS, files_max=1, versions_kept=0))
    every = {"memory": 13, "rocksdb": 23}[provider]
    for first in range(7, STEPS_MAX, every):
        if runs.run(first) is None:
            return
        for second in range(1, STEPS_MAX, every):
            if runs.run(first, second) is None:
                break
    raise AssertionError("the sample did not end")


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
