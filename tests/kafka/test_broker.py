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


def test_what_is_written_outlives_a_sigkill(kafka):
    topic = kafka.topic()
    kafka.send(topic, b"to be")
    kafka.transact(topic, b"or not", commit=False)
    kafka.transact(topic, b"to be")
    kafka.settle(topic)
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


def test_where_it_can_not_be_had_the_last_lines_say_how_many_tests_were_skipped_and_why(tmp_path):
    (tmp_path / ".ivy2").mkdir()
    nowhere = '<ibiblio name="none" m2compatible="true" root="http://127.0.0.1:1/"/>'
    settings = f'<settings defaultResolver="none"/><resolvers>{nowhere}</resolvers>'
    (tmp_path / ".ivy2" / "ivysettings.xml").write_text(f"<ivysettings>{settings}</ivysettings>")
    env = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    chosen = ["tests/kafka/test_broker.py", "-k", "sigkill or ends"]
    command = [sys.executable, "-m", "pytest", "-q", *chosen]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    *_, told, counted = done.stdout.splitlines()
    assert told.startswith(
        "2 tests of Kafka were skipped; there is no Kafka: org.apache.kafka kafka_2.13 4.3.1 can't be"
    )
    assert "Connection refused" in told
    assert counted.startswith("2 skipped")
