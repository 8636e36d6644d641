"""What bad rows do is undone with state in Redis too; see `test_bad_rows`."""

import pytest

from tests.providers.redis_server import RedisServer
from tests.runtime.scripts import run, scripts_of, topology


@pytest.fixture(scope="module")
def redis():
    with RedisServer(appendonly="no") as server:
        yield server


@pytest.mark.parametrize("mode", ["skip", "deadLetter"])
def test_what_bad_rows_do_is_undone(tmp_path, redis, mode):
    scripts, good, bad = scripts_of(5)
    config = {"topology.state.provider": "redis", "topology.state.provider.config": {"url": redis.url}}
    found, aside, _ = run(tmp_path / "bad", topology(scripts, mode), config)
    assert found == run(tmp_path / "good", topology(good), config)[0]
    assert aside == len(bad)
