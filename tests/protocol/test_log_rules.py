from dataclasses import replace

import pytest

from statefx.errors import StateCorruptedError
from statefx.log.entries import as_read
from statefx.protocol.identity import Version
from statefx.protocol.log_rules import apply, checkpoint, fold, pin_of
from statefx.protocol.log_state import LogState
from statefx.protocol.metadata import Metadata
from statefx.protocol.records import (
    BatchInput,
    Checkpoint,
    Committed,
    Committing,
    Generation,
    Lineage,
    Migrated,
    Noted,
    Pinned,
    Preparing,
    Processed,
    Restored,
    RolledBack,
    SourceNotes,
    SpoutInput,
    StreamInput,
    Unpinned,
)
from statefx.protocol.transaction import Phase
from tests.coordinator.histories import (
    BEGINNING,
    EVENTFUL,
    IDENTITY,
    LISTS,
    MIGRATED,
    NOTED,
    committing,
    offsets,
    preparing,
    snapshot,
    transaction,
)

PLANNED = Preparing(1, 0, 1, SpoutInput(), planned={"queue": Metadata({"0": {"from": 3}})})
DECIDED = Committing(1, 0, 1, {}, emitted=PLANNED.planned, committables={"sink": [1]}, acknowledged={"queue": {"0": 3}})

KEPT = [Pinned("a", 1), Unpinned("a"), Restored(2, pin_of(fold(EVENTFUL)))]


@pytest.mark.parametrize("record", [*EVENTFUL, *MIGRATED, *NOTED, PLANNED, DECIDED, *KEPT])
def test_a_record_comes_back_from_json_as_it_was(record):
    assert as_read(record) == record


@pytest.mark.parametrize("length", range(len(EVENTFUL) + 1))
def test_a_checkpoint_stands_for_everything_before_it(length):
    state = fold(EVENTFUL[:length])
    folded = apply(LogState(), as_read(checkpoint(state)))
    assert folded == state
    assert fold([checkpoint(state), *EVENTFUL[length:]]) == fold(EVENTFUL)


@pytest.mark.parametrize("length", range(len(MIGRATED) + 1))
def test_a_checkpoint_stands_for_a_migration_too(length):
    assert fold([checkpoint(fold(MIGRATED[:length])), *MIGRATED[length:]]) == fold(MIGRATED)


@pytest.mark.parametrize("length", range(len(NOTED) + 1))
def test_a_checkpoint_stands_for_what_sources_have_written_down_too(length):
    assert fold([checkpoint(fold(NOTED[:length])), *NOTED[length:]]) == fold(NOTED)


def test_what_sources_have_written_down_is_known_from_the_record_on_that_has_it():
    known = [fold(NOTED[:length]).notes for length in range(len(BEGINNING), len(NOTED) + 1)]
    first = {"1/0": "began at 7"}
    assert [(notes.files, notes.aside) for notes in known[:4]] == [
        ({}, ()),
        (first, ()),
        ({**first, "0/0": "a"}, ()),
        ({**first, "0/0": "a"}, ()),
    ], "a rollback takes none of it back"
    assert (known[7].files, known[7].aside) == ({**first, "0/1": "b"}, ()), "what was taken back leaves nothing"
    assert (known[10].files, known[10].aside) == ({}, (LISTS,)), "what is put aside stands for all before"
    assert (known[-1].files, known[-1].aside) == ({"0/3": "c", "0/1": None}, (LISTS,))


def test_an_input_is_kept_over_a_rollback_until_its_transaction_is_committed():
    """The same rows come again, also to another driver: Spark's own note of them is gone with the former one."""
    rolled_back = fold(NOTED[:5])
    assert rolled_back.planned == offsets(1), "without the notes, which the state has once"
    assert fold(NOTED[:7]).planned == offsets(1)
    assert fold(NOTED[:8]).planned is None
    later = fold([*NOTED[:4], preparing(2), RolledBack(2, 0, "stopped")])
    assert later.planned is None, "that of a transaction after the next one may be another"


@pytest.mark.parametrize("other", [("q", 1, "x"), ("q", 0, "y"), ("p", 0, "x"), None])
def test_a_batch_is_the_same_by_query_number_and_offsets(other):
    batch = StreamInput("q", 0, "x", SourceNotes({"0/0": "a"}))
    assert batch.is_batch_of(StreamInput("q", 0, "x"))
    assert not batch.is_batch_of(other and StreamInput(*other))
    assert not batch.is_batch_of(BatchInput(0))


def test_what_a_migration_changes_and_what_it_leaves():
    before, state = fold(MIGRATED[:-5]), fold(MIGRATED[:-4])
    assert before.snapshots
    assert (state.lineage, state.topology) == ("lineage-2", before.topology.kept_by("new:New", {"size": 1}))
    assert state.heads == {"count/0": Version(2, "a"), "count/1": Version(2, "b")}
    assert state.growth == {"count/0": 7, "count/1": 8}
    assert state.snapshots == {}
    kept = {name: getattr(before, name) for name in ("generation", "location", "committed", "last_input", "attempts")}
    assert {name: getattr(state, name) for name in kept} == kept
    assert fold(MIGRATED).heads["count/0"] == Version(3, "token-3-0-0")


def test_what_an_eventful_life_amounts_to():
    state = fold(EVENTFUL)
    assert (state.lineage, state.generation, state.location) == ("lineage-1", 3, "/data/moved")
    assert state.committed == 3
    assert [(entry.txid, entry.attempt, entry.phase) for entry in state.in_flight] == [(4, 0, Phase.PREPARING)]
    assert (state.last_input, state.previous_input) == (BatchInput(7), offsets(2))
    assert state.heads == {"count/0": Version(3, "c"), "count/1": Version(2, "token-2-1-1")}
    assert state.snapshots == {"count/0": (snapshot(1),)}
    assert state.growth == {"count/0": 27, "count/1": 30}
    assert state.batch_id == 7
    assert state.next_attempt(4) == 1


def test_the_attempt_number_outlives_a_rollback_and_a_restart():
    state = fold([*BEGINNING, preparing(1), RolledBack(1, 0, "x"), Generation(2, "/", IDENTITY)])
    assert state.in_flight == ()
    assert state.next_attempt(1) == 1


def test_a_fork_of_a_fork_that_has_decided_nothing_shares_with_both():
    """The fork died before it could fence its targets: their markers may be of the first checkpoint, or of the fork."""
    first = fold(MIGRATED)
    fork = fold([Lineage("fork"), replace(BEGINNING[1], generation=first.generation + 1)], first)
    assert fork.shared_origins == (first.origin,)
    assert apply(fork, Lineage("second")).shared_origins == (first.origin, "fork")


def test_the_origin_is_the_lineage_of_a_fork_and_stays_over_a_move():
    assert fold(MIGRATED).origin == "lineage-1"
    assert (fold(MIGRATED).lineage, fold([*MIGRATED, Lineage("fork")]).origin) == ("lineage-2", "fork")


PINNED = [*BEGINNING, *transaction(1), preparing(2), committing(2, snapshots={"count/0": snapshot(1)}), Committed(2)]


def test_what_is_pinned_is_remembered_until_it_is_unpinned():
    state = fold([*PINNED, Pinned("before the upgrade", 2), *transaction(3)])
    pin = state.pinned["before the upgrade"]
    assert (pin.txid, pin.heads["count/1"], pin.snapshots) == (2, Version(2, "token-2-0-1"), {"count/0": snapshot(1)})
    assert apply(LogState(), as_read(checkpoint(state))) == state
    assert not apply(state, Unpinned("before the upgrade")).pinned


PIN = pin_of(fold(PINNED))


def test_what_is_decided_can_be_pinned_before_it_is_committed():
    decided = fold([*PINNED, preparing(3), committing(3), Pinned("a", 3), preparing(4)])
    committed = fold([*PINNED, preparing(3), committing(3), Committed(3), Pinned("a", 3)])
    assert replace(decided.pinned["a"], notes=PIN.notes) == replace(committed.pinned["a"], notes=PIN.notes)
    assert decided.pinned["a"].heads["count/0"] == Version(3, "token-3-0-0")


def test_what_is_restored_goes_on_with_new_numbers():
    before = fold([*PINNED, *transaction(3), preparing(4), RolledBack(4, 0, "x")])
    state = apply(before, Restored(1, PIN))
    assert (state.heads, state.growth, state.last_input.offsets) == (PIN.heads, PIN.growth, offsets(2).offsets)
    assert (state.committed, state.restored, state.next_attempt(4), state.planned) == (3, 2, 1, None)
    # Spark goes on behind the batch of the last number, which has the offsets of the transaction that was gone back to
    assert (state.last_input.batch_id, state.previous_input.batch_id) == (2, 1)
    assert apply(LogState(), as_read(checkpoint(state))) == state
    later = fold([preparing(4, 1), committing(4, 1), Committed(4)], state)
    assert (later.restored, later.head("count/0")) == (None, Version(4, "token-4-1-0"))


def test_heads_move_when_it_is_committed_and_can_be_foreseen_before():
    state = fold([*BEGINNING, preparing(1), committing(1)])
    assert state.head("count/0") == Version(0, "")
    assert state.heads_to_come()["count/0"] == Version(1, "token-1-0-0")
    assert apply(state, Committed(1)).heads == state.heads_to_come()


def test_snapshots_count_as_soon_as_committing_names_them_and_two_are_kept():
    state = fold(BEGINNING)
    for txid in range(1, 6):
        named = {"count/0": snapshot(txid - 1)} if txid > 1 else {}
        state = fold([preparing(txid), committing(txid, snapshots=named)], state)
        assert state.snapshots.get("count/0", ())[-1:] == tuple(named.values())
        state = apply(state, Committed(txid))
    assert state.snapshots["count/0"] == (snapshot(3), snapshot(4))
    assert state.growth["count/0"] == 50
    assert state.growth["count/1"] == 150


def test_a_batch_id_counts_as_applied_once_it_is_committed_and_all_lower_ones_with_it():
    begun = fold([*BEGINNING, Preparing(1, 0, 1, BatchInput(5)), committing(1)])
    assert not begun.applied(5)
    state = apply(begun, Committed(1))
    assert [state.applied(batch_id) for batch_id in (4, 5, 6)] == [True, True, False]
    state = fold([preparing(2), committing(2), Committed(2)], state)
    assert state.applied(5)


def test_where_nothing_is_left_to_do_the_decision_commits():
    assert fold([*P1, committing(1, hooks=())]) == replace(fold([*C1, Committed(1)]))


def test_committed_rides_with_the_next_record_of_either_kind():
    assert fold([*C1, Preparing(2, 0, 1, offsets(2), committed=1)]) == fold([*C1, Committed(1), preparing(2)])
    both = [*C1, preparing(2)]
    assert fold([*both, committing(2, committed=1)]) == replace(
        fold([*both, Committed(1), committing(2)]), in_flight=fold([*both, committing(2, committed=1)]).in_flight
    )


def test_applying_a_record_leaves_the_state_before_it_as_it_was():
    states = [LogState()]
    for record in EVENTFUL:
        states.append(apply(states[-1], record))
    assert states == [fold(EVENTFUL[:length]) for length in range(len(EVENTFUL) + 1)]


P1 = [*BEGINNING, preparing(1)]
C1 = [*P1, committing(1)]
COPY = {"count/0": "a", "count/1": "b"}
ILLEGAL = {
    "generation before lineage": [BEGINNING[1]],
    "the same lineage again": [*BEGINNING, BEGINNING[0]],
    "a generation twice": [*BEGINNING, BEGINNING[1]],
    "a generation left out": [*BEGINNING, Generation(3, "/", IDENTITY)],
    "prepare before a generation": [BEGINNING[0], Preparing(1, 0, 0, offsets(1))],
    "prepare of an older generation": [*BEGINNING, Generation(2, "/", IDENTITY), preparing(1)],
    "prepare of a txid left out": [*BEGINNING, preparing(2)],
    "prepare of a committed txid": [*BEGINNING, *transaction(1), preparing(1, 1)],
    "prepare twice": [*P1, preparing(1, 1)],
    "prepare of an attempt that has been": [*P1, RolledBack(1, 0, "x"), preparing(1, 0)],
    "prepare of an attempt left out": [*BEGINNING, preparing(1, 1)],
    "prepare of a batch that was applied": [
        *BEGINNING,
        Preparing(1, 0, 1, BatchInput(5)),
        Committing(1, 0, 1, {}),
        Preparing(2, 0, 1, BatchInput(5)),
    ],
    "noted by another generation": [*BEGINNING, Noted(2, SourceNotes({"0/0": "a"}))],
    "processed twice": [*P1, Processed(1, 0), Processed(1, 0)],
    "processed of another attempt": [*P1, Processed(1, 1)],
    "committing without preparing": [*BEGINNING, committing(1)],
    "committing of another attempt": [*P1, committing(1, 1)],
    "committing twice": [*C1, committing(1)],
    "committing out of order": [*P1, preparing(2), committing(2)],
    "committing beside another": [*C1, preparing(2), committing(2)],
    "committing what an older generation prepared": [*P1, Generation(2, "/", IDENTITY), committing(1, 0, 2)],
    "committed without committing": [*P1, Committed(1)],
    "committed twice": [*C1, Committed(1), Committed(1)],
    "committed of another": [*C1, Committed(2)],
    "rolled back while committing": [*C1, RolledBack(1, 0, "x")],
    "rolled back after committed": [*C1, Committed(1), RolledBack(1, 0, "x")],
    "rolled back twice": [*P1, RolledBack(1, 0, "x"), RolledBack(1, 0, "x")],
    "rolled back, another attempt": [*P1, RolledBack(1, 1, "x")],
    "rolled back below another": [*P1, preparing(2), RolledBack(1, 0, "x")],
    "committed after it was committed with its decision": [*P1, committing(1, hooks=()), Committed(1)],
    "committed with a record that is not its successor's": [*C1, Preparing(2, 0, 1, offsets(2), committed=2)],
    "committed with a record after it was committed": [*C1, Committed(1), Preparing(2, 0, 1, offsets(2), committed=1)],
    "migrated by an older generation": [*MIGRATED[:-4], Migrated(1, "l", "new:New", COPY, {})],
    "migrated to the same lineage": [*MIGRATED[:-5], Migrated(2, "lineage-1", "new:New", COPY, {})],
    "migrated without a lineage": [*MIGRATED[:-5], Migrated(2, "", "new:New", COPY, {})],
    "migrated without a task": [*MIGRATED[:-5], Migrated(2, "l", "new:New", {"count/0": "a"}, {})],
    "migrated with a task that has no state": [*MIGRATED[:-5], Migrated(2, "l", "new:New", {**COPY, "x/0": "c"}, {})],
    "migrated in a transaction": [*MIGRATED[:-5], preparing(3, 0, 2), Migrated(2, "l", "new:New", COPY, {})],
    "pinned twice": [*PINNED, Pinned("a", 2), Pinned("a", 2)],
    "pinned without a name": [*PINNED, Pinned("", 2)],
    "pinned an older one": [*PINNED, Pinned("a", 1)],
    "pinned an older one than is decided": [*PINNED, preparing(3), committing(3), Pinned("a", 2)],
    "restored in a transaction": [*PINNED, preparing(3), Restored(1, PIN)],
    "restored by an older generation": [*PINNED, Generation(2, "/", IDENTITY), Restored(1, PIN)],
    "unpinned what is not": [*PINNED, Unpinned("a")],
    "migrated while a version is pinned": [
        *MIGRATED[:-5],
        Pinned("a", 2),
        Migrated(2, "lineage-2", "new:New", COPY, {}),
    ],
    "planned again": [*BEGINNING, PLANNED, RolledBack(1, 0, "x"), replace(PLANNED, attempt=1)],
    "a checkpoint of something else": [*P1, checkpoint(fold(BEGINNING))],
    "a checkpoint that can't be read": [Checkpoint({"lineage": 1})],
}


@pytest.mark.parametrize("records", ILLEGAL.values(), ids=ILLEGAL.keys())
def test_an_illegal_order_is_refused_at_the_record_that_breaks_it(records):
    state = fold(records[:-1])
    before = replace(state)
    with pytest.raises(StateCorruptedError, match=records[-1].kind):
        apply(state, records[-1])
    assert state == before
