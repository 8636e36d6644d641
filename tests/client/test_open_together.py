"""Several open transactions of one client: order of commits, snapshots, conflicts; `begin`, `commit` and `abort`."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading

import pytest

from statefx import Checkpoint, TransactionalClient
from statefx.connectors import CollectSink
from statefx.errors import FencedError, TransactionConflictError, TransactionError, TransactionTimeoutError
from tests.client.ledgers import OPENING, client, entries
from tests.client.test_crashes import At
from tests.providers.redis_server import RedisServer
from tests.sinks.durable_steps import folder_and_database_steps
from tests.testing.lives import seeds


def seen(where, config=None, **options):
    sink = CollectSink()
    found = TransactionalClient(
        where / "ck",
        id="seen",
        sinks={"out": sink},
        schemas={"out": "word string"},
        state=["s"],
        config=config,
        **options,
    )
    return found, sink


def words(sink):
    return [row["word"] for row in sink.rows]


def committed(where, component="s", config=None):
    with Checkpoint(where / "ck", config).state(component) as state:
        return dict(state.items())


@pytest.fixture(params=["memory", "rocksdb", pytest.param("redis", marks=pytest.mark.server)])
def config(request):
    """Settings of each provider; Redis keeps the newest version alone."""
    if request.param != "redis":
        yield {"topology.state.provider": request.param}
        return
    with RedisServer(appendonly="no") as server:
        yield {"topology.state.provider": "redis", "topology.state.provider.config": {"url": server.url}}


# ---- begin, commit, abort


def test_begin_commit_and_abort_without_a_block(place):
    found, sink = seen(place)
    with found:
        t = found.begin()
        t.put("s", "a", 1)
        t.send("out", [("a",)])
        assert (found.committed, words(sink)) == (0, [])
        t.commit()
        assert (t.txid, found.committed, words(sink)) == (1, 1, ["a"])
        other = found.begin()
        other.put("s", "a", 2)
        other.send("out", [("b",)])
        other.abort("changed my mind")
        other.abort()
        for call in (other.commit, lambda: other.get("s", "a")):
            with pytest.raises(TransactionError, match=r"is aborted \(changed my mind\): begin another one"):
                call()
        for call in (t.commit, t.abort, lambda: t.put("s", "a", 3)):
            with pytest.raises(TransactionError, match="is committed: begin another one"):
                call()
    assert (committed(place), words(sink)) == ({"a": 1}, ["a"])


def test_a_block_whose_transaction_was_committed_or_aborted_in_it_is_left_as_it_is(place):
    found, _ = seen(place)
    with found:
        with found.transaction() as t:
            t.put("s", "a", 1)
            t.commit()
        with found.begin() as t:
            t.put("s", "b", 1)
        with pytest.raises(ValueError, match="no"), found.begin() as t:
            t.put("s", "c", 1)
            raise ValueError("no")
        with pytest.raises(ValueError, match="late"), found.begin() as t:
            t.put("s", "d", 1)
            t.commit()
            raise ValueError("late")
        assert repr(t) == "<Transaction #4, committed as 3>"
        assert found.committed == 3
    assert committed(place) == {"a": 1, "b": 1, "d": 1}


def test_a_commit_that_failed_in_its_block_was_told_already(place):
    found, _ = seen(place)
    with found, found.transaction() as t:
        t.put("s", "a", 1)
        with found.transaction() as other:
            other.put("s", "a", 2)
        with pytest.raises(TransactionConflictError):
            t.commit()
    assert committed(place) == {"a": 2}


# ---- several at a time


def test_transactions_are_committed_in_any_order_each_with_its_own_rows_and_keys(place, config):
    found, sink = seen(place, config)
    with found:
        opened = {name: found.begin() for name in "abcd"}
        for name, t in opened.items():
            t.put("s", name, name * 2)
            t.send("out", [(name,)])
        for name, t in opened.items():
            assert dict(t.state("s").items()) == {name: name * 2}, "its own, and nothing of the others"
        opened["c"].commit()
        opened["a"].commit()
        opened["d"].abort()
        opened["b"].commit()
        assert [opened[name].txid for name in "cab"] == [1, 2, 3]
        assert words(sink) == ["c", "a", "b"]
    assert committed(place, config=config) == {"a": "aa", "b": "bb", "c": "cc"}
    assert [(one.txid, str(one.state)) for one in Checkpoint(place / "ck").transactions()] == [
        (n, "COMMITTED") for n in (1, 2, 3)
    ]


def test_the_second_to_commit_a_key_has_a_conflict_and_leaves_nothing(place, config):
    found, sink = seen(place, config)
    with found:
        with found.transaction() as t:
            t.put("s", ("k", 1), 0)
        first, second = found.begin(), found.begin()
        for t in (first, second):
            t.put("s", ("k", 1), t.get("s", ("k", 1)) + 1)
            t.put("s", str(id(t)), 1)
            t.send("out", [(str(id(t)),)])
        second.commit()
        with pytest.raises(TransactionConflictError, match=r"key \('k', 1\) of 's' too\. Begin another one") as error:
            first.commit()
        assert (error.value.component, error.value.key) == ("s", ("k", 1))
        with found.transaction() as t:
            t.put("s", ("k", 1), t.get("s", ("k", 1)) + 1)
    assert committed(place, config=config) == {("k", 1): 2, str(id(second)): 1}
    assert words(sink) == [str(id(second))]


@pytest.mark.slow
def test_a_transaction_sees_state_as_it_was_when_it_began(place, config):
    found, _ = seen(place, config)
    with found:
        with found.transaction() as t:
            t.state("s").putAll({n: n for n in range(100)})
        before = dict.fromkeys(range(100))
        old = found.begin()
        state = old.state("s")
        up, down = state.items(), state.items(reverse=True)
        first, last = next(up), next(down)
        for n in range(0, 100, 3):
            with found.transaction() as t:
                t.delete("s", n)
                t.put("s", n + 1, "changed")
                t.put("s", n + 1000, "new")
        assert [first[0], *(key for key, _ in up)] == list(before)
        assert [last[0], *(key for key, _ in down)] == list(before)[::-1]
        assert dict(old.state("s").items(10, 20)) == {n: n for n in range(10, 20)}
        assert [old.get("s", n) for n in (0, 1, 2, 1000)] == [0, 1, 2, None]
        if config["topology.state.provider"] == "memory":
            assert len(state) == 100
        old.put("s", "mine", 1)
        old.commit()
        with found.transaction() as t:
            assert [t.get("s", n) for n in (0, 1, 2, 1000, "mine")] == [None, "changed", 2, "new", 1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_calls_does_what_a_model_of_snapshots_does(place, seed):
    """Against dicts: what each transaction reads, who conflicts, and what there is at the end."""
    rng, keys = random.Random(seed), list("abcdef")
    found, sink = seen(place, {"topology.state.provider": rng.choice(["memory", "rocksdb"])})
    state, changed_at, version, sent = {}, {}, 0, []
    opened = {}  # transaction -> its snapshot, its changes, its rows, the version it began at
    with found:
        for step in range(200):
            do = rng.choice(["begin", "put", "put", "delete", "get", "scan", "send", "commit", "abort"])
            if do == "begin" or not opened:
                if len(opened) < 4:
                    opened[found.begin()] = (dict(state), {}, [], version)
                continue
            t = rng.choice(list(opened))
            snapshot, changes, rows, began = opened[t]
            key = rng.choice(keys)
            shown = {name: value for name, value in (snapshot | changes).items() if value is not None}
            if do == "put":
                t.put("s", key, step)
                changes[key] = step
            elif do == "delete":
                assert t.delete("s", key) == shown.get(key)
                if key in shown:
                    changes[key] = None
            elif do == "get":
                assert t.get("s", key) == shown.get(key)
            elif do == "scan":
                assert list(t.state("s").items()) == sorted(shown.items())
            elif do == "send":
                t.send("out", [(str(step),)])
                rows.append(str(step))
            elif do == "abort":
                t.abort()
                del opened[t]
            else:
                del opened[t]
                if any(changed_at.get(name, 0) > began for name in changes):
                    with pytest.raises(TransactionConflictError):
                        t.commit()
                    continue
                t.commit()
                version += 1
                changed_at |= dict.fromkeys(changes, version)
                state = {name: value for name, value in (state | changes).items() if value is not None}
                sent += rows
    assert version > 5
    assert words(sink) == sent
    assert committed(place) == state


@pytest.mark.slow
def test_one_that_is_forgotten_is_rolled_back_and_nothing_is_kept_for_it(place):
    found, sink = seen(place)
    with found:
        t = found.begin()
        t.put("s", "a", 1)
        t.send("out", [("a",)])
        del t
        gc.collect()
        assert not found._session._open
        with found.transaction() as t:
            t.put("s", "b", 1)
    assert (committed(place), words(sink)) == ({"b": 1}, [])


@pytest.mark.slow
def test_threads_have_transactions_of_their_own_and_do_again_what_has_a_conflict(place):
    found, _ = seen(place)
    conflicts = []

    def count():
        for _ in range(20):
            while True:
                t = found.begin()
                t.put("s", "n", t.get("s", "n", 0) + 1)
                list(t.state("s").items())
                try:
                    t.commit()
                    break
                except TransactionConflictError:
                    conflicts.append(1)

    with found:
        threads = [threading.Thread(target=count) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert committed(place) == {"n": 60}


# ---- too late, and fenced


def test_a_timeout_is_told_by_every_call_of_the_transaction_it_is_of_and_of_no_other(place, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("statefx.client.session.time.monotonic", lambda: now[0])
    found, sink = seen(place, {"topology.transaction.timeout.secs": 10})
    with found:
        old = found.begin()
        old.put("s", "old", 1)
        kept = old.state("s")
        now[0] = 6.0
        young = found.begin()
        young.put("s", "young", 1)
        now[0] = 11.0
        calls = [
            lambda: old.get("s", "a"),
            lambda: old.put("s", "a", 1),
            lambda: old.delete("s", "a"),
            lambda: old.send("out", [("a",)]),
            lambda: old.state("s"),
            lambda: kept.get("not read yet"),
            lambda: list(kept.items()),
            old.commit,
        ]
        for call in calls:
            with pytest.raises(TransactionTimeoutError, match=r"timeout\.secs \(10\).*Begin another one.*raise that"):
                call()
        young.send("out", [("young",)])
        young.commit()
    assert (committed(place), words(sink)) == ({"young": 1}, ["young"])


def test_every_transaction_of_a_fenced_client_says_so(place, monkeypatch):
    monkeypatch.setattr("statefx.client.session._LOOK_SECS_MAX", 0.0)
    found, _ = seen(place)
    opened = [found.begin() for _ in range(3)]
    for n, t in enumerate(opened):
        t.put("s", n, n)
    seen(place)[0].close()
    calls = [found.begin, *(t.commit for t in opened), *(lambda t=t: t.get("s", 1) for t in opened)]
    for call in calls:
        with pytest.raises(FencedError, match="taken over"):
            call()
    found.close()
    assert Checkpoint(place / "ck").transactions() == []


# ---- crashes

MOVES = [("ann", "bob", 5), ("cid", "dan", 7)]


def interleave(where):
    """Two transfers that are open at one time, committed in the reverse order; what is done is not done again."""
    with contextlib.closing(client(where)) as found:
        opened = []
        for n, (source, target, amount) in enumerate(MOVES):
            t = found.begin()
            if t.get("progress", n):
                t.abort()
                continue
            t.put("progress", n, True)
            for account, change in ((source, -amount), (target, amount)):
                t.put("accounts", account, t.get("accounts", account, OPENING.get(account, 0)) + change)
            t.send("entries", [(n, source, -amount), (n, target, amount)])
            opened.append(t)
        lost = found.begin()
        lost.put("accounts", "ann", 10**6)
        lost.send("entries", [(99, "ann", 10**6)])
        for t in reversed(opened):
            t.commit()


def check_end(where):
    assert entries(where) == sorted(row for n, (a, b, m) in enumerate(MOVES) for row in ((n, a, -m), (n, b, m)))
    assert committed(where, "accounts") == {"ann": 15, "bob": 9, "cid": -7, "dan": 7}


@pytest.mark.slow
@pytest.mark.usefixtures("unseen")
def test_a_crash_at_any_step_while_several_are_open(place, stride):
    from statefx.testing import Crash

    for at in range(1 + next(seeds(0)) % stride, 1000, stride if stride == 1 else 2 * stride):
        where = place / str(at)
        where.mkdir()
        step = At(at)
        try:
            with folder_and_database_steps(step):
                interleave(where)
        except Exception:  # SQLAlchemy makes others of a crash in the middle of a statement
            if not step.hit:
                raise
        except Crash:
            pass
        gc.collect()
        if not step.hit:
            assert at > 60
            return
        assert sum(amount for _, _, amount in entries(where)) == 0
        interleave(where)
        check_end(where)
    raise AssertionError("there are more steps")


PROGRAM = """
import sys, pathlib
from tests.client.ledgers import client
from statefx.errors import TransactionConflictError

# Rounds of two transactions that are open at one time. Both add to "both": the one that commits second has a conflict,
# and is done again.
n_max = int(sys.argv[2])
with client(pathlib.Path(sys.argv[1])) as found:
    def work(t, n):
        t.put("progress", n, True)
        t.put("accounts", "both", t.get("accounts", "both", 0) + 1)
        t.send("entries", [(n, "both", 1)])
        return t
    with found.begin() as t:
        done = set(t.state("progress"))
    for n in range(0, n_max, 2):
        opened = [(m, work(found.begin(), m)) for m in (n, n + 1) if m not in done]
        for m, t in reversed(opened):
            try:
                t.commit()
            except TransactionConflictError:
                work(found.begin(), m).commit()
            print(m, flush=True)
"""


@pytest.mark.soak
def test_a_program_with_several_open_transactions_that_is_killed_counts_each_once(place):
    rng, most = random.Random(7), 40
    killed = 0
    for _ in range(40):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(place), str(most)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with process:
            for _ in range(rng.randrange(1, 8)):
                if not process.stdout.readline():
                    break
            else:
                threading.Event().wait(rng.random() * 0.02)  # somewhere within the next commit
                os.kill(process.pid, signal.SIGKILL)
            _, said = process.communicate(timeout=60)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said.decode()
        killed += 1
        assert [n for n, _, _ in entries(place)] == sorted({n for n, _, _ in entries(place)}), "no row twice"
    assert killed > 3
    assert [n for n, _, _ in entries(place)] == list(range(most))
    assert committed(place, "accounts") == {"both": most}
