"""The program of the page "Operating it", started by spark-submit, ended by SIGTERM, and started again."""

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
def start(place):
    """Start the job with spark-submit; what is left of it in the end is killed."""
    job = place / "job.py"
    job.write_text(program((ROOT / "docs" / "operations.md").read_text(encoding="utf-8")), encoding="utf-8")
    started = []

    def started_with(*arguments):
        command = [SUBMIT, "--master", "local[2]", "--conf", "spark.ui.enabled=false", str(job), *map(str, arguments)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        log = (place / f"run-{len(started)}.log").open("w+")
        started.append(
            (subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True), log)
        )
        return started[-1]

    yield started_with
    for process, log in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()


def text_of(log):
    log.seek(0)
    return log.read()


def test_what_sigterm_interrupts_the_next_start_completes(place, start):
    feed(place / "in", **{f"f{number}": LINES for number in range(FILES)})
    process, log = start(place / "in", place / "ck")

    def at_work():
        assert process.poll() is None, text_of(log)
        return (place / "ck" / "transactions").exists() and any(
            record.kind == "PREPARING" and record.txid >= 2 for record in records(place / "ck")
        )

    wait_for(at_work, "the second transaction")
    process.terminate()
    assert process.wait(BOUND_SECS) == 128 + signal.SIGTERM, text_of(log)

    process, log = start(place / "in", place / "ck", "once")
    assert process.wait(BOUND_SECS) == 0, text_of(log)
    assert "recovered: [" in text_of(log)
    words = " ".join(LINES).split()
    assert state(place / "ck", "count") == {word: FILES * words.count(word) for word in words}
