"""RedisStreamSpout against a real server: what is acknowledged when, retries, dead letters, what goes away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from statefx import BasicBolt, StatefulBolt, TopologyBuilder
from statefx.errors import BoltError, ConfigError, FailedException, TopologyError
from statefx.testing import TopologyTester
from statefx_redis import RedisSink, RedisStreamSpout
from tests.providers.redis_server import RedisServer
from tests.testing.places import place

__all__ = ["place"]

pytestmark = pytest.mark.server

BOUND_SECS = 30


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="yes") as server:
        yield server


class Refuses(BasicBolt):
    outputFields = "text string"

    def execute(self, tup: Any, collector: Any) -> None:
        if tup.text.startswith("bad"):
            raise FailedException("refused")
        if tup.text.startswith("broken"):
            raise ZeroDivisionError
        collector.emit((tup.text,))


class Passes(BasicBolt):
    outputFields = "text string"

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit((tup.text,))


LOOK: list[Callable[[], int]] = []
SEEN: list[int] = []


class Looks(Passes):
    """Notes how many entries are not acknowledged."""

    def execute(self, tup: Any, collector: Any) -> None:
        SEEN.append(LOOK[0]())
        super().execute(tup, collector)


class Count(StatefulBolt):
    def initState(self, state: Any) -> None:
        self.state = state

    def execute(self, tup: Any, collector: Any) -> None:
        self.state.put(tup.text, self.state.get(tup.text, 0) + 1)


class Dead(StatefulBolt):
    def initState(self, state: Any) -> None:
        self.state = state

    def execute(self, tup: Any, collector: Any) -> None:
        self.state.put(tup.text, (tup["_id"], tup["_tries"], tup["_reason"]))


def spout(server: RedisServer, **options: Any) -> RedisStreamSpout:
    return RedisStreamSpout(server.url, "jobs", "text string", "workers", **{"retryDelay": 0, **options})


def topology(spout: RedisStreamSpout, bolt: BasicBolt | None = None, parallelism: int = 1) -> Any:
    builder = TopologyBuilder("jobs")
    builder.setSpout("jobs", spout, parallelism)
    builder.setBolt("bolt", bolt or Refuses(), 2).shuffleGrouping("jobs")
    builder.setBolt("count", Count(), 2).fieldsGrouping("bolt", "text")
    builder.setBolt("dead", Dead()).globalGrouping("jobs", stream="dead")
    return builder.createTopology()


def add(server: RedisServer, *texts: str) -> list[str]:
    client = server.client()
    return [client.xadd("jobs", {"text": text, "other": "x"}).decode() for text in texts]


def pending(server: RedisServer) -> int:
    return int(server.client().xpending("jobs", "workers")["pending"])


def drain_until(tester: TopologyTester, condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + BOUND_SECS
    while not condition():
        assert time.monotonic() < limit
        tester.drain()


def test_entries_are_acknowledged_when_they_are_committed(server, place):
    add(server, *"abab")
    LOOK[:] = [lambda: pending(server)]
    with TopologyTester(topology(spout(server), Looks(), parallelism=2), place) as tester:
        drain_until(tester, lambda: sum(tester.state("count").values()) == 4)
        drain_until(tester, lambda: pending(server) == 0)
        assert tester.state("count") == {"a": 2, "b": 2}
    assert max(SEEN) >= 1
    assert server.client().xlen("jobs") == 4


def test_text_that_is_no_utf8_is_named_with_its_entry(server, place):
    id = server.client().xadd("jobs", {"text": b"caf\xe9"}).decode()
    with (
        TopologyTester(topology(spout(server)), place) as tester,
        pytest.raises(
            BoltError, match=f"(?s)hook nextTuple.*InputError: entry {id} of jobs: field 'text' is not UTF-8"
        ),
    ):
        tester.drain()


def test_what_fails_is_tried_again_and_then_a_dead_letter(server, place):
    _, id = add(server, "a", "bad")
    with TopologyTester(topology(spout(server, maxTries=3)), place) as tester:
        drain_until(tester, lambda: tester.state("dead") != {})
        assert tester.state("dead") == {"bad": (id, 3, "bolt 'bolt': refused")}
        assert tester.state("count") == {"a": 1}
        drain_until(tester, lambda: pending(server) == 0)


def test_entries_of_a_task_that_is_gone_come_again_to_its_successor(server, place):
    add(server, "a", "broken")
    tester = TopologyTester(topology(spout(server)), place)
    with pytest.raises(BoltError, match="ZeroDivisionError"):
        tester.drain()
    assert pending(server) == 2
    with tester.restart(topology(spout(server), Passes())) as successor:
        drain_until(successor, lambda: len(successor.state("count")) == 2)
        drain_until(successor, lambda: pending(server) == 0)
        assert successor.state("count") == {"a": 1, "broken": 1}


def test_entries_of_another_consumer_that_is_gone_are_taken_over(server, place):
    add(server, "a")
    client = server.client()
    client.xgroup_create("jobs", "workers", id="0")
    client.xreadgroup("workers", b"gone\xff", {"jobs": ">"})  # names of others are any bytes
    with TopologyTester(topology(spout(server, idleSecs=1)), place) as tester:
        drain_until(tester, lambda: tester.state("count") == {"a": 1})
        drain_until(tester, lambda: pending(server) == 0)


def test_a_server_that_is_gone_for_a_while_loses_nothing(server, place):
    add(server, "a", "b")
    with TopologyTester(topology(spout(server)), place) as tester:
        tester.drain()
        server.kill()
        tester.drain()
        server.start()
        drain_until(tester, lambda: pending(server) == 0)
        add(server, "c")
        drain_until(tester, lambda: tester.state("count") == {"a": 1, "b": 1, "c": 1})


def test_an_entry_that_was_deleted_is_given_up(server, place):
    id, _ = add(server, "a", "b")
    client = server.client()
    client.xgroup_create("jobs", "workers", id="0")
    client.xreadgroup("workers", "gone", {"jobs": ">"})
    client.xdel("jobs", id)
    with TopologyTester(topology(spout(server, idleSecs=1)), place) as tester:
        drain_until(tester, lambda: tester.state("count") == {"b": 1})
        drain_until(tester, lambda: pending(server) == 0)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"fields": "n long"}, TopologyError, "'n' is int64, and entries .* declare it string"),
        ({"group": ""}, ConfigError, "the name of a group"),
        ({"stream": None}, ConfigError, "the name of a stream"),
        ({"url": "http://x"}, ConfigError, "RedisStreamSpout: url must be like"),
        ({"idleSecs": 0}, ConfigError, "idleSecs is a number of seconds from 1"),
        ({"maxTries": 0}, TopologyError, "maxTries is a whole number from 1"),
        ({"retryDelay": -1}, TopologyError, "retryDelay is a number of seconds from 0"),
    ],
)
def test_mistakes(change, error, match):
    given = {"url": "redis://127.0.0.1:1/0", "stream": "jobs", "fields": "text string", "group": "workers", **change}
    with pytest.raises(error, match=match):
        RedisStreamSpout(**given)


def test_a_topology_that_would_feed_itself_is_refused(server):
    builder = TopologyBuilder("loop")
    builder.setSpout("jobs", spout(server))
    builder.setSink("out", RedisSink(server.url, "jobs", kind="stream")).shuffleGrouping("jobs")
    with pytest.raises(TopologyError, match="fed with its own output"):
        builder.createTopology()
