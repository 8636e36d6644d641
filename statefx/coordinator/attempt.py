"""One attempt of a transaction, as its driver knows it from the offer of its input to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from statefx.coordinator.source import Batch
from statefx.errors import StatefxError
from statefx.protocol.barrier import Ack, Report
from statefx.protocol.commands import Resolution, Segment
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.jsonform import Json
from statefx.protocol.ledger import Complete
from statefx.protocol.order import EmissionOrder, Order, ResolutionOrder

Work = ResolutionOrder | Callable[[], object]
"""What one that takes part has to do at a commit or a rollback: tasks are told, or something is called on the driver.

A call may take long, such as the commit of a sink: transactions behind it go on meanwhile.
"""

Part = Segment | str
"""What is carried out of an attempt: a segment, or the commit or rollback of who has this name."""


@dataclass(slots=True, eq=False)
class Attempt:
    """Knows, and decides nothing: what comes next is the business of `statefx.protocol.pipeline`."""

    name: TransactionAttempt
    batch: Batch | None = None
    """What it reads; None: a former driver began it, and the log has all that is needed."""
    orders: Mapping[TaskId, EmissionOrder] | None = None
    """What the tasks of sources are told; None: that was not asked for yet."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """How many partitions each spout with event time has."""
    said: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    """What spouts say beyond what they were told, by spout and partition."""
    acks: list[Ack] = field(default_factory=list)
    complete: Complete | None = None
    input_rows: int = 0
    failure: StatefxError | None = None
    """Why it is rolled back."""

    # ---- what is carried out of it now

    running: set[Part] = field(default_factory=set)
    """What the coordinator waits for."""
    part: Part = ""
    """What tasks carry out, and by which order; the engine's, as all that follows up to `put_off_secs`."""
    order: Order | ResolutionOrder | None = None
    waiting: set[TaskId] = field(default_factory=set)
    """Tasks that have not answered."""
    reports: list[Report] = field(default_factory=list)
    since: float | None = None
    """When its orders were sent."""
    put_off_secs: float = 0.0
    """By how much its end is put off: its timeout begins again while tasks restore state (rule 6.9)."""
    """Those that did when the time was last over."""

    # ---- its commit or its rollback

    resolution: Resolution | None = None
    left: dict[str, Work] = field(default_factory=dict)
    """What those that take part have still to do, by their names."""
    reasons: list[str] = field(default_factory=list)
    """Why the last round has left something to do."""
    rounds: int = 0

    # ---- what people are shown

    phase: str = ""
    doing: str = ""
    turned: float = 0.0
    """When it began to do that, by the clock of `Progress`."""
    secs: dict[str, float] = field(default_factory=dict)
    """How long it has done what."""
