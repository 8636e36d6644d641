"""``Checkpoint.toDataFrame``: state as a DataFrame on a real Spark, also beside a topology that runs."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, submit
from statefx.errors import CheckpointError, ConfigError
from statefx.testing import TopologyTester
from tests.admin.checkpoints import Keeper, put
from tests.admin.test_own_spaces import Values, at, clicks
from tests.testing.places import place

__all__ = ["place"]

TYPED = {"key": "word string", "value": "count long"}


class Count(StatefulBolt):
    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts.put(tup.value, self.counts.get(tup.value, 0) + 1)


@pytest.mark.soak
def test_a_range_and_a_filter(spark: Any, place: Path) -> None:
    """Of one provider; `test_state_frame_filters` has them all."""
    with Keeper(place, "rocksdb") as keeper:
        keeper.run(put(a=1, b=2, c=3), put(a=4, b=None))
        frame = Checkpoint(keeper.folder).toDataFrame(spark, "keep", schema=TYPED)
        assert frame.columns == ["word", "count", "task", "space"]
        assert {(row.word, row["count"]) for row in frame.collect()} == {("a", 4), ("c", 3)}
        assert frame.where("count > 3").agg(F.sum("count")).first()[0] == 4
        assert frame.rdd.getNumPartitions() == 2
        ranged = Checkpoint(keeper.folder).toDataFrame(
            spark, "keep", start="b", task=frame.where("word = 'c'").first().task
        )
        assert [(row.key, row.value) for row in ranged.collect()] == [('"c"', "3")]


@pytest.mark.soak
def test_changes_between_two_transactions(spark: Any, place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(put(a=1, b=2, c=3), put(a=4, b=None, d=1))
        changed = (
            Checkpoint(keeper.folder).toDataFrame(spark, "keep", diff=(1, 2), schema=TYPED).orderBy("word").collect()
        )
        assert [tuple(row)[:4] for row in changed] == [
            ("update", "a", 1, 4),
            ("delete", "b", 2, None),
            ("insert", "d", None, 1),
        ]
        plain = Checkpoint(keeper.folder).toDataFrame(spark, "keep", diff=(1, 2)).where("op = 'update'").first()
        assert (plain.key, plain.before, plain.after) == ('"a"', "1", "4")


def test_a_file_that_is_damaged_or_not_seen(spark: Any, place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(put(a=1, b=2, c=3))
        frame = Checkpoint(keeper.folder).toDataFrame(spark, "keep")
        for path in (keeper.folder / "state").rglob("*.changelog"):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        with pytest.raises(PythonException, match=r"StateCorruptedError.*changelog"):
            frame.collect()
        shutil.rmtree(keeper.folder)
        with pytest.raises(PythonException, match="is not visible on executor"):
            frame.collect()


def test_it_is_refused_before_a_job(spark: Any, place: Path) -> None:
    with pytest.raises(CheckpointError, match="has a topology been submitted there"):
        Checkpoint(place).toDataFrame(spark, "keep")
    with pytest.raises(ConfigError, match="SparkSession"):
        Checkpoint(place).toDataFrame(place, "keep")  # type: ignore[arg-type]


@pytest.mark.soak
def test_beside_a_topology_that_runs(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    builder = TopologyBuilder("counts")
    builder.setStream("lines", spark.readStream.text(str(folder)))
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("lines", "value")
    query = submit(builder.createTopology(), spark, tmp_path / "checkpoint", trigger={"processingTime": "0 seconds"})
    try:
        for number in range(1, 3):
            (folder / f"{number}.txt").write_text("a\nb\n")
            query.processAllAvailable()
            assert query.isActive
            frame = Checkpoint(tmp_path / "checkpoint").toDataFrame(spark, "count", schema=TYPED)
            assert {row["count"] for row in frame.collect()} == {number}
    finally:
        query.stop()
    with Checkpoint(tmp_path / "checkpoint").state("count") as view:
        assert dict(view.items()) == {"a": 2, "b": 2}


def test_open_windows_are_read_with_their_bounds(spark: Any, place: Path) -> None:
    bolt = Values().withTumblingWindow("10 minutes")
    with TopologyTester(clicks(bolt), place / "ck", now=at(100)) as tester:
        tester.send({"clicks": [("ann", 1, at(1)), ("bob", 2, at(2))]})
    frame = Checkpoint(place / "ck").toDataFrame(spark, "windows", map="windows")
    assert frame.columns == ["key", "start", "end", "value", "task", "space"]
    assert [(row.key, row.value) for row in frame.where("key = '\"ann\"'").collect()] == [('"ann"', "1001")]
    assert frame.selectExpr("end - start = interval 10 minutes as whole").where("whole").count() == 2
