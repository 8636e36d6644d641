"""A topology that is submitted with other names and other parallelism goes on with all it has."""

import pytest

from statefx import Count, StatefulBolt, TopologyBuilder, WindowedBolt, downgrade, submit
from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError
from tests.spark.bolts import recount
from tests.spark.running import feed, kinds, lines_of, run, state

pytestmark = pytest.mark.slow

TEXTS = {name: [f"{name} b c {number % 7}" for number in range(20)] for name in "abcd"}
ONCE = {"availableNow": True}


class Words(StatefulBolt):
    """Counts the words of lines that begin alike, by a key that begins with what it is grouped by."""

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        for word in tup.value.split():
            self.counts.put((tup.first, word), self.counts.get((tup.first, word), 0) + 1)

    def groupingKey(self, key):  # there are only four different ones
        return key[0]


class Shout(Words):
    """Its keys are not what it is grouped by; it knows what is."""

    def execute(self, tup, collector):
        key = f"!{tup.first}"
        self.counts.put(key, self.counts.get(key, 0) + 1)

    def groupingKey(self, key):
        return key[1:]


class Capitals(Words):
    """The next version: what its lines begin with, in capitals."""

    stateVersion = 2

    def execute(self, tup, collector):
        for word in tup.value.split():
            key = tup.first.upper(), word
            self.counts.put(key, self.counts.get(key, 0) + 1)

    def migrateState(self, version, key, value):
        return value

    def migrateKey(self, version, key):
        return key[0].upper(), key[1]

    def downgradeState(self, version, key, value):
        return value

    def downgradeKey(self, version, key):
        return key[0].lower(), key[1]


def counting(spark, folder, name="count", tasks=2, bolt=Words):
    builder = TopologyBuilder("counts")
    first = "upper(substring(value, 1, 1))" if bolt is Capitals else "substring(value, 1, 1)"
    builder.setStream("lines", lines_of(spark, folder).selectExpr("value", f"{first} AS first"))
    builder.setBolt(name, bolt(), tasks).fieldsGrouping("lines", "first")
    return builder.createTopology()


def whole(location, name):
    found = {}
    for (_, word), count in state(location, name).items():
        found[word] = found.get(word, 0) + count
    return found


@pytest.mark.parametrize("provider", ["rocksdb"])
def test_other_tasks_and_another_name_in_one_start_and_they_may_stay_in_the_program(spark, place, provider):
    feed(place / "in", a=TEXTS["a"], b=TEXTS["b"])
    config = {"topology.state.provider": provider}
    run(counting(spark, place / "in"), spark, place / "ck", config, ONCE)
    more = counting(spark, place / "in", "tally", 3)
    with pytest.raises(CheckpointMismatchError, match=r"rename=\{'count': its name\}"):
        submit(more, spark, place / "ck", config, ONCE, rescale=True)
    with pytest.raises(CheckpointMismatchError, match=r"has parallelism 3, .*start with rescale=True"):
        submit(more, spark, place / "ck", config, ONCE, rename={"count": "tally"})
    with pytest.raises(ConfigError, match="rescale must be True or False"):
        submit(more, spark, place / "ck", config, ONCE, rescale={"tally": 3})
    assert len(kinds(place / "ck")) == 4, "nobody was fenced"
    for names in ("c", "d"):
        feed(place / "in", **{name: TEXTS[name] for name in names})
        run(more, spark, place / "ck", config, ONCE, rename={"count": "tally"}, rescale=True)
    assert whole(place / "ck", "tally") == recount([line for lines in TEXTS.values() for line in lines])


def test_a_bolt_says_what_its_keys_are_grouped_by(spark, place):
    feed(place / "in", **TEXTS)
    run(counting(spark, place / "in", tasks=1, bolt=Shout), spark, place / "ck", trigger=ONCE)
    feed(place / "in", **{f"{name}2": lines for name, lines in TEXTS.items()})
    run(counting(spark, place / "in", tasks=4, bolt=Shout), spark, place / "ck", trigger=ONCE, rescale=True)
    assert state(place / "ck", "count") == {f"!{first}": 40 for first in "abcd"}  # each key in one task alone
    with pytest.raises(CheckpointError, match=r"its key '!.' lies in task"):
        submit(counting(spark, place / "in", tasks=2), spark, place / "ck", trigger=ONCE, rescale=True)


class Dozens(WindowedBolt):
    """Emits how often each line is in a window of a dozen."""

    outputFields = "first string, lines map<string, long>"

    def initWindow(self):
        return {}

    def addToWindow(self, value, tup):
        return {**value, tup.value: value.get(tup.value, 0) + 1}

    def emitWindow(self, window, value, collector):
        collector.emit((window.key, value))


class Told(StatefulBolt):
    """Counts windows and what is in them."""

    def initState(self, state):
        self.told = state

    def execute(self, tup, collector):
        windows, lines = self.told.get(tup.first, (0, 0))
        self.told.put(tup.first, (windows + 1, lines + sum(dict(tup.lines).values())))


@pytest.mark.parametrize("provider", ["rocksdb"])
def test_open_windows_go_to_other_tasks(spark, place, provider):
    def dozens(tasks):
        builder = TopologyBuilder("dozens")
        lines = lines_of(spark, place / "in", files=2)
        builder.setStream("lines", lines.selectExpr("value", "substring(value, 1, 1) AS first"))
        builder.setBolt("dozens", Dozens().withTumblingWindow(Count(12)), tasks).fieldsGrouping("lines", "first")
        builder.setBolt("told", Told(), 2).fieldsGrouping("dozens", "first")
        return builder.createTopology()

    config = {"topology.state.provider": provider}
    for number, tasks in enumerate((1, 3, 2)):
        feed(place / "in", **{f"{name}{number}": lines for name, lines in TEXTS.items()})
        run(dozens(tasks), spark, place / "ck", config, ONCE, rescale=True)
    # 60 lines of each are 5 windows; 20 by themselves are 1, and 8 lines would be lost with each start.
    assert state(place / "ck", "told") == dict.fromkeys("abcd", (5, 60))


@pytest.mark.parametrize("provider", ["memory"])
def test_other_keys_in_other_tasks_and_back_to_the_version_before(spark, place, provider):
    config = {"topology.state.provider": provider}
    feed(place / "in", a=TEXTS["a"], b=TEXTS["b"])
    run(counting(spark, place / "in"), spark, place / "ck", config, ONCE)
    was = state(place / "ck", "count")
    for name in ("c", "d"):
        feed(place / "in", **{name: TEXTS[name]})
        run(counting(spark, place / "in", tasks=3, bolt=Capitals), spark, place / "ck", config, ONCE, rescale=True)
    now = state(place / "ck", "count")
    assert {first for first, _ in now} == set("ABCD")
    assert {(first.lower(), word): count for (first, word), count in now.items() if first in "AB"} == was
    downgrade(place / "ck", "count", Capitals(), 1, groupingKey=lambda key: key[0])
    feed(place / "in", e=["a", "b"])
    run(counting(spark, place / "in", tasks=3), spark, place / "ck", config, ONCE)
    everything = state(place / "ck", "count")
    assert {key: everything[key] for key in was} == {**was, ("a", "a"): 21, ("b", "b"): was["b", "b"] + 1}
    assert whole(place / "ck", "count") == recount([*(line for lines in TEXTS.values() for line in lines), "a", "b"])
