"""Maps with a ttl: what is kept of an entry's time, what a change of the ttl does, and what is refused.

What is seen over time, for each provider, is in the contract of providers.
"""

from datetime import timedelta

import pytest

from statefx.errors import CodecError, StateCorruptedError, StateError, StatePhaseError
from statefx.state import Version
from statefx.state.contract.spaces import NameKind, end_of, head_of
from statefx.state.view import task_state
from statefx.state.view.task_state import TaskState

HEAD = head_of(NameKind.MAP, "recent")


def commit(state):
    txid = state.version.txid + 1
    state.prepareCommit(txid)
    state.commit(txid)
    return state.version


def reopened(checkpoint, state, clock_ms, **options):
    """Commit, and open what is committed at a time."""
    version = commit(state)
    state.close()
    return checkpoint.open(version, clock_ms=clock_ms, **options)


def stored(state):
    return [*state._store.scan(HEAD, end_of(HEAD))]


def test_every_form_of_values_keeps_its_time(checkpoint):
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=1).putAll({"plain": 1, "list": [1], "mark": b"\xc1\x00\x01"})
    state.map("recent", ttl=1).put("long", {"a": 1}, ttl=2)
    state = reopened(checkpoint, state, 999)
    recent = state.map("recent", ttl=1)
    assert recent.getAll(["plain", "list", "mark", "long"]) == {
        "plain": 1, "list": [1], "mark": b"\xc1\x00\x01", "long": {"a": 1}
    }  # fmt: skip
    state = reopened(checkpoint, state, 1000)
    recent = state.map("recent", ttl=1)
    assert dict(recent.items()) == {"long": {"a": 1}}
    assert [*recent.items(reverse=True)] == [("long", {"a": 1})]
    assert "plain" not in recent
    assert recent.delete("list") is None
    with pytest.raises(KeyError):
        del recent["mark"]
    with pytest.raises(TypeError, match="keep a count"):
        len(recent)
    state = reopened(checkpoint, state, 1200)
    state.map("recent", ttl=1)
    state = reopened(checkpoint, state, 1200)
    assert len(stored(state)) == 1, "what is over was removed"
    state.close()


@pytest.mark.parametrize("ttl", ["2 seconds", 2, 2.0, timedelta(seconds=2)])
def test_a_ttl_is_a_text_a_timedelta_or_seconds(checkpoint, ttl):
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=ttl).put("a", 1)
    state.map("other", ttl=1).put("a", 1, ttl=ttl)
    state = reopened(checkpoint, state, 1999)
    assert state.map("recent", ttl=ttl)["a"] == state.map("other", ttl=1)["a"] == 1
    state = reopened(checkpoint, state, 2000)
    assert not state.map("recent", ttl=ttl)
    assert not state.map("other", ttl=1)
    state.close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ttl": 0}, ValueError, r"state.map\('recent'\): a ttl is above 0"),
        ({"ttl": -1}, ValueError, "a ttl is above 0"),
        ({"ttl": timedelta(0)}, ValueError, "above 0, and not datetime"),
        ({"ttl": float("nan")}, ValueError, "a ttl is above 0"),
        ({"ttl": float("inf")}, ValueError, "at most 1,000 years"),
        ({"ttl": "soon"}, ValueError, "such as '10 minutes'"),
        ({"ttl": True}, TypeError, "a text such as '30 minutes', a timedelta, a Duration or seconds, not True"),
        ({"ttl": b"1"}, TypeError, "a timedelta, a Duration or seconds"),
        ({"ttl": 1, "touch": "never"}, ValueError, "touch is 'write' or 'read', not 'never'"),
        ({"touch": "read"}, ValueError, "needs a ttl="),
    ],
)
def test_what_is_no_ttl_is_refused_at_the_call(state, options, error, message):
    state._set_clock(0)
    with pytest.raises(error, match=message):
        state.map("recent", **options)


def test_what_is_no_ttl_of_an_entry_is_refused_and_puts_nothing(state):
    state._set_clock(0)
    recent = state.map("recent", ttl=1)
    for ttl, error in ((0, ValueError), ("soon", ValueError), ([], TypeError)):
        with pytest.raises(error, match=r"put\('a'\): a ttl is"):
            recent.put("a", 1, ttl=ttl)
    with pytest.raises(CodecError, match="'a'"):
        recent.put("a", object(), ttl=1)
    assert not recent


def test_a_map_is_taken_with_one_ttl_in_a_transaction(checkpoint):
    state = checkpoint.open(clock_ms=0)
    recent = state.map("recent", ttl=1)
    assert state.map("recent", ttl="1 second", touch="write") is recent
    for options in ({}, {"ttl": 2}, {"ttl": 1, "touch": "read"}):
        with pytest.raises(ValueError, match="with another ttl or touch"):
            state.map("recent", **options)
    state.map("plain")
    with pytest.raises(ValueError, match="with another ttl or touch"):
        state.map("plain", ttl=1)
    state.close()


def test_a_state_without_a_clock_has_no_ttl(state):
    with pytest.raises(StateError, match="no clock"):
        state.map("recent", ttl=1)


def test_a_map_that_gets_a_ttl_keeps_what_it_has_until_it_is_put_again(checkpoint):
    state = checkpoint.open(clock_ms=0)
    state.map("recent").putAll({"a": 1, "b": [1]})
    state = reopened(checkpoint, state, 10**12)
    recent = state.map("recent", ttl=1)
    assert dict(recent.items()) == {"a": 1, "b": [1]}
    recent.put("a", 2)
    state = reopened(checkpoint, state, 2 * 10**12)
    assert dict(state.map("recent", ttl=1).items()) == {"b": [1]}
    state.close()


def test_a_map_that_loses_its_ttl_says_so_and_can_be_cleared(checkpoint):
    """What is over must not come back, and what is not must not vanish."""
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=1).put("a", 1)
    state = reopened(checkpoint, state, 0)
    for read in (lambda map: map.get("a"), lambda map: dict(map.items()), lambda map: map.getAll(["a"])):
        with pytest.raises(StateCorruptedError, match=r"'a'.*open it with state.map\(name, ttl=...\)"):
            read(state.map("recent"))
    state.rollback()
    state.map("recent").deleteRange(None, None)
    state.map("recent").put("b", 1)
    state = reopened(checkpoint, state, 10**12)
    assert dict(state.map("recent").items()) == {"b": 1}
    state.close()


def test_another_ttl_counts_for_what_is_put_from_then_on(checkpoint):
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=10).put("old", 1)
    state = reopened(checkpoint, state, 0)
    state.map("recent", ttl=1).put("new", 1)
    state = reopened(checkpoint, state, 1000)
    assert dict(state.map("recent", ttl=1).items()) == {"old": 1}
    state.close()


def test_an_older_version_is_told_the_name_and_the_key(checkpoint_at, tmp_path):
    checkpoint, told = checkpoint_at(tmp_path), []
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=1).putAll({"a": 1, "b": [1]})

    def upgrade(version, key, value):
        told.append((version, key, value))
        return "new"

    state = reopened(checkpoint, state, 500, state_version=2, upgrade=upgrade)
    recent = state.map("recent", ttl=1)
    assert recent["a"] == "new"
    assert told == [(1, ("recent", "a"), 1)]
    assert recent["b"] == "new"
    recent.put("a", 5)
    state = reopened(checkpoint, state, 1000, state_version=2, upgrade=upgrade)
    assert dict(state.map("recent", ttl=1).items()) == {"a": 5}
    state.close()


@pytest.mark.parametrize("value", [1, [1]])
def test_a_read_moves_the_time_only_when_a_tenth_of_the_ttl_is_gone(checkpoint, value):
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=100, touch="read").put("a", value)
    state = reopened(checkpoint, state, 10_000)
    for read in (lambda map: map.get("a"), lambda map: map.getAll(iter(["a"])), lambda map: dict(map.items())):
        read(state.map("recent", ttl=100, touch="read"))
    state.prepareCommit(2)
    assert state.prepared_keys == 0
    state.commit(2)
    state._set_clock(10_001)
    recent = state.map("recent", ttl=100, touch="read")
    assert dict(recent.items()) == {"a": value}, "a scan moves nothing"
    assert recent.getAll(["a", "b"]) == {"a": value}
    recent.get("a")
    state.prepareCommit(3)
    assert state.prepared_keys == 2, "the entry, and its place in the index"
    state.commit(3)
    state._set_clock(110_000)
    assert state.map("recent", ttl=100, touch="read").get("a") == value
    state.close()


def test_who_only_reads_sees_what_is_alive_and_moves_nothing(checkpoint):
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=1).put("a", 1)
    state.map("gone", ttl=1).put("a", 1, ttl=0.1)
    state.map("plain").put("a", 1)
    version = commit(state)
    state.close()
    view = checkpoint.open(version, clock_ms=500, read_only=True)
    assert dict(view.map("recent", ttl=1, touch="read").items()) == {"a": 1}
    assert view.map("recent", ttl=1, touch="read").get("a") == 1
    assert [*view.names()] == ["plain", "recent"]
    with pytest.raises(StatePhaseError):
        view.map("recent", ttl=1, touch="read").put("a", 1, ttl=1)
    view.close()
    view = checkpoint.open(version, clock_ms=1000, read_only=True)
    assert dict(view.map("recent").items()) == {}, "without a ttl as well"
    assert dict(view.map("plain").items()) == {"a": 1}
    assert [*view.names()] == ["plain"]
    view.close()


def test_what_lives_on_over_transactions_is_over_at_its_time(checkpoint_at, tmp_path):
    """The state of a task that lives remembers entries, and forgets them when the first of them is over."""
    checkpoint = checkpoint_at(tmp_path)
    state = TaskState(checkpoint.store(), clock_ms=0)
    for txid in range(1, 40):
        recent = state.map("recent", ttl=1)
        for at in range(1, txid):
            left = (at - 1) * 100 + 1000 > (txid - 1) * 100
            assert recent.get(at) == (at if left else None)
            assert recent.get((at, "list")) == ([at] if left else None)
        recent.put(txid, txid)
        recent.put((txid, "list"), [txid])
        assert len(stored(state)) <= 1.5 * 2 * 10
        task_state.prepare(state, txid, f"t{txid}")
        version = Version(txid, f"t{txid}")
        state = task_state.succeeded(state, lambda version=version: checkpoint.store(version), txid * 100)
    task_state.close(state)


def test_what_was_put_again_is_not_removed_with_what_was_put_when_it_was_first(checkpoint_at, tmp_path):
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(clock_ms=0)
    for now, keys in ((0, "abd"), (100, "c"), (500, "a"), (1050, "b"), (1200, "")):
        state._set_clock(now)
        for key in keys:
            state.map("recent", ttl=1).put(key, [now] if key == "d" else now)
        commit(state)
        state.map("recent", ttl=1).get("a")
    state = reopened(checkpoint, state, 1200)
    assert len(stored(state)) == 2, "c and d are removed"
    assert dict(state.map("recent", ttl=1).items()) == {"a": 500, "b": 1050}
    state.close()


def test_what_was_rolled_back_removes_nothing_that_lives(checkpoint_at, tmp_path):
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=1).put("a", "long", ttl="1 day")
    commit(state)
    for then in (state.rollback, lambda: (state.prepareCommit(2), state.rollback())):
        state.map("recent", ttl=1).put("a", "short")
        then()
    state.map("recent", ttl=1).put("a", "short")
    state.prepareCommit(2)
    assert state.map("recent", ttl=1).get("a") == "short"
    state.rollback()
    state._set_clock(10_000)
    assert state.map("recent", ttl=1).get("a") == "long"
    commit(state)
    assert state.map("recent", ttl=1).get("a") == "long"
    assert len(stored(state)) == 1
    state.close()


def test_a_scan_goes_on_while_entries_are_put(checkpoint_at, tmp_path):
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(clock_ms=0)
    recent = state.map("recent", ttl=1)
    recent.putAll({number: number for number in range(5)})
    rows = recent.items()
    first = next(rows)
    recent.put(1, "new")
    recent.put(2, "new", ttl=5)
    recent.delete(3)
    recent.put(9, 9)
    assert [first, *rows] == [(number, number) for number in range(5)]
    assert dict(recent.items()) == {0: 0, 1: "new", 2: "new", 4: 4, 9: 9}
    state.close()


def counted_reads(state):
    """Return a list that gets each row that a scan of the store reads."""
    read, scan = [], state._store.scan
    state._store.scan = lambda *range: (read.append(row) or row for row in scan(*range))
    return read


def test_a_transaction_removes_a_bounded_number_of_entries(checkpoint_at, tmp_path):
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=10).putAll({number: number for number in range(2000)})
    state = reopened(checkpoint, state, 5000)
    read = counted_reads(state)
    state.map("recent", ttl=10).put("new", 1)
    commit(state)
    assert len(read) == 1, "nothing is due before the first entry of the index"
    state._set_clock(20_000)
    state.map("recent", ttl=10)
    for removed, places in ((1000, 2), (1000, 2), (1, 1)):
        del read[:]
        state.prepareCommit(state.version.txid + 1)
        assert state.prepared_keys == removed + places, "entries, and what the index has of them"
        assert len(read) <= places + 1
        state.commit(state.version.txid + 1)
    assert not stored(state)
    state.close()


def test_the_index_is_read_only_when_something_in_it_is_due(checkpoint_at, tmp_path):
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(clock_ms=0)
    read = counted_reads(state)
    for txid in range(1, 41):
        state._set_clock(txid * 100)
        state.map("recent", ttl=1).putAll({(txid, number): number for number in range(10)})
        state.map("recent", ttl=1).put("hot", txid)
        state.map("recent", ttl=1).put(("list", txid), [txid])
        state.prepareCommit(txid)
        state.commit(txid)
        if txid < 11:
            assert not read
    assert len(read) <= 40 * 2, "each entry of the index once, and the one behind what is due"
    assert 110 < len(stored(state)) <= 1.5 * 111
    state.close()


def test_a_key_that_is_put_all_the_time_is_in_the_index_once_a_sixth(checkpoint_at, tmp_path):
    checkpoint = checkpoint_at(tmp_path)
    state, written = checkpoint.open(clock_ms=0), []
    for txid in range(1, 61):
        state._set_clock(txid * 10)
        state.map("recent", ttl=0.6).put("hot", txid)
        state.prepareCommit(txid)
        written.append(state.prepared_keys)
        state.commit(txid)
    assert sorted(written) == [1] * 54 + [2] * 6
    state.close()


def test_more_than_a_task_remembers_is_put_into_the_index_again(checkpoint_at, tmp_path, monkeypatch):
    monkeypatch.setattr("statefx.state.view.time_index.INDEXED_MAX", 30)
    checkpoint = checkpoint_at(tmp_path)
    state = checkpoint.open(clock_ms=0)
    for txid in range(1, 60):
        state._set_clock(txid * 100)
        recent = state.map("recent", ttl=1)
        assert recent.get((txid - 10, 1)) is None
        assert recent.get((txid - 9, 1)) == (1 if txid > 9 else None)
        recent.putAll({(txid, number): number for number in range(10)})
        state.prepareCommit(txid)
        state.commit(txid)
        assert len(state._named[HEAD]._indexed) <= 30
    assert len(stored(state)) <= 1.5 * 100
    state.close()


def test_a_read_never_shortens_a_life(checkpoint):
    """Also where what was read is remembered no more, or was put by this process and its time is in the store alone."""
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=1).put("a", 1, ttl="1 day")
    state.map("recent", ttl=1).putAll({"b": 1, "c": 1})
    state = reopened(checkpoint, state, 900, cache_bytes=1)
    recent = state.map("recent", ttl=1, touch="read")
    assert recent.getAll(["a", "b"]) == {"a": 1, "b": 1}
    state = reopened(checkpoint, state, 1800)
    assert dict(state.map("recent", ttl=1).items()) == {"a": 1, "b": 1}
    state = reopened(checkpoint, state, 80_000_000)
    assert dict(state.map("recent", ttl=1).items()) == {"a": 1}
    state.close()


def succeeded(checkpoint, state, clock_ms):
    """Go on as a task that lives."""
    task_state.prepare(state, state.version.txid + 1, f"token-{state.version.txid + 1}")
    heir = task_state.succeeded(state, lambda: checkpoint.store(task_state.prepared(state)), clock_ms)
    assert heir is not None
    return heir


def test_what_was_removed_stays_gone_when_the_clock_is_set_back(checkpoint):
    state = TaskState(checkpoint.store(), clock_ms=0)
    state.map("recent", ttl=1, touch="read").put("a", [1])
    state = succeeded(checkpoint, state, 1200)
    assert state.map("recent", ttl=1, touch="read").get("a") is None
    state = succeeded(checkpoint, state, 500)
    assert not stored(state)
    recent = state.map("recent", ttl=1, touch="read")
    assert recent.get("a") is None
    assert dict(recent.items()) == {}
    task_state.close(state)


def test_a_clock_that_ran_ahead_hides_nothing_from_removal(checkpoint):
    state = TaskState(checkpoint.store(), clock_ms=10**12)
    state.map("recent", ttl=100).put("ahead", 1, ttl=1)
    for clock_ms in (10**12 + 2000, 10**12 + 4000, 0):
        state.map("recent", ttl=100)
        state = succeeded(checkpoint, state, clock_ms)
    for second in range(1, 60):
        state.map("recent", ttl=100).put(second, 1, ttl=1)
        state = succeeded(checkpoint, state, second * 1000)
    state.map("recent", ttl=100)
    assert len(stored(state)) < 10
    task_state.close(state)


def test_a_range_that_is_deleted_has_nothing_left(checkpoint):
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=1).putAll(dict.fromkeys(range(2000), 1))
    state.map("recent", ttl=1).put("alive", 1, ttl=9)
    state = reopened(checkpoint, state, 5000)
    assert state.map("recent", ttl=1).deleteRange(None, None) == 1
    state = reopened(checkpoint, state, 5000)
    assert not stored(state)
    state.close()


def test_a_scan_ends_with_the_time_that_it_began_at(checkpoint):
    state = checkpoint.open(clock_ms=0)
    state.map("recent", ttl=1).putAll({"a": 1, "b": 1})
    state = reopened(checkpoint, state, 0, read_only=True)
    rows = state.map("recent", ttl=1).items()
    assert next(rows) == ("a", 1)
    state._set_clock(1000)
    with pytest.raises(StatePhaseError, match="a refresh"):
        next(rows)
    state.close()
