"""What Spark does to tasks, played to a topology: each fault strikes once, in the next attempt that it fits.

Give them to ``TopologyTester.send`` or ``TopologyTester.inject``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from statefx.coordinator.engine import JobFailedError
from statefx.plan import wire
from statefx.testing.processes import TaskJob, Workers


class Fault:
    """One thing that goes wrong, once."""

    def strikes(self, job: TaskJob) -> bool:
        """Tell whether it happens to this task."""
        return False

    def play(self, job: TaskJob, workers: Workers) -> list[wire.WireRow]:
        """Run the task with the fault and return what its readers get."""
        raise NotImplementedError

    def after(self, level: int, last: bool) -> bool:
        """Tell whether the job fails when all tasks of `level` have run."""
        return False


@dataclass(frozen=True)
class TaskFault(Fault):
    """A fault of the Spark task that runs one bolt task, and with it of all bolts in its chain."""

    component: str
    task: int = 0

    def strikes(self, job: TaskJob) -> bool:
        return (self.component, self.task) in job.chain


@dataclass(frozen=True)
class Rerun(TaskFault):
    """The task's output is lost when it was whole, so the task runs again.

    Attributes
    ----------
    readers : collection of int, optional
        Partitions of the next level that read the second output; the others read the first. By default all read the
        second. The driver is partition 0 of the level after the last.
    """

    readers: Collection[int] | None = None

    def play(self, job: TaskJob, workers: Workers) -> list[wire.WireRow]:
        first, second = job.run(), job.run()
        if self.readers is None:
            return second
        return [row for row in first if row[0] not in self.readers] + [row for row in second if row[0] in self.readers]


@dataclass(frozen=True)
class Twins(TaskFault):
    """Two attempts of the task run at once, in two processes, batch by batch; one wins.

    Attributes
    ----------
    winner : int
        0 or 1.
    """

    winner: int = 0

    def play(self, job: TaskJob, workers: Workers) -> list[wire.WireRow]:
        twins = job.start(), job.start(workers.fresh())
        while not all(twin.ended for twin in twins):
            for twin in twins:
                twin.step()
        return twins[self.winner].sent


@dataclass(frozen=True)
class Killed(TaskFault):
    """The task's process dies at the end of its input, before anything is prepared; Spark runs the task again."""

    def play(self, job: TaskJob, workers: Workers) -> list[wire.WireRow]:
        first = job.start()
        first.to_end_of_input()
        workers.zombies.append(first)
        job.process = workers.fresh()
        return job.run()


@dataclass(frozen=True)
class Moved(TaskFault):
    """The task runs in a process that has never seen it, on a machine without caches."""

    def play(self, job: TaskJob, workers: Workers) -> list[wire.WireRow]:
        job.process = workers.fresh()
        return job.run()


@dataclass(frozen=True)
class Lost(TaskFault):
    """Some of the task's output vanishes on its way.

    Attributes
    ----------
    what : str
        ``rows``, ``barrier`` or ``ack``.
    """

    what: str = "rows"

    def play(self, job: TaskJob, workers: Workers) -> list[wire.WireRow]:
        kind = {"rows": wire.RECORDS, "barrier": wire.BARRIER, "ack": wire.ACK}[self.what]
        return [row for row in job.run() if row[1] != kind]


@dataclass(frozen=True)
class Doubled(TaskFault):
    """The task's records arrive twice."""

    def play(self, job: TaskJob, workers: Workers) -> list[wire.WireRow]:
        sent = job.run()
        return sent + [row for row in sent if row[1] == wire.RECORDS]


@dataclass(frozen=True)
class Zombie(TaskFault):
    """The job fails, but the task is not dead: it stops at the end of its input, and goes on when it is woken.

    See `Wake` and ``TopologyTester.wake``; then it still prepares and sends.

    Attributes
    ----------
    executed : bool
        Whether it has executed its tuples before it stops; else it stops before the first.
    """

    executed: bool = True

    def play(self, job: TaskJob, workers: Workers) -> list[wire.WireRow]:
        task = job.start()
        if self.executed:
            task.to_end_of_input()
        else:
            task.step()
        workers.zombies.append(task)
        raise JobFailedError(f"the job was cancelled while {self.component}[{self.task}] ran")


@dataclass(frozen=True)
class Wake(TaskFault):
    """When the task has executed its tuples, every zombie runs to its end; then the task goes on."""

    def play(self, job: TaskJob, workers: Workers) -> list[wire.WireRow]:
        task = job.start()
        task.to_end_of_input()
        workers.wake()
        return task.finish()


@dataclass(frozen=True)
class JobFails(Fault):
    """The job fails as infrastructure does: an executor was lost, a fetch failed.

    Where spouts are read, one job holds all tasks: it fails when the first of them has prepared.

    Attributes
    ----------
    level : int or None
        After all tasks of this level have run; None: after all tasks, when everything is prepared. Of streams alone.
    reason : str
        What Spark says.
    """

    level: int | None = None
    reason: str = "the executor was lost"

    def after(self, level: int, last: bool) -> bool:
        return last if self.level is None else level == self.level


@dataclass(frozen=True)
class HooksFail(Fault):
    """The job that runs the hooks of a commit or a rollback fails.

    Attributes
    ----------
    phase : str
        ``commit`` or ``rollback``.
    done : int
        How many tasks have run their hooks by then; their reports are lost.
    """

    phase: str = "commit"
    done: int = 0


@dataclass(frozen=True)
class Echo(Fault):
    """The acks of the attempt before arrive again, ahead of this attempt's."""
