"""Rows are gathered, sent and held by their bytes, not only by their number."""

import errno
import os
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from statefx import BatchBolt, TopologyBuilder
from statefx.operators.schema import parse_schema
from statefx.plan import wire
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.reports import Ack
from statefx.runtime.collector import TaskCollector
from statefx.runtime.gathering import BATCH_ROWS
from statefx.runtime.outlets import HELD_BYTES_MAX, BatchQueue, Outbox, RowsNotWrittenError, outlet_of
from statefx.runtime.worker import Worker
from statefx.testing import rows
from statefx.topology.graph import Edge, Grouping
from tests.runtime.one_chain import chain_attempt, deployment, order_of

LARGE = "x" * (1 << 20)
AT_MOST = wire.BATCH_BYTES + 2 * len(LARGE)


def collected(ddl: str, grouping: str = "shuffle", width: int = 1) -> tuple[TaskCollector, list[pa.RecordBatch]]:
    """A collector, and what it sends on."""
    sent: list[pa.RecordBatch] = []
    schema = parse_schema(ddl)
    fields = ("a",) if grouping == "fields" else ()
    edge = Edge(0, "emits", "default", "reads", Grouping(grouping, fields))
    outlet = outlet_of(edge, schema, width, 0, False, lambda target, batch: sent.append(batch) or batch.nbytes)
    return TaskCollector("emits", {"default": schema}, [outlet], TransactionAttempt(1, 0)), sent


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("a string", LARGE),
        ("a binary", LARGE.encode()),
        ("a array<string>", [LARGE]),
        ("a struct<x:array<binary>>", {"x": [LARGE.encode()]}),
        ("a map<string,string>", {LARGE: None}),
    ],
)
def test_large_values_are_sent_before_there_are_many(ddl, value):
    collector, sent = collected(ddl)
    for _ in range(40):
        collector.emit((value,))
    collector.flush()
    assert sum(batch.num_rows for batch in sent) == 40
    assert max(batch.nbytes for batch in sent) <= AT_MOST


def test_a_large_value_after_many_small_ones_is_noticed_at_once():
    collector, sent = collected("n long, a string")
    for n in range(1000):
        collector.emit((n, ""))
    assert not sent
    for n in range(40):
        collector.emit((n, LARGE))
    assert sum(batch.num_rows for batch in sent) >= 1030
    assert max(batch.nbytes for batch in sent) <= AT_MOST


@pytest.mark.parametrize(("grouping", "width", "most"), [("shuffle", 1, 1), ("fields", 3, 3), ("all", 3, 1)])
def test_small_rows_are_sent_by_their_number(grouping, width, most):
    collector, sent = collected("a string", grouping, width)
    for n in range(20_000):
        collector.emit((f"key-{n}",))
    batches = len(sent)
    collector.flush()
    assert sum(batch.num_rows for batch in sent) == 20_000 * (3 if grouping == "all" else 1)
    assert BATCH_ROWS * most * 0.9 <= sum(b.num_rows for b in sent[:width]) / (3 if grouping == "all" else 1)
    assert sum(b.num_rows for b in sent[:width]) <= BATCH_ROWS * most * (3 if grouping == "all" else 1)
    assert batches >= width * (20_000 // (BATCH_ROWS * most))


@pytest.mark.slow
def test_a_batch_that_is_emitted_whole_is_cut():
    collector, sent = collected("a string")
    collector.emitBatch(pa.record_batch([pa.array([LARGE] * 40)], names=["a"]))
    assert sum(batch.num_rows for batch in sent) == 40
    assert max(batch.nbytes for batch in sent) <= AT_MOST


def test_an_outbox_makes_many_batches_of_many_bytes():
    """One column of more than 2 GiB would be none: so it must not depend on how much comes before it is taken."""
    outbox = Outbox(0, 0, (1, 1))
    payload = LARGE.encode()
    for _ in range(40):
        outbox.send(wire.Address(1, 0, 0, 0, 0, 1, 0), wire.RECORDS, 1, payload)
    assert outbox.pressing
    batches = list(outbox.take())
    assert not outbox.pressing
    assert sum(batch.num_rows for batch in batches) == 40
    assert max(batch.nbytes for batch in batches) <= AT_MOST


class Grow(BatchBolt):
    outputFields = "n long, a string"

    def open(self, context):
        self.journal = context.config["journal"]

    def execute(self, tup, collector):
        self.journal.append((type(self).__name__, tup.n))
        collector.emit((tup.n, LARGE))


class Again(Grow):
    pass


class Sizes(BatchBolt):
    outputFields = "rows long, bytes long"

    def open(self, context):
        self.seen = []

    def execute(self, tup, collector):
        self.seen.append(len(tup.a))

    def finishBatch(self, collector):
        collector.emit((len(self.seen), sum(self.seen)))


def grown(chained: bool) -> Any:
    builder = TopologyBuilder("grown")
    builder.setStream("ticks", rows("n long"))
    builder.setBolt("grow", Grow()).shuffleGrouping("ticks")
    if chained:
        builder.setBolt("again", Again()).shuffleGrouping("grow")
    builder.setBolt("sizes", Sizes(), 2).shuffleGrouping("again" if chained else "grow")
    return builder.createTopology()


@pytest.mark.slow
@pytest.mark.parametrize("chained", [False, True])
def test_what_one_batch_of_input_grows_to_is_sent_on_in_its_midst(place, chained):
    journal: list[tuple[str, int]] = []
    made, acks = deployment(place, grown(chained), journal=journal), list[Ack]()
    order = order_of(made, {"ticks": [(n,) for n in range(100)]})
    sent: Iterator[pa.RecordBatch] = chain_attempt(Worker(), made, order, acks=acks).run([])
    first = next(sent)
    assert first.nbytes <= AT_MOST
    most = 2 * wire.BATCH_BYTES // len(LARGE) + 4
    assert len([entry for entry in journal if entry[0] == "Grow"]) <= most, "the bolt has paused"
    found = [row for batch in [first, *sent] for row in wire.rows_of(batch)]
    assert max(len(payload) for _, _, _, payload in found) <= AT_MOST
    for name in ("Grow", "Again") if chained else ("Grow",):
        assert [n for who, n in journal if who == name] == list(range(100)), "in order, each once"
    assert sum(rows for kind, rows, _, _ in found if kind == wire.RECORDS) == 100
    assert [ack.failed for ack in acks] == [None] * (3 if chained else 2)


@pytest.mark.slow
@pytest.mark.parametrize("chained", [False, True])
def test_forty_large_values_a_task_go_through_a_transaction(driver, chained):
    sent = driver.start(grown(chained)).send({"ticks": [(n,) for n in range(40)]})
    found = sent.emitted("sizes")
    assert sum(rows for rows, _ in found) == 40
    assert sum(size for _, size in found) == 40 * len(LARGE)
    assert sent.progress.attempt == 0


class Flood(BatchBolt):
    """Emits much more in one call than a worker may hold, and says in ``config["journal"]`` how much memory that took.

    How it does that, a subclass says; ``config["journal"]`` has the bytes in use after each large value.
    """

    outputFields = "n long, a string"
    times = 40

    def open(self, context):
        self.journal = context.config["journal"]

    def flood(self, collector):
        value = "x" * wire.BATCH_BYTES  # a batch of its own
        for n in range(self.times):
            collector.emit((n, value))
            self.journal.append(pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0])

    def execute(self, tup, collector):
        pass


class AtTheEnd(Flood):
    def finishBatch(self, collector):
        self.flood(collector)


class OfOneTuple(Flood):
    def execute(self, tup, collector):
        self.flood(collector)


class OfOneBatch(Flood):
    def executeBatch(self, batch, collector):
        self.flood(collector)


class Through(BatchBolt):
    outputFields = "n long, a string"

    def open(self, context):
        self.journal = context.config["journal"]

    def execute(self, tup, collector):
        self.journal.append(-tup.n)
        collector.emit(tup)


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("kind", [AtTheEnd, OfOneTuple, OfOneBatch])
def test_what_one_call_emits_is_held_up_to_a_bound(place, kind, chained):
    builder = TopologyBuilder("flood")
    builder.setStream("ticks", rows("n long"))
    builder.setBolt("flood", kind()).shuffleGrouping("ticks")
    if chained:
        builder.setBolt("through", Through()).shuffleGrouping("flood")
    builder.setBolt("sizes", Sizes(), 2).shuffleGrouping("through" if chained else "flood")
    journal: list[int] = []
    made = deployment(place, builder.createTopology(), journal=journal)
    one = chain_attempt(Worker(), made, order_of(made, {"ticks": [(1,)]}))
    tracemalloc.start()
    try:
        before = pa.total_allocated_bytes()
        seen = [kind for batch in one.run([]) for kind, *_ in wire.rows_of(batch)]
        most = max(journal) - before
    finally:
        tracemalloc.stop()
    assert seen == [wire.RECORDS] * Flood.times + [wire.BARRIER] * 2
    assert [-n for n in journal if n <= 0] == list(range(Flood.times)) * chained, "in order, each once"
    assert most < HELD_BYTES_MAX + 6 * wire.BATCH_BYTES, "and not the 320 MB that it has emitted"
    assert Flood.times * wire.BATCH_BYTES / 4 > HELD_BYTES_MAX


def test_a_queue_gives_back_what_it_was_given_in_order_and_leaves_no_file():
    queue: BatchQueue[int] = BatchQueue(1000)
    given = [pa.record_batch({"a": [f"{n}" * size]}) for n, size in enumerate([10, 5000, 10, 990, 0, 2000, 10, 10])]
    descriptors = len(os.listdir("/proc/self/fd"))
    for rounds in range(3):
        for n, batch in enumerate(given):
            queue.append(n, batch)
        assert queue.held_bytes <= 1000 + 5000
        assert len(os.listdir("/proc/self/fd")) == descriptors + 1
        queue.append(rounds, given[0])
        for n, batch in [*enumerate(given), (rounds, given[0])]:
            assert queue.popleft() == (n, batch)
        assert (len(queue), queue.held_bytes) == (0, 0)
        assert len(os.listdir("/proc/self/fd")) == descriptors


def test_rows_that_find_no_room_are_told_as_that(monkeypatch, tmp_path):
    """Spark's folder is there, and nobody may write in it, or it was deleted meanwhile."""

    def missing(**named):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr("tempfile.TemporaryFile", missing)
    queue: BatchQueue[None] = BatchQueue(1)
    queue.append(None, pa.record_batch({"a": [1]}))
    with pytest.raises(RowsNotWrittenError, match=f"No such file.*spark.local.dir .{tmp_path}.,"):
        queue.append(None, pa.record_batch({"a": [1]}))
    assert len(queue) == 1


def test_small_batches_never_touch_a_file(monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", None)
    queue: BatchQueue[None] = BatchQueue()
    for _ in range(100):
        queue.append(None, pa.record_batch({"a": [1]}))
    assert len(queue) == 100
