"""Drivers that are stopped, replaced, and then go on: nothing of what they do lands, whatever keeps the state."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from statefx import submit
from statefx.coordinator.generation import read_checkpoint, take_generation
from statefx.coordinator.location import Folders
from statefx.errors import FencedError
from statefx.spark.checkpoint import SparkCheckpoint
from statefx.spark.feeds import StreamFeed
from tests.providers.redis_server import RedisServer
from tests.spark.bolts import recount, word_count
from tests.spark.counting import begun
from tests.spark.drivers import EXPECTED, FILES, ONCE, hold, log_of, published, under_way
from tests.spark.running import BOUND_SECS, feed, kinds, lines_of, listing, local_folders, run, state

pytestmark = pytest.mark.slow


@pytest.mark.soak
@pytest.mark.parametrize("provider", ["redis", "memory", "rocksdb"])
def test_stopped_drivers_go_on_when_others_have_taken_over(spark, drivers, place, provider):
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

        last = run(*begun(spark, place, provider, options))
        assert last.recoveries == [{"txid": 2, "rolled": "forward"}]
        log, found = kinds(place / "ck"), state(place / "ck", "count", config=config)
        assert found == published(place) == EXPECTED
        asleep = local_folders(place / "ck")
        assert len(asleep) == 2, "those of drivers that sleep are left alone, that of the last one is gone"

        for zombie in (preparing, committing):
            zombie.go_on()
            (place / f"hold-{'PREPARING' if zombie is preparing else 'COMMITTING'}").unlink()
        for zombie in (preparing, committing):
            assert zombie.end(3)["error"] == "FencedError"
        assert kinds(place / "ck") == log
        assert published(place) == EXPECTED
        assert [folder for folder in asleep if folder.exists()] == [], "each has deleted its own"
        assert log_of(place).generation == 3
        assert state(place / "ck", "count", config=config) == found


@pytest.mark.parametrize("when", ["planning", "beginning", "ending"])
def test_a_driver_that_was_replaced_is_fenced_whatever_spark_says(spark, place, monkeypatch, when):
    """It goes on in its own folder."""
    feed(place / "in", a=FILES["a"])
    topology = word_count(lines_of(spark, place / "in"))
    query = submit(topology, spark, place / "ck", trigger={"processingTime": "100 milliseconds"})
    query.processAllAvailable()
    take = StreamFeed._take

    def overtaken(moment):
        if moment == when and not took:
            taken_over = take_over(place / "ck")
            folder = Path(taken_over.folder)
            took.append((taken_over, folder, listing(folder), kinds(place / "ck")))

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
    ((successor, folder, was, log),) = took
    assert (listing(folder), kinds(place / "ck")) == (was, log)
    successor.remove()
    monkeypatch.undo()
    run(topology, spark, place / "ck", trigger=ONCE)
    assert state(place / "ck", "count") == recount(FILES["a"] + FILES["b"] + FILES["c"])


def take_over(location):
    """Take the next generation and build Spark's folder, as a driver does that starts."""
    folders = Folders(str(location))
    log = take_generation(folders, read_checkpoint(folders).topology, frozenset(), shared=False)
    found = SparkCheckpoint(folders, log, [0])
    found.rebuild(10)
    return found
