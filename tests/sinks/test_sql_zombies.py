"""Drivers of whole topologies that are stopped in the middle of publishing to PostgreSQL, replaced, and woken up."""

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from statefx.testing import TopologyTester
from tests.conftest import ROOT
from tests.sinks.sql_publishing import WORK, topology
from tests.testing.topologies import words

pytestmark = pytest.mark.slow

BOUND_SECS = 60


@pytest.mark.parametrize(("moment", "sink"), [("COMMIT", 1), pytest.param("UPDATE", 2, marks=pytest.mark.soak)])
def test_a_driver_that_is_stopped_while_it_publishes_and_is_replaced_adds_nothing(
    postgres_database, tmp_path, moment, sink
):
    url, checkpoint = postgres_database.url, tmp_path / "ck"
    command = [sys.executable, "-m", "tests.sinks.sql_publishing", url, str(checkpoint), moment, str(sink)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as zombie:
        try:
            _, status = os.waitpid(zombie.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), "it ended before it came to that"
            with TopologyTester(topology(url), checkpoint) as successor:
                assert successor.txid == 2  # it was decided, and the start has published it
                successor.run(WORK[:-1])
                zombie.send_signal(signal.SIGCONT)
                assert zombie.communicate(timeout=BOUND_SECS)[0] == "FencedError"
                successor.run(WORK)
                assert successor.state("count") == words(WORK)
        finally:
            zombie.kill()
    history = postgres_database.run("select word, count from history")
    assert Counter(history) == Counter((word, n + 1) for word, count in words(WORK).items() for n in range(count))
    assert dict(postgres_database.run("select word, count from totals")) == words(WORK)
