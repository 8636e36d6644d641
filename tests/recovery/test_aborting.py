"""`abort` ends what a driver left open, once, without the topology; what is decided it refuses."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefx import Checkpoint
from statefx.admin import ending
from statefx.command import main
from statefx.errors import CheckpointError, CheckpointFormatError, CheckpointMismatchError, FencedError
from statefx.log.location import write_format
from statefx.log.log import TransactionLog, read_state
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.records import Committing, Generation, Lineage, RolledBack
from statefx.protocol.topology_identity import StatefulIdentity, TopologyIdentity
from statefx.storage import FolderStorage
from statefx.testing import Crash
from statefx.testing.crashes import CrashPoint, crashes
from statefx.testing.steps import DurableSteps
from tests.coordinator.histories import preparing
from tests.recovery.test_matrix import TRANSACTIONS, check_hooks
from tests.testing.topologies import Driver, totals, word_count, words

WORK = TRANSACTIONS


def crashed(place: Path, topology) -> Iterator[tuple[Driver, CrashPoint]]:
    """Yield a driver as a crash at each moment leaves it."""
    with Driver(place) as driver:

        def life(steps: DurableSteps) -> None:
            with driver.start(topology, steps=steps, cache=place / "cache") as tester:
                tester.run(WORK)

        for point in crashes(place, life, driver.journal):
            driver.cache = point.cache
            yield driver, point


def state_of(driver: Driver):
    return read_state(FolderStorage(driver.folder))


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("topology", [word_count(), totals()], ids=lambda topology: topology.name)
def test_after_a_crash_at_any_step(place, topology):
    told = topology.name == "totals"  # a bolt of it has preRollback
    came = Counter()
    for driver, point in crashed(place, topology):
        try:
            before = state_of(driver)
        except CheckpointError:  # there is no log yet
            before = None
        try:
            done = Checkpoint(driver.folder).abort()
        except CheckpointError as error:
            came["COMMITTING" if "rolls it forward" in str(error) else "nothing"] += 1
            assert before is None or not before.in_flight or before.committing
            assert before is None or state_of(driver) == before
        else:
            came["PREPARING"] += 1
            (entry,) = before.in_flight
            attempt = TransactionAttempt(entry.txid, entry.attempt)
            assert done.generation == before.generation + 1 == state_of(driver).generation
            assert (done.rolled_back, done.left) == (((), attempt) if told else ((attempt,), None))
            last = Checkpoint(driver.folder).transactions()[-1]
            assert (last.txid, last.state) == (entry.txid, "PREPARING" if told else "ROLLED_BACK")
            assert last.reason == ("" if told else ending.REASON)
        successor = driver.start(topology)
        assert bool(successor.recoveries) == bool(before and before.in_flight and (told or before.committing))
        assert successor.state("count") == words(WORK[: successor.txid])
        if not point.is_new(successor.txid, successor.generation):
            continue
        successor.run(WORK)
        assert successor.state("count") == words(WORK)
        if told:
            check_hooks(driver.journal)
    assert came["PREPARING"] > 3
    assert came["nothing"] > 3
    assert bool(came["COMMITTING"]) == told


def test_bolts_with_pre_rollback_are_told_by_the_next_start(place):
    with Driver(place) as driver:
        tester = driver.start(totals())
        tester.when("before COMMITTING(1, 0)", die)
        with pytest.raises(Crash):
            tester.run(WORK)
        done = Checkpoint(driver.folder).abort()
        assert done.bolts == ("total",)
        assert str(done) == (
            "generation 2 is taken, and older drivers are fenced; attempt 0 of transaction 1 is rolled back by the "
            "next start, which calls preRollback of total"
        )
        assert driver.journal == []
        assert Checkpoint(driver.folder).abort().generation == 3  # again is as once
        driver.start(totals())
        assert driver.journal == [("rollback", 1, 0, 0)]


@pytest.mark.parametrize(
    ("topology", "says"),
    [(word_count(), "roll back attempt 0 of transaction 1 in "), (totals(), "leave attempt 0 of transaction 1 to the")],
    ids=lambda each: getattr(each, "name", ""),
)
def test_from_a_shell_it_says_first_what_it_would_do(place, topology, says, capsys):
    with Driver(place) as driver:
        tester = driver.start(topology)
        tester.when("before COMMITTING(1, 0)", die)
        with pytest.raises(Crash):
            tester.run(WORK)
        before = state_of(driver)
        assert main(["abort", str(driver.folder)]) == 2
        assert f"this would {says}" in capsys.readouterr().err
        assert state_of(driver) == before
        assert main(["abort", str(driver.folder), "--yes", "--table"]) == 0
        assert "generation 2 is taken, and older drivers are fenced; attempt 0 of tra" in capsys.readouterr().out


def die() -> None:
    raise Crash("here")


def test_a_driver_that_lives_is_fenced_and_commits_nothing(driver):
    done = []
    tester = driver.start()
    tester.send(WORK[0])
    tester.when("before COMMITTING(2, 0)", lambda: done.append(Checkpoint(driver.folder).abort()))
    with pytest.raises(FencedError):
        tester.send(WORK[1])
    assert str(done[0]) == (
        "generation 2 is taken, and older drivers are fenced; attempt 0 of transaction 2 is rolled back"
    )
    successor = driver.start()
    assert (successor.txid, successor.generation) == (1, 3)
    assert successor.state("count") == words(WORK[:1])
    successor.run(WORK[:2])
    assert [(each.txid, each.attempt) for each in Checkpoint(driver.folder).transactions()] == [(1, 0), (2, 0), (2, 1)]


def test_the_same_planned_input_comes_again_and_no_other(driver):
    tester = driver.start()
    tester.when("after PREPARING(1, 0)", die)
    with pytest.raises(Crash):
        tester.send(WORK[0])
    planned = state_of(driver).in_flight[0].input
    Checkpoint(driver.folder).abort()
    assert state_of(driver).planned == planned
    assert state_of(driver).next_attempt(1) == 1


@pytest.fixture
def storage(place: Path) -> FolderStorage:
    storage = FolderStorage(place / "checkpoint")
    write_format(storage)
    return storage


def in_flight(storage: FolderStorage, *, rolls_back: bool, count: int = 3) -> TransactionLog:
    """A log with several transactions that have begun."""
    bolt = StatefulIdentity(1, "statefx_memory:MemoryStateProvider", "standard", 1, rolls_back=rolls_back)
    log = TransactionLog(storage)
    log.append(Lineage("life"))
    log.append(Generation(1, storage.url, TopologyIdentity("pipeline", "stream", {"count": bolt})))
    for txid in range(1, count + 1):
        log.append(preparing(txid))
    return log


@pytest.mark.parametrize("rolls_back", [False, True])
def test_of_several_in_flight_the_newest_goes_first_and_the_lowest_waits_for_its_hook(storage, rolls_back):
    in_flight(storage, rolls_back=rolls_back)
    done = Checkpoint(storage.url).abort()
    assert [each.txid for each in done.rolled_back] == ([3, 2] if rolls_back else [3, 2, 1])
    assert done.left == (TransactionAttempt(1, 0) if rolls_back else None)
    assert [entry.txid for entry in read_state(storage).in_flight] == ([1] if rolls_back else [])


def test_while_one_is_committing_those_behind_it_are_refused_as_well(storage):
    log = in_flight(storage, rolls_back=False)
    log.append(Committing(1, 0, 1, {"count/0": "t"}, hooks=("count/0",)))
    before = read_state(storage)
    with pytest.raises(CheckpointError, match=r"transaction 1 .* is COMMITTING: it is decided.*Start the topology"):
        Checkpoint(storage.url).abort()
    assert read_state(storage) == before


@pytest.mark.parametrize("decided", [True, False])
def test_a_driver_that_is_faster_is_not_fenced_for_an_abort_that_is_refused(storage, monkeypatch, decided):
    driver = in_flight(storage, rolls_back=False, count=1)
    overtaking = [Committing(1, 0, 1, {"count/0": "t"}, hooks=("count/0",)) if decided else RolledBack(1, 0, "late")]

    class Slow(TransactionLog):
        def append(self, record):
            if overtaking:
                driver.append(overtaking.pop())
            return super().append(record)

    monkeypatch.setattr(ending, "TransactionLog", Slow)
    with pytest.raises(CheckpointError, match="is COMMITTING" if decided else "nothing to abort"):
        Checkpoint(storage.url).abort()
    assert read_state(storage).generation == 1
    driver.check()


def test_a_topology_that_starts_meanwhile_ends_them_itself(storage, monkeypatch):
    in_flight(storage, rolls_back=False, count=1)

    class Overtaken(TransactionLog):
        def append(self, record):
            if isinstance(record, RolledBack):
                other = TransactionLog(storage)
                other.append(Generation(3, storage.url, other.state.topology))
            return super().append(record)

    monkeypatch.setattr(ending, "TransactionLog", Overtaken)
    with pytest.raises(FencedError, match="another driver has taken over"):
        Checkpoint(storage.url).abort()


def test_it_keeps_the_identity_of_the_newest_topology(storage):
    log = in_flight(storage, rolls_back=False, count=1)
    Checkpoint(storage.url).abort()
    assert read_state(storage).topology == log.state.topology


def test_mistakes(driver, place):
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*: has a topology been submitted there\?"):
        Checkpoint(place / "nowhere").abort()
    assert not (place / "nowhere").exists()
    (place / "mine").mkdir()
    (place / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointFormatError, match="is no checkpoint, and not empty"):
        Checkpoint(place / "mine").abort()
    driver.start().run(WORK)
    with pytest.raises(CheckpointError, match=r"the last one that was committed is 3: there is nothing to abort"):
        Checkpoint(driver.folder).abort()


def test_a_copy_is_refused(storage, place):
    in_flight(storage, rolls_back=False)
    (place / "checkpoint").rename(place / "moved")
    with pytest.raises(CheckpointMismatchError, match="was last run in"):
        Checkpoint(place / "moved").abort()
    assert read_state(FolderStorage(place / "moved")).generation == 1
