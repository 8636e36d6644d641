"""What a Spark session must be, and what would make it quicker."""

from __future__ import annotations

import logging
import re
from typing import Any

from pyspark.sql import SparkSession

from statefx.errors import ConfigError
from statefx.spark.internals import is_stopped

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

LOADED_WORKERS = {"spark.python.daemon.module": "statefx.spark.daemon"}
"""Has Python workers forked from a program that has loaded what they need. For sessions whose workers find statefx
before they run anything: not those that get it as ``--py-files``."""

LEAST_VERSION = 4, 3
"""Of Spark: earlier ones have no pipelined shuffle."""

_STREAMING = "spark.sql.streaming."

_hinted = False


def check_session(spark: Any, caller: str = "submit") -> SparkSession:
    """Return `spark` if statefx can run on it; refuse what is no session, or one of Spark Connect."""
    if not isinstance(spark, SparkSession):
        name = f"{type(spark).__module__}.{type(spark).__qualname__}"
        if "connect" in name:
            raise ConfigError(
                "statefx needs a classic SparkSession: Spark Connect has no local properties, job tags of tasks or "
                "RDD-level control. Build the session with .master(...) instead of .remote(...)."
            )
        raise ConfigError(f"{caller} needs the SparkSession, got {name}")
    if tuple(map(int, spark.version.split(".")[:2])) < LEAST_VERSION:
        raise ConfigError(
            f"statefx needs Spark 4.3 or later, and this session's is {spark.version}: if pyspark is newer, SPARK_HOME "
            "names an older Spark"
        )
    if is_stopped(spark.sparkContext):
        raise ConfigError("the SparkSession was stopped: build another one, and make the DataFrames with it")
    return spark


def hint(spark: SparkSession, *, streaming: bool) -> None:
    """Say once per process which settings would help; a batch has no use for those of streams."""
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
    """Tell whether tasks run in the driver's own JVM; ``local-cluster`` has executors, which come and are lost."""
    return re.match(r"local($|\[)", str(context.master)) is not None
