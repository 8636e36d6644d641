"""The broker that tests run against: it answers, keeps what it has over a SIGKILL, and ends with who started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.spark.running import wait_for

pytestmark = pytest.mark.slow


def test_what_is_written_outlives_a_sigkill(kafka):
    topic = kafka.topic()
    kafka.send(topic, b"to be")
    kafka.transact(topic, b"or not", commit=False)
    kafka.transact(topic, b"to be")
    kafka.restart()
    assert kafka.read(topic, 2) == [b"to be", b"to be"]


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


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
