"""The file system fails, or the process dies, at any call that the log makes."""

import errno
import gc
import os
from contextlib import contextmanager

import pytest

from statefx.coordinator.entries import entry_name, entry_of, numbers
from statefx.coordinator.log import TransactionLog, read_state
from statefx.errors import CheckpointError, FencedError, LogOutcomeUnknownError
from statefx.protocol.log_rules import apply, fold
from statefx.protocol.records import Committed, Generation, RolledBack
from statefx.storage import FolderStorage
from tests.coordinator.histories import BEGINNING, IDENTITY, committing, preparing

LIFE = [*BEGINNING, preparing(1), RolledBack(1, 0, "x"), preparing(1, 1), committing(1, 1), Committed(1)]
CALLS = ("open", "write", "fsync", "link", "unlink", "mkdir")

CALLS_EACH = 7
"""Each append opens, writes, syncs, links and unlinks a file, and opens and syncs its folder."""


class Killed(BaseException):
    """The process is gone: no handler runs, and nothing that a ``finally`` tries has any effect."""


def kill_at(monkeypatch, call, after):
    """Die at the `call`-th durable call, before it or just after it has taken effect."""
    made = {"calls": 0}

    def dying(real):
        def guarded(*arguments, **options):
            made["calls"] += 1
            if made["calls"] < call:
                return real(*arguments, **options)
            if made["calls"] == call and after:
                real(*arguments, **options)
            raise Killed

        return guarded

    for name in CALLS:
        monkeypatch.setattr(os, name, dying(getattr(os, name)))


@contextmanager
def collector_off():
    """Let no finalizer of something that another test has left, as of a temporary folder, make the call that kills."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run_until_killed(folder, limit, done):
    log = TransactionLog(folder, limit)
    for record in LIFE:
        log.append(record)
        done.append(record)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_death_at_every_call_leaves_the_old_log_or_the_new_one(tmp_path, monkeypatch, after):
    for call in range(1, 2000):
        folder, done = FolderStorage(tmp_path / f"{call}"), []
        with monkeypatch.context() as patched, collector_off():
            kill_at(patched, call, after)
            try:
                run_until_killed(folder, 3, done)
            except Killed:
                pass
            else:
                assert call > CALLS_EACH * len(LIFE)
                return
        log = TransactionLog(folder, 3)
        reached = len(done) if log.state == fold(done) else len(done) + 1
        assert log.state == fold(LIFE[:reached])
        assert not reached or read_state(folder) == log.state
        for record in LIFE[reached:]:
            log.append(record)
        assert log.state == read_state(folder) == fold(LIFE)
        log.fold()
        assert numbers(folder) == [1, 2, log.number]
        assert folder.discard_unfinished("transactions/", 0) <= 1
    pytest.fail("the script never ran to its end")


@pytest.fixture
def log(tmp_path):
    log = TransactionLog(FolderStorage(tmp_path))
    for record in BEGINNING:
        log.append(record)
    return log


def names(log):
    """All files there are, unfinished ones too."""
    return os.listdir(log.storage.path("transactions"))


def fail(monkeypatch, name, code, at=1, performs=False, times=1):
    """Make the `at`-th call of os.`name` and the next ones raise, having taken effect or not."""
    real, made = getattr(os, name), {"calls": 0}

    def failing(*arguments, **options):
        made["calls"] += 1
        if not at <= made["calls"] < at + times:
            return real(*arguments, **options)
        if performs:
            real(*arguments, **options)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, failing)


@pytest.mark.parametrize("name", ["open", "write", "link"])
def test_a_full_disk_leaves_everything_as_it_was_and_the_log_usable(log, monkeypatch, name):
    before = log.state
    with monkeypatch.context() as patched:
        fail(patched, name, errno.ENOSPC)
        with pytest.raises(CheckpointError, match="nothing was appended"):
            log.append(preparing(1))
    assert log.state is before
    assert len(names(log)) == 2
    assert log.append(preparing(1)) == 3


def test_a_write_that_takes_only_some_bytes_goes_on(log, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(data[:7])))
    log.append(preparing(1))
    assert read_state(log.storage) == log.state


def test_after_a_failed_fsync_of_the_record_nothing_was_written_and_nothing_more_is(log, monkeypatch):
    before = log.state
    with monkeypatch.context() as patched:
        fail(patched, "fsync", errno.EIO)
        with pytest.raises(CheckpointError, match="nothing was appended"):
            log.append(preparing(1))
    with pytest.raises(CheckpointError):
        log.append(preparing(1))
    assert log.state is before
    assert numbers(log.storage) == [1, 2]


def test_after_a_failed_fsync_of_the_folder_the_outcome_is_unknown_and_nothing_more_is_written(log, monkeypatch):
    before = log.state
    with monkeypatch.context() as patched:
        fail(patched, "fsync", errno.EIO, at=2)
        with pytest.raises(LogOutcomeUnknownError, match="PREPARING"):
            log.append(preparing(1))
    with pytest.raises(LogOutcomeUnknownError):
        log.append(preparing(1))
    assert log.state is before
    assert TransactionLog(log.storage).state == apply(before, preparing(1))


@pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT, errno.EEXIST])
def test_a_lost_reply_is_read_back_and_found_done(log, monkeypatch, code):
    fail(monkeypatch, "link", code, performs=True)
    assert log.append(preparing(1)) == 3
    assert log.state == read_state(log.storage)


@pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT])
def test_an_outcome_that_reading_back_does_not_tell_is_unknown(log, monkeypatch, code):
    fail(monkeypatch, "link", code)
    with pytest.raises(LogOutcomeUnknownError):
        log.append(preparing(1))
    with pytest.raises(LogOutcomeUnknownError):
        log.append(preparing(1))


def other_writes(folder, number):
    entry = entry_of(number, "", "other", Generation(2, "/", IDENTITY))
    with open(folder.path(entry_name(number)), "wb") as file:
        file.write(entry.data)


def test_a_lost_reply_with_another_driver_in_place_is_a_fence(log, monkeypatch):
    other_writes(log.storage, 3)
    fail(monkeypatch, "link", errno.EIO)
    with pytest.raises(FencedError):
        log.append(preparing(1))
    assert len(names(log)) == 3


def test_an_interrupted_append_refuses_the_next_one(log, monkeypatch):
    def interrupted(_source, _target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append(preparing(1))
    with pytest.raises(LogOutcomeUnknownError, match="open the log again"):
        log.append(preparing(1))


def test_a_file_system_without_hard_links_is_named(log, monkeypatch):
    fail(monkeypatch, "link", errno.EPERM)
    with pytest.raises(CheckpointError, match="hard links"):
        log.append(preparing(1))


def test_old_files_that_can_not_be_deleted_do_no_harm(log, monkeypatch):
    with monkeypatch.context() as patched:
        fail(patched, "unlink", errno.EACCES, times=1000)
        log.fold()
    assert read_state(log.storage) == TransactionLog(log.storage).state == log.state
    log.fold()
    assert numbers(log.storage) == [1, 2, log.number]


def test_an_append_makes_what_was_read_before_it_durable_as_well(log, monkeypatch):
    """A driver that died between link and fsync left a record that is seen, and may still vanish."""
    synced = []
    real = os.fsync
    again = TransactionLog(log.storage)
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), real(file)))
    again.append(Generation(2, "/", IDENTITY))
    assert synced[-1] == os.stat(log.storage.path("transactions")).st_ino


def test_death_while_old_records_are_deleted_leaves_no_gap(log, monkeypatch):
    for record in LIFE[2:]:
        log.append(record)
    real, deleted = os.unlink, []

    def dying(path):
        if ".unfinished" not in path:
            deleted.append(path)
            if len(deleted) == 2:
                raise Killed
        real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", dying)
        with pytest.raises(Killed):
            log.fold()
    assert numbers(log.storage) == [1, 2, *range(4, len(LIFE) + 2)]
    assert read_state(log.storage) == log.state
