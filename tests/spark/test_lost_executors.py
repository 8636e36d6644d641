"""An executor is killed between a shuffle and its readers, on a cluster of two: exact, and the query goes on."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the program says of each of its topologies; it runs them all in one cluster."""
    env = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.losing_executors", str(tmp_path_factory.mktemp("cluster"))],
        cwd=ROOT,
        env={**env, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: found for line in lines for name, found in line.items()}


@pytest.mark.parametrize(
    "name", ["between bolts", "random input", "aggregated input", "cut, in job O", "cut, between the jobs", "spouts"]
)
def test_the_attempt_is_rolled_back_and_the_next_is_exact(told, name):
    assert "error" not in told[name], told[name]["error"]
    assert told[name]["killed"]
    if name in ("cut, in job O", "spouts"):  # job P may have run on the other executor alone: then nothing was lost
        return
    assert told[name]["reasons"], "the attempt was committed although its executor died"
    if name == "random input":  # Spark's own checksums are off: it is for us to notice
        assert told[name]["reasons"][0].startswith("a stage of the job had to be run again")
    if name == "cut, between the jobs":  # nothing of job O ran twice
        assert "saw token" in told[name]["reasons"][-1]
