"""The broker that tests run against: it answers, keeps what it has over a SIGKILL, and ends with who started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.spark.running import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.server]


@pytest.mark.soak
def test_it_ends_with_the_process_that_started_it(kafka):
    command = [sys.executable, "-m", "tests.kafka.broker"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        address = started.stdout.readline().split()[3].rstrip(";")
        assert address.startswith("127.0.0.1:")
        listed = subprocess.run(["ps", "-A", "-o", "ppid=,pid="], capture_output=True, text=True, check=True).stdout
        children = [int(line.split()[1]) for line in listed.splitlines() if int(line.split()[0]) == started.pid]
        assert len(children) == 2, "the broker, and who watches over it"
        folders = [os.readlink(f"/proc/{pid}/cwd") for pid in children if Path("/proc").is_dir()]
        started.send_signal(signal.SIGKILL)
        started.wait()
    wait_for(lambda: not any(alive(pid) for pid in children), "the broker to end", 30)
    assert not any("statefx-kafka-" in folder and Path(folder).exists() for folder in folders)


def test_a_script_that_started_it_in_the_background_can_interrupt_it():
    program = "from tests.kafka.broker import until_interrupted; until_interrupted('there')"
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", program]
    with subprocess.Popen(ignoring, cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout.readline() == "there\n"
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 0


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
