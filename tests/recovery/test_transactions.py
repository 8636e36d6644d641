"""`transactions` lists what the log tells, after a crash at any step and beside a driver at work."""

from contextlib import suppress
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from statefx import FailedException, TopologyBuilder, committedFiles, transactions
from statefx.coordinator.entries import FOLDER
from statefx.errors import CheckpointError, CheckpointFormatError, ConfigError
from statefx.testing import rows
from statefx.testing.crashes import crashes
from statefx.testing.faults import HooksFail, JobFails
from statefx.testing.steps import DurableSteps
from statefx.testing.tester import TopologyTester
from tests.testing.places import place
from tests.testing.topologies import SMALL, Count, Driver, archived, lines, totals

__all__ = ["place"]

WORK = [lines("to be or", "not to be"), lines("that is")]


def names(folder: Path) -> list[tuple[int, int, str]]:
    return [(each.txid, each.attempt, each.state) for each in transactions(folder)]


@pytest.mark.slow
def test_a_crash_at_any_step_leaves_what_a_list_tells(place: Path) -> None:
    seen, topology = set(), archived(place / "out")
    (place / "out").mkdir()
    with Driver(place) as driver:

        def life(steps: DurableSteps | None = None, cache: Path = place / "cache") -> None:
            with driver.start(topology, steps=steps, limits=SMALL, cache=cache) as tester:
                tester.run(WORK)

        for point in crashes(place, life):
            left = []
            with suppress(CheckpointError):
                left = transactions(driver.folder)
            life(cache=point.cache)
            check_listed(left, transactions(driver.folder), seen)
    assert seen == {"PREPARING", "COMMITTING", "COMMITTED"}


def check_listed(left: list[Any], found: list[Any], seen: set[str]) -> None:
    """What a crash has left is told as it was, but for the last one, which the next driver has ended."""
    assert [each.txid for each in found if each.state == "COMMITTED"] == [1, 2]
    assert found[: len(left[:-1])] == left[:-1]
    for before, after in zip(left[-1:], found[len(left[:-1]) :], strict=False):
        seen.add(before.state)
        ends = {"PREPARING": "ROLLED_BACK", "COMMITTING": "COMMITTED"}
        assert after.state == ends.get(before.state, before.state)
        assert (after.txid, after.attempt, after.generation) == (before.txid, before.attempt, 1)
        assert (after.reason == "found under way at start") == (before.state == "PREPARING")


def test_rows_bytes_times_and_reasons(place: Path) -> None:
    (place / "out").mkdir()
    with Driver(place) as driver:
        tester = driver.start(archived(place / "out"))
        tester.send(WORK[0], JobFails(reason="the executor is lost"))
        tester.send(lines())
        failed, first, empty = transactions(driver.folder)
    assert (failed.state, failed.attempt, failed.committing_ms, failed.input_rows) == ("ROLLED_BACK", 0, None, 0)
    assert "the executor is lost" in failed.reason
    assert (first.state, first.attempt, first.input_rows, first.output_rows, first.reason) == ("COMMITTED", 1, 2, 6, "")
    assert first.sinks["out"]["rows"] == 6
    assert first.sinks["out"]["bytes"] == sum(Path(file).stat().st_size for file in committedFiles(place / "out"))
    assert empty.sinks == {"out": {"rows": 0, "bytes": 0}}
    assert first.state_bytes > 0
    assert first.prepared_ms <= first.committing_ms <= first.ended_ms
    assert first.secs == (first.ended_ms - first.prepared_ms) / 1000
    with pytest.raises(FrozenInstanceError):
        first.state = "lost"


def test_one_line_says_what_a_transaction_is(place: Path) -> None:
    (place / "out").mkdir()
    with Driver(place) as driver:
        driver.start(archived(place / "out")).send(WORK[0], JobFails(reason="the executor is lost"))
        shown = list(map(repr, transactions(driver.folder)))
    assert shown[0].startswith("<Transaction 1, attempt 0, generation 1: ROLLED_BACK 20")
    assert "the executor is lost" in shown[0]
    assert shown[1].endswith("Z, 2 rows in, 6 out, 6 to out>")


def test_beside_a_driver_at_work_it_shows_each_state_and_changes_nothing(place: Path) -> None:
    found: list[Any] = []
    with Driver(place) as driver:
        tester = driver.start(totals())
        for moment in ("after PREPARING(1, 0)", "after COMMITTING(1, 0)"):
            tester.when(moment, lambda: found.append((files(driver.folder), names(driver.folder))))
            tester.when(moment, lambda: found.append((files(driver.folder), names(driver.folder))))
        tester.run(WORK)
        assert names(driver.folder)[-1] == (2, 0, "COMMITTED")
    assert [listed for _, listed in found[::2]] == [[(1, 0, "PREPARING")], [(1, 0, "COMMITTING")]]
    assert found[::2] == found[1::2]


def files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_a_commit_that_is_stuck_is_listed_as_decided(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(totals())
        seen: list[Any] = []
        tester.when("pause", lambda: seen.append(names(driver.folder)))
        tester.send(WORK[0], HooksFail())
        assert seen == [[(1, 0, "COMMITTING")]]


@pytest.mark.parametrize("what", ["nothing", "an empty folder"])
def test_without_a_checkpoint_there_is_the_error_of_open_state(place: Path, what: str) -> None:
    if what != "nothing":
        (place / "checkpoint").mkdir()
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*: has a topology been submitted there\?"):
        transactions(place / "checkpoint")


def test_another_folder_a_newer_release_and_a_damaged_log_are_told(place: Path) -> None:
    (place / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointFormatError, match="is no checkpoint, and not empty"):
        transactions(place)
    with pytest.raises(ConfigError, match="it must be a folder"):
        transactions("hdfs://host/checkpoint")
    with Driver(place) as driver:
        driver.start().send(WORK[0])
        record = next((driver.folder / FOLDER).glob("*2.json"))
        text = record.read_text()
        record.write_text(text[:-9])
        with pytest.raises(Exception, match="Restore this file"):
            transactions(driver.folder)
        record.write_text(text)
        (driver.folder / "format").write_text('{"format": 3}')
        with pytest.raises(CheckpointFormatError, match="open it with the release that wrote it"):
            transactions(driver.folder)


def test_a_bolt_that_refuses_is_the_reason(place: Path) -> None:
    class Refusing(Count):
        refusals = [FailedException("the price feed is stale")]

        def execute(self, tup, collector):
            if self.refusals:
                raise self.refusals.pop()

    builder = TopologyBuilder("refusing")
    builder.setStream("lines", rows("word string"))
    builder.setBolt("count", Refusing()).globalGrouping("lines")
    with TopologyTester(builder.createTopology(), place / "checkpoint") as tester:
        tester.send(lines("a"))
    assert "the price feed is stale" in transactions(place / "checkpoint")[0].reason
