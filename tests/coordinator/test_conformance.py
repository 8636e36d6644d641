"""What Storm's CheckpointSpoutTest and CheckPointState ask of a coordinator: which action follows which."""

import logging
from pathlib import Path

import pytest

from statefx.coordinator.running_attempts import AckChecker
from statefx.coordinator.runs import PipelinedRun
from statefx.errors import AttemptsExhaustedError, FailedException, StatefxError
from statefx.log.log import read_state
from statefx.plan.levels import compile_plan
from statefx.protocol.commands import Segment
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.messages import ChainId, FrameKind
from statefx.protocol.reports import Ack, Failure, FailureKind
from statefx.storage import FolderStorage
from statefx.testing import Crash
from statefx.testing.faults import HooksFail, JobFails
from tests.testing.living import lose_run
from tests.testing.topologies import Driver, hooks, lines, totals, witnessed, word_count


def records(steps: list[str]) -> list[str]:
    return [step.removeprefix("after ") for step in steps if step.startswith("after ") and step[6].isupper()]


def crash_at(place: Path, moment: str, sent: int) -> int:
    with Driver(place, name="rehearsal") as driver:
        tester = driver.start(witnessed())
        for _ in range(sent):
            tester.send(lines("a"))
        return tester.steps.index(moment) + 1


def test_a1_a_fresh_start_initialises_at_the_last_committed_txid_before_any_tuple(driver):
    driver.start(witnessed()).send(lines("a", "b"))
    assert driver.journal[:3] == [("open", 1, 0), ("initState", 1, 0, 0), ("execute", 1, 0, "a")]
    driver.journal.clear()
    driver.start(witnessed()).send(lines("c"))
    assert driver.journal[:3] == [("open", 2, 0), ("initState", 2, 0, 2), ("execute", 2, 0, "c")]


def test_a3_a_failed_prepare_is_rolled_back_until_that_is_acked_then_the_txid_is_tried_again(driver):
    driver.config["failing"] = {"preRollback": [RuntimeError("not yet"), FailedException("not yet either")]}
    tester = driver.start(witnessed())
    tester.send(lines("a"))
    driver.journal.clear()
    sent = tester.send(lines("b"), JobFails(), HooksFail("rollback"))
    assert sent.progress.attempt == 1
    assert records(tester.steps)[-5:] == [
        "PREPARING(2, 0)", "ROLLED_BACK(2, 0)", "PREPARING(2, 1)", "COMMITTING(2, 1)", "COMMITTED(2)"
    ]  # fmt: skip
    after = driver.journal[driver.journal.index(("prePrepare", 2, 0, 2)) + 1 :]
    rolled_back = [entry for entry in after if entry[0] == "preRollback"]
    assert rolled_back == [("preRollback", 2, 0)] * 3, "two that raised, and the one that did not"
    start = after.index(("initState", 2, 1, 1))
    assert after.index(("execute", 2, 1, "b")) > start > after.index(rolled_back[-1])
    assert tester.state("witness") == {"seen": 2}


@pytest.mark.slow
def test_a3_a_rollback_that_never_succeeds_ends_the_query_and_the_next_driver_goes_on_with_it(driver):
    driver.config["topology.transaction.attempts.max"] = 3
    driver.config["failing"] = {"preRollback": [RuntimeError("no")] * 4}
    tester = driver.start(witnessed())
    with pytest.raises(AttemptsExhaustedError, match=r"rollback of transaction 1 failed 3 times.*RuntimeError: no"):
        tester.send(lines("a"), JobFails())
    restarted = driver.start(witnessed())
    assert restarted.recoveries == [{"txid": 1, "rolled": "back"}]
    assert restarted.send(lines("a")).progress.attempt == 1


@pytest.mark.parametrize("reports_lost", [True, False])
def test_a4_a_failed_commit_is_committed_again_and_never_rolled_back(driver, reports_lost):
    tester = driver.start(witnessed())
    if reports_lost:
        tester.inject(HooksFail(), HooksFail())
    else:
        driver.config["failing"] = {"preCommit": [RuntimeError("not yet"), FailedException("nor now")]}
        tester = driver.start(witnessed())
    tester.send(lines("a"))
    assert set(hooks(driver.journal)).isdisjoint({"preRollback"})
    commits = [entry for entry in driver.journal if entry[0] == "preCommit"]
    assert set(commits) == {("preCommit", 1, 0, 1)}
    assert len(commits) == 3
    assert records(tester.steps)[-2:] == ["COMMITTING(1, 0)", "COMMITTED(1)"]
    assert "stuck" not in tester.status


def test_the_status_says_why_a_transaction_is_tried_again_until_it_is_committed(driver):
    tester = driver.start(witnessed())
    seen: list[dict[str, str]] = []
    for attempt in (1, 2):
        tester.when(f"after PREPARING(1, {attempt})", lambda: seen.append(tester.status["failed"]))
    tester.send(lines("a"), JobFails(reason="first"), JobFails(reason="second"))
    assert [(each["txid"], each["attempt"]) for each in seen] == [(1, 0), (1, 1)]
    assert ["first" in seen[0]["reason"], "second" in seen[1]["reason"]] == [True, True]
    assert seen[0]["since"] == seen[1]["since"]
    assert "failed" not in tester.status


@pytest.mark.slow
def test_a5_a_start_on_preparing_rolls_back_and_prepares_the_same_txid_again(driver, place):
    moment = crash_at(place, "after PREPARING(3, 0)", 3)
    tester = driver.start(witnessed(), crash_at=moment)
    with pytest.raises(Crash):
        tester.run([lines("a")] * 3)
    driver.journal.clear()
    restarted = driver.start(witnessed())
    assert restarted.recoveries == [{"txid": 3, "rolled": "back"}]
    assert driver.journal == [("open", 3, 0), ("initState", 3, 0, 2), ("preRollback", 3, 0), ("close", 3, 0)]
    restarted.run([lines("a")] * 3)
    assert records(restarted.steps) == [
        "GENERATION(2)", "ROLLED_BACK(3, 0)", "PREPARING(3, 1)", "COMMITTING(3, 1)", "COMMITTED(3)"
    ]  # fmt: skip
    assert ("initState", 3, 1, 2) in driver.journal
    assert restarted.state("witness") == {"seen": 3}


@pytest.mark.slow
def test_a6_a_start_on_committing_commits_and_prepares_the_next_txid(driver, place):
    moment = crash_at(place, "after COMMITTING(3, 0)", 3)
    with pytest.raises(Crash):
        driver.start(witnessed(), crash_at=moment).run([lines("a")] * 3)
    driver.journal.clear()
    restarted = driver.start(witnessed())
    assert restarted.recoveries == [{"txid": 3, "rolled": "forward"}]
    assert driver.journal == [("open", 3, 0), ("initState", 3, 0, 3), ("preCommit", 3, 0, 3), ("close", 3, 0)]
    restarted.send(lines("a"))
    assert records(restarted.steps) == [
        "GENERATION(2)", "COMMITTED(3)", "PREPARING(4, 0)", "COMMITTING(4, 0)", "COMMITTED(4)"
    ]  # fmt: skip
    assert ("initState", 4, 0, 3) in driver.journal
    assert restarted.state("witness") == {"seen": 4}


def test_a7_each_record_is_durable_before_what_it_stands_for_is_done(driver):
    tester = driver.start(totals())
    log = FolderStorage(driver.folder)
    seen: dict[str, tuple[int, list[str]]] = {}

    def look(moment: str) -> None:
        state = read_state(log)
        seen[moment] = state.committed, [str(entry) for entry in state.in_flight]

    moments = ("before prepare count/0 for 1", "before commit hooks total/0 for 1", "after COMMITTED(1)")
    for moment in moments:
        tester.when(moment, lambda moment=moment: look(moment))
    tester.send(lines("a"))
    assert seen == dict(zip(moments, ((0, ["PREPARING(1, 0)"]), (0, ["COMMITTING(1, 0)"]), (1, [])), strict=True))


@pytest.mark.parametrize("lost", [False, True])
def test_a7_acks_of_another_attempt_do_not_complete_this_one(driver, lost):
    """All acks of the transaction before, or of the attempt before, come once more, and come first."""
    tester = driver.start(word_count())
    engine, acks = tester._engine, []
    heard = engine.on_frame

    def noted(run: PipelinedRun, chain: ChainId, kind: FrameKind, body: bytes) -> None:
        acks.extend([(chain, kind, body)] if kind is FrameKind.ACK else [])
        heard(run, chain, kind, body)

    engine.on_frame = noted
    tester.send(lines("a b"))
    assert {chain for chain, _, _ in acks} == set(engine.chains)
    attempt = int(lost)
    if lost:
        lose_run(tester, "before prepare count/0 for 2")
    wanted = []

    def echo() -> None:
        (pending,) = engine._pending
        before = set(pending.waiting)
        for ack in [ack for ack in acks if Ack.unpack(ack[2]).attempt != (2, attempt)]:
            heard(engine.runs[-1], *ack)
        wanted.append((before, set(pending.waiting)))

    tester.when(f"after PREPARING(2, {attempt})", lambda: tester.when("before prepare count/1 for 2", echo))
    assert tester.send(lines("a b")).progress.attempt == attempt
    ((before, after),) = wanted
    assert TaskId("count", 1) in before == after
    assert tester.state("count") == {"a": 2, "b": 2}


def test_a7_an_ack_of_another_attempt_is_ignored_and_logged(caplog):
    plan = compile_plan(word_count())
    attempt, before = TransactionAttempt(2, 1), TransactionAttempt(2, 0)
    failed = Ack(before, "count", 0, "", failed=Failure(FailureKind.FAILED, "count", 0, "of the attempt before"))
    with caplog.at_level(logging.WARNING, "statefx"):
        verdict = AckChecker(plan).check(Segment.WHOLE, attempt, [failed])
    assert isinstance(verdict, StatefxError)
    assert "of the attempt before" not in str(verdict)
    assert f"ignored an ack of {before}" in caplog.text


def test_a_driver_that_failed_refuses_to_go_on(driver):
    driver.config["failing"] = {"execute": [ValueError("bad line")]}
    tester = driver.start(witnessed())
    with pytest.raises(StatefxError, match="bad line"):
        tester.send(lines("a"))
    with pytest.raises(StatefxError, match="this driver has ended"):
        tester.send(lines("a"))
