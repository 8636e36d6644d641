"""Spark sessions: checks, hints, and one with all recommended settings."""

from __future__ import annotations

import glob
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from statefx.errors import ConfigError
from statefx.spark import is_too_old
from statefx.spark.internals import is_stopped, take_own_python

logger = logging.getLogger("statefx")


RECOMMENDED = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings of a session that make small transactions cheaper; none changes what is computed."""

PIPELINED_PYTHON = "spark.python.udf.pipelined.enabled"
"""Has Python workers take and give rows at the same time, which a topology needs from three levels on."""

DAEMON = "spark.python.daemon.module"

LOADED_WORKERS = {DAEMON: "statefx.spark.daemon"}
"""Has Python workers forked from a program that has loaded what they need. For sessions whose workers find statefx
before they run anything: not those that get it as ``--py-files``."""

_CLASSIC = (
    "statefx needs a classic SparkSession: Spark Connect has no local properties, job tags of tasks or RDD-level "
    "control"
)

_LEAST_JAVA = 17

_STREAMING = "spark.sql.streaming."

_hinted = False


def check_session(spark: Any, caller: str = "submit") -> SparkSession:
    """Return `spark` if statefx can run on it; refuse what is no session, or one of Spark Connect."""
    if not isinstance(spark, SparkSession):
        name = f"{type(spark).__module__}.{type(spark).__qualname__}"
        if "connect" in name:
            raise ConfigError(
                f"{_CLASSIC}. Build the session with .master(...) instead of .remote(...), in a new process"
            )
        raise ConfigError(f"{caller} needs the SparkSession, got {name}")
    if is_too_old(spark.version):
        raise ConfigError(
            f"statefx needs Spark 4.3 or later, and this session's is {spark.version}: if pyspark is newer, SPARK_HOME "
            "names an older Spark"
        )
    if is_stopped(spark.sparkContext):
        raise ConfigError("the SparkSession was stopped: build another one, and make the DataFrames with it")
    return spark


def hint(spark: SparkSession, *, streaming: bool) -> None:
    """Log once per process which settings would help; a batch has no use for those of streams."""
    global _hinted  # noqa: PLW0603 - once per process
    missing = {
        key: value
        for key, value in RECOMMENDED.items()
        if spark.conf.get(key, None) != value and (streaming or not key.startswith(_STREAMING))
    }
    if missing and not _hinted:
        _hinted = True
        settings = " ".join(f'.config("{key}", "{value}")' for key, value in missing.items())
        logger.warning(
            "small transactions get cheaper with these settings on SparkSession.builder, or with statefx.session(): %s",
            settings,
        )


def is_local(context: Any) -> bool:
    """Return whether tasks run in the driver's own JVM; ``local-cluster`` has executors, which come and are lost."""
    return re.match(r"local($|\[)", str(context.master)) is not None


SLOTS = 32
"""Slots of a local session, which are threads: tasks that wait cost nothing, and those of a run all live at once."""


def local_master(slots: int = SLOTS) -> str:
    """Return a master with so many slots, or with `SLOTS`."""
    # A task is tried more than once: Spark may give one a worker whose connection it has closed.
    return f"local[{max(slots, SLOTS)},4]"


def is_submitted() -> bool:
    """Return whether spark-submit runs this program, and has chosen a master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def session(
    appName: str = "statefx", master: str | None = None, config: Mapping[str, Any] | None = None
) -> SparkSession:
    """Build the Spark session of a program, or return the one that runs.

    Parameters
    ----------
    appName : str
        What Spark's UI calls it.
    master : str, optional
        As for ``SparkSession.builder.master``. By default that of spark-submit; without it ``local[32,4]``: 32 tasks of
        Spark at a time on this machine. These are threads, of which most wait; they need no cores of their own.
    config : Mapping, optional
        Further settings of Spark; they overrule those that are set here.

    Returns
    -------
    SparkSession
        With rows between the JVM and Python on Unix sockets, Python workers that take and give rows at the same time
        (topologies of three levels and more need it), and checkpoints of streams that are written with one
        file operation; without Spark's bar of stages, which a job that lives would show for ever; in local mode with
        Python workers that run the driver's own Python, unless PYSPARK_PYTHON says otherwise, and have everything
        loaded when they are forked. If a session runs already, those of its
        settings stay that can't be changed while it does.

    Examples
    --------
    ::

        spark = statefx.session("payments")
        query = statefx.submit(topology, spark, "checkpoints/payments")

    Raises
    ------
    ConfigError
        The environment names Spark Connect, or a Spark or a Java that is too old.
    """
    _check_environment()
    builder = SparkSession.builder.appName(appName)
    # Spark's bar of stages would be drawn twice a second for as long as tasks live, over what is logged.
    settings: dict[str, Any] = {**RECOMMENDED, PIPELINED_PYTHON: "true", "spark.ui.showConsoleProgress": "false"}
    settings["spark.api.mode"] = "classic"  # else SPARK_API_MODE may ask for Spark Connect
    if master is None and not is_submitted():
        master = local_master()
        # By default as many partitions as slots, for whatever else the session runs.
        settings["spark.default.parallelism"] = str(os.cpu_count() or 1)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local["):
            settings |= LOADED_WORKERS
    for key, value in {**settings, **(config or {})}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        problem = _java_problem() if error.getCondition() == "JAVA_GATEWAY_EXITED" else ""
        if not problem:
            raise
        raise ConfigError(
            f"Spark's JVM did not start. It needs Java {_LEAST_JAVA} or later, and {problem}: install one, and set "
            "JAVA_HOME to its folder"
        ) from error
    # The workers of LOADED_WORKERS need statefx, which the `python3` on the path may not have.
    take_own_python(spark.sparkContext)
    return spark


def _check_environment() -> None:
    """Refuse an environment in which Spark would start what statefx can't use, and say less of it."""
    if names := [name for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED") if name in os.environ]:
        raise ConfigError(f"{_CLASSIC}. This process is set to it: start a new one without {' and '.join(names)}")
    home = os.environ.get("SPARK_HOME", "")
    for jar in glob.glob(f"{glob.escape(home)}/jars/spark-core_*.jar") if home else ():
        version = re.sub(r"^spark-core_[^-]*-|\.jar$", "", os.path.basename(jar))
        if is_too_old(version):
            raise ConfigError(
                f"statefx needs Spark 4.3 or later, and SPARK_HOME names {version} in {home}: unset SPARK_HOME"
            )


def _java_problem() -> str:
    """Say what is wrong with the Java that Spark's scripts run; empty: it is none that a version tells."""
    home = os.environ.get("JAVA_HOME")
    program = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if program is None:
        return "there is no java on PATH, and no JAVA_HOME"
    what = f"{home} (JAVA_HOME)" if home else program
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        said = ""
    version = re.search(r'version "(?:1\.)?(\d+)', said)  # Java 8 calls itself 1.8
    if version is None:
        return f"{what} has none that runs"
    return f"{what} is {version[1]}" if int(version[1]) < _LEAST_JAVA else ""
