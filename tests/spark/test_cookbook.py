"""The cookbook's bolts on Spark, where Spark adds what TopologyTester can't: a source that never is silent."""

import time

import pytest

from statefx import TopologyBuilder, submit
from tests.docs.test_code_blocks import ROOT, program
from tests.spark.running import feed, state, wait_for

pytestmark = pytest.mark.slow


def test_a_window_closes_while_its_input_is_silent(spark, place, monkeypatch):
    monkeypatch.chdir(place)
    page = {"__name__": "windows"}
    exec(program((ROOT / "docs" / "cookbook" / "windows.md").read_text(encoding="utf-8")), page)
    now = int(time.time())
    feed(place / "in", a=[f"{now},ann,100", f"{now},bob,20"])

    builder = TopologyBuilder("minutes")
    payments = spark.readStream.schema("at long, user string, cents long").csv(str(place / "in"))
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    page["LATE_SECS"] = -90  # so that the clock is far enough with the first ticks
    builder.setStream("payments", payments)
    builder.setStream("ticks", ticks.selectExpr("cast(timestamp AS long) AS at"))
    builder.setBolt("clock", page["Clock"]()).globalGrouping("payments").globalGrouping("ticks")
    totals = builder.setBolt("totals", page["Totals"](), parallelism=2)
    totals.fieldsGrouping("payments", "user").allGrouping("clock")
    query = submit(builder.createTopology(), spark, place / "ck", trigger={"processingTime": "100 milliseconds"})

    def windows():
        return {key: cents for task in range(2) for key, cents in state(place / "ck", "totals", task).items()}

    wait_for(lambda: query.lastProgress and query.lastProgress["txid"] > 3, "transactions of ticks alone")
    wait_for(lambda: set(windows()) == {"reached"}, "the window to close")
    reached = windows()["reached"]
    wait_for(lambda: windows()["reached"] > reached, "the clock to go on")
    query.stop()
