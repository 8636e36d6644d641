"""Does the pieces of a tool's work on the executors of a session, see `statefx.admin.parallel`."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark import Accumulator
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statefx.admin.parallel import P, R, Told
from statefx.errors import StatefxError
from statefx.spark import internals
from statefx.spark.failures import job_error
from statefx.spark.labels import DESCRIPTION
from statefx.spark.session import is_local

_CLOSED_MAX = 10
"""So many workers without a connection are passed over for one job."""

_TELL_SECS = 0.5
"""So often it is told how far the work is: Spark tells when a task has ended."""


class Executors:
    """The executors of a session; a piece whose worker or machine is lost is done again, as Spark tries a task.

    Parameters
    ----------
    session : SparkSession
        A classic session.
    what : str
        What Spark's UI calls the job.
    """

    def __init__(self, session: SparkSession, what: str) -> None:
        self._context = session.sparkContext
        self._what = what

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""
        return int(self._context.defaultParallelism)

    def run(self, work: Callable[[P, Told], R], pieces: Sequence[P], told: Told) -> Iterable[R]:
        """Return what `work` returns for each piece.

        Raises
        ------
        StatefxError
            As `work` raised it.
        JobFailedError, TransactionError
            Spark could not do a piece.
        """
        try:
            outcomes = with_open_workers(lambda: self._outcomes(work, pieces, told))
        except (PySparkException, Py4JError) as error:
            found = job_error(error, local=is_local(self._context))
            says = f"{self._what}: Spark could not do it, and nothing was changed; do it again. {found.message}"
            raise type(found)(says, **found.data) from error
        return map(_checked, outcomes)

    def _outcomes(self, work: Callable[[P, Told], R], pieces: Sequence[P], told: Told) -> list[R | StatefxError]:
        context, tag = self._context, f"statefx-{uuid.uuid4().hex}"
        done = context.accumulator(0)
        job = internals.wrapped(context.parallelize(pieces, len(pieces)).map(partial(_outcome, work, done)))
        try:
            with internals.own_properties(context) as own, _Telling(done, told):
                context.addJobTag(tag)
                own.setProperty(DESCRIPTION, self._what)
                found: list[R | StatefxError] = job.collect()
                return found
        finally:  # after an interrupt it would go on
            if not internals.stopped_here(context):
                context.cancelJobsWithTag(tag)


def with_open_workers(job: Callable[[], R]) -> R:
    """Return what `job` returns, which changes nothing; do it again where Spark gives it a worker without a connection.

    Each failure takes such a worker away.
    """
    for _ in range(_CLOSED_MAX):
        try:
            return job()
        except (PySparkException, Py4JError) as error:
            if not internals.got_closed_worker(error):
                raise
    return job()


def _outcome(work: Callable[[P, Told], R], done: Accumulator[int], piece: P) -> R | StatefxError:
    """Do a piece; an error of ours is an outcome: the next try would end with the same."""
    try:
        return work(piece, done.add)
    except StatefxError as error:
        return error


def _checked(outcome: R | StatefxError) -> R:
    if isinstance(outcome, StatefxError):
        raise outcome
    return outcome


class _Telling:
    """Tells what the tasks that have ended have told, until the block ends."""

    def __init__(self, done: Accumulator[int], told: Told) -> None:
        self._done, self._told = done, told
        self._known = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="statefx-telling", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._tell()

    def _run(self) -> None:
        while not self._ended.wait(_TELL_SECS):
            self._tell()

    def _tell(self) -> None:
        now = self._done.value
        if now > self._known:
            self._told(now - self._known)
            self._known = now
