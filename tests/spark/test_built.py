"""Plans that are built once: attempts share no shuffle, and nothing is planned for a transaction."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark import TaskContext

from statefx import BasicBolt, TopologyBuilder, submit
from tests.spark.running import kinds, reasons, shown, state, wait_for
from tests.spouts.numbers import ALL, Count, Planned

pytestmark = pytest.mark.slow

SETTING = "spark.sql.session.timeZone"


class Same(BasicBolt):
    """Passes numbers on, and writes down which setting its task goes by."""

    outputFields = "number long"

    def __init__(self, place):
        self.seen = Path(place, "seen")

    def execute(self, tup, collector):
        self.seen.write_text(str(TaskContext.get().getLocalProperty(SETTING)))
        collector.emit((tup.number,))


def topology(place):
    builder = TopologyBuilder("built")
    builder.setSpout("numbers", Planned(place), parallelism=2)
    builder.setBolt("same", Same(place), parallelism=3).fieldsGrouping("numbers", "number")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("same", "number")
    return builder.createTopology()


def stages_run(spark, since):
    """How often stages ran, by name, but for the oldest `since` ones; those that Spark passed over don't count.

    The session is that of other tests too. What one of those cancelled stays FAILED, and Spark's status store shows it
    or not: it forgets old stages, and writes one again as long as a task of it is alive.
    """

    def ended():
        found = [stage for stage in shown(spark, "stages") if stage["stageId"] >= since]
        return found if not any(stage["status"] in ("PENDING", "ACTIVE") for stage in found) else None

    ran = wait_for(ended, "all stages of this test to have ended")
    return Counter(each["name"] for each in ran if each["status"] != "SKIPPED")


def stages_so_far(spark):
    return max((stage["stageId"] for stage in shown(spark, "stages")), default=-1) + 1


def shuffles(spark):
    """How many shuffles Spark knows the files of."""
    return spark.sparkContext._jsc.sc().taskScheduler().mapOutputTracker().shuffleStatuses().size()


def test_each_attempt_has_shuffles_of_its_own_and_spark_plans_nothing_for_it(spark, place):
    """With the shuffles of the plan itself, all but the first transaction would read the first one's rows."""
    session = spark.newSession()
    session.conf.set(SETTING, "Asia/Tokyo")
    queries = session._jsparkSession.sharedState().statusStore()
    config = {"topology.max.spout.pending": 3}
    first, before = stages_so_far(spark), shuffles(spark)
    query = submit(topology(place), session, place / "ck", config, {"availableNow": True})
    wait_for(lambda: ("PREPARING", 1, 0) in kinds(place / "ck"), "the first transaction")
    planned = queries.executionsCount()
    query.awaitTermination()
    assert state(place / "ck", "count") == ALL
    assert not reasons(place / "ck")
    transactions = max(txid for _, txid, _ in kinds(place / "ck"))
    assert transactions > 2
    levels = ["numbers[2]", "same[3]", "acks", "count[2]"]
    ran = stages_run(spark, first)
    expected = Counter(f"{name} tx {txid} attempt 0" for name in levels for txid in range(1, transactions + 1))
    assert {name: ran[name] for name in expected} == expected
    assert queries.executionsCount() == planned
    assert Path(place, "seen").read_text() == "Asia/Tokyo"
    wait_for(lambda: shuffles(spark) <= before, "the shuffles to be deleted")
