"""A topology whose sinks change between two starts: what is refused, what goes on, and what `status` tells of them."""

import sqlite3
from contextlib import closing

import pytest

from statefx import BasicBolt, TopologyBuilder, transactions
from statefx.connectors import CollectSink
from statefx.connectors.files import FileSink
from statefx.connectors.sql import SqlSink
from statefx.errors import CheckpointMismatchError, SinkError, SinkMismatchError
from statefx.testing import Crash, TopologyTester, rows
from tests.sinks.test_sinks import in_files


class Pass(BasicBolt):
    outputFields = "word string, n long"

    def execute(self, tup, collector):
        collector.emit((tup.word, 1))


class Wider(Pass):
    outputFields = "word string, n long, more string"


class MySink(FileSink):
    pass


def topology(sinks, bolt=Pass, parallelism=1):
    builder = TopologyBuilder("t")
    builder.setStream("lines", rows("word string"))
    builder.setBolt("pass", bolt()).shuffleGrouping("lines")
    for name, sink in sinks.items():
        builder.setSink(name, sink, parallelism).shuffleGrouping("pass")
    return builder.createTopology()


def send(tester, *words):
    tester.send({"lines": [(word,) for word in words]})


def crash(place, sinks, at):
    try:
        with TopologyTester(topology(sinks), place / "ck", crash_at=at) as tester:
            send(tester, "a")
            steps = tester.steps
    except Crash:
        return None
    return steps


@pytest.fixture
def decided(tmp_path):
    """A checkpoint whose driver died when its first transaction was decided, and committed to no sink."""
    (tmp_path / "try").mkdir()
    steps = crash(tmp_path / "try", files(tmp_path / "try"), None)
    crash(tmp_path, files(tmp_path), steps.index("after COMMITTING(1, 0)") + 1)
    assert transactions(tmp_path / "ck")[-1].state == "COMMITTING"
    return tmp_path


def files(place, name="out", sink=FileSink, folder="out"):
    return {name: sink(place / folder)}


@pytest.mark.parametrize(
    ("changed", "bolt", "said"),
    [
        (
            lambda place: {},
            Pass,
            r"is decided, and not committed to 'out' \(.*/out\), which this topology does not have",
        ),
        (lambda place: files(place, "renamed"), Pass, "which this topology does not have, or calls otherwise"),
        (lambda place: files(place, folder="other"), Pass, "was to publish to .*/out, not to .*/other"),
        (lambda place: files(place, sink=MySink), Pass, "was to publish as a FileSink, not as a MySink"),
        (files, Wider, "was to publish rows with other fields, not rows with these"),
    ],
)
def test_what_is_decided_is_ended_by_the_topology_that_decided_it(decided, changed, bolt, said):
    for _ in range(2):
        with pytest.raises(CheckpointMismatchError, match=f"{said}.*start once with the former topology"):
            TopologyTester(topology(changed(decided), bolt), decided / "ck")
    assert in_files(decided) == []
    TopologyTester(topology(files(decided)), decided / "ck").close()
    assert in_files(decided) == [("a", 1)]


@pytest.mark.slow
def test_a_sink_that_is_new_has_no_part_in_what_is_decided(decided):
    collected = CollectSink()
    sinks = {**files(decided), "table": SqlSink(f"sqlite:///{decided}/db", "words"), "list": collected}
    with TopologyTester(topology(sinks), decided / "ck") as tester:
        send(tester, "b")
    assert in_files(decided) == [("a", 1), ("b", 1)]
    with closing(sqlite3.connect(decided / "db")) as connection, connection:
        assert connection.execute("select word from words").fetchall() == [("b",)]
    assert collected.transactions == {2: [{"word": "b", "n": 1}]}


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        (lambda place: files(place, "renamed"), ["a", "b"]),
        (lambda place: files(place, sink=MySink), ["a", "b"]),
        (lambda place: files(place, folder="other"), ["a"]),
        (lambda place: {"table": SqlSink(f"sqlite:///{place}/db", "words")}, ["a"]),
    ],
)
def test_between_two_transactions_sinks_may_come_and_go(tmp_path, changed, left):
    with TopologyTester(topology(files(tmp_path)), tmp_path / "ck") as tester:
        send(tester, "a")
    with TopologyTester(topology(changed(tmp_path), parallelism=3), tmp_path / "ck") as tester:
        send(tester, "b")
    assert [word for word, _ in in_files(tmp_path)] == left


def test_a_sink_that_comes_back_after_a_while_has_missed_something(tmp_path):
    for sinks in (files(tmp_path), {"list": CollectSink()}):
        with TopologyTester(topology(sinks), tmp_path / "ck") as tester:
            send(tester, "a")
    with pytest.raises(SinkMismatchError, match="or ran without this sink"):
        TopologyTester(topology(files(tmp_path)), tmp_path / "ck")
    with TopologyTester(topology(files(tmp_path)), tmp_path / "ck", adopt="takeover") as tester:
        send(tester, "b")
    assert in_files(tmp_path) == [("a", 1), ("b", 1)]


class Silent(CollectSink):
    """Does not tell how many rows it is given, and fails when it is told to."""

    failing = 0

    def writer(self, context):
        writer = super().writer(context)
        prepare = writer.prepare
        writer.prepare = lambda txid: {**prepare(txid), "rows": None}
        return writer

    def show(self, txid, rows):
        if self.failing:
            self.failing -= 1
            raise SinkError("no paper")


def test_status_tells_of_each_sink_what_it_has_published_and_why_it_has_not(tmp_path):
    silent, seen = Silent(), []
    sinks = {**files(tmp_path), "paper": silent}
    with TopologyTester(topology(sinks), tmp_path / "ck") as tester:
        nothing = {"txid": None, "rows": None, "bytes": None}
        assert tester.status["sinks"] == {"out": nothing, "paper": nothing}
        send(tester, "a", "b")
        first = tester.status["sinks"]
        assert first["out"]["txid"] == first["paper"]["txid"] == 1
        assert first["out"]["rows"] == 2
        assert first["out"]["bytes"] > 0
        assert first["paper"]["rows"] is None

        def look():
            seen.append(tester.status["sinks"])
            tester.when("pause", look)

        tester.when("pause", look)
        silent.failing = 2
        send(tester, "c")
        last = tester.status["sinks"]
    assert [each["out"]["txid"] for each in seen] == [2, 2]  # it has its rows, whoever else has not
    assert [each["paper"]["txid"] for each in seen] == [1, 1]
    assert [each["paper"]["stuck"]["reason"] for each in seen] == ["no paper"] * 2
    assert len({each["paper"]["stuck"]["since"] for each in seen}) == 1
    assert last["paper"] == {"txid": 2, "rows": None, "bytes": None}
    with TopologyTester(topology(sinks), tmp_path / "ck") as tester:
        assert tester.status["sinks"] == {"out": last["out"], "paper": nothing}


def test_who_gives_up_rows_that_are_lost_moves_the_marker(tmp_path):
    """As the page on recovery says."""

    def give_up():
        with closing(sqlite3.connect(tmp_path / "db")) as connection, connection:
            connection.execute("update statefx_markers set txid = 1 where target = 'words'")

    sinks = {**files(tmp_path), "table": SqlSink(f"sqlite:///{tmp_path}/db", "words")}
    with TopologyTester(topology(sinks), tmp_path / "ck") as tester:
        tester.when("after COMMITTING(1, 0)", lambda: [file.unlink() for file in staged(tmp_path)])
        tester.when("pause", give_up)
        send(tester, "a")
        assert len(tester.pauses) == 1
        send(tester, "b")
    with closing(sqlite3.connect(tmp_path / "db")) as connection, connection:
        assert connection.execute("select word from words").fetchall() == [("b",)]
    assert in_files(tmp_path) == [("a", 1), ("b", 1)]


def staged(place):
    return list((place / "ck" / "staged" / "table").iterdir())
