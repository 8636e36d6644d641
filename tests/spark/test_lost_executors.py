"""An executor is killed between a shuffle and its readers, on a cluster of two: exact, and the query goes on."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(1200)]

ROLLED_BACK = ("between bolts", "random input", "shuffled stream")
"""A bolt's executor dies, and with it the attempt."""

STAGED = (
    "random input, staged",
    "random input, shuffled",
    "cached input",
    "cached shuffle",
    "cached shuffle, staged",
    "shuffled stream, staged",
)
"""One dies before its transaction begins."""

UNSURE = ("spouts", "spouts, in each phase")
"""All tasks may have been on the other executor: then nothing was lost."""


@pytest.fixture(scope="module")
def told(request, tmp_path_factory):
    """What the program says of each topology that a test asks for; it runs them all in one cluster."""
    items = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] if hasattr(item, "callspec") else "rescaled" for item in items]
    env = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.losing_executors", str(tmp_path_factory.mktemp("cluster")), *names],
        cwd=ROOT,
        env={**env, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: found for line in lines for name, found in line.items()}


@pytest.mark.parametrize("name", [*ROLLED_BACK, *STAGED, *UNSURE])
def test_what_is_committed_is_exact(told, name):
    assert "error" not in told[name], told[name]["error"]
    assert told[name]["killed"]
    if name in ROLLED_BACK:
        assert told[name]["reasons"], "the attempt was committed although its executor died"


def test_another_executor_gives_keys_to_other_tasks(told):
    assert "error" not in told["rescaled"], told["rescaled"]["error"]
    assert told["rescaled"]["killed"]
