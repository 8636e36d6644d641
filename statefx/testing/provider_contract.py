"""The conformance suite that every state provider passes, shipped for those who write one."""

from __future__ import annotations

import copy
import random
import time
from typing import Any, Literal

import pytest

from statefx.errors import StateClosedError, StatePhaseError
from statefx.state.contract.spaces import NameKind, Space, end_of, head_of
from statefx.state.contract.store import EMPTY, Version
from statefx.state.encoding.keys import encode_key
from statefx.state.view.state import ExpiringMap
from statefx.state.view.task_state import KeyValueState
from statefx.testing.durability_contract import DurabilityContract
from statefx.testing.provider_machines import keyvalue_machine, state_machine
from statefx.testing.site import Site


class StateProviderContract(DurabilityContract):
    """Everything that statefx relies on in a state provider, as pytest tests.

    Subclass it in a test module, and define the fixture ``provider``. Tests that don't apply to the
    `StateLocation` of the provider are skipped. No test may be overridden.

    Examples
    --------
    ::

        class TestMyProvider(StateProviderContract):
            @pytest.fixture
            def provider(self):
                return MyProvider({})

        TestMyProviderInAnyOrder = state_machine(lambda: MyProvider({})).TestCase
        TestMyProviderUnderABolt = keyvalue_machine(lambda: MyProvider({})).TestCase
    """

    # ---- what a bolt sees: `KeyValueState` over the stores

    def test_absent_and_none_are_told_apart(self, site: Site) -> None:
        state = site.state()
        state.put("none", None)
        state.commit(_prepare(state, 1))
        assert state.get("absent") is None
        assert state.get("absent", 7) == 7
        assert state.get("none", 7) is None
        assert "none" in state
        assert state.delete("absent") is None

    def test_spaces_in_one_store_never_see_one_another(self, site: Site) -> None:
        keys = ["", "a", "\x7f", 0, -1, 1.5, None, True, b"", b"\xff", (), ("a", 1), ("a", 1, "\U0010ffff")]
        version = EMPTY
        for txid, space in enumerate(Space, 1):  # each puts the same keys, with a value of its own
            state = site.state(version, space=space)
            assert not state
            state.putAll(dict.fromkeys(keys, space.name))
            version = Version(txid, state.prepareCommit(txid))
            state.commit(txid)
            state.close()
        store = site.open(version)
        assert [store.count(space.value) for space in Space] in ([len(keys)] * len(Space), [None] * len(Space))
        for space in Space:
            state = site.state(version, space=space)
            state.put("z", "pending")  # what is not committed yet lies over the same range
            in_order = sorted([*keys, "z"], key=encode_key)
            expected = [(key, "pending" if key == "z" else space.name) for key in in_order]
            assert list(state.items()) == expected
            assert list(state.items(reverse=True)) == expected[::-1]
            assert list(state.items(None, "a")) == expected[: in_order.index("a")]
            assert list(state.items("a", None)) == expected[in_order.index("a") :]
            assert state.getAll(["a", "y"]) == {"a": space.name}
            assert state.get("\x7f") == space.name
            if store.count(space.value) is not None:
                assert len(state) == len(expected)
            state.close()

    def test_a_range_that_is_deleted_ends_with_its_space(self, site: Site) -> None:
        version = site.commit(
            EMPTY, {b"s8a": b"\x01", b"t8a": b"\x01", b"u8a": b"\x01", b"u8b": b"\x01", b"w8a": b"\x01"}
        )
        state = site.state(version)
        assert state.deleteRange(None, None) == 2
        txid = version.txid + 1
        token = state.prepareCommit(txid)
        state.commit(txid)
        assert not state
        state.close()
        assert list(dict(site.open(Version(txid, token)).scan(None, None))) == [b"s8a", b"t8a", b"w8a"]

    def test_what_is_kept_under_names_goes_with_the_state(self, site: Site) -> None:
        """Random calls on the state, two maps, a list and a value, against plain Python."""
        for seed in range(20):
            _random_names(random.Random(seed), site, f"names-{seed}")

    @pytest.mark.parametrize("touch", ["write", "read"])
    def test_an_entry_is_never_seen_when_its_time_has_passed(self, site: Site, touch: Literal["write", "read"]) -> None:
        """Random calls on a map with a ttl while time goes on, against plain Python; in the end nothing is left."""
        for seed in range(8):
            _ExpiringScript(random.Random(seed), site, f"ttl-{touch}-{seed}", touch).run()

    @pytest.mark.parametrize("opened", [1, 20, 100])
    def test_what_is_over_is_removed_a_few_entries_at_a_time(self, site: Site, opened: int) -> None:
        """Also where state is opened anew after so many transactions, and nothing is known of what was put before."""
        version, now, head = EMPTY, 0, head_of(NameKind.MAP, "recent")
        state = KeyValueState[Any, Any](site.open(), clock_ms=now)
        for txid in range(1, 61):
            if txid % opened == 0:
                state.close()
                state = KeyValueState[Any, Any](site.open(version), version=version, clock_ms=now)
            state._set_clock(now)
            recent = state.map("recent", ttl=1.0)
            for number in range(50):  # 10 transactions are alive at a time
                recent.put(f"{(txid * 50 + number) * 7919 % 100_003:06}", txid)
            state.commit(_prepare(state, txid))
            version, now = state.version, now + 100
            stored = sum(1 for _ in state._store.scan(head, end_of(head)))
            assert stored <= 1.5 * 50 * min(txid, 10)
        state.close()

    def test_names_are_apart_whatever_they_are(self, site: Site) -> None:
        names = ["a", "ab", "a b", "é", "\U0010ffff", "map", "n"]
        state = site.state()
        for name in names:
            state.map(name).put(name, 1)
            state.list(name).append(name)
            state.value(name).put(name)
        state.commit(_prepare(state, 1))
        again = site.state(state.version)
        assert not again
        assert list(again.names()) == list(again.names("list")) == list(again.names("value")) == sorted(names)
        for name in names:
            assert dict(again.map(name).items()) == {name: 1}
            assert [*again.list(name)] == [name]
            assert again.value(name).get() == name

    def test_a_name_for_each_key_is_refused(self, site: Site) -> None:
        state = site.state()
        for number in range(100):
            state.map(f"user-{number}").put("n", 1)
        with pytest.raises(TypeError, match=r"at most 100 maps, .*put \(key, part\) into one map"):
            state.list("user-100")

    def test_the_script_of_prepares_commits_and_rollbacks(self, site: Site) -> None:
        state = site.state()

        def reads(*expected: Any) -> None:
            assert tuple(state.get(key) for key in "abc") == expected
            assert dict(state.items()) == {k: v for k, v in zip("abc", expected, strict=True) if v is not None}

        state.putAll({"a": 1, "b": 2})
        state.prepareCommit(1)
        with pytest.raises(StatePhaseError, match="put while transaction 1 is prepared"):
            state.put("c", 3)
        reads(1, 2, None)
        state.rollback()
        reads(None, None, None)
        state.putAll({"a": 1, "b": 2})
        state.prepareCommit(1)
        state.commit(1)
        state.put("c", 3)
        state.rollback()
        reads(1, 2, None)
        state.put("c", 3)
        assert state.delete("b") == 2
        assert state.delete("c") == 3
        reads(1, None, None)
        state.prepareCommit(2)
        reads(1, None, None)
        state.commit(2)
        reads(1, None, None)
        state.put("b", 2)
        state.prepareCommit(3)
        with pytest.raises(StatePhaseError, match="delete while transaction 3 is prepared"):
            state.delete("a")
        reads(1, 2, None)
        state.rollback()
        reads(1, None, None)
        state.close()

    def test_put_and_rollback_twice_show_the_committed_image_both_times(self, site: Site) -> None:
        state = site.state()
        state.put("a", [1])
        state.commit(_prepare(state, 1))
        for _ in range(2):
            state["a"].append(2)
            state.put("a", [3])
            state.rollback()
            assert state.get("a") == [1]

    def test_nothing_can_be_changed_between_prepare_and_commit(self, site: Site) -> None:
        state = site.state()
        state.put("a", 1)
        state.prepareCommit(1)
        for change in (
            lambda: state.put("a", 2),
            lambda: state.putAll({"a": 2}),
            lambda: state.delete("a"),
            lambda: state.deleteRange(None, None),
            lambda: state.map("named").put("a", 2),
            lambda: state.list("named").append(2),
        ):
            with pytest.raises(StatePhaseError, match="while transaction 1 is prepared: commit it or roll it back"):
                change()
        assert state.get("a") == 1
        state.commit(1)
        state.put("a", 2)
        assert site.state(state.version).get("a") == 1
        state.rollback()
        assert state.get("a") == 1

    def test_commit_without_prepare_is_refused_and_commit_again_is_a_no_op(self, site: Site) -> None:
        state = site.state()
        with pytest.raises(StatePhaseError):
            state.commit(1)
        state.put("a", 1)
        state.commit(_prepare(state, 1))
        state.commit(1)
        with pytest.raises(StatePhaseError):
            state.prepareCommit(1)

    def test_prepare_twice_is_as_once_and_the_next_is_refused(self, site: Site) -> None:
        state = site.state()
        state.put("a", 1)
        token = state.prepareCommit(1)
        assert state.prepareCommit(1) == token
        with pytest.raises(StatePhaseError):
            state.prepareCommit(2)

    def test_items_merge_what_is_committed_and_what_is_changed_in_key_order(self, site: Site) -> None:
        state = site.state()
        state.putAll(dict.fromkeys(range(0, 30, 2), "opened"))
        state.commit(_prepare(state, 1))
        state.close()
        state = site.state(state.version)
        state.putAll(dict.fromkeys(range(0, 30, 3), "committed"))
        state.delete(2)
        state.commit(_prepare(state, 2))
        state.putAll(dict.fromkeys(range(0, 30, 5), "changed"))
        state.delete(4)
        expected = dict.fromkeys(range(6, 30, 2), "opened")
        expected.update(dict.fromkeys(range(0, 30, 3), "committed"))
        expected.update(dict.fromkeys(range(0, 30, 5), "changed"))
        assert list(state.items()) == sorted(expected.items())
        assert list(state.items(7, 16)) == sorted((k, v) for k, v in expected.items() if 7 <= k < 16)
        assert list(state.items(16, 7)) == []

    def test_a_scan_in_a_large_transaction_costs_what_is_read_of_it(self, site: Site) -> None:
        state = site.state()
        state.putAll(dict.fromkeys(range(20_000), 0))
        state.commit(_prepare(state, 1))
        state.putAll(dict.fromkeys(range(10_000, 30_000), 1))
        assert sum(value for _, value in state.items()) == 20_000
        began = time.perf_counter()
        assert len(list(state.items())) == 30_000
        all_secs = time.perf_counter() - began
        began = time.perf_counter()
        for key in range(30_000, 30_200):
            state.put(key, 1)
            assert [each for each, _ in state.items(key - 10, key + 10)] == list(range(key - 10, key + 1))
            assert next(state.items()) == (0, 0)
            assert next(state.items(reverse=True)) == (key, 1)
        assert time.perf_counter() - began < 50 * all_secs, "200 rows with short scans cost as much as 50 long ones"

    def test_every_type_comes_back_as_it_went_in(self, site: Site) -> None:
        keys = [None, False, True, -(2**70), -1, 0, 1, 2**70, -1.5, 1.0, "", "a", "a\x00", "é", b"", b"a\x00", (1, "a")]
        state = site.state()
        for at, key in enumerate(keys):
            state.put(key, {"at": at, "key": key})
        state.commit(_prepare(state, 1))
        again = site.state(state.version)
        found = list(again.items())
        assert [(type(key), key) for key, _ in found] == [(type(key), key) for key in keys]
        assert [value for _, value in found] == [{"at": at, "key": key} for at, key in enumerate(keys)]
        assert len(again.getAll(keys)) == len(keys)

    def test_committed_state_is_there_in_the_next_transaction(self, site: Site) -> None:
        version, expected = site.state().version, {}
        for txid in range(1, 6):
            state = site.state(version)
            for number in range(txid, txid + 3):
                expected[number] = state.get(number, 0) + 1
                state.put(number, expected[number])
            if txid == 4:
                state.delete(1)
                del expected[1]
            state.prepareCommit(txid)
            state.commit(txid)
            version = state.version
            state.close()
        assert dict(site.state(version).items()) == expected

    def test_use_after_close_is_refused(self, site: Site) -> None:
        state = site.state()
        state.close()
        state.close()
        with pytest.raises(StateClosedError):
            state.get("a")


class _ExpiringScript:
    """Random calls on a map with a ttl, and what they come to."""

    TTL_MS = 1000

    def __init__(self, chance: random.Random, site: Site, component: str, touch: Literal["write", "read"]) -> None:
        self.chance, self.site, self.component, self.touch = chance, site, component, touch
        self.now = 5_000
        self.found: dict[Any, tuple[Any, int]] = {}

    def open(self, version: Version) -> KeyValueState[Any, Any]:
        return KeyValueState(self.site.open(version, component=self.component), version=version, clock_ms=self.now)

    def map_of(self, state: KeyValueState[Any, Any]) -> ExpiringMap[Any, Any]:
        return state.map("recent", ttl=self.TTL_MS / 1000, touch=self.touch)

    def run(self) -> None:
        version, txid, committed = EMPTY, 0, self.found
        for _ in range(8):  # objects, one after the other
            state = self.open(version)
            for _ in range(self.chance.randint(1, 10)):
                self.now += self.chance.choice([1, 90, 150, 300, 700])
                state._set_clock(self.now)
                self.found = dict(committed)
                recent = self.map_of(state)
                for _ in range(self.chance.randint(0, 10)):
                    self.call(recent)
                assert dict(recent.items()) == self.alive()
                assert [*state.names()] == (["recent"] if self.alive() else [])
                if self.chance.random() < 0.3:
                    state.rollback()
                    continue
                state.prepareCommit(txid + 1)
                if self.chance.random() < 0.3:
                    assert dict(recent.items()) == self.alive(), "what is prepared is shown"
                    state.rollback()
                    continue
                txid += 1
                state.commit(txid)
                committed, version = self.found, state.version
            state.close()
        self.now += 100 * self.TTL_MS
        state = self.open(version)
        assert not self.map_of(state)
        state.commit(_prepare(state, txid + 1))
        assert [*state._store.scan(None, None)] == []
        state.close()

    def alive(self) -> dict[Any, Any]:
        return {key: value for key, (value, expiry) in self.found.items() if expiry > self.now}

    def call(self, recent: ExpiringMap[Any, Any]) -> None:
        key: Any = self.chance.choice(["a", "b", 1, 2, ("a", 1)])
        value: Any = self.chance.choice([1, "x", [2], (3, 4), None])
        alive = self.alive()
        match self.chance.randint(0, 9):
            case 0 | 1 | 2:
                recent.put(key, value)
                self.found[key] = value, self.now + self.TTL_MS
            case 3:
                secs = self.chance.choice([0.05, 0.5, 1.7])
                recent.put(key, value, ttl=secs)
                self.found[key] = value, self.now + round(secs * 1000)
            case 4:
                recent.putAll({"a": value, "b": value})
                self.found |= dict.fromkeys(("a", "b"), (value, self.now + self.TTL_MS))
            case 5 | 6:
                assert recent.get(key, "none") == alive.get(key, "none")
                self.read(key)
            case 7:
                assert recent.getAll(["a", key]) == {each: alive[each] for each in ("a", key) if each in alive}
                self.read("a")
                self.read(key)
            case 8:
                assert recent.delete(key) == alive.get(key)
                self.found.pop(key, None)
            case 9:
                recent.prefetch(["a", "b"])
                assert recent.deleteRange("a", "b") == ("a" in alive)
                self.found.pop("a", None)

    def read(self, key: Any) -> None:
        value, expiry = self.found.get(key, (None, 0))
        if self.touch == "read" and self.now < expiry < self.now + self.TTL_MS * 9 // 10:
            self.found[key] = value, self.now + self.TTL_MS


def _random_names(chance: random.Random, site: Site, component: str) -> None:
    committed: dict[str, Any] = {"own": {}, "a": {}, "b": {}, "list": [], "value": None}
    version, txid = EMPTY, 0
    for _ in range(8):  # objects, one after the other
        state = KeyValueState[Any, Any](site.open(version, component=component), version=version)
        for _ in range(chance.randint(1, 3)):
            found = copy.deepcopy(committed)
            maps: dict[str, Any] = {"own": state, "a": state.map("a"), "b": state.map("b")}
            for _ in range(chance.randint(0, 12)):
                _random_call(chance, state, maps, found)
            shown = {name: dict(entries.items()) for name, entries in maps.items()}
            assert {**shown, "list": [*state.list("list")], "value": state.value("value").get()} == found
            assert len(state.list("list")) == len(found["list"])
            assert [*reversed(state.list("list"))] == found["list"][::-1]
            if chance.random() < 0.3:
                state.rollback()
                continue
            state.prepareCommit(txid + 1)
            if chance.random() < 0.3:
                assert dict(maps["a"].items()) == found["a"], "what is prepared is shown"
                state.rollback()
                continue
            txid += 1
            state.commit(txid)
            committed, version = found, state.version
        state.close()


def _random_call(
    chance: random.Random, state: KeyValueState[Any, Any], maps: dict[str, Any], found: dict[str, Any]
) -> None:
    name, key, value = chance.choice(["own", "a", "b"]), chance.randint(0, 5), chance.choice([1, "x", [2]])
    match chance.randint(0, 5):
        case 0 | 1:
            maps[name].put(key, value)
            found[name][key] = value
        case 2:
            assert maps[name].delete(key) == found[name].pop(key, None)
        case 3:
            state.list("list").append(value)
            found["list"].append(value)
        case 4:
            keep = chance.randint(0, 4)
            assert state.list("list").truncate(keep) == max(0, len(found["list"]) - keep)
            found["list"] = found["list"][-keep:] if keep else []
        case 5:
            state.value("value").put(value)
            found["value"] = value


def _prepare(state: KeyValueState[Any, Any], txid: int) -> int:
    state.prepareCommit(txid)
    return txid


__all__ = ["StateProviderContract", "keyvalue_machine", "state_machine"]
