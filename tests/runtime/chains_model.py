"""A chain that can be in many states at once: what it has been given so far is played to a new one.

Real are `TaskChain`, and the steps of its `ChainAttempt`; tasks are models, which send or see one row for each channel
and attempt. A chain can't be copied, as it stands in the middle of its generators. So each of its states is known by
what was given to reach it, and by all that decides what it does next, which is read off its frames.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import FrameType, SimpleNamespace
from typing import Any

import pyarrow as pa

from statefx.plan import wire
from statefx.plan.levels import Plan
from statefx.protocol import messages
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.messages import ChainId, FrameKind
from statefx.protocol.reports import Ack, Report
from statefx.runtime import chain
from statefx.runtime.activity import COSTS
from statefx.runtime.outlets import Outbox
from statefx.runtime.shared import SharedObjects

Frame = tuple[FrameKind, bytes]
Row = tuple[int, int, bytes]
"""Reader, kind and head."""


class Blocked(BaseException):
    """A chain has been given all that there is; it would wait, or go on, here."""

    def __init__(self, at: str, inside: object, in_task: bool) -> None:
        self.at, self.inside, self.in_task = at, inside, in_task


@dataclass(frozen=True)
class Played:
    """A chain in one of its states.

    Attributes
    ----------
    given : tuple
        All that it was given so far.
    at : str
        Where it is: it waits for ``control`` or ``rows``; it may go on from ``step``; or it has ``ended``.
    inside : object
        All that decides what it does next.
    in_task : bool
        It may go on from a step of an attempt.
    number : int
        Of the state, among those of all chains.
    said, sent : tuple
        To the driver and to the next level, by what it was given last.
    """

    given: tuple[Any, ...]
    at: str
    inside: object
    in_task: bool = False
    number: int = 0
    said: tuple[Frame, ...] = ()
    sent: tuple[Row, ...] = ()


class Player:
    """What one chain sees of the world: its control connection and its rows, from a script."""

    def __init__(self, plan: Plan, place: ChainId, given: tuple[Any, ...]) -> None:
        self.plan, self.place, self.script = plan, place, deque(given)
        self.inbox: deque[Frame] = deque()
        self.gone = False
        self.mark = 0, 0
        """What was said and sent before the last thing was given."""
        self.said: list[Frame] = []
        self.sent: list[Row] = []
        self.abandoned: Any = None
        deployment = SimpleNamespace(plan=plan)
        worker = SimpleNamespace(freeze_loaded_objects=lambda: None, player=self, shared=SharedObjects())
        self.chain = ModelChain(worker, deployment, place, self, (1, 0), ModelTask)

    @property
    def early(self) -> set[TransactionAttempt]:
        """The attempts whose rows it keeps, when it has been given all."""
        self.play()
        return set(self.chain._early._queues)

    def play(self) -> Played:
        given, in_task = tuple(self.script), False
        self.base = sys._getframe()
        try:
            for batch in self.chain.run(self.rows()):
                for target, kind, _, head, _ in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    if kind != wire.FILLER:
                        self.sent.append((target, kind, head))
            at, inside = "ended", None
        except ConnectionError:
            at, inside = "ended", None
        except Blocked as blocked:
            at, inside, in_task = blocked.at, blocked.inside, blocked.in_task
        said, sent = self.mark
        return Played(given, at, inside, in_task, 0, tuple(self.said[said:]), tuple(self.sent[sent:]))

    def _take(self, at: str) -> Any:
        """Take the next thing from the script: a row or None are answers to who waits; the rest is on its way in."""
        if not self.script:
            in_task = at == "step" and self.chain._running is not None
            raise Blocked(at, self._inside(sys._getframe(1)), in_task)
        if len(self.script) == 1:
            self.mark = len(self.said), len(self.sent)
        kind, *more = self.script.popleft()
        if kind == "frame":
            frame = more[0]
            self.inbox.append(frame)
            if frame[0] is FrameKind.ABANDON:
                self.abandoned(messages.unpack_attempt(frame[1]))
        elif kind == "gone":
            self.gone = True
        return (kind, *more)

    # the control connection

    def next(self, timeout_secs: float | None = None) -> Frame:
        while not self.inbox:
            self._refuse_gone()
            self._take("control")
        return self.inbox.popleft()

    def send(self, kind: FrameKind, body: bytes = b"") -> None:
        self._refuse_gone()
        self.said.append((kind, body))

    def check(self) -> None:
        self.pause()
        self._refuse_gone()

    def pause(self) -> None:
        while self._take("step")[0] != "go":
            pass

    def _refuse_gone(self) -> None:
        if self.gone:
            raise ConnectionError

    # rows

    def rows(self) -> Iterator[pa.RecordBatch]:
        while not self.gone:
            kind, *row = self._take("rows")
            if kind == "row":
                target, of, head = row[0]
                yield wire.to_batch([(target, of, 0, head, b"")])

    # what is inside

    def _inside(self, frame: FrameType | None) -> object:
        frames = []
        while frame is not None and frame is not self.base:
            code = frame.f_code
            own = {name: known(value) for name, value in frame.f_locals.items() if name not in ("self", "given")}
            frames.append((code.co_name, frame.f_lasti, frozenset(own.items())))
            frame = frame.f_back
        early = self.chain._early._queues
        running = self.chain._running
        return (
            tuple(frames),
            frozenset(self.chain._abandoned),
            frozenset((of, tuple(known(row) for _, row, _ in rows._waiting)) for of, rows in early.items()),
            None if running is None else (running.attempt, running._is_abandoned),
            tuple(self.inbox),
            self.gone,
        )


def known(value: object) -> object:
    """Return what tells two values of a local variable apart, where that decides anything."""
    match value:
        case pa.RecordBatch():
            return tuple(tuple(column.to_pylist()) for column in value.columns)
        case TransactionAttempt() | str() | int() | bytes() | None:
            return value
        case set() | frozenset():
            return frozenset(known(each) for each in value)
        case tuple() | list():
            return tuple(known(each) for each in value)
        case ModelTask():
            return frozenset(value.rows), frozenset(value.barriers)
        case _:
            return type(value).__name__


class ModelTask:
    """A task: one at level 0 sends each task of the next level a row, one behind it notes what it sees."""

    def __init__(self, worker, deployment, task):
        self.player, self.plan, self.id = worker.player, deployment.plan, task
        self.sends = task in [id for tasks in self.plan.levels[0] for id in tasks]

    def interrupt(self):
        pass

    def enter(self, order, token, outlets, outbox):
        self.name, self.outbox = order.attempt, outbox
        self.rows: list[tuple[int, TransactionAttempt]] = []
        self.barriers: list[tuple[int, TransactionAttempt]] = []
        self.attempt = ModelAttempt(self)

    def begin(self):
        pass

    def emit(self) -> bool:
        if self.sends:
            self.player.pause()
            self.send(wire.RECORDS)
        return self.sends

    def resume(self) -> bool:
        return False

    def send(self, kind: int) -> None:
        for reader in range(self.plan.widths[1]):
            address = wire.Address(1, reader, -1, 0, self.id.task, self.name.txid, self.name.attempt)
            self.outbox.send(address, kind, 1, b"")

    def see(self, kind: int, head: bytes) -> None:
        address = wire.Address.unpack(head)
        found = address.task, TransactionAttempt(address.txid, address.attempt)
        (self.barriers if kind == wire.BARRIER else self.rows).append(found)

    def end(self) -> None:
        pass

    emit_last = flush = end

    def prepare_checked(self) -> None:
        assert not self.player.gone, "13.7: prepared after the connection was gone"
        if not self.sends:
            wanted = [(sender, self.name) for sender in range(self.plan.widths[0])]
            assert sorted(self.rows) == wanted, f"13.3, 13.4: {self.name} was prepared over {self.rows}"

    def resolve(self, order):
        assert not self.player.gone, "13.8: hooks ran after the connection was gone"
        return Report(*self.id)

    def leave(self, *, done: bool) -> None:
        pass

    close = forget_object = end


class ModelAttempt:
    """What is called of `TaskAttempt`."""

    inbox, time, collector, secs = (), None, SimpleNamespace(close=lambda: None), {"restore": 0.0}

    def __init__(self, task):
        self.task = task
        self.costs = dict.fromkeys(COSTS, 0.0)

    def step(self, metric, call, *args):
        return call(*args)

    def end_input(self):
        return ()

    def ack(self, prepared, activity):
        return Ack(self.task.name, *self.task.id, f"{self.task.id} {self.task.name}")


class ModelChain(chain.TaskChain):
    """A real one, over model tasks."""

    def _enter(self, order):
        return ModelChainAttempt(self, order)


class ModelChainAttempt(chain.ChainAttempt):
    """The steps of a real one."""

    def __init__(self, of, order):
        self.attempt, self._level, self._plan = order.attempt, of._chain.level, of._deployment.plan
        self._is_abandoned, self._clock = False, of._clock
        self._ack, self._check = lambda ack: of._control.send(FrameKind.ACK, ack.pack()), of._control.check
        self._behind_barriers, self._held = of._fillers(), None
        self._outbox = Outbox(of._chain.level, of._chain.partition, self._plan.widths)
        (self._head,) = of.tasks.values()
        self._head.enter(order, "", (), self._outbox)
        self._tasks = {self._head.id.component: self._head}

    def _take_wire(self, batch):
        for kind, _, head, _ in wire.rows_of(batch):
            self._head.see(kind, head)
        return iter(())

    def _send_barriers(self, task):
        if task.sends:
            task.send(wire.BARRIER)


class Players:
    """Plays chains, each of their states once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.first = {
            ChainId(level, partition): Player(plan, ChainId(level, partition), ()).play()
            for level, width in enumerate(plan.widths)
            for partition in range(width)
        }
        self._after: dict[object, Played] = {}
        self._numbers: dict[object, int] = {}

    def after(self, place: ChainId, before: Played, given: tuple[Any, ...]) -> Played:
        """Return a chain after it was given something more; one in an equal state is as good."""
        key = place, before.number, given
        if key not in self._after:
            script = (*before.given, given)
            played = Player(self.plan, place, script).play()
            number = self._numbers.setdefault((played.at, played.inside), len(self._numbers) + 1)
            self._after[key] = replace(played, given=script, number=number)
        return self._after[key]
