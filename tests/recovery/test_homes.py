"""One lineage has one home: a second life of it is refused where it can be seen, and nothing of either is touched."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefx.coordinator import homes
from statefx.coordinator.generation import read_checkpoint
from statefx.coordinator.location import Folders
from statefx.errors import CheckpointMismatchError
from tests.spark.running import listing
from tests.testing.topologies import Driver, lines, words

WORK = [lines("to be or not to be"), lines("that is the question")]
SECOND = "is there a second time, in {}, where it has been run.*delete or rename {} first"


@pytest.fixture
def original(place: Path) -> Iterator[Driver]:
    with Driver(place, name="original") as driver:
        driver.start().send(WORK[0])
        yield driver


@pytest.fixture
def copy(place: Path, original: Driver) -> Iterator[Driver]:
    shutil.copytree(original.folder, place / "copy")
    with Driver(place, name="copy") as driver:
        yield driver


def refused(driver: Driver, other: Path, adopt: str | None = None) -> None:
    """It names the other folder, and changes neither."""
    before = listing(driver.folder), listing(other)
    with pytest.raises(CheckpointMismatchError, match=SECOND.format(other, other)) as told:
        driver.start(adopt=adopt)
    assert (told.value.location, told.value.other) == (str(driver.folder), str(other))
    assert (listing(driver.folder), listing(other)) == before


def goes_on(driver: Driver, expected: int, adopt: str | None = None) -> None:
    """It has so many transactions of `WORK`, in turn."""
    tester = driver.start(adopt=adopt)
    assert tester.txid == expected
    tester.send(WORK[expected % 2])
    assert tester.state("count") == words([WORK[n % 2] for n in range(expected + 1)])


def test_a_copy_has_not_moved_while_its_original_is_there(original: Driver, copy: Driver) -> None:
    refused(copy, original.folder, "move")
    goes_on(original, 1)
    refused(copy, original.folder, "move")
    goes_on(copy, 1, "fork")
    goes_on(original, 2)


def test_a_copy_goes_on_once_its_original_is_gone(original: Driver, copy: Driver) -> None:
    shutil.rmtree(original.folder)
    goes_on(copy, 1, "move")
    goes_on(copy, 2)


def test_an_original_that_was_out_of_sight_while_its_copy_was_run(original: Driver, copy: Driver) -> None:
    """The log of the original does not know of the copy; this machine does."""
    away = original.folder.rename(original.folder.with_name("away"))
    goes_on(copy, 1, "move")
    away.rename(original.folder)
    refused(original, copy.folder)
    goes_on(copy, 2)
    refused(original, copy.folder)
    away = copy.folder.rename(away)
    goes_on(original, 1)
    away.rename(copy.folder)
    refused(copy, original.folder)
    goes_on(copy, 3, "fork")


def test_a_second_copy_is_not_moved_beside_the_first(original: Driver, copy: Driver, place: Path) -> None:
    original.folder.rename(place / "second")
    goes_on(copy, 1, "move")
    with Driver(place, name="second") as second:
        refused(second, copy.folder, "move")
        goes_on(second, 1, "fork")


def test_an_original_that_can_not_be_run_as_it_is_keeps_no_copy_back(original: Driver, copy: Driver) -> None:
    """Damaged, moved on itself, or of another lineage since: whoever submits it is told."""
    newest = max((original.folder / "transactions").glob("*.json"))
    newest.write_bytes(b"")
    goes_on(copy, 1, "move")


def test_the_same_folder_under_another_name_is_no_second_one(original: Driver, place: Path) -> None:
    """A folder may be mounted at two places; links stand for that here."""
    with Driver(place, name="seen") as seen:
        seen.folder.mkdir()
        for path in original.folder.iterdir():
            (seen.folder / path.name).symlink_to(path)
        goes_on(seen, 1, "move")


def test_going_back_to_a_backup_in_place_is_no_second_life(original: Driver, place: Path) -> None:
    backup = shutil.copytree(original.folder, place / "backup")
    goes_on(original, 1)
    shutil.rmtree(original.folder)
    shutil.copytree(backup, original.folder)
    goes_on(original, 1)


def test_notes_of_checkpoints_that_are_gone_are_deleted_in_time(
    original: Driver, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "NOTES_MAX", 2)
    for n in range(4):
        with Driver(place, name=str(n)) as driver:
            driver.start()
        shutil.rmtree(driver.folder)
    notes = list((original.cache / "homes").iterdir())
    assert len(notes) <= 2
    assert read_checkpoint(Folders(str(original.folder))).lineage in {path.name for path in notes}


def test_a_start_notes_its_home_also_while_another_one_deletes_notes(
    original: Driver, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have listed the notes; what one of them finds gone must not keep it from its own."""
    folder = original.cache / "homes"
    (folder / ".of-another-start").write_text("half of a no")
    listed = homes.os.listdir
    monkeypatch.setattr(homes.os, "listdir", lambda where: ["deleted-by-another", *listed(where)])
    monkeypatch.setattr(homes, "NOTES_MAX", 2)
    with Driver(place, name="second") as second:
        second.start()
    assert read_checkpoint(Folders(str(second.folder))).lineage in listed(folder)
    assert (folder / ".of-another-start").exists()


def test_a_machine_where_nothing_can_be_noted_runs_all_the_same(original: Driver) -> None:
    shutil.rmtree(original.cache / "homes")
    (original.cache / "homes").touch()
    goes_on(original, 1)
