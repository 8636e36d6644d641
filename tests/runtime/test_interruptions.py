"""Exceptions that are no ``Exception``, raised by a bolt: errors of the bolt's like all others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from statefx.errors import BoltError
from statefx.testing import Crash
from statefx.testing.faults import JobFails
from tests.testing.topologies import Driver, lines, witnessed


class Odd(BaseException):
    """As trio and others have them."""


INTERRUPTIONS = [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, SystemExit, Odd]


@pytest.mark.parametrize("kind", INTERRUPTIONS)
@pytest.mark.parametrize("hook", ["open", "initState", "execute", "finishBatch", "prePrepare"])
def test_a_hook_that_raises_one_fails_the_transaction_and_is_named(place: Path, hook: str, kind: Any) -> None:
    with Driver(place) as driver:
        driver.config["failing"] = {hook: [kind("why")]}
        tester = driver.start(witnessed())
        with pytest.raises(BoltError, match=f"hook {hook}, transaction 1: {kind.__name__}: why") as caught:
            tester.send(lines("a"))
        assert (caught.value.component, caught.value.hook) == ("witness", hook)
        assert tester.steps[-1] == "after ROLLED_BACK(1, 0)"


@pytest.mark.parametrize("kind", INTERRUPTIONS)
@pytest.mark.parametrize(("hook", "fault"), [("preCommit", ()), ("preRollback", (JobFails(),))])
def test_a_hook_of_a_phase_that_is_repeated_is_run_again(place: Path, hook: str, fault: Any, kind: Any) -> None:
    with Driver(place) as driver:
        driver.config["failing"] = {hook: [kind("why")]}
        tester = driver.start(witnessed())
        stuck: list[Any] = []
        tester.when("pause", lambda: stuck.append(tester.status["stuck"]))
        tester.send(lines("a"), *fault)
        assert f"hook {hook}, transaction 1: {kind.__name__}: why" in stuck[0]["reason"]
        assert tester.state("witness") == {"seen": 1}


@pytest.mark.parametrize("kind", INTERRUPTIONS)
def test_one_in_close_changes_nothing(place: Path, kind: Any) -> None:
    with Driver(place) as driver:
        driver.config["failing"] = {"close": [kind("why")]}
        tester = driver.start(witnessed())
        tester.send(lines("a"))
        assert tester.state("witness") == {"seen": 1}


def test_a_process_that_dies_in_a_hook_is_no_error_of_the_bolts(place: Path) -> None:
    with Driver(place) as driver:
        driver.config["failing"] = {"execute": [Crash("here")]}
        with pytest.raises(Crash):
            driver.start(witnessed()).send(lines("a"))
