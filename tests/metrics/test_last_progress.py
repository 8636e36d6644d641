"""`lastProgress` and a scrape are the same figures: both are made from the table of metrics."""

from datetime import UTC, datetime, timedelta

import pytest

from statefx import AsyncBolt, BasicBolt, PartitionedTransactionalSpout, TopologyBuilder, WindowedBolt
from statefx.metrics.catalog import METRICS, Kind
from statefx.protocol.reports import LeftOut
from statefx.testing import TopologyTester
from tests.bolts import Tally
from tests.metrics.reading import values

START = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = {"txid", "attempt", "timestamp", "processedRowsPerSecond", "sources"}
"""What no metric tells: which transaction it is, what spouts say of themselves, and a quotient of two figures."""


class Numbers(PartitionedTransactionalSpout):
    """Rows in time, too late, and too far ahead; it leaves some out."""

    outputFields = "number long, at timestamp"

    def numPartitions(self):
        return 1

    def planPartitionBatch(self, partition, lastMetadata):
        return 1 if lastMetadata is None else lastMetadata + 1

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        for number in range(10):
            collector.emit((number, START + timedelta(hours=metadata, minutes=number)))
        collector.emit((10, START - timedelta(days=1)))
        collector.emit((11, START + timedelta(days=100_000)))
        self._left_out += LeftOut(gone=1, refused=metadata, why="torn")


class Refuses(BasicBolt):
    outputFields = "number long, at timestamp"

    def execute(self, tup, collector):
        if tup.number == 3:
            raise ValueError("3")
        collector.emit(tuple(tup))


class Numbered(WindowedBolt):
    outputFields = "number long"

    def initWindow(self):
        return 0

    def addToWindow(self, value, tup):
        return value + 1

    def emitWindow(self, window, value, collector):
        collector.emit((value,))


class Calls(AsyncBolt):
    """Its calls fail once more each day."""

    outputFields = "number long"
    retries, retryDelay = 3, "1 day"

    async def execute(self, tup, collector):
        raise ConnectionError


@pytest.fixture
def tester(place):
    builder = TopologyBuilder("all")
    builder.setSpout("numbers", Numbers(), timestamp="at")
    builder.setBolt("refuses", Refuses(), 2, onError="skip").shuffleGrouping("numbers")
    windows = Numbered().withTumblingWindow("1 minute").withTimestampField("at")
    builder.setBolt("windows", windows, 2).fieldsGrouping("refuses", "number")
    builder.setBolt("calls", Calls(), 2, onError="skip").fieldsGrouping("windows", "number")
    builder.setBolt("counts", Tally("number"), 2).fieldsGrouping("windows", "number")
    with TopologyTester(builder.createTopology(), place) as tester:
        for txid in range(1, 4):
            tester.when(f"before COMMITTING({txid}, 0)", lambda txid=txid: tester.advance(1.5 * txid))
        yield tester


def leaves(field, *path):
    """The figures of a field, by their path in it."""
    if not isinstance(field, dict):
        return {path: field}
    return {key: value for name, each in field.items() for key, value in leaves(each, *path, name).items()}


def scraped(metric, found):
    """What a scrape says of a metric, by the labels that its field shows, in the field's unit."""
    sums = {}
    for labels, value in values(found, metric.exposed, "topology", *metric.labels).items():
        labels = dict(zip(metric.labels, labels[1:] if metric.labels else (), strict=True))
        path = (*(labels[label] for label in metric.progress.by or metric.labels), *metric.progress.tail)
        if not metric.progress.only.items() <= labels.items() or {*path} & {*metric.progress.without}:
            continue
        number = value["sum"] if metric.kind is Kind.HISTOGRAM else value
        number = number * 1000 if metric.progress.key.endswith("Ms") else number
        sums[path] = sums.get(path, 0) + number
    return {path: number for path, number in sums.items() if number}


def told(metric, transactions):
    """The same by `lastProgress` of all transactions: the last gauge, and what counters have come to."""
    found = {}
    for progress in transactions[-1:] if metric.kind is Kind.GAUGE else transactions:
        for path, value in leaves(progress[metric.progress.key]).items():
            if isinstance(value, str):
                if path[-1] == "why":
                    continue
                value = datetime.fromisoformat(value).timestamp()
            if metric.progress.key != "boltMs" or metric.progress.tail == path[1:] or not metric.progress.tail:
                found[path] = found.get(path, 0) + value
    if metric.progress.key == "boltMs" and not metric.progress.tail:
        found = {path: value for path, value in found.items() if path[-1] != "slowest"}
    return {path: number for path, number in found.items() if number}


@pytest.mark.slow
def test_every_figure_of_last_progress_is_one_of_the_table_and_equals_the_scrape(tester):
    transactions = [tester.emit().progress.as_dict() for _ in range(3)]
    shown = [metric for metric in METRICS if metric.progress is not None]
    assert {*transactions[-1]} - WORDS == {metric.progress.key for metric in shown}
    for metric in shown:
        expected = scraped(metric, tester.metrics)
        assert expected, f"the test has nothing of {metric.name}"
        assert told(metric, transactions) == pytest.approx(expected, abs=0.01), metric.name


def test_rows_a_second_are_two_figures_of_it(tester):
    progress = tester.emit().progress
    secs = sum(progress.as_dict()["durationMs"].values()) / 1000
    assert (secs, progress.as_dict()["numInputRows"], progress.as_dict()["processedRowsPerSecond"]) == (1.5, 12, 8.0)
