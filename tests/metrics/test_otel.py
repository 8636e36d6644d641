"""What OpenTelemetry is given: metrics by its own reader, and spans by its own exporter, both in memory."""

import logging
import time

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from statefx import TopologyBuilder, TransactionalSpout
from statefx.connectors import CollectSink
from statefx.metrics import otel
from statefx.metrics.catalog import METRICS, Kind
from statefx.metrics.otel import LINKS_MAX, instrument
from statefx.testing import TopologyTester
from statefx.testing.faults import JobFails
from tests.metrics.test_exactly_once import topology
from tests.testing.topologies import lines, word_count

BOUND_SECS = 60


class Sdk:
    def __init__(self):
        self.reader, self.exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.meters, self.tracers = MeterProvider([self.reader]), TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def instrument(self, query):
        return instrument(query, meterProvider=self.meters, tracerProvider=self.tracers)

    def metrics(self):
        data = self.reader.get_metrics_data()
        resources = [] if data is None else data.resource_metrics
        return {metric.name: metric for each in resources for scope in each.scope_metrics for metric in scope.metrics}

    def points(self, name):
        metric = self.metrics().get(name)
        return [] if metric is None else list(metric.data.data_points)

    def spans(self):
        return self.exporter.get_finished_spans()


@pytest.fixture
def sdk(monkeypatch):
    monkeypatch.setattr(otel, "FRESH_SECS", 0.0)
    made = Sdk()
    yield made
    made.meters.shutdown()
    made.tracers.shutdown()


def test_metrics_have_the_names_and_values_of_the_table(sdk):
    with TopologyTester(word_count()) as tester:
        sdk.instrument(tester)
        tester.send(lines("to be or not to be"))
        found = sdk.metrics()
    assert set(found) <= {metric.dotted for metric in METRICS}
    assert "statefx.transactions" in found
    assert {metric.unit for metric in found.values()} == {"", "s", "By"}
    assert not [name for name in found if name.endswith("_total") or not name.startswith("statefx.")]
    points = {point.attributes["outcome"]: point for point in found["statefx.transactions"].data.data_points}
    assert {outcome: point.value for outcome, point in points.items()} == {"committed": 1, "rolled_back": 0}
    assert dict(points["committed"].attributes) == {"topology": "word-count", "outcome": "committed"}
    assert found["statefx.transactions"].data.is_monotonic
    (keys,) = found["statefx.state_keys_changed"].data.data_points
    assert keys.value == 4
    assert found["statefx.transactions"].description == METRICS[0].help


def test_histograms_have_the_buckets_of_the_table(sdk):
    with TopologyTester(word_count()) as tester:
        sdk.instrument(tester)
        tester.send(lines("to be"))
        points = sdk.points("statefx.transaction_duration_seconds")
    whole = next(point for point in points if point.attributes["phase"] == "all")
    assert whole.count == 1
    assert whole.explicit_bounds == otel.SECONDS
    assert all(metric.kind is not Kind.HISTOGRAM or metric.unit == "seconds" for metric in METRICS)


@pytest.mark.slow
def test_metrics_of_users_come_with_their_own_names(sdk):
    with TopologyTester(topology(1)) as tester:
        sdk.instrument(tester)
        tester.send(lines("to be"))
        end = time.monotonic() + BOUND_SECS
        while not all(map(sdk.points, ("words", "length.count", "length.sum"))):
            assert time.monotonic() < end
        words = {point.attributes["word"]: point.value for point in sdk.points("words")}
        assert words == {"to": 1, "be": 1}
        assert [point.value for point in sdk.points("length.sum")] == [4]


def test_a_committed_transaction_is_a_span_with_its_phases_and_components(sdk):
    with TopologyTester(word_count()) as tester:
        sdk.instrument(tester)
        tester.send(lines("to be"))
    spans = {span.name: span for span in sdk.spans()}
    whole = spans["transaction"]
    assert whole.parent is None
    assert whole.attributes == {
        "statefx.topology": "word-count",
        "statefx.txid": 1,
        "statefx.attempt": 0,
        "statefx.rows": 1,
        "statefx.outcome": "committed",
    }
    assert {span.name for span in spans.values() if span.parent and span.parent.span_id == whole.context.span_id} == {
        "run", "hooks", "log"
    }  # fmt: skip
    below = {
        span.name for span in spans.values() if span.parent and span.parent.span_id == spans["run"].context.span_id
    }
    assert below == {"lines", "split", "count"}
    assert all(span.start_time <= span.end_time for span in spans.values())


def test_an_attempt_that_is_rolled_back_is_a_span_with_its_reason(sdk):
    with TopologyTester(word_count()) as tester:
        sdk.instrument(tester)
        tester.send(lines("to be"), JobFails())
    first, second = (span for span in sdk.spans() if span.name == "transaction")
    assert first.attributes["statefx.outcome"] == "rolled_back"
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description
    assert second.attributes["statefx.attempt"] == 1


class Traced(TransactionalSpout):
    """Emits a row a transaction, which `traces` of producers have to do with."""

    def __init__(self, traces):
        self.traces = traces
        self.outputFields = "word string"

    def initializeTransaction(self, txid, previous):
        return txid

    def emitBatch(self, attempt, metadata, collector):
        self._traces = [*self._traces, *self.traces]
        collector.emit(("a",))


def traced(*traces):
    builder = TopologyBuilder("traced")
    builder.setSpout("words", Traced(traces))
    builder.setSink("out", CollectSink()).globalGrouping("words")
    return builder.createTopology()


def linked(sdk):
    """By transaction and attempt, the traces and spans that its span is linked to."""
    return {
        (span.attributes["statefx.txid"], span.attributes["statefx.attempt"]): [
            (each.context.trace_id, each.context.span_id, each.context.is_remote) for each in span.links
        ]
        for span in sdk.spans()
        if span.name == "transaction"
    }


def test_a_transaction_is_linked_to_the_traces_of_what_it_has_read(sdk):
    with TopologyTester(traced(f"00-{7:032x}-{8:016x}-01", f"00-{9:032x}-{10:016x}-00")) as tester:
        sdk.instrument(tester)
        tester.emit()
        tester.emit(JobFails())
    found = [(7, 8, True), (9, 10, True)]
    assert linked(sdk)[1, 0] == linked(sdk)[2, 1] == found, "those of each attempt, and not those of the one before too"


def test_links_are_bounded_and_told_once(sdk):
    many = [f"00-{number:032x}-{number:016x}-01" for number in range(1, LINKS_MAX + 20)]
    with TopologyTester(traced(*many[:3], *many)) as tester:
        sdk.instrument(tester)
        tester.emit()
    assert [each[0] for each in linked(sdk)[1, 0]] == list(range(1, LINKS_MAX + 1))


def test_closing_ends_the_reports(sdk):
    with TopologyTester(word_count()) as tester:
        instrumented = sdk.instrument(tester)
        tester.send(lines("a"))
        instrumented.close()
        instrumented.close()
        before = len(sdk.spans())
        tester.send(lines("b"))
        assert len(sdk.spans()) == before
        assert sdk.points("statefx.transactions") == []


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_watcher_that_raises_is_called_no_more(is_gone, caplog):
    """Also one that another thread removes meanwhile."""
    calls = []

    def broken(metric, value, labels):
        calls.append(metric)
        if is_gone:
            tester._registry.on_observation.remove(broken)
        raise RuntimeError("broken")

    with TopologyTester(word_count()) as tester, caplog.at_level(logging.ERROR):
        tester._registry.on_observation.append(broken)
        tester.send(lines("a"))
        tester.send(lines("b"))
        assert tester.state("count") == {"a": 1, "b": 1}
    assert len(calls) == 1
    assert "is called no more" in caplog.text
