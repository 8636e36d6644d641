"""Checkpoints of a few transactions, whose state tests of administration look at."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from statefx import StatefulBolt, Topology, TopologyBuilder
from statefx.testing import TopologyTester, rows
from tests.providers.redis_server import RedisServer
from tests.testing.topologies import Driver

PROVIDERS = ("memory", "rocksdb", pytest.param("redis", marks=pytest.mark.server))
REDIS = "statefx_redis:RedisStateProvider"

KEYS: list[Any] = [
    None, False, True, -(2**70), -1, 0, 7, 2**70, -1.5, 0.25, Decimal("1.5"), "", "a", "a\x00b", "ä\n", b"",
    b"\x00\xff",
    date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC), (), ("a", 1), ("a", (1, None)),
]  # fmt: skip
"""In their order: one of every type that a key may have, and some of those that are read another way."""


class Keep(StatefulBolt):
    """Does to state what each row says: put, delete, or put into a map or for all tasks."""

    def initState(self, state):
        self.state = state
        self.recent = state.map("recent", ttl="10 minutes")
        self.plain = state.map("plain")

    def execute(self, tup, collector):
        where = {"own": self.state, "recent": self.recent, "plain": self.plain}[tup.where]
        if tup.value is None:
            where.delete(tup.key)
        else:
            where.put(tup.key, tup.value)


class KeepAll(StatefulBolt):
    """Keeps one key of every type."""

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        for number, key in enumerate(KEYS):
            self.state.put(key, [number, str(key)])


class Newer(Keep):
    """The next version of `Keep`, which takes its values as they are."""

    stateVersion = 2

    def migrateState(self, version, key, value):
        return value


class Rules(StatefulBolt):
    """Has a map that all tasks hold alike."""

    def initState(self, state):
        self.state = state
        self.rules = state.broadcast("rules")

    def execute(self, tup, collector):
        self.state.put(tup.key, tup.value)

    def executeBroadcast(self, tup, collector):
        self.rules.put(tup.key, tup.value)


def keeping(parallelism: int = 2, bolt: StatefulBolt | None = None, id: str = "keep") -> Topology:
    builder = TopologyBuilder("keeping")
    builder.setStream("rows", rows("key string, value long, where string"))
    builder.setBolt(id, bolt or Keep(), parallelism).fieldsGrouping("rows", "key")
    return builder.createTopology()


def ruled() -> Topology:
    builder = TopologyBuilder("ruled")
    builder.setStream("rows", rows("key string, value long"))
    builder.setStream("rules", rows("key string, value long"))
    declared = builder.setBolt("keep", Rules(), 2).fieldsGrouping("rows", "key")
    declared.broadcastGrouping("rules")
    return builder.createTopology()


def put(**entries: int | None) -> dict[str, list[tuple[str, int | None, str]]]:
    """One transaction of the bolt's own keys; None deletes."""
    return {"rows": [(key, value, "own") for key, value in entries.items()]}


class Keeper(Driver):
    """A `Driver` with any provider, among them a server."""

    def __init__(self, place: Path, provider: str = "memory", server: RedisServer | None = None) -> None:
        super().__init__(place, provider if server is None else "memory")
        if server is not None:
            self.config["topology.state.provider"] = REDIS
            self.config["topology.state.provider.config"] = {"url": server.url}

    def run(self, *transactions: Any, topology: Topology | None = None, **arguments: Any) -> TopologyTester:
        tester = self.start(topology or keeping(), **arguments)
        for each in transactions:
            tester.send(each)
        return tester


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="no") as server:
        yield server


@pytest.fixture(params=PROVIDERS)
def keeper(request: pytest.FixtureRequest, place: Path) -> Iterator[Keeper]:
    found = request.getfixturevalue("server") if request.param == "redis" else None
    with Keeper(place, request.param, found) as keeper:
        yield keeper
