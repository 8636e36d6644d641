"""What Spark knows of jobs: whether a stage has run a second time, and whether a job waits for slots."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from statefx.coordinator.engine import JobFailedError

_STATUS_LOOKS = 500
_STATUS_LOOK_SECS = 0.01
_TAGS = "spark.job.tags"
_STAGES_UNKNOWN = "Spark's status store does not tell whether a stage of the job was run again"


class JobStatus:
    """Asks Spark's status store and its scheduler.

    Parameters
    ----------
    context : SparkContext
    stopping : threading.Event
        Set when the query is being stopped: it ends a wait for the store.
    """

    def __init__(self, context: Any, stopping: threading.Event) -> None:
        self._inner = context._jsc.sc()
        self._scheduler = self._inner.taskScheduler()
        self._tracker = self._inner.statusTracker()
        self._arrays = context._jvm.java.util.Arrays
        self._stopping = stopping

    def waits(self, tag: str) -> bool:
        """Tell whether jobs with `tag` have tasks, none of which runs, while other jobs hold slots."""
        # Not by the status store, which may hear of a task's start ten seconds later.
        try:
            pool = self._scheduler.rootPool()
            sets = [each for each in _task_sets(pool) if tag in str(each.taskSet().properties().getProperty(_TAGS))]
            # Where nothing at all runs, there may be no slot for it in the whole cluster: it waits for nobody.
            return bool(sets) and not any(each.runningTasks() for each in sets) and pool.runningTasks() > 0
        except Py4JError:  # the context was stopped
            return False

    def ran_again(self, tag: str) -> bool:
        """Tell whether any stage of the jobs with `tag` ran more than once: rows may have gone elsewhere (rule 5.4)."""
        return any(self._job_ran_again(job) for job in self._ended_jobs(tag))

    def _job_ran_again(self, job: Any) -> bool:
        """Tell whether any stage of a job that has ended ran more than once.

        A full store forgets stages, and those first that a job passed over, however new they are: job O passes over all
        that job P has run. So a stage that is not there was passed over, if as many are there as the job has completed.
        """
        known, forgotten = [], False
        for stage in self._numbers(job.stageIds()):
            try:
                known.append(self._tracker.getStageInfo(stage).get())
            except Py4JJavaError:  # of None's get
                forgotten = True
            else:
                if known[-1].currentAttemptId() > 0:
                    return True
        if forgotten and sum(stage.submissionTime() > 0 for stage in known) < self._completed(job.jobId()):
            raise JobFailedError(_STAGES_UNKNOWN)
        return False

    def _completed(self, job: int) -> int:
        """Return how many stages of a job have run to their end."""
        try:
            return int(self._inner.statusStore().job(job).numCompletedStages())
        except Py4JJavaError as error:  # the store has forgotten the job as well
            raise JobFailedError(_STAGES_UNKNOWN) from error

    def _ended_jobs(self, tag: str) -> list[Any]:
        """Wait until Spark's status store knows that the jobs with `tag` have ended: it hears of it a little later."""
        for _ in range(_STATUS_LOOKS):
            found = [self._tracker.getJobInfo(job) for job in self._numbers(self._tracker.getJobIdsForTag(tag))]
            jobs = [info.get() for info in found if info.isDefined()]
            if jobs and all(str(job.status()) in ("SUCCEEDED", "FAILED") for job in jobs):
                return jobs
            self._stopping.wait(_STATUS_LOOK_SECS)
        raise JobFailedError(_STAGES_UNKNOWN)

    def _numbers(self, array: Any) -> list[int]:
        """Read an int[] of the JVM with one call, not with one for each element."""
        found: list[int] = json.loads(str(self._arrays.toString(array)))
        return found


def _task_sets(pool: Any) -> Iterator[Any]:
    """Yield the sets of tasks that Spark's scheduler has in a pool, or in one below it."""
    for each in pool.schedulableQueue().iterator():
        if each.schedulableQueue() is None:
            yield each
        else:
            yield from _task_sets(each)
