"""Topologies whose state is on a server, and what the server keeps of them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import redis

from statefx.state.registry import load_provider
from statefx.testing.steps import DurableSteps, SteppedProvider, every_crash
from tests.coordinator.changing import log_of
from tests.coordinator.migrating import REFERENCES
from tests.providers.redis_server import RedisServer
from tests.testing.topologies import Driver


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="no") as server:
        yield server


def on_redis(server: RedisServer) -> dict[str, Any]:
    """Return the configuration of a topology whose state is on the server."""
    return {"topology.state.provider": REFERENCES["redis"], "topology.state.provider.config": {"url": server.url}}


def stepped(url: str, steps: DurableSteps) -> SteppedProvider:
    return SteppedProvider(load_provider(REFERENCES["redis"], {"url": url}), steps)


def names_on(server: RedisServer, driver: Any) -> set[str]:
    """Return the names under which the server keeps something of bolts that are called ``count`` or the like."""
    head = f"{{{log_of(driver).lineage}:"
    with redis.Redis.from_url(server.url) as client:
        found = {key.decode().partition(head)[2].partition(":")[0] for key in client.scan_iter()}
    return {unquote(name) for name in found if name.startswith("count")}


def crashes(server: RedisServer, driver: Driver, place: Path) -> Iterator[int]:
    """Yield as `every_crash`, each time with checkpoint and server as they are now."""
    shutil.copytree(driver.folder, place / "before")
    with redis.Redis.from_url(server.url) as client:
        dumped = {key: client.dump(key) for key in client.scan_iter()}
        for at in every_crash():
            shutil.rmtree(driver.folder)
            shutil.copytree(place / "before", driver.folder)
            client.flushall()
            for key, data in dumped.items():
                client.restore(key, 0, data)
            yield at
