"""Which bolts hold tuples, and what bolts did with messages that have failed: for the log and for the spouts.

All of it is known since this driver began, and of committed transactions alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from statefx.protocol.identity import TaskId
from statefx.protocol.reports import TIMED_OUT, Handled, TreeReport, task_of, txid_of

EXPLAINED_MAX = 100
"""Failed messages of a transaction whose traces are told; of the others only the reason."""

KNOWN_MAX = 10_000
"""Messages that are traced over transactions; further ones are told with what their last transaction did."""

TASKS_SHOWN, HOLDERS_SHOWN = 20, 5
"""Tasks in one trace, and in a warning of what is held."""


@dataclass(slots=True)
class _Handling:
    """A task's handling of the tuples of one message."""

    received: int = 0
    acked: int = 0
    holds: int = 0
    since: int = 0
    failed: int = 0

    def add(self, did: Handled, txid: int) -> None:
        self.received += did.received
        self.failed += did.failed
        self.acked += max(did.received + did.released - did.held - did.failed, 0)
        if did.held and not self.holds:
            self.since = txid
        self.holds += did.held - did.released

    def __str__(self) -> str:
        counts = (("received", self.received), ("acked", self.acked), ("failed", self.failed))
        said = [f"{what} {count}" for what, count in counts if count]
        if self.holds > 0:
            said.append(f"holds {self.holds} since transaction {self.since}")
        return ", ".join(said)


class Traces:
    """Collects what tasks report of trees in committed transactions.

    `spouts` are by number, as in roots; `components` in the order in which their tasks are named. Without `tracing`,
    only the numbers of held tuples are known.
    """

    def __init__(self, spouts: Sequence[TaskId] = (), components: Sequence[str] = (), *, tracing: bool = False) -> None:
        self._spouts, self._tracing = spouts, tracing
        self._place = {component: place for place, component in enumerate(components)}
        self._holding: dict[str, int] = {}
        self._known: dict[int, dict[str, _Handling]] = {}
        """By root of a message that goes on, and by task."""
        self._first = 0
        """The first transaction that this driver has committed."""

    def explained(self, txid: int, report: TreeReport) -> TreeReport:
        """Take a transaction's report; return it with the traces of messages in the reasons of their fails."""
        for task, more in report.holding.items():
            self._holding[task] = self._holding.get(task, 0) + more
        if not self._tracing:
            return report
        self._first = self._first or txid
        reasons: dict[int, str] = {}
        for reason, roots in report.failed.items():
            for root in roots:
                reasons.setdefault(root, reason)  # one that two bolts have failed is told once
        told = set(islice(reasons, EXPLAINED_MAX))
        self._note(txid, report, told)
        failed: dict[str, list[int]] = {}
        for root, reason in reasons.items():
            failed.setdefault(f"{reason}; {self._trace(root)}" if root in told else reason, []).append(root)
        for root in (*report.acked, *reasons):
            self._known.pop(root, None)
        return replace(report, failed={reason: tuple(roots) for reason, roots in failed.items()}, steps={})

    def _note(self, txid: int, report: TreeReport, explained: set[int]) -> None:
        """Note what tasks did with messages that go on, or whose traces are logged now."""
        begun = set(islice(report.held, max(KNOWN_MAX - len(self._known), 0)))
        for task, handled in report.steps.items():
            for root, did in handled.items():
                if root in self._known or root in begun or root in explained:
                    self._known.setdefault(root, {}).setdefault(task, _Handling()).add(did, txid)

    def _trace(self, root: int) -> str:
        number, began, tasks = task_of(root), txid_of(root), self._known.get(root, {})
        if began >= self._first:
            said = [f"emitted by {self._spouts[number]} in transaction {began}"]
        else:  # the number is of an earlier start, in which another task of a spout may have had it
            said = [
                f"emitted by a spout in transaction {began}",
                f"what bolts did before transaction {self._first} an earlier driver knew",
            ]
        ordered = sorted(tasks, key=lambda task: (self._place[task.rpartition("/")[0]], task))
        said += [f"{task} {tasks[task]}" for task in ordered[:TASKS_SHOWN]]
        if len(tasks) > TASKS_SHOWN:
            said.append(f"and {len(tasks) - TASKS_SHOWN} more tasks")
        return "; ".join(said)

    def warning(self, txid: int, report: TreeReport) -> str:
        """Return the log line for failed messages, or "" if there are none."""
        if not report.failed:
            return ""
        count = len({root for roots in report.failed.values() for root in roots})
        said = f"transaction {txid}: {count} tuples of spouts have failed, the first: {next(iter(report.failed))}"
        if not any(reason.startswith(TIMED_OUT) for reason in report.failed):
            return said
        holders = sorted(((held, task) for task, held in self._holding.items() if held > 0), reverse=True)
        if not holders:
            return f"{said}. Since the query began no bolt has held a tuple that it has not acked or failed by now"
        names = ", ".join(f"{task} ({held:,})" for held, task in holders[:HOLDERS_SHOWN])
        return f"{said}. Since the query began these have held tuples and neither acked nor failed them: {names}"
