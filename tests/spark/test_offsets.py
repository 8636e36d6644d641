"""Spark's part of the checkpoint against our log, as files: what was lost in a crash, and who is still at work."""

import errno
import os
from pathlib import Path

import pytest

from statefx.coordinator.checkpoint import Folders, look, prepare
from statefx.coordinator.log import TransactionLog
from statefx.coordinator.records import (
    Committed,
    Committing,
    Generation,
    Lineage,
    Preparing,
    RolledBack,
    StreamInput,
)
from statefx.errors import CheckpointError, CheckpointMismatchError
from statefx.spark import offsets
from statefx.spark.durable import Durable

QUERY = "5109ea48-2da3-4a0d-b15d-9298cac39672"


class Checkpoint:
    """A checkpoint of a stream over one file source, as Spark and a driver leave it."""

    def __init__(self, place: Path) -> None:
        self.folders = Folders(str(place / "ck"))
        self.spark = place / "ck" / "spark"
        for name in ("offsets", "commits", "sources/0"):
            (self.spark / name).mkdir(parents=True)
        (self.spark / "metadata").write_text(f'{{"id":"{QUERY}"}}')
        prepare(self.folders)
        self.log = TransactionLog(self.folders.log)
        self.log.append(Lineage("a"))
        self.log.append(Generation(1, self.folders.location, {"name": "t", "source": "stream", "stateful": {}}, ""))

    def plan(self, batch: int) -> StreamInput:
        """What Spark writes before it calls back."""
        text = f'v1\n{{"batchTimestampMs":17952158578{batch:02},"conf":{{}}}}\n{{"logOffset":{batch}}}'
        (self.spark / "sources" / "0" / str(batch)).write_text(f'v1\n{{"path":"in/{batch}","batchId":{batch}}}')
        (self.spark / "offsets" / str(batch)).write_text(text)
        return StreamInput(QUERY, batch, text)

    def prepare(self, batch: int, attempt: int = 0) -> None:
        self.log.append(Preparing(batch + 1, attempt, 1, self.plan(batch)))

    def decide(self, batch: int, attempt: int = 0) -> None:
        self.log.append(Committing(batch + 1, attempt, 1, {}))

    def commit(self, batch: int) -> None:
        """All of a transaction, and what Spark notes after it."""
        self.prepare(batch)
        self.decide(batch)
        self.log.append(Committed(batch + 1))
        (self.spark / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def lose(self, *names: str) -> None:
        for name in names:
            (self.spark / name).unlink()

    def check(self) -> None:
        offsets.check(self.folders, look(self.folders))

    def restore(self) -> list[int]:
        return offsets.restore(self.folders, look(self.folders))


@pytest.fixture
def ck(place: Path) -> Checkpoint:
    found = Checkpoint(place)
    found.commit(0)
    return found


def test_a_driver_that_commits_while_another_looks_has_lost_no_log(ck: Checkpoint) -> None:
    before = look(ck.folders)
    ck.commit(1)
    offsets.check(ck.folders, before)


def test_a_log_that_was_lost_is_missed(ck: Checkpoint) -> None:
    ck.prepare(1)
    (ck.spark / "commits" / "1").write_text("v1\n{}")
    with pytest.raises(CheckpointMismatchError, match=r"gone on to transaction 2.*ends with transaction 1"):
        ck.check()


@pytest.mark.parametrize("end", ["prepared", "rolled back", "only planned"])
@pytest.mark.parametrize("offsets_lost", [True, False])
def test_a_batch_that_is_not_decided_and_lost_its_files_is_planned_anew(
    ck: Checkpoint, end: str, offsets_lost: bool
) -> None:
    """Spark would fail at every start: "batch 1 doesn't exist"."""
    if end == "only planned":
        ck.plan(1)
    else:
        ck.prepare(1)
    if end == "rolled back":
        ck.log.append(RolledBack(2, 0, "the executor was lost"))
    ck.lose("sources/0/1", *(["offsets/1"] if offsets_lost else []))
    ck.check()
    assert ck.restore() == []
    assert sorted(path.name for path in (ck.spark / "offsets").iterdir()) == ["0"]


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
        CheckpointMismatchError, match=r"sources/0/1 is missing.*transaction 2.*Restore .*/spark"
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


def test_each_list_of_files_is_made_durable_once(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
    durable = Durable(ck.folders)
    (ck.spark / "sources" / "0" / ".0.crc").touch()
    durable.sync()
    told = [os.path.relpath(path, ck.folders.location) for path in synced]
    assert told == [".", "spark", "spark/metadata", "spark/sources", "spark/sources/0", "spark/sources/0/0"]
    synced.clear()
    ck.plan(1)
    durable.sync()
    assert [Path(path).name for path in synced] == ["0", "1"], "the folder, and the list"
    synced.clear()
    durable.sync()
    assert synced == []


def test_what_can_not_be_made_durable_is_no_input(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CheckpointError, match=r"can't be made durable.*Input/output error"):
        Durable(ck.folders).sync()
