import itertools

import pytest

from statefx.errors import TransactionError
from statefx.protocol.transaction import INITIAL, TABLE, ActionKind, Event, Phase, TransactionState, mermaid


def test_the_table_is_total():
    assert set(TABLE) == set(Phase)
    for row in TABLE.values():
        assert set(row) == set(Event)


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, Event)))
def test_an_illegal_event_raises_and_names_the_transaction(phase, event):
    state = TransactionState(phase, 7, 2)
    if TABLE[phase][event] is not None:
        assert state.step(event).phase is TABLE[phase][event].phase
        return
    with pytest.raises(TransactionError) as caught:
        state.step(event)
    assert (caught.value.txid, caught.value.attempt, caught.value.phase) == (7, 2, phase.value)


def reachable(start: Phase) -> set[Phase]:
    found, left = {start}, [start]
    while left:
        after = {entry.phase for entry in TABLE[left.pop()].values() if entry is not None}
        left += after - found
        found |= after
    return found


def test_committing_can_only_end_in_committed():
    assert {entry.phase for entry in TABLE[Phase.COMMITTING].values() if entry} == {Phase.COMMITTING, Phase.COMMITTED}


def test_a_transaction_that_has_failed_can_not_be_committed_in_the_same_attempt():
    state = INITIAL.step(Event.PREPARE).step(Event.FAILED)
    for event in (Event.ALL_ACKED, Event.COMMITTED):
        with pytest.raises(TransactionError):
            state.step(event)
    assert state.step(Event.ROLLED_BACK).step(Event.PREPARE) == TransactionState(Phase.PREPARING, 1, 1)


def test_committed_is_reached_only_through_committing():
    into = {phase for phase, row in TABLE.items() for entry in row.values() if entry and entry.phase is Phase.COMMITTED}
    assert into == {Phase.COMMITTING, Phase.COMMITTED}


@pytest.mark.parametrize(
    ("phase", "again", "other"),
    [(Phase.COMMITTED, Event.COMMITTED, Event.ROLLED_BACK), (Phase.ROLLED_BACK, Event.ROLLED_BACK, Event.COMMITTED)],
)
def test_ending_again_the_same_way_is_a_no_op_and_the_other_way_an_error(phase, again, other):
    state = TransactionState(phase, 3, 1)
    assert state.step(again) == state
    assert state.action(again) is None
    with pytest.raises(TransactionError):
        state.step(other)


def test_every_phase_leads_to_every_other_except_back_to_nothing():
    for phase in Phase:
        assert reachable(phase) >= set(Phase) - {Phase.NOTHING}


def test_each_record_is_named_where_its_event_moves_the_transaction():
    assert INITIAL.record(Event.PREPARE) == "PREPARING"
    assert TransactionState(Phase.PREPARING, 1).record(Event.ALL_ACKED) == "COMMITTING"
    assert TransactionState(Phase.COMMITTING, 1).record(Event.COMMITTED) == "COMMITTED"
    assert TransactionState(Phase.ROLLING_BACK, 1).record(Event.ROLLED_BACK) == "ROLLED_BACK"


def test_a_start_says_what_a_driver_has_to_do_first():
    to_do = {phase: TransactionState(phase, 3).action(Event.START) for phase in Phase}
    assert {phase: action for phase, action in to_do.items() if action} == {
        Phase.PREPARING: ActionKind.ROLLBACK,
        Phase.ROLLING_BACK: ActionKind.ROLLBACK,
        Phase.COMMITTING: ActionKind.COMMIT,
    }


def test_the_figure_shows_every_legal_step_and_no_other():
    drawn = [line for line in mermaid().splitlines() if "-->" in line and "[*]" not in line]
    assert len(drawn) == sum(entry is not None for row in TABLE.values() for entry in row.values())
    assert "    PREPARING --> COMMITTING: all acked / COMMIT" in drawn
    assert mermaid().startswith("stateDiagram-v2\n    [*] --> NOTHING\n")
