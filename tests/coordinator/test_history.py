"""What the log remembers of transactions that have ended: shown to people, kept when the log is folded, bounded."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from statefx.admin.transactions import attempts_in
from statefx.coordinator.entries import entry_name, read_entry
from statefx.coordinator.log import TransactionLog, read_state
from statefx.errors import CheckpointError
from statefx.protocol.history import BATCH, KEPT, REASON_CHARS, History, Past
from statefx.protocol.records import Committed, Committing, RolledBack
from statefx.storage import FolderStorage
from tests.coordinator.histories import BEGINNING, preparing

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


def test_without_a_log_there_is_an_error(storage):
    with pytest.raises(CheckpointError, match="no transaction log"):
        read_state(storage)
