"""Tests of state stores: reading, phases, isolation, and what they show around a commit."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from statefx.errors import ConfigError, StateClosedError, StateCorruptedError, StateError, StatePhaseError
from statefx.state.contract.store import EMPTY, StateLocation, StateProvider, StateStore, Version
from statefx.testing.contract import Contract
from statefx.testing.site import Site, after_parts, image, prepare, writes

TOKEN = "f" * 32
"""Chosen by the caller, as every token is."""

KEYS = [b"", b"\x00", b"\x00\x00", b"\x00a", b"\x01", b"a", b"a\x00", b"a\x00b", b"ab", b"\x7f", b"\xff", b"\xff\xff"]
"""Keys that prefixes, terminators and reserved names trip over; in order."""


class StoreContract(Contract):
    """Tests of stores of one task; see `StateProviderContract`."""

    @pytest.fixture
    def provider(self) -> StateProvider:
        """Return the provider under test."""
        raise NotImplementedError("a subclass of StateProviderContract defines the fixture 'provider'")

    @pytest.fixture
    def site(self, provider: StateProvider, tmp_path: Path) -> Iterator[Site]:
        """Return a new checkpoint at its first generation."""
        site = Site(provider, tmp_path)
        site.start(1)
        yield site
        site.close()

    # ---- reading

    def test_empty_state_holds_nothing(self, site: Site) -> None:
        store = site.open()
        assert store.get([b"a", b""]) == [None, None]
        assert store.get([]) == []
        assert image(store) == {}

    def test_get_answers_in_the_order_asked_also_when_asked_twice(self, site: Site) -> None:
        version = site.commit(EMPTY, {b"a": b"1", b"b": b"2"})
        assert site.open(version).get([b"b", b"x", b"a", b"b"]) == [b"2", None, b"1", b"2"]

    def test_any_bytes_are_a_key(self, site: Site) -> None:
        expected = {key: b"value of " + key for key in KEYS}
        store = site.open(site.commit(EMPTY, expected))
        assert image(store) == expected
        assert list(dict(store.scan(None, None))) == KEYS
        assert store.get([b"\x00\x00\x00", b"a\x00\x00"]) == [None, None]

    def test_any_bytes_can_be_deleted(self, site: Site) -> None:
        version = site.commit(EMPTY, dict.fromkeys(KEYS, b"1"))
        version = site.commit(version, dict.fromkeys(KEYS[::2], None))
        assert list(image(site.open(version))) == KEYS[1::2]

    def test_an_empty_value_is_not_absent(self, site: Site) -> None:
        store = site.open(site.commit(EMPTY, {b"a": b""}))
        assert store.get([b"a"]) == [b""]
        assert image(store) == {b"a": b""}

    @pytest.mark.parametrize("start", [None, *KEYS[::3], b"b"])
    @pytest.mark.parametrize("stop", [None, *KEYS[::4], b"b"])
    def test_scan_bounds(self, site: Site, start: bytes | None, stop: bytes | None) -> None:
        store = site.open(site.commit(EMPTY, dict.fromkeys(KEYS, b"1")))
        inside = [key for key in KEYS if (start is None or key >= start) and (stop is None or key < stop)]
        assert [key for key, _ in store.scan(start, stop)] == inside
        assert [key for key, _ in store.scan(start, stop, reverse=True)] == inside[::-1]

    def test_scans_in_both_directions_at_once(self, site: Site) -> None:
        expected = [(b"%04d" % number, b"%d" % number) for number in range(3000)]
        store = site.open(site.commit(EMPTY, dict(expected)))
        both = zip(store.scan(None, None), store.scan(None, None, reverse=True), strict=True)
        assert list(both) == list(zip(expected, reversed(expected), strict=True))

    def test_a_scan_costs_what_is_read_of_it(self, site: Site) -> None:
        keys = [b"%06d" % number for number in range(30_000)]
        store = site.open(site.commit(EMPTY, dict.fromkeys(keys, b"1")))
        assert len(list(store.scan(None, None))) == len(keys)  # whoever sorts at the first scan has done it

        def all_rows() -> None:
            assert len(list(store.scan(None, None))) == len(keys)

        def few_rows(reverse: bool) -> None:
            for at in few:
                rows = store.scan(keys[at], keys[at + 10], reverse)
                assert [key for key, _ in rows] == sorted(keys[at : at + 10], reverse=reverse)
                assert next(iter(store.scan(None, keys[at + 10], reverse)))[0] == keys[at + 9 if reverse else 0]

        few = range(0, 30_000, 300)
        bound = len(few) / 4 * _least_secs(all_rows)
        for reverse in (False, True):
            took = _least_secs(partial(few_rows, reverse))
            assert took < bound, "short scans read much more than they yield"

    def test_a_hundred_thousand_keys_in_one_transaction(self, site: Site) -> None:
        expected = {b"key-%08d" % number: b"%d" % number for number in range(100_000)}
        version = site.commit(EMPTY, expected)
        store = site.open(version)
        assert image(store) == expected
        assert len(list(store.scan(b"key-00008000", b"key-00024577"))) == 16_577
        version = site.commit(version, {key: None for number, key in enumerate(expected) if number % 3})
        assert len(image(site.open(version))) == 33_334

    def test_values_of_a_megabyte(self, site: Site) -> None:
        expected = {b"%d" % number: bytes([number]) * (1 << 20) for number in range(9)}
        assert image(site.open(site.commit(EMPTY, expected))) == expected

    # ---- phases

    def test_what_is_prepared_is_invisible(self, site: Site) -> None:
        version = site.commit(EMPTY, {b"a": b"1"})
        store = site.open(version)
        prepare(store, 2, writes({b"a": b"2", b"b": b"2"}))
        assert image(store) == {b"a": b"1"}
        assert image(site.open(version)) == {b"a": b"1"}

    def test_commit_is_visible_to_the_store_that_commits(self, site: Site) -> None:
        store = site.open()
        for txid in range(1, 4):
            token = prepare(store, txid, writes({b"a": b"%d" % txid, b"b%d" % txid: b"1", b"b%d" % (txid - 1): None}))
            store.commit(txid, token)
            assert image(store) == {b"a": b"%d" % txid, b"b%d" % txid: b"1"}

    def test_commit_from_a_fresh_store(self, site: Site) -> None:
        token = prepare(site.open(), 1, writes({b"a": b"1"}))
        store = site.open()
        store.commit(1, token)
        assert image(store) == {b"a": b"1"}
        assert image(site.open(Version(1, token))) == {b"a": b"1"}

    def test_commit_again_changes_nothing(self, site: Site) -> None:
        version = site.commit(EMPTY, {b"a": b"1"})
        store = site.open(version)
        store.commit(1, version.token)
        store.commit(1, version.token)
        assert image(store) == {b"a": b"1"}

    def test_a_transaction_that_changes_nothing(self, site: Site) -> None:
        version = site.commit(site.commit(EMPTY, {b"a": b"1"}), {})
        assert image(site.open(version)) == {b"a": b"1"}

    def test_prepare_twice_in_one_store_is_as_once(self, site: Site) -> None:
        store = site.open()
        first = store.prepare(1, TOKEN, writes({b"a": b"1"}))
        assert store.prepare(1, TOKEN, writes({b"a": b"1"})) == first
        store.commit(1, TOKEN)
        assert image(store) == {b"a": b"1"}

    def test_prepare_under_another_token_while_one_is_prepared_is_refused(self, site: Site) -> None:
        store = site.open()
        token = prepare(store, 1, writes({b"a": b"1"}))
        with pytest.raises(StatePhaseError):
            prepare(store, 1, writes({b"a": b"2"}))
        store.commit(1, token)
        assert image(store) == {b"a": b"1"}

    def test_what_is_prepared_is_named_by_the_token_that_was_given(self, site: Site) -> None:
        """The rows of the transaction carry it already, and the log will name it."""
        assert site.open().prepare(1, TOKEN, writes({b"a": b"1"})).token == TOKEN
        assert image(site.open(Version(1, TOKEN))) == {b"a": b"1"}
        site.open().commit(1, TOKEN)
        assert image(site.open(Version(1, TOKEN))) == {b"a": b"1"}

    def test_each_prepare_has_the_token_that_it_was_given(self, site: Site) -> None:
        store = site.open()
        dropped, first, second = (uuid.uuid4().hex for _ in range(3))
        assert store.prepare(1, dropped, writes({b"a": b"dropped"})).token == dropped
        store.rollback(1, dropped)
        assert store.prepare(1, first, writes({b"a": b"1"})).token == first
        store.commit(1, first)
        assert store.prepare(2, second, writes({b"b": b"2"})).token == second
        store.commit(2, second)
        assert image(store) == image(site.open(Version(2, second))) == {b"a": b"1", b"b": b"2"}

    def test_prepare_of_the_next_while_one_is_prepared_is_refused(self, site: Site) -> None:
        store = site.open()
        prepare(store, 1, writes({b"a": b"1"}))
        with pytest.raises(StatePhaseError):
            prepare(store, 2, writes({b"a": b"2"}))

    def test_prepare_at_or_below_the_committed_txid_is_refused(self, site: Site) -> None:
        store = site.open(site.commit(site.commit(EMPTY, {}), {}))
        for txid in (0, 1, 2):
            with pytest.raises(StatePhaseError):
                prepare(store, txid, [])

    def test_two_stores_prepare_side_by_side_and_the_one_named_counts(self, site: Site) -> None:
        first, second = site.open(), site.open()
        tokens = [prepare(first, 1, writes({b"a": b"1"})), prepare(second, 1, writes({b"b": b"2"}))]
        assert tokens[0] != tokens[1]
        first.commit(1, tokens[1])
        assert image(first) == {b"b": b"2"}
        assert image(site.open(Version(1, tokens[1]))) == {b"b": b"2"}

    def test_commit_of_another_token_for_a_committed_txid_is_refused(self, site: Site) -> None:
        tokens = [prepare(site.open(), 1, writes({b"a": name})) for name in (b"1", b"2")]
        store = site.open()
        store.commit(1, tokens[0])
        with pytest.raises(StateError):
            store.commit(1, tokens[1])
        assert image(store) == {b"a": b"1"}

    def test_commit_of_what_was_never_prepared_is_refused(self, site: Site) -> None:
        store = site.open(site.commit(EMPTY, {b"a": b"1"}))
        with pytest.raises((StatePhaseError, StateCorruptedError)):
            store.commit(2, "0" * 32)
        assert image(store) == {b"a": b"1"}

    def test_commit_of_an_older_txid_is_refused(self, site: Site) -> None:
        first = site.commit(EMPTY, {b"a": b"1"})
        store = site.open(site.commit(first, {b"a": b"2"}))
        with pytest.raises(StatePhaseError):
            store.commit(1, first.token)
        assert image(store) == {b"a": b"2"}

    def test_rollback_twice_is_a_no_op_and_the_txid_can_be_prepared_again(self, site: Site) -> None:
        store = site.open()
        first = prepare(store, 1, writes({b"a": b"1"}))
        store.rollback(1, first)
        store.rollback(1, first)
        assert image(store) == {}
        second = prepare(store, 1, writes({b"b": b"2"}))
        assert second != first
        store.commit(1, second)
        assert image(store) == {b"b": b"2"}

    def test_rollback_in_a_fresh_store_names_only_its_token(self, site: Site) -> None:
        kept, dropped = (prepare(site.open(), 1, writes({b"a": name})) for name in (b"kept", b"dropped"))
        store = site.open()
        store.rollback(1, dropped)
        store.rollback(1, "0" * 32)
        site.open().commit(1, kept)
        assert image(site.open(Version(1, kept))) == {b"a": b"kept"}

    def test_rollback_never_undoes_a_commit(self, site: Site) -> None:
        store = site.open()
        token = prepare(store, 1, writes({b"a": b"1"}))
        store.commit(1, token)
        with pytest.raises(StatePhaseError):
            store.rollback(1, token)
        assert image(store) == {b"a": b"1"}
        assert image(site.open(Version(1, token))) == {b"a": b"1"}

    def test_what_is_changed_after_prepare_is_not_in_it(self, site: Site) -> None:
        changes = writes({b"a": b"1"})
        store = site.open()
        token = prepare(store, 1, changes)
        changes.append((b"b", b"2"))
        store.commit(1, token)
        assert image(store) == {b"a": b"1"}

    # ---- lifecycle

    def test_close_twice_and_use_after_close(self, site: Site) -> None:
        store = site.open(site.commit(EMPTY, {b"a": b"1"}))
        rows = store.scan(None, None)
        store.close()
        store.close()
        for call in (
            lambda: store.get([b"a"]),
            lambda: list(store.scan(None, None)),
            lambda: list(rows),
            lambda: prepare(store, 2, []),
            lambda: store.commit(1, ""),
            lambda: store.rollback(1, ""),
            store.snapshot,
        ):
            with pytest.raises(StateClosedError):
                call()

    def test_a_read_only_store_refuses_every_change(self, site: Site) -> None:
        version = site.commit(EMPTY, {b"a": b"1"})
        token = prepare(site.open(version), 2, [])
        before = site.files()
        store = site.open(version, read_only=True)
        assert image(store) == {b"a": b"1"}
        for call in (lambda: prepare(store, 2, []), lambda: store.commit(2, token), lambda: store.rollback(2, token)):
            with pytest.raises(StatePhaseError):
                call()
        assert site.files() == before

    def test_opening_changes_and_deletes_nothing(self, site: Site) -> None:
        version = site.commit(EMPTY, {b"a": b"1"})
        prepared = prepare(site.open(version), 2, writes({b"a": b"2"}))
        before = site.files()
        image(site.open(version))
        assert site.files() == before
        store = site.open(version)
        store.commit(2, prepared)
        assert image(store) == {b"a": b"2"}

    def test_the_provider_survives_pickling(self, provider: StateProvider, tmp_path: Path) -> None:
        again = pickle.loads(pickle.dumps(provider))
        assert again.options == provider.options
        site = Site(again, tmp_path)
        assert image(site.open(site.commit(EMPTY, {b"a": b"1"}))) == {b"a": b"1"}
        site.close()

    def test_an_unknown_option_is_refused_on_the_driver(self, provider: StateProvider) -> None:
        with pytest.raises(ConfigError, match="no_such_option"):
            type(provider)({**provider.options, "no_such_option": 1})

    # ---- isolation

    @pytest.mark.parametrize("names", [("a", "ab"), ("a", "a.b"), ("a-1", "a"), ("x:1", "x")])
    def test_a_name_that_begins_like_another_is_another_namespace(self, site: Site, names: tuple[str, str]) -> None:
        versions = [site.commit(EMPTY, {b"k": name.encode()}, component=name) for name in names]
        for name, version in zip(names, versions, strict=True):
            assert image(site.open(version, component=name)) == {b"k": name.encode()}

    def test_tasks_are_namespaces(self, site: Site) -> None:
        tokens = [prepare(site.open(task=task), 1, writes({b"k": b"%d" % task})) for task in (0, 1, 10)]
        for task, token in zip((0, 1, 10), tokens, strict=True):
            store = site.open(task=task)
            store.commit(1, token)
            assert image(store) == {b"k": b"%d" % task}

    def test_lineages_share_a_machine_and_not_state(self, site: Site, tmp_path: Path) -> None:
        version = site.commit(EMPTY, {b"k": b"1"})
        other = Site(site.provider, tmp_path / "other")
        other.root.mkdir()
        other.cache = site.cache
        assert image(other.open()) == {}
        theirs = other.commit(EMPTY, {b"k": b"2"})
        assert image(other.open(theirs)) == {b"k": b"2"}
        assert image(site.open(version)) == {b"k": b"1"}
        other.close()

    # ---- decided, not yet committed

    @pytest.mark.parametrize("read_only", [False, True])
    def test_what_is_decided_shows_before_it_is_committed(self, site: Site, read_only: bool) -> None:
        """So ``preCommit`` sees what was prepared."""
        version = site.commit(EMPTY, {b"a": b"1", b"b": b"1"})
        token = prepare(site.open(version), 2, writes({b"a": b"2", b"b": None, b"c": b"2"}))
        store = site.open(Version(2, token), read_only=read_only)
        assert image(store) == {b"a": b"2", b"c": b"2"}
        assert store.get([b"c", b"b", b"a"]) == [b"2", None, b"2"]
        assert list(store.scan(b"b", None)) == [(b"c", b"2")]
        assert image(site.open(version)) == {b"a": b"1", b"b": b"1"}

    def test_what_is_decided_is_committed_by_a_store_that_shows_it(self, site: Site) -> None:
        version = site.commit(EMPTY, {b"a": b"1"})
        decided = Version(2, prepare(site.open(version), 2, writes({b"a": b"2"})))
        reader, store = site.open(decided, read_only=True), site.open(decided)
        for _ in range(2):
            store.commit(*after_parts(decided))
            assert image(store) == image(reader) == image(site.open(decided)) == {b"a": b"2"}

    # ---- told again

    def test_a_commit_whose_report_was_lost_is_told_again(self, site: Site) -> None:
        """By a store at the version before, which knows nothing of it."""
        version = site.commit(EMPTY, {b"a": b"1", b"b": b"1"})
        token = prepare(site.open(version), 2, writes({b"a": b"2", b"b": None}))
        for _ in range(3):
            store = site.open(version)
            store.commit(2, token)
            assert image(store) == {b"a": b"2"}
            store.close()
        assert image(site.open(Version(2, token))) == {b"a": b"2"}

    # ---- others have committed more

    @pytest.mark.parametrize("behind", [1, 2])
    def test_a_version_that_others_have_passed_is_right_or_refused(self, site: Site, behind: int) -> None:
        """Never is what they have committed shown as that version."""
        self._require(site, StateLocation.SERVER)
        version, _ = self._passed(site, behind)
        reads: list[Callable[[StateStore], object]] = [
            lambda store: store.get([b"a", b"b"]) == [b"1", b"1"],
            lambda store: list(store.scan(None, None)) == [(b"a", b"1"), (b"b", b"1")],
        ]
        for read in reads:
            for read_only in (False, True):
                try:
                    right = read(site.open(version, read_only=read_only))
                except StateError:
                    continue
                assert right, f"a later version was shown, {read_only=}"

    @pytest.mark.parametrize("behind", [1, 2])
    def test_nothing_is_committed_on_a_version_that_others_have_passed(self, site: Site, behind: int) -> None:
        self._require(site, StateLocation.SERVER)
        version, head = self._passed(site, behind)

        def committed(txid: int) -> None:
            store = site.open(version)
            store.commit(txid, prepare(store, txid, writes({b"a": b"lost", b"mine": b"lost"})))

        for txid in (2, head.txid, head.txid + 1):
            with pytest.raises(StateError):
                committed(txid)
        assert image(site.open(head)) == {b"a": b"%d" % (behind + 1), b"c": b"1"}

    def test_a_store_that_others_pass_while_it_is_open_is_right_or_refuses(self, site: Site) -> None:
        self._require(site, StateLocation.SERVER)
        version = site.commit(EMPTY, {b"a": b"1"})
        store = site.open(version)
        assert image(store) == {b"a": b"1"}
        after = site.commit(version, {b"a": b"2"})
        for read in (lambda: store.get([b"a"]), lambda: [value for _, value in store.scan(None, None)]):
            try:
                found = read()
            except StateError:
                continue
            assert found == [b"1"]
        with pytest.raises(StateError):
            store.commit(2, prepare(store, 2, writes({b"a": b"lost"})))
        assert image(site.open(after)) == {b"a": b"2"}

    # ---- what the tests above share, and those of other modules

    @staticmethod
    def _passed(site: Site, behind: int) -> tuple[Version, Version]:
        """Return a version, and the one that is the head by now."""
        version = head = site.commit(EMPTY, {b"a": b"1", b"b": b"1"})
        for number in range(2, behind + 2):
            head = site.commit(head, {b"a": b"%d" % number, b"b": None, b"c": b"1"})
        return version, head

    @staticmethod
    def _require(site: Site, location: StateLocation) -> None:
        if site.provider.location is not location:
            pytest.skip(f"for providers that keep state in a {location.value}")


def _least_secs(run: Callable[[], None]) -> float:
    """Return the least of three times: a machine that stands still in one of them says nothing."""
    found = []
    for _ in range(3):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)
