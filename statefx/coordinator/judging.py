"""What the acks of an attempt come to: it may be committed, or an error says why not."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from statefx.coordinator.progress import received_rows
from statefx.coordinator.retrying import AttemptFailedError
from statefx.errors import BoltError, FailedException, FencedError, StateCorruptedError, StatefxError
from statefx.operators.acker import is_of_acks
from statefx.plan.levels import Plan, segments_of
from statefx.protocol.barrier import Ack
from statefx.protocol.commands import Segment
from statefx.protocol.failure import Failure, FailureKind
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.ledger import AckLedger, Complete, Incomplete, LedgerEdge
from statefx.topology.graph import ComponentKind

logger = logging.getLogger("statefx")


class Judge:
    """Judges the acks of one plan's segments (rules 5.1 and 5.2); `segments` is how many an attempt has."""

    def __init__(self, plan: Plan) -> None:
        self._segments = {
            segment: (
                part.judged_tasks,
                tuple(
                    LedgerEdge(edge.id, edge.source, edge.target, plan.multiplicity(edge), local=plan.fused(edge))
                    for edge in part.judged_edges
                ),
            )
            for segment, part in segments_of(plan).items()
        }
        self.plan = plan
        self.segments = len(self._segments)
        edges = [edge for edge in plan.edges if not is_of_acks(edge.target)]
        self._sources = frozenset(edge.source for edge in edges)
        sources = (ComponentKind.SPOUT, ComponentKind.STREAM)
        self._source_edges = [edge for edge in edges if plan.components[edge.source].kind in sources]

    def judge(self, segment: Segment, attempt: TransactionAttempt, acks: Iterable[Ack]) -> Complete | StatefxError:
        """Judge the acks of `segment`, with those of the segment before it.

        After FencedError this driver rolls nothing back: its successor has done that at its start (rule 6.5).
        """
        ledger = AckLedger(attempt, *self._segments[segment])
        for ack in acks:
            if not ledger.add(ack):  # rule 6.4: of a former attempt
                logger.warning("an ack of %s was ignored: it is not of %s", ack.attempt, attempt)
        verdict = ledger.judge()
        return verdict if isinstance(verdict, Complete) else _error(attempt, verdict)

    def input_rows(self, complete: Complete) -> int:
        """Count the rows of DataFrames and spouts, each once, however many edges leave its stream."""
        found: dict[tuple[str, str], int] = {}
        for edge in self._source_edges:
            acks = [ack for task, ack in complete.acks.items() if task.component == edge.source]
            rows = sum(ack.taken.get(edge.id) or ack.emitted.get(edge.id, 0) for ack in acks)
            stream = edge.source, edge.stream
            found[stream] = max(found.get(stream, 0), rows)
        return sum(found.values())

    def output_rows(self, complete: Complete) -> int:
        """Count the rows that reached the ends of the topology: the bolts that nobody reads from."""
        rows = received_rows(complete.acks)
        return sum(received for component, received in rows.items() if component not in self._sources)


def _error(attempt: TransactionAttempt, verdict: Incomplete) -> StatefxError:
    """Return what the failures come to. A bolt's error comes first: what else failed may well follow from it."""
    bolts = (each for each in verdict.failures if each.kind is FailureKind.BOLT)
    failure: Failure = next(bolts, verdict.failure)
    message, data = f"{failure.component}[{failure.task}]: {failure.reason}", {"component": failure.component}
    match failure.kind:
        case FailureKind.FENCED:
            raise FencedError(message, txid=attempt.txid)
        case FailureKind.BOLT:  # rule 6.7: another attempt would raise the same
            return BoltError(failure.reason, **failure.facts)
        case FailureKind.CORRUPTED:
            return StateCorruptedError(failure.reason, **data, task=failure.task)
        case FailureKind.FAILED:
            return FailedException(message, **data, task=failure.task)
        case kind:  # rule 6.8: of the machines, or the input was not whole (rules 5.1 and 5.2): try again
            return AttemptFailedError(message, **data, task=failure.task, kind=kind)
