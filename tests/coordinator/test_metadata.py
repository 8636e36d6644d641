"""What spouts say of their partitions, in the log and beside it."""

import json
import time
from functools import partial
from pathlib import Path

import pytest

from statefx.errors import StateCorruptedError, StatePhaseError
from statefx.log.beside import committed_metadata, read_metadata, written_files
from statefx.log.log import TransactionLog, read_state
from statefx.protocol.batches import durable_batch
from statefx.protocol.metadata import INLINE_MAX_BYTES, Metadata, read_now
from statefx.protocol.records import (
    Committed,
    Committing,
    Generation,
    Pinned,
    Preparing,
    Processed,
    Restored,
    RolledBack,
    SpoutInput,
)
from statefx.storage import FolderStorage
from tests.coordinator.histories import BEGINNING

LARGE = {str(number): {"from": number, "to": "x" * 20} for number in range(3000)}
GENERATION_2 = Generation(2, "/", BEGINNING[1].topology)


@pytest.fixture
def storage(tmp_path):
    return FolderStorage(tmp_path / "checkpoint")


def opened(storage, *records, limit=100):
    log = TransactionLog(storage, limit)
    for record in records or BEGINNING:
        log.append(record)
    return log


def planned(txid, partitions, attempt=0, generation=1):
    """PREPARING with a mapping of partitions, what `read_now` made of one, or None."""
    said = {} if partitions is None else {"queue": partitions}
    said = {spout: each if isinstance(each, Metadata) else Metadata(each) for spout, each in said.items()}
    return Preparing(txid, attempt, generation, SpoutInput(), planned=said)


def planned_metadata(storage, state, spout, txid):
    return durable_batch(state, spout, txid, partial(read_metadata, storage))


def decided(txid, attempt=0, generation=1, **emitted):
    said = {spout: Metadata(partitions) for spout, partitions in emitted.items()}
    return Committing(txid, attempt, generation, {}, emitted=said)


@pytest.mark.parametrize("partitions", [{"a": 1, "b": [None, "x"]}, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("again", [1, 2], ids=["same driver", "another driver"])
def test_what_is_planned_comes_again_after_a_rollback_until_it_is_committed(storage, partitions, again):
    log = opened(storage)
    log.append(planned(1, partitions))
    if again == 2:
        log = TransactionLog(storage)
        log.append(GENERATION_2)
    log.append(RolledBack(1, 0, "x"))
    assert planned_metadata(storage, log.state, "queue", 1) == partitions
    assert planned_metadata(storage, log.state, "queue", 2) is None
    log.fold()
    log.append(planned(1, None, 1, again))
    log.append(decided(1, 1, again))
    for state in (log.state, read_state(storage)):
        assert planned_metadata(storage, state, "queue", 1) is None
        assert committed_metadata(storage, state, "queue") == partitions


def test_what_is_durable_never_changes(storage):
    log = opened(storage)
    log.append(planned(1, {"a": 1}))
    with pytest.raises(StatePhaseError, match="'queue' reads in transaction 1 is durable already"):
        log.append(Processed(1, 0, {"queue": Metadata({"a": 2})}))
    with pytest.raises(StatePhaseError, match="durable already"):
        log.append(decided(1, queue={"a": 2}))
    log.append(RolledBack(1, 0, "x"))
    with pytest.raises(StatePhaseError, match="durable already"):
        log.append(planned(1, {"a": 2}, 1))


def test_what_is_large_is_refused_before_its_file_is_written(storage):
    log = opened(storage)
    log.append(planned(1, {"a": 1}))
    with pytest.raises(StatePhaseError, match="durable already"):
        log.append(Processed(1, 0, {"queue": Metadata(LARGE)}))
    assert not written_files(storage)


# The crash table of spouts: what the next driver finds after a crash behind each record


def test_crash_after_preparing_of_what_is_emitted_and_before_it_was_durable(storage):
    log = opened(storage, *BEGINNING, planned(1, None))
    log.append(GENERATION_2)
    log.append(RolledBack(1, 0, "restart"))
    assert planned_metadata(storage, log.state, "queue", 1) is None, "it emits again, and may emit other rows"


def test_crash_after_processed(storage):
    log = opened(storage, *BEGINNING, planned(1, None), Processed(1, 0, {"queue": Metadata({"a": 1})}))
    log.append(GENERATION_2)
    log.append(RolledBack(1, 0, "restart"))
    assert planned_metadata(storage, log.state, "queue", 1) == {"a": 1}
    log.append(planned(1, None, 1, 2))
    log.append(Processed(1, 1))
    log.append(decided(1, 1, 2))
    assert committed_metadata(storage, log.state, "queue") == {"a": 1}


def test_an_opaque_spout_says_with_the_decision_what_it_emitted_and_may_say_otherwise_the_next_time(storage):
    log = opened(storage, *BEGINNING, planned(1, None), RolledBack(1, 0, "x"), planned(1, None, 1))
    log.append(decided(1, 1, opaque={"a": 7}))
    assert committed_metadata(storage, log.state, "opaque") == {"a": 7}


def test_crash_after_committing_with_later_ones_in_processing(storage):
    log = opened(storage, *BEGINNING, planned(1, {"a": 1, "b": 1}), planned(2, {"a": 2}), planned(3, {"b": None}))
    log.append(Committing(1, 0, 1, {}, hooks=("count/0",)))
    log.append(GENERATION_2)
    log.append(Committed(1))
    log.append(RolledBack(3, 0, "restart"))
    log.append(RolledBack(2, 0, "restart"))
    state = read_state(storage)
    assert committed_metadata(storage, state, "queue") == {"a": 1, "b": 1}
    assert planned_metadata(storage, state, "queue", 2) == {"a": 2}, "b was read in transaction 1"
    assert planned_metadata(storage, state, "queue", 3) == {}


# Files


@pytest.mark.slow
def test_what_is_large_is_beside_the_log_and_is_swept_when_no_record_names_it(storage):
    log = opened(storage)
    stray = storage.path("metadata/stray.json")
    for txid in range(1, 8):
        log.append(planned(txid, LARGE | {"0": txid}))
        log.append(decided(txid))
    assert len(written_files(storage)) == 7
    Path(stray).write_text("{}")  # of an append that failed
    assert all(each.size_bytes < INLINE_MAX_BYTES for each in storage.list("transactions/"))
    log.append(planned(8, LARGE | {"0": 8}))
    log.fold()
    assert len(written_files(storage)) == 2, "what is committed, put together, and what is planned"
    state = read_state(storage)
    assert committed_metadata(storage, state, "queue") == LARGE | {"0": 7}
    assert planned_metadata(storage, state, "queue", 8) == LARGE | {"0": 8}
    log.append(decided(8))
    log.fold()
    assert len(written_files(storage)) == 1


@pytest.mark.slow
def test_a_fold_in_an_append_does_not_sweep_the_file_of_that_append(storage):
    log = opened(storage, *BEGINNING, limit=3)
    for txid in range(1, 6):
        log.append(planned(txid, LARGE | {"0": txid}))
        log.append(decided(txid))
        assert committed_metadata(storage, read_state(storage), "queue")["0"] == txid


def test_a_driver_that_was_replaced_deletes_no_file_of_its_successor(storage):
    zombie = opened(storage, *BEGINNING, planned(1, LARGE), decided(1), planned(2, LARGE | {"0": 2}))
    successor = TransactionLog(storage)
    for record in (GENERATION_2, RolledBack(2, 0, "restart"), planned(2, None, 1, 2), decided(2, 1, 2)):
        successor.append(record)
    successor.append(planned(3, LARGE | {"0": 3}, 0, 2))
    with pytest.raises(Exception, match="another driver"):
        zombie.fold()
    assert planned_metadata(storage, read_state(storage), "queue", 3) == LARGE | {"0": 3}


def test_a_file_that_was_damaged_is_named(storage):
    log = opened(storage, *BEGINNING, planned(1, LARGE))
    (name,) = written_files(storage)
    data = storage.read(name)
    Path(storage.path(name)).write_bytes(data.replace(b"x", b"y", 1))
    with pytest.raises(StateCorruptedError, match=name):
        planned_metadata(storage, log.state, "queue", 1)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("rewritten", [100, 10_000])
def test_10000_partitions_cost_a_transaction_less_than_writing_them_as_json_twice(storage, rewritten):
    """5 to 8 ms of processor on a quiet machine; a ratio, because milliseconds are the machine's."""
    log = opened(storage, *BEGINNING, limit=1000)
    last = {str(number): {"from": number, "to": number + 1} for number in range(10_000)}
    log.append(planned(1, last))
    log.append(decided(1))
    spent, reference = [], []
    for txid in range(2, 12):
        read = {str(number): {"from": txid, "to": txid + 1} for number in range(rewritten)}
        now = {**last, **read}
        began = time.thread_time()
        log.append(planned(txid, read_now(last, read)))
        log.append(decided(txid))
        spent.append(time.thread_time() - began)
        began = time.thread_time()
        json.dumps(now)
        reference.append(time.thread_time() - began)
        last = now
    assert min(spent) < 2 * min(reference), (min(spent), min(reference))
    assert committed_metadata(storage, log.state, "queue") == last


def test_a_layer_that_changes_every_partition_is_all_that_counts_and_spares_a_fold_reading_the_others(storage):
    log = opened(storage)
    last = {}
    for txid in range(1, 6):
        now = {name: {"from": txid, "to": "x" * 20} for name in LARGE}
        log.append(planned(txid, read_now(last, now)))
        log.append(decided(txid))
        last = now
    (layer,) = log.state.committed_metadata["queue"]
    log.fold()
    assert log.state.committed_metadata["queue"] == (layer,)
    assert written_files(storage) == {layer.file.name}
    log.append(planned(6, read_now(last, {"0": 1})))
    log.append(planned(7, read_now(last, {})))
    log.append(planned(8, read_now(last, {"a": 1})))
    log.append(planned(9, read_now(last, {"b": 2})))
    assert planned_metadata(storage, log.state, "queue", 6) == {"0": 1}
    assert planned_metadata(storage, log.state, "queue", 7) == {}
    assert planned_metadata(storage, log.state, "queue", 9) == {"b": 2}


class Text(str):
    pass


@pytest.mark.parametrize(
    "odd",
    [
        {"a": [1, (2.5, None)], "b": {"c": [True, "\u00e9"]}},
        {},
        2**70,
        "\ud800",
        {1: 2, "a": 1},
        Text("x"),
        [[[[[[[[[[1]]]]]]]]]],
    ],
    ids=["plain", "empty", "large integer", "surrogate", "number as key", "subclass", "deep"],
)
def test_a_file_says_what_a_record_would_say(storage, odd):
    small, large = opened(storage), opened(FolderStorage(storage.path("large")))
    small.append(planned(1, {"odd": odd}))
    large.append(planned(1, {**LARGE, "odd": odd}))
    assert len(written_files(large.storage)) == 1
    expected = planned_metadata(storage, small.state, "queue", 1)["odd"]
    found = planned_metadata(large.storage, large.state, "queue", 1)["odd"]
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize("more", [{}, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("odd", [b"bytes", {1}, [{"a": b""}]], ids=["bytes", "set", "nested"])
def test_what_json_can_not_hold_is_refused_whatever_its_size(storage, more, odd):
    log = opened(storage)
    with pytest.raises(TypeError):
        log.append(planned(1, {**more, "odd": odd}))
    assert log.number == len(BEGINNING)
    assert not written_files(storage)


@pytest.mark.slow
@pytest.mark.parametrize("name", [lambda txid: "0", str], ids=["the same partition", "each another one"])
def test_what_a_savepoint_has_of_many_transactions_is_put_together(storage, name):
    """In records each is small enough; those of six spouts since a fold are more than RESTORED may have."""
    log, spouts = opened(storage), [f"queue{number}" for number in range(6)]
    for txid in range(1, 50):
        said = {spout: Metadata({name(txid): f"{txid}".zfill(60_000), "gone": None}) for spout in spouts}
        log.append(Preparing(txid, 0, 1, SpoutInput(), planned=said))
        log.append(decided(txid))
    log.append(Pinned("many", 49))
    expected = {spout: committed_metadata(storage, log.state, spout) for spout in spouts}
    for txid in (50, 51):
        log.append(Restored(1, log.state.pinned["many"]))
        for state in (log.state, read_state(storage)):
            assert {spout: committed_metadata(storage, state, spout) for spout in spouts} == expected
        for record in (planned(txid, {"x": 1}), decided(txid)):
            log.append(record)
        log.fold()
        folded = len(storage.read(f"transactions/{log.number:020}.json"))
        assert folded < 15 * 60_000, "once in the pin, and once in the state"
