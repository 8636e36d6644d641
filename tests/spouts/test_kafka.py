"""KafkaSpout against a real broker: each record once, whatever stands between them and however it is parted."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from confluent_kafka import Consumer, Producer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from statefx import Context, TopologyBuilder
from statefx.connectors.kafka import KafkaSpout, OpaqueKafkaSpout, planning
from statefx.metrics.otel import instrument
from statefx.testing import TopologyTester
from statefx.testing.faults import JobFails
from statefx.testing.spout_contract import SpoutContract
from tests.spouts import timed
from tests.spouts.kafka_topologies import Meanwhile, counted, lines, once, spout, topology

pytestmark = pytest.mark.slow


def test_every_record_once_over_transactions_and_restarts(kafka, tmp_path):
    topic = kafka.topic(partitions=3)
    for partition in range(3):
        kafka.send(topic, *lines(partition * 100, partition * 100 + 50), partition=partition)
    reads = spout(kafka, topic, maxRows=40)
    with TopologyTester(topology(reads), tmp_path / "ck", freshObjects=False) as tester:
        assert tester.drain() == 4
        assert counted(tester) == once(*lines(0, 50), *lines(100, 150), *lines(200, 250))
        assert tester.emit() is None
        kafka.send(topic, *lines(300, 350), partition=2)
        tester.drain()
    with tester.restart() as other:
        kafka.send(topic, *lines(400, 410), partition=0)
        other.drain()
        expected = [*lines(0, 50), *lines(100, 150), *lines(200, 250), *lines(300, 350), *lines(400, 410)]
        assert counted(other) == once(*expected)


def test_the_slowest_partition_holds_the_watermark(kafka, tmp_path):
    topic = kafka.topic(partitions=3)
    begin = datetime.now(UTC).replace(microsecond=0)  # older records the broker would delete
    start = int(begin.timestamp() * 1000)
    reads = spout(kafka, topic, columns=("value", "timestamp"))
    builder = TopologyBuilder("kafka")
    builder.setSpout("records", reads, 2, timestamp="timestamp", lateness="5 seconds", idleAfter="1 hour")
    builder.setBolt("watch", timed.Watch()).globalGrouping("records")
    with TopologyTester(builder.createTopology(), tmp_path / "ck", now=begin) as tester:
        for partition, secs in ((0, 10), (1, 30), (0, 90), (2, 60), (0, 120), (1, 70)):
            kafka.send(topic, "a", partition=partition, timestamp=start + secs * 1000)
            assert tester.drain() == 1
        tester = tester.restart()
        tester.advance(7200)  # nobody is idle right after a start
        kafka.send(topic, "a", partition=2, timestamp=start + 200 * 1000)
        assert tester.drain() == 1
        kafka.send(topic, "a", partition=2, timestamp=start + 210 * 1000)
        tester.advance(3601)
        tester.drain()
        past = (begin - timed.START).total_seconds()
        found = [None if each is None else each - past for each in timed.watermarks(tester)]
    assert found == [None, None, None, 25, 25, 55, 65, 205]


def test_aborted_records_markers_and_open_transactions(kafka, tmp_path):
    """Markers take offsets, and nothing is told of them: a range that ends in some must end all the same."""
    topic = kafka.topic()
    kafka.transact(topic, "a", "b")
    kafka.transact(topic, "no", commit=False)
    reads = spout(kafka, topic)
    with TopologyTester(topology(reads), tmp_path / "ck", freshObjects=False) as tester:
        assert tester.drain() == 1
        assert counted(tester) == once("a", "b")
        kafka.transact(topic, "no", "no", commit=False)  # a range without any record
        tester.drain()
        kafka.transact(topic, "c")
        with kafka.open_transaction(topic, "later") as transaction:
            kafka.send(topic, "behind it")
            tester.drain()
            assert counted(tester) == once("a", "b", "c"), "what stands behind an open transaction must wait for it"
            transaction.commit_transaction(30)
            kafka.settle(topic)
        tester.drain()
        assert counted(tester) == once("a", "b", "c", "later", "behind it")
    dirty = spout(kafka, topic, isolation="read_uncommitted")
    with TopologyTester(topology(dirty), tmp_path / "dirty") as tester:
        tester.drain()
        assert counted(tester) == once("a", "b", "c", "later", "behind it") | {"no": 3}


@pytest.mark.parametrize("kind", [KafkaSpout, OpaqueKafkaSpout])
def test_records_of_an_open_transaction_that_were_read_uncommitted_are_no_loss_for_who_reads_committed(
    kafka, kind, tmp_path, monkeypatch, caplog
):
    """To this one the partition ends before them; when the transaction has ended, it goes on behind them."""
    monkeypatch.setattr(planning, "DOUBT_SECS", 0.0)
    topic = kafka.topic()
    kafka.send(topic, "a")
    reads = spout(kafka, topic, kind=kind, isolation="read_uncommitted")
    with kafka.open_transaction(topic, "b") as transaction:
        with TopologyTester(topology(reads), tmp_path / "ck") as tester:
            tester.drain()
            assert counted(tester) == once("a", "b")

        def end_it():
            transaction.commit_transaction(30)
            kafka.settle(topic)

        with tester.restart(topology(spout(kafka, topic, kind=kind))) as other:
            if kind is KafkaSpout:  # the driver waits; of the other kind, a task leaves the partition out
                other.when("pause", end_it)
            other.drain()
            if kind is OpaqueKafkaSpout:
                end_it()
            kafka.send(topic, "c")
            other.drain()
            assert counted(other) == once("a", "b", "c")
    assert "a transaction before that, from offset 1 on, is still open" in caplog.text


@pytest.mark.daily(1)
@pytest.mark.parametrize("fresh", [True, False])
def test_many_partitions_in_a_task_and_ranges_that_end_in_the_middle_of_what_was_fetched(kafka, fresh, tmp_path):
    topic = kafka.topic(partitions=20)  # more than a task keeps warm
    for partition in range(20):
        kafka.send(topic, *lines(partition * 10, partition * 10 + 7), partition=partition)
    reads = spout(kafka, topic, maxRows=60, columns=("partition", "offset", "value"))
    with TopologyTester(topology(reads, parallelism=1), tmp_path / "ck", freshObjects=fresh) as tester:
        assert tester.drain() == 3
        expected = {(p, o, f"line {p * 10 + o}"): 1 for p in range(20) for o in range(7)}
        assert tester.state("count") == expected


def test_the_start_is_what_was_said_and_stays(kafka, tmp_path):
    topic = kafka.topic(partitions=2, retention_ms=-1)
    kafka.send(topic, "old", timestamp=1_000)
    kafka.send(topic, "new", timestamp=9_000)
    starts = {
        "earliest": ("earliest", ["old", "new", "later", "elsewhere"]),
        "latest": ("latest", ["later", "elsewhere"]),
        "time": (datetime.fromtimestamp(5, UTC), ["new", "later", "elsewhere"]),
        "offsets": ({topic: {0: 2}}, ["later", "elsewhere"]),
    }
    for name, (start, _) in starts.items():
        with TopologyTester(topology(spout(kafka, topic, start=start)), tmp_path / name) as tester:
            tester.drain()
    kafka.send(topic, "later")
    kafka.send(topic, "elsewhere", partition=1)
    for name, (start, expected) in starts.items():
        with TopologyTester(topology(spout(kafka, topic, start=start)), tmp_path / name) as tester:
            tester.drain()
            assert counted(tester) == once(*expected), name


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (datetime(1970, 1, 1, 2, 0, 9, tzinfo=timezone(timedelta(hours=2))), 1),
        (datetime(1970, 1, 1, 0, 0, 9, 1, UTC), 2),  # between two milliseconds
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), 0),  # Kafka's -1, which is the end
        (datetime(1900, 1, 1, tzinfo=UTC), 0),
        (datetime(9999, 1, 1, tzinfo=UTC), 2),
    ],
)
def test_times_to_begin_with(kafka, start, first):
    topic = kafka.topic(retention_ms=-1)
    kafka.send(topic, "old", timestamp=1_000)
    kafka.send(topic, "new", timestamp=9_000)
    cluster = planning.Cluster(spout(kafka, topic).clients, "g", [topic])
    assert planning.first_offsets(cluster, start, [(topic, 0)]) == {(topic, 0): first}
    cluster.close()


def test_available_now_reads_what_was_there_when_it_began(kafka, tmp_path, monkeypatch):
    """Who writes all the time would else keep it from ending; new partitions are all of the next run."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 10))

    def write(tup):
        if tup.value == "line 0":
            kafka.add_partitions(topic, 2)
            kafka.send(topic, "of the new one", partition=1)
        if tup.value != "again":
            kafka.send(topic, "again")

    monkeypatch.setattr(Meanwhile, "does", staticmethod(write))
    monkeypatch.setattr(planning, "DISCOVERY_SECS", 0.0)
    reads = spout(kafka, topic, maxRows=3, isolation="read_uncommitted")
    with TopologyTester(topology(reads, Meanwhile()), tmp_path / "ck", freshObjects=False) as tester:
        assert tester.drain() == 4
        assert counted(tester) == once(*lines(0, 10))
        tester.drain()
        assert counted(tester) == once(*lines(0, 10), "of the new one") | {"again": 10}
        tester.drain()
        assert counted(tester)["again"] == 11


def test_a_topic_that_comes_when_a_pattern_fitted_none_is_read_from_its_beginning(kafka, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "DISCOVERY_SECS", 0.0)
    reads = spout(kafka, re.compile("comes-.*"), start="latest")
    reads.open(Context({"topology.transactional.id": "a"}, "records", -1, 1, 1))
    reads.initPartitions({})
    assert reads.numPartitions() == 1, "what stands in the log for that it has looked"
    first = kafka.topic(name="comes-first")
    kafka.send(first, "a", "b")
    assert reads.numPartitions() == 1
    planned = reads.planPartitionBatch(0, None)
    assert (planned["start"], planned["end"]) == (0, 2)
    reads.close()


def test_partitions_and_topics_that_come_later_are_read_from_their_beginning(kafka, tmp_path):
    first = kafka.topic(name="grow-b")
    kafka.send(first, "before")
    reads = spout(kafka, re.compile("grow-.*"), start="latest")
    with TopologyTester(topology(reads), tmp_path / "ck") as tester:
        tester.drain()
        kafka.add_partitions(first, 3)
        second = kafka.topic(name="grow-a")  # before the other one by its name: numbers stay as they are
        kafka.send(second, "of a new topic")
        kafka.send(first, "of a new partition", partition=2)
        kafka.send(first, "after")
        tester.drain()
        assert counted(tester) == once("of a new topic", "of a new partition", "after")
    with tester.restart() as other:
        kafka.send(second, "again")
        other.drain()
        assert counted(other) == once("of a new topic", "of a new partition", "after", "again")


def test_the_bound_holds_and_every_partition_has_its_turn(kafka, tmp_path):
    topic = kafka.topic(partitions=4)
    for partition in range(4):
        kafka.send(topic, *[f"{partition} {'x' * 100} {number}" for number in range(100)], partition=partition)
    with TopologyTester(topology(spout(kafka, topic, maxRows=50)), tmp_path, freshObjects=False) as tester:
        assert tester.drain() == 8
        assert len(counted(tester)) == 400


def test_the_group_is_told_what_is_committed(kafka, tmp_path):
    topic = kafka.topic(partitions=2)
    kafka.send(topic, *lines(0, 7), partition=1)
    for name, group, found in [
        ("named", "watched", {0: 0, 1: 7}),
        ("default", "statefx.kafka.records", {0: 0, 1: 7}),
        ("none", None, {}),
    ]:
        options = {} if name == "default" else {"group": group}
        with TopologyTester(topology(spout(kafka, topic, **options)), tmp_path / name) as tester:
            tester.drain()
        if group is not None:
            assert kafka.group_offsets(group, topic) == found
    kafka.admin.delete_consumer_groups(["watched"])["watched"].result(30)
    with TopologyTester(topology(spout(kafka, topic, group="watched")), tmp_path / "named") as tester:
        assert tester.drain() == 0  # it was killed before it could tell: the next start does
    assert kafka.group_offsets("watched", topic) == {0: 0, 1: 7}


def test_the_group_is_told_nothing_before_the_commit(kafka, tmp_path):
    """The driver ends in good order, and so tells what it has to tell."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 20))
    tester = TopologyTester(topology(spout(kafka, topic, group="behind", maxRows=10)), tmp_path / "ck")
    tester.emit()

    def stop():
        raise KeyboardInterrupt

    tester.when("before COMMITTING(2, 0)", stop)
    with tester, pytest.raises(KeyboardInterrupt):
        tester.emit()
    assert kafka.group_offsets("behind", topic) == {0: 10}
    with tester.restart() as other:
        other.drain()
    assert kafka.group_offsets("behind", topic) == {0: 20}


def test_a_group_that_others_use_keeps_what_it_has_and_is_no_matter(kafka, tmp_path, caplog):
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 30))
    member = Consumer(kafka.client(group_id="theirs", auto_offset_reset="earliest", enable_auto_commit=False))
    member.subscribe([topic])
    assert member.poll(30) is not None
    reads = spout(kafka, topic, group="theirs", maxRows=10)
    with TopologyTester(topology(reads), tmp_path / "ck", freshObjects=False) as tester:
        assert tester.drain() == 3
        assert counted(tester) == once(*lines(0, 30))
    said = [each.message for each in caplog.records if "can't be reported" in each.message]
    assert len(said) == 1
    assert "give the spout a group of its own" in said[0]
    assert kafka.group_offsets("theirs", topic) == {}
    member.close()


def test_what_a_client_fetches_ahead_is_counted_once(kafka, tmp_path):
    """A warm client has records of the next range in its hands; an attempt that fails must not lose or double them."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 100))
    with TopologyTester(topology(spout(kafka, topic, maxRows=10)), tmp_path / "ck", freshObjects=False) as tester:
        for number in range(10):
            tester.emit(*([JobFails(reason="lost")] if number % 3 == 1 else []))
        assert counted(tester) == once(*lines(0, 100))


class TestContract(SpoutContract):
    @pytest.fixture(autouse=True)
    def broker(self, kafka):
        self.kafka = kafka

    def make(self, place):
        self.topic = self.kafka.topic(partitions=2)
        self.kafka.send(self.topic, *map(str, range(7)))
        self.kafka.send(self.topic, "b", partition=1)
        return spout(self.kafka, self.topic, maxRows=3)

    def rows(self, place):
        return [*((str(n),) for n in range(7)), ("b",)]

    def more(self, place):
        self.kafka.send(self.topic, "c", "d")
        return [("c",), ("d",)]


def test_a_transaction_is_linked_to_the_traces_of_its_producers(kafka, tmp_path):
    topic = kafka.topic(partitions=2)
    producer = Producer(kafka.client())
    for number in (1, 2):
        traces = {"traceparent": f"00-{number:032x}-{number:016x}-01"}
        producer.produce(topic, f"line {number}", partition=number - 1, headers=traces)
    assert producer.flush(20) == 0
    kafka.send(topic, "without a trace")
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    with TopologyTester(topology(spout(kafka, topic)), tmp_path / "ck") as tester:
        instrument(tester, tracerProvider=tracers)
        tester.drain()
        assert counted(tester) == once("line 1", "line 2", "without a trace")
    links = [link.context.trace_id for span in exporter.get_finished_spans() for link in span.links]
    assert sorted(links) == [1, 2]
