"""Drivers that are stopped, replaced, and then go on: nothing of what they do lands, whatever keeps the state."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from statefx import submit
from statefx.coordinator.generation import read_checkpoint, take_generation
from statefx.coordinator.location import Folders
from statefx.errors import FencedError
from statefx.spark import offsets, part
from statefx.spark.feeds import StreamFeed
from tests.providers.redis_server import RedisServer
from tests.spark.bolts import recount, word_count
from tests.spark.drivers import EXPECTED, FILES, ONCE, hold, log_of, under_way
from tests.spark.running import BOUND_SECS, feed, kinds, lines_of, listing, run, spark_part, state

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
        live = spark_part(place / "ck")
        spark_s = listing(live)

        for zombie in (preparing, committing):
            zombie.go_on()
            (place / f"hold-{'PREPARING' if zombie is preparing else 'COMMITTING'}").unlink()
        for zombie in (preparing, committing):
            assert zombie.end(3)["error"] == "FencedError"
        assert kinds(place / "ck") == log
        assert (live.name, listing(live)) == ("spark-3", spark_s)
        assert log_of(place).generation == 3
        assert state(place / "ck", "count", config=config) == found


@pytest.mark.parametrize("when", ["planning", "beginning", "ending"])
def test_a_driver_that_has_lost_spark_s_part_is_fenced_whatever_spark_says(spark, place, monkeypatch, when):
    """It makes another folder, for its list of files or for its note of the batch, or it finds no offsets to read."""
    feed(place / "in", a=FILES["a"])
    topology = word_count(lines_of(spark, place / "in"))
    query = submit(topology, spark, place / "ck", trigger={"processingTime": "100 milliseconds"})
    query.processAllAvailable()
    take = StreamFeed._take

    def overtaken(moment):
        if moment == when and not took:
            folder = take_over(place / "ck")
            took.append((folder, listing(folder), kinds(place / "ck")))

    def taken(*arguments):
        overtaken("beginning")
        take(*arguments)
        overtaken("ending")

    took = []
    monkeypatch.setattr(StreamFeed, "_take", taken)
    overtaken("planning")
    feed(place / "in", b=FILES["b"], c=FILES["c"])
    with pytest.raises(FencedError, match="taken over"):
        query.awaitTermination(BOUND_SECS)
    folder = spark_part(place / "ck")
    assert [(folder, listing(folder), kinds(place / "ck"))] == took
    monkeypatch.undo()
    run(topology, spark, place / "ck", trigger=ONCE)
    assert [path.name for path in (place / "ck").glob("spark*")] == ["spark-3"]
    assert state(place / "ck", "count") == recount(FILES["a"] + FILES["b"] + FILES["c"])


def take_over(location):
    """Take the next generation and Spark's part, as a driver does that starts."""
    folders = Folders(str(location))
    log = take_generation(folders, read_checkpoint(folders).topology, None, shared=False)
    return Path(part.take(folders, offsets.wanted(log.state), log.state.generation).spark)
