"""What a slot runs: the contract of an operator, what it is given, and what it leaves behind."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from statefx.errors import BoltError
from statefx.operators import Bolt
from statefx.plan.deployment import Deployment
from statefx.protocol.barrier import LeftOut, SetAside
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt
from statefx.protocol.jsonform import Json
from statefx.protocol.order import RunOrder, StateOrder
from statefx.protocol.trees import NOTHING, TreeReport
from statefx.protocol.watermark import BEGINNING
from statefx.runtime import restoring
from statefx.runtime.collector import TaskCollector
from statefx.runtime.event_time import TaskTime
from statefx.runtime.living_spout import LivingSpout
from statefx.runtime.outbox import Outbox
from statefx.runtime.trees import Trees
from statefx.runtime.worker import Worker
from statefx.state.contract.store import StateStore, open_store
from statefx.state.view.lent import LentState
from statefx.topology.graph import Edge

ACKED_BYTES_MAX = 64 << 10
"""Of a committable, and of metadata, as JSON: the driver holds those of all tasks at once, and writes them into one
record of the log. At 1,000 tasks that are 64 MB, ten times what a record should have."""


@dataclass(slots=True)
class TaskAttempt:
    """One run of one task in one attempt of a transaction: what its operator is given.

    Attributes
    ----------
    worker : Worker
        The process that it runs in.
    deployment : Deployment
    order : RunOrder
    id : TaskId
        Which task it is.
    token : str
        Names this very execution and what it prepares (rule 1.3: nothing else ever has that name).
    collector : TaskCollector
        Takes what the operator emits.
    outbox : Outbox
        When it is ``pressing``, an operator pauses between two rows.
    restore_secs : float
        How long its state took to be there, as last committed.
    states : dict or None
        Of tasks that live: the states with what they have prepared, from one attempt to the next.
    spouts : dict or None
        Of tasks that live: the spouts that live in them.
    trees : Trees or None
        Of a task whose tuples are tracked.
    bolts : dict or None
        Of tasks that live: plain bolts, which may hold tuples in their attributes, each with the transaction that it
        has seen last.
    time : TaskTime or None
        Of a task that has event time.
    """

    worker: Worker
    deployment: Deployment
    order: RunOrder
    id: TaskId
    token: str
    collector: TaskCollector
    outbox: Outbox
    restore_secs: float = 0.0
    states: dict[TaskId, LentState] | None = None
    spouts: dict[TaskId, LivingSpout] | None = None
    trees: Trees | None = None
    bolts: dict[TaskId, tuple[Bolt, int]] | None = None
    time: TaskTime | None = None

    @property
    def watermark(self) -> int | None:
        """How far event time has come, in microseconds since 1970; None: nothing is known."""
        return None if self.time is None or self.time.watermark == BEGINNING else self.time.watermark

    @property
    def moment(self) -> tuple[TransactionAttempt, int, int | None]:
        """What `Context.enter` is told."""
        return self.order.attempt, self.order.clock_ms, self.watermark

    @property
    def txid(self) -> int:
        """The transaction."""
        return self.order.attempt.txid

    @property
    def state(self) -> StateOrder:
        """What the order says of the task's state; OSError if that can't be read."""
        return self.order.state(self.id)

    def open_store(self) -> StateStore:
        """Open the task's state at the version that the order names; the driver is shown that it takes its time."""
        context = self.deployment.state_context(self.order, self.id)
        namespace = self.deployment.namespace(*self.id)
        began = time.perf_counter()
        marker = f"{self.id.component}-{self.id.task}-{self.token}"
        with restoring.restoring(self.deployment.storage, marker):
            store = open_store(self.worker.provider(self.deployment), namespace, context)
        self.restore_secs = time.perf_counter() - began
        return store


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """What a task has made ready for the commit; it stands under the task attempt's token, and nobody can see it yet.

    Attributes
    ----------
    size_bytes, keys, found_keys, snapshot
        Of state: as in `Ack`.
    committable : JSON or None
        What a sink's commit needs; it stands in the record of the decision. More than `ACKED_BYTES_MAX` is staged as a
        file, and the committable names the file with its checksum.
    metadata : JSON or None
        What an emitter needs to emit the same rows again, or the rows that come after them.
    left_out, set_aside, trees, counts, due_ms
        As in `Ack`.
    """

    size_bytes: int = 0
    keys: int = 0
    found_keys: int | None = None
    snapshot: SnapshotRef | None = None
    committable: Json = None
    metadata: Json = None
    left_out: LeftOut = field(default=LeftOut())
    set_aside: SetAside = field(default=SetAside())
    trees: TreeReport = field(default=NOTHING)
    counts: Mapping[str, int | float] = field(default_factory=dict)
    due_ms: int = 0

    def check_size(self, id: TaskId) -> None:
        """Refuse what no ack may carry: BoltError."""
        for name in ("committable", "metadata"):
            value = getattr(self, name)
            if value is not None and (size := len(json.dumps(value))) > ACKED_BYTES_MAX:
                remedy = "write it to a file beside what is staged, and name it with its checksum"
                if name == "metadata":
                    remedy = "give the spout more tasks, or less metadata; planPartitionBatch has no such limit"
                raise BoltError(
                    f"{id.component!r}, task {id.task}: its {name} has {size} bytes, and an ack takes at most "
                    f"{ACKED_BYTES_MAX}: {remedy}",
                    component=id.component,
                    task=id.task,
                    size_bytes=size,
                )


class TaskOperator(ABC):
    """One task of one component, in one attempt of one transaction.

    A slot makes one for each attempt and calls it from one thread::

        open -> begin -> feed, for each batch -> end -> finish -> close

    `end` and `finish` come only if a barrier has come from every task that the operator reads from (rule 5.3). What is
    emitted is sent between the two: those that read from it need not wait until it has prepared. `close` comes in
    any case, also after `open` has raised. After anything has raised, nothing but `close` comes.

    A bolt has inputs and outputs. A sink has no outputs: it stages in `feed`, prepares in `finish`, and takes away what
    it has staged when it is closed without having prepared. An emitter has no inputs: it emits in `begin`.

    Raises
    ------
    BoltError
        From any method: code of the user's has raised. The transaction is rolled back and the query ends.
    FailedException
        This attempt fails, and is tried again.
    FencedError
        A newer driver has taken over.
    StateError, OSError
        Where the operator keeps things can't be reached, or is damaged.
    """

    @abstractmethod
    def open(self, task: TaskAttempt) -> None:
        """Make ready to run."""

    def begin(self) -> bool:
        """Do what needs no input, before there is any; True if it has paused, until `resume`."""
        return False

    @abstractmethod
    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        """Take rows that have come along `edge`; True if it has paused among them, until `resume`.

        It must pause, and soon, when the outbox is ``pressing``: what is emitted can't leave the process before.
        """

    def resume(self) -> bool:
        """Go on after a pause; True if it has paused again."""
        return False

    def end(self) -> None:
        """Emit what comes at the end of the input."""
        return

    @abstractmethod
    def finish(self) -> PreparedTask:
        """Prepare: the input has come whole. What is prepared is durable when this returns, and invisible.

        It may never take the place of what another run of this task has prepared (rule 4.1).
        """

    @abstractmethod
    def close(self, *, keep: bool, acked: bool = False) -> None:
        """Release what it holds, and raise nothing.

        Parameters
        ----------
        keep : bool
            Whether it came through its attempt, and its slot too. Else nobody will ever name what it has staged.
        acked : bool
            The driver may know that it has prepared, and may have decided: what is staged stays, whatever `keep` says.
        """
