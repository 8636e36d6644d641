"""Two drivers on one checkpoint, decisions that stand, tries that end (rules 3, 6 and 7)."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from statefx import BatchBolt, Stateful, Topology, TopologyBuilder
from statefx.connectors.files import FileSink
from statefx.connectors.sql import SqlSink
from statefx.coordinator.retrying import StoppedError
from statefx.errors import (
    AttemptsExhaustedError,
    BoltError,
    CheckpointError,
    FailedException,
    FencedError,
    LogOutcomeUnknownError,
    StateError,
    StatefxError,
)
from statefx.log.log import read_state
from statefx.logs import iso
from statefx.state.view.time_index import EPOCH
from statefx.storage import FolderStorage
from statefx.testing import Crash, Limits, TopologyTester, rows
from statefx.testing.faults import HooksFail, JobFails
from statefx.testing.steps import DurableSteps
from statefx_memory import MemoryStateProvider
from tests.spark.running import listing
from tests.testing import eager
from tests.testing.disks import Disk
from tests.testing.topologies import Count, Driver, Total, Witness, lines, totals, witnessed, word_count, words


def moments(place: Path) -> list[str]:
    """Return every moment of the second transaction of `totals`."""
    with Driver(place, name="rehearsal") as driver:
        tester = driver.start(totals())
        tester.send(lines("a b"))
        before = len(tester.steps)
        tester.send(lines("b c"))
        return tester.steps[before:]


@pytest.mark.slow
def test_a_driver_that_was_replaced_at_any_moment_is_fenced_and_nothing_of_it_lands(place):
    for n, moment in enumerate(moments(place)):
        with Driver(place, name=f"checkpoint-{n}") as driver:
            replace_at(driver, moment)


def replace_at(driver: Driver, moment: str) -> None:
    """Start a new driver, which recovers and commits, in the middle of the old one's second transaction."""
    old = driver.start(totals())
    old.send(lines("a b"))
    new: list[TopologyTester] = []

    def take_over() -> None:
        new.append(driver.start(totals()))
        new[0].run([lines("a b"), lines("b c")])
        new[0].send(lines("from the new one"))

    old.when(moment, take_over)
    if moment == "after COMMITTED(2)":
        old.send(lines("b c"))
    else:
        with pytest.raises(FencedError):
            old.send(lines("b c"))
    with pytest.raises(StatefxError):
        old.send(lines("from the old one"))
    assert new[0].txid == 3
    expected = words([lines("a b"), lines("b c"), lines("from the new one")])
    assert new[0].state("count") == expected, moment
    new[0].send(lines("more"))
    assert driver.start(totals()).state("count") == {**expected, "more": 1}


def test_a_driver_that_was_replaced_while_idle_is_fenced_by_its_next_record(driver, provider):
    old = driver.start()
    old.send(lines("a"))
    new = driver.start()
    with pytest.raises(FencedError, match="another driver has taken over"):
        old.send(lines("b"))
    new.send(lines("c"))
    assert new.state("count") == {"a": 1, "c": 1}
    assert new.generation == 2


def test_a_driver_that_was_replaced_deletes_nothing(driver):
    old = driver.start(limits=Limits(min_age_secs=0.0))
    old.send(lines("a"))
    old.send(lines("a"), JobFails())
    driver.start()
    with pytest.raises(FencedError):
        old.sweep()
    assert not [step for step in old.steps if "delete" in step]


def test_a_driver_that_is_just_being_replaced_deletes_nothing(driver):
    """The new one has taken its generation and died before it fenced the state."""
    old = driver.start(limits=Limits(min_age_secs=0.0))
    old.send(lines("a"), JobFails())
    with pytest.raises(Crash, match="after GENERATION"):
        driver.start(crash_at=2)
    with pytest.raises(FencedError):
        old.sweep()
    assert not [step for step in old.steps if "delete" in step]


def test_a_replaced_driver_cannot_commit_to_a_store_that_has_to_be_told(driver):
    """The old driver is between its COMMITTING record and the store's commit when it is replaced."""
    driver.config["topology.state.provider"] = eager.REFERENCE
    old = driver.start()
    new: list[TopologyTester] = []
    old.when("before commit hooks count/0 for 1", lambda: new.append(driver.start()))
    with pytest.raises(FencedError):
        old.send(lines("a b"))
    assert new[0].recoveries == [{"txid": 1, "rolled": "forward"}]
    new[0].send(lines("a"))
    assert new[0].state("count") == {"a": 2, "b": 1}


def test_a_transaction_that_is_committing_is_never_rolled_back(driver):
    """Its commit fails for as long as this driver lives; the next one goes on with it."""
    driver.config["failing"] = {"preCommit": [RuntimeError("the mail server is down")] * 7}
    tester = driver.start(witnessed(), limits=Limits(pauses=4), now=EPOCH)
    status: list[Any] = []
    tester.when("pause", lambda: (tester.advance(10), tester.when("pause", look)))

    def look() -> None:
        status.append(tester.status)

    with pytest.raises(StoppedError, match="stopped while the commit of transaction 1 went on"):
        tester.send(lines("a"))
    assert status[0]["phase"] == "COMMITTING"
    stuck = status[0]["stuck"]
    assert (stuck["phase"], stuck["txid"]) == ("commit", 1)
    assert stuck["since"] == iso(tester._began), "since when it first failed, not since the last try"
    assert "RuntimeError: the mail server is down" in stuck["reason"]
    assert tester.steps[-1] == "after commit hooks witness/0 for 1"
    assert not [entry for entry in driver.journal if entry[0] == "preRollback"]
    next_one = driver.start(witnessed())
    assert next_one.recoveries == [{"txid": 1, "rolled": "forward"}]
    assert next_one.state("witness") == {"seen": 1}
    assert not [entry for entry in driver.journal if entry[0] == "preRollback"]


def test_a_commit_that_is_stuck_at_start_says_so(driver):
    driver.config["failing"] = {"preCommit": [RuntimeError("down")] * 3}
    with pytest.raises(StoppedError):
        driver.start(witnessed(), limits=Limits(pauses=1)).send(lines("a"))
    seen: list[Any] = []
    original = TopologyTester._pause

    def pause(self: TopologyTester, secs: float) -> bool:
        seen.append(self.status)
        return original(self, secs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopologyTester, "_pause", pause)
        driver.start(witnessed())
    assert seen[0]["phase"] == "COMMITTING"
    assert seen[0]["isTransactionActive"]
    assert seen[0]["stuck"]["txid"] == 1


def test_a_commit_that_fails_for_long_backs_off_within_bounds(driver):
    driver.config["failing"] = {"preCommit": [RuntimeError("down")] * 12}
    tester = driver.start(witnessed())
    tester.send(lines("a"))
    assert tester.pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert tester.pauses[-1] == max(tester.pauses) == 10.0
    assert tester.state("witness") == {"seen": 1}
    assert "stuck" not in tester.status


def test_FailedException_tries_the_same_txid_again_with_the_next_attempt(driver):  # noqa: N802
    driver.config["failing"] = {"execute": [FailedException("the feed is stale")] * 3}
    tester = driver.start(witnessed())
    sent = tester.send(lines("a"))
    assert (sent.txid, sent.progress.attempt) == (1, 3)
    assert tester.pauses == [0.1, 0.2, 0.4]
    assert tester.state("witness") == {"seen": 1}


def test_the_tries_of_a_transaction_are_bounded(driver):
    driver.config["topology.transaction.attempts.max"] = 3
    driver.config["failing"] = {"execute": [FailedException("the feed is stale")] * 4}
    tester = driver.start(witnessed())
    tester_error = r"transaction 1 failed 3 times \(topology\.transaction\.attempts\.max\).*the feed is stale"
    with pytest.raises(AttemptsExhaustedError, match=tester_error) as caught:
        tester.send(lines("a"))
    assert (caught.value.txid, caught.value.attempts) == (1, 3)
    assert tester.steps[-1] == "after ROLLED_BACK(1, 2)"
    restarted = driver.start(witnessed())
    assert restarted.send(lines("a")).progress.attempt == 4, "attempts are never numbered twice"


def test_infrastructure_is_tried_again_within_the_same_bound(driver):
    driver.config["topology.transaction.attempts.max"] = 2
    tester = driver.start()
    assert tester.send(lines("a"), JobFails()).progress.attempt == 1
    with pytest.raises(AttemptsExhaustedError, match="the executor was lost"):
        tester.send(lines("a"), JobFails(), JobFails())
    assert driver.start().state("count") == {"a": 1}


def test_a_query_that_is_stopped_between_tries_has_rolled_back(driver):
    tester = driver.start(totals(), limits=Limits(pauses=1))
    with pytest.raises(StoppedError):
        tester.send(lines("a"), JobFails())
    assert tester.steps[-1] == "after ROLLED_BACK(1, 0)"
    assert driver.start(totals()).recoveries == []


def test_a_lost_job_of_hooks_is_repeated_until_every_task_has_reported(driver):
    tester = driver.start(witnessed(2, "allGrouping"))
    tester.send(lines("a"), HooksFail(), HooksFail(), HooksFail())
    assert tester.state("witness", task=0) == tester.state("witness", task=1) == {"seen": 1}
    assert 5 <= len([entry for entry in driver.journal if entry[0] == "preCommit"]) <= 8, "one or both, each time"


class Fails:
    """An append of one kind of record fails at one of its system calls."""

    def __init__(self, patch: pytest.MonkeyPatch, call: str, number: int, error: OSError) -> None:
        original = getattr(os, call)
        self.left = number

        def failing(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise error
            return original(*arguments, **named)

        patch.setattr(os, call, failing)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["link", "fsync"])
def test_once_the_append_of_the_decision_has_begun_nothing_is_rolled_back(driver, monkeypatch, call):
    """The outcome of COMMITTING is unknown to the driver: it ends, and the next one reads what is true."""
    tester = driver.start(totals())
    tester.send(lines("a"))
    number = {"link": 1, "fsync": 2}[call]
    error = OSError(5, "input/output error")
    tester.when("before COMMITTING(2, 0)", lambda: Fails(monkeypatch, call, number, error))
    with pytest.raises(LogOutcomeUnknownError):
        tester.send(lines("b"))
    monkeypatch.undo()
    assert tester.steps[-1] == "before COMMITTING(2, 0)"
    assert not [entry for entry in driver.journal if entry[0] == "rollback"]
    state = read_state(FolderStorage(driver.folder))
    restarted = driver.start(totals())
    rolled = {"link": "back", "fsync": "forward"}[call]
    assert restarted.recoveries == [{"txid": 2, "rolled": rolled}]
    assert str(state.in_flight[0].phase) == {"back": "PREPARING", "forward": "COMMITTING"}[rolled]
    restarted.run([lines("a"), lines("b")])
    assert restarted.state("count") == {"a": 1, "b": 1}


@pytest.mark.slow
def test_the_transaction_after_a_restart_is_the_one_that_was_not_committed(driver):
    tester = driver.start()
    work = [lines("a"), lines("b"), lines("c")]
    tester.run(work[:2])
    restarted = driver.start()
    assert [sent.txid for sent in restarted.run(work)] == [3]
    with pytest.raises(StatefxError, match="transaction 3 was committed with other rows"):
        driver.start().run([*work[:2], lines("x")])
    assert driver.start(word_count()).state("count") == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("moment", ["before LINEAGE", "after LINEAGE", "before GENERATION(1)", "after GENERATION(1)"])
def test_two_drivers_that_start_at_once_take_two_generations_and_the_later_one_goes_on(driver, moment):
    second: list[TopologyTester] = []
    original = DurableSteps.call

    def call(self: DurableSteps, passed: str) -> None:
        original(self, passed)
        if passed == moment and not second:
            second.append(None)  # only once
            second[0] = driver.start(totals())
            second[0].send(lines("a"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DurableSteps, "call", call)
        try:
            first = driver.start(totals())
        except FencedError:
            first = None
    survivor, fenced = (second[0], first) if moment == "after GENERATION(1)" else (first, second[0])
    assert survivor is not None
    assert survivor.generation == 2
    survivor.send(lines("b"))
    if fenced is not None:
        with pytest.raises(FencedError):
            fenced.send(lines("c"))
    assert survivor.state("count") == {"a": 1, "b": 1}


class PutsInPreCommit(Witness):
    def preCommit(self, txid):
        super().preCommit(txid)
        if self.context.config["puts"]:
            self.context.config["puts"].pop()
            self.state.put("seen", -1)


def test_state_cannot_be_changed_in_preCommit(driver):  # noqa: N802
    builder = TopologyBuilder("puts")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("puts", PutsInPreCommit()).globalGrouping("lines")
    tester = driver.start(builder.createTopology(), config={"puts": [1]})
    with pytest.raises(BoltError, match=r"hook preCommit, .* put on a read-only view of state: .* start again"):
        tester.send(lines("a"))
    mended = driver.start(builder.createTopology(), config={"puts": []})
    assert mended.recoveries == [{"txid": 1, "rolled": "forward"}]
    assert mended.state("puts") == {"seen": 1}


class Refusing(MemoryStateProvider):
    """Raises, when a store is opened, what the test has put into `refusals`."""

    refusals: list[Exception] = []

    def newState(self, namespace, context):
        if self.refusals:
            raise self.refusals.pop()
        return super().newState(namespace, context)


@pytest.fixture
def refusing(place: Path) -> Iterator[Driver]:
    with Driver(place) as driver:
        driver.config["topology.state.provider"] = "tests.recovery.test_drivers:Refusing"
        yield driver
        Refusing.refusals.clear()


def test_a_store_that_is_fenced_ends_the_driver_without_a_rollback(refusing):
    tester = refusing.start(totals())
    Refusing.refusals.append(FencedError("a newer generation has been here"))
    with pytest.raises(FencedError, match="a newer generation"):
        tester.send(lines("a"))
    assert not [step for step in tester.steps if "ROLLED_BACK" in step]


@pytest.mark.parametrize("error", [ConnectionError("reset by peer"), RuntimeError("of the client"), StateError("busy")])
def test_a_store_that_can_not_be_opened_for_once_costs_an_attempt(refusing, error):
    tester = refusing.start(totals())
    Refusing.refusals.append(error)
    assert tester.send(lines("a")).progress.attempt == 1
    tester.when("before commit hooks total/0 for 2", lambda: Refusing.refusals.append(error))
    tester.send(lines("a"))
    assert [entry for entry in refusing.journal if entry[:2] == ("commit", 2)] == [("commit", 2, 0, 2)]
    assert tester.steps.count("before commit hooks total/0 for 2") == 2
    assert tester.state("count") == {"a": 2}


class Telling(eager.EagerProvider):
    """Writes down which commits it was told: (task, version it was opened at, txid committed)."""

    told: list[tuple[int, int, int]] = []

    def newState(self, namespace, context):
        store = super().newState(namespace, context)
        commit = store.commit

        def telling(txid, token):
            self.told.append((namespace.task, context.version.txid, txid))
            commit(txid, token)

        store.commit = telling
        return store


def test_a_store_that_has_to_be_told_is_opened_at_the_version_before_also_for_the_first_commit(driver):
    driver.config["topology.state.provider"] = "tests.recovery.test_drivers:Telling"
    Telling.told.clear()
    tester = driver.start()
    tester.send(lines("a b c"))
    tester.send(lines("a b c"))
    assert sorted(Telling.told) == [(0, 0, 1), (0, 1, 2), (1, 0, 1), (1, 1, 2)]


class Bare(Stateful, BatchBolt):
    """What `Total` was before somebody gave it hooks, or is when they were taken away."""

    outputFields = Total.outputFields
    open, initState, execute = Total.open, Total.initState, Total.execute
    finishBatch, prePrepare = Total.finishBatch, Total.prePrepare


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(Total, Bare), (Bare, Total)], ids=["taken-away", "added"])
def test_hooks_may_be_taken_away_or_added_after_a_crash_at_any_moment(place, first, second, stride):
    """A commit that no try can mend is mended so: the decision that was found names who is still to be told of it."""
    work = [lines("a b"), lines("b c"), lines("c d")]
    for crash_at in range(1, 200, stride):
        with Driver(place, name=f"checkpoint-{crash_at}") as driver:
            try:
                driver.start(totals(first()), crash_at=crash_at).run(work)
            except Crash:
                tester = driver.start(totals(second()))
                tester.run(work)
                assert (tester.txid, tester.state("count")) == (3, words(work))
                assert tester.state("total") == {"total": 6, "txid": 3}
                assert not read_state(FolderStorage(driver.folder)).in_flight
                continue
            return
    raise AssertionError("there are more moments")


class Unyielding(Total):
    """Its rollback fails."""

    def preRollback(self):
        raise ValueError("no way back")


def test_what_a_rollback_at_the_start_raises_is_what_ended_the_query(driver):
    def die() -> None:
        raise Crash("before the decision")

    old = driver.start(totals())
    old.when("before COMMITTING(1, 0)", die)
    with pytest.raises(Crash):
        old.send(lines("a b"))
    with pytest.raises(AttemptsExhaustedError, match=r"rollback of transaction 1 failed 8 times.*no way back"):
        driver.start(totals(Unyielding()))


FORGETFUL = Limits(files_max=1, sweep_every=1, min_age_secs=0.0, versions_kept=0)
"""What a version consisted of is swept soon after."""


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["commit", "rollback"])
def test_a_replaced_driver_whose_state_was_swept_is_fenced_and_speaks_of_no_damage(driver, phase):
    """It would try its commit for ever, or tell the user to restore a healthy checkpoint from a backup."""
    old = driver.start(totals(), limits=FORGETFUL)
    old.send(lines("a b"))

    def take_over() -> None:
        new = driver.start(totals(), limits=FORGETFUL)
        new.run([lines("a b"), lines("b c"), *[lines("c d")] * 6])

    if phase == "rollback":
        old.inject(JobFails())
    old.when(f"before {phase} hooks total/0 for 2", take_over)
    with pytest.raises(FencedError, match="another driver has taken over"):
        old.send(lines("b c"))
    assert len(old.pauses) <= 1


# ---- Another driver that starts, or goes on, between a start's look at the log and its look at the sinks' targets.


between: list[Callable[[], object]] = []
"""What happens when the next start has read the log, and has not looked at its target yet."""


class Looked:
    def committer(self, context: Any) -> Any:
        if between:
            between.pop()()
        return super().committer(context)


class Files(Looked, FileSink):
    pass


class Table(Looked, SqlSink):
    pass


@pytest.fixture(params=["files", "table"])
def topology(request: pytest.FixtureRequest, place: Path) -> Topology:
    sink = Files(place / "out") if request.param == "files" else Table(f"sqlite:///{place}/db", "words")
    builder = TopologyBuilder("word-count")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("count", Plain()).globalGrouping("lines")
    builder.setSink("out", sink).shuffleGrouping("count")
    return builder.createTopology()


class Plain(Count):
    def execute(self, tup, collector):
        collector.emit((tup.value, 1))


@pytest.fixture
def drivers(place: Path) -> Iterator[tuple[Driver, Driver]]:
    with Driver(place) as one, Driver(place) as other:
        yield one, other
    between.clear()


def test_the_slower_of_two_that_start_a_new_checkpoint_is_told_so(drivers, topology):
    """Its target has a marker of a checkpoint that was not there when it looked: its own."""
    slower, faster = drivers
    started: list[Any] = []
    between.append(lambda: started.append((faster.start(topology), listing(faster.folder))))
    with pytest.raises(FencedError, match=r"another driver has started on the checkpoint in .* at the same time"):
        slower.start(topology)
    ((tester, before),) = started
    assert listing(slower.folder) == before
    tester.send(lines("a"))
    again = slower.start(topology)
    assert (again.txid, again.generation) == (1, 2)


def test_a_driver_that_goes_on_meanwhile_is_replaced_as_any_other(drivers, topology):
    """Its target is ahead of what the start has read of the log, which no backup has brought about."""
    later, at_work = drivers
    tester = at_work.start(topology)
    tester.send(lines("a"))
    between.append(lambda: [tester.send(lines(word)) for word in "bc"])
    successor = later.start(topology)
    assert (successor.txid, successor.generation) == (3, 2)
    with closing(tester), pytest.raises(FencedError):
        tester.send(lines("d"))


# ---- A driver that waits to try a commit again, and is replaced meanwhile, does not try it: its successor has done it.


class Refused(Total):
    """Can't commit as long as the file ``config["away"]`` is there."""

    def preCommit(self, txid):
        super().preCommit(txid)
        self.context.config["tried"].append(self.context.generation)
        if Path(self.context.config["away"]).exists():
            raise OSError("the target is away")


def test_a_commit_that_waits_is_not_tried_again_by_a_driver_that_was_replaced(driver, place):
    """The successor may have deleted the state that the commit needs: the former one would ask for ever."""
    away, tried = place / "away", []
    away.touch()
    driver.config |= {"away": str(away), "tried": tried}
    first = driver.start(totals(Refused()))

    def replace() -> None:
        away.unlink()
        assert tried == [1]
        driver.start(totals(Refused()))

    first.when("pause", replace)
    with pytest.raises(FencedError, match="another driver has taken over"):
        first.send(lines("a b"))
    assert tried == [1, 2]


# ---- A disk that is full or fails, once or for good: rolled back and tried again, or an error that says so.


WORK = [lines("a b c d e"), lines("a b"), lines("c d e f g h")]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_disk_that_is_full_while_state_is_prepared(driver, provider, times, monkeypatch):
    tester = driver.start(totals())
    disk = Disk(monkeypatch, driver.folder / "state")
    for n, work in enumerate(WORK):
        disk.left = times
        sent = tester.send(work)
        assert sent.progress.attempt >= 1
        assert tester.state("count") == words(WORK[: n + 1])
    assert disk.failed == 3 * times
    assert driver.start(totals()).state("total")["total"] == 13
    leftovers = [path.name for path in driver.folder.rglob(".unfinished-*")]
    assert leftovers == []


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_query_and_says_why(driver, monkeypatch):
    driver.config["topology.transaction.attempts.max"] = 3
    tester = driver.start(totals())
    tester.send(WORK[0])
    disk = Disk(monkeypatch, driver.folder / "state")
    disk.left = 1000
    with pytest.raises(AttemptsExhaustedError, match=r"count\[0\].*No space left on device"):
        tester.send(WORK[1])
    disk.left = 0
    restarted = driver.start(totals())
    restarted.run(WORK)
    assert restarted.state("count") == words(WORK)


@pytest.mark.slow
@pytest.mark.parametrize("record", ["PREPARING(2, 0)", "COMMITTING(2, 0)", "COMMITTED(2)"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_log_that_can_not_be_written_ends_the_driver_and_the_next_goes_on(driver, record, number, monkeypatch):
    """The write, the fsync of the file, or that of the folder fails."""
    tester = driver.start(totals())
    tester.send(WORK[0])
    disk = Disk(monkeypatch, driver.folder / "transactions")
    tester.when(f"before {record}", lambda: vars(disk).update(left=1, passing=number - 1))
    with pytest.raises(Exception, match=r"No space left") as caught:
        tester.run(WORK[:2])
    if number == 1:
        assert isinstance(caught.value, CheckpointError)
        assert "nothing was appended" in str(caught.value)
    monkeypatch.undo()
    restarted = driver.start(totals())
    restarted.run(WORK)
    assert restarted.state("count") == words(WORK)
    commits = [entry[1:3] for entry in driver.journal if entry[0] == "commit"]
    assert sorted({txid for txid, _ in commits}) == [1, 2, 3]
    assert len(set(commits)) == 3, "each in one attempt"
