"""The example of rules that change is run as a newcomer runs it; `make soak` kills it more often."""

import re

import pytest

from tests.examples.test_examples import run


@pytest.mark.slow
@pytest.mark.parametrize("kills", [0, pytest.param(10, marks=pytest.mark.soak)])
def test_payments_are_judged_by_the_rules_of_their_transaction(kafka, tmp_path, kills):
    arguments = (kafka.address, "--kills", str(kills), "--seed", str(kills))
    lines = run("fraud_rules.py", *arguments, folder=tmp_path, timeout_secs=150 + 60 * kills).splitlines()
    assert [line for line in lines if line.startswith("start")] == [
        *(f"start {number}: exit code -9" for number in range(1, kills + 1)),
        f"start {kills + 1}: exit code 0",
    ]
    assert lines[-1] == "exact: each payment is decided once, by the rules of its transaction"
    payments, refused, _ = map(int, re.findall(r"\d+", lines[-2]))
    assert 0 < refused < payments, "else it would show little"
