"""What a script with a mistake leaves on the terminal: the user's own lines, last and unburied."""

import logging
import os
import re
import subprocess
import sys
import traceback

import pytest

from statefx import submit
from statefx.errors import ConfigError
from tests.conftest import ROOT
from tests.spark.bolts import word_count

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def told(place, mistake, code):
    """Run a script; return what it wrote to stderr after each query that it submitted, and before the next one."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.scripts", mistake, str(place)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, done.stderr[-3000:]
    _, *parts = re.split(r"\w+ submitted\n", done.stderr)
    return [part.replace("\r", "\n").splitlines() for part in parts]


TRACEBACK = [
    "Traceback (most recent call last):",
    ", in execute",
    "self.divide(tup.n)",
    ", in divide",
    "return 1 / n",
    "~~^~~",
    "ZeroDivisionError: division by zero",
]


def shows(lines, expected):
    """Whether the lines end as expected, one after the other, somewhere."""
    for start in range(len(lines)):
        if all(line.endswith(end) for line, end in zip(lines[start:], expected, strict=False)):
            return len(lines) - start >= len(expected)
    return False


@pytest.mark.soak
def test_the_users_traceback_is_shown_and_spark_s_is_not(place):
    (lines,) = told(place, "waiting", 1)
    assert shows(lines, TRACEBACK)
    assert lines[-1].startswith("statefx.errors.BoltError: bolt 'divide', task "), "\n".join(lines)
    assert re.search(r"scripts\.py:\d+, in divide\)$", lines[-1])
    assert [line for line in lines if line.startswith("\tat ")] == []
    assert len(lines) < 45


@pytest.mark.soak
def test_an_error_that_nobody_waits_for_is_logged_and_the_end_of_the_script_while_a_query_runs(place):
    failed, ended = told(place, "not waiting", 0)
    assert any(line.startswith("query zero ended: BoltError: bolt ") for line in failed)
    assert shows(failed, TRACEBACK)
    assert [line for line in ended if line.startswith("query 'sound' was running when the script ended")]


def test_a_refusal_has_the_user_s_line_above_it_and_no_frames_of_ours_but_one(spark, place, caplog):
    topology = word_count(spark.createDataFrame([("a",)], "value string"))
    with caplog.at_level(logging.DEBUG, "statefx"), pytest.raises(ConfigError, match="names a file system") as caught:
        submit(topology, spark, "hdfs://host/checkpoint")
    frames = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [os.path.basename(each) for each in frames] == ["test_scripts.py", "submit.py"]
    (logged,) = [record for record in caplog.records if record.exc_info]
    # Not `caplog.text`: PySpark's own logger has pytest's handler write JSON once a test has used it.
    functions = [frame.name for frame in traceback.extract_tb(logged.exc_info[2])]
    assert "local_path" in functions, "whoever looks for a defect finds the others there"
