"""A transaction's timeout, and what state that is being restored does to it."""

import threading
from collections import Counter
from pathlib import Path

import pytest

from statefx import submit
from statefx.coordinator.runs import Extension
from statefx.spark import deadline, internals
from statefx.spark.deadline import Deadline
from statefx.storage import FolderStorage
from tests.spark.running import kinds, reasons, state, wait_for
from tests.spark.test_faults import held
from tests.spouts.numbers import ALL, Planned, topology

SECS = 0.02
BOUND_SECS = 30.0


def running() -> bool:
    """Tell that a job does not wait for slots."""
    return False


def test_what_ends_in_time_is_not_cancelled(tmp_path: Path) -> None:
    cancelled = threading.Event()
    with Deadline(BOUND_SECS, FolderStorage(tmp_path), cancelled.set, running) as guarded:
        pass
    assert not guarded.passed
    assert not cancelled.is_set()


def test_what_takes_too_long_is_cancelled(tmp_path: Path) -> None:
    cancelled = threading.Event()
    with Deadline(SECS, FolderStorage(tmp_path), cancelled.set, running) as guarded:
        assert cancelled.wait(BOUND_SECS)
    assert guarded.passed


def test_what_was_not_cancelled_the_first_time_is_cancelled_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(deadline, "AGAIN_SECS", SECS)
    calls, enough = [], threading.Event()

    def cancel() -> None:
        calls.append(1)
        if len(calls) == 3:
            enough.set()

    with Deadline(SECS, FolderStorage(tmp_path), cancel, running):
        assert enough.wait(BOUND_SECS)


@pytest.mark.slow
def test_a_restore_that_hangs_puts_the_timeout_off_only_for_so_long(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(Extension, "MAX_SECS", 9.5 * SECS)
    (tmp_path / "restoring").mkdir()
    (tmp_path / "restoring" / "count-0-a1b2").touch()  # younger than restoring.FRESH_SECS for as long as the test runs
    cancelled = threading.Event()
    with Deadline(SECS, FolderStorage(tmp_path), cancelled.set, running) as guarded:
        assert cancelled.wait(BOUND_SECS)
    assert guarded.passed
    put_off = [record.getMessage() for record in caplog.records if "starts again" in record.getMessage()]
    assert len(put_off) == 10
    assert "state of count-0 is being restored" in put_off[0]
    assert "state of count-0 was still being restored after 0.2 s" in guarded.timeout_message()


def test_what_takes_too_long_without_a_restore_says_so(tmp_path: Path) -> None:
    cancelled = threading.Event()
    with Deadline(SECS, FolderStorage(tmp_path), cancelled.set, running) as guarded:
        assert cancelled.wait(BOUND_SECS)
    assert guarded.timeout_message() == "it took longer than topology.transaction.timeout.secs (0.02 s)"


@pytest.mark.slow
def test_the_time_in_which_a_job_waits_for_slots_does_not_count(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(deadline, "POLL_SECS", SECS)
    looks, cancelled = [], threading.Event()

    def waits() -> bool:
        looks.append(cancelled.is_set())
        return len(looks) <= 20

    with Deadline(3 * SECS, FolderStorage(tmp_path), cancelled.set, waits):
        assert cancelled.wait(BOUND_SECS)
    assert len(looks) == 20 + 3
    assert not any(looks)


class Gated(Planned):
    """There is something to read when a file is there."""

    def isReady(self):
        return Path(self.path).with_name("gate").exists()


@pytest.mark.slow
def test_transactions_that_wait_for_slots_are_not_rolled_back(spark, place, monkeypatch):
    """Two slots, both of which another job holds for longer than the timeout, and four transactions in flight.

    Two jobs P of two tasks begin, as many as fill the slots and one; the others wait for their turn.
    """
    monkeypatch.setattr(deadline, "POLL_SECS", 0.1)
    waited, waits = Counter(), internals.waits_for_slots
    hold, slots = place / "hold", spark.sparkContext.defaultParallelism

    def counted(context, tag):
        found = waits(context, tag)
        waited[tag] += found
        return found or not hold.exists()  # what workers that are new take later may be longer than the timeout

    monkeypatch.setattr(internals, "waits_for_slots", counted)
    config = {"topology.max.spout.pending": 4, "topology.transaction.timeout.secs": 1}
    query = submit(topology(Gated(place, each=16)), spark, place / "ck", config)
    hold.touch()
    user = spark.sparkContext.parallelize(range(slots), slots)
    holding = threading.Thread(target=lambda: user.foreach(lambda _: held(hold)))
    holding.start()
    pool = spark.sparkContext._jsc.sc().taskScheduler().rootPool()
    wait_for(lambda: pool.runningTasks() == slots, "all slots to be taken")
    (place / "gate").touch()
    wait_for(lambda: len(waited) == 2 and min(waited.values()) > 15, "two jobs to have waited for long")
    assert not reasons(place / "ck")
    assert ("PREPARING", 4, 0) in kinds(place / "ck")
    hold.unlink()
    holding.join()
    query.processAllAvailable()
    query.stop()
    assert state(place / "ck", "count").keys() > ALL.keys()
