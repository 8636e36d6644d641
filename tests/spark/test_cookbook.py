"""The cookbook's bolts on Spark: over several starts, and with a source that never is silent."""

import time
from collections import Counter

import pytest

from statefx import TopologyBuilder, submit
from tests.docs.test_code_blocks import ROOT, program
from tests.spark.bolts import Keep
from tests.spark.running import feed, kept, run, state, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def page(place, monkeypatch):
    monkeypatch.chdir(place)
    names = {"__name__": "windows"}
    exec(program((ROOT / "docs" / "cookbook" / "windows.md").read_text(encoding="utf-8")), names)
    return names


def test_a_window_closes_while_its_input_is_silent_and_no_sooner(spark, place, page):
    start = int(time.time()) // 60 * 60 - 120
    feed(place / "in", a=[f"{start},ann,100", f"{start + 1},bob,20"])
    page["LATE_SECS"], page["IDLE"] = 0, 4

    builder = TopologyBuilder("minutes")
    payments = spark.readStream.schema("at long, user string, cents long").csv(str(place / "in"))
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    builder.setStream("payments", payments)
    builder.setStream("ticks", ticks.selectExpr("cast(timestamp AS long) AS at"))
    builder.setBolt("clock", page["Clock"]("payments", "ticks")).globalGrouping("payments").globalGrouping("ticks")
    totals = builder.setBolt("totals", page["Totals"](), parallelism=2)
    totals.fieldsGrouping("payments", "user").allGrouping("clock")
    builder.setBolt("out", Keep()).globalGrouping("totals")
    query = submit(builder.createTopology(), spark, place / "ck", trigger={"processingTime": "100 milliseconds"})

    wait_for(lambda: kept(place / "ck", "out", 1) != [[]] if query.lastProgress else None, "the window to close")
    query.stop()
    assert sorted(kept(place / "ck", "out", 1)[0]) == [(start, "ann", 100), (start, "bob", 20)]
    clock = state(place / "ck", "clock")
    assert clock["newest"]["payments"] == start + 1
    assert clock["silent"]["payments"] >= 4  # ticks alone closed it


def test_pairs_and_sessions_are_those_of_a_recount_after_restarts(spark, place, page):
    """Orders are an hour ahead of payments; each start is a driver that goes on with what the one before has left."""
    fields = {"orders": "id long, at long", "payments": "id long, at long", "clicks": "at long, user string"}

    def topology():
        builder = TopologyBuilder("times")
        clock = builder.setBolt("clock", page["Clock"](*fields))
        for name, schema in fields.items():
            files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).csv(str(place / name))
            builder.setStream(name, files)
            clock.globalGrouping(name)
        pairs = builder.setBolt("pairs", page["Pairs"](), parallelism=2).allGrouping("clock")
        pairs.fieldsGrouping("orders", "id").fieldsGrouping("payments", "id")
        sessions = builder.setBolt("sessions", page["Sessions"](), parallelism=2).allGrouping("clock")
        sessions.fieldsGrouping("clicks", "user")
        for bolt in ("pairs", "sessions"):
            builder.setBolt(f"{bolt}-out", Keep()).globalGrouping(bolt)
            not_paired = builder.setBolt(f"{bolt}-late", Keep()).globalGrouping(bolt, stream="late")
            if bolt == "pairs":
                not_paired.globalGrouping(bolt, stream="alone")
        return builder.createTopology()

    orders = [(number % 4, 1000 + 700 * number) for number in range(12)]
    payments = [(id, at + 30 * id) for id, at in orders if id or at > 5000]
    clicks = [(1000, "ann"), (1310, "ann"), (1290, "ann"), (1320, "bob"), (1700, "bob"), (1690, "ann")]
    starts = [
        {"orders": [orders[:5], orders[5:]], "clicks": [clicks[:2]]},
        {"payments": [payments[:2], payments[2:5]], "clicks": [clicks[2:3], clicks[3:]]},
        {"payments": [payments[5:]]},
        {name: [[(10**6, "end") if name == "clicks" else (-len(name), 10**6)]] for name in fields},
    ]
    for number, inputs in enumerate(starts):
        for name in fields:
            files = enumerate(inputs.get(name, []))
            feed(
                place / name, **{f"{number}-{part}": [",".join(map(str, row)) for row in rows] for part, rows in files}
            )
        run(topology(), spark, place / "ck", trigger={"availableNow": True})

    def out(bolt):
        return Counter(kept(place / "ck", bolt, 1)[0])

    assert out("pairs-out") == Counter(
        (id, ordered, paid)
        for id, ordered in orders
        for other, paid in payments
        if id == other and abs(paid - ordered) <= 600
    )
    assert out("pairs-late") == Counter(("orders", id, at) for id, at in orders if not id and at <= 5000)
    assert out("sessions-out") == Counter(
        [("ann", 1000, 1310, 3), ("ann", 1690, 1690, 1), ("bob", 1320, 1320, 1), ("bob", 1700, 1700, 1)]
    )
    assert out("sessions-late") == Counter()
