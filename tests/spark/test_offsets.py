"""Spark's part of the checkpoint against our log, as files: what was lost in a crash, and who is still at work."""

import errno
import json
import os
from pathlib import Path

import pytest

from statefx.coordinator.generation import read_checkpoint
from statefx.errors import CheckpointError, CheckpointMismatchError
from statefx.protocol.records import Preparing, RolledBack, StreamInput
from statefx.spark import offsets, part
from statefx.spark.durable import Durable
from tests.spark.checkpoints import QUERY, Checkpoint


@pytest.fixture
def ck(place: Path) -> Checkpoint:
    found = Checkpoint(place)
    found.commit(0)
    return found


def test_a_driver_that_commits_while_another_looks_has_lost_no_log(ck: Checkpoint) -> None:
    before = read_checkpoint(ck.folders)
    ck.commit(1)
    offsets.check(ck.found, before)


def test_a_driver_that_takes_over_while_another_looks_has_lost_no_part(
    ck: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that was found is renamed before it is read."""
    live, renamed = part.live, []

    def found(*arguments: object) -> object:
        there = live(*arguments)
        if not renamed:
            renamed.append(ck.take_over())
        return there

    monkeypatch.setattr(part, "live", found)
    ck.check()
    assert ck.parts == ["spark-2"]


def test_a_log_that_was_lost_is_missed(ck: Checkpoint) -> None:
    ck.prepare(1)
    (ck.spark / "commits" / "1").write_text("v1\n{}")
    with pytest.raises(CheckpointMismatchError, match=r"-1, has gone on to transaction 2.*ends with transaction 1"):
        ck.check()


def test_a_log_that_was_replaced_by_an_older_one_is_told_by_the_number_of_the_part(ck: Checkpoint) -> None:
    ck.spark.rename(ck.spark.with_name("spark-9"))
    with pytest.raises(CheckpointMismatchError, match=r"spark-9, has gone on to generation 9.*ends with generation 1"):
        ck.check()


def test_a_part_that_was_lost_is_missed_by_its_name(ck: Checkpoint) -> None:
    ck.spark.rename(ck.location / "elsewhere")
    with pytest.raises(CheckpointMismatchError, match=r"ck/spark-1, is missing.*Restore .*ck/spark-1 from") as caught:
        ck.check()
    assert caught.value.path == str(ck.location / "spark-1")


@pytest.mark.parametrize("end", ["prepared", "rolled back", "only planned"])
@pytest.mark.parametrize("offsets_lost", [True, False])
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_batch_that_is_not_decided_and_lost_its_files_is_planned_anew(
    ck: Checkpoint, end: str, offsets_lost: bool, how: str
) -> None:
    """Spark would fail at every start: "batch 1 doesn't exist"."""
    if end == "only planned":
        ck.plan(1)
    else:
        ck.prepare(1)
    if end == "rolled back":
        ck.log.append(RolledBack(2, 0, "the executor was lost"))
    ck.lose("sources/0/1", *(["offsets/1"] if offsets_lost else []))
    if how == "empty":
        (ck.spark / "sources" / "0" / "1").touch()
    ck.check()
    assert ck.restore() == []
    assert sorted(path.name for path in (ck.spark / "offsets").iterdir()) == ["0"]
    assert sorted(path.name for path in (ck.spark / "sources" / "0").iterdir()) == ["0"]


def test_a_batch_that_is_not_decided_and_lost_only_its_offsets_is_the_same_again(ck: Checkpoint) -> None:
    ck.prepare(1)
    text = (ck.spark / "offsets" / "1").read_text()
    ck.lose("offsets/1")
    ck.check()
    assert ck.restore() == [1]
    assert (ck.spark / "offsets" / "1").read_text() == text


@pytest.mark.parametrize("end", ["COMMITTING", "COMMITTED"])
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_batch_that_is_decided_and_lost_its_files_is_refused(ck: Checkpoint, end: str, how: str) -> None:
    if end == "COMMITTED":
        ck.commit(1)
    else:
        ck.prepare(1)
        ck.decide(1)
    ck.lose("sources/0/1")
    if how == "empty":
        (ck.spark / "sources" / "0" / "1").touch()
    with pytest.raises(
        CheckpointMismatchError, match=r"sources/0/1 is missing.*transaction 2.*Restore .*/spark-1"
    ) as caught:
        ck.check()
    assert caught.value.path == str(ck.spark / "sources" / "0" / "1")


@pytest.mark.parametrize("kept", ["1", "1.compact", "9.compact"])
def test_lists_of_files_that_spark_has_put_together_are_found(ck: Checkpoint, kept: str) -> None:
    ck.commit(1)
    (ck.spark / "sources" / "0" / "1").rename(ck.spark / "sources" / "0" / kept)
    ck.check()
    assert ck.restore() == []


def test_sources_that_keep_no_lists_have_nothing_to_lose(ck: Checkpoint) -> None:
    text = 'v1\n{"batchTimestampMs":1}\n{"offset":2,"timestamp":1000}\n-\n17\n{"logOffset":-1}'
    ck.log.append(Preparing(2, 0, 1, StreamInput(QUERY, 1, text)))
    assert ck.restore() == [1]
    assert (ck.spark / "offsets" / "1").read_text() == text


def test_what_a_crash_left_empty_is_taken_away(ck: Checkpoint) -> None:
    """Spark would fail at every start: "Failed to read log file"."""
    ck.commit(1)
    for name in ("offsets/1", "offsets/2", "commits/1"):
        (ck.spark / name).write_text("")
    ck.check()
    assert ck.restore() == [1]
    assert (ck.spark / "offsets" / "1").read_text().startswith("v1")
    assert not (ck.spark / "offsets" / "2").exists()
    assert [path.name for path in (ck.spark / "commits").iterdir()] == ["0"]


def test_only_the_newest_lists_are_taken_away_if_they_are_empty(ck: Checkpoint) -> None:
    """An older one was made durable: that it is empty is no crash's doing, and Spark is to say so."""
    ck.commit(1)
    ck.plan(2)
    folder = ck.spark / "sources" / "0"
    for name in ("0", "2", "2.compact"):
        (folder / name).write_text("")
    ck.check()
    ck.restore()
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]


@pytest.mark.parametrize("end", ["only planned", "prepared", "rolled back"])
def test_the_first_batch_begins_where_nothing_else_is(place: Path, end: str) -> None:
    """Spark would fail at every start: "the checkpoint location should be empty"."""
    fresh = Checkpoint(place)
    planned = fresh.plan(0)
    if end != "only planned":
        fresh.log.append(Preparing(1, 0, 1, planned))
    if end == "rolled back":
        fresh.log.append(RolledBack(1, 0, "the executor was lost"))
    (fresh.spark / "state" / "0").mkdir(parents=True)
    for name in ("offsets/.0.x.tmp", "offsets/.0.crc", "offsets/1", "commits/.0.x.tmp", "state/0/1.delta"):
        (fresh.spark / name).write_text("v1")
    fresh.take_over()
    assert fresh.restore() == []
    found = {str(path.relative_to(fresh.spark)) for path in fresh.spark.rglob("*") if path.is_file()}
    assert found == {"metadata", "sources/0/0", "offsets/0"}
    assert (fresh.spark / "offsets" / "0").read_text() == planned.offsets


def test_a_first_batch_that_is_decided_keeps_all_it_has(place: Path) -> None:
    fresh = Checkpoint(place)
    fresh.prepare(0)
    fresh.decide(0)
    (fresh.spark / "state" / "0").mkdir(parents=True)
    (fresh.spark / "state" / "0" / "1.delta").write_text("x")
    fresh.take_over()
    fresh.restore()
    assert (fresh.spark / "state" / "0" / "1.delta").exists()


def test_what_can_not_be_taken_away_is_told(place: Path) -> None:
    fresh = Checkpoint(place)
    (fresh.spark / "offsets" / "folder").mkdir()
    with pytest.raises(CheckpointError, match=r"left in .*/spark-1 can't be deleted .*folder"):
        fresh.restore()


def test_empty_metadata_is_taken_away_before_the_first_transaction(place: Path) -> None:
    """Spark would fail at every start; afterwards it is the name of what has been committed, and durable."""
    fresh = Checkpoint(place)
    fresh.plan(0)
    (fresh.spark / "metadata").write_text("")
    fresh.check()
    fresh.restore()
    assert not (fresh.spark / "metadata").exists()
    assert (fresh.spark / "offsets" / "0").exists()


@pytest.mark.parametrize("name", ["state/0/0/_metadata/schema", "state/0/_metadata/v2/0", "state/0/_stateSchema/a/0_x"])
def test_empty_schemas_of_spark_s_own_state_are_taken_away(ck: Checkpoint, name: str) -> None:
    """They are written before the first batch, and never again if they are there."""
    for path, text in ((ck.spark / name, ""), (ck.spark / f"{name}-whole", "v1"), (ck.spark / "state/0/0/1.delta", "")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ck.restore()
    assert not (ck.spark / name).exists()
    assert (ck.spark / f"{name}-whole").exists()
    assert (ck.spark / "state/0/0/1.delta").exists()


def test_empty_snapshots_of_spark_s_own_state_are_taken_away(ck: Checkpoint) -> None:
    """They are made in passing, so that nothing waits for them to be durable; deltas are."""
    stores = [ck.spark / "state" / "0" / str(task) for task in range(2)]
    for store in stores:
        store.mkdir(parents=True)
    for name in ("1.delta", "1.snapshot", "2.delta", "2.zip"):
        (stores[0] / name).write_text("")
        (stores[1] / name).write_text("x")
    ck.restore()
    assert sorted(path.name for path in stores[0].iterdir()) == ["1.delta", "2.delta"]
    assert len(list(stores[1].iterdir())) == 4


@pytest.mark.parametrize("was", ["file:/a/ck/spark", "/ck/spark-1", r"file:/a \"b\"/ck/spark-3"])
def test_paths_that_spark_has_noted_point_to_where_its_part_is_now(ck: Checkpoint, was: str) -> None:
    """Spark would fail at every start: the file of the schema does not exist."""
    notes = ck.spark / "state" / "3" / "_metadata" / "v2"
    notes.mkdir(parents=True)
    text = f'v2\n{{"operatorId":3,"paths":["{was}/state/3/_stateSchema/default/0_a","{was}/state/3/_stateSchema/x"]}}'
    (notes / "0").write_text(text)
    (notes / ".0.crc").touch()
    ck.take_over()
    ck.restore()
    (note,) = (ck.spark / "state" / "3" / "_metadata" / "v2").iterdir()
    paths = json.loads(note.read_text().partition("\n")[2])["paths"]
    scheme = "file:" if was.startswith("file:") else ""
    assert paths == [f"{scheme}{ck.spark}/state/3/_stateSchema/{name}" for name in ("default/0_a", "x")]
    assert ck.spark.name == "spark-2"


@pytest.fixture
def synced(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is made durable, below the checkpoint."""
    found: list[str] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        found.append(os.path.relpath(os.readlink(f"/proc/self/fd/{file}"), ck.location))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def test_each_list_of_files_is_made_durable_once(ck: Checkpoint, synced: list[str]) -> None:
    durable = Durable(ck.folders)
    (ck.spark / "sources" / "0" / ".0.crc").touch()
    durable.sync_input(ck.offsets(0))
    below = ["spark-1", "spark-1/metadata", "spark-1/sources", "spark-1/sources/0", "spark-1/sources/0/0"]
    assert sorted(synced) == [".", *below]
    synced.clear()
    ck.plan(1)
    durable.sync_input(ck.offsets(1))
    assert sorted(synced) == ["spark-1/sources/0", "spark-1/sources/0/1"], "the folder, and the list"
    synced.clear()
    durable.sync_input(ck.offsets(1))
    assert synced == []
    (ck.spark / "sources" / "0" / "2").write_text("v1")
    (ck.spark / "sources" / "0" / "3.compact").write_text("v1")
    durable.sync_input(ck.offsets(1).replace('{"logOffset":1}', '{"logOffset":3}'))
    assert sorted(synced) == [f"spark-1/sources/0{name}" for name in ("", "/2", "/3.compact")]


def test_spark_s_own_state_is_made_durable_and_again_where_it_was_replaced(ck: Checkpoint, synced: list[str]) -> None:
    durable = Durable(ck.folders)
    durable.sync_state(0)
    store = ck.spark / "state" / "0" / "1"
    store.mkdir(parents=True)
    (store / "1.delta").write_text("x")
    (store / ".2.delta.tmp").write_text("x")
    synced.clear()
    durable.sync_state(0)
    assert sorted(synced) == [
        "spark-1",
        *("spark-1/state", "spark-1/state/0", "spark-1/state/0/1", "spark-1/state/0/1/1.delta"),
    ]
    synced.clear()
    (store / ".1.delta.tmp").write_text("y")
    (store / ".1.delta.tmp").rename(store / "1.delta")
    durable.sync_state(0)
    assert sorted(synced) == [f"spark-1/state/0/1{name}" for name in ("", "/1.delta")]
    synced.clear()
    (store / "2.delta").write_text("x")
    durable.sync_state(1)
    assert sorted(synced) == [f"spark-1/state/0/1{name}" for name in ("", "/2.delta")]


@pytest.mark.parametrize(
    "name", ["{}.zip", "{}_5e0d.changelog", "SSTs/{}.sst", "default/{}.changelog", "_metadata/v2/{}"]
)
def test_whatever_spark_s_stores_write_is_made_durable(ck: Checkpoint, synced: list[str], name: str) -> None:
    """Snapshots too, beside the changes of a version, though they are made in passing: within some versions."""
    durable = Durable(ck.folders)
    store = ck.spark / "state" / "0" / "1"
    missing = set()
    for version in range(1, 20):
        for path in (store / f"{version}.delta", store / name.format(version)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
            missing.add(str(path.relative_to(ck.location)))
        durable.sync_state(version - 1)
        missing -= set(synced)
        assert f"spark-1/state/0/1/{version}.delta" not in missing
        assert len(missing) <= 8


def test_what_is_done_for_a_batch_does_not_grow_with_those_before_it(
    ck: Checkpoint, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand lists of files, and two stores with a thousand versions: nothing of them is looked at again."""
    durable = Durable(ck.folders)
    sources, stores = ck.spark / "sources", [ck.spark / "state" / "0" / str(task) for task in range(2)]
    for folder in (sources / "1", *stores):
        folder.mkdir(parents=True)
    for number in range(1000):
        (sources / "1" / str(number)).write_text("v1")
        for store in stores:
            (store / f"{number}.delta").write_text("x")
    text = "v1\n{}\n17\n" + '{"logOffset":%d}'
    durable.sync_input(text % 999)
    durable.sync_state(998)
    entries: list[str] = []
    scandir = os.scandir

    def counted(folder: str) -> object:
        entries.extend(os.listdir(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    for batch in range(1000, 1008):
        (sources / "1" / str(batch)).write_text("v1")
        for store in stores:
            (store / f"{batch + 1}.delta").write_text("x")
        synced.clear()
        durable.sync_input(text % batch)
        durable.sync_state(batch)
        below = [f"spark-1/sources/1/{batch}", *(f"spark-1/state/0/{task}/{batch + 1}.delta" for task in range(2))]
        assert {*below, *(os.path.dirname(path) for path in below)} <= set(synced)
        assert len(synced) <= 6 + 2 * 8, "those since it was last listed, once more"
    assert len(entries) < 2 * 1010, "each store was listed once in eight versions"


def test_what_can_not_be_made_durable_is_no_input(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    (ck.spark / "state").mkdir()
    for sync, given in ((Durable.sync_input, ck.offsets(0)), (Durable.sync_state, 0)):
        with pytest.raises(CheckpointError, match=r"can't be made durable.*Input/output error"):
            sync(Durable(ck.folders), given)
