"""What takes part in a decision beside state commits each transaction once, whatever fails or crashes (rule 10)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from statefx.coordinator.attempt import Work
from statefx.coordinator.launch import Launch
from statefx.coordinator.participants import Participant
from statefx.errors import CheckpointMismatchError, FencedError
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.log_state import LogState
from statefx.protocol.reports import Ack
from statefx.testing import Crash, TopologyTester
from statefx.testing.crashes import crashes
from statefx.testing.feeding import Work as Rows
from statefx.testing.steps import DurableSteps
from tests.coordinator.in_flight import InFlight
from tests.testing.topologies import lines, word_count, words

WORKS = [lines("to be or not to be"), lines(), lines("that is"), lines("the question")]


class Target:
    """A system outside: rows and their marker change in one act, and a newer owner shuts the older ones out."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, Any]] = []
        self.calls: list[int] = []
        self.owner = 0
        self.fails = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def apply(self, owner: int, txid: int, committable: Any) -> None:
        self.calls.append(txid)
        self.meanwhile()
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the server is away")
        if owner < self.owner:
            raise FencedError(f"generation {self.owner} owns the target", generation=self.owner)
        if self.applied and txid <= self.applied[-1][0]:
            return
        self.applied.append((txid, committable))


class Sink(Participant):
    name = "sink"

    def __init__(self, target: Target, around: Callable[[str], AbstractContextManager[None]]) -> None:
        self._target = target
        self._around = around
        self._generation = 0

    def decision(self, acks: Mapping[TaskId, Ack]) -> Any:
        return {"words": sum(sum(ack.received.values()) for task, ack in acks.items() if task.component == "count")}

    def commit(self, attempt: TransactionAttempt, decision: Any) -> Work:
        def apply() -> None:
            with self._around(f"sink for {attempt.txid}"):
                self._target.apply(self._generation, attempt.txid, decision)

        return apply

    def fence(self, state: LogState) -> None:
        self._generation = self._target.owner = state.generation


class WithSink(InFlight):
    target: Target

    def _start(self, *given: Any) -> None:
        self._others = (Sink(self.target, self._steps.around),)
        super()._start(*given)


def start(folder: Path, target: Target, pending: int, **given: Any) -> WithSink:
    kind = type("Sinking", (WithSink,), {"target": target})
    config = {"topology.max.spout.pending": pending}
    topology = word_count(works=WORKS)
    made: WithSink = kind(topology, folder / "checkpoint", config=config, **{"cache": folder / "cache", **given})
    return made


def check(tester: TopologyTester, target: Target, works: Sequence[Rows] = WORKS) -> None:
    assert tester.state("count") == words(works)
    assert target.applied == [(txid, {"words": sum(words([work]).values())}) for txid, work in enumerate(works, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("pending", [1, 3])
def test_each_transaction_is_committed_to_it_once_and_in_order(place, pending):
    target = Target()
    with start(place, target, pending) as tester:
        tester.drain()
        check(tester, target)
        assert target.calls == [1, 2, 3, 4]


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("pending", [1, 3])
def test_a_crash_at_any_step_loses_and_doubles_nothing(place, pending):
    target, passed = Target(), set[str]()

    def life(steps: DurableSteps) -> None:
        with start(place, target, pending, steps=steps) as tester:
            tester.drain()

    for point in crashes(place, life, target.applied):
        passed |= set(point.moments)
        with start(place, target, pending, cache=point.cache) as recovered:
            check(recovered, target, WORKS[: recovered.txid])
        if point.is_new(recovered.txid):
            with start(place, target, pending, cache=point.cache) as tester:
                tester.drain()
                check(tester, target)
    for step in ("COMMITTING(2, 0)", "sink for 2", "COMMITTED(4)"):
        assert {f"before {step}", f"after {step}"} <= passed


@pytest.mark.slow
@pytest.mark.parametrize("pending", [1, 3])
def test_a_commit_that_fails_is_repeated_and_shown(place, pending):
    target = Target()
    with start(place, target, pending) as tester:
        target.fails = 3
        stuck: list[Any] = []
        tester.when("pause", lambda: stuck.append(tester.status.get("stuck")))
        tester.drain()
        check(tester, target)
        assert target.calls == [1, 1, 1, 1, 2, 3, 4]
        assert [(each["phase"], each["txid"], each["reason"]) for each in stuck] == [
            ("commit", 1, "sink: ConnectionError: the server is away")
        ]
        assert "stuck" not in tester.status


@pytest.mark.slow
def test_a_driver_that_was_replaced_does_not_commit_to_it(place):
    target = Target()
    zombie = start(place, target, 1)
    target.meanwhile = lambda: successor(place, target)
    with pytest.raises(FencedError, match="owns the target"):
        zombie.drain()
    with start(place, target, 1) as tester:
        tester.drain()
        check(tester, target)


def successor(place: Path, target: Target) -> None:
    target.meanwhile = lambda: None
    start(place, target, 1).close()


@pytest.mark.slow
def test_a_decision_for_a_participant_that_the_topology_lacks_is_refused(place):
    target = Target()
    crash_at = next(
        moment for moment in count(1) if crashed(place / f"try-{moment}", target, moment) == "after COMMITTING(1, 0)"
    )
    folder = place / f"try-{crash_at}"
    generation = target.owner
    with pytest.raises(
        CheckpointMismatchError, match=r"transaction 1 .* 'sink', which .*once with the former topology"
    ):
        TopologyTester(word_count(works=WORKS), folder / "checkpoint")
    target.applied.clear()
    with start(folder, target, 1) as tester:
        assert tester.generation == generation + 1, "nothing was taken by the one that was refused"
        assert [txid for txid, _ in target.applied] == [1]


@pytest.mark.slow
def test_a_decision_that_is_made_while_another_topology_starts_is_not_lost(place):
    """A driver has looked at the checkpoint and not taken it yet when the one at work decides for its sink."""
    target, moments = Target(), count(1)
    while True:
        folder = place / f"try-{next(moments)}"
        launch = Launch(word_count(works=WORKS), None, folder / "checkpoint", None, caller="test", dumps=None)
        launch.check_checkpoint()
        if crashed(folder, target, int(folder.name.removeprefix("try-"))) == "after COMMITTING(1, 0)":
            break
    with pytest.raises(CheckpointMismatchError, match=r"transaction 1 .* 'sink', which"):
        launch.take_generation()
    target.applied.clear()
    with start(folder, target, 1):
        assert [txid for txid, _ in target.applied] == [1]


def crashed(folder: Path, target: Target, moment: int) -> str | None:
    try:
        with start(folder, target, 1, crash_at=moment) as tester:
            tester.drain()
    except Crash as crash:
        return str(crash)
    return None
