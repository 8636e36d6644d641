"""What bad rows do is undone with state in Redis too; see `test_bad_rows`."""

import pytest

from statefx.testing import TopologyTester
from tests.providers.redis_server import RedisServer
from tests.runtime.scripts import run, scripts_of, topology
from tests.runtime.test_quarantine import check_left, spouted


@pytest.fixture(scope="module")
def redis():
    with RedisServer(appendonly="no") as server:
        yield server


@pytest.mark.daily(1)
@pytest.mark.parametrize("mode", ["skip", "deadLetter"])
def test_what_bad_rows_do_is_undone(tmp_path, redis, mode):
    scripts, good, bad = scripts_of(5)
    config = {"topology.state.provider": "redis", "topology.state.provider.config": {"url": redis.url}}
    found, aside, _ = run(tmp_path / "bad", topology(scripts, mode), config)
    assert found == run(tmp_path / "good", topology(good), config)[0]
    assert aside == len(bad)


def test_rows_behind_a_bad_one_wait(tmp_path, redis):
    config = {"topology.state.provider": "redis", "topology.state.provider.config": {"url": redis.url}}
    with TopologyTester(spouted(), tmp_path / "ck", config) as tester:
        tester.drain()
        check_left(tmp_path / "ck", tester)
