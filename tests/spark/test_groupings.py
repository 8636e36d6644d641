"""Which task gets a row, for every grouping, from a DataFrame and between bolts."""

from collections import Counter

import pytest

from statefx import BasicBolt, StatefulBolt, TopologyBuilder
from tests.spark.bolts import Keep, Pass, Sum
from tests.spark.running import kept, run, state

pytestmark = pytest.mark.slow

FIELDS = "key string, n long"
ROWS = [(f"key-{number % 20}" if number % 10 else None, number) for number in range(240)]
TASKS = 3


def grouped(declarer, kind, source, stream="default"):
    if kind in ("fields", "partialKey"):
        return getattr(declarer, f"{kind}Grouping")(source, "key", stream=stream)
    return getattr(declarer, {"local": "localOrShuffle"}.get(kind, kind) + "Grouping")(source, stream=stream)


def check(kind, tasks, tolerance=0):
    """Whether the rows that came to each task are what the grouping promises."""
    everything = Counter(row for task in tasks for row in task)
    assert everything == Counter(dict.fromkeys(ROWS, TASKS if kind == "all" else 1)), kind
    sizes = [len(task) for task in tasks]
    homes = {key: sum(any(row[0] == key for row in task) for task in tasks) for key, _ in ROWS}
    if kind == "all":
        assert sizes == [len(ROWS)] * TASKS
    elif kind == "global":
        assert sizes == [len(ROWS), 0, 0]
    elif kind == "fields":
        assert set(homes.values()) == {1}
        assert min(sizes) > 0
    elif kind == "partialKey":
        assert set(homes.values()) == {1, 2} or set(homes.values()) == {2}
        assert min(sizes) > 0
    elif kind == "direct":
        assert all(row[1] % TASKS == number for number, task in enumerate(tasks) for row in task)
    else:
        assert max(sizes) - min(sizes) <= tolerance, f"{kind}: {sizes}"


RAW = ("shuffle", "fields", "global", "all", "none", "local", "partialKey")


class Directed(BasicBolt):
    outputFields = {"default": FIELDS, "directed": FIELDS}

    def execute(self, tup, collector):
        collector.emit(tuple(tup))
        collector.emit(tuple(tup), stream="directed", task=tup.n % TASKS)


def test_between_bolts_by_every_grouping(spark, place):
    kinds = [*RAW, "direct"]
    builder = TopologyBuilder("bolts")
    builder.setStream("rows", spark.createDataFrame(ROWS, FIELDS))
    builder.setBolt("source", Directed(), parallelism=2).shuffleGrouping("rows")
    for kind in kinds:
        stream = "directed" if kind == "direct" else "default"
        grouped(builder.setBolt(f"keep-{kind}", Keep(), parallelism=TASKS), kind, "source", stream)
    run(builder.createTopology(), spark, place / "ck")
    for kind in kinds:
        check(kind, kept(place / "ck", f"keep-{kind}", TASKS), tolerance=2)


class Meet(StatefulBolt):
    """Notes which sources have brought each key."""

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.key, sorted({*self.state.get(tup.key, []), tup._source}))


def test_diamond_fan_out_and_skipped_levels(spark, place):
    builder = TopologyBuilder("shapes")
    builder.setStream("rows", spark.createDataFrame(ROWS, FIELDS))
    builder.setBolt("top", Pass(FIELDS), parallelism=2).shuffleGrouping("rows")
    builder.setBolt("left", Pass(FIELDS), parallelism=3).fieldsGrouping("top", "n")
    builder.setBolt("right", Pass(FIELDS), parallelism=2).shuffleGrouping("top")  # shares its Spark tasks with top
    builder.setBolt("lower", Pass(FIELDS), parallelism=2).allGrouping("left")
    join = builder.setBolt("join", Keep(), parallelism=2).fieldsGrouping("left", "key").fieldsGrouping("right", "key")
    join.fieldsGrouping("top", "key").fieldsGrouping("lower", "key").fieldsGrouping("rows", "key")
    builder.setBolt("sum", Sum()).globalGrouping("lower").globalGrouping("rows")
    builder.setBolt("total", Sum()).globalGrouping("sum")
    topology = builder.createTopology()
    for times in (1, 2):
        query = run(topology, spark, place / "ck")
        tasks = kept(place / "ck", "join", 2)
        copies = 1 + 1 + 1 + 2 + 1  # left, right, top, lower twice, rows
        assert Counter(row for task in tasks for row in task) == Counter(dict.fromkeys(ROWS, copies * times))
        assert not {row[0] for row in tasks[0]} & {row[0] for row in tasks[1]}
        assert state(place / "ck", "sum") == {"total": 3 * times * sum(n for _, n in ROWS)}
    assert query.lastProgress["rows"]["join"] == copies * len(ROWS)
    assert state(place / "ck", "total")["total"] == 9 * sum(n for _, n in ROWS)
