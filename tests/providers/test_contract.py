"""The conformance suite finds the providers it is there to find."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from statefx.errors import StateError, StatePhaseError
from statefx.state.contract.store import (
    EMPTY,
    Namespace,
    Prepared,
    StateContext,
    StateLocation,
    StateStore,
    Version,
    Write,
)
from statefx.testing.provider_contract import StateProviderContract, state_machine
from statefx.testing.site import Site
from statefx_memory import MemoryStateProvider


class Wrapped(StateStore):
    def __init__(self, store: StateStore) -> None:
        self.store = store

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.store.get(keys)

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self.store.scan(start, stop, reverse)

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        return self.store.prepare(txid, token, writes)

    def commit(self, txid: int, token: str) -> None:
        self.store.commit(txid, token)

    def rollback(self, txid: int, token: str) -> None:
        self.store.rollback(txid, token)

    def close(self) -> None:
        self.store.close()


class RefusesSecondCommit(Wrapped):
    done = False

    def commit(self, txid: int, token: str) -> None:
        if self.done:
            raise StatePhaseError("committed already")
        self.store.commit(txid, token)
        self.done = True


class LosesDeletes(Wrapped):
    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        return self.store.prepare(txid, token, [each for each in writes if each[1] is not None])


class ScansOutOfOrder(Wrapped):
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return iter(list(self.store.scan(start, stop, reverse))[::-1])


class IgnoresReverse(Wrapped):
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self.store.scan(start, stop)


class TurnsTheBoundsToo(Wrapped):
    """Excludes start and includes stop when it scans from the end."""

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        if not reverse:
            return self.store.scan(start, stop)
        rows = list(self.store.scan(start, None if stop is None else stop + b"\x00", reverse))
        return iter([row for row in rows if row[0] != start])


class ReadsAllForAFew(Wrapped):
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        rows = sorted(self.store.scan(None, None), reverse=reverse)
        return (row for row in rows if (start is None or row[0] >= start) and (stop is None or row[0] < stop))


class CommitsAtPrepare(Wrapped):
    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        prepared = self.store.prepare(txid, token, writes)
        self.store.commit(txid, token)
        return prepared


class IgnoresItsToken(Wrapped):
    """Names what it prepares itself, and says so."""

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        return self.store.prepare(txid, uuid.uuid4().hex, writes)


class HidesItsToken(Wrapped):
    """Names what it prepares itself, and does not say so."""

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        self.store.prepare(txid, uuid.uuid4().hex, writes)
        return Prepared(token)


class KeepsItsFirstToken(Wrapped):
    """Answers a second prepare with what the first one was given."""

    token = ""

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        self.token = self.token or token
        return self.store.prepare(txid, self.token, writes)


class Noted(Wrapped):
    def __init__(self, store: StateStore, provider: Knowing) -> None:
        super().__init__(store)
        self.provider = provider

    def commit(self, txid: int, token: str) -> None:
        self.provider.check(Version(txid, token))
        self.store.commit(txid, token)
        self.provider.commits.append(Version(txid, token))


class Knowing(MemoryStateProvider):
    """Knows what was committed, as a server does; of one namespace."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.commits = [EMPTY]

    def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
        return Noted(super().newState(namespace, replace(context, version=self.at(context.version))), self)

    def at(self, version: Version) -> Version:
        return version

    def check(self, version: Version) -> None:
        pass


class HidesWhatIsDecided(Knowing):
    def at(self, version: Version) -> Version:
        return version if version in self.commits else self.commits[-1]


class RefusesWhatIsCommitted(Knowing):
    def check(self, version: Version) -> None:
        if version in self.commits:
            raise StatePhaseError("committed already")


class ShowsTheNewest(Knowing):
    location = StateLocation.SERVER

    def at(self, version: Version) -> Version:
        return self.commits[-1] if version in self.commits else version


class TakesAnyBase(MemoryStateProvider):
    location = StateLocation.SERVER


def broken(kind: type[Wrapped] | type[MemoryStateProvider]) -> MemoryStateProvider:
    if not issubclass(kind, Wrapped):
        return kind({})

    class Broken(MemoryStateProvider):
        def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
            return kind(super().newState(namespace, context))

    return Broken({})


PASSED_OPEN = "test_a_store_that_others_pass_while_it_is_open_is_right_or_refuses"


@pytest.mark.parametrize(
    ("kind", "test", "arguments"),
    [
        (RefusesSecondCommit, "test_commit_again_changes_nothing", ()),
        (LosesDeletes, "test_any_bytes_can_be_deleted", ()),
        (ScansOutOfOrder, "test_any_bytes_are_a_key", ()),
        (IgnoresReverse, "test_scan_bounds", (None, None)),
        (IgnoresReverse, "test_scans_in_both_directions_at_once", ()),
        (TurnsTheBoundsToo, "test_scan_bounds", (b"", None)),
        (TurnsTheBoundsToo, "test_scan_bounds", (None, b"a")),
        pytest.param(ReadsAllForAFew, "test_a_scan_costs_what_is_read_of_it", (), marks=pytest.mark.soak),
        (CommitsAtPrepare, "test_what_is_prepared_is_invisible", ()),
        (IgnoresItsToken, "test_what_is_prepared_is_named_by_the_token_that_was_given", ()),
        (HidesItsToken, "test_what_is_prepared_is_named_by_the_token_that_was_given", ()),
        (KeepsItsFirstToken, "test_each_prepare_has_the_token_that_it_was_given", ()),
        (HidesWhatIsDecided, "test_what_is_decided_shows_before_it_is_committed", (False,)),
        (HidesWhatIsDecided, "test_what_is_decided_shows_before_it_is_committed", (True,)),
        (RefusesWhatIsCommitted, "test_a_commit_whose_report_was_lost_is_told_again", ()),
        (ShowsTheNewest, "test_a_version_that_others_have_passed_is_right_or_refused", (1,)),
        (ShowsTheNewest, "test_a_version_that_others_have_passed_is_right_or_refused", (2,)),
        (TakesAnyBase, "test_nothing_is_committed_on_a_version_that_others_have_passed", (1,)),
        (TakesAnyBase, "test_nothing_is_committed_on_a_version_that_others_have_passed", (2,)),
        (TakesAnyBase, PASSED_OPEN, ()),
    ],
)
def test_a_broken_provider_fails(kind: type[Any], test: str, arguments: tuple[Any, ...], tmp_path: Path) -> None:
    site = Site(broken(kind), tmp_path)
    with pytest.raises((AssertionError, StateError, pytest.fail.Exception)):
        getattr(StateProviderContract(), test)(site, *arguments)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        LosesDeletes,
        ScansOutOfOrder,
        TurnsTheBoundsToo,
        CommitsAtPrepare,
        IgnoresItsToken,
        HidesItsToken,
        KeepsItsFirstToken,
        HidesWhatIsDecided,
        RefusesWhatIsCommitted,
        ShowsTheNewest,
    ],
)
def test_a_broken_provider_fails_in_some_order_of_events(kind: type[Any]) -> None:
    # A seed and not `derandomize`: with that one, what is tried also depends on what else the process has imported, and
    # beside other files of tests 600 runs did not find what they find by themselves.
    machine = seed(5)(state_machine(lambda: broken(kind)))
    # With this seed each is found within 12 runs. What the first ones are depends on how many there may be.
    quick = settings(max_examples=60, deadline=None, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises((AssertionError, StateError)):
        run_state_machine_as_test(machine, settings=quick)
