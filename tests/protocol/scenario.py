"""Runs the scripts in ``testdata/``: each command is followed by ``----`` and the whole trace it must leave.

Three players take commands: a driver (``stored start batch done fail ack crash``), a task's alignment
(``task rows barrier end``) and the driver's ledger (``ledger ack-of judge``).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from statefx.coordinator.fold import LogState
from statefx.coordinator.records import (
    Committed,
    Committing,
    Generation,
    Preparing,
    Record,
    RolledBack,
    StreamInput,
)
from statefx.errors import StatefxError
from statefx.protocol.alignment import Alignment
from statefx.protocol.barrier import Ack, Barrier, Failure
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.ledger import AckLedger, Complete, LedgerEdge
from statefx.protocol.transaction import NOTHING, Action, ActionKind, Event, Phase, TransactionState


def run(script: str) -> str:
    """Return `script` with every expected trace replaced by what really happens."""
    players: list[Driver | Alignments | Ledger] = [Driver(), Alignments(), Ledger()]
    commands = {name: command for player in players for name, command in player.commands().items()}
    blocks = []
    for block in script.strip().split("\n\n"):
        lines = [line for line in block.split("\n----")[0].splitlines() if line]
        trace: list[str] = []
        for line in lines:
            if line.startswith("#"):
                continue
            name, *words = shlex.split(line)
            trace += commands[name](*words)
        blocks.append("\n".join([*lines, "----", *trace] if trace else lines))
    return "\n\n".join(blocks) + "\n"


def attempt_of(text: str) -> TransactionAttempt:
    txid, attempt = text.split("/")
    return TransactionAttempt(int(txid), int(attempt))


def task_of(text: str) -> tuple[str, int]:
    name, _, number = text.partition(":")
    return name, int(number)


def pairs(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def counts_of(text: str | None) -> dict[int, int]:
    return {int(edge): int(rows) for edge, rows in (each.split("x") for each in (text or "").split(",") if each)}


class Driver:
    """Does what the table and the recovery decision say, on a log that is a list."""

    def __init__(self) -> None:
        self.log = LogState(lineage="l", generation=1)
        self.trace: list[str] = []
        self._forget()

    def commands(self) -> dict[str, Callable[..., list[str]]]:
        names = ("stored", "start", "batch", "done", "fail", "ack", "crash")
        return {name: self._traced(getattr(self, name)) for name in names}

    def _traced(self, command: Callable[..., None]) -> Callable[..., list[str]]:
        def traced(*words: str) -> list[str]:
            self.trace = []
            command(*words)
            return self.trace

        return traced

    def _forget(self) -> None:
        self.live: dict[int, TransactionState] = {}
        self.queue: list[Action] = []
        self.sent: Action | None = None

    def stored(self, *words: str) -> None:
        """The log as another driver left it: committed=99 preparing=100/0 committing=100/0."""
        for kind, value in pairs(words).items():
            if kind == "committed":
                self.log = LogState(lineage="l", generation=1, committed=int(value))
            elif kind == "preparing":
                self.log = self.log.apply(self._record("PREPARING", attempt_of(value)))
            else:
                preparing = self._record("PREPARING", attempt_of(value))
                self.log = self.log.apply(preparing).apply(self._record(kind.upper(), attempt_of(value)))

    def start(self) -> None:
        self.live = {entry.txid: entry.transaction for entry in self.log.in_flight}
        self.queue = list(self.log.recovery())
        self._append(Generation(self.log.generation + 1, "here", {}, "now"))
        self._next()

    def crash(self) -> None:
        self._forget()

    def batch(self) -> None:
        """New input has come."""
        self._ready(Event.PREPARE)
        self._next()

    def done(self) -> None:
        """What was sent has succeeded in every task."""
        sent = self._sent()
        if sent.kind is ActionKind.PREPARE:
            self._event(sent.txid, Event.ALL_ACKED)
        elif sent.kind is ActionKind.COMMIT:
            self._event(sent.txid, Event.COMMITTED)
        elif sent.kind is ActionKind.ROLLBACK:
            state = self.live[sent.txid]
            self._event(sent.txid, Event.ROLLED_BACK, act=not self.queue)
            if not self.queue[1:] and state.committed == self.log.committed:
                self._ready(Event.PREPARE)
        self._next()

    def fail(self) -> None:
        """What was sent has failed in some task."""
        self._event(self._sent().txid, Event.FAILED)
        self._next()

    def ack(self, which: str) -> None:
        """A late ack of some attempt."""
        if self.sent is not None and attempt_of(which) == TransactionAttempt(self.sent.txid, self.sent.attempt or 0):
            self.trace.append(f"taken: ack of {which}")
        else:
            self.trace.append(f"ignored and logged: ack of {which}")

    def _ready(self, event: Event) -> None:
        last = self.live.get(self.log.committed + 1) or TransactionState(Phase.COMMITTED, self.log.committed)
        state = last if last.phase is Phase.ROLLED_BACK or self.log.committed else NOTHING
        if not any(action.kind is ActionKind.PREPARE for action in self.queue):
            self.queue += state.actions(event)

    def _event(self, txid: int, event: Event, act: bool = True) -> None:
        state = self.live[txid]
        kind = state.record(event)
        if kind is not None:
            self._append(self._record(kind, state.name))
        if event is not Event.COMMITTED and act:
            self.queue[:0] = state.actions(event)
        self.live[txid] = state.step(event)

    def _next(self) -> None:
        if not self.queue:
            self.sent = None
            self.trace.append("idle")
            return
        self.sent = self.queue.pop(0)
        if self.sent.kind is ActionKind.PREPARE:
            name = TransactionAttempt(self.sent.txid, self.sent.attempt or 0)
            self._append(self._record("PREPARING", name))
            self.live[name.txid] = TransactionState(Phase.PREPARING, name.txid, name.attempt)
        elif self.sent.kind in (ActionKind.ROLLBACK, ActionKind.COMMIT):
            self.live[self.sent.txid] = self._started(self.live[self.sent.txid])
        self.trace.append(f"send {self.sent}")

    @staticmethod
    def _started(state: TransactionState) -> TransactionState:
        return state.step(Event.START) if state.phase is Phase.PREPARING else state

    def _sent(self) -> Action:
        assert self.sent is not None, "nothing was sent"
        return self.sent

    def _record(self, kind: str, name: TransactionAttempt) -> Record:
        txid, attempt, generation = name.txid, name.attempt, self.log.generation
        if kind == "PREPARING":
            return Preparing(txid, attempt, generation, StreamInput("q", txid - 1, f"offsets {txid - 1}"))
        if kind == "COMMITTING":
            return Committing(txid, attempt, generation, {"count/0": f"token-{txid}-{attempt}"})
        return Committed(txid) if kind == "COMMITTED" else RolledBack(txid, attempt, "failed")

    def _append(self, record: Record) -> None:
        try:
            self.log = self.log.apply(record)
        except StatefxError as error:
            self.trace.append(f"refused: {error}")
            return
        shown = (getattr(record, name, None) for name in ("txid", "attempt", "generation"))
        numbers = [str(number) for number in shown if number is not None]
        self.trace.append(f"append {record.kind}({', '.join(numbers)})")


class Alignments:
    """One task's input."""

    def commands(self) -> dict[str, Callable[..., list[str]]]:
        return {"task": self.task, "rows": self.rows, "barrier": self.barrier, "end": self.end}

    def task(self, name: str, which: str, *words: str) -> list[str]:
        """Begin an attempt: task count:0 3/1 channels=0:split:0,0:split:1 last=2 raw=4."""
        given = pairs(words)
        component, task = task_of(name)
        channels = [(int(edge), source, int(number)) for edge, source, number in _split(given.get("channels"))]
        raw = [int(edge) for edge in given.get("raw", "").split(",") if edge]
        self.attempt = attempt_of(which)
        last = int(given.get("last", 0))
        self.alignment = Alignment(component, task, self.attempt, channels, last_txid=last, raw=raw)
        return []

    def rows(self, source: str, *words: str) -> list[str]:
        """Rows arrive: rows split:0 token=a edge=0 rows=5."""
        given = pairs(words)
        self.alignment.records(*task_of(source), given.get("token", ""), int(given["edge"]), int(given["rows"]))
        return []

    def barrier(self, source: str, *words: str) -> list[str]:
        """A barrier arrives: barrier split:0 token=a counts=0x5 failed=reason attempt=2/0."""
        given = pairs(words)
        attempt = attempt_of(given["attempt"]) if "attempt" in given else self.attempt
        counts = counts_of(given.get("counts"))
        self.alignment.barrier(Barrier(attempt, *task_of(source), given["token"], counts, given.get("failed")))
        return []

    def end(self) -> list[str]:
        result = self.alignment.finish()
        lines = [f"ignored: barrier of {each.source}[{each.task}], {_shown(each.attempt)}" for each in result.stale]
        if result.failure is not None:
            return [*lines, f"{result.failure.kind}: {result.failure.reason}"]
        seen = " ".join(f"{name}[{task}]={token}" for (name, task), token in result.seen.items())
        return [*lines, f"aligned: seen {seen or 'nothing'}; received {dict(result.received)}"]


class Ledger:
    """The driver's check of acks."""

    def commands(self) -> dict[str, Callable[..., list[str]]]:
        return {"ledger": self.ledger, "ack-of": self.ack, "judge": self.judge}

    def ledger(self, which: str, *words: str) -> list[str]:
        """Begin an attempt: ledger 3/1 tasks=a:0,b:0 edges=0:a:b,1:a:c:2."""
        given = pairs(words)
        edges = [LedgerEdge(int(edge), *names[:2], *map(int, names[2:])) for edge, *names in _split(given["edges"])]
        self.attempt = attempt_of(which)
        self.book = AckLedger(self.attempt, [task_of(each) for each in given["tasks"].split(",")], edges)
        return []

    def ack(self, name: str, *words: str) -> list[str]:
        """An ack arrives: ack-of b:0 token=t seen=a:0:x received=0x5 emitted=1x5 failed=kind:reason attempt=2/0."""
        given = pairs(words)
        component, task = task_of(name)
        kind, _, reason = given.get("failed", "").partition(":")
        ack = Ack(
            attempt_of(given["attempt"]) if "attempt" in given else self.attempt,
            component,
            task,
            given["token"],
            {(source, int(number)): token for source, number, token in _split(given.get("seen"))},
            counts_of(given.get("received")),
            counts_of(given.get("emitted")),
            Failure(kind, component, task, reason) if kind else None,
        )
        return [] if self.book.add(ack) else [f"ignored: ack of {component}[{task}], {_shown(ack.attempt)}"]

    def judge(self) -> list[str]:
        verdict = self.book.judge()
        if isinstance(verdict, Complete):
            return [
                "complete: " + " ".join(f"{name}[{task}]={token}" for (name, task), token in verdict.tokens.items())
            ]
        return [f"{each.kind}: {each.component}[{each.task}] {each.reason}" for each in verdict.failures]


def _split(text: str | None) -> Iterator[list[str]]:
    for each in (text or "").split(","):
        if each:
            yield each.split(":")


def _shown(attempt: TransactionAttempt) -> str:
    return f"attempt {attempt.attempt} of transaction {attempt.txid}"
