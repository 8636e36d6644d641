"""How many jobs of transactions in flight run at once on Spark."""

import threading

import pytest

from statefx import TopologyBuilder, submit
from statefx.spark.engine import SparkEngine
from tests.spark.running import kinds, reasons, state, wait_for
from tests.spark.test_faults import held
from tests.spouts.numbers import Count, Planned

pytestmark = pytest.mark.slow

TRANSACTIONS = 6


class Waits(Planned):
    """Every task waits as long as a file exists."""

    def __init__(self, place):
        super().__init__(place, each=4 * TRANSACTIONS)
        self.hold = place / "hold"

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        held(self.hold)
        super().emitPartitionBatch(attempt, collector, partition, metadata)


def test_no_more_jobs_run_than_fill_the_slots_and_one(spark, place, monkeypatch):
    """Else each job O, and so the first commit, queues behind the jobs P of all transactions in flight."""
    engines, start = [], SparkEngine.start
    monkeypatch.setattr(SparkEngine, "start", lambda engine, job: (engines.append(engine), start(engine, job)))
    spout = Waits(place)
    spout.hold.touch()
    builder = TopologyBuilder("waits")
    builder.setSpout("numbers", spout, parallelism=2)
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("numbers", "number")
    config = {"topology.max.spout.pending": TRANSACTIONS}
    query = submit(builder.createTopology(), spark, place / "ck", config, {"availableNow": True})
    running = threading.Thread(target=query.awaitTermination)
    running.start()
    try:
        preparing = [("PREPARING", txid, 0) for txid in range(1, TRANSACTIONS + 1)]
        wait_for(lambda: kinds(place / "ck") == preparing, "all transactions to be under way")
        tracker = spark.sparkContext.statusTracker()
        wait_for(lambda: len(tracker.getActiveJobsIds()) == 2, "two jobs to run, on two slots")
        assert len(engines[0]._processing.waiting) == TRANSACTIONS - 2
    finally:
        spout.hold.unlink()
        running.join()
    expected = {partition * 1000 + number: 1 for partition in range(3) for number in range(4 * TRANSACTIONS)}
    assert state(place / "ck", "count") == expected
    committed = [txid for kind, txid, _ in kinds(place / "ck") if kind == "COMMITTING"]
    assert committed == list(range(1, TRANSACTIONS + 1))
    assert not reasons(place / "ck"), "waiting is no try"
