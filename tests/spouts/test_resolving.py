"""`resolve` ends what is sealed in a queue by the log of its checkpoint, and takes nothing from who may decide it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from statefx import resolve
from statefx.admin.command import main
from statefx.client import TransactionalClient
from statefx.connectors import Message, QueueSpout
from statefx.errors import CheckpointError, ConfigError, FencedError
from statefx.testing import TopologyTester
from statefx.testing.steps import Crash
from tests.sinks.database import SqliteDatabase
from tests.spouts.queues import Queue, SqlQueue
from tests.spouts.test_queues import TEXTS, check, drain_until, opened, seal, start, topology


def crashed(queue: Queue, place: Path, moment: str) -> None:
    """Let a driver die at a moment."""

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


def test_what_is_decided_is_taken_off_the_queue(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    crashed(queue, place, "after COMMITTING(1, 0)")
    before = queue.owners()
    left = sum("@sealed" not in owner for owner in before)
    shown = resolve(queue.spout(), place / "ck")
    assert queue.owners() == before
    assert actions(shown) == {"acknowledge": len(before) - left}
    assert {(each.spout, each.txid, each.attempt, each.generation) for each in shown} == {("jobs", 1, 0, 1)}
    assert resolve(queue.spout(exactlyOnce=False), place / "ck", yes=True) == shown
    assert len(queue.owners()) == left
    assert resolve(queue.spout(), place / "ck", yes=True) == []
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
    shown = resolve(queue.spout(), place / "ck")
    assert queue.owners() == before
    assert list(actions(shown)) == ["fence"]
    done = resolve(queue.spout(), place / "ck", yes=True)
    assert actions(done) == {"release": actions(shown)["fence"]}
    assert not any("@sealed" in owner for owner in queue.owners())
    assert len(queue.owners()) == len(TEXTS)
    with start(queue, place) as successor:
        assert successor.generation == 3
        check(successor, queue, place)


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
                resolve(queue.spout(), folder / "ck", yes=True)
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
        tester.when("before COMMITTING(1, 0)", lambda: found.append(resolve(queue.spout(), place / "ck")))
        tester.drain()
        assert list(actions(found[0])) == ["fence"]
        queue.add("late")
        for txid in range(tester.txid + 1, tester.txid + 10):  # the first ones may be empty
            moment = f"before COMMITTING({txid}, 0)"
            tester.when(moment, lambda: found.append(resolve(queue.spout(), place / "ck", yes=True)))
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
        done = resolve(queue.spout(), place / "ck", yes=True)
        assert sorted((each.generation, each.txid, each.action) for each in done) == [
            (1, 99, "release"),
            (2, 1, "release"),
        ]
        assert sorted(queue.owners()) == sorted([zombie.owner, late.owner])
        check(tester, queue, place, [*TEXTS, "a", "b"])
        assert tester.generation == 2


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
    (shown,) = resolve(queue.spout(), place / "ck", yes=True)
    assert (shown.spout, shown.action, shown.messages) == ("jobs.acks", "acknowledge", 1)
    assert queue.owners() == [""]


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
            resolve(queue.spout(), place / "ck", yes=True, **given)
    assert queue.owners() == before
    count = sum(owner.startswith(sealed) and "@sealed" in owner for owner in before)
    done = resolve(queue.spout(), place / "ck", yes=True, unknown=unknown, origin=sealed)
    assert actions(done) == {unknown: count}
    after = queue.owners()
    assert name in after
    assert len(after) == len(before) - (count if unknown == "acknowledge" else 0)
    assert not any(owner.startswith(sealed) and "@sealed" in owner for owner in after)


def test_a_log_that_is_older_than_what_is_sealed_can_not_tell(queue, place, monkeypatch):
    monkeypatch.chdir(place)
    queue.add(*TEXTS)
    with start(queue, place) as tester:
        check(tester, queue, place)
        origin = tester._coordinator.log.state.origin
    queue.add("a")
    later = opened(queue, 7, txid=50, origin=origin)
    name = seal(queue, later, later.receive(1), 50)
    (left,) = resolve(queue.spout(), place / "ck", yes=True)
    assert (left.action, left.generation) == ("leave", 7)
    assert "the log ends with 1: it is older" in left.reason
    assert queue.owners() == [name]
    (done,) = resolve(queue.spout(), place / "ck", yes=True, unknown="release")
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
        ([*command[:2], "statefx:FileSink", '{"path": "x"}'], 2, "is no queue whose messages"),
    ):
        assert main(wrong) == code
        assert match in capsys.readouterr().err


def test_mistakes(place, monkeypatch):
    monkeypatch.chdir(place)

    class Plain(QueueSpout):
        def receive(self, limit: int) -> list[Message]:
            return []

        def finish(self, ids: Any) -> None:
            pass

    queue = SqlQueue(SqliteDatabase(place))
    with pytest.raises(ConfigError, match="Plain has no pendingAcks"):
        resolve(Plain("text string"), place / "ck")
    with pytest.raises(ConfigError, match="is no queue whose messages"):
        resolve(queue, place / "ck")
    with pytest.raises(ConfigError, match="unknown is 'release' or 'acknowledge', not 'leave'"):
        resolve(queue.spout(), place / "ck", unknown="leave")
    with TopologyTester(topology(queue), place / "ck"), pytest.raises(ConfigError, match="is for a checkpoint that is"):
        resolve(queue.spout(), place / "ck", unknown="release", origin="else")
