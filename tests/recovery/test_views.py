"""What `Checkpoint.state` gives: a view that can be refreshed, and that finds its provider by itself."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statefx import Checkpoint, Topology, TopologyBuilder
from statefx.errors import AmbiguousKeyError, CheckpointError, ConfigError, ProviderError, StateClosedError
from statefx.testing import rows
from statefx_memory import MemoryStateProvider
from statefx_redis import RedisStateProvider
from statefx_rocksdb import RocksDbStateProvider
from tests.bolts import WithState
from tests.testing.topologies import Driver, lines, words

WORK = [lines("to be or not to be", "that is"), lines("the question"), lines("to be")]


class CountWords(WithState):
    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup.value.split():
            self.state[word] = self.state.get(word, 0) + 1


def word_count_by_line() -> Topology:
    builder = TopologyBuilder("word-count")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("count", CountWords(), parallelism=2).shuffleGrouping("lines")
    return builder.createTopology()


class Placed(MemoryStateProvider):
    """Can't be opened without its option, which is ``secret`` unless it says otherwise."""

    kept: Any = None

    def __init__(self, options: Any) -> None:
        super().__init__({})
        self.options = dict(options)
        if options != {"where": "there"}:
            raise ConfigError(f"where must be there, got {dict(options)}")

    def public_options(self) -> Any:
        return super().public_options() if self.kept is None else self.kept


class Told(Placed):
    kept = {"where": "there"}


class Unwritable(Placed):
    kept = {"where": object()}


def driver_of(place: Path, provider: type) -> Driver:
    driver = Driver(place)
    driver.config["topology.state.provider"] = f"{__name__}:{provider.__name__}"
    driver.config["topology.state.provider.config"] = {"where": "there"}
    return driver


def test_a_view_is_refreshed_to_what_is_committed_by_then(driver):
    tester = driver.start()
    with Checkpoint(driver.folder).state("count") as view:
        assert (view.txid, view.refresh()) == (0, False)
        for txid, rows in enumerate(WORK, 1):
            tester.send(rows)
            assert dict(view.items()) == words(WORK[: txid - 1])
            entries = view.items()
            assert view.refresh()
            assert (view.txid, view.refresh()) == (txid, False)
            assert dict(view.items()) == words(WORK[:txid])
            assert len(view) == len(words(WORK[:txid]))
            if txid > 1:
                with pytest.raises(StateClosedError):
                    next(entries)
    with pytest.raises(StateClosedError, match="open another one"):
        view.refresh()


@pytest.mark.slow
def test_a_view_is_refreshed_to_what_a_tool_has_made_of_the_same_transaction(driver):
    tester = driver.start()
    tester.run(WORK[:1])
    tester.close()
    Checkpoint(driver.folder).savepoint("one")
    driver.start().run(WORK[:2])
    with Checkpoint(driver.folder).state("count") as view:
        table = pa.table({"key": ['"to"'], "value": ["70"]})
        Checkpoint(driver.folder).write("count", table, groupingKey=lambda key: key)
        assert view.refresh()
        assert (view.txid, dict(view.items())) == (2, {**words(WORK[:2]), "to": 70})
        Checkpoint(driver.folder).restore("one")
        assert view.refresh()
        assert (view.txid, dict(view.items())) == (1, words(WORK[:1]))
        assert not view.refresh()


def test_a_key_that_several_tasks_hold_is_never_shown_as_one(driver):
    """Each word is counted by the task that its line came to, and not by the one that has its key."""
    tester = driver.start(word_count_by_line())
    tester.send(lines("a x", "b x", "c x", "d x"))
    with Checkpoint(driver.folder).state("count") as view:
        assert view["a"] == 1
        for ask in (
            lambda: view["x"],
            lambda: dict(view.items()),
            lambda: list(view),
            lambda: list(view.keys()),
            lambda: len(view),
            lambda: list(view.items(reverse=True)),
        ):
            with pytest.raises(AmbiguousKeyError, match=r"tasks \[0, 1\] of 'count' all hold 'x'.*byTask=True"):
                ask()
        assert dict(view.items(stop="x")) == words([lines("a b c d")])
    with Checkpoint(driver.folder).state("count", byTask=True) as view:
        found = dict(view.items())
        assert {key: value for (task, key), value in found.items() if key != "x"} == words([lines("a b c d")])
        assert [task for task, key in found if key == "x"] == [0, 1]
        assert found[0, "x"] + found[1, "x"] == view[0, "x"] + view[1, "x"] == 4
        assert len(view) == len(found) == 6
        assert (0, "x") in view
        assert (2, "x") not in view
        assert view.get((1, "nothing")) is None
        with pytest.raises(TypeError, match=r"its keys are \(task, key\), not 'x'"):
            view["x"]
    with Checkpoint(driver.folder).state("count", 1, byTask=True) as view:
        assert {task for task, _ in view} == {1}


def test_a_view_that_can_not_be_refreshed_shows_what_it_did(driver, place):
    tester = driver.start()
    tester.send(WORK[0])
    with Checkpoint(driver.folder).state("count") as view:
        tester.send(WORK[1])
        (driver.folder / "transactions").rename(place / "away")
        with pytest.raises(CheckpointError):
            view.refresh()
        assert (view.txid, dict(view.items())) == (1, words(WORK[:1]))
        (place / "away").rename(driver.folder / "transactions")
        assert view.refresh()


def test_a_view_goes_both_ways_and_is_shown_in_short(driver):
    driver.start().send(WORK[0])
    with Checkpoint(driver.folder).state("count") as view:
        assert list(view.items(reverse=True)) == list(view.items())[::-1]
        assert list(view.items("be", "or", reverse=True)) == list(view.items("be", "or"))[::-1]
        assert repr(view) == "<StateView of 'count', all tasks, at transaction 1>"
    with Checkpoint(driver.folder).state("count", 1) as view:
        assert repr(view) == "<StateView of 'count', task 1, at transaction 1>"


def test_options_that_a_provider_calls_public_are_found_in_the_checkpoint(place):
    with driver_of(place, Told) as driver:
        driver.start().send(WORK[0])
        with Checkpoint(driver.folder).state("count") as view:
            assert dict(view.items()) == words(WORK[:1])


def test_others_are_not_written_and_have_to_be_given(place):
    with driver_of(place, Placed) as driver:
        driver.start().send(WORK[0])
        assert not any(b"there" in file.read_bytes() for file in (driver.folder / "transactions").iterdir())
        with pytest.raises(ConfigError, match=r"whose options are not in the checkpoint.*give them as they were"):
            Checkpoint(driver.folder).state("count")
        given = {"topology.state.provider.config": {"where": "there"}}
        with Checkpoint(driver.folder, given).state("count") as view:
            assert dict(view.items()) == words(WORK[:1])
            assert not view.refresh()
    with pytest.raises(ConfigError, match=r"Checkpoint\(location, \{'topology.state.provider.config': \{...\}\}\)"):
        Checkpoint(driver.folder).migrate("rocksdb")
    Checkpoint(driver.folder, given).migrate("rocksdb", {"block_cache_mb": 2})
    with Checkpoint(driver.folder).state("count") as view:
        assert dict(view.items()) == words(WORK[:1])


def test_options_that_json_can_not_write_are_refused_before_anything_is(place):
    with driver_of(place, Unwritable) as driver:
        with pytest.raises(ProviderError, match="public_options"):
            driver.start()
        assert not (driver.folder / "transactions").exists()


@pytest.mark.parametrize(
    ("provider", "options", "public"),
    [
        (MemoryStateProvider, {}, True),
        (RocksDbStateProvider, {"dir": "/scratch", "catch_up_kb": 0}, True),
        (RedisStateProvider, {"url": "redis://db:6380/1", "prefix": "mine"}, True),
        (RedisStateProvider, {"jedisPoolConfig": {"host": "db", "password": None}}, True),
        (RedisStateProvider, {"url": "redis://db:6380/1", "password": "geheim"}, False),
        (RedisStateProvider, {"url": "redis://:geheim@db:6380/1"}, False),
        (RedisStateProvider, {"url": "redis://me:geheim@db:6380/1"}, False),
        (RedisStateProvider, {"jedisPoolConfig": {"host": "db", "password": "geheim"}}, False),
    ],
)
def test_what_is_public_of_the_options_of_the_providers(provider, options, public):
    found = provider(options).public_options()
    assert found == (options if public else None)
    assert not public or type(found.get("url", "")) is str
