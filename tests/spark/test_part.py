"""Whose folder Spark's part is: drivers that are paused where they take it, overtaken, and then go on."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from statefx.errors import CheckpointError, CheckpointMismatchError, FencedError
from statefx.spark import part
from tests.spark.checkpoints import QUERY, Checkpoint
from tests.spark.running import listing


@pytest.fixture
def ck(place: Path) -> Checkpoint:
    found = Checkpoint(place)
    found.commit(0)
    return found


def before_the_next_rename(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """A driver is paused before it renames the folder that it has found; meanwhile this happens."""
    rename = os.rename

    def paused(*arguments: str) -> None:
        monkeypatch.setattr(os, "rename", rename)
        happens()
        rename(*arguments)

    monkeypatch.setattr(os, "rename", paused)


def revive(ck: Checkpoint, name: str) -> Path:
    """What a driver without a folder may make: a new one, of a new query."""
    folder = ck.location / name
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"another"}')
    (folder / "offsets" / "7").write_text("v1")
    return folder


@pytest.mark.parametrize("before", ["spark", "spark-1"])
def test_each_driver_that_takes_over_makes_it_its_own(ck: Checkpoint, before: str) -> None:
    """Earlier releases gave it no number."""
    ck.spark.rename(ck.location / before)
    was = listing(ck.location / before)
    ck.check()
    ck.take_over()
    assert ck.parts == ["spark-2"]
    assert listing(ck.spark) == was


def test_the_new_name_is_durable_before_spark_starts(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = ck.generation()
    fsync, synced = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
    ck.part(generation)
    assert synced == [str(ck.location)]


def test_drivers_that_died_before_they_took_it(ck: Checkpoint) -> None:
    was = listing(ck.spark)
    for _ in range(3):
        ck.generation()
    ck.check()
    ck.take_over()
    assert ck.parts == ["spark-5"]
    assert listing(ck.spark) == was


def test_a_folder_that_a_replaced_driver_makes_is_read_by_nobody_and_removed(ck: Checkpoint) -> None:
    ck.take_over()
    ck.commit(1)
    was = listing(ck.spark)
    for name in ("spark", "spark-1"):
        revive(ck, name)
    ck.check()
    ck.take_over()
    assert ck.parts == ["spark-3"]
    assert listing(ck.spark) == was


def test_paused_before_it_looks(ck: Checkpoint) -> None:
    paused = ck.generation()
    ck.take_over()
    revive(ck, "spark-1")
    was = listing(ck.location)
    with pytest.raises(FencedError, match=r"generation 3 has taken over.*this is 2") as caught:
        ck.part(paused)
    assert caught.value.generation == 3
    assert listing(ck.location) == was


@pytest.mark.parametrize("revived", [False, True])
def test_paused_before_it_renames(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch, revived: bool) -> None:
    """It may rename what is left under the old name, if anything is, and never what its successor has."""
    paused, was = ck.generation(), listing(ck.spark)

    def overtaken() -> None:
        ck.take_over()
        if revived:
            revive(ck, "spark-1")

    before_the_next_rename(monkeypatch, overtaken)
    with pytest.raises(FencedError, match="generation 3 has taken over"):
        ck.part(paused)
    assert ck.spark.name == "spark-3"
    assert listing(ck.spark) == was
    ck.check()
    ck.take_over()
    assert ck.parts == ["spark-4"]
    assert listing(ck.spark) == was


def test_paused_before_it_makes_the_first_one(place: Path) -> None:
    """Nothing has been begun, so that nothing can be lost; still only one of them goes on."""
    ck = Checkpoint(place)
    ck.spark.rename(place / "lost")
    paused = ck.generation()
    ck.take_over()
    with pytest.raises(FencedError, match="generation 3 has taken over"):
        ck.part(paused)
    (ck.spark / "metadata").write_text(f'{{"id":"{QUERY}"}}')
    for name in ("offsets", "commits", "sources/0"):
        (ck.spark / name).mkdir(parents=True)
    ck.commit(0)
    ck.take_over()
    assert ck.parts == ["spark-4"]
    assert part.query_id(ck.folders) == QUERY


def test_an_older_driver_renames_it_just_before(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    older, was = ck.generation(), listing(ck.spark)
    newer = ck.generation()
    before_the_next_rename(monkeypatch, lambda: ck.spark.rename(ck.location / f"spark-{older}"))
    ck.part(newer)
    assert ck.parts == ["spark-3"]
    assert listing(ck.spark) == was


def test_an_older_driver_renames_it_just_before_and_the_oldest_makes_another(
    ck: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, was = ck.generation(), listing(ck.spark)
    newer = ck.generation()

    def overtaken() -> None:
        ck.spark.rename(ck.location / f"spark-{older}")
        revive(ck, "spark-1")

    before_the_next_rename(monkeypatch, overtaken)
    with pytest.raises(CheckpointMismatchError, match="taken away while this driver started: submit again"):
        ck.part(newer)
    ck.check()
    ck.take_over()
    assert ck.parts == ["spark-4"]
    assert listing(ck.spark) == was


def test_a_listing_that_misses_it_while_it_is_renamed(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing need not show a name that changes meanwhile, neither as it was nor as it is."""
    generation, was, listdir = ck.generation(), listing(ck.spark), os.listdir

    def missing(folder: str) -> list[str]:
        monkeypatch.setattr(os, "listdir", listdir)
        return [name for name in listdir(folder) if not name.startswith("spark")]

    monkeypatch.setattr(os, "listdir", missing)
    ck.part(generation)
    assert ck.parts == ["spark-2"]
    assert listing(ck.spark) == was


def test_it_was_lost_meanwhile(ck: Checkpoint) -> None:
    generation = ck.generation()
    ck.spark.rename(ck.location / "elsewhere")
    with pytest.raises(CheckpointMismatchError, match="taken away while this driver started"):
        ck.part(generation)
    assert ck.parts == [], "the next start misses it too"


def test_it_can_not_be_renamed(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise PermissionError(13, "Permission denied")

    generation = ck.generation()
    before_the_next_rename(monkeypatch, refused)
    with pytest.raises(CheckpointError, match=r"can't be renamed to .*/spark-2 \(Permission denied\)"):
        ck.part(generation)
    ck.check()
    ck.take_over()
    assert ck.parts == ["spark-3"]
