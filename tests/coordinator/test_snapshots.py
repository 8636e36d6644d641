"""Which tasks are told to write a snapshot."""

from statefx.coordinator.state import SnapshotPolicy
from statefx.protocol.identity import SnapshotRef, Version


def snapshot(size_bytes):
    return SnapshotRef(Version(1, "a"), "sum", size_bytes)


def test_one_is_due_when_the_changelogs_have_outgrown_the_last():
    policy = SnapshotPolicy(min_bytes=100)
    assert policy.due({"count/0": 100}, {}) == frozenset()
    assert policy.due({"count/0": 101}, {}) == {"count/0"}
    assert policy.due({"count/0": 101}, {"count/0": snapshot(200)}) == frozenset()
    assert policy.due({"count/0": 201}, {"count/0": snapshot(200)}) == {"count/0"}
    assert policy.due({}, {}) == frozenset()


def test_the_most_overdue_are_told_first():
    policy = SnapshotPolicy(min_bytes=100, share=0.5)
    growth = {"count/0": 150, "count/1": 300, "count/2": 200, "count/3": 99}
    assert policy.due(growth, {}) == {"count/1", "count/2"}
    assert policy.due(growth, {"count/1": snapshot(1000)}) == {"count/0", "count/2"}


def test_tasks_that_grow_alike_are_told_a_few_in_each_transaction():
    policy = SnapshotPolicy()
    growth = {f"count/{task}": 0 for task in range(64)}
    newest, told = {}, []
    for txid in range(1, 200):
        due = policy.due(growth, newest)
        told.append(len(due))
        for name in growth:
            growth[name] += 5 << 20
        for name in due:
            growth[name], newest[name] = 5 << 20, snapshot(txid << 20)
    assert max(told) == 8
    assert len(newest) == 64
    assert max(growth.values()) < 5 * max(each.size_bytes for each in newest.values()), "none is left out"
