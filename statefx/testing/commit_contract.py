"""What a state store shows around a commit: before it, when it is told again, when others have committed more."""

# ruff: noqa: D102  # the names of tests say what docstrings would

from __future__ import annotations

from collections.abc import Callable

import pytest

from statefx.errors import StateError
from statefx.state.contract.store import EMPTY, StateStore, Version
from statefx.testing.site import Site, after_parts, image, prepare, writes
from statefx.testing.store_contract import StoreContract


class CommitContract(StoreContract):
    """Tests of what the log has decided and the store may not know yet, or again; see `StateProviderContract`."""

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
        self._require(site, shared=True)
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
        self._require(site, shared=True)
        version, head = self._passed(site, behind)

        def committed(txid: int) -> None:
            store = site.open(version)
            store.commit(txid, prepare(store, txid, writes({b"a": b"lost", b"mine": b"lost"})))

        for txid in (2, head.txid, head.txid + 1):
            with pytest.raises(StateError):
                committed(txid)
        assert image(site.open(head)) == {b"a": b"%d" % (behind + 1), b"c": b"1"}

    def test_a_store_that_others_pass_while_it_is_open_is_right_or_refuses(self, site: Site) -> None:
        self._require(site, shared=True)
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
    def _require(site: Site, **wanted: bool) -> None:
        for name, value in wanted.items():
            if getattr(site.provider.capabilities, name) is not value:
                pytest.skip(f"for providers that are {'' if value else 'not '}{name}")
