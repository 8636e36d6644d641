"""Clocks that jump: files in use are swept as if they were old, and times run back. Nothing is lost, and it is told."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from freezegun import freeze_time

from statefx import committedFiles, transactions
from statefx.errors import LogOutcomeUnknownError
from statefx.storage import FolderStorage
from tests.testing.places import place
from tests.testing.topologies import Driver, archived, lines

__all__ = ["place"]

WORK = [lines("to be or", "not to be"), lines("that is to be")]
TIMES = {"be": 3, "is": 1, "not": 1, "or": 1, "that": 1, "to": 3}
COUNTS = [(word, count) for word, times in TIMES.items() for count in range(1, times + 1)]


def published(out: Path) -> list[tuple[str, int]]:
    rows = [json.loads(row) for file in committedFiles(out) for row in Path(file).read_text("utf-8").splitlines()]
    return sorted((row["word"], row["count"]) for row in rows)


@pytest.fixture
def jump(monkeypatch, place):
    """At the next call of `call` that gives a name with `text` in it, a sweep sees a clock that is two hours ahead."""
    swept = []

    def at(call: str, text: str) -> list[int]:
        original = getattr(os, call)

        def jumping(source: str, target: str) -> None:
            if text in target and not swept:
                with freeze_time(datetime.now(UTC) + timedelta(hours=2)):
                    swept.append(
                        sum(FolderStorage(place / each).discard_unfinished("") for each in ("checkpoint", "out"))
                    )
            original(source, target)

        monkeypatch.setattr(os, call, jumping)
        return swept

    return at


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "name"), [("/state/count/", "StateError: "), ("/out/part-", "FileNotFoundError: ")], ids=["state", "sink"]
)
def test_a_task_s_file_that_is_swept_while_it_is_written_is_written_again_by_the_next_attempt(place, jump, text, name):
    (place / "out").mkdir()
    with Driver(place) as driver:
        tester = driver.start(archived(place / "out"))
        swept = jump("rename", text)
        for work in WORK:
            tester.send(work)
        failed, *others = transactions(driver.folder)
    assert swept[0] >= 1
    assert (failed.state, failed.attempt, [each.state for each in others]) == ("ROLLED_BACK", 0, ["COMMITTED"] * 2)
    assert name in failed.reason
    assert "was deleted while it was" in failed.reason
    assert published(place / "out") == COUNTS


def test_a_manifest_that_is_swept_while_it_is_written_is_written_again(place, jump):
    (place / "out").mkdir()
    with Driver(place) as driver:
        tester = driver.start(archived(place / "out"))
        swept = jump("link", "/_spark_metadata/1")
        for work in WORK:
            tester.send(work)
    assert swept == [1]
    assert published(place / "out") == COUNTS


@pytest.mark.parametrize("record", range(3, 9))
def test_a_record_that_is_swept_while_it_is_written_ends_the_driver_and_the_next_one_goes_on(place, jump, record):
    (place / "out").mkdir()
    with Driver(place) as driver:
        swept = jump("link", f"/transactions/{record:020}")
        with pytest.raises(LogOutcomeUnknownError, match="may or may not have been appended"):
            driver.start(archived(place / "out")).run(WORK)
        driver.start(archived(place / "out")).run(WORK)
    assert swept == [1]
    assert published(place / "out") == COUNTS


def test_a_clock_that_is_set_back_gives_a_transaction_less_than_no_time(place):
    (place / "out").mkdir()

    def set_back():
        tester._began -= 3600

    with Driver(place) as driver:
        tester = driver.start(archived(place / "out"), now=datetime(2000, 1, 1, tzinfo=UTC))
        tester.when("after PREPARING(1, 0)", set_back)
        for work in WORK:
            tester.send(work)
        back, after = transactions(driver.folder)
    assert (back.state, back.secs) == ("COMMITTED", -3600)
    assert (after.state, after.secs) == ("COMMITTED", 0)
    assert "COMMITTED 1999-12-31 23:00" in repr(back)
    assert published(place / "out") == COUNTS
