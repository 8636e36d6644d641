"""Filters of a DataFrame of state: the rows are those of the filtered table, and what they leave out is not read."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import ArithmeticException, PythonException
from pyspark.sql import functions as F  # noqa: N812

from statefx import Checkpoint, StatefulBolt
from tests.admin.checkpoints import KEYS, KeepAll, Keeper, keeper, keeping, put, ruled, server
from tests.testing.places import place

__all__ = ["keeper", "place", "server"]

TYPED = {"key": "word string", "value": "count long"}
WORDS = ["", "A", "B\0", "a", "a\0", "ab", "b", "bé", "c", "ä", "\U0001f600"]


class Put(StatefulBolt):
    """Keeps what its class says, in each task."""

    keys: list[Any] = []

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        for number, key in enumerate(self.keys):
            self.state.put(key, number)


class Doubles(Put):
    keys = [-1.5, -0.0, 0.25, float("inf"), float("-inf"), None, 0, 1, 2**53]


class Mixed(Put):
    keys = ["a", b"a", "b", b"b", None, "\0"]


class Days(Put):
    keys = [date(2026, 1, day) for day in range(1, 9)]


class Pairs(Put):
    keys = [(word, number) for word in WORDS for number in (-1, 0, 7)]


def same(spark: Any, frame: Any, conditions: list[Any]) -> None:
    """Compare with what Spark says of each row of the collected table, all filters in one job."""
    rows = frame.collect()
    asked = [F.expr(each) if isinstance(each, str) else each for each in conditions]
    named = [each.alias(f"c{number}") for number, each in enumerate(asked)]
    answers = spark.createDataFrame(rows, frame.schema).coalesce(1).select(*named).collect()
    for number, each in enumerate(conditions):
        found = sorted(map(repr, frame.filter(each).collect()))
        assert found == sorted(repr(row) for row, of in zip(rows, answers, strict=True) if of[number]), each


@pytest.mark.daily(1)
def test_each_provider_has_the_rows_of_the_filtered_table(spark: Any, keeper: Keeper) -> None:
    keeper.run(put(**dict.fromkeys(WORDS, 0)), put(**{word: number for number, word in enumerate(WORDS)}))
    conditions = [
        "task = 0", "task in (1, 5)", "task > 7", "1 > task", "task = 1 or word = 'a'", "task = 0.5", "task is null",
        "word = 'a'", "WORD = 'A'", "word = 'A' collate UTF8_LCASE", "word in ('a', 'b', null)", "word <=> 'ab'",
        "word >= 'a' and word < 'b'", "'b' <= word", "not (word > 'a')", "word between 'B' and 'b'", "word like 'a%'",
        "word = 'a' and word = 'ab'", "word is null", "word <> 'a'", "upper(word) = 'A'", "word > 'a' and count > 5",
        "word in ('a', 'ab', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k')", "word = substr('xa', 2) and task < 2",
        F.col("word") == "a", F.col("word").isin(WORDS), F.lit("b") < F.col("word"), F.col("count") == 3,
    ]  # fmt: skip
    ranged = [
        "key = '\"a\"'",
        "key in ('\"ab\"', '\"A\"', '1')",
        "key > '\"a\"'",
        "key = 'a'",
        "task = 0 and value = '3'",
    ]
    # What a filter has read is the same for all providers: a range, of tasks.
    some = slice(None) if "rocksdb" in keeper.config["topology.state.provider"] else slice(None, None, 7)
    same(spark, Checkpoint(keeper.folder).toDataFrame(spark, "keep", schema=TYPED), conditions[some])
    same(spark, Checkpoint(keeper.folder).toDataFrame(spark, "keep", start="a", stop="c"), ranged[some])


@pytest.mark.soak
@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("bolt", "key", "conditions"),
    [
        (Doubles, "k double", ["k = 0", "k = -0.0D", "k > -0.0D", "k <= 0", "k < double('NaN')", "k >= double('inf')",
                               "k in (0.25D, double('NaN'))", "k > double('NaN')", "k <=> null", "k = 1 or k = 0"]),
        (Mixed, "k string", ["k = 'a'", "k < 'b'", "k is null", "k >= 'a' and k < 'b'", "k in ('a', 'b')"]),
        (Days, "k date", ["k = '2026-01-03'", "k > date'2026-01-03'", "k between '2026-01-02' and '2026-01-04'"]),
        (Pairs, "a string, b int", ["a = 'a'", "a = 'a' and b = 7", "a in ('a', 'c') and b >= 0", "b = 7", "a < 'b'",
                                    "a >= 'a' and a < 'b' and b < 7", "A = 'a' and B > 100", "a = 'a' and b > 5.5"]),
        (KeepAll, None, ["key = '7'", "key = '\"a\"'", "key = 'null'", "key = '[\"a\", 1]'", "key >= '\"a'",
                         "key in ('0', '[\"a\", [1, null]]', 'true', '0.25')", "key = '[]'", "key = '\"a\\\\u0000b\"'",
                         "key like '\"b%'", "key like '\"datetime%'"]),
    ],
)  # fmt: skip
def test_keys_of_other_types(spark: Any, place: Path, bolt: Any, key: str | None, conditions: list[str]) -> None:
    with Keeper(place) as keeper:
        keeper.run(put(x=1), topology=keeping(1, bolt()))
        frame = Checkpoint(keeper.folder).toDataFrame(spark, "keep", schema={} if key is None else {"key": key})
        assert frame.count() == len(KEYS if bolt is KeepAll else bolt.keys)
        same(spark, frame, conditions)


def test_maps_and_changes(spark: Any, place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run({"rows": [(word, 1, "plain") for word in WORDS]}, put(a=1, b=2, c=3), put(a=4, b=None, d=1))
        same(
            spark,
            Checkpoint(keeper.folder).toDataFrame(spark, "keep", map="plain", schema=TYPED),
            ["word = 'a'", "word > 'b'"],
        )
        changed = Checkpoint(keeper.folder).toDataFrame(spark, "keep", diff=(2, 3), schema=TYPED)
        same(spark, changed, ["word = 'a'", "word >= 'b' and op = 'insert'", "task = 1", "before is null"])
    with Keeper(place) as keeper:
        keeper.folder = place / "rules"
        keeper.run({"rows": [("a", 1)], "rules": [("limit", 5)]}, topology=ruled())
        same(
            spark,
            Checkpoint(keeper.folder).toDataFrame(spark, "keep", map="rules", schema=TYPED),
            ["task = 0", "task = 1"],
        )


@pytest.mark.soak
def test_one_frame_filtered_in_several_ways(spark: Any, place: Path) -> None:
    """A data source of Spark's that is given filters fails here: all uses of one read what the last of them keeps."""
    with Keeper(place) as keeper:
        keeper.run(put(**{word: number for number, word in enumerate(WORDS)}))
        frame = Checkpoint(keeper.folder).toDataFrame(spark, "keep", schema=TYPED)
        first, second = frame.filter("word = 'a'"), frame.where("word > 'b'").where(frame.task >= 0)
        assert [row.word for row in first.collect()] == ["a"]
        assert frame.select("word").count() == len(WORDS)
        assert first.union(second).union(frame).count() == 1 + len([w for w in WORDS if w > "b"]) + len(WORDS)
        assert first.join(frame, "word").count() == 1
        assert second.select(frame.word, frame["count"]).count() == second.count()
        with pytest.raises(ArithmeticException):
            frame.filter("task = 1 / 0").collect()
        chained = frame.filter("word >= 'a'").filter("word < 'b'").filter(F.col("word") != "ab").filter("rand() >= 0")
        assert {row.word for row in chained.collect()} == {"a", "a\0"}


def test_a_frame_in_the_cache_is_used(spark: Any, place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(put(a=1, b=2, c=3))
        frame = Checkpoint(keeper.folder).toDataFrame(spark, "keep", schema=TYPED).cache()
        try:
            assert frame.count() == 3
            damage(keeper.folder, *(0, 1))
            assert frame.filter("word = 'a'").collect() == [row for row in frame.collect() if row.word == "a"]
        finally:
            frame.unpersist()


@pytest.mark.daily(1)
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_files_of_other_tasks_are_not_opened(spark: Any, place: Path, provider: str) -> None:
    with Keeper(place, provider) as keeper:
        keeper.run(put(**dict.fromkeys(WORDS, 1)))
        frame = Checkpoint(keeper.folder).toDataFrame(spark, "keep", schema=TYPED)
        of_task = {task: frame.filter(f"task = {task}").collect() for task in (0, 1)}
        damage(keeper.folder, 1)
        assert frame.filter("task = 0").rdd.getNumPartitions() == 1
        for condition in ("task = 0", "task in (0, 9)", "task < 1 and count = 1"):
            assert frame.filter(condition).collect() == of_task[0] != []
        assert frame.filter("task > 5").collect() == []
        with pytest.raises(PythonException, match="StateCorruptedError"):
            frame.filter("task >= 0").collect()


@pytest.mark.soak
def test_other_blocks_are_not_read(spark: Any, place: Path) -> None:
    """But the next one, and the last one, which could have keys of other types."""
    with Keeper(place, "rocksdb") as keeper:
        keeper.run({"rows": [(f"k{n:06d}", n, "own") for n in range(33_000)]}, topology=keeping(1))
        damage(keeper.folder, 0, at=-200_000)  # the third block of five
        for schema, conditions in [
            (TYPED, ["word = 'k000005'", "word in ('k000005', 'k008000')", "word >= 'k000005' and word < 'k000006'"]),
            ({}, ["key = '\"k000005\"'", "key in ('\"k000005\"', '7')"]),
        ]:
            frame = Checkpoint(keeper.folder).toDataFrame(spark, "keep", schema=schema)
            for each in conditions:
                assert "k000005" in frame.filter(each).collect()[0][0]
            with pytest.raises(PythonException, match="StateCorruptedError"):
                frame.filter(F.col(frame.columns[0]) != "").count()


def damage(folder: Path, *tasks: int, at: int = -10) -> None:
    """Change a byte in each file of tasks, by default in the last block."""
    paths = [path for task in tasks for path in (folder / f"state/keep/{task}").glob("*.changelog")]
    assert paths
    for path in paths:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
