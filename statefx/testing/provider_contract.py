"""The conformance suite that every state provider passes, shipped for those who write one."""

from __future__ import annotations

import time
from typing import Any

import pytest

from statefx.errors import StateClosedError, StatePhaseError
from statefx.state.contract.spaces import Space
from statefx.state.contract.store import EMPTY, Version
from statefx.state.encoding.keys import encode_key
from statefx.state.view.keyvalue import KeyValueState
from statefx.testing.durability_contract import DurabilityContract
from statefx.testing.provider_machines import keyvalue_machine, state_machine
from statefx.testing.site import Site


class StateProviderContract(DurabilityContract):
    """Everything that statefx relies on in a state provider, as pytest tests.

    Subclass it in a test module, and define the fixture ``provider``. Tests that don't apply to what the
    provider declares in its `Capabilities` are skipped. No test may be overridden.

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
        assert [store.count(space.value) for space in Space] in ([len(keys)] * 4, [None] * 4)
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

    def test_the_script_of_prepares_commits_and_rollbacks(self, site: Site) -> None:
        state = site.state()

        def reads(*expected: Any) -> None:
            assert tuple(state.get(key) for key in "abc") == expected
            assert dict(state.items()) == {k: v for k, v in zip("abc", expected, strict=True) if v is not None}

        state.putAll({"a": 1, "b": 2})
        state.prepareCommit(1)
        state.put("c", 3)
        reads(1, 2, 3)
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
        state.put("c", 3)
        reads(1, 2, 3)
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

    def test_writes_after_prepare_are_pending_after_commit(self, site: Site) -> None:
        state = site.state()
        state.put("a", 1)
        state.prepareCommit(1)
        state.put("a", 2)
        state.commit(1)
        assert state.get("a") == 2
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

    def test_items_merge_three_layers_in_key_order(self, site: Site) -> None:
        state = site.state()
        state.putAll(dict.fromkeys(range(0, 30, 2), "committed"))
        state.commit(_prepare(state, 1))
        state.putAll(dict.fromkeys(range(0, 30, 3), "prepared"))
        state.delete(2)
        state.prepareCommit(2)
        state.putAll(dict.fromkeys(range(0, 30, 5), "pending"))
        state.delete(4)
        expected = dict.fromkeys(range(6, 30, 2), "committed")
        expected.update(dict.fromkeys(range(0, 30, 3), "prepared"))
        expected.update(dict.fromkeys(range(0, 30, 5), "pending"))
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


def _prepare(state: KeyValueState[Any, Any], txid: int) -> int:
    state.prepareCommit(txid)
    return txid


__all__ = ["StateProviderContract", "keyvalue_machine", "state_machine"]
