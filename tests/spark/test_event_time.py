"""Event time on real Spark: the same watermarks as in the tester, also when a worker is killed."""

import json
import os
from pathlib import Path

import pytest

from statefx import TopologyBuilder
from tests.spark.bolts import KilledOnce
from tests.spark.running import run, state
from tests.spouts import timed
from tests.spouts.timed import Planned, Relay, Watch, secs

pytestmark = pytest.mark.slow


class Killed(KilledOnce, Watch):
    def open(self, context):
        super().open(context)
        Watch.open(self, context)


def watermarks(location, task=0):
    found = state(location, "watch", task)
    found.pop("rows", None)
    return [(secs(before), secs(after)) for _, (before, after, *_) in sorted(found.items())]


def test_a_worker_that_is_killed_changes_no_watermark(spark, place):
    script = [[[10], []], [[100], [40]], [[], [60]], [[200], [150]]]
    builder = TopologyBuilder("timed")
    builder.setSpout("spout", Planned(script), timestamp="at", lateness="5 seconds")
    builder.setBolt("relay", Relay()).shuffleGrouping("spout")
    builder.setBolt("watch", Killed(place)).globalGrouping("relay")
    topology = builder.createTopology()
    config = {"topology.max.spout.pending": 1}
    query = run(topology, spark, place / "ck", config, trigger={"availableNow": True})
    assert Path(place, "killed").exists()
    assert watermarks(place / "ck") == [(None, None), (None, 35), (35, 55), (55, 145)]
    told = (timed.START + timed.timedelta(seconds=145)).isoformat()
    assert query.lastProgress["watermarks"]["watch"] == told


def test_a_file_stream_in_any_time_zone_of_the_session(spark, place):
    """Spark marks times with the session's zone; what is meant is the same instant."""
    folder = place / "in"
    folder.mkdir()
    times = ["2026-01-01T00:00:10Z", "2026-01-01T01:00:30+01:00", "2026-01-01T00:00:20Z"]
    for number, text in enumerate(times):
        file = folder / f"{number}.json"
        file.write_text(json.dumps({"partition": number, "at": text}) + "\n")
        os.utime(file, (number, number))  # Spark reads the oldest first
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        frame = spark.readStream.schema("partition int, at timestamp").option("maxFilesPerTrigger", 1).json(str(folder))
        builder = TopologyBuilder("timed")
        builder.setStream("rows", frame, timestamp="at", lateness="5 seconds")
        builder.setBolt("watch", Watch(), 2).fieldsGrouping("rows", "partition")
        run(builder.createTopology(), spark, place / "ck", trigger={"availableNow": True})
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    for task in (0, 1):
        assert watermarks(place / "ck", task) == [(None, 5), (5, 25), (25, 25)]
