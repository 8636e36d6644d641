"""A client receives messages, and acknowledges them in its transactions: each counts once, whatever crashes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statefx import TransactionalClient
from statefx.connectors import CollectSink
from statefx.errors import (
    ConfigError,
    TransactionConflictError,
    TransactionError,
    TransactionTimeoutError,
    UnreachableError,
)
from statefx.testing.steps import Crash
from tests.sinks.database import SqliteDatabase
from tests.spouts.queues import SqlQueue, connections
from tests.testing.lives import seeds

TEXTS = ["to", "be", "or", "not", "to", "be"]


def client(queue: Any, folder: Path, **options: Any) -> TransactionalClient:
    given = {"queues": {"jobs": queue.spout(**options)}, "state": ["counts"]}
    return TransactionalClient(folder / "ck", id="jobs", config={"topology.state.provider": "rocksdb"}, **given)


def count(t: Any, message: Any) -> None:
    word = message.values["text"]
    t.put("counts", word, t.get("counts", word, 0) + 1)
    t.ack(message)


def test_messages_are_received_and_leave_with_the_transaction(queue, place):
    queue.add(*TEXTS)
    with client(queue, place) as own:
        with own.transaction() as t:
            messages = t.receive("jobs", 4)
            assert [message.values for message in messages] == [{"text": text} for text in TEXTS[:4]]
            for message in messages:
                count(t, message)
            assert len(queue.owners()) == 6
        assert len(queue.owners()) == 2
        with own.transaction() as t:
            for message in t.receive("jobs", 10):
                count(t, message)
            assert t.receive("jobs", 10) == []
        assert queue.owners() == []
        with own.transaction() as t:
            assert dict(t.state("counts").items()) == {"to": 2, "be": 2, "or": 1, "not": 1}


@pytest.mark.slow
def test_what_is_not_acknowledged_comes_again_and_open_transactions_share_nothing(queue, place):
    queue.add("a", "b", "c")
    with client(queue, place) as own:
        one, two = own.begin(), own.begin()
        (a,), (b,) = one.receive("jobs"), two.receive("jobs")
        assert [a.values["text"], b.values["text"]] == ["a", "b"]
        with pytest.raises(TransactionError, match="another open transaction of the client has received message"):
            one.ack(b)
        two.ack(b)
        with pytest.raises(TransactionError, match="acknowledged already"):
            two.nack(b)
        one.nack(a)
        (c,) = one.receive("jobs", 9)
        assert c.values["text"] == "c"
        one.nack(c)
        (again,) = two.receive("jobs")
        assert again == a._replace(tries=1)
        two.abort()
        with own.transaction() as t:
            messages = t.receive("jobs", 9)
            assert sorted(message.values["text"] for message in messages) == ["a", "b", "c"]
            t.ack(*messages[:2])
        one.abort()
        with own.transaction() as t:
            assert t.receive("jobs", 9) == [each._replace(tries=each.tries + 1) for each in messages[2:]]
    assert len(queue.owners()) == 1
    with client(queue, place) as successor, successor.transaction() as t:
        assert [message.values for message in t.receive("jobs", 9)] == [messages[2].values]


def test_cumulatively_all_leave_that_the_client_has_received_up_to_a_message(queue, place):
    queue.add("a", "b", "c", "d", "e")
    with client(queue, place) as own:
        ended = own.begin()
        a, b, c = ended.receive("jobs", 3)
        ended.abort()
        with own.transaction() as t:
            assert [each.id for each in t.receive("jobs", 9)][:3] == [a.id, b.id, c.id]
            t.nack(a)
            t.ack(c, cumulative=True)
            assert [each.values["text"] for each in t.receive("jobs", 9)] == []
        assert len(queue.owners()) == 2
        with own.transaction() as t:
            d, e = t.receive("jobs", 9)
            t.ack(d)
            t.ack(e, cumulative=True)
        assert queue.owners() == []


@pytest.mark.slow
def test_who_acknowledges_cumulatively_later_or_less_has_a_conflict(queue, place):
    queue.add("a", "b", "c", "d")
    with client(queue, place) as own:
        first, second = own.begin(), own.begin()
        (a,) = first.receive("jobs")
        b, c, d = second.receive("jobs", 3)
        with pytest.raises(TransactionConflictError, match=r"1 of the messages of 'jobs' up to .* another open"):
            second.ack(c, cumulative=True)
        first.ack(a, cumulative=True)
        first.commit()
        second.ack(c, cumulative=True)
        for message in (b, c):
            with pytest.raises(TransactionConflictError, match="and all before it are acknowledged already"):
                second.ack(message, cumulative=True)
        with pytest.raises(TransactionError, match=r"does not have message .* any more: it was acknowledged"):
            second.ack(a, cumulative=True)
        second.commit()
        assert len(queue.owners()) == 1
        with own.transaction() as t:
            assert [each.id for each in t.receive("jobs", 9)] == [d.id]
    with client(queue, place) as own, own.transaction() as t:
        (d,) = t.receive("jobs", 9)
        t.ack(d, cumulative=True)
    assert queue.owners() == []


def test_cumulatively_a_message_that_another_reader_has_taken_over_is_a_conflict_of_all(queue, place):
    queue.add("a", "b")
    with client(queue, place) as own:
        t = own.begin()
        _, b = t.receive("jobs", 2)
        t.put("counts", "b", 1)
        t.ack(b, cumulative=True)
        queue.steal()
        with pytest.raises(TransactionConflictError, match="taken over"):
            t.commit()
        with own.transaction() as t:
            assert dict(t.state("counts").items()) == {}
    assert queue.owners() == ["thief"] * 2


def test_a_message_that_another_reader_has_taken_over_is_a_conflict(queue, place):
    queue.add("a")
    with client(queue, place) as own:
        t = own.begin()
        count(t, t.receive("jobs")[0])
        queue.steal()
        with pytest.raises(TransactionConflictError, match="taken over"):
            t.commit()
        queue.add("b")
        with own.transaction() as t:
            (message,) = t.receive("jobs", 9)
            count(t, message)
        with own.transaction() as t:
            assert dict(t.state("counts").items()) == {"b": 1}
    assert queue.owners() == ["thief"]


@pytest.mark.daily(1)
@pytest.mark.slow
def test_a_crash_around_any_call_of_the_queue_loses_and_doubles_nothing(make, place, monkeypatch, request, stride):
    if request.node.callspec.params["make"] == "sqlite":
        stride = 1  # which is quick
    at, crashed = 1 + next(seeds(0)) % stride, True
    while crashed:
        folder = place / str(at)
        folder.mkdir()
        queue = make(folder)
        queue.add(*TEXTS)
        kind = type(queue.spout().pendingAcks())
        passed: list[str] = []

        def step(name: str, passed: list[str] = passed, at: int = at) -> None:
            passed.append(name)
            if len(passed) >= at:
                raise Crash(name)

        def around(name: str, method: Any, step: Callable[[str], None] = step) -> Any:
            def call(*arguments: Any) -> Any:
                step(f"before {name}")
                returned = method(*arguments)
                step(f"after {name}")
                return returned

            return call

        with monkeypatch.context() as patch:
            for name in ("seal", "acknowledge", "release", "sealed"):
                patch.setattr(kind, name, around(name, getattr(kind, name)))
            with contextlib.suppress(Crash):
                work(queue, folder)
        crashed = len(passed) >= at
        assert work(queue, folder) == {"to": 2, "be": 2, "or": 1, "not": 1}
        assert queue.owners() == []
        at += stride
    assert {"before seal", "after acknowledge"} <= set(passed)


def work(queue: Any, folder: Path) -> dict[str, int]:
    """Count all messages, two in a transaction; return the counts."""
    own = client(queue, folder)
    while True:
        with own.transaction() as t:
            messages = t.receive("jobs", 2)
            for message in messages:
                count(t, message)
            counts = dict(t.state("counts").items())
        if not messages:
            own.close()
            return counts


def test_a_message_that_is_acknowledged_twice_leaves_once(queue, place):
    queue.add("a", "b")
    with client(queue, place) as own:
        with own.transaction() as t:
            a, b = t.receive("jobs", 2)
            t.ack(a, a)
            with pytest.raises(TransactionError, match="acknowledged already"):
                t.ack(b, a)
        assert len(queue.owners()) == 1


# ---- a transaction that is over its time, and messages that nobody processes


@pytest.fixture
def now(monkeypatch):
    """The clock of the client, by which a transaction has 10 seconds."""
    now = [1000.0]
    monkeypatch.setattr("statefx.client.session.time.monotonic", lambda: now[0])
    return now


def timed(queue: Any, place: Path, **options: Any) -> TransactionalClient:
    config = {"topology.transaction.timeout.secs": 10}
    return TransactionalClient(place / "ck", id="jobs", config=config, queues={"jobs": queue.spout(**options)})


def renewed(own: TransactionalClient, queue: Any) -> bool:
    """Tell whether the only row of a queue is renewed now."""
    queue.database.run(f"update {queue.name} set statefx_until = 1")
    own._session.queues["jobs"]._spout._renew()
    return queue.taken() > 1


def test_an_overdue_transaction_has_no_messages_any_more(place, now):
    queue = SqlQueue(SqliteDatabase(place))
    queue.add("a")
    with timed(queue, place) as own:
        overdue = own.begin()
        (a,) = overdue.receive("jobs")
        overdue.ack(a)
        now[0] += 9
        assert renewed(own, queue)
        other = own.begin()
        assert other.receive("jobs") == []
        now[0] += 2
        assert not renewed(own, queue)
        (again,) = other.receive("jobs")
        assert again == a._replace(tries=1)
        assert renewed(own, queue)
        with pytest.raises(TransactionTimeoutError):
            overdue.commit()
        assert renewed(own, queue), "the other one has it"
        other.ack(again)
        other.commit()
    assert queue.owners() == []


def test_a_message_that_nobody_has_goes_back_to_the_queue(place, now):
    """The client's next receive has it, if that comes soon; else other readers have it, and the client has not."""
    queue = SqlQueue(SqliteDatabase(place))
    queue.add("a")
    with timed(queue, place, idleSecs=60) as own:
        first = own.begin()
        (a,) = first.receive("jobs")
        first.abort("no ink")
        assert not renewed(own, queue)
        queue.steal()
        now[0] += 16
        with own.transaction() as t:
            assert t.receive("jobs") == []
            with pytest.raises(TransactionError, match=r"does not have message .* went back to the queue"):
                t.ack(a)
    assert queue.owners() == ["thief"]


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("end", ["abort", "commit", "time"])
def test_what_an_ended_transaction_received_may_be_acked(place, now, end, cumulative):
    """As Kafka and Pulsar have it: received first, and acknowledged in a transaction that began later."""
    queue = SqlQueue(SqliteDatabase(place))
    queue.add("a", "b")
    with timed(queue, place) as own:
        first = own.begin()
        a, b = first.receive("jobs", 2)
        if end == "time":
            now[0] += 11
        else:
            getattr(first, end)()
        with own.transaction() as t:
            t.ack(*([b] if cumulative else [a, b]), cumulative=cumulative)
    assert queue.owners() == []


def letters_client(queue: Any, place: Path, sink: Any, **options: Any) -> TransactionalClient:
    given = {"queues": {"jobs": queue.spout(maxTries=3)}, "deadLetters": {"jobs": "dead"}, "sinks": {"dead": sink}}
    return TransactionalClient(place / "ck", id="jobs", **{**given, **options})


@pytest.mark.parametrize(
    ("refuse", "reason"),
    [
        (lambda t, message: t.abort("no ink"), "no ink"),
        (lambda t, message: t.nack(message, reason="no paper"), "no paper"),
        (lambda t, message: t.commit(), "it was not acknowledged"),
        (lambda t, message: None, "it was not acknowledged"),
        (lambda t, message: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_message_that_is_handed_out_too_often_is_a_dead_letter(place, refuse, reason):
    queue = SqlQueue(SqliteDatabase(place))
    queue.add("bad")
    sink = CollectSink()
    with letters_client(queue, place, sink) as own:
        for tries in range(3):
            with contextlib.suppress(ZeroDivisionError), own.transaction() as t:
                (message,) = t.receive("jobs")
                assert message.tries == tries
                refuse(t, message)
        queue.add("good")
        with own.transaction() as t:
            (good,) = t.receive("jobs")
            assert (good.values["text"], good.tries) == ("good", 0)
            t.ack(good)
    assert queue.owners() == []
    assert [tuple(row.values()) for row in sink.rows] == [("bad", str(message.id), 3, reason)]


@pytest.mark.parametrize("change", [{"text": "spoilt"}, {"more": 1}])
def test_what_a_program_makes_of_a_messages_values_is_its_own(place, change):
    """Until it is a dead letter, each receive has the message as the queue has it."""
    queue = SqlQueue(SqliteDatabase(place))
    queue.add("a")
    sink = CollectSink()
    with letters_client(queue, place, sink) as own:
        for _ in range(3):
            with own.transaction() as t:
                (message,) = t.receive("jobs")
                assert message.values == {"text": "a"}
                message.values.update(change)
                t.abort()
        with own.transaction() as t:
            assert t.receive("jobs") == []
    assert [row["text"] for row in sink.rows] == ["a"]
    assert queue.owners() == []


def test_a_dead_letter_is_kept_if_its_transaction_is_rolled_back(place):
    queue = SqlQueue(SqliteDatabase(place))
    queue.add("bad")
    sink = CollectSink()
    with letters_client(queue, place, sink) as own:
        for _ in range(5):
            t = own.begin()
            t.receive("jobs")
            t.abort()
        assert len(queue.owners()) == 1
        with own.transaction() as t:
            assert t.receive("jobs") == []
    assert queue.owners() == []
    assert [row["_tries"] for row in sink.rows] == [5]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"deadLetters": {"job": "dead"}}, "names the queue 'job', which is not in queues"),
        ({"deadLetters": {"jobs": "bin"}}, r"deadLetters\['jobs'\] is 'bin', which is not in sinks"),
        ({"deadLetters": ["dead"]}, "are sinks by queue"),
        ({"schemas": {"dead": "text string"}}, "leave it out, or say 'text string, _id string, _tries int"),
    ],
)
def test_dead_letters_that_go_nowhere_are_refused(place, given, match):
    with pytest.raises(ConfigError, match=match):
        letters_client(SqlQueue(SqliteDatabase(place)), place, CollectSink(), **given)


def test_open_transactions_are_told_apart(place):
    with timed(SqlQueue(SqliteDatabase(place)), place) as own:
        one, two = own.begin(), own.begin()
        assert (repr(one), repr(two)) == ("<Transaction #1, open>", "<Transaction #2, open>")
        two.commit()
        assert (two.number, repr(two)) == (2, f"<Transaction #2, committed as {two.txid}>")


def test_two_clients_may_be_given_one_object(queue, place):
    queue.add("a", "b")
    jobs = queue.spout()
    given = {"queues": {"jobs": jobs}, "state": ["counts"]}
    with (
        TransactionalClient(place / "one", id="jobs", **given) as one,
        TransactionalClient(place / "two", id="jobs", **given) as two,
    ):
        first, second = one.begin(), two.begin()
        (a,), (b,) = first.receive("jobs"), second.receive("jobs")
        assert a.id != b.id
        second.ack(b)
        second.commit()
        first.ack(a)
        first.commit()
    assert queue.owners() == []


def test_what_was_sealed_for_a_transaction_that_is_rolled_back_is_free_again(make, place):
    names = ("one", "two")
    for name in names:
        (place / name).mkdir()
    queues = dict(zip(names, (make(place / name) for name in names), strict=True))
    for queue in queues.values():
        queue.add("a")
    given = {name: queue.spout() for name, queue in queues.items()}
    with TransactionalClient(place / "ck", id="jobs", queues=given) as own:
        t = own.begin()
        for name in names:
            t.ack(*t.receive(name))
        queues["two"].steal()
        with pytest.raises(TransactionConflictError):
            t.commit()
        assert "@sealed" not in "".join(queues["one"].owners())
    assert queues["two"].owners() == ["thief"]


@pytest.mark.parametrize("begins", ["seal", "release"])
def test_what_an_outage_has_left_sealed_is_released_by_the_next_receive(make, place, now, monkeypatch, begins):
    """Else nobody is given it while the client lives, which has forgotten it by then.

    It begins when the messages are sealed, or when another queue's were refused.
    """
    names = ("one", "two")
    for name in names:
        (place / name).mkdir()
    queues = {name: make(place / name) for name in names}
    for queue in queues.values():
        queue.add("a")
    one, given = queues["one"], {name: queue.spout() for name, queue in queues.items()}
    with TransactionalClient(place / "ck", id="jobs", queues=given) as own:
        t = own.begin()
        t.ack(*t.receive("one"), *t.receive("two"))
        kind = type(given["one"].pendingAcks())
        with monkeypatch.context() as patch:
            patch.setattr(kind, "release", unreached)
            if begins == "seal":
                patch.setattr(kind, "seal", unanswered(kind.seal))
            else:
                queues["two"].steal()
            with pytest.raises(TransactionError):
                t.commit()
            assert all("@sealed" in owner for owner in one.owners())
            now[0] += 16
            with own.transaction() as t, pytest.raises(UnreachableError):
                t.receive("one")
        with own.transaction() as t:
            t.receive("one")
        assert "@sealed" not in "".join(one.owners())


def unreached(*arguments: Any) -> None:
    raise UnreachableError("the queue is away")


def unanswered(method: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        method(*arguments)
        unreached()

    return call


@pytest.mark.slow
def test_connections_to_a_table_are_kept_over_transactions_and_closed_with_the_client(database):
    queue = SqlQueue(database)
    with connections() as counted:
        with client(queue, database.place) as own:
            opened = set()
            for number in range(5):
                queue.add(f"job-{number}")
                with own.transaction() as t:
                    count(t, *t.receive("jobs"))
                opened.add(counted["opened"])
            assert len(opened) == 1
        assert counted["opened"] == counted["closed"] <= 3
    assert queue.owners() == []


def test_names_by_which_messages_leave_are_nobody_elses(place):
    queue = SqlQueue(SqliteDatabase(place))
    given = {"queues": {"jobs": queue.spout()}}
    with pytest.raises(ConfigError, match=r"'jobs.acks' is the name by which messages leave a queue"):
        TransactionalClient(place / "ck", id="jobs", state=["jobs.acks"], **given)
    match = r"there is no sink 'jobs.acks'"
    with client(queue, place) as own, own.transaction() as t, pytest.raises(TransactionError, match=match):
        t.send("jobs.acks", [("a", "b")])


def test_mistakes(place):
    queue = SqlQueue(SqliteDatabase(place))
    with pytest.raises(ConfigError, match=r"queues\['jobs'\] is .*exactlyOnce=True"):
        client(queue, place, exactlyOnce=False)
    with pytest.raises(ConfigError, match="queues are given by name"):
        TransactionalClient(place / "ck", id="jobs", queues=[queue.spout()])
    with client(queue, place) as own, own.transaction() as t:
        with pytest.raises(TransactionError, match="there is no queue 'job'; there are 'jobs'"):
            t.receive("job")
        with pytest.raises(TransactionError, match="limit is a whole number from 1"):
            t.receive("jobs", 0)
        with pytest.raises(TransactionError, match="is no message"):
            t.ack("a")
