"""Runs attempts and hooks in this process, task after task, as Spark's stages would."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from statefx.coordinator.engine import JobFailedError
from statefx.coordinator.orders import Orders
from statefx.errors import BoltError, StatefxError
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.protocol.barrier import Ack
from statefx.protocol.order import Order, ResolutionOrder, TaskOrder
from statefx.protocol.report import Report
from statefx.runtime.orders import SentOrder
from statefx.testing.faults import Echo, Fault, HooksFail, Stage
from statefx.testing.limits import Limits
from statefx.testing.processes import Emitted, Process, Run, Strand, TaskJob, as_batches
from statefx.testing.steps import Steps
from statefx.testing.streams import Work, scatter


class LocalEngine(Stage):
    """Runs one deployment without Spark (see `statefx.coordinator.engine.Engine`).

    Parameters
    ----------
    deployment : Deployment
    steps : Steps
        Counts what tasks do durably.
    cache : str
        Folder for caches of state.
    processes : int
        Worker processes; with more than one, chance decides which of them runs a task.
    seed : int or None
        Of that chance, and of the order in which the outputs of tasks reach the tasks that read them; None: in order.
    fresh : bool
        Whether worker processes keep no bolt from one attempt to the next.
    limits : Limits, optional

    Attributes
    ----------
    faults : list of Fault
        Those that have not struck yet.
    seen : dict
        What each run of a task emitted.
    zombies : list of Strand
        Tasks that were given up and are not dead.
    """

    def __init__(
        self,
        deployment: Deployment,
        steps: Steps,
        cache: str,
        processes: int = 1,
        seed: int | None = None,
        *,
        fresh: bool = True,
        limits: Limits | None = None,
    ) -> None:
        self.faults: list[Fault] = []
        self.seen: dict[Run, Emitted] = {}
        self.zombies: list[Strand] = []
        self._deployment = deployment
        self._plan = deployment.plan
        self._orders = Orders(self._plan, deployment.storage, (limits or Limits()).carried_bytes_max)
        self._steps = steps
        self._cache = cache
        self._random = random.Random(seed or 0)
        self._mixed = seed is not None
        self._fresh = fresh
        self._processes = [self._process(os.path.join(cache, str(n))) for n in range(processes)]
        self._acks: list[Ack] = []

    def attempt(self, order: Order, work: Work) -> Iterable[Ack]:
        """Run one attempt over the rows of `work`."""
        with self._orders.sent(order) as text:
            return self._attempt(SentOrder(text, self._deployment), work)

    def _attempt(self, order: TaskOrder, work: Work) -> list[Ack]:
        self.seen.clear()
        inputs: Sequence[Sequence[pa.RecordBatch]] = scatter(self._plan, work)
        sent: list[list[wire.Row]] = []
        for level, slots in enumerate(self._plan.levels):
            sent = []
            for partition in range(len(slots)):
                process = self._random.choice(self._processes)
                sent.append(self._run(TaskJob(process, order, (level, partition), inputs[partition], self.seen)))
            last = level + 1 == len(self._plan.levels)
            self._check_job(level, last)
            inputs = self._shuffled(sent, 1 if last else len(self._plan.levels[level + 1]))
        acks = [Ack.unpack(row[4]) for rows in sent for row in rows if row[1] == wire.ACK]
        echoed = self._acks if self._struck(lambda fault: isinstance(fault, Echo)) else []
        self._acks = acks
        return [*echoed, *acks]

    def reuses(self, work: Work) -> bool:
        """Tell whether attempts over `work` share results: here none do."""
        return False

    def hooks(self, order: ResolutionOrder) -> Iterable[Report]:
        """Run the hooks of a commit or a rollback."""
        failing = self._struck(lambda fault: isinstance(fault, HooksFail) and fault.phase == order.resolution)
        done = failing.done if isinstance(failing, HooksFail) else len(order.tasks)
        reports = []
        with self._orders.sent(order) as text:
            for place, task in enumerate(order.tasks[:done]):
                process = self._random.choice(self._processes)
                step = f"{order.resolution} hooks {task} for {order.attempt.txid}"
                with self._steps.around(step):
                    reports.append(process.resolve(text, place))
        if failing is not None:
            raise JobFailedError("the executor was lost")
        return reports

    def fresh_process(self) -> Process:
        """Return a worker process that has seen nothing yet, on a machine without caches."""
        return self._process(tempfile.mkdtemp(dir=self._cache))

    def wake(self) -> None:
        """Let every zombie run to its end; what it raises is as lost as what it sends."""
        while self.zombies:
            try:
                self.zombies.pop(0).finish()
            except StatefxError:
                continue

    def close(self) -> None:
        """End the worker processes."""
        while self.zombies:
            self.zombies.pop().kill()
        for process in self._processes:
            process.close()

    def _process(self, cache: str) -> Process:
        return Process(self._deployment, self._steps, cache, fresh=self._fresh)

    def _run(self, job: TaskJob) -> list[wire.Row]:
        fault = self._struck(lambda fault: fault.strikes(job))
        try:
            return job.run() if fault is None else fault.play(job, self)
        except (BoltError, JobFailedError):
            raise
        except Exception as error:
            raise JobFailedError(f"{type(error).__name__}: {error}") from error

    def _check_job(self, level: int, last: bool) -> None:
        fault = self._struck(lambda fault: fault.after(level, last))
        if fault is not None:
            raise JobFailedError(getattr(fault, "reason", "the job failed"))

    def _struck(self, fits: Callable[[Fault], bool]) -> Fault | None:
        """Take the first fault that fits, if there is one."""
        for fault in self.faults:
            if fits(fault):
                self.faults.remove(fault)
                return fault
        return None

    def _shuffled(self, sent: list[list[wire.Row]], width: int) -> list[list[pa.RecordBatch]]:
        """Give each partition of the next level its rows; those of one sender stay in order."""
        blocks = list(sent)
        if self._mixed:
            self._random.shuffle(blocks)
        return [
            [batch for rows in blocks for batch in as_batches([row for row in rows if row[0] == partition])]
            for partition in range(width)
        ]
