"""Drivers that are stopped for real in the middle of a FileSink's start or commit, replaced, and woken up."""

import os
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from statefx.connectors.files import committedFiles
from statefx.testing import TopologyTester
from tests.conftest import ROOT
from tests.sinks.publishing import WORK, topology
from tests.testing.places import place

__all__ = ["place"]
pytestmark = pytest.mark.slow

BOUND_SECS = 60

MOMENTS = [
    # transactions before, what gives the name, the name
    (0, "link", "_statefx/owners/"),
    (0, "link", "_spark_metadata/0"),
    (0, "link", "_statefx/sealed/"),
    (1, "link", "_statefx/owners/0000000002"),
    (1, "rename", "out/part-0000000002-"),
    (1, "link", "_spark_metadata/2"),
    (8, "link", "_spark_metadata/9.compact"),
]


def published(place):
    found = [word for file in committedFiles(place / "out") for word in pq.ParquetFile(file).read()["word"].to_pylist()]
    return sorted(found)


CASES = [
    pytest.param(*moment, when, id=f"{moment[2]}-{when}", marks=[pytest.mark.soak] if (number + 3 * later) % 10 else [])
    for number, moment in enumerate(MOMENTS)
    for later, when in enumerate(["before", "after"])
]
"""`make test` stops a driver at every tenth."""


@pytest.mark.parametrize(("transactions", "call", "name", "when"), CASES)
def test_a_driver_that_is_stopped_and_replaced_publishes_nothing_of_its_own(place, transactions, call, name, when):
    if transactions:
        with TopologyTester(topology(place), place / "ck") as tester:
            tester.run(WORK[:transactions])
    command = [sys.executable, "-m", "tests.sinks.publishing", str(place), call, name, when]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as zombie:
        try:
            _, status = os.waitpid(zombie.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), "it ended before it came to that"
            with TopologyTester(topology(place), place / "ck") as successor:
                successor.run(WORK[:-1])
                zombie.send_signal(signal.SIGCONT)
                assert zombie.communicate(timeout=BOUND_SECS)[0] == "FencedError"
                successor.run(WORK)
                successor.sweep()
        finally:
            zombie.kill()
    assert published(place) == sorted(word for work in WORK for word, _ in work["rows"])
