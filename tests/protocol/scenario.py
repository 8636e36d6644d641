"""Runs the scripts in ``testdata/``: each command is followed by ``----`` and the whole trace it must leave.

Three players take commands: a driver (``shape stored start batch done fail late stop idle crash``), a task's alignment
(``task rows barrier end``) and the driver's ledger (``ledger ack-of judge``).
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Iterator

from statefx.protocol.commands import (
    Acked,
    Append,
    Appended,
    Cancel,
    Command,
    Deliver,
    Failed,
    Happening,
    Idle,
    Offered,
    Resolution,
    Resolve,
    Resolved,
    Segment,
    StartSegment,
    Stop,
    Unresolved,
)
from statefx.protocol.completeness import AckLedger, Alignment, Complete, LedgerEdge
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.log_rules import apply
from statefx.protocol.log_state import LogState
from statefx.protocol.pipeline import Pipeline, Shape
from statefx.protocol.records import (
    Committed,
    Committing,
    Generation,
    Preparing,
    Processed,
    Record,
    RolledBack,
    StreamInput,
)
from statefx.protocol.reports import Ack, Barrier, Failure, FailureKind
from statefx.protocol.topology_identity import NO_TOPOLOGY


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


def task_of(text: str) -> TaskId:
    name, _, number = text.partition(":")
    return TaskId(name, int(number))


def pairs(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def counts_of(text: str | None) -> dict[int, int]:
    return {int(edge): int(rows) for edge, rows in (each.split("x") for each in (text or "").split(",") if each)}


class Driver:
    """Carries out what the pipeline commands, on a log that is a value: appends at once, all else when told."""

    def __init__(self) -> None:
        self.log = LogState(lineage="l", generation=1)
        self.shape = Shape()
        self.trace: list[str] = []
        self.crash()

    def commands(self) -> dict[str, Callable[..., list[str]]]:
        names = ("shape", "stored", "start", "batch", "done", "fail", "late", "stop", "idle", "crash")
        return {name: self._traced(getattr(self, "pending" if name == "shape" else name)) for name in names}

    def _traced(self, command: Callable[..., None]) -> Callable[..., list[str]]:
        def traced(*words: str) -> list[str]:
            self.trace = []
            command(*words)
            return self.trace

        return traced

    def pending(self, *words: str) -> None:
        """The topology: shape pending=4 segments=2 commits_at_decision=1."""
        self.shape = Shape(**{name: int(value) for name, value in pairs(words).items()})

    def stored(self, *words: str) -> None:
        """The log as another driver left it: committed=99 preparing=100/0 committing=100/0."""
        for kind, value in pairs(words).items():
            if kind == "committed":
                self.log = LogState(lineage="l", generation=1, committed=int(value))
            else:
                self.log = apply(self.log, self._record("PREPARING", attempt_of(value)))
                if kind == "committing":
                    self.log = apply(self.log, self._record("COMMITTING", attempt_of(value)))

    def start(self) -> None:
        self._write(Generation(self.log.generation + 1, "here", NO_TOPOLOGY))
        found = self.log.in_flight
        self.pipeline, commands = Pipeline.recover(self.shape, self.log.committed, found, self.log.attempts)
        self._carry_out(commands)

    def crash(self) -> None:
        self.pipeline = Pipeline(self.shape)
        self.under_way: dict[str, StartSegment | Resolve] = {}

    def batch(self) -> None:
        """New input has come."""
        self._happen(Offered())

    def done(self, name: str) -> None:
        """What was sent has succeeded in every task: done RUN(100,0)."""
        self._end(name, good=True)

    def fail(self, name: str, final: str = "") -> None:
        """What was sent has failed in some task; final: trying again would not help."""
        self._end(name, good=False, final=bool(final))

    def late(self, which: str) -> None:
        """A job that nobody waits for any more ends."""
        name = attempt_of(which)
        for event in (Acked(Segment.WHOLE, name), Failed(name), Resolved(Resolution.COMMIT, name)):
            self._happen(event)

    def stop(self, how: str = "") -> None:
        """Stop: stop, or stop now."""
        self._happen(Stop(now=how == "now"))

    def idle(self) -> None:
        self._happen(Idle())

    def _end(self, name: str, *, good: bool, final: bool = False) -> None:
        sent = self.under_way.pop(name)
        if isinstance(sent, StartSegment):
            self._happen(Acked(sent.segment, sent.attempt) if good else Failed(sent.attempt, final))
        else:
            self._happen((Resolved if good else Unresolved)(sent.resolution, sent.attempt))

    def _happen(self, event: Happening) -> None:
        self.pipeline, commands = self.pipeline.on(event)
        self._carry_out(commands)
        if not self.trace:
            self.trace.append("nothing")

    def _carry_out(self, commands: tuple[Command, ...]) -> None:
        left = deque(commands)
        while left:
            command = left.popleft()
            match command:
                case Append(kind, attempt, committed):
                    self._write(self._record(kind, attempt, committed))
                    self.pipeline, more = self.pipeline.on(Appended(command))
                    left += more
                case StartSegment(segment, attempt):
                    self._send("RUN" if segment is Segment.WHOLE else segment.name, command)
                case Resolve(resolution, attempt):
                    self._send(resolution.name, command)
                case Cancel(attempt):
                    self.under_way = {name: each for name, each in self.under_way.items() if each.attempt != attempt}
                    self.trace.append(f"cancel {attempt.txid},{attempt.attempt}")
                case Deliver(txid):
                    self.trace.append(f"deliver {txid}")

    def _send(self, word: str, command: StartSegment | Resolve) -> None:
        name = f"{word}({command.attempt.txid},{command.attempt.attempt})"
        self.under_way[name] = command
        self.trace.append(f"send {name}")

    def _record(self, kind: str, name: TransactionAttempt, committed: int | None = None) -> Record:
        txid, attempt, generation = name.txid, name.attempt, self.log.generation
        if kind == "PREPARING":
            return Preparing(txid, attempt, generation, StreamInput("q", txid - 1, f"offsets {txid - 1}"), committed)
        if kind == "PROCESSED":
            return Processed(txid, attempt)
        if kind == "COMMITTING":
            hooks = () if self.shape.commits_at_decision else ("count/0",)
            tokens = {"count/0": f"token-{txid}-{attempt}"}
            return Committing(txid, attempt, generation, tokens, hooks=hooks, committed=committed)
        return Committed(txid) if kind == "COMMITTED" else RolledBack(txid, attempt, "failed")

    def _write(self, record: Record) -> None:
        self.log = apply(self.log, record)
        shown = (getattr(record, name, None) for name in ("txid", "attempt", "generation"))
        numbers = [str(number) for number in shown if number is not None]
        with_it = getattr(record, "committed", None)
        rest = "" if with_it is None else f" with COMMITTED({with_it})"
        self.trace.append(f"append {record.kind}({', '.join(numbers)}){rest}")


class Alignments:
    """One task's input."""

    def commands(self) -> dict[str, Callable[..., list[str]]]:
        return {"task": self.task, "rows": self.rows, "barrier": self.barrier, "end": self.end}

    def task(self, name: str, which: str, *words: str) -> list[str]:
        """Begin an attempt: task count:0 3/1 channels=0:split:0,0:split:1 last=2."""
        given = pairs(words)
        component, task = task_of(name)
        channels = [(int(edge), source, int(number)) for edge, source, number in _split(given.get("channels"))]
        self.attempt = attempt_of(which)
        last = int(given.get("last", 0))
        self.alignment = Alignment(component, task, self.attempt, channels, last_txid=last)
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
            {TaskId(source, int(number)): token for source, number, token in _split(given.get("seen"))},
            counts_of(given.get("received")),
            counts_of(given.get("emitted")),
            Failure(FailureKind(kind), component, task, reason) if kind else None,
        )
        return [] if self.book.add(ack) else [f"ignored: ack of {component}[{task}], {_shown(ack.attempt)}"]

    def judge(self) -> list[str]:
        verdict = self.book.check()
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
