"""The acker alone, on real state: what it says of trees, against a model with an entry for each tree."""

from __future__ import annotations

import random
from functools import reduce
from operator import xor
from types import SimpleNamespace

import pytest

from statefx.operators import acker as acker_module
from statefx.operators.acker import WIDTH, TreeEvent, began_ms_of
from statefx.protocol.messages import pack_outcome
from statefx.protocol.reports import TIMED_OUT, merged, root_of, task_of, txid_of
from statefx.runtime.trees import Trees
from tests.operators.acker_life import BEGIN_MS, TIMEOUT_MS, Life, batch_of


def held(*roots):
    return [(root, TreeEvent.HELD, root + 1, None) for root in roots]


def released(*roots):
    return [(root, TreeEvent.RELEASED, root + 1, None) for root in roots]


def expired_of(report):
    assert all(reason.startswith(TIMED_OUT) for reason in report.failed)
    return [root for roots in report.failed.values() for root in roots]


@pytest.fixture(params=["memory", "rocksdb"])
def life(request, tmp_path):
    return Life(tmp_path, request.param)


# ---- a model


class Model:
    """What Storm's acker does, with a dict of trees; a tree is the set of numbers that are held."""

    def __init__(self):
        self.trees = {}

    def copy(self):
        other = Model()
        other.trees = {root: {**tree, "held": set(tree["held"])} for root, tree in self.trees.items()}
        return other

    def transact(self, txid, said, now_ms):
        """Return roots that are acked, new ones, and those that have timed out."""
        acked, new = [], []
        for root, what in said.items():
            tree = self.trees.get(root)
            if tree is None and txid_of(root) != txid:
                continue
            if what["failed"]:
                self.trees.pop(root, None)
                continue
            if tree is None:
                tree = {"held": set(), "began": now_ms, "anew": 0, "id": None}
            tree["held"] ^= what["toggled"]
            if not tree["held"]:
                if self.trees.pop(root, None):
                    acked.append(root)
                continue
            if root not in self.trees:
                new.append(root)
                self.trees[root] = tree
            tree["anew"] = now_ms if what["reset"] else tree["anew"]
            tree["id"] = what["id"] or tree["id"]
        over = [root for root, tree in self.trees.items() if self.end_ms(tree) <= now_ms]
        for root in over:
            del self.trees[root]
        return sorted(acked), sorted(new), sorted(over)

    @staticmethod
    def end_ms(tree):
        return max(tree["began"], tree["anew"]) + TIMEOUT_MS

    def pending(self, spout):
        named = {root: tree["id"] for root, tree in self.trees.items() if tree["id"]}
        return sorted((root, id.partition(b"\0")[2]) for root, id in named.items() if id.startswith(spout + b"\0"))


def drawn(chance, txid, model, ended, resets):
    """Return what tasks say in a transaction, by root: of new trees, of those that go on, of some that have ended."""
    said = {}
    wide = chance.choice([3, WIDTH, 3 * WIDTH])
    new = [root_of(txid, chance.randrange(3), place) for place in range(chance.randrange(wide))]
    of_old = [root for root in model.trees if chance.random() < chance.choice([0.1, 0.9])]
    for root in {*new, *of_old, *chance.sample(ended, min(len(ended), 3))}:
        tree = model.trees.get(root, {"held": set()})
        releases = chance.choice([set(), set(tree["held"]), set(list(tree["held"])[:1])])
        holds = {chance.getrandbits(62) | 1 << 62 for _ in range(chance.choice([0, 0, 1, 2]))}
        said[root] = {
            "toggled": holds | releases,
            "failed": chance.random() < 0.1,
            "reset": chance.random() < resets,
            "id": b"spout/%d\0id-%d" % (task_of(root), root)
            if txid_of(root) < txid and chance.random() < 0.3
            else None,
        }
    return said


def id_of(root):
    return b"spout/%d\0id-%d" % (task_of(root), root)


def rows_of(chance, said):
    """Return what several tasks say, in any order; each says of the tuples that it has the XOR."""
    rows = []
    for root, what in said.items():
        parts = [[] for _ in range(3)]
        for number in what["toggled"]:
            chance.choice(parts).append(number)
        rows += [
            (root, chance.choice([TreeEvent.HELD, TreeEvent.RELEASED]), reduce(xor, part), None)
            for part in parts
            if part
        ]
        rows += [(root, TreeEvent.FAILED, 0, None)] * (what["failed"] * chance.randrange(1, 3))
        rows += [(root, TreeEvent.RESET, 0, None)] * (what["reset"] * chance.randrange(1, 3))
        rows += [(root, TreeEvent.ID, 0, what["id"])] if what["id"] else []
    chance.shuffle(rows)
    return rows


def play(seed, place):
    chance, model = random.Random(seed), Model()
    resets = chance.choice([0, 0.15, 0.6])
    life, now_ms, ended = Life(place, chance.choice(["memory", "memory", "rocksdb"])), BEGIN_MS, []
    for txid in range(1, chance.randrange(5, 25)):
        now_ms += chance.choice([0, 100, 5_000, 20_000])
        for is_rolled_back in (*[True] * (chance.random() < 0.2), False):
            after, said = model.copy(), drawn(chance, txid, model, ended, resets)
            rows = rows_of(chance, said)
            asked = chance.random() < 0.2
            rows += [(0, TreeEvent.ASK, 0, b"renamed/1\0spout/1")] * asked
            cut = chance.randrange(len(rows) + 1)
            report = life.attempt([batch_of(rows[:cut]), batch_of(rows[cut:])], now_ms)
            acked, new, over = after.transact(txid, said, now_ms)
            where = f"seed {seed}, transaction {txid}"
            assert sorted(report.acked) == acked, where
            assert sorted(report.held) == new, where
            assert sorted(expired_of(report)) == over, where
            assert {spout: sorted(trees) for spout, trees in report.pending.items()} == (
                {"renamed/1": model.pending(b"spout/1")} if asked else {}
            ), where
            ends = [Model.end_ms(tree) for tree in after.trees.values()]
            # Where trees begin anew, it may be of one that has ended since they were looked at.
            assert bool(ends) <= bool(report.due_ms) <= bool(ends or resets), where
            assert not report.due_ms or now_ms < report.due_ms <= min(ends, default=report.due_ms), where
            if is_rolled_back:
                life.restart()
                continue
            life.commit()
            ended += sorted(model.trees.keys() - after.trees.keys())
            model = after
        if chance.random() < 0.1:
            life.restart()
    assert len(dict(life.state.items())) == len({root // WIDTH for root in model.trees})


@pytest.mark.parametrize("lives", [15, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.soak])])
@pytest.mark.slow
def test_random_schedules_come_to_what_the_model_comes_to(tmp_path, lives):
    for seed in range(lives):
        play(seed, tmp_path / str(seed))


# ---- what is bounded


def test_more_than_a_transaction_may_let_time_out_follow_in_the_next_ones(life, monkeypatch):
    monkeypatch.setattr(acker_module, "EXPIRED_MAX", 100)
    monkeypatch.setattr(acker_module, "_SCANNED", 4)
    roots = [root_of(1, 0, place) for place in range(1000)]
    assert life.transact(held(*roots)).due_ms == BEGIN_MS + TIMEOUT_MS
    found, now_ms = [], BEGIN_MS + TIMEOUT_MS
    while len(found) < 1000:
        report = life.transact(now_ms=now_ms)
        assert 100 <= len(expired_of(report)) <= 100 + 4 * WIDTH or len(found) + len(expired_of(report)) == 1000
        assert report.due_ms == (now_ms if len(expired_of(report)) >= 100 else 0)
        found += expired_of(report)
    assert found == roots
    assert life.transact(now_ms=now_ms).due_ms == 0


def test_trees_that_begin_anew_without_end_do_not_keep_others_from_timing_out(life, monkeypatch):
    monkeypatch.setattr(acker_module, "EXPIRED_MAX", 10)
    monkeypatch.setattr(acker_module, "_SCANNED", 1)
    first = [root_of(1, 0, place) for place in range(10 * WIDTH)]
    second = [root_of(2, 0, place) for place in range(5)]
    life.transact(held(*first))
    life.transact(held(*second), BEGIN_MS + 1)
    late_ms = BEGIN_MS + TIMEOUT_MS - 1
    life.transact([(root, TreeEvent.RESET, 0, None) for root in first], late_ms)
    report = life.transact(now_ms=BEGIN_MS + TIMEOUT_MS + 1)
    assert expired_of(report) == second
    assert report.due_ms == late_ms + TIMEOUT_MS


def test_trees_that_began_anew_are_gone_through_once_until_one_of_them_may_be_over(life, monkeypatch):
    looks = []

    def noted(value):
        looks.append(value)
        return began_ms_of(value)

    monkeypatch.setattr(acker_module, "began_ms_of", noted)
    roots = [root_of(1, 0, place) for place in range(50 * WIDTH)]
    life.transact(held(*roots))
    anew_ms = BEGIN_MS + TIMEOUT_MS - 1
    life.transact([(root, TreeEvent.RESET, 0, None) for root in roots], anew_ms)
    due_ms = anew_ms + TIMEOUT_MS
    for later in range(10):
        assert life.transact(held(root_of(life.version.txid + 1, 0, 0)), anew_ms + 1 + later).due_ms == due_ms
    assert len(looks) < 60
    assert expired_of(life.transact(now_ms=due_ms)) == roots


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_ids_that_spouts_are_told_are_bounded_however_many_tasks_the_acker_has(tmp_path, monkeypatch, tasks):
    """A spout is told by all of them in one frame."""
    monkeypatch.setattr(acker_module, "PENDING_BYTES_MAX", 20_000)
    reports, roots = [], [root_of(1, 0, place) for place in range(1000)]
    for task in range(tasks):
        life = Life(tmp_path / str(task), tasks=tasks)
        life.transact(held(*roots))
        life.transact([(root, TreeEvent.ID, 0, b"spout/0\0%024d" % root) for root in roots])
        reports.append(life.transact([(0, TreeEvent.ASK, 0, b"spout/0\0spout/0")]))
    assert [roots.index(root) for root, _ in reports[0].pending["spout/0"]] == [*range(20_000 // 40 // tasks)]
    assert 15_000 < len(pack_outcome(3, merged(reports))) < 20_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "most"), [(1, 16), (WIDTH, 64)], ids=["all messages are held", "one of each block is"]
)
def test_a_tree_takes_at_most_64_bytes_of_state(life, step, most):
    roots = [root_of(7, 3, step * place) for place in range(5000)]
    life.transact(held(*roots))
    assert life.size_bytes() / len(roots) <= most
    ids = [(root, TreeEvent.ID, 0, b"messages/3\0%016d" % root) for root in roots]
    resets = [(root, TreeEvent.RESET, 0, None) for root in roots]
    life.transact(ids + resets)
    without_ids = life.size_bytes() - sum(len(data) for *_, data in ids)
    assert without_ids / len(roots) <= most


@pytest.mark.parametrize("tuples", [10, 10_000])
def test_a_tree_takes_as_much_state_however_many_tuples_are_held(life, tuples):
    """As many tasks as there are tuples hold one each, in one transaction, and release it in another one."""
    chance = random.Random(1)
    root, numbers = root_of(1, 0, 0), [chance.getrandbits(62) | 1 << 62 for _ in range(tuples)]
    life.transact([(root, TreeEvent.HELD, number, None) for number in numbers])
    assert life.size_bytes() == 32
    assert life.transact([(root, TreeEvent.RELEASED, number, None) for number in numbers]).acked == (root,)
    assert life.size_bytes() == 0


@pytest.mark.slow
@pytest.mark.parametrize("tuples", [10, 10_000])
def test_the_acker_is_told_as_much_of_a_tree_however_many_of_its_tuples_a_task_holds(life, tuples):
    root, before, after = root_of(1, 0, 0), *(Trees("bolt", by_hand=True, acker=True) for _ in range(2))
    kept = [SimpleNamespace() for _ in range(tuples)]
    for tup in kept:
        before.begin(tup, root)
    said = [before.rows()]
    for tup in kept:
        after.ack(tup)
    said += [after.rows()]
    assert [each.num_rows for each in said] == [1, 1]
    assert life.attempt(said[:1], BEGIN_MS).held == (root,)
    life.commit()
    assert life.attempt(said[1:], BEGIN_MS).acked == (root,)
