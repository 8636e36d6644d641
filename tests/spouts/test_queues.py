"""Messages that are acknowledged in the transaction: queue, state and sinks agree, whatever crashes."""

from __future__ import annotations

import gc
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from statefx import BasicBolt, Checkpoint, TopologyBuilder, TransactionalClient
from statefx.command import main
from statefx.connectors import Message, QueueSpout
from statefx.connectors.files import FileSink, committedFiles
from statefx.connectors.queue import PendingAcks
from statefx.connectors.sql import SqlQueueSpout
from statefx.errors import (
    BoltError,
    CheckpointError,
    ConfigError,
    FailedException,
    FencedError,
    InputError,
    TopologyError,
    TransactionConflictError,
)
from statefx.operators.sealed_names import Sealed
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester
from statefx.testing.steps import Crash
from tests.bolts import WithState
from tests.providers.redis_server import RedisServer
from tests.sinks.database import PostgresDatabase, SqliteDatabase
from tests.sinks.postgres_server import PostgresServer
from tests.spouts.queues import NOTES, Queue, RedisQueue, SqlQueue, connections
from tests.testing.lives import seeds

BOUND_SECS = 20
TEXTS = [f"{word}-{number}" for number in range(6) for word in ("to", "be", "or")]


class Upper(BasicBolt):
    outputFields = "text string"

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit((tup.text.upper(),))


class Count(WithState):
    outputFields = "text string"

    def execute(self, tup: Any, collector: Any) -> None:
        self.state.put(tup.text, self.state.get(tup.text, 0) + 1)
        collector.emit((tup.text,))


REFUSED: list[str] = []


class RefusesOnce(Upper):
    """Fails the first time that it is given a text that begins with ``bad``."""

    def execute(self, tup: Any, collector: Any) -> None:
        if tup.text.startswith("bad") and not REFUSED:
            REFUSED.append(tup.text)
            raise FailedException("refused")
        super().execute(tup, collector)


def topology(queue: Queue, bolt: BasicBolt | None = None, parallelism: int = 2, out: str = "out") -> Any:
    builder = TopologyBuilder("jobs")
    builder.setSpout("jobs", queue.spout(), parallelism)
    builder.setBolt("upper", bolt or Upper(), 2).shuffleGrouping("jobs")
    builder.setBolt("count", Count(), 2).fieldsGrouping("upper", "text")
    builder.setSink("out", FileSink(out, format="json")).shuffleGrouping("count")
    return builder.createTopology()


def once(texts: list[str] = TEXTS) -> dict[str, int]:
    return dict(Counter(text.upper() for text in texts))


def drain_until(tester: TopologyTester, condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + BOUND_SECS
    while not condition():
        assert time.monotonic() < limit
        tester.drain()


def check(tester: TopologyTester, queue: Queue, place: Path, texts: list[str] = TEXTS) -> None:
    """Take all there is, and compare: each message is in state and in the sink once, and none is in the queue."""
    drain_until(tester, lambda: not queue.owners())
    assert tester.state("count") == once(texts)
    lines = [line for file in committedFiles(place / "out") for line in Path(file).read_text("utf-8").splitlines()]
    rows = [json.loads(line)["text"] for line in lines]
    assert Counter(rows) == once(texts)


def start(queue: Queue, folder: Path, **given: Any) -> TopologyTester:
    return TopologyTester(topology(queue), folder / "ck", **given)


@pytest.mark.slow
def test_connections_to_a_table_are_kept_over_transactions(database, monkeypatch):
    monkeypatch.chdir(database.place)
    queue = SqlQueue(database)
    with connections() as counted:
        with start(queue, database.place) as tester:
            queue.add("first")
            check(tester, queue, database.place, ["first"])
            before, committed = counted["opened"], tester.txid
            for number in range(5):
                queue.add(f"more-{number}")
                drain_until(tester, lambda: not queue.owners())
            assert tester.txid >= committed + 5
            assert counted["opened"] == before
        # Two look at the table before it begins; each spout has one; what seals and what acknowledges share one here.
        assert before <= 5


@pytest.mark.slow
@pytest.mark.server
def test_connections_that_the_server_has_ended_are_replaced_within_the_transaction(postgres_database, monkeypatch):
    database = postgres_database
    monkeypatch.chdir(database.place)
    queue = SqlQueue(database)
    with start(queue, database.place) as tester:
        queue.add("first")
        check(tester, queue, database.place, ["first"])
        ended = database.run(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            f"where datname = '{database.name}' and pid <> pg_backend_pid()"
        )
        assert len(ended) >= 3
        queue.add("second")
        check(tester, queue, database.place, ["first", "second"])
        assert not [each for each in Checkpoint(database.place / "ck").transactions() if each.state == "ROLLED_BACK"]


@pytest.mark.slow
def test_a_message_leaves_the_queue_with_its_transaction(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    sealed = []
    with start(queue, place) as tester:
        tester.when("before COMMITTING(1, 0)", lambda: sealed.append(queue.owners()))
        check(tester, queue, place)
    assert [owner for owner in sealed[0] if "/@sealed/1/0/" in owner], sealed


@pytest.mark.slow
def test_what_a_transaction_that_is_committing_holds_of_queues_is_shown(queue, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    tester = start(queue, place)
    shown = []

    def look() -> None:
        (sealed,) = [each.queues for each in Checkpoint(place / "ck").transactions() if each.txid == 1]
        shown.append((sealed, sum("/@sealed/1/0/" in owner for owner in queue.owners())))

    def die() -> None:
        look()
        raise Crash("after COMMITTING(1, 0)")

    tester.when("before COMMITTING(1, 0)", look)
    tester.when("after COMMITTING(1, 0)", die)
    with pytest.raises(Crash):
        tester.drain()
    tester.close()
    (before, _), (queues, count) = shown
    assert before == {}
    assert count
    assert queues == {"jobs": {"queue": queue.spout().pendingAcks().target, "sealed": count}}
    assert f", {count} messages of jobs sealed>" in repr(Checkpoint(place / "ck").transactions()[-1])
    assert main(["transactions", str(place / "ck"), "--table"]) == 0
    assert f"jobs: {count} messages sealed" in capsys.readouterr().out
    with tester.restart() as successor:
        check(successor, queue, place)
    assert not any(each.queues for each in Checkpoint(place / "ck").transactions())


@pytest.mark.daily(1)
@pytest.mark.slow
def test_a_crash_at_any_durable_step_loses_and_doubles_nothing(make, place, stride, monkeypatch):
    def life(name: str, at: int | None) -> TopologyTester:
        folder = place / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        queue = make(folder)
        queue.add(*TEXTS[:9])
        try:
            tester = start(queue, folder, crash_at=at)
            drain_until(tester, lambda: not queue.owners())
            queue.add(*TEXTS[9:])
            check(tester, queue, folder)
            tester.close()
        except Crash:
            with start(queue, folder) as tester:
                if len(tester.state("count")) + len(queue.owners()) < len(TEXTS):
                    queue.add(*TEXTS[9:])
                check(tester, queue, folder)
        return tester

    moments = life("rehearsal", None).steps
    assert "after COMMITTING(1, 0)" in moments
    for at in range(1 + next(seeds(0)) % stride, len(moments) + 1, stride):
        life(str(at), at)


class Steps:
    """Raises `Crash` before or after one of the calls of a queue, counted."""

    def __init__(self, at: int) -> None:
        self.at, self.passed, self.crashed = at, list[str](), False

    def step(self, name: str) -> None:
        self.passed.append(name)
        if self.crashed or len(self.passed) == self.at:
            self.crashed = True
            raise Crash(f"crashed {name}")

    def around(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.step(f"before {name}")
            returned = method(*arguments)
            self.step(f"after {name}")
            return returned

        return call


@pytest.mark.daily(1)
@pytest.mark.slow
def test_a_crash_around_any_call_of_the_queue_loses_and_doubles_nothing(make, place, monkeypatch, request, stride):
    if request.node.callspec.params["make"] == "sqlite":
        stride = 1  # which is quick
    for at in count(1 + next(seeds(0)) % stride, stride):
        folder = place / str(at)
        folder.mkdir()
        monkeypatch.chdir(folder)
        queue = make(folder)
        queue.add(*TEXTS)
        steps = Steps(at)
        kind = type(queue.spout().pendingAcks())
        with monkeypatch.context() as patch:
            for name in ("seal", "acknowledge", "release", "sealed"):
                patch.setattr(kind, name, steps.around(name, getattr(kind, name)))
            try:
                with start(queue, folder) as tester:
                    check(tester, queue, folder)
            except Crash:
                assert steps.crashed
        if not steps.crashed:
            break
        with start(queue, folder) as tester:
            check(tester, queue, folder)
    assert {"before seal", "after seal", "before acknowledge", "after acknowledge"} <= set(steps.passed)


@pytest.mark.slow
def test_what_a_bolt_fails_is_tried_again_with_its_transaction(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    REFUSED.clear()
    texts = [*TEXTS, "bad"]
    queue.add(*texts)
    with TopologyTester(topology(queue, RefusesOnce()), place / "ck") as tester:
        check(tester, queue, place, texts)
    assert REFUSED == ["bad"]


@pytest.mark.slow
def test_messages_that_another_one_has_taken_over_fail_the_transaction(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    tester = start(queue, place)
    kind = type(queue.spout().pendingAcks())
    seal = kind.seal

    def late(self: PendingAcks, *arguments: Any) -> None:
        queue.steal()
        seal(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "seal", late)
        with pytest.raises(BoltError, match=r"TransactionConflictError: .* taken over .*idleSecs"):
            tester.drain()
    tester.close()
    queue.add("more")
    with tester.restart() as successor:
        drain_until(successor, lambda: set(queue.owners()) == {"thief"})
        assert successor.state("count") == {"MORE": 1}


def wait_for(look: Callable[[], Any]) -> Any:
    """Return what `look` finds, once it finds something; other tests have the processor meanwhile."""
    limit = time.monotonic() + BOUND_SECS
    while not (found := look()):
        assert time.monotonic() < limit
        threading.Event().wait(0.02)
    return found


def opened(
    queue: Queue, generation: int, txid: int = 1, attempt: int = 0, origin: str = "origin", **options: Any
) -> QueueSpout:
    """Open the spout of a task as its chain does."""
    spout = queue.spout(**options)
    context = {"generation": generation, "txid": txid, "attempt": attempt}
    spout.open(SimpleNamespace(origin=origin, component="jobs", task=0, **context))
    return spout


def seal(queue: Queue, spout: QueueSpout, messages: Iterable[Message], txid: int = 1) -> str:
    """Seal messages as the task of the sink does; return the name."""
    name = f"{spout.owner}/@sealed/{txid}/0/token"
    queue.spout().pendingAcks().seal(spout.owner, [str(message.id) for message in messages], name)
    return name


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("txid", [1, 1000])
def test_what_is_sealed_for_an_attempt_that_nobody_knows_is_released_at_the_next_start(queue, place, txid, monkeypatch):
    """A task that was taken for lost seals a message when its attempt was rolled back long ago."""
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    with start(queue, place) as tester:
        check(tester, queue, place)
        origin = tester._coordinator.log.state.origin
    queue.add("late")
    late = opened(queue, 1, origin=origin)
    name = seal(queue, late, late.receive(1), txid)
    assert queue.owners() == [name]
    with tester.restart() as successor:
        check(successor, queue, place, [*TEXTS, "late"])


@pytest.mark.parametrize("later", [(2, 1, 0), (1, 1, 1), (1, 2, 0)])
def test_a_task_has_what_its_predecessor_had_which_can_not_seal_it_any_more(queue, later):
    queue.add("a", "b")
    before = opened(queue, 1)
    messages = list(before.receive(2))
    assert len(messages) == 2
    after = opened(queue, *later)
    found = list(after.receive(2))
    assert [message.id for message in found] == [message.id for message in messages]
    with pytest.raises(TransactionConflictError):
        seal(queue, before, messages)
    name = seal(queue, after, found)
    assert queue.owners() == [name, name]
    queue.spout().pendingAcks().acknowledge(name)
    assert queue.owners() == []


@pytest.mark.parametrize("later", [(2, 1, 0), (1, 1, 1), (1, 2, 0)])
def test_a_task_that_opens_late_takes_nothing_from_its_successor(queue, later):
    queue.add("a", "b")
    after = opened(queue, *later)
    found = list(after.receive(1))
    stale = opened(queue, 1)
    assert [message.values for message in stale.receive(1)] == [("b",)]
    name = seal(queue, after, found)
    again = opened(queue, 1)
    assert [message.values for message in again.receive(5)] == []
    assert name in queue.owners()


def test_a_decided_transaction_keeps_its_messages_and_one_that_was_rolled_back_does_not(queue):
    queue.add("a", "b")
    before = opened(queue, 1, txid=4)
    first, second = before.receive(2)
    decided, rolled_back = seal(queue, before, [first], 4), seal(queue, before, [second], 5)
    after = opened(queue, 2, txid=5)
    assert [message.values for message in after.receive(5)] == [("b",)]
    acks = queue.spout().pendingAcks()
    for name in (rolled_back, decided, decided):
        acks.acknowledge(name)
    assert queue.owners() == [after.owner]


def test_a_driver_that_was_replaced_releases_nothing_of_its_successor(queue, place):
    queue.add("a")
    spout = opened(queue, 2)
    name = seal(queue, spout, spout.receive(1))
    sink = queue.spout().acknowledging()
    for generation, left in ((1, name), (3, spout.owner)):
        storage = FolderStorage(place / "ck")
        owner = Owner("jobs", "origin", generation)
        committer = sink.committer(CommitterContext("__acks-jobs", owner, pa.schema([]), storage))
        committer.fence(CheckpointPosition(0, 0), takeover=False)
        assert queue.owners() == [left]
        committer.close()


def test_a_sweep_releases_what_was_sealed_for_a_transaction_that_is_committed_without_it(queue, place):
    queue.add("a", "b")
    spout = opened(queue, 1)
    names = [seal(queue, spout, spout.receive(1), txid) for txid in (7, 8)]
    owner = Owner("jobs", "origin", 1)
    context = CommitterContext("__acks-jobs", owner, pa.schema([]), FolderStorage(place / "ck"))
    queue.spout().acknowledging().committer(context).sweep(7)
    assert sorted(queue.owners()) == sorted([spout.owner, names[1]])


def test_of_two_objects_of_one_attempt_each_has_its_own(queue):
    queue.add("a", "b")
    one, two = opened(queue, 1), opened(queue, 1)
    (first,), (second,) = one.receive(1), two.receive(1)
    assert first.id != second.id
    with pytest.raises(TransactionConflictError):
        seal(queue, two, [first])


def test_what_somebody_else_has_by_now_is_not_renewed(queue):
    queue.add("a", "b", "c")
    spout = opened(queue, 1)
    first, second, third = spout.receive(3)
    name = seal(queue, spout, [first])
    spout.renew([first.id, second.id, third.id])
    assert sorted(queue.owners()) == sorted([name, spout.owner, spout.owner])
    if isinstance(queue, SqlQueue):  # a sealed row with a time would be free when that is over
        assert queue.untils().count(None) == 1
    queue.steal()
    spout.renew([first.id, second.id, third.id])
    assert queue.owners() == ["thief"] * 3
    if isinstance(queue, SqlQueue):
        assert queue.untils() == [1e12] * 3


def test_a_seal_that_arrives_late_takes_nothing_from_a_later_attempt(queue):
    queue.add("a")
    spout = opened(queue, 1)
    (message,) = spout.receive(1)
    acks = queue.spout().pendingAcks()
    names = [Sealed.of(spout.owner, TransactionAttempt(txid, attempt), "token") for txid, attempt in ((9, 0), (9, 1))]
    later = Sealed.of(spout.owner, TransactionAttempt(10, 0), "token")
    for name in (names[0], names[1], names[1]):
        acks.seal(spout.owner, [str(message.id)], name)
        assert queue.owners() == [name]
    with pytest.raises(TransactionConflictError):
        acks.seal(spout.owner, [str(message.id)], names[0])
    acks.seal(spout.owner, [str(message.id)], later)
    assert queue.owners() == [later]
    acks.acknowledge(names[1])
    assert queue.owners() == [later]


@pytest.mark.server
def test_an_entry_that_was_deleted_meanwhile_is_not_taken_for_lost():
    with RedisServer() as server:
        queue = RedisQueue(server)
        queue.add("deleted", "there")
        spout = opened(queue, 1)
        deleted, there = spout.take(2)
        server.client().xdel(queue.name, deleted.id)
        spout.renew([deleted.id, there.id])
        assert queue.owners() == [spout.owner] * 2
        acks = queue.spout().pendingAcks()
        for attempt in range(2):  # a conflict would end the topology, for a message that nobody else has
            name = Sealed.of(spout.owner, TransactionAttempt(1, attempt), "token")
            acks.seal(spout.owner, [deleted.id, there.id], name)
            assert queue.owners() == [spout.owner, name]
        acks.acknowledge(name)
        assert queue.owners() == [spout.owner]
        assert list(opened(queue, 2).receive(5)) == []
        assert queue.owners() == []  # there is nothing to hand out: it was given up


@pytest.mark.slow
def test_sealed_messages_are_not_taken_over_however_old_they_are(queue):
    queue.add("a", "b")
    gone = opened(queue, 1, origin="gone", idleSecs=1)
    (first,), (second,) = gone.receive(1), gone.receive(1)
    gone.close()  # it renews no more
    name = seal(queue, gone, [first])
    spout = opened(queue, 1, idleSecs=1)
    found = wait_for(lambda: spout.receive(5))
    assert [message.id for message in found] == [second.id]
    assert sorted(queue.owners()) == sorted([name, spout.owner])
    spout.close()


def test_a_spout_may_be_called_as_its_messages_are_not(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    builder = TopologyBuilder("jobs")
    builder.setSpout("sealed", queue.spout())
    builder.setBolt("upper", Upper()).shuffleGrouping("sealed")
    builder.setBolt("count", Count()).fieldsGrouping("upper", "text")
    builder.setSink("out", FileSink("out", format="json")).shuffleGrouping("count")
    with TopologyTester(builder.createTopology(), place / "ck") as tester:
        check(tester, queue, place)


@pytest.mark.slow
def test_what_takes_long_is_renewed(queue):
    queue.add("a")
    spout = opened(queue, 1, idleSecs=1)  # renewed four times a second
    assert len(spout.take(1)) == 1
    before = queue.taken()
    wait_for(lambda: queue.taken() >= before + 0.1)
    spout.close()


@pytest.mark.daily(1)
@pytest.mark.slow
def test_what_an_object_had_that_nobody_has_any_more_is_not_renewed(queue):
    queue.add("a")
    spout = opened(queue, 1, idleSecs=1)
    assert len(spout.take(1)) == 1
    del spout
    other = opened(queue, 1, origin="other", idleSecs=1)
    wait_for(lambda: (gc.collect(), other.receive(1))[1])
    other.close()


@pytest.mark.slow
def test_two_topologies_share_a_queue(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    (place / "b").mkdir()
    with start(queue, place) as one, TopologyTester(topology(queue, out="b/out"), place / "b" / "ck") as other:
        one.drain()
        queue.add("more", "again")
        drain_until(other, lambda: not queue.owners() or bool(one.drain()))
        drain_until(one, lambda: not queue.owners())
        found = Counter(one.state("count")) + Counter(other.state("count"))
    assert found == once([*TEXTS, "more", "again"])


class Refuses(Upper):
    def execute(self, tup: Any, collector: Any) -> None:
        if tup.text.startswith("bad"):
            raise FailedException("refused")
        super().execute(tup, collector)


class Dead(WithState):
    def execute(self, tup: Any, collector: Any) -> None:
        self.state.put(tup.text, tup["_tries"])


@pytest.mark.slow
def test_rows_of_a_table_are_tried_again_and_then_dead_letters(database):
    queue = SqlQueue(database)
    queue.add("a", "bad", "b")
    builder = TopologyBuilder("jobs")
    builder.setSpout("jobs", queue.spout(exactlyOnce=False, maxTries=3, retryDelay=0), 2)
    builder.setBolt("refuses", Refuses(), 2).shuffleGrouping("jobs")
    builder.setBolt("count", Count(), 2).fieldsGrouping("refuses", "text")
    builder.setBolt("dead", Dead()).globalGrouping("jobs", stream="dead")
    with TopologyTester(builder.createTopology(), database.place / "ck") as tester:
        drain_until(tester, lambda: not queue.owners())
        assert tester.state("count") == {"A": 1, "B": 1}
        assert tester.state("dead") == {"bad": 3}


@pytest.mark.parametrize("exactly_once", [False, True])
def test_emitted_counts_each_message_once(place, exactly_once):
    queue = SqlQueue(SqliteDatabase(place))
    queue.add("a", "b", "c")
    builder = TopologyBuilder("jobs")
    builder.setSpout("jobs", queue.spout(exactlyOnce=exactly_once))
    builder.setBolt("count", Count()).fieldsGrouping("jobs", "text")
    with TopologyTester(builder.createTopology(), place / "ck") as tester:
        for told in [(3, 0, 3), (3, 3, 0)]:
            counts = tester.emit().progress.sources["jobs"]
            assert (counts["emitted"], counts["acked"] + counts["failed"], counts["pending"]) == told


def test_rows_whose_time_is_over_are_taken_over_unless_they_are_sealed(database):
    queue = SqlQueue(database)
    queue.add("a", "b", "c")
    gone = opened(queue, 1, origin="gone")
    first, second = gone.receive(2)
    name = seal(queue, gone, [second])
    spout = opened(queue, 1)
    assert [message.values for message in spout.receive(5)] == [("c",)]
    database.run("update jobs set statefx_until = 1 where statefx_until is not null")
    spout.renew([3])
    assert [(message.id, message.tries) for message in spout.receive(5)] == [(first.id, 1)]
    assert name in queue.owners()


def test_a_row_that_another_reader_took_over_is_not_deleted(database):
    """By now the id may be that of another row, which nobody has processed."""
    queue = SqlQueue(database)
    queue.add("a", "b")
    spout = opened(queue, 1)
    first, second = spout.receive(2)
    database.run(f"update jobs set statefx_owner = 'thief' where id = {first.id}")
    spout.finish([first.id, second.id])
    assert queue.owners() == ["thief"]
    spout.close()


def test_no_statement_but_that_which_takes_rows_reads_those_that_wait(database):
    """Each transaction looks for what is sealed: one that read the backlog for it would make draining quadratic."""
    queue, plans = SqlQueue(database), dict[str, str]()
    if database.postgres:  # that of the tests' is C, in which alone LIKE is a range of an index
        database.run('alter table jobs alter statefx_owner type text collate "C.utf8"')
    queue.add(*[f"text {number}" for number in range(2000)])
    database.run("analyze jobs")

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")) and "LIMIT" not in statement:
            cursor.execute(f"explain {'' if database.postgres else 'query plan'} {statement}", parameters)
            plans[statement] = " ".join(str(row[-1]) for row in cursor.fetchall())

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        acks = queue.spout().pendingAcks()
        spout = opened(queue, 1)
        messages = spout.receive(4)
        spout.renew([messages[0].id])
        name = seal(queue, spout, messages[:3])
        assert list(acks.sealed(spout.place)) == [name]
        acks.release(name)
        acks.acknowledge(name)
        spout.finish([messages[0].id])
        spout.close()
    finally:
        event.remove(Engine, "before_cursor_execute", explain)
    plans = {statement: plan for statement, plan in plans.items() if " jobs" in statement}
    assert {plan for plan in plans.values() if ("Seq Scan" if database.postgres else "SCAN") in plan} == set()
    assert len(plans) >= 7


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("ids", [(1, 2**31), (2**31 - 1, 2**63 - 1), (-(2**31) - 1, 0), (-1, 2**31)])
def test_ids_of_any_size_are_taken_together(postgres_database, ids):
    queue = SqlQueue(postgres_database)
    queue.add(*map(str, ids))
    postgres_database.run(f"update jobs set id = case text when '{ids[0]}' then {ids[0]} else {ids[1]} end")
    spout = opened(queue, 1)
    assert [message.id for message in spout.receive(9)] == list(ids)
    spout.renew(ids)
    name = seal(queue, spout, [Message(id, (), 0) for id in ids])
    queue.spout().pendingAcks().release(name)
    spout.finish(ids)
    assert queue.owners() == []
    spout.close()


def test_types_and_names_of_columns(database):
    kind = "timestamp with time zone" if database.postgres else "timestamp"
    database.run(f"create table shop (key text primary key, price numeric(8, 2), at {kind}, {', '.join(NOTES)})")
    database.run("insert into shop (key, price, at) values ('k%_', 1.25, '2026-01-02 03:04:05+00:00')")
    spout = SqlQueueSpout(
        database.url, "shop", "key string, price decimal(8, 2), at timestamp", id="key", exactlyOnce=True
    )
    spout.open(SimpleNamespace(origin="origin", component="jobs", task=0, generation=1, txid=1, attempt=0))
    (message,) = spout.receive(1)
    assert message.id == "k%_"
    assert message.values[:2] == ("k%_", Decimal("1.25"))
    assert message.values[2].astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    spout.pendingAcks().seal(spout.owner, ["k%_"], f"{spout.owner}/@sealed/1/0/token")
    spout.pendingAcks().acknowledge(f"{spout.owner}/@sealed/1/0/token")
    assert database.run("select count(*) from shop") == [(0,)]


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"table": "none"}, TopologyError, "no table 'none'; there are bare, jobs, reused, reused_too"),
        ({"table": "reused"}, TopologyError, "reused.id has no AUTOINCREMENT"),
        ({"table": "reused_too"}, TopologyError, "reused_too.id has no AUTOINCREMENT"),
        ({"table": "bare"}, TopologyError, "bare lacks columns .*: ALTER TABLE bare ADD COLUMN statefx_owner text; "),
        ({"fields": "other long"}, TopologyError, "no column 'other'"),
        ({"id": "price"}, TopologyError, "jobs.price is .*; an id is a whole number or a text"),
        ({"idleSecs": 0}, ConfigError, "idleSecs is a number of seconds from 1"),
        ({"url": "mysql://x/y"}, ConfigError, "SqlQueueSpout"),
        ({"url": "sqlite:////nowhere/db"}, InputError, "unable to open database file"),
    ],
)
def test_mistakes(place, change, error, match):
    database = SqliteDatabase(place)
    database.run(
        f"create table jobs (id integer primary key autoincrement, text text, price float, {', '.join(NOTES)})"
    )
    database.run("create table bare (id integer primary key autoincrement, text text)")
    database.run(f"create table reused (id integer primary key, text text, {', '.join(NOTES)})")
    database.run(f"create table reused_too (id integer not null, text text, {', '.join(NOTES)}, primary key (id))")
    given = {"url": database.url, "table": "jobs", "fields": "text string", **change}
    with pytest.raises(error, match=match):
        SqlQueueSpout(**given)


def test_the_statements_that_the_error_names_make_the_table_fit(database):
    key = (
        "bigint generated by default as identity primary key"
        if database.postgres
        else "integer primary key autoincrement"
    )
    database.run(f"create table bare (id {key}, text text)")
    with pytest.raises(TopologyError) as failure:
        SqlQueueSpout(database.url, "bare")
    for statement in str(failure.value).partition(" has a row: ")[2].split("; "):
        database.run(statement)
    assert SqlQueueSpout(database.url, "bare").schema.names == ["id", "text"]


def test_a_queue_that_can_not_is_refused():
    class Plain(QueueSpout):
        def receive(self, limit: int) -> list[Message]:
            return []

        def finish(self, ids: Any) -> None:
            pass

    with pytest.raises(TopologyError, match="Plain has no pendingAcks"):
        Plain("text string", exactlyOnce=True)


# ---- `resolve` ends what is sealed in a queue by the log of its checkpoint, and takes nothing from who may decide it.


def crashed(queue: Queue, place: Path, moment: str) -> None:
    def die() -> None:
        raise Crash(moment)

    with start(queue, place) as tester:
        tester.when(moment, die)
        with pytest.raises(Crash):
            tester.drain()


def actions(found: list[Any]) -> dict[str, int]:
    """Return how many messages each action is for."""
    counts: dict[str, int] = {}
    for each in found:
        counts[each.action] = counts.get(each.action, 0) + each.messages
    return counts


@pytest.mark.slow
def test_what_is_decided_is_taken_off_the_queue(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    crashed(queue, place, "after COMMITTING(1, 0)")
    before = queue.owners()
    left = sum("@sealed" not in owner for owner in before)
    shown = Checkpoint(place / "ck").resolve(queue.spout())
    assert queue.owners() == before
    assert actions(shown) == {"acknowledge": len(before) - left}
    assert {(each.spout, each.txid, each.attempt, each.generation) for each in shown} == {("jobs", 1, 0, 1)}
    assert Checkpoint(place / "ck").resolve(queue.spout(exactlyOnce=False), yes=True) == shown
    assert len(queue.owners()) == left
    assert Checkpoint(place / "ck").resolve(queue.spout(), yes=True) == []
    with start(queue, place) as successor:
        assert successor.generation == 2  # nobody was fenced
        check(successor, queue, place)


@pytest.mark.slow
def test_what_is_not_decided_goes_back_and_its_driver_is_fenced(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    crashed(queue, place, "before COMMITTING(1, 0)")
    before = queue.owners()
    assert any("@sealed" in owner for owner in before)
    shown = Checkpoint(place / "ck").resolve(queue.spout())
    assert queue.owners() == before
    assert list(actions(shown)) == ["fence"]
    done = Checkpoint(place / "ck").resolve(queue.spout(), yes=True)
    assert actions(done) == {"release": actions(shown)["fence"]}
    assert not any("@sealed" in owner for owner in queue.owners())
    assert len(queue.owners()) == len(TEXTS)
    with start(queue, place) as successor:
        assert successor.generation == 3
        check(successor, queue, place)


@pytest.mark.daily(1)
@pytest.mark.slow
def test_at_any_step_of_a_driver_that_lives_or_dies_nothing_is_lost_or_doubled(make, place, stride, monkeypatch):
    def life(name: str, at: int | None, *, dies: bool) -> list[str]:
        folder = place / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        queue = make(folder)
        queue.add(*TEXTS)
        tester = start(queue, folder)
        steps, passed = tester._steps, []

        def call(moment: str) -> None:
            passed.append(moment)
            if len(passed) == at:
                Checkpoint(folder / "ck").resolve(queue.spout(), yes=True)
                if dies:
                    steps.crashed = moment
                    raise Crash(moment)

        steps.call = call
        try:
            tester.drain()
        except (Crash, FencedError):
            assert at is not None
        else:
            assert not dies
        finally:
            tester.close()
        with start(queue, folder) as successor:
            check(successor, queue, folder)
        return passed

    moments = life("rehearsal", None, dies=False)
    assert "after COMMITTING(1, 0)" in moments
    for at, moment in enumerate(moments, 1):
        if at % stride == 0 or "COMMITTING" in moment:
            for dies in (False, True):
                life(f"{at}-{dies}", at, dies=dies)


@pytest.mark.slow
def test_what_a_driver_that_lives_may_still_decide_is_not_taken_from_it_unless_it_is_fenced(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    found = []
    with start(queue, place) as tester:
        tester.when("before COMMITTING(1, 0)", lambda: found.append(Checkpoint(place / "ck").resolve(queue.spout())))
        tester.drain()
        assert list(actions(found[0])) == ["fence"]
        queue.add("late")
        for txid in range(tester.txid + 1, tester.txid + 10):  # the first ones may be empty
            moment = f"before COMMITTING({txid}, 0)"
            tester.when(moment, lambda: found.append(Checkpoint(place / "ck").resolve(queue.spout(), yes=True)))
        with pytest.raises(FencedError):
            drain_until(tester, lambda: not queue.owners())
    assert actions(found[-1]) == {"release": 1}
    with start(queue, place) as successor:
        check(successor, queue, place, [*TEXTS, "late"])


@pytest.mark.slow
def test_what_was_sealed_too_late_is_released_beside_a_driver_that_goes_on(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    with start(queue, place) as first:
        check(first, queue, place)
        origin = first._coordinator.log.state.origin
    with start(queue, place) as tester:
        queue.add("a", "b")
        late = opened(queue, 2, txid=1, origin=origin)
        seal(queue, late, late.receive(1), 1)  # for a transaction that is committed without it
        zombie = opened(queue, 1, txid=99, origin=origin)
        seal(queue, zombie, zombie.receive(1), 99)  # of a driver that was replaced
        done = Checkpoint(place / "ck").resolve(queue.spout(), yes=True)
        assert sorted((each.generation, each.txid, each.action) for each in done) == [
            (1, 99, "release"),
            (2, 1, "release"),
        ]
        assert sorted(queue.owners()) == sorted([zombie.owner, late.owner])
        check(tester, queue, place, [*TEXTS, "a", "b"])
        assert tester.generation == 2


@pytest.mark.slow
def test_a_client_is_resolved_as_well(queue, place):
    queue.add("a", "b")
    own = TransactionalClient(place / "ck", id="jobs", queues={"jobs": queue.spout()})
    t = own.begin()
    t.ack(*t.receive("jobs"))
    kind = type(queue.spout().pendingAcks())
    with pytest.MonkeyPatch.context() as patch:

        def gone(*given: Any) -> None:
            raise Crash("before acknowledge")

        patch.setattr(kind, "acknowledge", gone)
        with pytest.raises(Crash):
            t.commit()
    (shown,) = Checkpoint(place / "ck").resolve(queue.spout(), yes=True)
    assert (shown.spout, shown.action, shown.messages) == ("jobs.acks", "acknowledge", 1)
    assert queue.owners() == [""]


@pytest.mark.daily(3)
@pytest.mark.slow
@pytest.mark.parametrize("unknown", ["release", "acknowledge"])
def test_without_the_checkpoint_nothing_is_done_but_what_the_user_says(queue, place, monkeypatch, unknown):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    crashed(queue, place, "before COMMITTING(1, 0)")
    other = opened(queue, 1, origin="other", idleSecs=1)
    queue.add("others")
    name = seal(queue, other, other.receive(1))
    (sealed,) = {owner.split("/")[0] for owner in queue.owners() if "@sealed" in owner} - {"other"}
    shutil.rmtree(place / "ck")
    before = queue.owners()
    for given in ({}, {"origin": sealed}, {"unknown": unknown}):
        with pytest.raises(CheckpointError, match=rf"no checkpoint .*unknown='release'.*'{sealed}' \(\d+ messages\)"):
            Checkpoint(place / "ck").resolve(queue.spout(), yes=True, **given)
    assert queue.owners() == before
    count = sum(owner.startswith(sealed) and "@sealed" in owner for owner in before)
    done = Checkpoint(place / "ck").resolve(queue.spout(), yes=True, unknown=unknown, origin=sealed)
    assert actions(done) == {unknown: count}
    after = queue.owners()
    assert name in after
    assert len(after) == len(before) - (count if unknown == "acknowledge" else 0)
    assert not any(owner.startswith(sealed) and "@sealed" in owner for owner in after)


@pytest.mark.slow
def test_a_log_that_is_older_than_what_is_sealed_can_not_tell(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    with start(queue, place) as tester:
        check(tester, queue, place)
        origin = tester._coordinator.log.state.origin
    queue.add("a")
    later = opened(queue, 7, txid=50, origin=origin)
    name = seal(queue, later, later.receive(1), 50)
    (left,) = Checkpoint(place / "ck").resolve(queue.spout(), yes=True)
    assert (left.action, left.generation) == ("leave", 7)
    assert "the log ends with 1: it is older" in left.reason
    assert queue.owners() == [name]
    (done,) = Checkpoint(place / "ck").resolve(queue.spout(), yes=True, unknown="release")
    assert done.action == "release"
    assert queue.owners() == [later.owner]


@pytest.mark.slow
def test_from_a_shell(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    database = SqliteDatabase(place)
    queue = SqlQueue(database)
    queue.add(*TEXTS)
    crashed(queue, place, "after COMMITTING(1, 0)")
    given = json.dumps({"url": database.url, "table": "jobs"})
    command = ["resolve", str(place / "ck"), "statefx.connectors.sql:SqlQueueSpout", given]
    before = queue.owners()
    assert main([*command, "--table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["spout", "task", "txid", "attempt", "generation", "messages", "action", "reason"]
    assert all("acknowledge  attempt 0 of transaction 1 is decided" in line for line in lines[1:])
    assert queue.owners() == before
    assert main([*command, "--yes", "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(said) == len(lines) - 1
    assert not any("@sealed" in owner for owner in queue.owners())
    for wrong, code, match in (
        (["resolve", "nowhere", *command[2:]], 1, "there is no checkpoint in"),
        ([*command[:2], "statefx.nothing:Queue", "{}"], 2, "statefx.nothing:Queue can't be imported"),
        ([*command[:3], '{"host": 1}'], 2, "can't be made with ['host']"),
        ([*command[:2], "statefx.connectors.files:FileSink", '{"path": "x"}'], 2, "is no queue whose messages"),
    ):
        assert main(wrong) == code
        assert match in capsys.readouterr().err


def test_resolve_mistakes(place, monkeypatch):
    monkeypatch.chdir(place)

    class Plain(QueueSpout):
        def receive(self, limit: int) -> list[Message]:
            return []

        def finish(self, ids: Any) -> None:
            pass

    queue = SqlQueue(SqliteDatabase(place))
    with pytest.raises(ConfigError, match="Plain has no pendingAcks"):
        Checkpoint(place / "ck").resolve(Plain("text string"))
    with pytest.raises(ConfigError, match="is no queue whose messages"):
        Checkpoint(place / "ck").resolve(queue)
    with pytest.raises(ConfigError, match="unknown is 'release' or 'acknowledge', not 'leave'"):
        Checkpoint(place / "ck").resolve(queue.spout(), unknown="leave")
    with TopologyTester(topology(queue), place / "ck"), pytest.raises(ConfigError, match="is for a checkpoint that is"):
        Checkpoint(place / "ck").resolve(queue.spout(), unknown="release", origin="else")


# ---- Servers of queues are killed, or away for a while, under a topology that reads them: each message counts once.


Served = tuple[Any, Callable[[Path], Queue]]


@pytest.fixture(params=["redis", "postgres"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server of the test's own, and what makes a queue there; Redis writes each answer down before it gives it."""
    if request.param == "redis":
        with RedisServer() as server:
            yield server, lambda folder: RedisQueue(server, f"jobs-{folder.name}")
    else:
        with PostgresServer() as postgres:
            yield postgres, lambda folder: SqlQueue(PostgresDatabase(postgres, folder))


class Outage:
    """Kills a server at a moment of a tester, and starts it at once, or when the driver waits to try again."""

    def __init__(self, server: Any, tester: TopologyTester, at: int | None, *, stays_away: bool) -> None:
        self.server, self.at, self.stays_away = server, at, stays_away
        self.passed: list[str] = []
        self.is_down = self.was_waited_for = False
        self._call = tester._steps.call
        tester._steps.call = self.call

    def call(self, moment: str) -> None:
        self._call(moment)
        if moment == "pause":
            self.was_waited_for = self.was_waited_for or self.is_down
            self.end()
            return
        self.passed.append(moment)
        if len(self.passed) == self.at:
            self.server.kill()
            self.is_down = True
            if not self.stays_away:
                self.end()

    def end(self) -> None:
        if self.is_down:
            self.server.start()
            self.is_down = False


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("stays_away", [False, True])
def test_a_server_that_is_killed_at_any_step_loses_and_doubles_nothing(served, place, stride, stays_away, monkeypatch):
    server, make = served

    def life(name: str, at: int | None) -> Outage:
        folder = place / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        queue = make(folder)
        queue.add(*TEXTS[:9])
        with TopologyTester(topology(queue), folder / "ck") as tester:
            outage = Outage(server, tester, at, stays_away=stays_away)
            queue.add(*TEXTS[9:])
            limit = time.monotonic() + BOUND_SECS
            while outage.is_down or queue.owners():
                assert time.monotonic() < limit
                tester.drain()
                outage.end()  # its tasks had nothing to do with it
            check(tester, queue, folder)
        return outage

    moments = life("rehearsal", None).passed
    assert "after COMMITTING(1, 0)" in moments
    waits = [
        life(str(at), at).was_waited_for
        for at, moment in enumerate(moments, 1)
        if at % stride == 0 or "COMMITTING" in moment
    ]
    assert any(waits) == stays_away
