"""``Checkpoint.write``: rows become state, in the tasks in which the topology looks for them, all or nothing."""

import pytest

from statefx import Checkpoint, StatefulBolt, TopologyBuilder
from statefx.errors import CheckpointError, ConfigError
from statefx.testing import TopologyTester, rows
from tests.testing.topologies import REFERENCES

pytestmark = pytest.mark.slow

TYPED = {"key": "word string", "value": "n long"}
SEEN = {f"w{number}": number + 1 for number in range(60)}


class Count(StatefulBolt):
    outputFields = "word string, n long"

    def initState(self, state):
        self.counts = state
        self.last = state.map("last")

    def execute(self, tup, collector):
        self.counts.put(tup.word, self.counts.get(tup.word, 0) + 1)
        self.last.put(tup.word, tup.word)


def topology(tasks=3, bolt=None):
    builder = TopologyBuilder("words")
    builder.setStream("words", rows("word string"))
    builder.setBolt("count", bolt or Count(), tasks).fieldsGrouping("words", "word")
    return builder.createTopology()


def sent(seen):
    return {"words": [(word,) for word, times in seen.items() for _ in range(times)]}


def kept(folder, **options):
    with Checkpoint(folder).state("count", **options) as view:
        return dict(view.items())


@pytest.fixture
def folder(place, provider):
    config = {"topology.state.provider": REFERENCES[provider]}
    with TopologyTester(topology(), place / "ck", config) as tester:
        tester.send(sent(SEEN))
    return place / "ck"


def go_on(folder, provider, place):
    """Count each word once more, on a machine without caches."""
    config = {"topology.state.provider": REFERENCES[provider]}
    with TopologyTester(topology(), folder, config, cache=place / "elsewhere") as tester:
        tester.send({"words": [(word,) for word in [*SEEN, "new"]]})


@pytest.mark.parametrize("provider", ["rocksdb"])
def test_what_was_read_is_written_elsewhere(spark, folder, provider, place):
    config = {"topology.state.provider": REFERENCES[provider]}
    with TopologyTester(topology(2), place / "other", config) as tester:
        tester.send(sent({f"x{number}": 1 for number in range(40)}))
    rows_read = Checkpoint(folder).toDataFrame(spark, "count", schema=TYPED)
    done = Checkpoint(place / "other").write("count", rows_read, mode="overwrite", schema=TYPED)
    assert (done.rows, done.deleted) == (60, 0)
    assert kept(place / "other") == SEEN
    assert set(kept(place / "other", map="last")) == {f"x{number}" for number in range(40)}, "maps stay"
    with TopologyTester(topology(2), place / "other", config, cache=place / "elsewhere") as tester:
        tester.send({"words": [(word,) for word in SEEN]})
    assert kept(place / "other") == {word: times + 1 for word, times in SEEN.items()}, "each is in its task"


@pytest.mark.daily(1)
def test_rows_replace_add_and_delete(spark, folder, provider, place):
    Checkpoint(folder).savepoint("before")
    given = spark.createDataFrame([("w1", 100), ("new", 7), ("w2", None), ("nobody", None)], "word string, n long")
    done = Checkpoint(folder).write("count", given, schema=TYPED)
    assert (done.component, done.rows, done.deleted) == ("count", 2, 2)
    expected = {**SEEN, "w1": 100, "new": 7}
    del expected["w2"]
    assert kept(folder) == expected
    assert Checkpoint(folder).verify().ok
    go_on(folder, provider, place)
    assert kept(folder) == {word: expected.get(word, 0) + 1 for word in [*expected, "w2"]}
    Checkpoint(folder).restore("before")
    assert kept(folder) == SEEN


@pytest.mark.parametrize("provider", ["rocksdb"])
def test_json(spark, folder):
    given = spark.createDataFrame([('"w1"', "5"), ('"new"', "[1, null]")], "value string, key string")
    with pytest.raises(ConfigError, match="no column 'key'"):
        Checkpoint(folder).write("count", given.withColumnRenamed("key", "k"))
    Checkpoint(folder).write("count", given.toDF("key", "value"))
    found = kept(folder)
    assert (found["w1"], found["new"], found["w3"]) == (5, [1, None], 4)


@pytest.mark.daily(4)
@pytest.mark.parametrize("provider", ["rocksdb"])
@pytest.mark.parametrize(
    ("given", "ddl", "options", "says"),
    [
        ([("w1", 1), ("w1", 2)], "word string, n long", {"schema": TYPED}, "two rows have the key 'w1'"),
        ([("w1", 1)], "word string, n long", {}, "there is no column 'key'"),
        ([("{", "1")], "key string, value string", {}, "'{' in column 'key' is no JSON"),
        ([("1", "1")], "key string, value string", {}, r"its grouping is by \(word string\), and its key 1"),
        (
            [("w1", 1.0), ("w2", 2.5)],
            "word string, n double",
            {"schema": TYPED},
            "the row with key 'w2' has 2.5 in the column 'n', which is of type double, and 'count' has a value of type",
        ),
        ([("w1", "x")], "word string, n string", {"schema": TYPED}, "the row with key 'w1' has 'x' in the column 'n'"),
        ([("w1", True)], "word string, n boolean", {"schema": TYPED}, "the row with key 'w1' has True in the column"),
        ([(1, 1)], "word long, n long", {"schema": TYPED}, "a row has 1 in the column 'word'"),
        (
            [("w1", 1, "map last")],
            "word string, n long, space string",
            {"schema": TYPED},
            "the column 'space' says 'map last' of a row",
        ),
        ([("w1", 1)], "word string, n long", {"schema": TYPED, "mode": "add"}, "mode must be 'merge' or 'overwrite'"),
    ],
)
def test_what_can_not_be_written(spark, folder, given, ddl, options, says):
    before = kept(folder)
    with pytest.raises((ConfigError, CheckpointError), match=says):
        Checkpoint(folder).write("count", spark.createDataFrame(given, ddl), **options)
    assert kept(folder) == before


def test_few_keys_prove_nothing_and_a_function_says_it(spark, place):
    with TopologyTester(topology(2), place / "few") as tester:
        tester.send(sent({"a": 1, "b": 2}))
    given = spark.createDataFrame([("c", 3)], "word string, n long")
    with pytest.raises(CheckpointError, match=r"can't be written to: it has 2 keys.*with so few that may be chance"):
        Checkpoint(place / "few").write("count", given, schema=TYPED)
    Checkpoint(place / "few").write("count", given, schema=TYPED, groupingKey=lambda key: key)
    assert kept(place / "few") == {"a": 1, "b": 2, "c": 3}
    with TopologyTester(topology(1), place / "one") as tester:
        tester.send(sent({"a": 1}))
    Checkpoint(place / "one").write("count", given, schema=TYPED)
    assert kept(place / "one") == {"a": 1, "c": 3}


@pytest.mark.parametrize("provider", ["rocksdb"])
def test_nothing_committed_and_no_such_bolt(spark, folder, place):
    given = spark.createDataFrame([("c", 3)], "word string, n long")
    with TopologyTester(topology(), place / "new"):
        pass
    with pytest.raises(CheckpointError, match="has committed nothing yet: run its topology once"):
        Checkpoint(place / "new").write("count", given, schema=TYPED)
    with pytest.raises(CheckpointError, match="holds no state of 'counts'"):
        Checkpoint(folder).write("counts", given, schema=TYPED)


class Newer(Count):
    stateVersion = 2

    def migrateState(self, version, key, value):
        return value * 1000


@pytest.mark.parametrize("provider", ["memory"])
def test_values_are_of_the_version_that_last_ran(spark, folder, provider, place):
    config = {"topology.state.provider": REFERENCES[provider]}
    with TopologyTester(topology(bolt=Newer()), folder, config) as tester:
        tester.send({"words": [("w0",)]})
    Checkpoint(folder).write("count", spark.createDataFrame([("w1", 5)], "word string, n long"), schema=TYPED)
    with TopologyTester(topology(bolt=Newer()), folder, config) as tester:
        tester.send({"words": [("w1",), ("w2",)]})
        assert {word: tester.state("count")[word] for word in ("w0", "w1", "w2")} == {"w0": 1001, "w1": 6, "w2": 3001}
