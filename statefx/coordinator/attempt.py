"""The driver's record of an attempt, and what the coordinator's loop asks of the engine that carries it out.

The natural form of a transaction is a function on the driver: send instructions, wait for acks, append COMMITTING,
commit, and roll back in an ``except``. Three orders of events break it:

* t+1 emits rows while t waits for acks, and all acks of t+1 may come first. So one thread for each transaction waits
  for the one before it, and when t fails, t+1 has to be cancelled wherever its thread stands (rules 2.4 and 6.1).
* The append of COMMITTING raises because the answer was lost, and the record stands. The ``except`` rolls back what
  the next driver finds decided (rule 2.5). There is no point in the function at which an error means what it says.
* A sink is down for an hour after the decision. The commit is retried for as long as that takes (rule 6.11);
  meanwhile later transactions are processed, a savepoint is asked for, and the query is stopped.

So an `Attempt` is data without a thread. `statefx.protocol.pipeline` decides from events what comes next, the loop
does it, and an `Engine` carries out its parts (a segment, a commit, a rollback) and returns the outcome of each once.
Anything may happen between two parts, so nothing about an attempt is on a stack.

It is natural, too, to wait until cancelled tasks have ended before the next attempt begins. A task on a machine that
hangs never ends. The driver does not wait: what a cancelled task still prepares has a token that no record names
(rule 4.3), and what it still reports names an attempt that is gone (rule 6.4: such reports change nothing).
"""

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
"""A participant's work at a commit or a rollback: an instruction to tasks, or a call on the driver.

A call may take long, such as the commit of a sink: transactions behind it go on meanwhile.
"""

Part = Segment | str
"""A part of an attempt: a segment, or the commit or rollback of the participant with this name."""


def _never(failure: StatefxError) -> bool:
    return False


class Emissions:
    """Instructions for the tasks of sources in an attempt, and what their acks report; none by default."""

    def orders(self, attempt: Attempt) -> Mapping[TaskId, EmissionOrder]:
        """Return each task's emission; called when the attempt begins, after the one before it was processed."""
        return {}

    def partitions(self, attempt: Attempt) -> Mapping[str, int]:
        """Return how many partitions each spout with event time has (rule 14.4); called after `orders`."""
        return {}

    def finished(self) -> Mapping[str, Iterable[int]]:
        """Return the finished partitions of each spout with event time that names them, as committed now."""
        return {}

    def processed(self, attempt: Attempt) -> None:
        """Note what the tasks emitted: the next transaction begins after it."""

    def times(self, read_ms: int) -> tuple[Mapping[str, UnitTime], Mapping[str, int]]:
        """Return the event times of DataFrames' rows by stream, and how many rows are too far ahead to count."""
        return {}, {}

    def emitted(self, attempt: Attempt, emission: Emission) -> BySpout:
        """Return what spouts of one kind emitted, for the record that makes it durable."""
        return {}


class Batch(NamedTuple):
    """The input of one transaction: its part of PREPARING, and the instructions for its tasks."""

    input: Input
    work: Any = None
    """Of a client's transaction, what it changes."""
    planned: BySpout = MappingProxyType({})
    """The driver's plan of what spouts read, if it is not in the log yet."""
    emissions: Emissions = Emissions()
    closes: bool = False
    """Whether it reads nothing and closes event time."""
    renews: Callable[[StatefxError], bool] = _never
    """Tells of what an attempt has failed of whether another one over this very batch is of no use."""


@dataclass(slots=True, eq=False)
class Attempt:
    """State of an attempt; it decides nothing: `statefx.protocol.pipeline` does."""

    name: TransactionAttempt
    batch: Batch | None = None
    """Its input; None: a former driver began it, and the log has all that is needed."""
    orders: Mapping[TaskId, EmissionOrder] | None = None
    """The emissions of sources' tasks; None: not asked for yet."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """How many partitions each spout with event time has."""
    said: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    """Metadata of spouts beyond their instructions, by spout and partition."""
    acks: list[Ack] = field(default_factory=list)
    complete: Complete | None = None
    input_rows: int = 0
    failure: StatefxError | None = None
    """Why it is rolled back."""

    # ---- what is carried out of it now

    running: set[Part] = field(default_factory=set)
    """The parts that the coordinator waits for."""
    part: Part = ""
    """The part that tasks carry out, and its instruction; the engine's, as all that follows up to `extended_secs`."""
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
    """The work that participants have left, by their names."""
    reasons: list[str] = field(default_factory=list)
    """Why the last round has left something to do."""
    rounds: int = 0

    # ---- what people are shown

    phase: str = ""
    began: float = 0.0
    """When PREPARING was to be written, in seconds since the epoch; 0: by a former driver."""
    acked: dict[TaskId, float] = field(default_factory=dict)
    """When the acks came, by the engine's clock."""
    doing: str = ""
    turned: float = 0.0
    """When it began to do that, by the clock of `Progress`."""
    secs: dict[str, float] = field(default_factory=dict)
    """How long it has done what."""


class Answer(NamedTuple):
    """The outcome of a part.

    Acks and reports are in the attempt, with a `failure` perhaps only some. BoltError: a bolt's code raised.
    JobFailedError: the same may be tried again. StoppedError: the query is being stopped. Another TransactionError:
    trying again would not help. Of a call, it is whatever the call raised. Anything else ends the driver.
    """

    attempt: Attempt
    part: Part
    failure: BaseException | None = None


class Engine(Protocol):
    """Runs parts of attempts, in resident tasks (`statefx.coordinator.runs`) or in this process.

    * One thread calls all methods but `interrupt` and `status`.
    * Parts end in any order; each outcome is returned once.
    * No part makes a task wait for another transaction (rule 2.6: what must wait is ordered later).
    * A cancelled part may go on for a while, and `next` may still return its outcome (rule 6.4: stale acks are
      ignored).
    """

    def start(self, attempt: Attempt, segment: Segment, order: Order) -> None: ...
    def resolve(self, attempt: Attempt, name: str, order: ResolutionOrder) -> None:
        """Begin to send a commit or rollback to tasks, for the participant `name`; returns at once."""

    def call(self, attempt: Attempt, part: Part, call: Callable[[], object]) -> None:
        """Begin a call on the driver; returns at once."""

    def next(self, timeout_secs: float | None) -> Answer | None:
        """Wait for the next outcome; return None after `timeout_secs` (None: no limit) or an interrupt.

        An engine that runs one part at a time may run it here, in the caller's thread.
        """

    def cancel(self, attempt: Attempt) -> None:
        """Cancel an attempt's tasks, without waiting for their end."""

    def interrupt(self) -> None:
        """Make `next` return; any thread may call it."""

    def status(self) -> dict[str, Any]:
        """Return its part of ``query.status``, as JSON; any thread may call it."""

    def close(self) -> None:
        """Release its resources: nothing runs, and nothing begins any more."""
