"""Other sources than files: what they write down for themselves comes back with every start."""

from collections import Counter
from pathlib import Path

import pytest

from statefx import TopologyBuilder, submit
from statefx.spark.checkpoint import SparkCheckpoint
from tests.spark.bolts import Keep
from tests.spark.running import BOUND_SECS, feed, kept, lines_of, records, run, wait_for
from tests.spark.test_spark_state import keeping

pytestmark = pytest.mark.slow


def rate(spark, **options):
    return spark.readStream.format("rate").options(numPartitions=1, **options).load().selectExpr("value")


def test_a_source_that_begins_now_goes_on_from_there(spark, place):
    """Rows are numbered from the time that it has noted: none is lost or doubled, whoever runs it."""
    topology = keeping(rate(spark, rowsPerSecond=50))
    for _ in range(3):
        query = submit(topology, spark, place / "ck", trigger={"processingTime": "0 seconds"})
        done = len(query.recentProgress)
        wait_for(lambda query=query, done=done: len(query.recentProgress) > done, "rows to come")
        query.stop()
        assert query.exception() is None
    values = [value for (value,) in kept(place / "ck", "keep", 1)[0]]
    assert values == list(range(len(values)))
    assert len(values) >= 50


def test_the_same_stream_may_be_read_in_several_places(spark, place):
    """Spark has one source for them, and in a batch's offsets a line for each: the second source has number 1."""
    feed(place / "in", a=["x"], b=["y"])
    feed(place / "other", a=["z"])
    for number in range(2):
        lines = lines_of(spark, place / "in")
        builder = TopologyBuilder("several")
        builder.setStream("one", lines.union(lines))
        builder.setStream("two", lines)
        builder.setStream("three", lines_of(spark, place / "other"))
        keep = builder.setBolt("keep", Keep())
        for name in ("one", "two", "three"):
            keep.globalGrouping(name)
        run(builder.createTopology(), spark, place / "ck", trigger={"availableNow": True})
        feed(place / "in", **{f"c{number}": ["v"]})
        feed(place / "other", **{f"c{number}": ["w"]})
    assert Counter(value for (value,) in kept(place / "ck", "keep", 1)[0]) == Counter("xxxyyyvvvzw")


@pytest.fixture
def noting(monkeypatch):
    """A source that notes where it begins and then waits for its first row, as Kafka's does: what it writes."""
    rebuild, written = SparkCheckpoint.rebuild, []

    def rebuilt(self, *settings):
        rebuild(self, *settings)
        path = Path(self.folder, "sources", "1", "0")
        if not path.exists():
            path.parent.mkdir(parents=True)
            path.write_text(f'\0v1\n{{"topic":{{"0":{len(written)}}}}}', encoding="ascii")
        written.append(path.read_text(encoding="ascii"))

    monkeypatch.setattr(SparkCheckpoint, "rebuild", rebuilt)
    return written


def kinds_of_all(location):
    return [each.kind for each in records(location)]


@pytest.mark.parametrize("trigger", [None, {"once": True}, {"availableNow": True}])
def test_where_it_began_is_kept_though_no_row_has_come(spark, place, noting, trigger):
    """A driver may wait for the first row for hours, and die meanwhile; or look once, and end."""
    (place / "in").mkdir()
    topology = keeping(lines_of(spark, place / "in"))
    for _ in range(2):
        query = submit(topology, spark, place / "ck", trigger=trigger)
        if trigger is None:
            wait_for(lambda: "NOTED" in kinds_of_all(place / "ck"), "its beginning to be logged")
            query.stop()
        else:
            assert query.awaitTermination(BOUND_SECS)
    assert noting[0] == noting[1]
    assert kinds_of_all(place / "ck") == ["LINEAGE", "GENERATION", "NOTED", "GENERATION"]
