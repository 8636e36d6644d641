"""`rescale` as users call it, and the executors of a session, on which pieces of a tool's work are done."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statefx.admin.reading import Progress
from statefx.admin.rescaling import Rescaling, rescale_checkpoint
from statefx.admin.routing import GroupingKey
from statefx.admin.work import Here, P, R, Report
from statefx.errors import StatefxError
from statefx.spark import internals
from statefx.spark.failures import job_error, without_internal_frames
from statefx.spark.job import DESCRIPTION
from statefx.spark.session import check_session, is_local

_CLOSED_MAX = 10
"""So many workers without a connection are passed over for one job."""

_REPORT_SECS = 0.5
"""So often progress is reported: Spark adds up what tasks report when they end."""


class Executors:
    """The executors of a session; a piece whose worker or machine is lost is done again, as Spark tries a task.

    `session` is a classic one; `what` is the job's name in Spark's UI.
    """

    def __init__(self, session: SparkSession, what: str) -> None:
        self._context = session.sparkContext
        self._what = what

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""
        return int(self._context.defaultParallelism)

    def run(self, work: Callable[[P, Report], R], pieces: Sequence[P], report: Report) -> Iterable[R]:
        """Return what `work` returns for each piece; it raises the StatefxError of `work`.

        JobFailedError, TransactionError: Spark could not do a piece.
        """
        try:
            outcomes = with_open_workers(lambda: self._outcomes(work, pieces, report))
        except (PySparkException, Py4JError) as error:
            found = job_error(error, local=is_local(self._context))
            says = f"{self._what}: Spark could not do it, and nothing was changed; do it again. {found.message}"
            raise type(found)(says, **found.data) from error
        return map(_checked, outcomes)

    def _outcomes(self, work: Callable[[P, Report], R], pieces: Sequence[P], report: Report) -> list[R | StatefxError]:
        context, tag = self._context, f"statefx-{uuid.uuid4().hex}"
        done = context.accumulator(0)
        job = internals.wrapped(context.parallelize(pieces, len(pieces)).map(partial(_outcome, work, done)))
        try:
            with internals.own_properties(context) as own, _Reporting(done, report):
                context.addJobTag(tag)
                own.setProperty(DESCRIPTION, self._what)
                found: list[R | StatefxError] = job.collect()
                return found
        finally:  # after an interrupt it would go on
            if not internals.stopped_here(context):
                context.cancelJobsWithTag(tag)


def with_open_workers(job: Callable[[], R]) -> R:
    """Return what `job` returns, which changes nothing; repeat it if Spark gives it a worker without a connection.

    Each failure takes such a worker away.
    """
    for _ in range(_CLOSED_MAX):
        try:
            return job()
        except (PySparkException, Py4JError) as error:
            if not internals.got_closed_worker(error):
                raise
    return job()


def _outcome(work: Callable[[P, Report], R], done: Accumulator[int], piece: P) -> R | StatefxError:
    """Do a piece; an error of ours is an outcome: the next try would end with the same."""
    try:
        return work(piece, done.add)
    except StatefxError as error:
        return error


def _checked(outcome: R | StatefxError) -> R:
    if isinstance(outcome, StatefxError):
        raise outcome
    return outcome


class _Reporting:
    """Reports what the tasks that have ended have reported, until the block ends."""

    def __init__(self, done: Accumulator[int], report: Report) -> None:
        self._done, self._report = done, report
        self._known = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="statefx-reporting", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._flush()

    def _run(self) -> None:
        while not self._ended.wait(_REPORT_SECS):
            self._flush()

    def _flush(self) -> None:
        now = self._done.value
        if now > self._known:
            self._report(now - self._known)
            self._known = now


def rescale(
    checkpointLocation: str | os.PathLike[str],
    tasks: Mapping[str, int],
    config: Mapping[str, Any] | None = None,
    *,
    groupingKey: Mapping[str, GroupingKey] | None = None,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
) -> Rescaling:
    """Give stateful bolts another number of tasks; their topology must not run.

    Afterwards submit it with this parallelism. ``submit(..., rescale=True)`` does both.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.
    tasks : Mapping
        Bolt to the number of tasks that it shall have.
    config : Mapping, optional
        Settings as given to ``submit``: needed only where a secret is among the provider's options.
    groupingKey : Mapping, optional
        Bolt to a function that is given a key of its state (of what is kept under a name: name and key) and returns
        the field, or the tuple of fields, that its grouping hashes. Not needed where a key is that field or these
        fields, or a tuple that begins with them, and the bolt has more than one task and more than a few keys.
    progress : callable (done, total), optional
        Is told the bytes that were read, written and read back, and about how many there are.
    spark : SparkSession, optional
        Its executors read and write tasks at the same time, by default this process does. Not what is in a server.

    Returns
    -------
    Rescaling
        How much was moved.

    Raises
    ------
    ConfigError
        The arguments are wrong; nothing was changed.
    CheckpointError
        There is no checkpoint, no such bolt, a transaction is in flight or has ended meanwhile, the bolt does not get
        its rows by ``fieldsGrouping``, or it keeps what belongs to a task; nothing was changed.
    StateCorruptedError
        What is read is damaged, or what was read back is not what was written; the bolt is as it was.
    StateError
        A disk is full, that of the checkpoint or that of temporary files; the bolt is as it was.

    Contract
    --------
    * For every key, the fields of its grouping are shown to name the task that it lies in. One task holds all keys, so
      that nothing can be shown, and a few keys may lie so by chance: then `groupingKey` has to be given.
    * One record makes it so: after a crash each bolt has its old tasks, or all have their new ones.
    * A driver that runs on the checkpoint is fenced, or it has gone on meanwhile and this is refused.
    * State in a server is written under new names there. The former tasks' is deleted by the next start's first sweep.
    * Savepoints of before stay: a checkpoint that is restored has the tasks that it had then.
    * Memory does not grow with state: it is read, sorted into temporary files, and written.
    * On executors, what a lost worker was doing is done again as often as Spark tries a task. On ``local[n]`` that is
      once: then this raises, and the bolt is as it was.

    Examples
    --------
    >>> print(rescale("checkpoints/word-count", {"count": 8}))     # doctest: +SKIP
    """
    workers = Here() if spark is None else Executors(check_session(spark, "rescale"), "statefx: rescale")
    try:
        return rescale_checkpoint(
            checkpointLocation, tasks, config, grouping_key=groupingKey, progress=progress, workers=workers
        )
    except StatefxError as error:
        raise without_internal_frames(error, "rescale ended") from error.__cause__
