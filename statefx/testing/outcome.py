"""What a transaction came to: its progress, and what its bolts emitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from statefx.coordinator.progress import Progress
from statefx.coordinator.transaction import TransactionProgress
from statefx.errors import TopologyError
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.ledger import Complete
from statefx.testing.processes import Emitted
from statefx.topology.graph import Topology


@dataclass(frozen=True)
class Sent:
    """One committed transaction.

    Attributes
    ----------
    progress : TransactionProgress
        As a query would tell it.
    """

    progress: TransactionProgress
    _emitted: Emitted = field(repr=False)
    _topology: Topology = field(repr=False)

    @property
    def txid(self) -> int:
        """The transaction."""
        return self.progress.txid

    def emitted(self, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
        """Return what a bolt emitted in it, task by task, whether or not another bolt reads it.

        Raises
        ------
        TopologyError
            There is no such bolt, or it declares no such stream: what it emits there can't be compared with anything.
        """
        check_stream(self._topology, component, stream)
        return list(self._emitted.get((component, stream), ()))


def check_stream(topology: Topology, component: str, stream: str) -> None:
    """Refuse what is no stream of the topology with a TopologyError."""
    outputs = topology.component(component).outputs
    if stream not in outputs:
        raise TopologyError(
            f"{component!r} has no stream {stream!r}; its streams are {', '.join(outputs) or 'none'}",
            component=component,
            stream=stream,
        )


class WatchedProgress(Progress):
    """A progress that tells which runs of the tasks have counted, by txid."""

    complete: dict[int, Complete]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.complete = {}

    def acked(self, attempt: TransactionAttempt, complete: Complete, input_rows: int) -> None:
        """All tasks have acked."""
        super().acked(attempt, complete, input_rows)
        self.complete[attempt.txid] = complete
