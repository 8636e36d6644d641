"""What the driver counts of its transactions, and the metrics that bolts and spouts have of their own."""

import logging
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from statefx import (
    BasicBolt,
    BatchBolt,
    Count,
    OpaquePartitionedTransactionalSpout,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    WindowedBolt,
)
from statefx.connectors.files import FileSink
from statefx.coordinator import figures, measuring
from statefx.coordinator.measuring import Measures
from statefx.errors import BoltError, ConfigError
from statefx.metrics import registry
from statefx.metrics.catalog import METRICS
from statefx.operators.context import Context
from statefx.operators.metrics import SERIES_MAX, Metrics
from statefx.protocol.counting import OTHERS_MAX, parts_of
from statefx.testing import TopologyTester, rows
from statefx.testing.faults import JobFails
from tests.metrics.reading import value, values
from tests.testing.topologies import archived, lines, word_count


def test_rows_and_bytes_by_edge_and_task(driver):
    tester = driver.start(word_count())
    tester.send(lines("to be", "or"))
    tester.send(lines("not"))
    found = tester.metrics
    by_edge = values(found, "statefx_rows_total", "from", "to", "stream", "direction")
    assert by_edge == {
        ("lines", "split", "default", "out"): 3,
        ("lines", "split", "default", "in"): 3,
        ("split", "count", "default", "out"): 4,
        ("split", "count", "default", "in"): 4,
    }
    sent = values(found, "statefx_bytes_total", "from", "to", "direction")
    for ends in (("lines", "split"), ("split", "count")):
        assert sent[*ends, "in"] == sent[*ends, "out"] > 0
    by_task = values(found, "statefx_task_rows_total", "component", "task")
    assert sum(number for (component, _), number in by_task.items() if component == "count") == 4
    assert sum(number for (component, _), number in by_task.items() if component == "lines") == 3
    assert value(found, "statefx_input_rows_total") == 3


def test_transactions_attempts_and_phases(driver):
    tester = driver.start(word_count())
    tester.send(lines("a"), JobFails())
    tester.send(lines("b"))
    found = tester.metrics
    assert values(found, "statefx_transactions_total", "outcome") == {"committed": 2, "rolled_back": 1}
    assert value(found, "statefx_attempts_total") == 3
    phases = values(found, "statefx_transaction_duration_seconds", "phase")
    assert set(phases) == {"run", "hooks", "log", "all"}
    assert all(histogram["count"] == 2 for histogram in phases.values())
    assert value(found, "statefx_generation") == 1
    assert value(found, "statefx_transactions_in_flight") == 0
    assert value(found, "statefx_stuck_since_seconds") == 0
    appended = values(found, "statefx_log_append_seconds", "record")
    assert appended["PREPARING"]["count"] == 3
    assert appended["ROLLED_BACK"]["count"] == 1
    assert value(found, "statefx_log_bytes_total") > 100


def test_fsync_is_told_apart_from_the_rest_of_an_append(driver, monkeypatch):
    """By a clock that stands still but in fsync, where it goes on by a second."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def sync(descriptor):
        now[0] += 1.0

    tester = driver.start(word_count())
    before = values(tester.metrics, "statefx_log_fsync_seconds", "record")
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", lambda *names, link=os.link: (link(*names), now.__setitem__(0, now[0] + 4.0)))
    tester.send(lines("a"))
    found = tester.metrics
    for record in ("PREPARING", "COMMITTING"):
        assert record not in before
        assert value(found, "statefx_log_fsync_seconds", record=record)["sum"] == 2.0, "the file and its folder"
        assert value(found, "statefx_log_append_seconds", record=record)["sum"] == 6.0


def test_recoveries_and_generations(driver):
    driver.start(word_count()).send(lines("a"))
    tester = driver.start(word_count())
    assert value(tester.metrics, "statefx_generation") == 2
    assert value(tester.metrics, "statefx_state_bytes", component="count") > 0, "known before any transaction"


@pytest.mark.slow
def test_state_of_a_bolt(driver):
    tester = driver.start(word_count())
    tester.send(lines("to be or not to be"))
    tester.send(lines("to"))
    found = tester.metrics
    assert value(found, "statefx_state_keys_changed_total", component="count") == 5
    assert value(found, "statefx_state_keys", component="count") == 4
    assert value(found, "statefx_prepared_bytes_total", component="count") > 0


def test_sinks(driver, tmp_path):
    tester = driver.start(archived(tmp_path / "out"))
    tester.send(lines("to be"))
    found = tester.metrics
    assert value(found, "statefx_sink_last_txid", component="out") == 1
    assert value(found, "statefx_sink_rows_total", component="out") == 2
    assert value(found, "statefx_sink_bytes_total", component="out") > 0
    assert value(found, "statefx_sink_stuck_since_seconds", component="out") == 0
    assert value(found, "statefx_sink_publish_seconds", component="out")["count"] == 1


class Refuses(BasicBolt):
    outputFields = "value string"

    def open(self, context):
        self.metrics = context.metrics

    def execute(self, tup, collector):
        self.metrics.counter("seen").inc()
        self.metrics.histogram("length", buckets=(1,)).observe(len(tup.value))
        self.metrics.gauge("last").set(len(tup.value))
        if tup.value == "bad":
            raise ValueError(tup.value)
        collector.emit(tuple(tup))


class RefusesBatches(Refuses):
    def executeBatch(self, batch, collector):
        for text in batch.column("value").to_pylist():
            self.metrics.counter("seen").inc()
            if text == "bad":
                raise ValueError(text)


def refusing(bolt, **options):
    builder = TopologyBuilder("refusing")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("bolt", bolt, **options).shuffleGrouping("lines")
    return builder


@pytest.mark.parametrize("bolt", [Refuses, RefusesBatches])
def test_a_row_that_is_set_aside_is_not_counted(bolt):
    with TopologyTester(refusing(bolt(), onError="skip").createTopology()) as tester:
        tester.send(lines("a", "bad", "bb"))
        found = tester.metrics
    assert value(found, "seen_total") == 2
    assert value(found, "statefx_rows_set_aside_total", component="bolt") == 1
    if bolt is Refuses:
        assert value(found, "length")["count"] == 2
        assert value(found, "last") == 2


def test_dead_letters(tmp_path):
    builder = refusing(Refuses(), onError="deadLetter")
    builder.setSink("letters", FileSink(tmp_path, "json")).shuffleGrouping("bolt", stream="deadLetter")
    with TopologyTester(builder.createTopology()) as tester:
        tester.send(lines("a", "bad", "bb", "bad"))
        assert value(tester.metrics, "statefx_dead_letters_total", component="bolt") == 2


class Latest(WindowedBolt):
    outputFields = "value string"

    def execute(self, window, collector):
        pass


def everything(folder):
    """Return a topology to which all counters of rows that go astray apply, each to some components."""
    builder = TopologyBuilder("everything")
    builder.setSpout("events", Partitions(), timestamp="at")
    builder.setSpout("asked", Asked())
    builder.setBolt("skips", Refuses(), onError="skip").shuffleGrouping("asked")
    builder.setBolt("letters", Refuses(), onError="deadLetter").shuffleGrouping("asked")
    builder.setBolt("fails", Refuses()).shuffleGrouping("letters")
    builder.setBolt("latest", Latest().withTumblingWindow("1 minute"), onError="skip").fieldsGrouping("events", "at")
    builder.setBolt("counted", Latest().withTumblingWindow(Count(3))).fieldsGrouping("asked", "value")
    builder.setSink("out", FileSink(folder, "json")).shuffleGrouping("letters", stream="deadLetter")
    return builder.createTopology()


ASTRAY = {
    "statefx_transactions_total": ["committed", "rolled_back"],
    "statefx_messages_timed_out_total": [None],
    "statefx_rows_ahead_total": ["events"],
    "statefx_rows_late_total": ["latest"],
    "statefx_rows_set_aside_total": ["latest", "letters", "skips"],
    "statefx_dead_letters_total": ["letters"],
}


def test_a_counter_of_what_goes_astray_is_0_before_anything_does_so(tmp_path):
    """Else what comes first is where it begins, and no increase: the alerts miss it."""
    with TopologyTester(everything(tmp_path)) as tester:
        begun = tester.metrics
    for name, labels in ASTRAY.items():
        found = [each for each in begun if each["name"] == name]
        assert {each["labels"].get("component", each["labels"].get("outcome")) for each in found} == set(labels), name
        assert {each["value"] for each in found} == {0}


def test_no_counter_of_what_goes_astray_is_shown_of_a_topology_where_nothing_can(driver):
    found = {each["name"] for each in driver.start(word_count()).metrics}
    assert found & set(ASTRAY) == {"statefx_transactions_total"}


class Timed(BatchBolt):
    outputFields = "at timestamp"

    def execute(self, tup, collector):
        collector.emit(tuple(tup))

    def finishBatch(self, collector):
        pass


def test_freshness_and_watermarks_by_component():
    builder = TopologyBuilder("timed")
    builder.setStream("events", rows("at timestamp"), timestamp="at")
    builder.setBolt("timed", Timed()).shuffleGrouping("events")
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with TopologyTester(builder.createTopology(), now=now) as tester:
        tester.send({"events": [(datetime(2026, 1, 1, 11, 59, tzinfo=UTC),)]})
        tester.advance(60)
        found = tester.metrics
    for component in ("events", "timed"):
        assert value(found, "statefx_freshness_seconds", component=component) == pytest.approx(120)
        at = value(found, "statefx_watermark_timestamp_seconds", component=component)
        assert at == datetime(2026, 1, 1, 11, 59, tzinfo=UTC).timestamp()
    assert value(found, "statefx_input_time_seconds", component="events") == at
    assert value(found, "statefx_freshness_added_seconds", component="timed") == 0


class Partitions(OpaquePartitionedTransactionalSpout):
    """Two partitions: the second one has rows of a minute before."""

    outputFields = "at timestamp"

    def numPartitions(self):
        return 2

    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        if lastMetadata is None:
            collector.emit((datetime(2026, 1, 1, 12, 1 - partition, tzinfo=UTC),))
            return 1
        return None

    def committed(self, metadata):
        return {"lagRecords": {"0": 30, "1": 10}}


def test_the_partition_that_holds_the_watermark_back():
    builder = TopologyBuilder("timed")
    builder.setSpout("events", Partitions(), timestamp="at")
    builder.setBolt("timed", Timed()).shuffleGrouping("events")
    with TopologyTester(builder.createTopology(), now=datetime(2026, 1, 1, 12, 2, tzinfo=UTC)) as tester:
        tester.emit()
        tester.emit()
        found = tester.metrics
    assert values(found, "statefx_watermark_held_seconds", "component", "unit") == {("events", "1"): 60}
    assert (
        values(found, "statefx_input_time_seconds", "unit")["0"] == datetime(2026, 1, 1, 12, 1, tzinfo=UTC).timestamp()
    )
    assert value(found, "statefx_source_lag_records", component="events") == 40
    assert values(found, "statefx_source_partition_lag_records", "partition") == {"0": 30, "1": 10}


# ---- what a spout counts


class Asked(Spout):
    """Hands out the rows of a queue; counts calls."""

    outputFields = "value string"

    def open(self, context):
        self.metrics = context.metrics
        self.left = ["a", "b", "bad"]

    def nextTuple(self, collector):
        if self.left:
            self.metrics.counter("handed_out").inc()
            value = self.left.pop(0)
            collector.emit((value,), id=value)

    def ack(self, id):
        self.metrics.counter("ended", how="ack").inc()

    def fail(self, id):
        self.metrics.counter("ended", how="fail").inc()
        self.left.append("again")


class Fails(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.value, 1)
        if tup.value == "bad":
            collector.fail(tup, "bad")


def asked():
    builder = TopologyBuilder("asked")
    builder.setSpout("jobs", Asked())
    builder.setBolt("work", Fails()).shuffleGrouping("jobs")
    return builder.createTopology()


def test_a_spout_counts_with_the_next_transaction():
    with TopologyTester(asked(), freshObjects=False) as tester:
        tester.emit(JobFails())
        found = tester.metrics
        assert value(found, "handed_out_total") == 3, "once, although the attempt was tried again"
        tester.emit()
        found = tester.metrics
        assert values(found, "ended_total", "how") == {"ack": 2, "fail": 1}
        assert value(found, "handed_out_total") == 4
        assert values(found, "statefx_messages_total", "outcome")["failed"] == 1


# ---- names and labels


@pytest.fixture
def metrics():
    return Context({}, "pay", 0, 1, 1).metrics


@pytest.mark.parametrize("name", ["", "1st", "with space", "dash-ed", "é", "a\n", None, 7])
def test_a_name_follows_prometheus(metrics, name):
    with pytest.raises(ConfigError, match="can't be the name of a metric"):
        metrics.counter(name)


def test_names_of_statefx_are_reserved(metrics):
    with pytest.raises(ConfigError, match=r"begins with 'statefx_'.*another name"):
        metrics.gauge("statefx_rows")
    with pytest.raises(ConfigError, match="ends with _total"):
        metrics.gauge("rows_total")


@pytest.mark.parametrize("label", ["topology", "component", "task", "le", "quantile", "__name__", "é", "with space"])
def test_labels_follow_prometheus(metrics, label):
    with pytest.raises(ConfigError, match="can't be a label"):
        metrics.counter("refused", **{label: "x"})


@pytest.mark.parametrize("what", [None, b"x", [1], object()])
def test_a_label_is_a_text(metrics, what):
    with pytest.raises(ConfigError, match="a label is a short text"):
        metrics.counter("refused", reason=what)


def test_numbers_are_labels_as_texts(metrics):
    for what in (1, True, "1", 1.5):
        metrics.counter("refused", code=what).inc()
    assert metrics.take().counters == {
        'refused{"code":"1"}': 2, 'refused{"code":"True"}': 1, 'refused{"code":"1.5"}': 1
    }  # fmt: skip


def test_a_name_is_one_kind_with_the_same_labels(metrics):
    metrics.counter("refused", reason="a")
    with pytest.raises(ConfigError, match="was a counter labelled reason before, and is a gauge without labels now"):
        metrics.gauge("refused")
    with pytest.raises(ConfigError, match="counter labelled bank"):
        metrics.counter("refused", bank="a")
    metrics.histogram("secs", buckets=(1, 2))
    with pytest.raises(ConfigError, match="with 2 buckets without labels before, and is a histogram with 1 buckets"):
        metrics.histogram("secs", buckets=(1,))


@pytest.mark.parametrize("buckets", [(), (2, 1), (1, 1), (float("nan"),), (float("inf"),), "x", None, range(51)])
def test_buckets_grow(metrics, buckets):
    with pytest.raises(ConfigError, match="upper bounds that grow"):
        metrics.histogram("secs", buckets=buckets)


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), 2**53 + 1, "1", None, True])
def test_a_counter_takes_numbers_from_zero(metrics, amount):
    with pytest.raises(ConfigError, match="which is not a number from 0"):
        metrics.counter("refused").inc(amount)


@pytest.mark.parametrize("amount", [float("nan"), float("-inf"), "1", None, True])
def test_gauges_and_histograms_take_numbers(metrics, amount):
    for take in (metrics.gauge("g").set, metrics.histogram("h").observe):
        with pytest.raises(ConfigError, match="which is not a number"):
            take(amount)


def test_total_is_added_once(metrics):
    metrics.counter("refused_total").inc(2)
    assert metrics.counter("refused") is metrics.counter("refused")
    assert metrics.take().counters == {"refused": 2}


def test_series_of_a_task_are_bounded():
    metrics = Metrics()
    for number in range(SERIES_MAX + 10):
        metrics.counter("seen", key=str(number)).inc()
    counters = metrics.take().counters
    assert len(counters) == SERIES_MAX + 1
    assert counters['seen{"key":"other"}'] == 10


def test_names_and_histograms_of_a_task_are_bounded_too():
    metrics = Metrics()
    for number in range(SERIES_MAX + 1000):
        metrics.counter(f"seen_{number}").inc()
        metrics.counter(f"of_{number}", country="x").inc()
        metrics.histogram(f"secs_{number}", buckets=range(1, 2 + number % 40)).observe(50)
    found = metrics.take()
    assert len(found.counters) <= SERIES_MAX + OTHERS_MAX + 1
    assert sum(found.counters.values()) == 2 * (SERIES_MAX + 1000)
    assert len(found.histograms) <= SERIES_MAX + OTHERS_MAX + 1
    assert sum(sum(counts) for _, counts, _ in found.histograms.values()) == SERIES_MAX + 1000


def test_what_an_attempt_adds_up_to_always_fits_into_an_ack(metrics):
    nanoseconds = metrics.counter("nanoseconds")
    for _ in range(3000):
        nanoseconds.inc(2**53)
    (total,) = metrics.take().counters.values()
    assert total == pytest.approx(3000 * 2**53)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(total)) == total


def test_a_thread_of_the_users_that_counts_meanwhile_ends_no_attempt(metrics):
    going = threading.Event()

    def count():
        number = 0
        while not going.is_set():
            number += 1
            metrics.histogram("secs", of=str(number % 400)).observe(1)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(300):
            metrics.take()
    finally:
        going.set()
        thread.join()


def test_a_label_of_bytes_that_were_no_text_can_be_exposed(metrics):
    metrics.counter("seen", name=b"caf\xe9".decode("utf-8", "surrogateescape")).inc()
    (series,) = metrics.take().counters
    assert parts_of(series) == ("seen", {"name": "caf\\udce9"})


@pytest.mark.parametrize("name", ["a" * 201, "1a", "a b", "", None, 7])
def test_what_can_be_no_name_is_refused(metrics, name):
    with pytest.raises(ConfigError, match="can't be the name of a metric"):
        metrics.counter(name)


class Misnames(BasicBolt):
    outputFields = "value string"

    def open(self, context):
        self.metrics = context.metrics

    def execute(self, tup, collector):
        self.metrics.counter("statefx_mine").inc()


def test_a_mistake_in_a_bolt_names_the_bolt_and_the_remedy():
    with (
        TopologyTester(refusing(Misnames()).createTopology()) as tester,
        pytest.raises(BoltError, match="another name"),
    ):
        tester.send(lines("a"))


class AsGauge(BasicBolt):
    outputFields = "value string"

    def open(self, context):
        self.metrics = context.metrics

    def execute(self, tup, collector):
        self.metrics.gauge("seen").set(1)


def test_two_kinds_under_one_name_are_warned_of(caplog):
    builder = refusing(Refuses())
    builder.setBolt("gauge", AsGauge()).shuffleGrouping("lines")
    with TopologyTester(builder.createTopology()) as tester, caplog.at_level(logging.WARNING):
        tester.send(lines("a"))
        assert value(tester.metrics, "seen_total") == 1
        assert value(tester.metrics, "seen_total") == 1
    assert caplog.text.count("a counter in one component and a gauge in another") == 1


# ---- what observes never breaks


def test_an_error_of_metrics_is_logged_once_and_breaks_nothing(monkeypatch, caplog):
    def broken(self, acks):
        raise RuntimeError("broken")

    monkeypatch.setattr(Measures, "_count_rows", broken)
    with TopologyTester(word_count()) as tester:
        for text in ("a", "b", "c"):
            tester.send(lines(text))
        assert tester.state("count") == {"a": 1, "b": 1, "c": 1}
        assert value(tester.metrics, "statefx_transactions_total", outcome="committed") == 3
    assert caplog.text.count("committed failed") == 1


def test_counting_costs_a_few_looks_at_a_dict():
    """A counter is for each row: as many as a bolt has in a second must not take a tenth of it."""
    counter = Metrics().counter("seen", reason="a")
    began = time.thread_time()  # others may have the processor meanwhile
    for _ in range(100_000):
        counter.inc()
    assert time.thread_time() - began < 0.5


def test_each_metric_of_the_table_is_counted_somewhere():
    source = "".join(Path(module.__file__).read_text() for module in (figures, measuring, registry))
    assert [metric.name for metric in METRICS if f'"{metric.name}"' not in source] == []
