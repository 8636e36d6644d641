"""What users and machines do to topologies that live: cases that the process of `tests.spark.playing` plays."""

import os
import socket
import time
from pathlib import Path

from statefx import Checkpoint, PartitionedTransactionalSpout, Spout, StatefulBolt, TopologyBuilder, isTick, submit
from statefx.connectors import MemoryTransactionalSpout
from statefx.coordinator import runs
from statefx.errors import StatefxError
from statefx.spark import preflight
from statefx.spark.job import PipelinedEngine
from tests.bolts import WithState
from tests.spark.bolts import Once
from tests.spark.counting import BOUND_SECS, tell
from tests.spark.running import reasons, state, wait_for
from tests.spark.spouting import HeldCount, HeldPlanned, Places
from tests.spouts.numbers import ALL, Count, Planned

LARGE = 70 << 20
"""Bytes of a row: more than a batch, than Spark's shuffle holds between two tasks, and than a frame."""

SERVE = PipelinedEngine.serve

GROWN_MAX = 150 << 20
"""By how much a worker may grow while a spout emits without end."""

SETTINGS = {"topology.transaction.retry.delay.ms": 10}
AVAILABLE = {"availableNow": True}


def counting(name, spout, count=None, parallelism=1, field="number"):
    builder = TopologyBuilder(name)
    builder.setSpout("numbers", spout, parallelism)
    builder.setBolt("count", count or Count(), parallelism).fieldsGrouping("numbers", field)
    return builder.createTopology()


def ran(spark, topology, work, **settings):
    """Run it to its end."""
    return ended(submit(topology, spark, work / "ck", {**SETTINGS, **settings}, AVAILABLE), work)


def ended(query, work):
    error = None
    try:
        assert query.awaitTermination(BOUND_SECS), f"still running: {query.status}"
    except StatefxError as found:
        error = f"{type(found).__name__}: {found.message}"
    status = query.status
    right = error is None and state(work / "ck", "count") == ALL
    return {"error": error, "runs": status["runs"], "reasons": reasons(work / "ck"), "right": right}


def listening_at(*hosts):
    """Have the driver listen, for one run after the other, at these addresses; chains are told 127.0.0.1."""
    left = list(hosts)

    def elsewhere(engine, *arguments):
        engine._bind = left.pop(0) if left else "127.0.0.1"
        return SERVE(engine, *arguments)

    PipelinedEngine.serve = elsewhere


def unreachable(spark, work):
    listening_at("127.0.0.2", "127.0.0.2", "127.0.0.2")
    found = ran(spark, counting("unreachable", Planned(work)), work)
    listening_at()
    return {**found, "right_when_started_again": ran(spark, counting("unreachable", Planned(work)), work)["right"]}


def taken_port(spark, work):
    topology, patience, preflight.PORT_SECS = counting("taken", Planned(work)), preflight.PORT_SECS, 0.3
    try:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            ran(spark, topology, work, **{"topology.control.port": port})
    except StatefxError as error:
        refused = f"{type(error).__name__}: {error.message}"
    finally:
        preflight.PORT_SECS = patience
    begun = (work / "ck" / "transactions").exists()
    found = ran(spark, topology, work, **{"topology.control.port": port})
    return {**found, "refused": refused, "begun": begun, "port": port}


def unreachable_for_a_while(spark, work):
    listening_at("127.0.0.1", "127.0.0.2")
    Places(work).kill("execute", 1)
    return ran(spark, counting("for-a-while", HeldPlanned(work), HeldCount(work)), work)


class Rows(PartitionedTransactionalSpout):
    outputFields = "row binary"

    def numPartitions(self):
        return 1

    def planPartitionBatch(self, partition, lastMetadata):
        return {} if lastMetadata is None else None

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        collector.emit((bytes(LARGE),))
        collector.emit((b"end",))


class Sizes(WithState):
    def execute(self, tup, collector):
        self.state.put(len(self.state), len(tup.row))


def large_row(spark, work):
    found = ran(spark, counting("large-row", Rows(), Sizes(), field="row"), work)
    return {**found, "bytes": list(state(work / "ck", "count").values())}


def memory_bytes():
    """What this worker has now."""
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) << 10


class Endless(Rows):
    def __init__(self, work):
        self.path = str(Path(work, "emitted"))

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        row, emitted, most, before = os.urandom(1 << 20), 0, 0, memory_bytes()
        while True:
            collector.emit((row,))
            emitted, most = emitted + len(row), max(most, memory_bytes() - before)
            Path(self.path).write_text(f"{emitted} {most}")
            yield


class Forgets(StatefulBolt):
    def initState(self, state):
        pass

    def execute(self, tup, collector):
        pass


def endless_spout(spark, work):
    limits = {"topology.transaction.timeout.secs": 5, "topology.transaction.attempts.max": 2}
    found = ran(spark, counting("endless", Endless(work), Forgets(), field="row"), work, **limits)
    emitted, grown = map(int, Path(work, "emitted").read_text().split())
    return {**found, "emitted_bytes": emitted, "grown_bytes": grown}


class Hangs(Count):
    def __init__(self, work):
        self.work = str(work)

    def execute(self, tup, collector):
        if Once(self.work, "hung"):
            time.sleep(10 * BOUND_SECS)  # noqa: TID251 - nothing waits for it
        super().execute(tup, collector)


def bolt_that_hangs(spark, work):
    before, runs.STUCK_SECS = runs.STUCK_SECS, 0.5
    try:
        return ran(
            spark, counting("hangs", Planned(work), Hangs(work)), work, **{"topology.transaction.timeout.secs": 2}
        )
    finally:
        runs.STUCK_SECS = before


def two_topologies(spark, work):
    """Both hold their chains at the same time; a third one finds too few."""
    places, queries = [work / "a", work / "b"], []
    for place, parallelism in zip(places, (1, 4), strict=True):
        place.mkdir()
        topology = counting(f"two-{place.name}", HeldPlanned(place), parallelism=parallelism)
        Places(place).hold("emit", 1)
        queries.append(submit(topology, spark, place / "ck", SETTINGS, AVAILABLE))
    wait_for(lambda: all(Places(place).held("emit", 1) for place in places), "both emit")
    try:
        third = ran(spark, counting("third", Planned(work), parallelism=2), work)["error"]
    except StatefxError as error:
        third = f"{type(error).__name__}: {error.message}"
    for place in places:
        Places(place).release()
    both = [ended(query, place) for query, place in zip(queries, places, strict=True)]
    return {"both": both, "third": third, "third_has_begun": (work / "ck").exists()}


class One(Spout):
    outputFields = "number long"

    def open(self, context):
        self.left = [7]

    def nextTuple(self, collector):
        for number in self.left:
            collector.emit((number,), id=number)
        self.left = []

    def ack(self, id):
        pass

    def fail(self, id):
        pass


class Ticks(WithState):
    def execute(self, tup, collector):
        what = "ticks" if isTick(tup) else "rows"
        self.state.put(what, self.state.get(what, 0) + 1)


def planned_that_ticks(spark, work):
    return ticking(spark, work, MemoryTransactionalSpout([[(7,)]], "number long"))


def tracked_that_ticks(spark, work):
    return ticking(spark, work, One())


def ticking(spark, work, spout):
    """There is nothing to read after the first row, and nothing but ticks has a transaction begin."""
    builder = TopologyBuilder("ticking")
    builder.setSpout("numbers", spout)
    builder.setBolt("ticks", Ticks()).globalGrouping("numbers").setTicks(0.5)
    query = submit(builder.createTopology(), spark, work / "ck", SETTINGS)
    wait_for(lambda: state(work / "ck", "ticks").get("ticks", 0) >= 3, "three ticks")
    query.stop()
    done = [each.prepared_ms for each in Checkpoint(work / "ck").transactions()]
    return {**state(work / "ck", "ticks"), "periods": [at // 500 for at in done]}


def play(spark, work, case):
    tell(**globals()[case](spark, Path(work)))
