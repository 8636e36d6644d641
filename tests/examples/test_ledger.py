"""The ledgers are killed at random, and come out exact; `make soak` kills them more often."""

import re
import sys

import pytest

from tests.examples.test_examples import run

pytestmark = pytest.mark.slow

EXACT = "exact: each transfer once, no money made or lost, no account below zero"
STATES = ["GENERATION", "PREPARING", "COMMITTING", "COMMITTED", "ROLLED_BACK", "CHECKPOINT"]


def hits(said):
    """How often the ledger was killed in each state of its log."""
    return {state: int(times) for state, times in re.findall(r"^  ([A-Z_]+) +(\d+) times$", said, re.MULTILINE)}


@pytest.mark.parametrize(
    ("program", "kills"), [pytest.param("ledger.py", 0, marks=pytest.mark.spark), ("ledger_plain.py", 3)]
)
def test_a_ledger_is_exact_however_often_it_is_killed(tmp_path, program, kills):
    said = run(program, "--kills", str(kills), folder=tmp_path)
    assert EXACT in said.splitlines(), said
    assert sum(hits(said).values()) == kills, said
    assert re.search(r"^[1-9]\d* transfers applied, [1-9]\d* refused", said, re.MULTILINE), said


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("program", "kills", "each"), [("ledger.py", 40, 2), ("ledger_plain.py", 160, 10)])
def test_a_ledger_that_is_killed_in_every_state_of_its_log(tmp_path, program, kills, each):
    said = run(program, "--kills", str(kills), "--each", str(each), folder=tmp_path, timeout_secs=3600)
    sys.stdout.write(said)  # the table, which `make soak` shows
    assert EXACT in said.splitlines(), said
    found = hits(said)
    assert sum(found.values()) >= kills
    assert min(found.get(state, 0) for state in STATES) >= each, said
