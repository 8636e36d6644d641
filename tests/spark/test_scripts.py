"""What a script with a mistake leaves on the terminal: the user's own lines, last and unburied."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


def told(place, mistake, code):
    """Run a script; return what it wrote to stderr after its query was submitted."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.scripts", mistake, str(place / "ck")],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done.stderr.partition("submitted\n")[2].replace("\r", "\n").splitlines()


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


def test_the_users_traceback_is_shown_and_spark_s_is_not(place):
    lines = told(place, "failing", 1)
    assert shows(lines, TRACEBACK)
    assert lines[-1].startswith("statefx.errors.BoltError: bolt 'divide', task ")
    assert re.search(r"scripts\.py:\d+, in divide\)$", lines[-1])
    assert [line for line in lines if line.startswith("\tat ")] == []
    assert len(lines) < 45


def test_an_error_that_nobody_waits_for_is_logged(place):
    lines = told(place, "failing unheard", 0)
    assert any(line.startswith("query zero ended: BoltError: bolt ") for line in lines)
    assert shows(lines, TRACEBACK)


def test_a_script_that_ends_while_its_query_runs_is_told(place):
    lines = told(place, "not waiting", 0)
    assert [line for line in lines if line.startswith("query 'zero' was running when the script ended")]
