"""A disk that is full or fails, once or for good: rolled back and tried again, or an error that says so."""

from pathlib import Path

import pytest

from statefx.errors import AttemptsExhaustedError, CheckpointError
from tests.testing.disks import Disk
from tests.testing.topologies import Driver, lines, totals, words

WORK = [lines("a b c d e"), lines("a b"), lines("c d e f g h")]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_disk_that_is_full_while_state_is_prepared(
    place: Path, provider: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(place, provider) as driver:
        tester = driver.start(totals())
        disk = Disk(monkeypatch, driver.folder / "state")
        for n, work in enumerate(WORK):
            disk.left = times
            sent = tester.send(work)
            assert sent.progress.attempt >= 1
            assert tester.state("count") == words(WORK[: n + 1])
        assert disk.failed == 3 * times
        assert driver.start(totals()).state("total")["total"] == 13
        leftovers = [path.name for path in driver.folder.rglob(".unfinished-*")]
        assert leftovers == []


@pytest.mark.slow
def test_a_disk_that_stays_full_ends_the_query_and_says_why(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Driver(place) as driver:
        driver.config["topology.transaction.attempts.max"] = 3
        tester = driver.start(totals())
        tester.send(WORK[0])
        disk = Disk(monkeypatch, driver.folder / "state")
        disk.left = 1000
        with pytest.raises(AttemptsExhaustedError, match=r"count\[0\].*No space left on device"):
            tester.send(WORK[1])
        disk.left = 0
        restarted = driver.start(totals())
        restarted.run(WORK)
        assert restarted.state("count") == words(WORK)


@pytest.mark.parametrize("record", ["PREPARING(2, 0)", "COMMITTING(2, 0)", "COMMITTED(2)"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_log_that_can_not_be_written_ends_the_driver_and_the_next_goes_on(
    place: Path, record: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write, the fsync of the file, or that of the folder fails."""
    with Driver(place) as driver:
        tester = driver.start(totals())
        tester.send(WORK[0])
        disk = Disk(monkeypatch, driver.folder / "transactions")
        tester.when(f"before {record}", lambda: vars(disk).update(left=1, passing=number - 1))
        with pytest.raises(Exception, match=r"No space left") as caught:
            tester.run(WORK[:2])
        if number == 1:
            assert isinstance(caught.value, CheckpointError)
            assert "nothing was appended" in str(caught.value)
        monkeypatch.undo()
        restarted = driver.start(totals())
        restarted.run(WORK)
        assert restarted.state("count") == words(WORK)
        commits = [entry[1:3] for entry in driver.journal if entry[0] == "commit"]
        assert sorted({txid for txid, _ in commits}) == [1, 2, 3]
        assert len(set(commits)) == 3, "each in one attempt"
