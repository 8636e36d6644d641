"""Listeners: which events they get, in which order, and that nothing they do reaches the topology."""

import threading
from asyncio import CancelledError

import pytest

from statefx import listeners as module
from statefx import logs
from statefx.errors import ConfigError
from statefx.listeners import Listeners, TopologyListener
from tests.spark.running import wait_for

BOUND_SECS = 30


class Told(TopologyListener):
    def __init__(self):
        self.events, self.threads = [], set()
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_called = threading.Event()

    def _take(self, event):
        self.is_called.set()
        assert self.goes_on.wait(BOUND_SECS)
        self.threads.add(threading.current_thread().name)
        self.events.append(event)

    onQueryStarted = onQueryProgress = onQueryRolledBack = onQueryStuck = onQueryIdle = onQueryTerminated = _take

    @property
    def kinds(self):
        return [type(event).__name__.removeprefix("Query").removesuffix("Event") for event in self.events]


class Query:
    """What listeners know of a query: its status, its progress, and the time."""

    def __init__(self):
        self.now, self.status, self.done = 0.0, {"isTransactionActive": False, "txid": 3}, {}
        self.listeners = Listeners("words", lambda: self.status, self.done.get, lambda: self.now, lambda: self.now)

    def committed(self, txid):
        self.done[txid] = {"txid": txid, "rows": txid}
        self.listeners.committed(txid)


@pytest.fixture
def query(monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECS", BOUND_SECS)  # looks are the test's
    made = Query()
    yield made
    made.listeners.close(None)


@pytest.fixture
def told(query):
    listener = Told()
    query.listeners.add(listener)
    yield listener
    listener.goes_on.set()


def test_events_come_in_order_on_one_thread_of_its_own(query, told):
    query.listeners.started("/ck", 2, 6)
    query.listeners.rolled_back(7, 0, "no network")
    query.committed(7)
    query.committed(8)
    query.listeners.close(ValueError("x"))
    assert told.kinds == ["Started", "RolledBack", "Progress", "Progress", "Terminated"]
    started, back, seven, eight, end = told.events
    assert (started.checkpoint, started.generation, started.committed) == ("/ck", 2, 6)
    assert (back.txid, back.attempt, back.reason) == (7, 0, "no network")
    assert (seven.progress["txid"], eight.progress["txid"]) == (7, 8)
    assert str(end.exception) == "x"
    assert {event.name for event in told.events} == {"words"}
    assert started.timestamp == "1970-01-01T00:00:00.000+00:00"
    assert told.threads == {"statefx-listener"}


@pytest.mark.slow
def test_progress_has_what_spouts_say_after_the_commit(query, told):
    query.committed(7)
    query.done[7] = {**query.done[7], "sources": {"numbers": {"lag": 3}}}
    wait_for(lambda: told.events, "the progress")
    assert told.events[0].progress["sources"] == {"numbers": {"lag": 3}}


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, CancelledError])
def test_what_a_listener_raises_is_logged_and_others_go_on(error, query, told, caplog):
    class Fails(TopologyListener):
        def onQueryProgress(self, event):
            raise error("of the user's")

    with logs.of_query("words", logs.Repeats(later=lambda secs, call: None)):
        query.listeners.add(Fails())
    for txid in range(1, 5):
        query.committed(txid)
    query.listeners.close(None)
    assert told.kinds == ["Progress"] * 4 + ["Terminated"]
    assert caplog.messages == ["listener Fails: onQueryProgress raised; ignored"]
    assert "of the user's" in caplog.text


def test_a_slow_listener_holds_up_nobody_and_loses_old_progress_only(query, monkeypatch, caplog):
    monkeypatch.setattr(module, "EVENTS_MAX", 5)
    slow, other = Told(), Told()
    query.listeners.add(slow)
    query.listeners.add(other)
    slow.goes_on.clear()
    query.listeners.started("/ck", 1, 0)
    assert slow.is_called.wait(BOUND_SECS)
    query.listeners.rolled_back(1, 0, "x")
    for txid in range(1, 10):
        query.committed(txid)
        wait_for(lambda: len(other.events) > txid, "the quick one")  # noqa: B023 - called in this very turn
    slow.goes_on.set()
    query.listeners.close(None)
    assert [kind for kind in slow.kinds if kind != "Progress"] == ["Started", "RolledBack", "Terminated"]
    left = [(event.progress["txid"], event.dropped) for event in slow.events if hasattr(event, "progress")]
    assert left in ([(6, 5), (7, 0), (8, 0), (9, 0)], [(7, 6), (8, 0), (9, 0)])  # the end took the place of the sixth
    assert [event.progress["txid"] for event in other.events if hasattr(event, "progress")] == list(range(1, 10))
    assert "were dropped: listener Told is slower than the topology" in caplog.text


def test_a_listener_that_never_returns_does_not_keep_the_end(query, told, monkeypatch):
    monkeypatch.setattr(module, "CLOSE_SECS", 0.05)
    told.goes_on.clear()
    query.listeners.started("/ck", 1, 0)
    query.listeners.close(None)
    assert told.events == []


@pytest.mark.slow
def test_a_listener_that_waits_for_the_end_is_not_waited_for(query, monkeypatch):
    monkeypatch.setattr(module, "CLOSE_SECS", 10 * BOUND_SECS)
    ended = threading.Event()

    class Stops(TopologyListener):
        def onQueryProgress(self, event):
            waiting.append(threading.get_ident())
            assert ended.wait(BOUND_SECS)

    waiting = []
    query.listeners.add(Stops())
    query.committed(1)
    wait_for(lambda: waiting, "the listener to wait")
    query.listeners.close(None, waiting)  # would take ten times as long as the test may
    ended.set()


def test_stuck_is_told_once_for_each_time(query, told):
    stuck = {"phase": "commit", "txid": 7, "since": "noon", "reason": "no disk"}
    for status in (stuck, {**stuck, "reason": "still none"}, None, {**stuck, "since": "one"}):
        query.status = {"isTransactionActive": True, **({} if status is None else {"stuck": status})}
        query.listeners.look()
    query.listeners.close(None)
    assert [(event.since, event.reason) for event in told.events[:-1]] == [("noon", "no disk"), ("one", "no disk")]


def test_idle_is_told_after_a_while_and_again(query, told):
    for secs, active in [(5, False), (9, False), (11, False), (15, False), (22, False), (30, True), (39, False)]:
        query.now, query.status = secs, {"isTransactionActive": active, "txid": 3}
        query.listeners.look()
    query.listeners.close(None)
    assert told.kinds == ["Idle", "Idle", "Terminated"]
    assert [event.timestamp[17:19] for event in told.events[:2]] == ["11", "22"]
    assert {event.paused for event in told.events[:2]} == {None}


def test_a_query_is_not_idle_between_two_attempts(query, told):
    query.listeners.started("/ck", 2, 2)
    failed = {"txid": 3, "attempt": 7, "since": "noon", "reason": "no network"}
    for secs, status in [(60, {"failed": failed}), (71, {"paused": {"since": "one"}}), (76, {"failed": failed})]:
        query.now, query.status = secs, {"isTransactionActive": False, "txid": 3, **status}
        query.listeners.look()
    query.committed(3)
    query.now, query.status = 90, {"isTransactionActive": False, "txid": 4}
    query.listeners.look()
    query.listeners.close(None)
    idle = [event for event in told.events if isinstance(event, module.QueryIdleEvent)]
    assert [(event.txid, event.paused) for event in idle] == [(2, "one"), (3, None)]


def test_a_listener_that_is_removed_is_called_no_more_and_twice_added_called_once(query, told):
    query.listeners.add(told)
    query.listeners.started("/ck", 1, 0)
    wait_for(lambda: told.events, "the start")
    query.listeners.remove(told)
    query.listeners.remove(told)
    query.committed(1)
    query.listeners.close(None)
    assert told.kinds == ["Started"]
    query.listeners.add(told)  # after the end: nothing happens


class NearMiss(TopologyListener):
    def onQueryProgres(self, event):  # noqa: N802 - a mistake
        pass


@pytest.mark.parametrize(
    ("listener", "message"),
    [
        (NearMiss(), r"NearMiss has onQueryProgres, which is never called.*onQueryProgress.*rename it"),
        (Told, r"TopologyListener, not <class .*Told'> \(the class, and not an object of it\)"),
        (print, r"a listener is an object of a subclass of statefx\.listeners\.TopologyListener"),
    ],
    ids=["near miss", "class", "function"],
)
def test_what_is_never_called_is_refused(query, listener, message):
    with pytest.raises(ConfigError, match=message):
        query.listeners.add(listener)


def test_without_listeners_nothing_runs():
    before = threading.active_count()
    query = Query()
    query.listeners.started("/ck", 1, 0)
    query.committed(1)
    assert threading.active_count() == before
    query.listeners.close(None)
