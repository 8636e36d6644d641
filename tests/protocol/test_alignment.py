"""What a task and the driver accept: inputs that are aligned, and acks that fit together."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx.protocol.completeness import AckLedger, Alignment, Complete, Incomplete, LedgerEdge
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.reports import Ack, Barrier

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


# ---- acks


LEDGER_ATTEMPT = TransactionAttempt(3, 0)
# split (2) -fields-> count (3) -all-> total (2), and split -> total directly
EDGES = [LedgerEdge(0, "split", "count"), LedgerEdge(1, "count", "total", 2), LedgerEdge(2, "split", "total")]
WIDTH = {"split": 2, "count": 3, "total": 2}
TASKS = [TaskId(name, task) for name, width in WIDTH.items() for task in range(width)]


def run_of(tokens):
    """The acks of one clean run in which each task prepared under its token."""
    acks = []
    for name, task in TASKS:
        sources = {"split": [], "count": ["split"], "total": ["split", "count"]}[name]
        seen = {TaskId(source, number): tokens[source, number] for source in sources for number in range(WIDTH[source])}
        received = {"split": {}, "count": {0: 4}, "total": {1: 9, 2: 3}}[name]
        emitted = {"split": {0: 6, 2: 3}, "count": {1: 3}, "total": {}}[name]
        acks.append(Ack(LEDGER_ATTEMPT, name, task, tokens[name, task], seen, received, emitted))
    return acks


FIRST = {task: f"{task[0]}{task[1]}-first" for task in TASKS}


def judged(acks):
    ledger = AckLedger(LEDGER_ATTEMPT, TASKS, EDGES)
    for ack in acks:
        ledger.add(ack)
    return ledger.check()


@pytest.mark.slow
@given(st.permutations(run_of(FIRST)), st.data())
def test_a_clean_run_is_complete_in_any_order_and_however_often_its_acks_come(acks, data):
    again = data.draw(st.lists(st.sampled_from(acks)))
    verdict = judged([*acks, *again])
    assert isinstance(verdict, Complete)
    assert verdict.tokens == FIRST


@given(st.sampled_from(TASKS))
def test_a_missing_ack_is_named(task):
    verdict = judged([ack for ack in run_of(FIRST) if (ack.component, ack.task) != task])
    assert isinstance(verdict, Incomplete)
    assert (verdict.failure.kind, verdict.failure.component, verdict.failure.task) == ("missing", *task)


@pytest.mark.slow
@given(st.sampled_from(TASKS), st.data())
def test_a_task_that_acks_twice_makes_it_incomplete(task, data):
    """Of its two runs nobody knows which one the others have read."""
    acks = run_of(FIRST)
    other = next(replace(ack, token="other") for ack in acks if (ack.component, ack.task) == task)
    verdict = judged(data.draw(st.permutations([*acks, other])))
    assert isinstance(verdict, Incomplete)
    assert (verdict.failure.kind, verdict.failure.component, verdict.failure.task) == ("misaligned", *task)


@given(st.sampled_from([task for task in TASKS if task[0] != "split"]), st.data())
def test_a_consumer_that_saw_another_token_makes_it_incomplete(task, data):
    acks = run_of(FIRST)
    index = TASKS.index(task)
    source = data.draw(st.sampled_from(sorted(acks[index].seen)))
    acks[index] = replace(acks[index], seen={**acks[index].seen, source: "another"})
    verdict = judged(acks)
    assert isinstance(verdict, Incomplete)
    assert verdict.failure.kind == "misaligned"


@given(st.sampled_from(TASKS), st.sampled_from([-1, 1]))
def test_a_row_more_or_less_makes_it_incomplete(task, difference):
    acks = run_of(FIRST)
    index = TASKS.index(task)
    name = "received" if task[0] == "total" else "emitted"
    counts = dict(getattr(acks[index], name))
    edge = min(counts)
    counts[edge] += difference
    acks[index] = replace(acks[index], **{name: counts})
    assert isinstance(judged(acks), Incomplete)


def test_a_consumer_that_saw_no_barrier_of_a_source_makes_it_incomplete():
    acks = run_of(FIRST)
    seen = dict(acks[-1].seen)
    del seen["count", 1]
    verdict = judged([*acks[:-1], replace(acks[-1], seen=seen)])
    assert isinstance(verdict, Incomplete)
    assert "count[1]" in verdict.failure.reason


def test_acks_of_another_attempt_change_nothing():
    ledger = AckLedger(LEDGER_ATTEMPT, TASKS, EDGES)
    other = [replace(ack, attempt=TransactionAttempt(3, 1)) for ack in run_of(FIRST)]
    assert [ledger.add(ack) for ack in other] == [False] * len(TASKS)
    assert ledger.stale == other
    assert isinstance(ledger.check(), Incomplete)


def test_an_ack_of_a_task_nobody_knows_makes_it_incomplete():
    verdict = judged([*run_of(FIRST), Ack(LEDGER_ATTEMPT, "split", 2, "x", emitted={0: 1})])
    assert isinstance(verdict, Incomplete)


def test_an_ack_without_a_token_makes_it_incomplete():
    acks = run_of(FIRST)
    assert isinstance(judged([*acks[:-1], replace(acks[-1], token="")]), Incomplete)


def test_a_task_of_a_local_edge_has_only_the_source_task_of_its_number():
    tasks = [TaskId(name, task) for name in ("split", "count") for task in (0, 1)]
    acks = [Ack(LEDGER_ATTEMPT, "split", task, f"s{task}", emitted={0: 2}) for task in (0, 1)]
    acks += [
        Ack(LEDGER_ATTEMPT, "count", task, f"c{task}", {TaskId("split", task): f"s{task}"}, {0: 2}) for task in (0, 1)
    ]

    def verdict(local):
        ledger = AckLedger(LEDGER_ATTEMPT, tasks, [LedgerEdge(0, "split", "count", local=local)])
        for ack in acks:
            ledger.add(ack)
        return ledger.check()

    assert isinstance(verdict(local=True), Complete)
    assert isinstance(verdict(local=False), Incomplete)
