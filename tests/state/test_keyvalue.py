"""What a bolt sees of its state: reads, writes, iteration, and what it may hold on to."""

import math
import random
from collections import namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statefx import KeyValueState
from statefx.errors import CodecError, StateClosedError, StateCorruptedError, StatePhaseError
from statefx.state import StateStore
from statefx.state.contract.spaces import Space
from statefx.state.encoding.keys import key_encoder
from statefx.state.view.changes import ENTRY_BYTES, MAX_KINDS
from statefx.testing.site import prepare

encode_key = key_encoder(Space.USER.value)  # as keys lie in a store


class Observed(StateStore):
    """A real store, and what was asked of it."""

    def __init__(self, store):
        self.store = store
        self.reads = []

    def get(self, keys):
        self.reads.append(list(keys))
        return self.store.get(keys)

    def scan(self, start, stop, reverse=False):
        return self.store.scan(start, stop, reverse)

    def prepare(self, txid, token, writes):
        return self.store.prepare(txid, token, writes)

    def commit(self, txid, token):
        self.store.commit(txid, token)

    def rollback(self, txid, token):
        self.store.rollback(txid, token)

    def close(self):
        self.store.close()


@pytest.fixture
def observed(checkpoint):
    return Observed(checkpoint.store())


def commit(state, txid):
    state.prepareCommit(txid)
    state.commit(txid)


MANY_KEYS = [
    *(None, False, True, -(10**40), -1, 0, 1, 10**40, -1.5, 0.0, 1.0, math.inf, Decimal(1), Decimal("1.5")),
    *("", "\0", "a", "a\0", "a\0b", "ab", "é", b"", b"\0", b"a", b"a\0", b"\xff"),
    *(date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), (), (None,), (True,), (1,), (1.0,), ("a", (b"\0", 1))),
]


def typed(pairs):
    return [(repr(key), value) for key, value in pairs]


def test_put_get_and_delete(state):
    assert state.get("a") is None
    assert state.get("a", 0) == 0
    state.put("a", 1)
    assert state.get("a") == 1
    state.put("a", 2)
    assert state.delete("a") == 2
    assert state.delete("a") is None
    assert state.get("a", 7) == 7


def test_a_stored_none_is_not_a_missing_key(state):
    for step in range(3):
        state.put("a", None)
        assert state.get("a", 7) is None
        assert "a" in state
        assert state.getAll(["a", "b"]) == {"a": None}
        assert list(state.items()) == [("a", None)]
        commit(state, step + 1)
        assert state.get("a", 7) is None
    assert "b" not in state
    assert state.delete("a") is None
    assert "a" not in state


@pytest.mark.parametrize("stage", ["open", "prepared", "committed", "reopened"])
def test_keys_of_every_kind_keep_apart_at_every_stage(checkpoint, stage):
    state = checkpoint.open()
    for number, key in enumerate(MANY_KEYS):
        state.put(key, number)
    if stage != "open":
        state.prepareCommit(1)
    if stage in ("committed", "reopened"):
        state.commit(1)
    if stage == "reopened":
        state.close()
        state = checkpoint.open(state.version)
    assert typed(state.items()) == typed(zip(MANY_KEYS, range(len(MANY_KEYS)), strict=True))
    assert [state.get(key) for key in MANY_KEYS] == list(range(len(MANY_KEYS)))
    assert typed(state.getAll(MANY_KEYS).items()) == typed(state.items())
    if stage == "prepared":
        state.commit(1)
    for number, key in enumerate(MANY_KEYS):
        assert state.delete(key) == number
    assert list(state.items()) == []
    state.close()


def test_keys_that_are_equal_and_of_one_type_are_one_key(state):
    summer = datetime(2024, 7, 1, 12, tzinfo=UTC)
    for txid, (one, other, shown) in enumerate(
        [
            (-0.0, 0.0, "0.0"),
            (Decimal("1.00"), Decimal("1.0"), "Decimal('1')"),
            (summer, summer.astimezone(timezone(timedelta(hours=2))), repr(summer)),
            (("a", -0.0), ("a", 0.0), "('a', 0.0)"),
        ],
        start=1,
    ):
        state.put(one, "first")
        state.put(other, "second")
        assert state.get(one) == "second"
        commit(state, txid)
        assert [(repr(key), value) for key, value in state.items()] == [(shown, "second")]
        assert state.delete(other) == "second"


def test_tuples_of_more_shapes_than_are_told_apart_by_type(state):
    shapes = list(product((1, 1.0, True), repeat=4))
    assert len(shapes) > MAX_KINDS
    for txid in (1, 2):
        for number, key in enumerate(shapes):
            assert state.get(key) == (None if txid == 1 else number)
            state.put(key, number)
        assert [state.get(key) for key in shapes] == list(range(len(shapes)))
        state.prefetch(shapes)
        commit(state, txid)
    assert len(list(state.items())) == len(shapes)


def test_both_hours_of_a_clock_change_are_keys(state):
    first = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    state.put(first, 1)
    state.put(first.replace(fold=1), 2)
    assert [state.get(first), state.get(first.replace(fold=1))] == [1, 2]
    assert state.get(datetime(2024, 10, 27, 1, 30, tzinfo=UTC)) == 2


@pytest.mark.parametrize(
    "key", [math.nan, Decimal("sNaN"), [1], {}, "\ud800", datetime(2024, 1, 1), ("a", [1]), object()]
)
def test_what_is_no_key_is_refused_by_every_call_at_once(state, key):
    calls = [
        lambda: state.get(key),
        lambda: state.put(key, 1),
        lambda: state.delete(key),
        lambda: key in state,
        lambda: state.getAll([key]),
        lambda: state.prefetch([key]),
        lambda: state.items(key),
        lambda: state.items(None, key),
    ]
    for call in calls:
        with pytest.raises(CodecError):
            call()
    assert list(state.items()) == []


def test_a_refused_value_names_its_key_and_changes_nothing(state):
    state.put("a", 1)
    with pytest.raises(CodecError, match=r"key 'a': value\[1\] is a set") as caught:
        state.put("a", [1, {2}])
    assert (caught.value.key, caught.value.path, caught.value.type) == ("'a'", "value[1]", "set")
    assert state.get("a") == 1


@pytest.mark.parametrize("stage", ["open", "prepared", "committed", "reopened"])
def test_changing_an_object_after_put_or_from_get_changes_no_state(checkpoint, stage):
    state = checkpoint.open()
    given_in = {"list": [1, [2]], "tuple": ([1],), "dict": {"a": [1]}}
    expected = {"list": [1, [2]], "tuple": ([1],), "dict": {"a": [1]}}
    state.putAll(given_in)
    given_in["list"][1].append(3)
    given_in["tuple"][0].append(3)
    given_in["dict"]["a"].append(3)
    if stage != "open":
        state.prepareCommit(1)
    if stage in ("committed", "reopened"):
        state.commit(1)
    if stage == "reopened":
        state.close()
        state = checkpoint.open(state.version)
    for _ in range(2):
        assert state.getAll(expected) == expected
        for read in (state.get, lambda key: state.getAll([key])[key], lambda key: dict(state.items())[key]):
            read("list")[1].append(4)
            read("tuple")[0].append(4)
            read("dict")["a"].append(4)
    state.close()


Word = namedtuple("Word", "word count")


def test_scalars_and_plain_tuples_come_back_of_their_type(state):
    for txid in (1, 2):
        for value in (True, 1, 1.0, "1", b"1", Decimal("1.00"), date.min, datetime.min, (1, "a"), [1], 2**70):
            state.put("a", value)
            assert (type(state.get("a")), state.get("a")) == (type(value), value)
            state.put("b", value)
        commit(state, txid)
        assert state.get("b") == 2**70
    state.put("a", Word("spark", 1))
    assert state.get("a").count == 1


def test_a_mutable_value_gives_way_to_a_scalar_and_back(state):
    for value in (1, [1], 2, None, [2], (3,), [3]):
        state.put("a", value)
        assert state.get("a") == value
    commit(state, 1)
    for value in (4, [4]):
        state.put("a", value)
        assert state.get("a") == value
        state.rollback()
        assert state.get("a") == [3]


@pytest.mark.parametrize("committed", [2, None, [2], "deleted"])
def test_what_was_remembered_gives_way_to_what_was_committed_later(state, committed):
    state.put("a", [1])
    commit(state, 1)
    assert state.get("a") == [1]
    if committed == "deleted":
        state.delete("a")
    else:
        state.put("a", committed)
    commit(state, 2)
    for change in (lambda: state.put("a", [3]), lambda: state.put("a", 3), lambda: state.delete("a")):
        assert state.get("a", "deleted") == committed
        change()
        state.rollback()
        assert state.get("a", "deleted") == committed


# ---- iteration


def test_items_merge_changes_over_what_was_committed_here_and_before(checkpoint):
    state = checkpoint.open()
    state.putAll({"a": "before", "b": "before", "c": "before", "d": "before"})
    commit(state, 1)
    state.close()
    state = checkpoint.open(state.version)
    state.putAll({"b": "here", "c": "here", "e": "here", "f": "here"})
    state.delete("d")
    commit(state, 2)
    state.putAll({"c": "open", "f": "open", "g": "open"})
    state.delete("e")
    merged = [("a", "before"), ("b", "here"), ("c", "open"), ("f", "open"), ("g", "open")]
    assert list(state.items()) == merged
    assert list(state.items("b", "f")) == merged[1:3]
    assert list(state.items(stop="b")) == merged[:1]
    assert list(state.items("f")) == merged[3:]


def test_items_of_an_empty_range(state):
    state.put(5, "five")
    assert list(state.items(6, 4)) == []
    assert list(state.items(5, 5)) == []
    assert list(state.items("a", "b")) == []
    commit(state, 1)
    assert list(state.items(6, 4)) == []
    assert list(state.items(5, 6)) == [(5, "five")]


def test_items_range_over_types_and_tuples(state):
    for key in [3, 20, -1, "a", ("a", 1), ("a", 2), ("b", 1), ("a",)]:
        state.put(key, None)
    assert [key for key, _ in state.items(0, "")] == [3, 20]
    assert [key for key, _ in state.items(("a",), ("b",))] == [("a",), ("a", 1), ("a", 2)]


def test_items_show_the_state_as_it_was_at_the_call(state):
    state.putAll({"a": 1, "b": 2, "c": 3})
    entries = state.items()
    assert next(entries) == ("a", 1)
    state.put("b", 0)
    state.delete("c")
    state.put("d", 4)
    state.prepareCommit(1)
    assert list(entries) == [("b", 2), ("c", 3)]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda state: state.commit(1), StatePhaseError),
        (lambda state: state.rollback(), StatePhaseError),
        (lambda state: state.close(), StateClosedError),
    ],
)
def test_items_do_not_go_on_over_another_version(state, end, error):
    state.putAll({"a": 1, "b": 2})
    state.prepareCommit(1)
    entries = state.items()
    assert next(entries) == ("a", 1)
    end(state)
    with pytest.raises(error):
        next(entries)


@pytest.mark.soak
@pytest.mark.daily(1)
@pytest.mark.slow
def test_a_hundred_thousand_keys_in_one_transaction(checkpoint):
    state = checkpoint.open()
    for number in range(100_000):
        state.put(number, number)
    commit(state, 1)
    state.close()
    state = checkpoint.open(state.version)
    state.put(50_000, -1)
    state.delete(99_999)
    entries = list(state.items())
    assert len(entries) == 99_999
    assert entries[50_000] == (50_000, -1)
    assert [key for key, _ in entries] == list(range(99_999))
    state.close()


# ---- many at once, and what is remembered


def test_get_all_reads_the_store_once_and_finds_what_is_there(observed):
    state = KeyValueState(observed)
    state.putAll({"a": 1, "b": [2]})
    commit(state, 1)
    state = KeyValueState(observed, version=state.version)
    state.put("c", 3)
    found = state.getAll(["c", "a", "b", "missing", 1])
    assert found == {"c": 3, "a": 1, "b": [2]}
    assert (len(found), "missing" in found, found.get("missing", 0), list(found)) == (3, False, 0, ["c", "a", "b"])
    assert len(observed.reads) == 1
    with pytest.raises(KeyError, match="missing"):
        found["missing"]
    assert state.getAll([]) == {}


def test_get_all_tells_keys_apart_by_type(state):
    state.put(1, "int")
    state.put(True, "bool")
    found = state.getAll([1, 1.0, True])
    assert [(type(key), value) for key, value in found.items()] == [(int, "int"), (bool, "bool")]
    assert found[1] == "int"
    assert 1.0 not in found


@pytest.mark.parametrize("seed", range(20))
def test_many_at_once_do_what_they_do_one_by_one(checkpoint_at, tmp_path, seed):
    """Puts and reads of plain keys of one type take a way of their own, also where changes and scans stand open."""
    chance = random.Random(seed)
    keys = chance.choice([list("abcdefgh"), list(range(8)), ["a", "b", "c", 1, 1.0, True, ("t", 1), ("t", True)]])
    many, single = (checkpoint_at(tmp_path / name).open() for name in ("many", "single"))
    seen = []
    for step in range(60):
        some = chance.sample(keys, chance.randint(0, len(keys)))
        match chance.randrange(6):
            case 0 | 1:
                values = {key: chance.choice([step, "text", None, (step, 1), [step]]) for key in some}
                if chance.random() < 0.5:  # of scalars alone
                    values = dict.fromkeys(some, step)
                many.putAll(values)
                for key, value in values.items():
                    single.put(key, value)
            case 2:
                for state, key in product((many, single), some[:2]):
                    state.delete(key)
            case 3:
                seen = [(many.items(), list(single.items()))]
            case 4 if chance.random() < 0.3:
                commit(many, step + 1)
                commit(single, step + 1)
                seen = []
            case _:
                for rows, expected in seen:
                    assert typed(rows) == typed(expected)
                seen = []
        found = many.getAll(some)
        expected = [(key, value) for key in some if (value := single.get(key, "absent")) != "absent"]
        assert typed(found.items()) == typed(expected)
        assert [found.get(key, "absent") for key in some] == [single.get(key, "absent") for key in some]
    assert typed(many.items()) == typed(single.items())
    for state in (many, single):
        state.close()


def test_what_get_all_returns_refuses_what_can_be_no_key(state):
    state.put("a", 1)
    for keys in (["a"], ["a", 1]):
        found = state.getAll(keys)
        for ask in (found.get, lambda key, found=found: key in found):
            with pytest.raises(CodecError):
                ask(["a"])


def test_put_all_refuses_a_key_before_it_is_prepared(state):
    with pytest.raises(CodecError):
        state.putAll({"good": 1, "\ud800": 2})
    state.putAll({"good": 3})
    state.prepareCommit(1)


def test_what_was_prefetched_is_not_read_again(observed):
    state = KeyValueState(observed)
    state.putAll({"a": 1, "b": [2], ("t", 1): 3, 1: 4})
    state.put(1.0, 5)
    commit(state, 1)
    state = KeyValueState(observed, version=state.version)
    observed.reads.clear()
    keys = ["a", "b", "missing", ("t", 1), ("missing",), 1, 1.0, "a"]
    state.prefetch(iter(keys))
    assert [sorted(read) for read in observed.reads] == [sorted({encode_key(key) for key in keys})]
    observed.reads.clear()
    assert [state.get(key, 0) for key in keys] == [1, [2], 0, 3, 0, 4, 5, 1]
    state.prefetch(keys)
    assert observed.reads == []


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_prefetch_shows_what_is_committed_and_hides_no_change(observed, cache_bytes):
    state = KeyValueState(observed, cache_bytes=cache_bytes)
    state.putAll(dict.fromkeys("abcdef", 1))
    commit(state, 1)
    state.putAll({"b": 2, "c": 2})
    state.delete("d")
    commit(state, 2)
    state.putAll({"c": 3, "e": [3], "g": [3]})
    state.delete("f")
    state.prefetch("abcdefg")
    expected = {"a": 1, "b": 2, "c": 3, "e": [3], "g": [3]}
    assert {key: state.get(key, "absent") for key in "abcdefg"} == expected | {"d": "absent", "f": "absent"}
    assert state.getAll(list("abcdefg")) == expected


def test_absent_keys_are_remembered_too(observed):
    state = KeyValueState(observed)
    assert state.get("a", 0) == state.get("a", 0) == 0
    assert len(observed.reads) == 1


@pytest.mark.parametrize("cache_bytes", [0, 300, 5000])
@pytest.mark.parametrize(
    "learn",
    [
        lambda state: state.prefetch(range(100)),
        lambda state: [state.prefetch([number]) for number in range(100)],
        lambda state: [state.get(number) for number in range(100)],
        lambda state: state.getAll(range(100)),
        lambda state: [state.put(number, "x" * 20) for number in range(100)] and commit(state, 2),
    ],
    ids=["prefetch at once", "prefetch one by one", "get", "getAll", "commit"],
)
def test_what_is_remembered_is_bounded(observed, cache_bytes, learn):
    state = KeyValueState(observed)
    for number in range(100):
        state.put(number, "x" * 20)
    commit(state, 1)
    state = KeyValueState(observed, version=state.version, cache_bytes=cache_bytes)
    learn(state)
    observed.reads.clear()
    for number in reversed(range(100)):
        assert state.get(number) == "x" * 20
    assert len(observed.reads) >= 100 - cache_bytes // ENTRY_BYTES


def test_changes_are_remembered_whatever_their_size(observed):
    state = KeyValueState(observed, cache_bytes=300)
    for number in range(100):
        state.put(number, [number])
    assert [state.get(number) for number in range(100)] == [[number] for number in range(100)]
    assert observed.reads == []
    state.prepareCommit(1)
    assert [state.get(number) for number in range(100)] == [[number] for number in range(100)]


def test_a_damaged_value_names_its_key(checkpoint):
    store = checkpoint.store()
    store.commit(1, prepare(store, 1, [(encode_key(("a", 1)), b"\xc1")]))
    state = KeyValueState(store)
    for read in (state.get, lambda key: state.prefetch([key]), lambda key: list(state.items())):
        with pytest.raises(StateCorruptedError, match=r"the value of key \('a', 1\)"):
            read(("a", 1))
    store.close()


# ---- against a model

few_keys = st.sampled_from([0, 1, True, 1.0, "a", "ab", b"a", ("a", 1), (1,), (True,), None, Decimal("1.0")])
few_values = st.sampled_from([None, 0, 1, "x", [1], (1,), ([1],), {"a": [1]}])
steps = st.one_of(
    st.tuples(st.just("put"), few_keys, few_values),
    st.tuples(st.just("get"), few_keys),
    st.tuples(st.just("delete"), few_keys),
    st.tuples(st.just("prefetch"), st.lists(few_keys)),
    st.tuples(st.just("prepare")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("rollback")),
    st.tuples(st.just("reopen")),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(steps, max_size=25), cache_bytes=st.sampled_from([0, 500, 1 << 20]))
def test_state_is_a_dict_that_can_be_prepared_committed_and_rolled_back(
    checkpoint_at, tmp_path_factory, script, cache_bytes
):
    checkpoint = checkpoint_at(tmp_path_factory.mktemp("checkpoint"))
    state = checkpoint.open(cache_bytes=cache_bytes)
    committed, prepared, now, txid = {}, None, {}, 1
    for name, *arguments in script:
        key = encode_key(arguments[0]) if name in ("put", "get", "delete") else None
        if name in ("put", "delete") and prepared is not None:
            with pytest.raises(StatePhaseError):
                getattr(state, name)(*arguments)
        elif name == "put":
            state.put(*arguments)
            now[key] = arguments[1]
        elif name == "get":
            assert state.get(arguments[0], "absent") == now.get(key, "absent")
        elif name == "delete":
            assert state.delete(arguments[0]) == now.pop(key, None)
        elif name == "prefetch":
            state.prefetch(arguments[0])
        elif name == "prepare" and prepared is None:
            state.prepareCommit(txid)
            prepared = dict(now)
        elif name == "commit" and prepared is not None:
            state.commit(txid)
            committed, prepared, txid = prepared, None, txid + 1
        elif name == "rollback":
            state.rollback()
            prepared, now = None, dict(committed)
        elif name == "reopen":
            state.close()
            state = checkpoint.open(state.version, cache_bytes=cache_bytes)
            prepared, now = None, dict(committed)
        assert [(encode_key(key), value) for key, value in state.items()] == sorted(now.items(), key=lambda e: e[0])
    state.close()
