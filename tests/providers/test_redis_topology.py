"""Whole topologies whose state is on a Redis server: crashes, drivers that are replaced, a server that goes away."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statefx.errors import FencedError, StateCorruptedError, StatefxError
from statefx.testing import Limits, TopologyTester
from statefx.testing.crashes import crashes as durable
from statefx.testing.steps import DurableSteps
from statefx_redis import store
from tests.providers.redis_faults import Trips, crashes
from tests.providers.redis_server import Content, RedisServer
from tests.testing.lives import seeds
from tests.testing.living import Zombie, lose_run
from tests.testing.places import place
from tests.testing.topologies import Driver, lines, totals, word_count, words

__all__ = ["place"]

TRANSACTIONS = [lines("to be or not to be", "that is"), lines(), lines("the question", "to be")]
TOTALS = totals()
LIMITS = Limits(fold_after=6, sweep_every=1, min_age_secs=0.0)


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisServer]:
    with RedisServer(appendonly="no") as server:
        yield server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class RedisDriver(Driver):
    """Starts testers whose state is on `server`."""

    def __init__(self, place: Path, server: RedisServer, name: str = "checkpoint", **options: Any) -> None:
        super().__init__(place, name=name)
        self.config["topology.state.provider"] = "statefx_redis:RedisStateProvider"
        given = {"url": server.url, "retries": 3, "backoff_secs": 0.01, **options}
        self.config["topology.state.provider.config"] = given


def finish(driver: RedisDriver) -> None:
    """Start once more, run what is left, and compare with the run without failure."""
    tester = driver.start(TOTALS, limits=LIMITS)
    tester.run(TRANSACTIONS)
    assert tester.txid == len(TRANSACTIONS)
    assert tester.state("count") == words(TRANSACTIONS)
    assert tester.state("total") == {"total": sum(words(TRANSACTIONS).values()), "txid": len(TRANSACTIONS)}


def test_a_provider_is_found_by_its_name(place: Path, shared: RedisServer) -> None:
    with RedisDriver(place, shared) as driver:
        driver.config["topology.state.provider"] = "redis"
        tester = driver.start()
        tester.run(TRANSACTIONS)
        assert tester.state("count") == words(TRANSACTIONS)


@pytest.mark.slow
def test_a_crash_at_any_step_loses_and_doubles_nothing(place: Path, shared: RedisServer) -> None:
    seen = set[str]()
    with RedisDriver(place, shared) as driver:

        def life(steps: DurableSteps) -> None:
            with driver.start(TOTALS, steps=steps, limits=LIMITS, cache=place / "cache") as tester:
                tester.run(TRANSACTIONS)

        for point in durable(place, life, driver.journal, Content(shared)):
            seen.update(point.moments)
            with driver.start(TOTALS, limits=LIMITS, cache=point.cache) as recovered:
                assert recovered.state("count") == words(TRANSACTIONS[: recovered.txid])
            if point.is_new(recovered.txid, shared.client().dbsize()):
                finish(driver)
    for step in ("fence 1", "prepare count/1 for 2", "COMMITTING(3, 0)", "commit count/0 for 1", "COMMITTED(3)"):
        assert {f"before {step}", f"after {step}"} <= seen


@pytest.mark.soak
@pytest.mark.slow
def test_a_crash_at_any_round_trip_loses_and_doubles_nothing(
    place: Path, shared: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CHUNK_ENTRIES", 2)
    work = [lines("to be or not to be"), lines("that is the question")]
    for at in crashes():
        with RedisDriver(place, shared, f"at-{at}") as driver:
            topology = word_count(parallelism=1)
            with Trips(at) as trips:
                driver.start(topology).run(work)
            tester = driver.start(topology)
            tester.run(work)
            assert tester.state("count") == words(work)
        if not trips.crashed:
            break
    assert at > 30


@pytest.mark.slow
def test_a_server_that_is_killed_at_any_step_and_restarted_with_its_data(place: Path, server: RedisServer) -> None:
    with RedisDriver(place, server, "rehearsal") as driver:
        tester = driver.start(TOTALS)
        tester.run(TRANSACTIONS[:1])
        moments = tester.steps
    with RedisDriver(place, server) as driver:
        tester = driver.start(TOTALS)
        sent = []
        for moment in moments:
            if " for 1" not in moment and "(1, 0)" not in moment:
                continue
            txid = tester.txid + 1
            happened: list[str] = []
            later = moment.replace(" for 1", f" for {txid}").replace("(1, 0)", f"({txid}, 0)")
            tester.when(later, lambda: happened.append("killed") or server.restart())  # noqa: B023 - called within
            sent.append(lines("to be"))
            assert tester.send(sent[-1]).progress.attempt == 0
            assert happened, moment
        assert len(sent) > 15
        assert tester.state("count") == words(sent)


def test_a_server_that_is_down_fails_the_attempt_and_the_next_one_succeeds(place: Path, server: RedisServer) -> None:
    with RedisDriver(place, server, retries=1) as driver:
        tester = driver.start(TOTALS)
        tester.send(lines("a"))
        tester.when("before prepare count/0 for 2", server.kill)
        tester.when("pause", server.start)
        assert tester.send(lines("a b")).progress.attempt == 1
        tester.when("before commit count/0 for 3", server.kill)
        tester.when("pause", server.start)
        assert tester.send(lines("c")).progress.attempt == 0
        assert tester.state("count") == {"a": 2, "b": 1, "c": 1}


def test_memory_that_runs_out_fails_the_attempt_and_the_next_one_succeeds(place: Path, server: RedisServer) -> None:
    limit = server.client().config_set
    with RedisDriver(place, server) as driver:
        tester = driver.start(TOTALS)
        for txid, step, attempt in ((1, "prepare", 1), (2, "commit", 0)):
            tester.when(f"before {step} count/0 for {txid}", lambda: limit("maxmemory", 1000))
            tester.when("pause", lambda: limit("maxmemory", 0))
            assert tester.send(lines("a b")).progress.attempt == attempt
        assert tester.state("count") == {"a": 2, "b": 2}


@pytest.mark.parametrize("how", ["emptied", "restored", "evicted"])
def test_a_server_that_lost_state_ends_the_query_with_what_to_do(place: Path, server: RedisServer, how: str) -> None:
    with RedisDriver(place, server) as driver:
        tester = driver.start()
        tester.send(lines("a b"))
        dump = server.dump()
        tester.send(lines("a b"))
        if how == "emptied":
            server.empty()
        elif how == "restored":
            server.restore(dump)
        else:
            client = server.client()
            for key in client.keys("*:data"):
                client.hdel(key, *client.hkeys(key))
        for again in (tester, None):
            with pytest.raises(StateCorruptedError, match="checkpoint"):
                (again or driver.start()).send(lines("a b"))
        with pytest.raises(StateCorruptedError, match="backup"):
            driver.start().state("count")


def test_a_driver_that_was_replaced_at_any_moment_is_fenced_and_nothing_of_it_lands(
    place: Path, shared: RedisServer, stride: int
) -> None:
    with RedisDriver(place, shared, "rehearsal") as driver:
        tester = driver.start(TOTALS)
        tester.send(lines("a b"))
        before = len(tester.steps)
        tester.send(lines("b c"))
        moments = tester.steps[before:]
    for n, moment in enumerate(moments[next(seeds(0)) % stride : -1 : stride]):
        with RedisDriver(place, shared, f"checkpoint-{n}") as driver:
            replace_at(driver, moment)


def replace_at(driver: RedisDriver, moment: str) -> None:
    old = driver.start(TOTALS)
    old.send(lines("a b"))
    new: list[TopologyTester] = []

    def take_over() -> None:
        new.append(driver.start(TOTALS))
        new[0].run([lines("a b"), lines("b c")])
        new[0].send(lines("from the new one"))

    old.when(moment, take_over)
    with pytest.raises(FencedError):
        old.send(lines("b c"))
    with pytest.raises(StatefxError):
        old.send(lines("from the old one"))
    expected = words([lines("a b"), lines("b c"), lines("from the new one")])
    assert new[0].state("count") == expected, moment
    new[0].send(lines("more"))
    assert driver.start(TOTALS).state("count") == {**expected, "more": 1}


@pytest.mark.parametrize("moment", ["before prepare count/0 for 2", "after prepare count/0 for 2"])
@pytest.mark.parametrize("freezes", [False, True])
def test_slots_that_are_lost_and_that_freeze(place: Path, shared: RedisServer, moment: str, freezes: bool) -> None:
    with RedisDriver(place, shared) as driver:
        tester = driver.start(TOTALS, limits=LIMITS)
        tester.send(lines("a b c"))
        if freezes:
            tester.when("before prepare count/1 for 3", Zombie(tester, moment, "count", 0).go_on)
        else:
            lose_run(tester, moment)
        assert tester.send(lines("a b d")).progress.attempt == 1
        tester.send(lines("d"))
        tester.wake()
        assert tester.steps.count("before prepare count/0 for 2") == 2
        assert tester.state("count") == {"a": 2, "b": 2, "c": 1, "d": 2}
        client = shared.client()
        tester.sweep()
        lineage = tester._coordinator.log.state.lineage
        assert client.keys(f"*{lineage}*:prepared:*") == [], "nothing is left over"


def test_a_checkpoint_whose_state_is_elsewhere_is_not_forked(place: Path, shared: RedisServer) -> None:
    with RedisDriver(place, shared) as driver:
        driver.start().send(lines("a"))
        with pytest.raises(StatefxError, match=r"can't be forked.*start without 'fork'"):
            driver.start(adopt="fork")
        driver.folder.rename(driver.folder.with_name("copy"))
        driver.folder = driver.folder.with_name("copy")
        with pytest.raises(StatefxError, match="can't be forked"):
            driver.start(adopt="fork")
        moved = driver.start(adopt="move")
        moved.send(lines("a"))
        assert moved.state("count") == {"a": 2}


def test_two_lives_of_one_lineage_are_told_apart_by_the_server(place: Path, shared: RedisServer) -> None:
    """As on two machines that can't see each other: a copy goes on, and the original is not the newest."""
    with RedisDriver(place, shared) as driver:
        driver.start().send(lines("a"))
        original, copy = driver.folder, driver.folder.with_name("copy")
        shutil.copytree(original, copy)
        original.rename(place / "away")
        driver.folder = copy
        moved = driver.start(adopt="move", cache=place / "another-machine")
        moved.send(lines("a"))
        (place / "away").rename(original)
        driver.folder = original
        with pytest.raises(StateCorruptedError):
            driver.start().send(lines("b"))
        moved.send(lines("a"))
        assert moved.state("count") == {"a": 3}


def test_no_password_is_written_into_the_checkpoint(place: Path) -> None:
    with (
        RedisServer(appendonly="no", requirepass="right-horse") as server,
        RedisDriver(place, server, password="right-horse") as driver,
    ):
        tester = driver.start(TOTALS, limits=LIMITS)
        tester.run(TRANSACTIONS)
        found = [path.read_bytes() for path in driver.folder.rglob("*") if path.is_file()]
        assert found
        assert not [each for each in found if b"horse" in each]
        assert "horse" not in f"{tester.status} {tester.recoveries}"
