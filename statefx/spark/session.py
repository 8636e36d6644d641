"""What a Spark session must be, and what would make it quicker."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from statefx.errors import ConfigError

logger = logging.getLogger("statefx")

RECOMMENDED = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings of a session that make small transactions cheaper; none changes what is computed."""

_STREAMING = "spark.sql.streaming."

_hinting = threading.Lock()
_hinted = False

_NUMBER = "STATEFX_WORKERS"


def check_session(spark: Any) -> SparkSession:
    """Return `spark` if statefx can run on it.

    Raises
    ------
    ConfigError
        It isn't a session, or it is a Spark Connect one.
    """
    if not isinstance(spark, SparkSession):
        name = f"{type(spark).__module__}.{type(spark).__qualname__}"
        if "connect" in name:
            raise ConfigError(
                "statefx needs a classic SparkSession: Spark Connect has no local properties, job tags of tasks or "
                "RDD-level control. Build the session with .master(...) instead of .remote(...)."
            )
        raise ConfigError(f"submit needs the SparkSession as its second argument, got {name}")
    context = spark.sparkContext._jsc
    if context is None or context.sc().isStopped():
        raise ConfigError("the SparkSession was stopped: build another one, and make the DataFrames with it")
    return spark


def hint(spark: SparkSession, *, streaming: bool) -> None:
    """Say once per process which settings would help; a batch has no use for those of streams."""
    global _hinted
    missing = {
        key: value
        for key, value in RECOMMENDED.items()
        if spark.conf.get(key, None) != value and (streaming or not key.startswith(_STREAMING))
    }
    with _hinting:  # several threads may submit at once
        first, _hinted = not _hinted, _hinted or bool(missing)
    if missing and first:
        settings = " ".join(f'.config("{key}", "{value}")' for key, value in missing.items())
        logger.warning("small transactions get cheaper with these settings on SparkSession.builder: %s", settings)


@contextlib.contextmanager
def worker_program(context: Any, number: int = 0) -> Iterator[None]:
    """Let the functions that are wrapped in the block run as statefx's run; the context is as before afterwards.

    In local mode the workers run the driver's own Python, whatever ``python3`` is on the path, unless PYSPARK_PYTHON
    says otherwise.

    Parameters
    ----------
    context : SparkContext
    number : int
        Spark starts workers through one program for each environment that functions bring along. Another number gives
        them another environment, and so a program of their own.
    """
    chosen = context.pythonExec
    try:
        if is_local(context) and "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable
        if number:
            context.environment[_NUMBER] = str(number)
        yield
    finally:
        context.pythonExec = chosen
        context.environment.pop(_NUMBER, None)


def is_local(context: Any) -> bool:
    """Tell whether the workers run on the driver's machine."""
    return str(context.master).startswith("local")


def clone(spark: SparkSession) -> SparkSession:
    """Return a session with the same settings and catalog whose settings can be changed freely."""
    inner = spark._jsparkSession.cloneSession()
    return SparkSession(spark.sparkContext, inner)


def activate(session: SparkSession) -> None:
    """Make `session` the one whose settings the JVM's thread of this thread goes by.

    Spark does that by itself around what it runs. A part of a plan that is asked for directly is otherwise made by
    Spark's defaults, whatever the user has set.
    """
    jvm: Any = session._jvm
    SparkSession._get_j_spark_session_class(jvm).setActiveSession(session._jsparkSession)


def rebase(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Return `frame` as a DataFrame of `session`."""
    jvm: Any = session.sparkContext._jvm
    plan = frame._jdf.queryExecution().logical()
    inner = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return DataFrame(inner, session)
