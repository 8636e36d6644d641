"""Runs attempts and hooks in this process, task after task, as Spark's stages would."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from statefx.coordinator.engine import InProcessEngine, Job, JobFailedError, SegmentRun
from statefx.coordinator.janitor import EVERY_TRANSACTIONS, MIN_AGE_SECS, VERSIONS_KEPT
from statefx.coordinator.log import RECORDS_BEFORE_CHECKPOINT
from statefx.coordinator.orders import CARRIED_BYTES_MAX, OrderSender
from statefx.coordinator.state import SnapshotPolicy
from statefx.errors import BoltError
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.protocol.barrier import Ack, Report
from statefx.protocol.order import ResolutionOrder, RunOrder
from statefx.runtime.orders import SentOrder
from statefx.state.contract.store import FILES_MAX
from statefx.testing.faults import Echo, Fault, HooksFail
from statefx.testing.processes import Emitted, Run, TaskJob, Workers, as_batches
from statefx.testing.steps import DurableSteps
from statefx.testing.streams import Work, scatter


@dataclass(frozen=True)
class Limits:
    """Settings that a test wants smaller than a topology does.

    Attributes
    ----------
    snapshots : SnapshotPolicy
        When a task writes a snapshot.
    fold_after : int
        Records of the log before it is folded.
    sweep_every : int
        Transactions between two sweeps.
    min_age_secs : float
        Files younger than this are not swept; see ``TopologyTester.advance``.
    files_max : int
        How many state files of like size a task leaves before it merges them.
    versions_kept : int
        How many transactions back a version stays readable.
    pauses : int
        How many waits between tries a driver may ask for before it is stopped.
    carried_bytes_max : int
        Bytes of an order that travel with its job; of a larger one each task reads its own line from a file.
    """

    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    fold_after: int = RECORDS_BEFORE_CHECKPOINT
    sweep_every: int = EVERY_TRANSACTIONS
    min_age_secs: float = MIN_AGE_SECS
    files_max: int = FILES_MAX
    versions_kept: int = VERSIONS_KEPT
    pauses: int = 50
    carried_bytes_max: int = CARRIED_BYTES_MAX


class LocalEngine(InProcessEngine):
    """Runs one deployment without Spark (see `statefx.coordinator.engine.Engine`).

    With a `seed`, chance decides which of several worker processes runs a task, and in which order the outputs of tasks
    reach the tasks that read them; with None they come in order. `faults` are those that have not struck yet, `seen` is
    what each run of a task emitted.
    """

    def __init__(
        self, deployment: Deployment, steps: DurableSteps, workers: Workers, seed: int | None, carried_bytes_max: int
    ) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.seen: dict[Run, Emitted] = {}
        self.workers = workers
        self._deployment = deployment
        self._plan = deployment.plan
        self._orders = OrderSender(self._plan, deployment.storage, carried_bytes_max)
        self._steps = steps
        self._random = random.Random(seed or 0)
        self._mixed = seed is not None
        self._acks: list[Ack] = []

    def inject(self, faults: Sequence[Fault]) -> None:
        """Have these strike once, each in the next attempt that it fits."""
        self.faults += faults

    def wake(self) -> None:
        """Let the tasks that were given up and are not dead run to their end."""
        self.workers.wake()

    def close(self) -> None:
        """End all processes."""
        self.workers.close()

    def take(self) -> Job:
        """Take the first job, or with a seed whichever chance decides on."""
        return self.jobs.pop(self._random.randrange(len(self.jobs)) if self._mixed else 0)

    def cancel(self, job_id: str) -> None:
        """Drop a job; or, if chance decides so, let it run all the same, as tasks on Spark may."""
        if not self._mixed or self._random.random() < 0.5:
            super().cancel(job_id)

    def reuses(self, work: Work) -> bool:
        return False  # no two attempts share results here

    def run_segment(self, run: SegmentRun) -> tuple[Ack, ...]:
        """Run an attempt."""
        with self._orders.sent(run.order) as text:
            return self._levels(run, SentOrder(text, self._deployment))

    def _levels(self, run: SegmentRun, order: RunOrder) -> tuple[Ack, ...]:
        self.seen.clear()
        inputs: Sequence[Sequence[pa.RecordBatch]] = scatter(self._plan, run.work)
        widths = (*self._plan.widths, 1)  # the last one is the driver's
        for level in range(len(self._plan.levels)):
            sent = []
            for partition in range(len(self._plan.levels[level])):
                process = self._random.choice(self.workers.processes)
                sent.append(self._run(TaskJob(process, order, (level, partition), inputs[partition], self.seen)))
            self._check_job(level, level + 2 == len(widths))
            inputs = self._shuffled(sent, widths[level + 1])
        acks = [Ack.unpack(payload) for batch in inputs[0] for _, _, _, payload in wire.rows_of(batch)]
        echoed = self._acks if self._struck(lambda fault: isinstance(fault, Echo)) else []
        self._acks = acks
        return (*echoed, *acks)

    def resolve(self, order: ResolutionOrder) -> tuple[Report, ...]:
        failing = self._struck(lambda fault: isinstance(fault, HooksFail) and fault.phase == order.resolution)
        done = failing.done if isinstance(failing, HooksFail) else len(order.tasks)
        reports = []
        with self._orders.sent(order) as text:
            for place, task in enumerate(order.tasks[:done]):
                process = self._random.choice(self.workers.processes)
                step = f"{order.resolution} hooks {task} for {order.attempt.txid}"
                with self._steps.around(step):
                    reports.append(process.resolve(text, place))
        if failing is not None:
            raise JobFailedError("the executor was lost")
        return tuple(reports)

    def _run(self, job: TaskJob) -> list[wire.WireRow]:
        fault = self._struck(lambda fault: fault.strikes(job))
        try:
            return job.run() if fault is None else fault.play(job, self.workers)
        except (BoltError, JobFailedError):
            raise
        except Exception as error:
            raise JobFailedError(f"{type(error).__name__}: {error}") from error

    def _check_job(self, level: int, last: bool) -> None:
        fault = self._struck(lambda fault: fault.after(level, last))
        if fault is not None:
            raise JobFailedError(getattr(fault, "reason", "the job failed"))

    def _struck(self, fits: Callable[[Fault], bool]) -> Fault | None:
        for fault in self.faults:
            if fits(fault):
                self.faults.remove(fault)
                return fault
        return None

    def _shuffled(self, sent: list[list[wire.WireRow]], width: int) -> list[list[pa.RecordBatch]]:
        """Give each partition of the next level its rows; those of one sender stay in order."""
        blocks = list(sent)
        if self._mixed:
            self._random.shuffle(blocks)
        return [
            [batch for rows in blocks for batch in as_batches([row for row in rows if row[0] == partition])]
            for partition in range(width)
        ]
