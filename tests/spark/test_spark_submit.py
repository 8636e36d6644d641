"""The program of the page "Operating it", started by spark-submit, ended by SIGTERM, and run again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.docs.test_code_blocks import ROOT, program
from tests.spark.running import BOUND_SECS, feed, records, state, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.spark]

SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
LINES = [f"{number % 7} {number % 11}" for number in range(200)]
FILES = 8


@pytest.fixture
def started(place):
    """The job, started with spark-submit, and its log; what is left of it in the end is killed."""
    feed(place / "in", **{f"f{number}": LINES for number in range(FILES)})
    job = place / "job.py"
    job.write_text(program((ROOT / "docs" / "operations.md").read_text(encoding="utf-8")), encoding="utf-8")
    command = [SUBMIT, "--master", "local[4]", "--conf", "spark.ui.enabled=false", job, place / "in", place / "ck"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (place / "run.log").open("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        yield process, log
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def text_of(log):
    log.seek(0)
    return log.read()


@pytest.mark.soak
def test_what_sigterm_interrupts_the_next_start_completes(place, started, programs):
    process, log = started

    def at_work():
        assert process.poll() is None, text_of(log)
        return (place / "ck" / "transactions").exists() and any(
            record.kind == "PREPARING" and record.txid >= 2 for record in records(place / "ck")
        )

    wait_for(at_work, "the second transaction")
    process.terminate()
    assert process.wait(BOUND_SECS) == 128 + signal.SIGTERM, text_of(log)

    again = programs.run(place / "job.py", place / "in", place / "ck", "once")
    assert again["failure"] is None, again["failure"]
    assert again["stdout"].startswith("recovered: [")
    words = " ".join(LINES).split()
    assert state(place / "ck", "count") == {word: FILES * words.count(word) for word in words}
