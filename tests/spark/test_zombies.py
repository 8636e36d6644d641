"""Drivers that are stopped, replaced, and then go on: nothing of what they do lands, whatever keeps the state."""

from contextlib import ExitStack

import pytest

from tests.providers.redis_server import RedisServer
from tests.spark.drivers import EXPECTED, FILES, hold, log_of, under_way
from tests.spark.running import feed, kinds, state

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("provider", ["memory", "rocksdb", "redis"])
def test_stopped_drivers_go_on_when_others_have_taken_over(drivers, place, provider):
    """One is stopped while PREPARING, the next while COMMITTING, a third does the work; then both are continued."""
    feed(place / "in", **FILES)
    with ExitStack() as stack:
        options = {"url": stack.enter_context(RedisServer()).url} if provider == "redis" else {}
        config = {"topology.state.provider": provider, "topology.state.provider.config": options}

        hold(place, "PREPARING", 1)
        preparing = drivers(place, provider, **options)
        preparing.wait_until(lambda log: log.committed >= 1 and log.in_flight, "a transaction to be PREPARING")
        assert preparing.stop() == ("PREPARING", 2)

        hold(place, "COMMITTING", 2)
        committing = drivers(place, provider, **options)
        committing.wait_until(under_way("COMMITTING", 2), "a transaction to be COMMITTING")
        assert committing.stop() == ("COMMITTING", 2)

        last = drivers(place, provider, **options).end()
        assert last["recoveries"] == [{"txid": 2, "rolled": "forward"}]
        log, found = kinds(place / "ck"), state(place / "ck", "count", config=config)
        assert found == EXPECTED

        for zombie in (preparing, committing):
            zombie.go_on()
            (place / f"hold-{'PREPARING' if zombie is preparing else 'COMMITTING'}").unlink()
        for zombie in (preparing, committing):
            assert zombie.end(3)["error"] == "FencedError"
        assert kinds(place / "ck") == log
        assert log_of(place).generation == 3
        assert state(place / "ck", "count", config=config) == found
