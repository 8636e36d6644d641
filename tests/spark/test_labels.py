"""What Spark's UI shows: jobs and stages by topology, transaction and bolts, and one name for a query however often."""

import re
from urllib.request import urlopen

import pytest

from statefx import TopologyBuilder, submit
from tests.spark.bolts import Count, Keep, Pass, Split, word_count
from tests.spark.running import feed, lines_of, run, shown, wait_for


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
    living, *staging = sorted(jobs_of(spark, "seen-stream", 3))
    assert re.fullmatch(r"seen-stream run [0-9a-f]{8}: lines\[2\] → split\[2\] → count\[2\]", living[0])
    assert living[2] == ["lines[2] → split[2]", "count[2]"]
    assert staging == [
        (f"seen-stream tx {txid}: read lines", f"read lines tx {txid}", [f"read lines tx {txid}"]) for txid in (1, 2)
    ]
    with urlopen(f"{spark.sparkContext.uiWebUrl}/jobs/") as page:
        assert "lines[2] → split[2] → count[2]" in page.read().decode(), "as it is, and not as &amp;gt;"


@pytest.mark.slow
def test_jobs_of_a_batch_say_what_they_are(spark, place):
    frame = spark.createDataFrame([("x y",)], "value string").coalesce(1)
    builder = TopologyBuilder("seen-batch")
    builder.setStream("lines", frame)
    builder.setStream("more", frame)
    builder.setBolt("split", Split(), parallelism=2).noneGrouping("lines")
    builder.setBolt("same", Pass("word string"), parallelism=2).localOrShuffleGrouping("split")
    builder.setBolt("count", Count(), parallelism=3).fieldsGrouping("same", "word")
    builder.setBolt("keep", Keep()).globalGrouping("same").globalGrouping("more")
    run(builder.createTopology(), spark, place / "ck")
    living, staging = sorted(jobs_of(spark, "seen-batch", 2))
    assert living[2] == ["lines[2] → split[2] → same[2], more[1]", "count[3], keep[1]"]
    assert staging[0] == "seen-batch tx 1: read lines, more"


@pytest.mark.slow
def test_stages_of_the_user_s_own_plan_keep_their_names(spark, place):
    """Spark makes them before our callback; the call site that we set must not outlive it."""
    feed(place / "in", a=["x y"], b=["x"])
    counts = lines_of(spark, place / "in").repartition("value")
    run(word_count(counts, "seen-behind"), spark, place / "ck", trigger={"availableNow": True})
    staging = [stages for description, _, stages in jobs_of(spark, "seen-behind", 3) if " tx " in description]
    own = [name for names in staging for name in names if not re.fullmatch(r"read lines tx \d+", name)]
    assert len(own) == 2
    assert len(staging) == 2


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
