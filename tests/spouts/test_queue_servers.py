"""Servers of queues are killed, or away for a while, under a topology that reads them: each message counts once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statefx.testing import TopologyTester
from tests.providers.redis_server import RedisServer
from tests.sinks.database import PostgresDatabase
from tests.sinks.postgres_server import PostgresServer
from tests.spouts.queues import Queue, RedisQueue, SqlQueue
from tests.spouts.test_queues import BOUND_SECS, TEXTS, check, topology

pytestmark = [pytest.mark.slow, pytest.mark.server]

Served = tuple[Any, Callable[[Path], Queue]]


@pytest.fixture(params=["redis", "postgres"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server of the test's own, and what makes a queue there; Redis writes each answer down before it gives it."""
    if request.param == "redis":
        with RedisServer() as server:
            yield server, lambda folder: RedisQueue(server, f"jobs-{folder.name}")
    else:
        with PostgresServer() as postgres:
            yield postgres, lambda folder: SqlQueue(PostgresDatabase(postgres, folder))


class Outage:
    """Kills a server at a moment of a tester, and starts it at once, or when the driver waits to try again."""

    def __init__(self, server: Any, tester: TopologyTester, at: int | None, *, stays_away: bool) -> None:
        self.server, self.at, self.stays_away = server, at, stays_away
        self.passed: list[str] = []
        self.is_down = self.was_waited_for = False
        self._call = tester._steps.call
        tester._steps.call = self.call  # type: ignore[method-assign]

    def call(self, moment: str) -> None:
        self._call(moment)
        if moment == "pause":
            self.was_waited_for = self.was_waited_for or self.is_down
            self.end()
            return
        self.passed.append(moment)
        if len(self.passed) == self.at:
            self.server.kill()
            self.is_down = True
            if not self.stays_away:
                self.end()

    def end(self) -> None:
        if self.is_down:
            self.server.start()
            self.is_down = False


@pytest.mark.parametrize("stays_away", [False, True])
def test_a_server_that_is_killed_at_any_step_loses_and_doubles_nothing(served, place, stride, stays_away, monkeypatch):
    server, make = served

    def life(name: str, at: int | None) -> Outage:
        folder = place / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        queue = make(folder)
        queue.add(*TEXTS[:9])
        with TopologyTester(topology(queue), folder / "ck") as tester:
            outage = Outage(server, tester, at, stays_away=stays_away)
            queue.add(*TEXTS[9:])
            limit = time.monotonic() + BOUND_SECS
            while outage.is_down or queue.owners():
                assert time.monotonic() < limit
                tester.drain()
                outage.end()  # its tasks had nothing to do with it
            check(tester, queue, folder)
        return outage

    moments = life("rehearsal", None).passed
    assert "after COMMITTING(1, 0)" in moments
    waits = [
        life(str(at), at).was_waited_for
        for at, moment in enumerate(moments, 1)
        if at % stride == 0 or "COMMITTING" in moment
    ]
    assert any(waits) == stays_away
