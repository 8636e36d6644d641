"""What a program sees of a topology on Spark: listeners, fields of log records, exceptions, levels of the workers."""

import logging
import threading

import pytest

from statefx import BasicBolt, Checkpoint, TopologyBuilder, submit
from statefx.command import main
from statefx.errors import BoltError, ConfigError, FailedException
from statefx.listeners import TopologyListener
from tests.bolts import WithState
from tests.spark.bolts import Once
from tests.spark.running import BOUND_SECS, feed, lines_of, listing, run, wait_for

NOW = {"trigger": {"availableNow": True}}


class Told(TopologyListener):
    """Notes all events but those of an idle query: on a full machine a start takes long enough for some."""

    def __init__(self):
        self.events = []

    def _take(self, event):
        self.events.append(event)

    onQueryStarted = onQueryProgress = onQueryRolledBack = onQueryStuck = onQueryTerminated = _take

    @property
    def kinds(self):
        return [type(event).__name__.removeprefix("Query").removesuffix("Event") for event in self.events]


class FailsOnce(WithState):
    def __init__(self, once):
        self.once = once

    def execute(self, tup, collector):
        if self.once:
            raise FailedException("not yet")
        self.state.put(tup.value, 1)


class Divides(BasicBolt):
    def execute(self, tup, collector):
        card = {"number": 4711}
        raise ValueError(f"no such card: {card['number']}")


def with_bolt(lines, bolt):
    builder = TopologyBuilder("seen")
    builder.setStream("lines", lines)
    builder.setBolt("bolt", bolt).globalGrouping("lines")
    return builder.createTopology()


@pytest.fixture
def lines(spark, place):
    feed(place / "in", a=["x"], b=["y"])
    return lines_of(spark, place / "in")


@pytest.mark.slow
def test_a_listener_is_told_of_the_whole_life_of_a_query(spark, place, lines):
    told = Told()
    topology = with_bolt(lines, FailsOnce(Once(place)))
    query = run(topology, spark, place / "ck", listeners=[told], **NOW)
    assert told.kinds == ["Started", "RolledBack", "Progress", "Progress", "Terminated"]
    started, back, *progress, ended = told.events
    assert (started.name, started.generation, started.committed) == ("seen", 1, 0)
    assert str(place / "ck") in started.checkpoint
    assert (back.txid, back.attempt, back.reason) == (1, 0, "bolt[0]: not yet")
    assert [event.progress for event in progress] == query.recentProgress
    assert [event.progress["attempt"] for event in progress] == [1, 0]
    assert ended.exception is None
    feed(place / "in", c=["z"])
    again = Told()
    run(topology, spark, place / "ck", listeners=[again], **NOW)
    assert (again.events[0].generation, again.events[0].committed) == (2, 2)


@pytest.mark.slow
def test_a_listener_that_stops_the_query_and_one_that_raises(spark, place, lines, caplog):
    class Stops(TopologyListener):
        def onQueryProgress(self, event):
            queries[0].stop()
            stopped.set()

        def onQueryTerminated(self, event):
            ended.append(event)

    class Raises(TopologyListener):
        def onQueryStarted(self, event):
            raise RuntimeError("of the user's")

    stopped, ended, queries = threading.Event(), [], []
    queries.append(submit(with_bolt(lines, FailsOnce(())), spark, place / "ck", listeners=[Raises()]))
    queries[0].addListener(Stops())
    assert queries[0].awaitTermination(BOUND_SECS)
    assert stopped.wait(BOUND_SECS)
    wait_for(lambda: ended, "the end")
    assert "listener Raises: onQueryStarted raised; ignored" in caplog.messages


@pytest.mark.slow
def test_what_a_bolt_raises_is_told_without_values(spark, place, lines, capsys):
    told = Told()
    query = submit(with_bolt(lines, Divides()), spark, place / "ck", listeners=[told], **NOW)
    with pytest.raises(BoltError):
        query.awaitTermination(BOUND_SECS)
    (found,) = query._coordinator.progress.exceptions
    assert (found["component"], found["task"], found["type"], found["count"]) == ("bolt", 0, "ValueError", 1)
    assert found["message"].startswith("no such card: 4711")  # as the user has written it
    first, *frames, last = found["traceback"].splitlines()
    assert first == "Traceback (most recent call last):"
    assert "test_seen.py" in frames[0]
    assert last == "ValueError"
    assert "4711" not in found["traceback"].replace('"number": 4711', "")
    assert told.kinds == ["Started", "RolledBack", "Terminated"]
    assert isinstance(told.events[-1].exception, BoltError)
    assert main(["top", str(place / "ck"), "--once", "--table"]) == 1
    assert "failed  The query was ended by BoltError: bolt 'bolt', task 0" in capsys.readouterr().out
    assert "Nothing bounds it" not in str(why := Checkpoint(place / "ck").why())
    assert [each.name for each in why.diagnoses] == ["unwell"]


@pytest.mark.slow
@pytest.mark.parametrize("listeners", [Told(), "Told", [Told], [print]], ids=["one", "text", "class", "function"])
def test_what_is_no_listener_is_refused_before_anything_begins(spark, place, lines, listeners):
    before = listing(place)
    with pytest.raises(ConfigError, match="listener"):
        submit(with_bolt(lines, Divides()), spark, place / "ck", listeners=listeners)
    assert listing(place) == before


@pytest.mark.slow
def test_every_record_of_a_query_names_its_topology(spark, place, lines, caplog):
    caplog.set_level(logging.DEBUG, "statefx")
    run(with_bolt(lines, FailsOnce(Once(place))), spark, place / "ck", **NOW)
    own = [record for record in caplog.records if record.name == "statefx"]
    assert {record.statefx_topology for record in own} == {"seen"}
    of_transactions = [record for record in own if "transaction 1, attempt" in record.getMessage()]
    assert [(record.statefx_txid, record.statefx_attempt) for record in of_transactions] == [(1, 0), (1, 1)]
    (run_began,) = [record for record in own if "has begun" in record.getMessage()]
    assert run_began.statefx_txid is None


class Talks(WithState):
    def execute(self, tup, collector):
        logging.getLogger("seen.bolt").debug("saw %s", tup.value)
        self.state.put(tup.value, 1)


@pytest.mark.slow
def test_workers_log_as_the_driver_does_from_when_it_says_so(spark, place, caplog):
    (place / "in").mkdir()
    talking = logging.getLogger("seen.bolt")
    query = submit(with_bolt(lines_of(spark, place / "in"), Talks()), spark, place / "ck")
    feed(place / "in", a=["quiet"])
    query.processAllAvailable()
    talking.setLevel(logging.DEBUG)
    try:
        query._coordinator.engine.send_levels()
        feed(place / "in", b=["loud"])
        query.processAllAvailable()
        query.stop()
    finally:
        talking.setLevel(logging.NOTSET)
    said = [record.getMessage() for record in caplog.records if record.name == "statefx.worker.seen.bolt"]
    assert said == ["bolt[0]: saw loud"]
