"""Checkpoints that are changed between two starts, or under one that runs: the stream goes on with all it has."""

import shutil
import threading

import pytest

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, isTick, submit
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError, FencedError
from tests.bolts import Count, WithState
from tests.spark.bolts import recount, word_count
from tests.spark.running import feed, kinds, lines_of, listing, run, state, wait_for

pytestmark = pytest.mark.slow

TEXTS = {name: [f"{name} b c {number % 7}" for number in range(20)] for name in "abcdef"}
ONCE = {"availableNow": True}


def texts(names):
    return [line for name in names for line in TEXTS[name]]


class Counted(Count):
    def groupingKey(self, key):  # there are only a few different ones
        return key


def counting(spark, folder, name="count", tasks=2):
    builder = TopologyBuilder("counts")
    lines = lines_of(spark, folder).selectExpr("explode(split(value, ' ')) as word")
    builder.setStream("words", lines)
    builder.setBolt(name, Counted(), tasks).fieldsGrouping("words", "word")
    return builder.createTopology()


def test_rename_and_rescale_in_one_start(spark, place):
    """They may stay in the program; the stream goes on after a migration as well."""
    feed(place / "in", a=TEXTS["a"], b=TEXTS["b"])
    run(counting(spark, place / "in"), spark, place / "ck", trigger=ONCE)
    Checkpoint(place / "ck").migrate("rocksdb")
    config = {"topology.state.provider": "rocksdb"}
    more = counting(spark, place / "in", "tally", 3)
    with pytest.raises(CheckpointMismatchError, match=r"rename=\{'count': its name\}"):
        submit(more, spark, place / "ck", config, ONCE, rescale=True)
    with pytest.raises(CheckpointMismatchError, match=r"has parallelism 3, .*start with rescale=True"):
        submit(more, spark, place / "ck", config, ONCE, rename={"count": "tally"})
    with pytest.raises(ConfigError, match="rescale must be True or False"):
        submit(more, spark, place / "ck", config, ONCE, rescale={"tally": 3})
    assert len(kinds(place / "ck")) == 4, "nobody was fenced"
    for name in "cd":
        feed(place / "in", **{name: TEXTS[name]})
        run(more, spark, place / "ck", config, ONCE, rename={"count": "tally"}, rescale=True)
    assert state(place / "ck", "tally") == recount(texts("abcd"))


class AbortedFrom(WithState):
    def __init__(self, place):
        self.place = place

    def execute(self, tup, collector):
        self.state.put(tup.value, self.state.get(tup.value, 0) + 1)
        seen = self.place / "seen"
        if tup.value == "abort" and not seen.exists():
            done = Checkpoint(self.place / "ck").abort()
            seen.write_text(f"{Checkpoint(self.place / 'ck').transactions()}\n{done}")


def test_abort_fences_a_running_query_and_the_next_start_reads_the_same_rows(spark, place):
    feed(place / "in", a=["a", "b"], b=["abort", "c"])
    builder = TopologyBuilder("aborted")
    builder.setStream("lines", lines_of(spark, place / "in"))
    builder.setBolt("keep", AbortedFrom(place)).globalGrouping("lines")
    topology = builder.createTopology()
    with pytest.raises(FencedError):
        run(topology, spark, place / "ck", {}, trigger=ONCE)
    listed, done = (place / "seen").read_text().splitlines()
    assert listed.count("<Transaction") == 2
    assert "ROLLED_BACK" in listed
    assert done == "generation 2 is taken, and older drivers are fenced; attempt 0 of transaction 2 is rolled back"
    assert state(place / "ck", "keep") == {"a": 1, "b": 1}
    feed(place / "in", c=["later"])
    query = run(topology, spark, place / "ck", {}, trigger=ONCE)
    assert query.recoveries == []
    assert state(place / "ck", "keep") == dict.fromkeys(["a", "b", "abort", "c", "later"], 1)
    ends = [(each.txid, each.attempt, each.generation, each.state) for each in Checkpoint(place / "ck").transactions()]
    assert ends == [
        (1, 0, 1, "COMMITTED"), (2, 0, 1, "ROLLED_BACK"), (2, 1, 3, "COMMITTED"), (3, 0, 3, "COMMITTED"),
    ]  # fmt: skip


@pytest.mark.soak
def test_after_a_restore_files_are_read_again(spark, place):
    feed(place / "in")
    topology = word_count(lines_of(spark, place / "in"))
    for names in ("ab", "cd"):
        feed(place / "in", **{name: TEXTS[name] for name in names})
        run(topology, spark, place / "ck", trigger=ONCE)
        Checkpoint(place / "ck").savepoint(names)
    done = Checkpoint(place / "ck").restore("ab")
    assert (done.txid, done.given_up, done.next_txid) == (2, 2, 5)
    assert state(place / "ck", "count") == recount(texts("ab"))
    feed(place / "in", e=TEXTS["e"])
    query = run(topology, spark, place / "ck", trigger=ONCE)
    assert [each["txid"] for each in query.recentProgress] == [5, 6, 7]
    assert state(place / "ck", "count") == recount(texts("abcde"))
    assert Checkpoint(place / "ck").restore("cd").next_txid == 8
    run(topology, spark, place / "ck", trigger=ONCE)
    assert state(place / "ck", "count") == recount(texts("abcde"))


@pytest.mark.soak
def test_savepoints_of_a_running_query_are_of_one_transaction(spark, place):
    """Several threads take them while transactions go on: each fits what its spout had emitted."""
    builder = TopologyBuilder("upwards")
    spout = MemoryTransactionalSpout([[(number,) for number in range(800)]], "word long", takePerBatch=20)
    builder.setSpout("numbers", spout)
    builder.setBolt("count", Count()).fieldsGrouping("numbers", "word")
    topology = builder.createTopology()
    config = {"topology.state.checkpoint.interval.ms": 1}
    query = submit(topology, spark, place / "ck", config)
    wait_for(lambda: (query.lastProgress or {"txid": 0})["txid"] >= 3, "some transactions")
    threads = [threading.Thread(target=lambda n=n: query.savepoint(f"s{n}")) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(CheckpointError, match="there is a savepoint 's1' already"):
        query.savepoint("s1")
    with pytest.raises(ConfigError, match="a savepoint's name has"):
        query.savepoint("a/b")
    query.deleteSavepoint("s2")
    with pytest.raises(CheckpointError, match="has no savepoint 's2'"):
        query.deleteSavepoint("s2")
    query.processAllAvailable()
    query.stop()
    with pytest.raises(CheckpointError, match=r"has ended: call Checkpoint\(location\).savepoint\('late'\)"):
        query.savepoint("late")
    whole = dict.fromkeys(range(800), 1)
    assert state(place / "ck", "count") == whole
    taken = Checkpoint(place / "ck").savepoints()
    assert {each.name for each in taken} == {"s0", "s1", "s3"}
    for each in (taken[0], taken[-1]):
        Checkpoint(place / "ck").restore(each.name)
        assert state(place / "ck", "count") == dict.fromkeys(range(min(800, each.txid * 20)), 1)
        run(topology, spark, place / "ck", config, ONCE)
        assert state(place / "ck", "count") == whole


class Ticked(StatefulBolt):
    def initState(self, counts):
        self.counts = counts

    def execute(self, tup, collector):
        key = "ticks" if isTick(tup) else tup.value
        self.counts.put(key, self.counts.get(key, 0) + 1)


def ticked(spark, place, streams, folders=None, secs=0.2):
    builder = TopologyBuilder("streams")
    for name in streams:
        builder.setStream(name, lines_of(spark, place / (folders or {}).get(name, name)))
    count = builder.setBolt("count", Ticked())
    if secs:
        count.setTicks(secs)
    for name in streams:
        count.globalGrouping(name)
    return builder.createTopology()


@pytest.mark.soak
@pytest.mark.parametrize("last", ["tick", "batch"])
def test_streams_that_change_places_go_on_where_they_were(spark, place, last):
    """Rule 3.15: after a transaction without rows Spark would take the offsets of each for the other's, silently."""
    read = {}

    def fed(number):
        for name in "ab":
            rows = [f"{name}{number}-{each}" for each in range(4)]
            feed(place / name, **{f"{number}": rows})
            read.update(dict.fromkeys(rows, 1))

    def counted():
        return {key: n for key, n in state(place / "ck", "count").items() if key != "ticks"}

    fed(0)
    feed(place / "b", more=["b-more"])  # how far they are read is not the same
    read["b-more"] = 1
    ways = [("ab", {}), ("ba", {}), ("bz", {"rename": {"a": "z"}}), ("zb", {"rename": {"a": "z"}})]
    for number, (streams, more) in enumerate(ways):
        if last == "batch":
            run(ticked(spark, place, streams, {"z": "a"}, None), spark, place / "ck", trigger=ONCE, **more)
        else:
            often = {"processingTime": "50 milliseconds"}
            query = submit(ticked(spark, place, streams, {"z": "a"}), spark, place / "ck", trigger=often, **more)
            query.processAllAvailable()
            had = state(place / "ck", "count").get("ticks", 0)
            wait_for(lambda had=had: state(place / "ck", "count").get("ticks", 0) > had, "a tick")
            query.stop()
        assert counted() == read
        fed(number + 1)
    before = listing(place / "ck")
    for streams in ("ab", "z", "zbc"):
        with pytest.raises(CheckpointMismatchError, match=r"streaming DataFrames 'z', 'b', this one has"):
            submit(ticked(spark, place, streams, {"z": "a", "c": "a"}), spark, place / "ck", trigger=ONCE)
    exchanged = ticked(spark, place, "zb", {"z": "b", "b": "a"})
    with pytest.raises(CheckpointMismatchError, match=r"/b is read in the place of .*/a"):
        submit(exchanged, spark, place / "ck", trigger=ONCE)
    assert listing(place / "ck") == before, "nobody was fenced"


class Adds(StatefulBolt):
    def __init__(self, step):
        self.step = step

    def initState(self, counts):
        self.counts = counts

    def execute(self, tup, collector):
        self.counts.put(tup.value, self.counts.get(tup.value, 0) + self.step)


@pytest.mark.soak
def test_two_copies_of_a_checkpoint_share_nothing_in_a_worker(spark, place):
    """One after the other, each out of sight of the other, with generations and transactions of the same numbers."""

    def adding(step):
        builder = TopologyBuilder("adding")
        builder.setStream("lines", lines_of(spark, place / "in"))
        builder.setBolt("count", Adds(step)).globalGrouping("lines")
        return builder.createTopology()

    config = {"topology.state.provider": "rocksdb"}
    ck, copy, away = place / "ck", place / "copy", place / "away"
    feed(place / "in", a=["x"])
    run(adding(1), spark, ck, config, trigger=ONCE)
    shutil.copytree(ck, copy)
    ck.rename(away)
    feed(place / "in", b=["x"])
    run(adding(10), spark, copy, config, trigger=ONCE, adopt="move")
    copy.rename(place / "copy-away")
    away.rename(ck)
    run(adding(100), spark, ck, config, trigger=ONCE)
    assert state(ck, "count", config=config) == {"x": 101}
    assert state(place / "copy-away", "count", config=config) == {"x": 11}
