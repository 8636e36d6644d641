"""The example of Kafka is run as a newcomer runs it; `make soak` kills it more often."""

import pytest

from tests.examples.test_examples import run


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("kills", [0, pytest.param(12, marks=pytest.mark.soak)])
def test_payments_are_exact_whenever_the_driver_is_killed(kafka, tmp_path, kills):
    arguments = (kafka.address, "--kills", str(kills), "--seed", str(kills))
    lines = run("kafka_payments.py", *arguments, folder=tmp_path, timeout_secs=150 + 60 * kills).splitlines()
    assert [line for line in lines if line.startswith("start")] == [
        *(f"start {number}: exit code -9" for number in range(1, kills + 1)),
        f"start {kills + 1}: exit code 0",
    ]
    assert lines[-1] == "exact: each payment is in the totals once, and in its order"
