"""The transaction log: what is appended, folded and read back, and the writer that wins a number."""

import errno
import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from statefx.admin.looking import attempts_in
from statefx.errors import (
    CheckpointError,
    CheckpointFormatError,
    FencedError,
    LogOutcomeUnknownError,
    StateCorruptedError,
    StatePhaseError,
)
from statefx.log.entries import (
    FOLDED,
    RECORD_BYTES_MAX,
    digest,
    entry_name,
    entry_of,
    numbers,
    text_of,
    verified,
)
from statefx.log.log import TransactionLog, read_state
from statefx.protocol.log_rules import apply, fold
from statefx.protocol.log_state import BATCH, KEPT, REASON_CHARS, History, Past
from statefx.protocol.records import Checkpoint, Committed, Committing, Generation, Lineage, Preparing, RolledBack
from statefx.storage import FolderStorage, Stored
from tests.coordinator.histories import BEGINNING, EVENTFUL, IDENTITY, committing, preparing, transaction


@pytest.fixture
def folder(tmp_path):
    return FolderStorage(tmp_path / "checkpoint")


def path_of(folder, number):
    return folder.path(entry_name(number))


def read_entry(storage, number):
    return verified(storage, number, storage.read(entry_name(number)))


def filled(folder, records=EVENTFUL, limit=100):
    log = TransactionLog(folder, limit)
    for record in records:
        log.append(record)
    return log


def test_records_are_numbered_from_one_and_read_back(folder):
    log = TransactionLog(folder)
    assert [log.append(record) for record in EVENTFUL] == list(range(1, len(EVENTFUL) + 1))
    assert log.state == fold(EVENTFUL) == read_state(folder) == TransactionLog(folder).state
    assert [read_entry(folder, number).record for number in numbers(folder)] == EVENTFUL


def test_nothing_but_records_is_left_in_the_folder(folder):
    filled(folder)
    assert sorted(os.listdir(folder.path("transactions"))) == [f"{n:020d}.json" for n in range(1, len(EVENTFUL) + 1)]


def test_an_empty_log_is_empty_and_reading_it_is_an_error_that_makes_nothing(folder):
    with pytest.raises(CheckpointError, match="no transaction log"):
        read_state(folder)
    assert TransactionLog(folder).state == fold([])
    assert not os.path.exists(folder.root)


def test_a_record_that_can_not_follow_is_refused_before_anything_is_written(folder):
    log = filled(folder, BEGINNING)
    with pytest.raises(StatePhaseError, match="nothing was written"):
        log.append(Committed(1))
    assert numbers(folder) == [1, 2]
    assert log.append(preparing(1)) == 3


def test_what_the_caller_changes_later_changes_no_state(folder):
    log = TransactionLog(folder)
    log.append(Lineage("l"))
    options = {"hosts": ["a", "b"]}
    log.append(Generation(1, "/", IDENTITY.kept_by("m:C", options)))
    options["hosts"].clear()
    assert log.state.topology.stateful["count"].options == {"hosts": ["a", "b"]}
    log.fold()
    assert read_state(folder) == log.state


def test_what_json_can_not_hold_is_refused_before_anything_is_written(folder):
    log = filled(folder, BEGINNING[:1])
    with pytest.raises(TypeError):
        log.append(Generation(1, "/", IDENTITY.kept_by("m:C", {"hosts": {1, 2}})))
    assert log.append(BEGINNING[1]) == 2


@pytest.mark.slow
def test_a_record_that_everybody_would_have_to_read_is_refused_and_names_what_is_large_in_it(folder):
    log = filled(folder, [*BEGINNING, preparing(1)])
    before = log.state
    left = RECORD_BYTES_MAX - len(text_of(committing(1, committables={"files": "x", "table": {"0": ""}})))
    large = committing(1, committables={"files": "x", "table": {"0": "x" * (left + 1)}})
    with pytest.raises(CheckpointError, match="largest part is the committables of 'table' with") as caught:
        log.append(large)
    assert caught.value.size_bytes == RECORD_BYTES_MAX + 1
    assert log.state is before
    assert log.append(committing(1, committables={"files": "x", "table": {"0": "x" * left}})) == 4
    log.fold()
    assert read_state(folder) == log.state


# Folding


def unfenced(folder):
    """The numbers of the records that folding may delete, the newest CHECKPOINT, and what follows it."""
    return [n for n in numbers(folder) if not isinstance(read_entry(folder, n).record, Generation | Lineage)]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("reopened", [False, True])
def test_folding_changes_nothing_but_the_number_of_files(folder, limit, reopened):
    log = TransactionLog(folder, limit)
    for record in EVENTFUL:
        log = TransactionLog(folder, limit) if reopened else log
        log.append(record)
    assert log.state == fold(EVENTFUL) == read_state(folder) == TransactionLog(folder).state
    kept = [isinstance(read_entry(folder, number).record, Checkpoint) for number in unfenced(folder)]
    assert limit == 100 or (len(kept) <= limit + 1 and kept[0])
    assert not any(kept[1:])
    assert numbers(folder)[-1] == log.number


def test_folding_keeps_what_fences_the_drivers_of_before(folder):
    filled(folder, limit=4).fold()
    kept = [read_entry(folder, number).record for number in numbers(folder)]
    fences = [record for record in EVENTFUL if isinstance(record, Generation | Lineage)]
    assert [record for record in kept if isinstance(record, Generation | Lineage)] == fences


def test_a_log_opened_after_a_fold_that_died_deletes_what_was_left(folder, monkeypatch):
    log = filled(folder)
    with monkeypatch.context() as patched:
        patched.setattr(FolderStorage, "delete", lambda self, names: list(names)[:0])
        log.fold()
    assert len(numbers(folder)) == len(EVENTFUL) + 1
    again = TransactionLog(folder)
    again.fold()
    assert unfenced(folder) == [again.number]


def test_numbers_are_never_used_again(folder):
    log = filled(folder, BEGINNING)
    log.fold()
    log.fold()
    assert numbers(folder) == [1, 2, 4]
    assert TransactionLog(folder).append(preparing(1)) == 5


def test_a_reader_that_missed_what_folding_wrote_looks_again(folder, monkeypatch):
    """The names it read before the fold, without what the fold wrote: the log seems to end at its second record."""
    filled(folder, limit=4)
    real, looks = FolderStorage.list, []

    def late(self, prefix):
        looks.append(prefix)
        found = list(real(self, prefix))
        return found[:2] if len(looks) == 1 else found

    monkeypatch.setattr(FolderStorage, "list", late)
    assert read_state(folder) == fold(EVENTFUL)


# Several writers


def test_the_second_writer_of_a_number_is_fenced_and_stays_so(folder):
    old, new = filled(folder, BEGINNING), TransactionLog(folder)
    new.append(Generation(2, "/", IDENTITY))
    before = old.state
    for _ in range(2):
        with pytest.raises(FencedError, match="another driver"):
            old.append(preparing(1))
    assert old.state is before
    assert read_state(folder) == new.state


@pytest.mark.parametrize("due", [False, True], ids=["folded later", "due to be folded"])
@pytest.mark.parametrize("forked", [False, True])
def test_a_zombie_meets_its_successors_first_record_however_much_is_folded(folder, forked, due):
    """A CHECKPOINT in its place would be folded away later, and a driver that had been asleep would win its number."""
    zombie = filled(folder, [*BEGINNING, preparing(1)])
    successor = TransactionLog(folder, limit=4 if due else 100)
    first = [Lineage("fork")] if forked else []
    ended = RolledBack(1, 0, "restart")
    for record in (*first, Generation(2, "/", IDENTITY), ended, preparing(1, 1, 2), committing(1, 1, 2)):
        successor.append(record)
    successor.fold()
    successor.append(Committed(1))
    successor.fold()
    with pytest.raises(FencedError, match="is its own"):
        zombie.append(committing(1))
    assert zombie.state.committing is None
    assert read_state(folder) == TransactionLog(folder).state == successor.state


# Damage


@pytest.mark.slow
def test_a_torn_record_is_named(folder):
    filled(folder)
    path = path_of(folder, 5)
    whole = Path(path).read_bytes()
    for length in range(0, len(whole), 5):
        with open(path, "wb") as file:
            file.write(whole[:length])
        with pytest.raises(StateCorruptedError, match="Restore this file") as caught:
            read_state(folder)
        assert caught.value.path == path


@pytest.mark.slow
def test_a_flipped_bit_anywhere_is_seen(folder):
    filled(folder, EVENTFUL[:4])
    path = path_of(folder, 4)
    whole = Path(path).read_bytes()
    for at in range(len(whole)):
        with open(path, "wb") as file:
            file.write(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        expected = CheckpointFormatError if whole[:at] == b'{"format":' else StateCorruptedError
        with pytest.raises(expected) as caught:
            read_state(folder)
        assert caught.value.path == path


def test_a_record_that_was_edited_with_a_fitting_checksum_breaks_the_chain(folder):
    filled(folder)
    old = read_entry(folder, 4)
    with open(path_of(folder, 4), "wb") as file:
        file.write(entry_of(4, old.previous, old.nonce, committing(1, 0, 1, hooks=("count/1",))).data)
    with pytest.raises(StateCorruptedError, match="is not the record that 5 follows"):
        read_state(folder)


@pytest.mark.slow
@pytest.mark.parametrize("missing", [1, 2, len(EVENTFUL) - 1])
def test_a_missing_record_is_named(folder, missing):
    filled(folder)
    os.unlink(path_of(folder, missing))
    for reader in (read_state, TransactionLog):
        with pytest.raises(StateCorruptedError, match="it is missing") as caught:
            reader(folder)
        assert caught.value.path == path_of(folder, missing)


def test_a_record_under_another_number_is_seen(folder):
    log = filled(folder)
    os.rename(path_of(folder, log.number), path_of(folder, log.number + 1))
    with pytest.raises(StateCorruptedError, match=f"holds record {log.number}"):
        read_state(folder)


def test_a_record_that_can_not_stand_where_it_stands_is_named(folder):
    log = filled(folder, BEGINNING)
    entry = entry_of(3, digest(read_entry(folder, 2).data), "nonce", Committed(1))
    with open(path_of(folder, 3), "wb") as file:
        file.write(entry.data)
    with pytest.raises(StateCorruptedError, match="COMMITTED record can't stand here") as caught:
        TransactionLog(folder)
    assert caught.value.number == 3
    assert log.number == 2


def test_another_format_is_refused_as_such(folder):
    filled(folder, BEGINNING)
    path = path_of(folder, 2)
    text = Path(path).read_text()
    with open(path, "w") as file:
        file.write(text.replace('"format":2', '"format":3'))
    with pytest.raises(CheckpointFormatError, match="reads 2"):
        TransactionLog(folder)


@pytest.mark.parametrize("change", [{"kind": "SAVEPOINT"}, {"labels": ["a"]}], ids=["kind", "field"])
def test_what_a_newer_release_wrote_is_told_so_and_is_no_damage(folder, change):
    filled(folder, BEGINNING)
    path = path_of(folder, 2)
    fields = json.loads(Path(path).read_bytes())
    del fields["checksum"]
    fields["record"] |= change
    fields["checksum"] = digest(json.dumps(fields, separators=(",", ":")).encode())
    Path(path).write_bytes(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
    for reader in (read_state, TransactionLog):
        with pytest.raises(CheckpointFormatError, match="newer release"):
            reader(folder)


def test_a_folder_that_changes_under_every_try_of_a_reader_ends_in_an_error(folder, monkeypatch):
    filled(folder, [*BEGINNING, *transaction(1)])
    os.unlink(path_of(folder, 3))
    listings = iter(range(1000))
    real = FolderStorage.list

    def growing(self, prefix):
        return [*real(self, prefix), Stored(entry_name(1000 + next(listings)), 0, 0)]

    monkeypatch.setattr(FolderStorage, "list", growing)
    with pytest.raises(StateCorruptedError, match="changed under each of 10"):
        read_state(folder)


# ---- The file system fails, or the process dies, at any call that the log makes.


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


@pytest.mark.daily(1)
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


def test_an_append_makes_what_was_read_before_it_durable_as_well(log, monkeypatch):
    """A driver that died between link and fsync left a record that is seen, and may still vanish."""
    synced = []
    real = os.fsync
    again = TransactionLog(log.storage)
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), real(file)))
    again.append(Generation(2, "/", IDENTITY))
    assert synced[-1] == os.stat(log.storage.path("transactions")).st_ino


# ---- Several drivers on one log: processes, a reader beside a writer that folds.


TAKEN_EACH = 8


def take_generations(folder):
    """Start TAKEN_EACH times on a log that others start on as well; return (number, generation) of each start."""
    taken = []
    while len(taken) < TAKEN_EACH:
        log = TransactionLog(folder, 3)
        try:
            number = log.append(Generation(log.state.generation + 1, "/", IDENTITY))
        except FencedError:
            continue
        taken.append((number, log.state.generation))
    return taken


@pytest.mark.slow
@pytest.mark.soak
def test_processes_that_start_at_once_each_get_their_own_generation(tmp_path):
    storage = FolderStorage(tmp_path)
    TransactionLog(storage).append(Lineage("l"))
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        every = [start for taken in pool.map(take_generations, [storage] * 4) for start in taken]
    assert len(every) == len(set(every)) == 4 * TAKEN_EACH
    assert len({number for number, _ in every}) == len({generation for _, generation in every}) == len(every)
    assert sorted(every) == sorted(every, key=lambda start: start[1])
    assert read_state(storage).generation >= len(every)


@pytest.mark.slow
def test_of_two_drivers_that_would_commit_and_take_over_exactly_one_wins(tmp_path):
    for turn in range(30):
        folder = FolderStorage(tmp_path / f"{turn}")
        log = TransactionLog(folder)
        for record in (Lineage("l"), Generation(1, "/", IDENTITY), preparing(1)):
            log.append(record)
        rivals = [(TransactionLog(folder), committing(1)), (TransactionLog(folder), Generation(2, "/", IDENTITY))]
        with ThreadPoolExecutor(2) as pool:
            outcomes = [pool.submit(rival.append, record) for rival, record in rivals]
        fenced = [outcome.exception() for outcome in outcomes]
        assert sorted(type(error).__name__ for error in fenced) == ["FencedError", "NoneType"]
        assert numbers(folder) == [1, 2, 3, 4]
        winner = fenced.index(None)
        assert read_entry(folder, 4).record.kind == rivals[winner][1].kind
        assert read_state(folder) == rivals[winner][0].state


@pytest.mark.slow
def test_a_reader_beside_a_writer_that_folds_sees_only_committed_progress(tmp_path):
    log = TransactionLog(FolderStorage(tmp_path), limit=2)
    log.append(Lineage("l"))
    log.append(Generation(1, "/", IDENTITY))
    seen = []

    def write():
        for txid in range(1, 60):
            log.append(preparing(txid))
            log.append(Committing(txid, 0, 1, {"count/0": f"t{txid}"}, hooks=("count/0",)))
            log.append(Committed(txid))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            state = read_state(FolderStorage(tmp_path))
            assert state.head("count/0").txid == state.committed
            seen.append(state.committed)
        writing.result()
    assert seen == sorted(seen)
    assert len(set(seen)) > 1
    assert read_state(FolderStorage(tmp_path)).committed == 59


# Schedules, one step after the other


class WhileListing(FolderStorage):
    """Does something whenever names were read from the folder, and before any of them is looked at."""

    def __init__(self, root, meanwhile):
        super().__init__(root)
        self.meanwhile = meanwhile

    def _names(self, above, prefix, *, unfinished=False):
        found = list(super()._names(above, prefix, unfinished=unfinished))
        self.meanwhile()
        yield from found


class AtWork:
    """A driver that commits a transaction and folds, `left` times; before that it has done what `records` say."""

    def __init__(self, folder, records, left):
        self.log = TransactionLog(FolderStorage(folder))
        for record in records:
            self.log.append(record)
        self.left = left

    def __call__(self):
        if self.left > 0:
            self.left -= 1
            log = self.log
            generation, txid = log.state.generation, log.state.committed + 1
            for record in (preparing(txid, 0, generation), committing(txid, 0, generation), Committed(txid)):
                log.append(record)
            log.fold()


SECOND_DRIVER = [*BEGINNING, *transaction(1), Generation(2, "/", IDENTITY)]


@pytest.mark.parametrize("folds", range(1, 6))
@pytest.mark.parametrize("records", [[*BEGINNING, *transaction(1)], SECOND_DRIVER], ids=["first", "second driver"])
def test_a_reader_whose_listings_are_all_overtaken_by_folds_does_not_go_back(tmp_path, records, folds):
    """Each listing has the records that fence, which are never deleted, and misses the CHECKPOINT (rule 3.4)."""
    at_work = AtWork(tmp_path, records, folds)
    assert read_state(WhileListing(tmp_path, at_work)) == at_work.log.state
    assert at_work.log.state.committed == 1 + folds


@pytest.mark.parametrize("folded", [False, True], ids=["whole log", "CHECKPOINT"])
@pytest.mark.parametrize("first", [Generation(2, "/", IDENTITY), Lineage("fork")], ids=["generation", "lineage"])
def test_a_successor_that_was_asleep_is_fenced_also_while_the_driver_at_work_folds_on(tmp_path, folded, first):
    at_work = AtWork(tmp_path, [*BEGINNING, *transaction(1)], 3)
    if folded:
        at_work.log.fold()
    late = TransactionLog(WhileListing(tmp_path, lambda: None))
    at_work()
    late.storage.meanwhile = at_work
    with pytest.raises(FencedError):
        late.append(first)
    at_work()
    assert read_state(FolderStorage(tmp_path)) == at_work.log.state


def test_the_checkpoint_of_before_is_deleted_before_what_follows_it(tmp_path):
    """While it is there, a reader takes it that all that followed it is there (3.4); a store deletes in any order."""

    class Deleting(FolderStorage):
        def delete(self, names):
            kinds = [type(read_entry(self, int(name[-25:-5])).record) for name in names]
            orders.append({kind is Checkpoint for kind in kinds})

    orders = []
    log = TransactionLog(Deleting(tmp_path), limit=3)
    for record in [*BEGINNING, *transaction(1), *transaction(2), *transaction(3)]:
        log.append(record)
    orders.clear()
    log.fold()
    assert [order for order in orders if order] == [{True}, {False}]


class Counting(FolderStorage):
    """Counts the records that are read."""

    reads = 0

    def read(self, name, start=0, stop=None):
        self.reads += name.endswith(".json")
        return super().read(name, start, stop)


def test_preparing_alone_folds(folder):
    log = TransactionLog(folder, limit=1)
    for record in EVENTFUL:
        before = log.number
        assert log.append(record) - before == (2 if isinstance(record, Preparing) else 1)


def test_a_first_fold_reads_none_of_the_earlier_generations(tmp_path):
    filled(FolderStorage(tmp_path), BEGINNING).fold()
    for generation in range(2, 60):
        filled(FolderStorage(tmp_path), [Generation(generation, "/", IDENTITY)]).fold()
    log = filled(Counting(tmp_path), [Generation(60, "/", IDENTITY)])
    log.storage.reads = 0
    log.fold()
    assert log.storage.reads == 0
    assert numbers(log.storage) == [1, *range(2, 121, 2), log.number]


def newer(data):
    record = json.loads(data)
    body = json.dumps({**record, "record": {"kind": "FENCED", "by": 1}}, separators=(",", ":")).encode()
    body = body[: body.index(b',"checksum"')]
    return body + b',"checksum":"' + digest(body + b"}").encode() + b'"}\n'


@pytest.mark.parametrize("rewritten", [lambda data: data[:-20], newer], ids=["damaged", "of a newer release"])
def test_an_old_record_that_can_not_be_read_stays_and_the_others_go(tmp_path, rewritten, caplog):
    class Killed(FolderStorage):
        def delete(self, names):
            raise OSError(errno.EIO, "killed before anything was deleted")

    folded = filled(Killed(tmp_path), [*BEGINNING, *transaction(1), *transaction(2)])
    folded.fold()
    path = Path(path_of(folded.storage, 4))
    path.write_bytes(rewritten(path.read_bytes()))
    log = filled(FolderStorage(tmp_path), [Generation(2, "/", IDENTITY)])
    for _ in range(2):
        log.fold()
    assert numbers(log.storage) == [1, 2, 4, 10, log.number]
    assert [record.getMessage().count("00004.json") for record in caplog.records] == [1]


def test_a_successor_does_not_trust_a_checkpoint_that_was_damaged_since(tmp_path):
    """Its followers may have been deleted, while it itself stays: nobody can tell any more what it is."""
    first = filled(FolderStorage(tmp_path), [*BEGINNING, *transaction(1)])
    first.fold()
    late = TransactionLog(FolderStorage(tmp_path))
    path = Path(path_of(late.storage, late.number))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FencedError):
        late.append(Generation(2, "/", IDENTITY))


def test_nothing_is_deleted_before_the_log_says_that_something_was(tmp_path):
    class Full(FolderStorage):
        def put(self, name, data):
            raise OSError(28, f"no space for {name}")

    log = TransactionLog(Full(tmp_path))
    for record in [*BEGINNING, *transaction(1)]:
        log.append(record)
    log.fold()
    assert numbers(log.storage) == list(range(1, log.number + 1))
    assert read_state(log.storage) == log.state


@pytest.mark.parametrize("lost", [1, 3], ids=["its CHECKPOINT", "all records"])
def test_a_folded_log_that_lost_its_newest_records_does_not_begin_again(tmp_path, lost):
    at_work = AtWork(tmp_path, BEGINNING, 1)
    at_work()
    storage = FolderStorage(tmp_path)
    storage.delete([entry_name(number) for number in numbers(storage)[-lost:]])
    with pytest.raises(StateCorruptedError, match="it is missing"):
        TransactionLog(storage)
    assert storage.read(FOLDED)


WRITER = """
import sys
from statefx.log.log import TransactionLog
from statefx.protocol.records import Committed, Committing, Generation, Lineage, Preparing, StreamInput
from statefx.protocol.topology_identity import TopologyIdentity
from statefx.storage import FolderStorage
log = TransactionLog(FolderStorage(sys.argv[1]), limit=5)
log.append(Lineage("l"))
log.append(Generation(1, "/", TopologyIdentity("words", "stream")))
for txid in range(1, 100000):
    log.append(Preparing(txid, 0, 1, StreamInput("q", txid - 1, "v1")))
    log.append(Committing(txid, 0, 1, {"count/0": f"t{txid}"}, hooks=("count/0",)))
    log.append(Committed(txid))
    print(txid, flush=True)
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_loses_nothing_that_it_was_told(tmp_path):
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        for line in writer.stdout:
            if int(line) == 40:
                os.kill(writer.pid, signal.SIGKILL)
                break
        told = max([40, *map(int, writer.stdout.read().split())])
    log = TransactionLog(FolderStorage(tmp_path))
    assert told <= log.state.committed <= told + 1
    log.append(Generation(2, "/", IDENTITY))
    assert read_state(FolderStorage(tmp_path)) == log.state


# ---- What the log remembers of transactions that have ended: shown to people, kept when the log is folded, bounded.


TOKENS = {"count/0": "t"}
GIVEN = {"out": {"tasks": {"0": {"rows": 2, "bytes": 90}, "1": {"rows": 1, "bytes": 40}}}, "mail": {"id": 7}}
SEALED = {
    "acks": {
        "target": "q",
        "tasks": {
            "0": {"sealed": {"5d1e/jobs/0/2.7.0/a7/@sealed/2/0/9f": 3, "5d1e/jobs/1/2.7.0/b8/@sealed/2/0/9f": 1}},
            "1": {"sealed": {"5d1e/jobs/0/2.7.0/a7/@sealed/2/0/c6": 1}},
        },
    },
    "odd": {"target": "o", "tasks": {"0": {"sealed": ["x"]}, "1": 7}},
}


def attempts(storage):
    return [asdict(each) for each in attempts_in(read_state(storage))]


@pytest.fixture
def storage(tmp_path):
    return FolderStorage(tmp_path / "checkpoint")


def opened(storage, limit=100):
    """A log whose clock goes on by one second with each record."""
    seconds = iter(range(1_000, 1_000_000))
    log = TransactionLog(storage, limit, clock=lambda: float(next(seconds)))
    for record in BEGINNING:
        log.append(record)
    return log


def decided(txid, attempt=0, **fields):
    return Committing(txid, attempt, 1, TOKENS, {}, {"count/0": 10, "count/1": 5}, **fields)


def test_each_record_has_the_time_of_the_clock_that_was_given(storage):
    log = opened(storage)
    times = [read_entry(storage, number).time_ms for number in (1, 2)]
    assert times == [1_000_000, 1_001_000]
    assert json.loads(Path(storage.path(entry_name(2))).read_bytes())["time_ms"] == times[1]
    assert log.state.time_ms == read_state(storage).time_ms == times[1]


@pytest.mark.parametrize("folded", [False, True])
def test_attempts_are_told_with_their_times_rows_and_reasons(storage, folded):
    log = opened(storage)
    log.append(preparing(1))
    log.append(RolledBack(1, 0, "the feed is stale"))
    log.append(preparing(1, 1))
    log.append(decided(1, 1, hooks=("count/0",), input_rows=7, output_rows=3, committables=GIVEN))
    log.append(Committed(1))
    log.append(preparing(2))
    log.append(decided(2, hooks=("count/0",), committables=SEALED))
    log.append(preparing(3))
    if folded:
        log.fold()
    told = attempts(storage)
    assert [list(each.values()) for each in told] == [
        [1, 0, 1, "ROLLED_BACK", 1_002_000, None, 1_003_000, 0, 0, 0, "the feed is stale", {}, {}],
        [1, 1, 1, "COMMITTED", 1_004_000, 1_005_000, 1_006_000, 7, 3, 15, "", {"out": {"rows": 3, "bytes": 130}}, {}],
        [2, 0, 1, "COMMITTING", 1_007_000, 1_008_000, None, 0, 0, 15, "", {}, {"jobs": {"queue": "q", "sealed": 5}}],
        [3, 0, 1, "PREPARING", 1_009_000, None, None, 0, 0, 0, "", {}, {}],
    ]
    assert list(told[0]) == [*Past._fields, "queues"]
    assert json.loads(json.dumps(told)) == told


def test_the_end_of_a_transaction_that_rides_with_another_record_has_the_time_of_that(storage):
    log = opened(storage)
    log.append(preparing(1))
    log.append(decided(1))
    assert attempts(storage)[0]["ended_ms"] == attempts(storage)[0]["committing_ms"] == 1_003_000


def test_folding_and_opening_again_keep_the_last_ones_and_no_more(storage):
    log = opened(storage, limit=7)
    for txid in range(1, 60):
        log.append(preparing(txid))
        log.append(decided(txid))
    assert [past.txid for past in TransactionLog(storage).state.past()] == list(range(1, 60))


@pytest.mark.slow
def test_there_are_never_more_than_a_batch_above_what_is_kept():
    history = History()
    for txid in range(1, 3 * KEPT):
        history = history.with_last(Past(txid, 0, 1, "COMMITTED"))
        found = [past.txid for past in history.past]
        assert found == list(range(txid - len(found) + 1, txid + 1))
        assert min(txid, KEPT) <= len(found) < KEPT + BATCH


def test_a_long_reason_is_cut_in_the_history_and_whole_in_its_record(storage):
    log = opened(storage)
    log.append(preparing(1))
    log.append(RolledBack(1, 0, "x" * 5_000))
    assert len(attempts(storage)[0]["reason"]) == REASON_CHARS
    assert read_entry(storage, 4).record.reason == "x" * 5_000


@pytest.mark.soak
@pytest.mark.slow
def test_a_checkpoint_with_a_full_history_takes_about_100_bytes_for_each(storage):
    log = opened(storage)
    log.fold()
    before = len(storage.read(entry_name(log.number)))
    for txid in range(1, KEPT + 1):
        log.append(preparing(txid))
        log.append(decided(txid, input_rows=1_000_000, output_rows=1_000_000))
    log.fold()
    assert len(storage.read(entry_name(log.number))) - before < 120 * KEPT
