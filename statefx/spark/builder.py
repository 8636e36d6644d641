"""A Spark session with the settings that statefx is fast with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from statefx.spark.internals import take_own_python
from statefx.spark.session import LOADED_WORKERS, PIPELINED_PYTHON, RECOMMENDED

SLOTS = 32
"""Slots of a local session, which are threads: tasks that wait cost nothing, and those of a run all live at once."""


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
    """
    builder = SparkSession.builder.appName(appName)
    # Spark's bar of stages would be drawn twice a second for as long as tasks live, over what is logged.
    settings: dict[str, Any] = {**RECOMMENDED, PIPELINED_PYTHON: "true", "spark.ui.showConsoleProgress": "false"}
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets it, and knows the master
        # A task is tried more than once: Spark may give one a worker whose connection it has closed.
        master = f"local[{SLOTS},4]"
        # By default as many partitions as slots, for whatever else the session runs.
        settings["spark.default.parallelism"] = str(os.cpu_count() or 1)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local["):
            settings |= LOADED_WORKERS
    for key, value in {**settings, **(config or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    # The workers of LOADED_WORKERS need statefx, which the `python3` on the path may not have.
    take_own_python(spark.sparkContext)
    return spark
