import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx.protocol.alignment import Alignment
from statefx.protocol.barrier import Barrier
from statefx.protocol.identity import TransactionAttempt

ATTEMPT = TransactionAttempt(3, 1)
CHANNELS = [(edge, "split", task) for edge in (0, 1) for task in (0, 1, 2)]


def played(events, channels=CHANNELS, **options):
    alignment = Alignment("count", 0, ATTEMPT, channels, **options)
    for event in events:
        if isinstance(event, Barrier):
            alignment.barrier(event)
        else:
            alignment.records(*event)
    return alignment.finish()


def whole_input(rows):
    """Rows in chunks, and the barriers that close them: rows[task][edge] is a list of chunk sizes."""
    events = []
    for task, edges in enumerate(rows):
        token = f"t{task}"
        events += [("split", task, token, edge, size) for edge, sizes in enumerate(edges) for size in sizes]
        counts = {edge: sum(sizes) for edge, sizes in enumerate(edges) if sizes}
        events.append(Barrier(ATTEMPT, "split", task, token, counts))
    return events


sizes = st.lists(st.integers(1, 1000), max_size=4)
inputs = st.lists(st.tuples(sizes, sizes), min_size=3, max_size=3)


@pytest.mark.slow
@given(inputs, st.randoms(use_true_random=False))
def test_a_whole_input_is_aligned_in_any_order(rows, shuffler):
    events = whole_input(rows)
    shuffler.shuffle(events)
    result = played(events)
    assert result.aligned
    assert result.seen == {("split", task): f"t{task}" for task in range(3)}
    assert result.received == {edge: sum(sum(edges[edge]) for edges in rows) for edge in (0, 1)}


@pytest.mark.slow
@given(inputs, st.data())
def test_an_input_that_lacks_anything_is_not_aligned(rows, data):
    events = whole_input(rows)
    events.pop(data.draw(st.integers(0, len(events) - 1)))
    assert not played(events).aligned


@pytest.mark.slow
@given(inputs, st.data())
def test_rows_that_come_twice_are_seen(rows, data):
    events = whole_input(rows)
    chunks = [event for event in events if not isinstance(event, Barrier)]
    if chunks:
        assert not played([*events, data.draw(st.sampled_from(chunks))]).aligned


@pytest.mark.slow
@given(inputs, st.data())
def test_rows_of_another_attempt_are_seen_even_if_the_numbers_agree(rows, data):
    events = whole_input(rows)
    chunks = [index for index, event in enumerate(events) if not isinstance(event, Barrier)]
    if chunks:
        at = data.draw(st.sampled_from(chunks))
        name, task, _, edge, size = events[at]
        events[at] = (name, task, "another", edge, size)
        failure = played(events).failure
        assert failure is not None
        assert "another" in failure.reason


def test_no_input_at_all_is_aligned_when_every_barrier_says_so():
    assert played([Barrier(ATTEMPT, "split", task, f"t{task}") for task in range(3)]).aligned


def test_the_same_barrier_twice_counts_once():
    events = whole_input([([1], []), ([], []), ([], [])])
    assert played([*events, events[-1]]).aligned


def test_one_token_with_two_counts_is_not_aligned():
    events = [*whole_input([([1], []), ([], []), ([], [])]), Barrier(ATTEMPT, "split", 2, "t2", {0: 0, 1: 0})]
    assert "different counts" in played(events).failure.reason


def test_a_task_without_upstream_is_aligned():
    assert played([], channels=[]).aligned


def test_a_barrier_of_somebody_else_is_not_aligned():
    events = [Barrier(ATTEMPT, "split", task, f"t{task}") for task in range(4)]
    assert "which is no input" in played(events).failure.reason


def test_a_long_list_of_reasons_is_cut_short():
    channels = [(0, "split", task) for task in range(100)]
    assert played([], channels=channels).failure.reason.endswith("and 97 more")


def test_a_transaction_that_was_seen_already_is_refused():
    with pytest.raises(ValueError, match="not after the last one seen"):
        Alignment("count", 0, ATTEMPT, CHANNELS, last_txid=3)


def test_a_failed_barrier_wins_over_what_follows_from_it():
    events = [Barrier(ATTEMPT, "split", 0, "t0", {0: 9}, "stale feed"), ("split", 1, "x", 0, 1)]
    random.Random(1).shuffle(events)
    failure = played(events).failure
    assert (failure.kind, failure.component, failure.reason) == ("upstream", "count", "split[0]: stale feed")
