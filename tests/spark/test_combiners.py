"""Combiners on real Spark: rows of a DataFrame and of files, added up before the shuffle, also when a worker dies."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from statefx import TopologyBuilder, openState, submit
from statefx.connectors.files import FilePartitionedSpout
from tests.runtime.test_combiners import ByBatch, ByTuple

pytestmark = pytest.mark.slow

WORDS = [f"w{number % 7}" for number in range(2000)]


class Killed(ByBatch):
    """The worker that adds up is killed once: Spark runs its task again, and what it has sent never counts."""

    def __init__(self, mark):
        self.mark = str(mark)

    def combineBatch(self, batch):
        if not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().combineBatch(batch)


def run(builder, spark, place):
    query = submit(builder.createTopology(), spark, place / "ck", trigger={"availableNow": True})
    query.awaitTermination()
    with openState(place / "ck", "count") as counts:
        assert dict(counts.items()) == Counter(WORDS)
    return query.lastProgress


def test_rows_of_a_dataframe_are_added_up_before_they_are_shuffled(spark, place):
    builder = TopologyBuilder("words")
    (place / "in").mkdir()
    spark.createDataFrame([(word,) for word in WORDS], "word string").repartition(2).write.parquet(str(place / "in/a"))
    builder.setStream("words", spark.readStream.schema("word string").parquet(str(place / "in/*")))
    builder.setBolt("count", ByTuple(), parallelism=2).fieldsGrouping("words", "word")
    progress = run(builder, spark, place)
    assert progress["numInputRows"] == len(WORDS)
    assert progress["rows"]["count"] <= 2 * 7, "a sum of each word from each of two tasks"


def test_a_worker_that_is_killed_while_it_adds_up_changes_nothing(spark, place):
    (place / "in").mkdir()
    for part in range(2):
        (place / f"in/{part}").write_text("".join(f"{word}\n" for word in WORDS[part::2]))
    builder = TopologyBuilder("words")
    spout = FilePartitionedSpout(place / "in", "csv", "word string", header=False)
    builder.setSpout("words", spout, parallelism=2)
    builder.setBolt("count", Killed(place / "killed"), parallelism=2).fieldsGrouping("words", "word")
    progress = run(builder, spark, place)
    assert (place / "killed").exists()
    assert (progress["numInputRows"], progress["rows"]["count"]) == (len(WORDS), 14)
