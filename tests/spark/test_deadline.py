"""A transaction's timeout, and what state that is being restored does to it."""

import threading
from pathlib import Path

import pytest

from statefx.coordinator.runs import Extension
from statefx.spark import deadline
from statefx.spark.deadline import Deadline
from statefx.storage import FolderStorage

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
