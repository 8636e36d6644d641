"""The ledgers are killed at random, and come out exact; `make soak` kills them more often."""

import random
import re
import sys

import pytest

from tests.examples.test_examples import EXAMPLES, run, told

pytestmark = pytest.mark.slow

EXACT = "exact: each transfer once, no money made or lost, no account below zero"
STATES = ["GENERATION", "PREPARING", "COMMITTING", "COMMITTED", "ROLLED_BACK", "CHECKPOINT"]


def hits(said):
    """How often the ledger was killed in each state of its log."""
    return {state: int(times) for state, times in re.findall(r"^  ([A-Z_]+) +(\d+) times$", said, re.MULTILINE)}


def test_a_ledger_without_spark_is_exact_however_often_it_is_killed(tmp_path):
    said = run("ledger_plain.py", "--kills", "3", folder=tmp_path)
    assert EXACT in said.splitlines(), said
    assert sum(hits(said).values()) == 3, said
    assert re.search(r"^[1-9]\d* transfers applied, [1-9]\d* refused", said, re.MULTILINE), said


def test_a_ledger_is_exact(programs, tmp_path, monkeypatch):
    """What the demo starts and kills."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import ledger_kills
    import ledger_rules

    ledger = ledger_kills.Killed(tmp_path, "ledger.py", random.Random(0))
    ledger.feed()
    (tmp_path / "end").touch()
    told(programs, "ledger.py", tmp_path)
    wrong, applied, refused = ledger_rules.check(tmp_path)
    assert not any(wrong.values())
    assert applied
    assert refused
    ledger.look()


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
