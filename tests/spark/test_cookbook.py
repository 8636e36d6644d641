"""What the cookbook says of a source that never is silent, on Spark."""

from datetime import UTC, datetime, timedelta

import pytest

from statefx import TopologyBuilder, submit
from tests.docs.test_code_blocks import ROOT, program
from tests.spark.bolts import Keep
from tests.spark.running import feed, kept, wait_for

pytestmark = pytest.mark.slow

USERS = "user string, at timestamp, cents long"


def test_windows_end_while_their_input_is_silent(spark, place, monkeypatch):
    monkeypatch.chdir(place)
    page = {"__name__": "windows"}
    exec(program((ROOT / "docs" / "cookbook" / "windows.md").read_text(encoding="utf-8")), page)
    start = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=3)
    times = [(start + timedelta(seconds=secs)).isoformat() for secs in (1, 59, 70)]
    feed(place / "in", a=[f"ann,{times[0]},100", f"ann,{times[1]},50", f"bob,{times[2]},20"])

    builder = TopologyBuilder("averages")
    payments = spark.readStream.schema(USERS).csv(str(place / "in"))
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    ticks = ticks.selectExpr("cast(null AS string) AS user", "timestamp AS at", "0L AS cents")
    builder.setStream("payments", payments, timestamp="at", lateness="1 second", idleAfter="2 seconds")
    builder.setStream("ticks", ticks, timestamp="at", lateness="1 second")
    averages = builder.setBolt("averages", page["Payments"]().withTumblingWindow("1 minute"), 2)
    averages.fieldsGrouping("payments", "user").fieldsGrouping("ticks", "user")
    builder.setBolt("out", Keep()).globalGrouping("averages")
    query = submit(builder.createTopology(), spark, place / "ck", trigger={"processingTime": "100 milliseconds"})

    def ended():
        return [row for row in kept(place / "ck", "out", 1)[0] if row[0] is not None] if query.lastProgress else []

    wait_for(lambda: len(ended()) == 2, "the windows to end")
    query.stop()
    assert sorted(ended()) == [("ann", start, 2, 75.0), ("bob", start + timedelta(minutes=1), 1, 20.0)]
