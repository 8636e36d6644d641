"""Several transactions in flight: results are those of one after the other, whatever fails or crashes (rule 9)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statefx.coordinator.participants import SnapshotPolicy
from statefx.coordinator.retrying import JobFailedError, RenewInputError, backoff_secs
from statefx.errors import AttemptsExhaustedError, FailedException, TransactionTimeoutError
from statefx.protocol.identity import SnapshotRef, Version
from statefx.testing import TopologyTester
from statefx.testing.crashes import crashes
from statefx.testing.faults import Fault, JobFails
from statefx.testing.living import LocalRunEngine
from statefx.testing.steps import DurableSteps
from tests.coordinator.in_flight import InFlight
from tests.testing.living import LivingTester
from tests.testing.topologies import REFERENCES, Driver, lines, totals, witnessed, words

WORKS = [lines("to be or not to be"), lines("that is"), lines(), lines("the question"), lines("to be", "to do")]
TOPOLOGY = totals(works=WORKS)
"""`split` is before the cut; `count` and `total` are committers, and `total` has hooks."""

PROVIDERS = ["memory", "tests.testing.eager:EagerProvider"]


class Place:
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
def test_transactions_begin_before_those_before_them_are_decided(here):
    tester = here.start()
    tester.drain()
    here.check(tester)
    assert tester.at_once() == 3
    began = records(tester).index("PREPARING(3, 0)")
    assert began < records(tester).index("COMMITTING(1, 0)")


@pytest.mark.slow
def test_what_they_came_to_is_told_once_each_and_in_order(here):
    tester = here.start()
    tester.drain()
    told = tester._progress.recent()
    assert [done["txid"] for done in told] == [1, 2, 3, 4, 5]
    assert [done["numInputRows"] for done in told] == [1, 1, 0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_jobs_end_in_any_order(here, seed):
    tester = here.start(seed=seed)
    tester.drain()
    here.check(tester)


@pytest.mark.daily(4)
@pytest.mark.slow
@pytest.mark.parametrize("level", [0, -1])
@pytest.mark.parametrize(
    "moment", ["PREPARING(2, 0)", "PREPARING(3, 0)", "COMMITTING(1, 0)", "COMMITTING(3, 0)", "prepare count/0 for 2"]
)
def test_what_fails_is_tried_again_with_what_is_behind_it(here, moment, level):
    tester = here.start()
    assert isinstance(tester._engine, LocalRunEngine)
    runs = tester._engine.runs

    def lose() -> None:
        assert runs
        runs[-1].lose(sorted(runs[-1].chains)[level])

    tester.when(f"after {moment}", lose)
    tester.drain()
    here.check(tester)
    assert len(runs) == 2


@pytest.mark.slow
@pytest.mark.parametrize("now", [False, True])
def test_stop_rolls_back_what_is_not_the_lowest(here, now):
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


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_crash_at_any_step_loses_and_doubles_nothing(place, provider, stride):
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


# ---- Inputs that no second attempt can read: after a failure another one is called for, within bounds.


@pytest.fixture
def driver(place: Path) -> Iterator[Driver]:
    with Driver(place) as driver:
        driver.config["topology.transaction.attempts.max"] = 3
        yield driver


def feed(tester: TopologyTester, *faults: Fault) -> int:
    """Bring an input, as the feed of a stream does; return the attempt that was committed."""
    tester.inject(*faults)
    batch = tester._batch(lines("a"))._replace(renews=lambda failure: True)
    return tester._coordinator.transact(batch).attempt


def test_tries_are_counted_over_all_inputs_of_a_transaction(driver):
    tester = driver.start(witnessed())
    for n in range(2):
        with pytest.raises(RenewInputError, match="the executor was lost"):
            feed(tester, JobFails())
        assert tester.steps[-1] == f"after ROLLED_BACK(1, {n})"
    with pytest.raises(AttemptsExhaustedError, match=r"failed 3 times.*last: no heartbeat") as caught:
        feed(tester, JobFails(reason="no heartbeat"))
    assert caught.value.attempts == 3
    assert isinstance(caught.value.__cause__, JobFailedError)
    assert tester.pauses == [], "the feed waits, once its query has ended"


@pytest.mark.slow
def test_the_next_transaction_begins_to_count_anew(driver):
    tester = driver.start(witnessed())
    for _ in range(3):
        for _ in range(2):
            with pytest.raises(RenewInputError):
                feed(tester, JobFails())
        assert feed(tester) == 2
    assert tester.state("witness") == {"seen": 3}


def test_a_verdict_too_calls_for_another_input(driver):
    driver.config["failing"] = {"execute": [FailedException("the feed is stale")]}
    tester = driver.start(witnessed())
    with pytest.raises(RenewInputError, match="the feed is stale") as caught:
        feed(tester)
    assert (caught.value.component, caught.value.task) == ("witness", 0)
    assert feed(tester) == 1
    assert tester.state("witness") == {"seen": 1}


def test_a_timeout_stays_one(driver):
    with LivingTester(witnessed(), driver.folder, driver.config, seed=0) as tester:
        for n in range(3):
            tester.when("before prepare witness/0 for 1", tester.time_out)
            expected = RenewInputError if n < 2 else TransactionTimeoutError
            with pytest.raises(expected, match="it took longer than") as caught:
                feed(tester)
            assert caught.value.timeout


def test_the_pause_has_a_bound_however_often_a_commit_fails():
    assert [backoff_secs(tries) for tries in (1, 2, 3, 8, 5000)] == [0.1, 0.2, 0.4, 10.0, 10.0]
    assert [backoff_secs(tries, 60.0) for tries in (1, 5000)] == [60.0, 60.0], "a longer first one is kept"
    assert backoff_secs(5000, 0.0) == 0.0


# ---- Which tasks are told to write a snapshot.


def snapshot(size_bytes):
    return SnapshotRef(Version(1, "a"), "sum", size_bytes)


def test_one_is_due_when_the_changelogs_have_outgrown_the_last():
    policy = SnapshotPolicy(min_bytes=100)
    assert policy.due({"count/0": 100}, {}) == frozenset()
    assert policy.due({"count/0": 101}, {}) == {"count/0"}
    assert policy.due({"count/0": 101}, {"count/0": snapshot(200)}) == frozenset()
    assert policy.due({"count/0": 201}, {"count/0": snapshot(200)}) == {"count/0"}
    assert policy.due({}, {}) == frozenset()


def test_the_most_overdue_are_told_first():
    policy = SnapshotPolicy(min_bytes=100, share=0.5)
    growth = {"count/0": 150, "count/1": 300, "count/2": 200, "count/3": 99}
    assert policy.due(growth, {}) == {"count/1", "count/2"}
    assert policy.due(growth, {"count/1": snapshot(1000)}) == {"count/0", "count/2"}


def test_tasks_that_grow_alike_are_told_a_few_in_each_transaction():
    policy = SnapshotPolicy()
    growth = {f"count/{task}": 0 for task in range(64)}
    newest, told = {}, []
    for txid in range(1, 200):
        due = policy.due(growth, newest)
        told.append(len(due))
        for name in growth:
            growth[name] += 5 << 20
        for name in due:
            growth[name], newest[name] = 5 << 20, snapshot(txid << 20)
    assert max(told) == 8
    assert len(newest) == 64
    assert max(growth.values()) < 5 * max(each.size_bytes for each in newest.values()), "none is left out"
