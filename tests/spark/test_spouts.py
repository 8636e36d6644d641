"""Spouts on real Spark: jobs without a query, several in flight, killed workers, stops."""

import os
import signal
from pathlib import Path

import pytest

from statefx import openState, submit
from tests.spark.running import wait_for
from tests.spouts.numbers import ALL, Count, Emitted, Opaque, Planned, Whole, topology

pytestmark = pytest.mark.slow


def counts(location):
    with openState(location, "count") as view:
        return dict(view.items())


class Killed(Count):
    """Its worker is killed once, in transaction 2."""

    def __init__(self, place):
        self.mark = Path(place, "killed")

    def open(self, context):
        self.context = context

    def execute(self, tup, collector):
        super().execute(tup, collector)
        if self.context.txid == 2 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("kind", "pending"), [(Whole, 1), (Planned, 1), (Planned, 3), (Emitted, 2), (Opaque, 2)])
def test_a_worker_that_is_killed_changes_nothing(spark, place, kind, pending):
    config = {"topology.max.spout.pending": pending}
    now = {"availableNow": True}
    submit(topology(kind(place), Killed(place)), spark, place / "ck", config, now).awaitTermination()
    assert Path(place, "killed").exists()
    assert counts(place / "ck") == ALL
    assert not list((place / "ck").glob("sources*")), "there is nothing of Spark's own checkpoint"


def test_it_waits_for_what_comes_later_and_stops(spark, place):
    """`processAllAvailable` waits for all that the spout has now; `once` is one transaction."""
    more = place / "more"

    class Growing(Planned):
        def upcoming(self, last):
            self.each = 10 if more.exists() else 4
            return super().upcoming(last)

    query = submit(topology(Growing(place)), spark, place / "ck", trigger={"processingTime": "0 seconds"})
    query.processAllAvailable()
    assert counts(place / "ck").keys() == {key for key in ALL if key % 1000 < 4}
    more.touch()
    wait_for(lambda: query.lastProgress["txid"] > 1, "what came later to be read")
    query.processAllAvailable()
    assert counts(place / "ck") == ALL
    assert query.lastProgress["numInputRows"]
    query.stop()
    assert query.exception() is None
    submit(topology(Growing(place)), spark, place / "ck", trigger={"once": True}).awaitTermination()
    assert counts(place / "ck") == ALL
