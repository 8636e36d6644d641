"""A crash at every durable step, restarts, and the end: the run without failure, key by key."""

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import FrozenInstanceError, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from statefx import Checkpoint, TopologyBuilder
from statefx.connectors.files import committedFiles
from statefx.coordinator.participants import SnapshotPolicy
from statefx.errors import AttemptsExhaustedError, CheckpointError, CheckpointFormatError, ConfigError, FailedException
from statefx.log.entries import FOLDER
from statefx.testing import Crash, Limits, TopologyTester, rows
from statefx.testing.crashes import CrashPoint, crashes
from statefx.testing.faults import Fault, HooksFail, JobFails
from statefx.testing.steps import DurableSteps
from tests.testing.living import LivingTester, Zombie, lose_run
from tests.testing.topologies import REFERENCES, SMALL, Count, Driver, Lines, archived, lines, totals, words

TRANSACTIONS = [lines("to be or not to be", "that is"), lines(), lines("the question", "to be")]
LIMITS = Limits(SnapshotPolicy(min_bytes=1, ratio=0, share=1), fold_after=6, sweep_every=1, min_age_secs=0.0)
MERGING = Limits(files_max=1, fold_after=6, sweep_every=1, min_age_secs=0.0, versions_kept=0)
"""Every other transaction takes the file before it in, and the sweep after it deletes that one."""

TOTALS = totals()
FAULTS = (JobFails(), JobFails(), HooksFail())


class Runs:
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


@pytest.mark.daily(1)
@pytest.mark.slow
def test_a_crash_at_any_step_loses_and_doubles_nothing(place, provider):
    moments = Runs(place, provider, None).crash()
    for step in (
        "LINEAGE", "GENERATION(1)", "fence 1", "PREPARING(1, 0)", "prepare count/1 for 2", "prepare total/0 for 3",
        "COMMITTING(3, 0)", "commit hooks total/0 for 1", "COMMITTED(3)",
    ):  # fmt: skip
        assert {f"before {step}", f"after {step}"} <= moments


@pytest.mark.slow
def test_a_crash_at_any_step_with_snapshots_folds_and_sweeps(place):
    moments = Runs(place, "memory", LIMITS).crash()
    assert {"before snapshot count/0", "after CHECKPOINT", "after delete count/1"} <= moments


@pytest.mark.daily(1)
@pytest.mark.slow
def test_a_crash_at_any_step_with_merges_and_sweeps(place, provider):
    moments = Runs(place, provider, MERGING).crash()
    assert {"after delete count/0", "after delete total/0"} <= moments
    assert "before snapshot count/0" not in moments


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("limits", [LIMITS, MERGING], ids=["snapshots", "merges"])
def test_a_crash_at_any_step_of_a_run_with_failures(place, limits, stride):
    moments = Runs(place, "memory", limits, FAULTS).crash(every=stride)
    assert {"before ROLLED_BACK(1, 0)", "before ROLLED_BACK(1, 1)", "before ROLLED_BACK(3, 0)"} <= moments


@pytest.mark.daily(1)
@pytest.mark.slow
def test_a_crash_during_the_recovery_from_a_crash(place, provider):
    limits = replace(LIMITS, files_max=1, versions_kept=0)
    assert Runs(place, provider, limits).crash_again(every=17) > 30


@pytest.mark.slow
def test_a_crash_in_the_recovery_is_a_crash_of_the_recovery(driver, place):
    """The samples above do reach what they are for."""
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


# ---- `transactions` lists what the log tells, after a crash at any step and beside a driver at work.


WORK = [lines("to be or", "not to be"), lines("that is")]


def names(folder: Path) -> list[tuple[int, int, str]]:
    return [(each.txid, each.attempt, each.state) for each in Checkpoint(folder).transactions()]


@pytest.mark.slow
def test_a_crash_at_any_step_leaves_what_a_list_tells(driver, place):
    seen, topology = set(), archived(place / "out")
    (place / "out").mkdir()

    def life(steps: DurableSteps | None = None, cache: Path = place / "cache") -> None:
        with driver.start(topology, steps=steps, limits=SMALL, cache=cache) as tester:
            tester.run(WORK)

    for point in crashes(place, life):
        left = []
        with suppress(CheckpointError):
            left = Checkpoint(driver.folder).transactions()
        life(cache=point.cache)
        check_listed(left, Checkpoint(driver.folder).transactions(), seen)
    assert seen == {"PREPARING", "COMMITTING", "COMMITTED"}


def check_listed(left: list[Any], found: list[Any], seen: set[str]) -> None:
    """What a crash has left is told as it was, but for the last one, which the next driver has ended."""
    assert [each.txid for each in found if each.state == "COMMITTED"] == [1, 2]
    assert found[: len(left[:-1])] == left[:-1]
    for before, after in zip(left[-1:], found[len(left[:-1]) :], strict=False):
        seen.add(before.state)
        ends = {"PREPARING": "ROLLED_BACK", "COMMITTING": "COMMITTED"}
        assert after.state == ends.get(before.state, before.state)
        assert (after.txid, after.attempt, after.generation) == (before.txid, before.attempt, 1)
        assert (after.reason == "left unfinished by the previous driver") == (before.state == "PREPARING")


def test_rows_bytes_times_and_reasons(driver, place):
    (place / "out").mkdir()
    tester = driver.start(archived(place / "out"))
    tester.send(WORK[0], JobFails(reason="the executor is lost"))
    tester.send(lines())
    failed, first, empty = Checkpoint(driver.folder).transactions()
    assert (failed.state, failed.attempt, failed.committing_ms, failed.input_rows) == ("ROLLED_BACK", 0, None, 0)
    assert "the executor is lost" in failed.reason
    assert (first.state, first.attempt, first.input_rows, first.output_rows, first.reason) == ("COMMITTED", 1, 2, 6, "")
    assert first.sinks["out"]["rows"] == 6
    assert first.sinks["out"]["bytes"] == sum(Path(file).stat().st_size for file in committedFiles(place / "out"))
    assert empty.sinks == {"out": {"rows": 0, "bytes": 0}}
    assert first.state_bytes > 0
    assert first.prepared_ms <= first.committing_ms <= first.ended_ms
    assert first.secs == (first.ended_ms - first.prepared_ms) / 1000
    with pytest.raises(FrozenInstanceError):
        first.state = "lost"


def test_one_line_says_what_a_transaction_is(driver, place):
    (place / "out").mkdir()
    driver.start(archived(place / "out")).send(WORK[0], JobFails(reason="the executor is lost"))
    shown = list(map(repr, Checkpoint(driver.folder).transactions()))
    assert shown[0].startswith("<Transaction 1, attempt 0, generation 1: ROLLED_BACK 20")
    assert "the executor is lost" in shown[0]
    assert shown[1].endswith("Z, 2 rows in, 6 out, 6 to out>")


def test_beside_a_driver_at_work_it_shows_each_state_and_changes_nothing(driver):
    found: list[Any] = []
    tester = driver.start(totals())
    for moment in ("after PREPARING(1, 0)", "after COMMITTING(1, 0)"):
        tester.when(moment, lambda: found.append((files(driver.folder), names(driver.folder))))
        tester.when(moment, lambda: found.append((files(driver.folder), names(driver.folder))))
    tester.run(WORK)
    assert names(driver.folder)[-1] == (2, 0, "COMMITTED")
    assert [listed for _, listed in found[::2]] == [[(1, 0, "PREPARING")], [(1, 0, "COMMITTING")]]
    assert found[::2] == found[1::2]


def files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_a_commit_that_is_stuck_is_listed_as_decided(driver):
    tester = driver.start(totals())
    seen: list[Any] = []
    tester.when("pause", lambda: seen.append(names(driver.folder)))
    tester.send(WORK[0], HooksFail())
    assert seen == [[(1, 0, "COMMITTING")]]


@pytest.mark.parametrize("what", ["nothing", "an empty folder"])
def test_without_a_checkpoint_there_is_the_error_of_open_state(place, what):
    if what != "nothing":
        (place / "checkpoint").mkdir()
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*: has a topology been submitted there\?"):
        Checkpoint(place / "checkpoint").transactions()


def test_another_folder_a_newer_release_and_a_damaged_log_are_told(driver, place):
    (place / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointFormatError, match="is no checkpoint, and not empty"):
        Checkpoint(place).transactions()
    with pytest.raises(ConfigError, match="it must be a folder"):
        Checkpoint("hdfs://host/checkpoint").transactions()
    driver.start().send(WORK[0])
    record = next((driver.folder / FOLDER).glob("*2.json"))
    text = record.read_text()
    record.write_text(text[:-9])
    with pytest.raises(Exception, match="Restore this file"):
        Checkpoint(driver.folder).transactions()
    record.write_text(text)
    (driver.folder / "format").write_text('{"format": 3}')
    with pytest.raises(CheckpointFormatError, match="open it with the release that wrote it"):
        Checkpoint(driver.folder).transactions()


def test_a_bolt_that_refuses_is_the_reason(place):
    class Refusing(Count):
        refusals = [FailedException("the price feed is stale")]

        def execute(self, tup, collector):
            if self.refusals:
                raise self.refusals.pop()

    builder = TopologyBuilder("refusing")
    builder.setStream("lines", rows("word string"))
    builder.setBolt("count", Refusing()).globalGrouping("lines")
    with TopologyTester(builder.createTopology(), place / "checkpoint") as tester:
        tester.send(lines("a"))
    assert "the price feed is stale" in Checkpoint(place / "checkpoint").transactions()[0].reason


# ---- What befalls runs and their chains: nothing is lost, nothing doubled, and nothing of a dead attempt shows.


FAULTY_WORK = [
    lines("to be or not to be", "that is the question"),
    lines("to sleep", "to dream"),
    lines(),
    lines("no more"),
]

TASKS = [("count", 0), ("count", 1), ("total", 0)]
PROVIDERS = ["memory", "rocksdb"]


def check_counts(tester: TopologyTester, works: list[Lines]) -> None:
    assert tester.state("count") == words(works)
    assert tester.state("total")["total"] == sum(words(works).values())


@pytest.mark.slow
@pytest.mark.parametrize("fault", [JobFails(), HooksFail()], ids=repr)
def test_a_run_that_is_lost_in_an_attempt_costs_it_and_later_costs_nothing(driver, fault):
    attempt = int(isinstance(fault, JobFails))
    tester = driver.start(totals())
    for n, work in enumerate(FAULTY_WORK):
        sent = tester.send(work, *([fault] if n in (0, 1) else []))
        check_counts(tester, FAULTY_WORK[: n + 1])
        emitted = sent.emitted("count")
        assert len(emitted) == len(set(emitted)) == sum(words([work]).values())
    assert sorted({entry[1:3] for entry in driver.journal if entry[0] == "commit"}) == [
        (1, attempt), (2, attempt), (3, 0), (4, 0)
    ]  # fmt: skip
    tester.wake()
    assert driver.start(totals()).state("count") == words(FAULTY_WORK)


def moments(place: Path) -> list[str]:
    """Return the moments of the second transaction."""
    with Driver(place, name="rehearsal") as driver:
        tester = driver.start(totals())
        tester.send(FAULTY_WORK[0])
        passed = len(tester.steps)
        tester.send(FAULTY_WORK[1])
        return tester.steps[passed:]


@pytest.mark.slow
def test_a_run_that_is_lost_at_any_moment(place):
    found = moments(place)
    assert {"before PREPARING(2, 0)", "after prepare total/0 for 2", "before commit hooks total/0 for 2"} <= {*found}
    for number, moment in enumerate(found):
        with Driver(place, PROVIDERS[number % 4 // 2], f"run-{number}") as driver:  # of each step before and after
            tester = driver.start(totals())
            tester.send(FAULTY_WORK[0])
            lose_run(tester, moment)
            sent = tester.send(FAULTY_WORK[1])
            assert sent.progress.attempt == (" prepare " in moment), moment
            tester.send(FAULTY_WORK[3])
            tester.wake()
            check_counts(driver.start(totals()), [*FAULTY_WORK[:2], FAULTY_WORK[3]])


def zombies() -> Iterator[tuple[str, str, int]]:
    for component, task in TASKS:
        for when in ("before", "after"):
            yield f"{when} prepare {component}/{task} for 2", component, task
    yield "before commit hooks total/0 for 2", "total", 0


LATER = [
    "before prepare count/0 for 2",
    pytest.param("after COMMITTED(2)", marks=pytest.mark.soak),
    pytest.param("before prepare total/0 for 3", marks=pytest.mark.soak),
    "after COMMITTED(3)",
]


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("later", LATER)
def test_a_zombie_that_goes_on_later_changes_nothing(place, later):
    """It prepares beside the attempts that follow, under a token that nobody names, and in their caches."""
    for number, (moment, component, task) in enumerate(zombies()):
        decided = "hooks" in moment
        if decided and later.endswith("for 2"):
            continue
        provider = PROVIDERS[(number + LATER.index(later)) % 2]
        with Driver(place, provider, f"run-{number}") as driver:
            tester = driver.start(totals(), limits=SMALL)
            tester.send(FAULTY_WORK[0])
            zombie = Zombie(tester, moment, component, task)
            # Not in the attempt that it is of: its own chains go on for a while as well.
            since = "before COMMITTED(2)" if decided else "after PREPARING(2, 1)"
            tester.when(since, lambda tester=tester, zombie=zombie: tester.when(later, zombie.go_on))
            for n in (1, 2, 3):
                sent = tester.send(FAULTY_WORK[n])
                assert sent.progress.attempt == (n == 1 and not decided)
                check_counts(tester, FAULTY_WORK[: n + 1])
            assert zombie.chain.ended
            prepares = [n for n, step in enumerate(tester.steps) if step == f"after prepare {component}/{task} for 2"]
            assert len(prepares) == (1 if decided else 2)
            restarted = driver.start(totals(), limits=SMALL)
            restarted.send(FAULTY_WORK[0])
            check_counts(restarted, [*FAULTY_WORK, FAULTY_WORK[0]])


@pytest.mark.slow
def test_a_zombie_of_an_older_generation_changes_nothing(driver, provider):
    driver.config["topology.transaction.attempts.max"] = 1
    old = driver.start(totals())
    old.send(FAULTY_WORK[0])
    first = Zombie(old, "before prepare count/1 for 2", "count", 1)
    with pytest.raises(AttemptsExhaustedError, match="silence"):
        old.send(FAULTY_WORK[1])
    new = driver.start(totals())
    new.send(FAULTY_WORK[1])
    first.go_on()
    assert old.steps[-1] == "after prepare count/1 for 2"
    new.send(FAULTY_WORK[3])
    assert new.state("count") == words([FAULTY_WORK[0], FAULTY_WORK[1], FAULTY_WORK[3]])
    assert new.sweep() == 0, "too young"
    new.advance(3600)
    assert new.sweep() > 0
    assert driver.start(totals()).state("count") == words([FAULTY_WORK[0], FAULTY_WORK[1], FAULTY_WORK[3]])


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 80))])
def test_any_faults_in_any_order(driver, seed):
    """Chains are lost and freeze anywhere, with a sweep and a snapshot in every transaction."""
    chance = random.Random(seed)
    driver.config["topology.state.provider"] = REFERENCES[PROVIDERS[seed % 2]]
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
                check_counts(tester, done)
            tester.wake()
            check_counts(tester, done)
    assert tester.txid == 12
