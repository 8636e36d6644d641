"""Inputs that no second attempt can read: after a failure another one is called for, within bounds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from statefx.coordinator.retrying import JobFailedError, RenewInputError, backoff_secs
from statefx.errors import AttemptsExhaustedError, FailedException, TransactionTimeoutError
from statefx.testing import TopologyTester
from statefx.testing.faults import Fault, JobFails
from tests.testing.living import LivingTester
from tests.testing.topologies import Driver, lines, witnessed


@pytest.fixture
def driver(place: Path) -> Iterator[Driver]:
    with Driver(place) as driver:
        driver.config["topology.transaction.attempts.max"] = 3
        yield driver


def feed(tester: TopologyTester, *faults: Fault) -> int:
    """Bring an input, as the feed of a stream does; return the attempt that was committed."""
    tester.inject(*faults)
    batch = tester._batch(lines("a"))._replace(renews=lambda failure: True)
    return tester._coordinator.transact(batch).attempt


def test_tries_are_counted_over_all_inputs_of_a_transaction(driver: Driver) -> None:
    tester = driver.start(witnessed())
    for n in range(2):
        with pytest.raises(RenewInputError, match="the executor was lost"):
            feed(tester, JobFails())
        assert tester.steps[-1] == f"after ROLLED_BACK(1, {n})"
    with pytest.raises(AttemptsExhaustedError, match=r"failed 3 times.*last: no heartbeat") as caught:
        feed(tester, JobFails(reason="no heartbeat"))
    assert caught.value.attempts == 3
    assert isinstance(caught.value.__cause__, JobFailedError)
    assert tester.pauses == [], "the feed waits, once its query has ended"


def test_the_next_transaction_begins_to_count_anew(driver: Driver) -> None:
    tester = driver.start(witnessed())
    for _ in range(3):
        for _ in range(2):
            with pytest.raises(RenewInputError):
                feed(tester, JobFails())
        assert feed(tester) == 2
    assert tester.state("witness") == {"seen": 3}


def test_a_verdict_too_calls_for_another_input(driver: Driver) -> None:
    driver.config["failing"] = {"execute": [FailedException("the feed is stale")]}
    tester = driver.start(witnessed())
    with pytest.raises(RenewInputError, match="the feed is stale") as caught:
        feed(tester)
    assert (caught.value.component, caught.value.task) == ("witness", 0)
    assert feed(tester) == 1
    assert tester.state("witness") == {"seen": 1}


def test_a_timeout_stays_one(driver: Driver) -> None:
    with LivingTester(witnessed(), driver.folder, driver.config, seed=0) as tester:
        for n in range(3):
            tester.when("before prepare witness/0 for 1", tester.time_out)
            expected = RenewInputError if n < 2 else TransactionTimeoutError
            with pytest.raises(expected, match="it took longer than") as caught:
                feed(tester)
            assert caught.value.timeout


def test_the_pause_has_a_bound_however_often_a_commit_fails() -> None:
    assert [backoff_secs(tries) for tries in (1, 2, 3, 8, 5000)] == [0.1, 0.2, 0.4, 10.0, 10.0]
    assert [backoff_secs(tries, 60.0) for tries in (1, 5000)] == [60.0, 60.0], "a longer first one is kept"
    assert backoff_secs(5000, 0.0) == 0.0
