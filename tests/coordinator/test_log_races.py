"""Several drivers on one log: threads, processes, a reader beside a writer that folds."""

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from statefx.coordinator.entries import numbers, read_entry
from statefx.coordinator.log import TransactionLog, read_state
from statefx.errors import FencedError
from statefx.protocol.records import Committed, Committing, Generation, Lineage
from statefx.storage import FolderStorage
from tests.coordinator.histories import IDENTITY, committing, preparing

TAKEN_EACH = 8


def take_generations(folder):
    """Start TAKEN_EACH times on a log that others start on as well; return (number, generation) of each start."""
    taken = []
    while len(taken) < TAKEN_EACH:
        log = TransactionLog(folder, 3)
        try:
            number = log.append(Generation(log.state.generation + 1, "/", IDENTITY, "now"))
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


def test_of_two_drivers_that_would_commit_and_take_over_exactly_one_wins(tmp_path):
    for turn in range(30):
        folder = FolderStorage(tmp_path / f"{turn}")
        log = TransactionLog(folder)
        for record in (Lineage("l"), Generation(1, "/", IDENTITY, "now"), preparing(1)):
            log.append(record)
        rivals = [
            (TransactionLog(folder), committing(1)),
            (TransactionLog(folder), Generation(2, "/", IDENTITY, "now")),
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
    log.append(Generation(1, "/", IDENTITY, "now"))
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


WRITER = """
import sys
from statefx.coordinator.log import TransactionLog
from statefx.protocol.records import Committed, Committing, Generation, Lineage, Preparing, StreamInput
from statefx.protocol.topology_identity import TopologyIdentity
from statefx.storage import FolderStorage
log = TransactionLog(FolderStorage(sys.argv[1]), limit=5)
log.append(Lineage("l"))
log.append(Generation(1, "/", TopologyIdentity("words", "stream"), "now"))
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
    log.append(Generation(2, "/", IDENTITY, "later"))
    assert read_state(FolderStorage(tmp_path)) == log.state
