"""Failures of Spark jobs: a lost machine, or a mistake. A bolt's error fails no job: it is acked."""

from __future__ import annotations

import logging
import re

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException

from statefx.coordinator.retrying import JobFailedError
from statefx.coordinator.runs import ControlUnreachableError, NoSlotsError, NotBegunError
from statefx.errors import StatefxError, TransactionError
from statefx.spark.internals import cant_start_workers, got_closed_worker

logger = logging.getLogger("statefx")

CONTEXT_STOPPED = "the SparkContext was stopped while the query was running"

_NO_SLOTS = re.compile(r"CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT\S*\s*(.*)")
_UNREACHABLE = re.compile(r"DriverUnreachableError: (.*)")
_NOT_WRITTEN = re.compile(r"(?:[\w.]*\.)?RowsNotWrittenError: (.*)")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]*)"[^\n]*')
_LAST_LINE = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Invalid)\b.*)$", re.MULTILINE)
_CAUSES = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_CUT_OFF = re.compile(
    r"^(?:[\w.]*\.)?(?:ArrowInvalid|EOFError|OSError|TimeoutError|BrokenPipeError|ConnectionResetError|ControlLostError"
    r"|DriverUnreachableError)\b"
)
"""How it ends in Python when Spark stops giving it rows in the middle, or taking them, as the job fails elsewhere, or
when rows do not end that it has to read to their end; when there is no room for rows that wait, or no way to the
driver."""
_SHOWN = 600


def job_error(error: Exception, *, local: bool) -> StatefxError:
    """Return the error for one of PySpark's or py4j's: JobFailedError if it may be tried again."""
    text = str(error)
    missing = _MISSING.search(text)
    if missing:
        return TransactionError(not_importable(missing[1], local=local), module=missing[1])
    program = _NO_PROGRAM.search(text)
    if program:
        return TransactionError(f"Spark can't start Python workers ({program[0]}): is PYSPARK_PYTHON right?")
    own = _NOT_WRITTEN.match(last_line(text))
    if own:
        return JobFailedError(own[1])
    if isinstance(error, PythonException) and not _CUT_OFF.match(last_line(text)):
        return TransactionError(f"a Python function of the job failed: {last_line(text)}")
    unreachable = _UNREACHABLE.search(last_line(text))
    if unreachable:
        return ControlUnreachableError(unreachable[1])
    slots = _NO_SLOTS.search(text)
    if slots:
        return NoSlotsError(
            "the tasks of the topology live at the same time, and Spark has no slots for all of them now: another "
            f"query or job of this session may hold some. Give the session more slots ({slots[1][:_SHOWN]})"
        )
    if got_closed_worker(error):
        return NotBegunError(f"Spark gave a task a Python worker whose connection it had closed ({last_line(text)})")
    if cant_start_workers(error):
        return JobFailedError(
            "Spark has lost the program that starts its Python workers, without noticing (a defect of Spark's with "
            f"spark.python.unix.domain.socket.enabled): another one is started ({last_line(text)})"
        )
    # Rule 6.8: whatever else Spark says is taken for a matter of machines. A bolt's error never comes here: it is
    # acked.
    return JobFailedError(last_line(text))


def without_internal_frames(error: StatefxError, when: str) -> StatefxError:
    """Remove the frames of statefx, and the causes in Spark or py4j, from an error whose text says what to do.

    These would be a hundred lines of the JVM's above it on a terminal. What the user's own code raised stays. A log at
    DEBUG has all of it.
    """
    logger.debug(when, exc_info=error)
    if isinstance(error.__cause__, (Py4JError, PySparkException)):
        error.__cause__ = None
    error.__suppress_context__ = True
    return error.with_traceback(None)


def not_importable(module: str, *, local: bool) -> str:
    """Return what to do about a module that the driver has and Spark's workers have not."""
    if local:
        return (
            f"module {module!r} can't be imported by Spark's workers: they look along PYTHONPATH and the installed "
            "packages, not in the folder of your script; install it, or add its folder to PYTHONPATH"
        )
    return (
        f"module {module!r} is not installed on the executors: install it there, or send it along with "
        "spark.submit.pyFiles / SparkContext.addPyFile"
    )


def last_line(text: str) -> str:
    """Return the line of a long trace that says what went wrong.

    A Python traceback's last, else the first; or Java's last cause, where the first says that something was waited for.
    """
    lines = _LAST_LINE.findall(text)
    if "Traceback (most recent call last)" in text and lines:
        return str(lines[-1])[:_SHOWN]
    first = " ".join(line.strip() for line in text.splitlines()[:3] if line.strip())
    causes = _CAUSES.findall(text) if "awaitResult" in first else []
    return str((causes or [first])[-1])[:_SHOWN]
