"""Drivers as processes of their own, for tests that kill or stop them, and the one that plays what nobody kills."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from statefx.connectors.files import committedFiles
from statefx.errors import CheckpointError
from statefx.log.log import read_state
from statefx.protocol.log_state import LogState
from statefx.storage import storage_at
from tests.conftest import ROOT
from tests.spark.bolts import recount
from tests.spark.counting import ONCE
from tests.spark.running import wait_for

FILES = {name: [f"{name} b c {number % 7}" for number in range(40)] for name in "abcdef"}
EXPECTED = recount(line for lines in FILES.values() for line in lines)
ON = {"processingTime": "0 seconds"}


ENVIRONMENT = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


class Player:
    """The process of `tests.spark.playing`: it starts with the first play, and again behind one that failed."""

    def __init__(self, folder):
        self._log = folder / "log"
        self._process = None

    def play(self, program, work, provider="rocksdb", trigger=ONCE, more=None, **options):
        """Have a topology run to its end; return what the program tells."""
        return self.ask(program, work=str(work), provider=provider, options=options, trigger=trigger, **(more or {}))

    def ask(self, program, **settings):
        process, self._process = self._process or self._started(), None  # who is interrupted leaves none to the next
        try:
            process.stdin.write(json.dumps({"program": program, "settings": settings}) + "\n")
            process.stdin.flush()
            said = {}
            while not said.pop("played", False):
                line = process.stdout.readline()
                assert line, f"the process has ended:\n{self._log.read_text(encoding='utf-8')[-3000:]}"
                said |= json.loads(line) if line.startswith("{") else {}
            assert "failed" not in said, said["failed"]
        except BaseException:
            end(process)
            raise
        self._process = process
        return said

    def _started(self):
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.playing"],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,
                text=True,
            )

    def close(self):
        if self._process is not None:
            end(self._process)


def end(process):
    """SIGKILL for a process, its JVM and its workers."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


class Driver:
    """One start of a topology in `work`: the word count, or what another `program` makes of the settings."""

    def __init__(self, work, provider="memory", trigger=ONCE, program="tests.spark.counting", more=None, **options):
        settings = {"work": str(work), "provider": provider, "options": options, "trigger": trigger, **(more or {})}
        self.work = Path(work)
        self.location = settings.get("location", str(self.work / "ck"))
        self.output = self.work / f"output-{len(list(self.work.glob('output-*')))}"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", program, json.dumps(settings)],
                cwd=ROOT,
                env={
                    **os.environ,
                    **ENVIRONMENT,
                    "PYTHONFAULTHANDLER": "1",  # for `_threads`
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    @property
    def said(self):
        """The JSON lines that it printed."""
        lines = self.output.read_text(encoding="utf-8").splitlines()
        return {key: value for line in lines if line.startswith("{") for key, value in json.loads(line).items()}

    def wait_until(self, condition, what):
        """Wait for what the log shall say, for as long as the process lives."""

        def holds():
            assert self.process.poll() is None, f"ended before {what}:\n{self.output.read_text()[-3000:]}"
            return condition(log_at(self.location))

        wait_for(holds, what)

    def kill(self):
        """SIGKILL for the driver and its JVM; return what the log says was under way."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return self._under_way

    def stop(self):
        """SIGSTOP for the driver, its JVM and its workers; return what the log says is under way."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        return self._under_way

    @property
    def _under_way(self):
        found = log_at(self.location).in_flight
        return (str(found[0].phase), found[0].txid) if found else None

    def go_on(self):
        """SIGCONT."""
        os.killpg(self.process.pid, signal.SIGCONT)

    def end(self, code=0, bound_secs=120):
        try:
            ended = self.process.wait(bound_secs)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not ended after {bound_secs} s:\n{self._threads()}")
        assert ended == code, self.output.read_text()[-3000:]
        return self.said

    def _threads(self):
        """What all threads of the JVM and of the driver are doing, which ends the driver."""
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["pkill", "-QUIT", "-g", str(self.process.pid), "java"], check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)  # the JVM writes meanwhile
        self.process.send_signal(signal.SIGABRT)
        self.process.wait(10)
        return self.output.read_text(encoding="utf-8")


def log_of(work):
    return log_at(str(work / "ck"))


def log_at(location):
    try:
        return read_state(storage_at(location))
    except CheckpointError:
        return LogState()


def published(work):
    """How often each word was published by the driver's FileSink."""
    files = committedFiles(work / "out")
    return dict(Counter(word for file in files for word in pq.ParquetFile(file).read()["word"].to_pylist()))


def hold(work, phase, generation):
    (work / f"hold-{phase}").write_text(str(generation), encoding="ascii")


def under_way(phase, generation):
    return lambda log: log.generation == generation and any(str(one.phase) == phase for one in log.in_flight)
