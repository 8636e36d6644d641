"""Several drivers on one log: threads, processes, a reader beside a writer that folds."""

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from statefx.coordinator.entries import FOLDED, entry_name, numbers, read_entry
from statefx.coordinator.log import TransactionLog, read_state
from statefx.errors import FencedError, StateCorruptedError
from statefx.protocol.records import Checkpoint, Committed, Committing, Generation, Lineage
from statefx.storage import FolderStorage
from tests.coordinator.histories import BEGINNING, IDENTITY, committing, preparing, transaction

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


def started(pool, folder):
    storage = FolderStorage(folder)
    return storage, list(pool.map(take_generations, [storage] * 4))


def check_starts(folder, starts):
    every = [start for taken in starts for start in taken]
    assert len(every) == len(set(every)) == 4 * TAKEN_EACH
    assert len({number for number, _ in every}) == len({generation for _, generation in every}) == len(every)
    assert sorted(every) == sorted(every, key=lambda start: start[1])
    assert read_state(folder).generation >= len(every)


@pytest.mark.slow
def test_threads_that_start_at_once_each_get_their_own_generation(tmp_path):
    TransactionLog(FolderStorage(tmp_path)).append(Lineage("l"))
    with ThreadPoolExecutor(4) as pool:
        check_starts(*started(pool, tmp_path))


@pytest.mark.slow
def test_processes_that_start_at_once_each_get_their_own_generation(tmp_path):
    TransactionLog(FolderStorage(tmp_path)).append(Lineage("l"))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=context) as pool:
        check_starts(*started(pool, tmp_path))


@pytest.mark.slow
def test_of_two_drivers_that_would_commit_and_take_over_exactly_one_wins(tmp_path):
    for turn in range(30):
        folder = FolderStorage(tmp_path / f"{turn}")
        log = TransactionLog(folder)
        for record in (Lineage("l"), Generation(1, "/", IDENTITY), preparing(1)):
            log.append(record)
        rivals = [
            (TransactionLog(folder), committing(1)),
            (TransactionLog(folder), Generation(2, "/", IDENTITY)),
        ]
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
from statefx.coordinator.log import TransactionLog
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
