"""Fixtures that tests of several folders share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parent.parent

# By default an example that takes 200 ms fails: on a machine that does other things too, any does. A test that hangs is
# ended by pytest-timeout.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

# No JVM that tests start lives long enough to be worth the best compiler; without it a start takes a third less.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark() -> Iterator["object"]:
    """The one Spark session of a test run, with the settings that the documentation recommends."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    from statefx.spark.session import RECOMMENDED

    builder = SparkSession.builder.master("local[2]").appName("statefx-tests")
    settings = {
        **RECOMMENDED,
        "spark.ui.enabled": "true",  # a session of another test may have switched it off for the JVM
        "spark.ui.port": "0",  # any that is free: what it shows is tested
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": str(ROOT),  # bolts of test modules are found by their module's name
        "spark.sql.streaming.numRecentProgressUpdates": "10",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
