"""What Spark's UI shows: jobs and stages by topology, transaction and bolts, and one name for a query however often."""

import re
from urllib.request import urlopen

import pytest

from statefx import StatefulBolt, TopologyBuilder, submit
from statefx.errors import FencedError
from tests.spark.bolts import Count, Pass, Split, word_count
from tests.spark.running import BOUND_SECS, feed, lines_of, run, shown, state, wait_for


class Hooked(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup[0], True)

    def preCommit(self, txid):
        pass


def jobs_of(spark, topology, jobs):
    """(description, name, names of the stages) of the last `jobs` jobs, oldest first, once the UI has them."""

    def found():
        ours = [job for job in shown(spark, "jobs") if job.get("description", "").startswith(f"{topology} ")]
        return ours if len(ours) >= jobs and all(job["status"] == "SUCCEEDED" for job in ours) else None

    ours = wait_for(found, f"{jobs} jobs of {topology}")
    stages = {stage["stageId"]: stage for stage in shown(spark, "stages")}
    return [
        (job["description"], job["name"], [stages[number]["name"] for number in sorted(job["stageIds"])])
        for job in reversed(ours)
    ]


@pytest.mark.slow
def test_jobs_and_stages_of_a_stream_say_what_they_are(spark, place):
    feed(place / "in", a=["x y"], b=["x"])
    run(word_count(lines_of(spark, place / "in"), "seen-stream"), spark, place / "ck", trigger={"availableNow": True})
    assert jobs_of(spark, "seen-stream", 2) == [
        (
            f"seen-stream tx {txid} attempt 0: split[2] → count[2]",
            f"count[2] tx {txid} attempt 0",
            [f"{stage} tx {txid} attempt 0" for stage in ("read lines", "split[2]", "count[2]")],
        )
        for txid in (1, 2)
    ]
    with urlopen(f"{spark.sparkContext.uiWebUrl}/jobs/") as page:
        assert "tx 2 attempt 0: split[2] → count[2]" in page.read().decode(), "as it is, and not as &amp;gt;"
    details = [stage for stage in shown(spark, "stages") if stage.get("description", "").startswith("seen-stream ")]
    groups = {job["jobGroup"] for job in shown(spark, "jobs") if job.get("description", "").startswith("seen-stream ")}
    assert len(details) == 6
    assert len(groups) == 1  # the query's own: its stop() must still find the jobs


@pytest.mark.slow
def test_jobs_of_a_batch_and_of_hooks_say_what_they_are(spark, place):
    frame = spark.createDataFrame([("x y",)], "value string").coalesce(1)
    builder = TopologyBuilder("seen-batch")
    builder.setStream("lines", frame)
    builder.setStream("more", frame)
    builder.setBolt("split", Split(), parallelism=2).noneGrouping("lines")
    builder.setBolt("same", Pass("word string"), parallelism=2).localOrShuffleGrouping("split")
    builder.setBolt("count", Count(), parallelism=3).fieldsGrouping("same", "word")
    builder.setBolt("hooked", Hooked()).globalGrouping("same").globalGrouping("more")
    run(builder.createTopology(), spark, place / "ck")
    attempt, hooks = jobs_of(spark, "seen-batch", 2)
    bolts = ["more[1], split[2] → same[2]", "count[3], hooked[1]"]
    assert attempt[0] == f"seen-batch tx 1 attempt 0: {' → '.join(bolts)}"
    assert attempt[2] == [f"{stage} tx 1 attempt 0" for stage in ("read lines, more", *bolts)]
    assert hooks == (
        "seen-batch tx 1 attempt 0: commit hooked[1]",
        "commit hooked[1] tx 1 attempt 0",
        ["commit hooked[1] tx 1 attempt 0"],
    )


@pytest.mark.slow
def test_stages_of_the_user_s_own_plan_keep_their_names(spark, place):
    """Spark makes them before our callback; the call site that we set must not outlive it."""
    feed(place / "in", a=["x y"], b=["x"])
    counts = lines_of(spark, place / "in").repartition("value")
    run(word_count(counts, "seen-behind"), spark, place / "ck", trigger={"availableNow": True})
    names = [name for _, _, stages in jobs_of(spark, "seen-behind", 2) for name in stages]
    assert len([name for name in names if not re.search(r" tx \d+ attempt \d+$", name)]) == 2
    assert sum(name.startswith("read counts") for name in names) == 0
    assert sum(name.startswith("read lines") for name in names) == 2


@pytest.mark.slow
def test_the_name_of_a_query_stays_over_restarts(spark, place):
    names = []
    for _ in range(2):
        feed(place / "in", a=["x"])
        query = submit(word_count(lines_of(spark, place / "in"), "named"), spark, place / "ck")
        names += [each.name for each in spark.streams.active if each.name.startswith("named")]
        query.stop()
    assert len(names) == 2
    assert len(set(names)) == 1
    assert re.fullmatch("named-[0-9a-f]{8}", names[0])


@pytest.mark.slow
def test_a_restart_in_the_same_session_ends_the_driver_before_it(spark, place):
    feed(place / "in", a=["x"])
    former, later = (submit(word_count(lines_of(spark, place / "in"), "again"), spark, place / "ck") for _ in range(2))
    with pytest.raises(FencedError):
        former.awaitTermination(BOUND_SECS)
    feed(place / "in", b=["x"])
    later.processAllAvailable()
    later.stop()
    assert state(place / "ck", "count") == {"x": 2}
