"""The provider of the example is a provider: it passes the contract, and runs topologies through crashes."""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from statefx import Checkpoint
from statefx.errors import StateCorruptedError
from statefx.state import EMPTY, StateProvider
from statefx.testing import Crash
from statefx.testing.provider_contract import StateProviderContract, keyvalue_machine, state_machine
from statefx.testing.site import Site, image
from tests.testing.topologies import Driver, lines, totals, words

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "custom_provider.py"
NAME = "custom_provider"
TRANSACTIONS = [lines("to be or not to be", "that is"), lines("the question", "to be")]


def loaded() -> ModuleType:
    """The example as a module that is found by its name, as on a worker."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(NAME, EXAMPLE)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    return sys.modules[NAME]


def made(folder: Path) -> Any:
    return loaded().SqliteStateProvider({"path": str(folder / "state.db")})


class Connection(sqlite3.Connection):
    """A connection that knows whether it was closed: Python 3.13 and later warn of one that was not."""

    closed = False

    def close(self) -> None:
        super().close()
        self.closed = True


class TestSqlite(StateProviderContract):
    @pytest.fixture
    def provider(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateProvider]:
        opened = []
        connect = sqlite3.connect

        def remembering(*arguments: Any, **options: Any) -> sqlite3.Connection:
            opened.append(connect(*arguments, factory=Connection, **options))
            return opened[-1]

        monkeypatch.setattr(sqlite3, "connect", remembering)
        yield made(place)
        assert [connection for connection in opened if not connection.closed] == [], "the contract left stores open"


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("machine_of", [state_machine, keyvalue_machine])
def test_any_order_of_events(place, machine_of):
    machine = machine_of(lambda: made(place))
    run_state_machine_as_test(machine, settings=settings(max_examples=15, stateful_step_count=30, deadline=None))


def test_a_reader_that_stays_open_goes_on_and_one_that_comes_too_late_is_sent_back_to_the_log(place):
    site = Site(made(place), place)
    version = site.commit(EMPTY, {b"a": b"1"})
    reader = site.open(version, read_only=True)
    assert image(reader) == {b"a": b"1"}
    site.commit(version, {b"a": b"2", b"b": b"2"})
    assert image(reader) == {b"a": b"2", b"b": b"2"}
    with pytest.raises(StateCorruptedError, match="is at transaction 2, not at 1") as caught:
        site.open(version, read_only=True)
    assert caught.value.missing, "what Checkpoint.state looks for before it tries again"
    site.close()


def test_a_file_that_was_lost_is_found_out(place):
    site = Site(made(place), place)
    version = site.commit(site.commit(EMPTY, {b"a": b"1"}), {b"a": b"2"})
    site.close()
    (place / "state.db").unlink()
    with pytest.raises(StateCorruptedError, match="is at transaction 0, not at 2"):
        site.open(version)


def drive(driver: Driver, place: Path, **arguments: Any) -> Any:
    config = {
        "topology.state.provider": f"{NAME}:SqliteStateProvider",
        "topology.state.provider.config": {"path": str(place / "state.db")},
    }
    return driver.start(totals(), config=config, **arguments)


@pytest.mark.slow
def test_a_topology_that_crashes_anywhere_goes_on(place):
    loaded()
    for at in range(1, 400, 3):
        with Driver(place, name=f"at-{at}") as driver:
            try:
                drive(driver, place, crash_at=at).run(TRANSACTIONS)
            except Crash:
                again = drive(driver, place)
                again.run(TRANSACTIONS)
                assert again.state("count") == words(TRANSACTIONS)
                assert again.state("total") == {"total": sum(words(TRANSACTIONS).values()), "txid": 2}
            else:
                break
    assert at > 50


@pytest.mark.slow
def test_state_is_moved_into_it_and_out_of_it(driver, place):
    loaded()
    path = {"path": str(place / "state.db")}
    driver.start(totals()).run(TRANSACTIONS[:1])
    Checkpoint(driver.folder).migrate(f"{NAME}:SqliteStateProvider", path)
    drive(driver, place).run(TRANSACTIONS)
    Checkpoint(driver.folder, {"topology.state.provider.config": path}).migrate("memory")
    assert driver.start(totals(), config={"topology.state.provider": "memory"}).state("count") == words(TRANSACTIONS)
