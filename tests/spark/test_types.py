"""Every type that a DataFrame can bring reaches bolts, and goes on from bolt to bolt, unchanged."""

import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql.types import Row

from statefx import TopologyBuilder
from tests.bolts import Pass, WithState
from tests.spark.bolts import Keep, PassBatch
from tests.spark.running import kept, run, state
from tests.spouts.timed import Watch, secs

pytestmark = pytest.mark.slow

FIELDS = """id int, yes boolean, tiny tinyint, small smallint, big bigint, single float, wide double, text string,
    raw binary, day date, at timestamp, wall timestamp_ntz, price decimal(38,18), tags array<string>,
    deep array<array<timestamp>>, pair struct<a:int,b:timestamp,c:struct<d:decimal(5,2)>>, by map<string,timestamp>,
    odd map<date,array<binary>>"""
AT = datetime(2024, 2, 29, 23, 59, 59, 999999, UTC)
OLD = datetime(1583, 1, 1, 0, 0, 0, 1, UTC)
VALUES = [
    (1, True, 127, -32768, 2**63 - 1, 0.5, -1e300, "héllo 日本 😀\0", b"\0\xff", date(2024, 2, 29), AT,
     datetime(2024, 3, 31, 2, 30), Decimal("12345678901234567890.123456789012345678"), ["a", None, ""],
     [[AT], [], None], {"a": 1, "b": AT, "c": {"d": Decimal("1.50")}}, [("k", AT)], [(date(1, 1, 1), [b"", None])]),
    (2, False, -128, 32767, -(2**63), float("inf"), -0.0, "", b"", date(1, 1, 1), OLD, datetime(1583, 1, 1),
     Decimal("-0.000000000000000001"), [], [], {"a": None, "b": None, "c": None}, [], []),
    (3, *[None] * 17),
]  # fmt: skip


class Look(WithState):
    def execute(self, tup, collector):
        self.state.put(tup.id, [repr(plain(value)) for value in tup])


def plain(value):
    """A value as statefx shows it to bolts, whatever class holds it: times in UTC."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def for_spark(value):
    """The same for createDataFrame: maps are dicts there."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return dict(value)
    return value


def frame_of(spark):
    rows = [[for_spark(value) for value in row] for row in VALUES]
    rows[1][16] = rows[1][17] = {}
    frame = spark.createDataFrame([Row(*row) for row in rows], FIELDS, verifySchema=False)
    return frame.repartition(2)


@pytest.mark.daily(1)
@pytest.mark.parametrize("settings", [{}, {
    "spark.sql.session.timeZone": "America/New_York", "spark.sql.execution.arrow.useLargeVarTypes": "true",
}], ids=["plain", "zone-and-large-types"])  # fmt: skip
def test_values_come_through_a_dataframe_and_between_bolts(spark, place, settings):
    session = spark.newSession()
    for key, value in settings.items():
        session.conf.set(key, value)
    builder = TopologyBuilder("types")
    builder.setStream("rows", frame_of(session))
    builder.setBolt("first", Look()).globalGrouping("rows")
    builder.setBolt("tuples", Pass(FIELDS), parallelism=2).shuffleGrouping("rows")
    builder.setBolt("second", Look()).globalGrouping("tuples")
    builder.setBolt("batches", PassBatch(FIELDS), parallelism=3).shuffleGrouping("tuples")
    builder.setBolt("third", Look()).globalGrouping("batches")
    run(builder.createTopology(), session, place / "ck")
    expected = {row[0]: [repr(plain(value)) for value in row] for row in VALUES}
    for component in ("first", "second", "third"):
        found = state(place / "ck", component)
        for key, values in expected.items():
            assert found[key] == values, f"{component}, row {key}"


def test_null_keys_and_keys_of_every_type_group(spark, place):
    builder = TopologyBuilder("keys")
    keys = ["yes", "tiny", "wide", "text", "raw", "day", "at", "wall", "price", "tags", "pair"]
    builder.setStream("rows", frame_of(spark))
    builder.setBolt("tuples", Pass(FIELDS), parallelism=2).shuffleGrouping("rows")
    both = builder.setBolt("look", Look(), parallelism=3).fieldsGrouping("rows", *keys).fieldsGrouping("tuples", *keys)
    assert both
    run(builder.createTopology(), spark, place / "ck")
    tasks = [state(place / "ck", "look", task) for task in range(3)]
    assert sorted(key for task in tasks for key in task) == [1, 2, 3]  # a row and its copy meet in one task


def test_a_stream_of_maps_alone_goes_to_two_bolts(spark, place):
    builder = TopologyBuilder("maps")
    builder.setStream("maps", spark.sql("select map('a', id) as m from range(5)"))
    for name in ("one", "two"):
        builder.setBolt(name, Keep(), parallelism=2).shuffleGrouping("maps")
    run(builder.createTopology(), spark, place / "ck")
    for name in ("one", "two"):
        found = [tup for task in kept(place / "ck", name, 2) for tup in task]
        assert sorted(found) == [([("a", number)],) for number in range(5)]


def test_event_time_is_the_same_instant_in_any_time_zone_of_the_session(spark, place):
    folder = place / "in"
    folder.mkdir()
    times = ["2026-01-01T00:00:10Z", "2026-01-01T01:00:30+01:00", "2026-01-01T00:00:20Z"]
    for number, text in enumerate(times):
        file = folder / f"{number}.json"
        file.write_text(json.dumps({"partition": number, "at": text}) + "\n")
        os.utime(file, (number, number))  # Spark reads the oldest first
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    frame = session.readStream.schema("partition int, at timestamp").option("maxFilesPerTrigger", 1).json(str(folder))
    builder = TopologyBuilder("timed")
    builder.setStream("rows", frame, timestamp="at", lateness="5 seconds")
    builder.setBolt("watch", Watch(), 2).fieldsGrouping("rows", "partition")
    run(builder.createTopology(), session, place / "ck", trigger={"availableNow": True})
    for task in (0, 1):
        found = state(place / "ck", "watch", task)
        found.pop("rows", None)
        watermarks = [(secs(before), secs(after)) for _, (before, after, *_) in sorted(found.items())]
        assert watermarks == [(None, 5), (5, 25), (25, 25)]
