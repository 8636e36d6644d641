"""An attempt as the driver knows it, and what the loop asks of the engine that carries it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from statefx.errors import StatefxError
from statefx.protocol.commands import Resolution, Segment
from statefx.protocol.completeness import Complete
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.jsonform import Json
from statefx.protocol.metadata import BySpout
from statefx.protocol.order import Emission, EmissionOrder, Order, ResolutionOrder
from statefx.protocol.records import Input
from statefx.protocol.reports import Ack, Report
from statefx.protocol.watermark import UnitTime

Work = ResolutionOrder | Callable[[], object]
"""What one that takes part has to do at a commit or a rollback: tasks are told, or something is called on the driver.

A call may take long, such as the commit of a sink: transactions behind it go on meanwhile.
"""

Part = Segment | str
"""What is carried out of an attempt: a segment, or the commit or rollback of who has this name."""


def _never(failure: StatefxError) -> bool:
    return False


class Emissions:
    """What the tasks of sources are told of an attempt, and what they say; by default nothing."""

    def orders(self, attempt: Attempt) -> Mapping[TaskId, EmissionOrder]:
        """Return what each task is told; asked for when it begins, and what is before it has been processed."""
        return {}

    def partitions(self, attempt: Attempt) -> Mapping[str, int]:
        """Return how many partitions each spout with event time has, if any (rule 14.4); asked for after `orders`."""
        return {}

    def finished(self) -> Mapping[str, Iterable[int]]:
        """Return the partitions that are finished, of each spout that has event time and says so, as committed now."""
        return {}

    def processed(self, attempt: Attempt) -> None:
        """Take note of what the tasks have emitted: the next transaction goes on behind it."""

    def times(self, clock_ms: int) -> tuple[Mapping[str, UnitTime], Mapping[str, int]]:
        """Return what rows of DataFrames say of event time, by stream, and how many are too far ahead to count."""
        return {}, {}

    def emitted(self, attempt: Attempt, emission: Emission) -> BySpout:
        """Return what spouts of one kind have emitted, for the record in which it becomes durable."""
        return {}


class Batch(NamedTuple):
    """The input of one transaction: what PREPARING says of it, and what its tasks are told."""

    input: Input
    work: Any = None
    """Of a client's transaction, what it changes."""
    planned: BySpout = MappingProxyType({})
    """What the driver has planned that spouts read, and that is not in the log yet."""
    emissions: Emissions = Emissions()
    closes: bool = False
    """Whether it reads nothing and closes event time."""
    renews: Callable[[StatefxError], bool] = _never
    """Tells of what an attempt has failed of whether another one over this very batch is of no use."""


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
    """What tasks carry out, and by which order; the engine's, as all that follows up to `extended_secs`."""
    order: Order | ResolutionOrder | None = None
    waiting: set[TaskId] = field(default_factory=set)
    """Tasks that have not answered."""
    reports: list[Report] = field(default_factory=list)
    since: float | None = None
    """When its orders were sent."""
    extended_secs: float = 0.0
    """By how much its end is put off: its timeout begins again while tasks restore state (rule 6.9)."""

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


class Answer(NamedTuple):
    """What came of something that was carried out.

    Acks and reports are in the attempt. With a `failure` there may be some, or none: a BoltError says that a bolt's
    code raised; JobFailedError that the same may be tried again; StoppedError that the query is being stopped; of
    another TransactionError trying again would not help. Of a call, it is whatever that has raised. Anything else ends
    the driver.
    """

    attempt: Attempt
    part: Part
    failure: BaseException | None = None


class Engine(Protocol):
    """Carries out parts of attempts: as orders to tasks that live (`statefx.coordinator.runs`), or in this process.

    Contract
    --------
    * All methods but `interrupt` are called by one thread.
    * Parts end in any order; what came of each is told once.
    * No part makes a task wait for another transaction (rule 2.6: what must wait is ordered later).
    * What was cancelled may go on for a while, and may still be told of by `next` (rule 6.4).
    """

    def start(self, attempt: Attempt, segment: Segment, order: Order) -> None:
        """Begin a segment; returns at once."""

    def resolve(self, attempt: Attempt, name: str, order: ResolutionOrder) -> None:
        """Begin to tell tasks of a commit or a rollback, for who takes part under `name`; returns at once."""

    def call(self, attempt: Attempt, part: Part, call: Callable[[], object]) -> None:
        """Begin to call something on the driver; returns at once."""

    def next(self, timeout_secs: float | None) -> Answer | None:
        """Wait until something has ended; None after `timeout_secs`, or when it was interrupted. None: for ever.

        With one thing at a time an engine may do it here, in the caller's thread.
        """

    def cancel(self, attempt: Attempt) -> None:
        """Cancel what tasks carry out of an attempt; nobody waits for its end."""

    def interrupt(self) -> None:
        """Let `next` return; called by another thread."""

    def status(self) -> dict[str, Any]:
        """Return what ``query.status`` says of it: JSON; called by any thread."""

    def close(self) -> None:
        """Release what it holds: nothing is begun any more, and nothing is under way."""


def answer_of(attempt: Attempt, part: Part, call: Callable[[], object]) -> Answer:
    """Call something, and return what came of it."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whoever reads the answer decides
        return Answer(attempt, part, error)
    return Answer(attempt, part)
