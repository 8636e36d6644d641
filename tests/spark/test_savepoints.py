"""Savepoints of queries that run on Spark: sources go back with state."""

import threading
from pathlib import Path

import pytest

from statefx import FileSink, TopologyBuilder, committedFiles, restore, savepoint, savepoints, submit
from statefx.connectors.files import readCommitted
from statefx.errors import CheckpointError, ConfigError
from statefx.operators import OpaquePartitionedTransactionalSpout, PartitionedTransactionalSpout
from tests.spark.bolts import recount, word_count
from tests.spark.running import feed, lines_of, run, state, wait_for
from tests.spouts.numbers import Count

pytestmark = pytest.mark.slow

TEXTS = {name: [f"{name} b c {number % 7}" for number in range(20)] for name in "abcdef"}
ONCE = {"availableNow": True}


def texts(names):
    return [line for name in names for line in TEXTS[name]]


def test_files_that_a_stream_has_read_since_come_again(spark, place):
    feed(place / "in")
    topology = word_count(lines_of(spark, place / "in"))
    for names in ("ab", "cd"):
        feed(place / "in", **{name: TEXTS[name] for name in names})
        run(topology, spark, place / "ck", trigger=ONCE)
        savepoint(place / "ck", names)
    done = restore(place / "ck", "ab")
    assert (done.txid, done.given_up, done.next_txid) == (2, 2, 5)
    assert state(place / "ck", "count") == recount(texts("ab"))
    feed(place / "in", e=TEXTS["e"])
    query = run(topology, spark, place / "ck", trigger=ONCE)
    assert [each["txid"] for each in query.recentProgress] == [5, 6, 7]
    assert state(place / "ck", "count") == recount(texts("abcde"))
    assert restore(place / "ck", "cd").next_txid == 8
    run(topology, spark, place / "ck", trigger=ONCE)
    assert state(place / "ck", "count") == recount(texts("abcde"))


class Numbers:
    """Each partition has numbers from 0 up to what a file says, ten in a transaction."""

    outputFields = "number long"

    def __init__(self, limit):
        self.limit = str(limit)

    def numPartitions(self):
        return 2

    def upcoming(self, last):
        start = 0 if last is None else last["stop"]
        stop = min(start + 10, int(Path(self.limit).read_text(encoding="ascii")))
        return {"start": start, "stop": stop} if start < stop else None

    def emit(self, collector, partition, metadata):
        for number in range(metadata["start"], metadata["stop"]):
            collector.emit((2 * number + partition,))


class Planned(Numbers, PartitionedTransactionalSpout):
    def planPartitionBatch(self, partition, lastMetadata):
        return self.upcoming(lastMetadata)

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        self.emit(collector, partition, metadata)


class Opaque(Numbers, OpaquePartitionedTransactionalSpout):
    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        found = self.upcoming(lastMetadata)
        if found is not None:
            self.emit(collector, partition, found)
        return found


@pytest.mark.parametrize(("kind", "provider"), [(Planned, "memory"), (Opaque, "rocksdb")])
def test_a_savepoint_of_a_query_that_runs_is_of_one_transaction(spark, place, kind, provider):
    """Several threads take savepoints while transactions go on: what each holds fits what its spouts had emitted."""
    limit = place / "limit"
    limit.write_text("400", encoding="ascii")
    builder = TopologyBuilder("upwards")
    builder.setSpout("numbers", kind(limit))
    builder.setBolt("count", Count()).fieldsGrouping("numbers", "number")
    topology = builder.createTopology()
    config = {
        "topology.state.provider": provider,
        "topology.state.checkpoint.interval.ms": 1,
    }
    query = submit(topology, spark, place / "ck", config)
    wait_for(lambda: (query.lastProgress or {"txid": 0})["txid"] >= 3, "some transactions")
    threads = [threading.Thread(target=lambda n=n: query.savepoint(f"s{n}")) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(CheckpointError, match="there is a savepoint 's1' already"):
        query.savepoint("s1")
    query.processAllAvailable()
    query.stop()
    with pytest.raises(CheckpointError, match=r"has ended: call statefx.savepoint\(checkpointLocation, 'late'\)"):
        query.savepoint("late")
    whole = dict.fromkeys(range(800), 1)
    assert state(place / "ck", "count") == whole
    taken = savepoints(place / "ck")
    assert {each.name for each in taken} == {f"s{n}" for n in range(4)}
    for each in (taken[0], taken[-1]):
        restore(place / "ck", each.name)
        before = state(place / "ck", "count")
        assert before == dict.fromkeys(range(min(800, each.txid * 20)), 1)
        run(topology, spark, place / "ck", config, ONCE)
        assert state(place / "ck", "count") == whole


def test_rows_that_were_published_since_come_again_and_no_number_is_used_twice(spark, place):
    out = place / "out"
    feed(place / "in")
    builder = TopologyBuilder("published")
    builder.setStream("lines", lines_of(spark, place / "in"))
    builder.setSink("out", FileSink(out)).shuffleGrouping("lines")
    topology = builder.createTopology()
    for names in ("ab", "cd"):
        feed(place / "in", **{name: TEXTS[name] for name in names})
        run(topology, spark, place / "ck", trigger=ONCE)
        savepoint(place / "ck", names)
    with pytest.raises(CheckpointError, match=r"may have published rows \(40 of sink 'out'\)"):
        restore(place / "ck", "ab")
    assert restore(place / "ck", "ab", sinks="append").published == {"out": 40}
    run(topology, spark, place / "ck", trigger=ONCE)
    rows = sorted(row.value for row in readCommitted(spark, out).collect())
    assert rows == sorted(texts("ab") + 2 * texts("cd"))
    assert len(committedFiles(out)) >= 6


def test_deleting_one_while_it_runs(spark, place):
    feed(place / "in", a=TEXTS["a"])
    query = submit(word_count(lines_of(spark, place / "in")), spark, place / "ck")
    query.processAllAvailable()
    assert query.savepoint("one").txid == 1
    query.deleteSavepoint("one")
    with pytest.raises(CheckpointError, match="has no savepoint 'one'; there are none"):
        query.deleteSavepoint("one")
    with pytest.raises(ConfigError, match="a savepoint's name has"):
        query.savepoint("a/b")
    query.stop()
