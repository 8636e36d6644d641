"""The example of rules that change: its topology here, and `make soak` runs and kills it as a newcomer does."""

import random
import re
import runpy

import pytest

from statefx.testing import TopologyTester
from tests.examples.test_examples import EXAMPLES, run

ROUNDS = 5


@pytest.mark.soak
@pytest.mark.slow
def test_payments_are_judged_by_rules_of_their_transaction(kafka, tmp_path):
    example = runpy.run_path(str(EXAMPLES / "fraud_rules.py"))
    topics = {name: kafka.topic(partitions) for name, partitions in example["PARTITIONS"].items()}
    writer = example["Writer"](kafka.address, topics, random.Random(0))
    made = example["topology"](kafka.address, topics)
    for _ in range(ROUNDS):
        with TopologyTester(made, tmp_path, example["CONFIG"]) as tester:
            writer.write()
            tester.drain()
    decisions = example["consumed"](kafka.address, topics["decisions"])
    assert example["recount"](writer.payments, writer.rules, decisions) == []
    refused = sum(bool(decision["refused_by"]) for some in decisions.values() for decision in some)
    assert 0 < refused < len(writer.payments), "else it would show little"


@pytest.mark.soak
def test_payments_are_exact_whenever_the_driver_is_killed(kafka, tmp_path):
    kills = 10
    arguments = (kafka.address, "--kills", str(kills), "--seed", str(kills))
    lines = run("fraud_rules.py", *arguments, folder=tmp_path, timeout_secs=150 + 60 * kills).splitlines()
    assert [line for line in lines if line.startswith("start")] == [
        *(f"start {number}: exit code -9" for number in range(1, kills + 1)),
        f"start {kills + 1}: exit code 0",
    ]
    assert lines[-1] == "exact: each payment is decided once, by the rules of its transaction"
    payments, refused, _ = map(int, re.findall(r"\d+", lines[-2]))
    assert 0 < refused < payments, "else it would show little"
