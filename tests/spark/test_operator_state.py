"""What Spark's own operators keep: carried over by each start, durable after each transaction, of one driver alone."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefx.coordinator.generation import read_checkpoint
from statefx.errors import CheckpointError, CheckpointMismatchError, FencedError
from statefx.protocol.records import Committed
from statefx.spark import operator_state
from statefx.spark.operator_state import Durable
from tests.spark.checkpoints import Checkpoint
from tests.spark.running import listing


@pytest.fixture
def ck(place: Path) -> Iterator[Checkpoint]:
    found = Checkpoint(place, keeps_state=True)
    keep(found, 0)
    yield found
    found.end()


def keep(ck: Checkpoint, batch: int) -> None:
    """A transaction, with what Spark's operators keep of it."""
    ck.prepare(batch)
    ck.write(f"state/0/0/{batch + 1}.delta", f"of batch {batch}")
    ck.decide(batch)
    ck.log.append(Committed(batch + 1))
    ck.note(batch)


def parts(ck: Checkpoint) -> list[str]:
    return sorted(path.name for path in ck.location.glob("spark*"))


def state(ck: Checkpoint) -> dict[str, str]:
    below = ck.spark / "state"
    return {str(path.relative_to(below)): path.read_text() for path in below.rglob("*") if path.is_file()}


def test_each_driver_has_a_folder_of_its_own_and_deletes_the_others_when_it_has_committed(ck: Checkpoint) -> None:
    was = listing(ck.spark)
    ck.start()
    assert parts(ck) == ["spark-1", "spark-2"]
    assert listing(ck.location / "spark-1") == was
    assert state(ck) == {"0/0/1.delta": "of batch 0"}
    assert ck.files().keys() == {"metadata", "offsets/0", "commits/0", "sources/0/0"}
    keep(ck, 1)
    assert parts(ck) == ["spark-2"]
    assert state(ck) == {"0/0/1.delta": "of batch 0", "0/0/2.delta": "of batch 1"}


@pytest.mark.parametrize("end", ["started", "planned", "PREPARING", "kept", "COMMITTING"])
def test_a_driver_that_dies_before_it_has_committed_has_changed_nothing(ck: Checkpoint, end: str) -> None:
    """The next one begins with the folder that the log names, not with the newest."""
    ck.start()
    if end != "started":
        ck.plan(1)
    if end not in ("started", "planned"):
        ck.begin(1)
        ck.write("state/0/0/2.delta", "not decided")
        ck.write("state/0/0/1.delta", "replaced")
    if end == "COMMITTING":
        ck.decide(1)
        ck.generation()
        ck.log.append(Committed(2))
    elif end in ("PREPARING", "kept"):
        ck.generation()
        ck.roll_back(1)
    ck.check()
    ck.start()
    if end == "COMMITTING":  # Spark has no note of the batch, and runs it again
        assert state(ck) == {"0/0/1.delta": "replaced", "0/0/2.delta": "not decided"}
        assert ck.files().keys() & {"commits/0", "commits/1"} == {"commits/0"}
    else:
        assert state(ck) == {"0/0/1.delta": "of batch 0"}


def test_what_a_driver_that_sleeps_writes_is_read_by_nobody(ck: Checkpoint) -> None:
    """It replaces files that its successor has linked, and makes its folder again when that was deleted."""
    sleeper = ck.spark
    ck.start()
    for name in ("1.delta", "2.delta"):
        (sleeper / "state/0/0/.tmp").write_text("of the sleeper")
        (sleeper / "state/0/0/.tmp").rename(sleeper / "state/0/0" / name)
    assert state(ck) == {"0/0/1.delta": "of batch 0"}
    keep(ck, 1)
    assert parts(ck) == ["spark-2"]
    (sleeper / "state/0/0").mkdir(parents=True)
    (sleeper / "metadata").write_text('{"id":"another"}')
    (sleeper / "state/0/0/2.delta").write_text("of the sleeper")
    ck.check()
    ck.start()
    assert state(ck) == {"0/0/1.delta": "of batch 0", "0/0/2.delta": "of batch 1"}
    keep(ck, 2)
    assert parts(ck) == ["spark-3"]


def test_one_that_is_replaced_while_it_begins_is_fenced(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor has committed something, and has deleted the folder that it was about to begin with."""
    carry_over = operator_state.carry_over

    def overtaken(*arguments: object) -> None:
        monkeypatch.setattr(operator_state, "carry_over", carry_over)
        ck.start()
        keep(ck, 1)
        carry_over(*arguments)

    monkeypatch.setattr(operator_state, "carry_over", overtaken)
    with pytest.raises(FencedError, match=r"generation 3 has taken over.*this is 2"):
        ck.start()
    ck.start()
    assert state(ck).keys() == {"0/0/1.delta", "0/0/2.delta"}


def test_files_that_a_crash_left_empty_or_that_were_being_written_are_not_carried_over(ck: Checkpoint) -> None:
    """Spark would fail at every start; it makes them again, or reads the deltas instead."""
    left = ["0/0/1.snapshot", "0/0/2.zip", "0/0/_metadata/schema", "0/_stateSchema/a/0_x", "0/0/.3.delta.x.tmp"]
    for name in left:
        path = ck.spark / "state" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" if name.endswith(".tmp") else "")
    (ck.spark / "commits" / "0").write_text("")
    ck.start()
    assert state(ck) == {"0/0/1.delta": "of batch 0"}
    assert "commits/0" not in ck.files(), "Spark runs the batch again"


def test_nothing_is_carried_over_before_anything_is_decided(place: Path) -> None:
    """Spark begins only where nothing of a former beginning lies: "the checkpoint location should be empty"."""
    fresh = Checkpoint(place, keeps_state=True)
    fresh.prepare(0)
    fresh.write("state/0/0/1.delta", "x")
    fresh.write("offsets/.0.x.tmp", "x")
    fresh.roll_back(0)
    fresh.start()
    assert state(fresh) == {}
    assert fresh.files().keys() == {"metadata", "offsets/0", "sources/0/0"}


def test_an_operator_that_was_taken_out_is_for_spark_to_refuse(ck: Checkpoint) -> None:
    ck.keeps_state = False
    ck.start()
    assert ck.spark == ck.location / "spark-2"
    assert state(ck) == {"0/0/1.delta": "of batch 0"}


def test_a_folder_of_a_life_that_an_older_copy_has_replaced(ck: Checkpoint) -> None:
    (ck.location / "spark-2" / "state").mkdir(parents=True)
    (ck.location / "spark-2" / "state" / "x").touch()
    ck.start()
    assert state(ck) == {"0/0/1.delta": "of batch 0"}


def test_a_part_that_was_lost_is_missed_by_its_name(ck: Checkpoint) -> None:
    ck.lose("spark-1")
    with pytest.raises(CheckpointMismatchError, match=r"ck/spark-1, is missing.*Restore .*ck/spark-1 from") as caught:
        ck.check()
    assert caught.value.path == str(ck.location / "spark-1")
    (ck.location / "spark-1").mkdir()
    (ck.location / "spark-1" / "metadata").write_text('{"id":"another"}')
    with pytest.raises(CheckpointMismatchError, match=r"is of query another, .*Restore"):
        ck.check()
    (ck.location / "spark-1" / "metadata").write_text("{")
    with pytest.raises(CheckpointMismatchError, match="metadata can't be read"):
        ck.check()


def test_a_log_that_was_replaced_by_an_older_one_is_told_by_the_part(ck: Checkpoint) -> None:
    (ck.spark / "commits" / "1").write_text("v1\n{}")
    with pytest.raises(CheckpointMismatchError, match=r"gone on to transaction 2.*ends with transaction 1"):
        ck.check()
    (ck.spark / "commits" / "1").unlink()
    ck.spark.rename(ck.location / "spark-9")
    with pytest.raises(CheckpointMismatchError, match=r"gone on to generation 9.*ends with generation 1"):
        ck.check()


def test_a_driver_that_goes_on_while_another_looks_has_lost_nothing(ck: Checkpoint) -> None:
    before = read_checkpoint(ck.folders)
    keep(ck, 1)
    operator_state.check(ck.folders, before)
    ck.start()
    keep(ck, 2)
    operator_state.check(ck.folders, before)


@pytest.mark.parametrize("was", ["file:/a/ck/spark", "/ck/spark-1", r"file:/a \"b\"/ck/spark-3"])
def test_paths_that_spark_has_noted_point_to_where_its_part_is_now(ck: Checkpoint, was: str) -> None:
    """Spark would fail at every start: the file of the schema does not exist."""
    former = ck.spark
    text = f'v2\n{{"operatorId":3,"paths":["{was}/state/3/_stateSchema/default/0_a","{was}/state/3/_stateSchema/x"]}}'
    ck.write("state/3/_metadata/v2/0", text)
    ck.write("state/3/_metadata/v2/.0.crc", "sum")
    ck.start()
    (note,) = (ck.spark / "state/3/_metadata/v2").iterdir()
    paths = json.loads(note.read_text().partition("\n")[2])["paths"]
    scheme = "file:" if was.startswith("file:") else ""
    assert paths == [f"{scheme}{ck.spark}/state/3/_stateSchema/{name}" for name in ("default/0_a", "x")]
    assert (former / "state/3/_metadata/v2/0").read_text() == text, "the other's own stays as it was"


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


def test_spark_s_own_state_is_made_durable_and_again_where_it_was_replaced(ck: Checkpoint, synced: list[str]) -> None:
    (ck.spark / "state").rename(ck.location / "elsewhere")
    durable = Durable(str(ck.spark))
    durable.sync(0)
    store = ck.spark / "state" / "0" / "1"
    store.mkdir(parents=True)
    (store / "1.delta").write_text("x")
    (store / ".2.delta.tmp").write_text("x")
    synced.clear()
    durable.sync(0)
    assert sorted(synced) == [
        "spark-1",
        *("spark-1/state", "spark-1/state/0", "spark-1/state/0/1", "spark-1/state/0/1/1.delta"),
    ]
    synced.clear()
    (store / ".1.delta.tmp").write_text("y")
    (store / ".1.delta.tmp").rename(store / "1.delta")
    durable.sync(0)
    assert sorted(synced) == [f"spark-1/state/0/1{name}" for name in ("", "/1.delta")]
    synced.clear()
    (store / "2.delta").write_text("x")
    durable.sync(1)
    assert sorted(synced) == [f"spark-1/state/0/1{name}" for name in ("", "/2.delta")]


@pytest.mark.parametrize(
    "name", ["{}.zip", "{}_5e0d.changelog", "SSTs/{}.sst", "default/{}.changelog", "_metadata/v2/{}"]
)
def test_whatever_spark_s_stores_write_is_made_durable(ck: Checkpoint, synced: list[str], name: str) -> None:
    """Snapshots too, beside the changes of a version, though they are made in passing: within some versions."""
    durable = Durable(str(ck.spark))
    store = ck.spark / "state" / "0" / "1"
    missing = set()
    for version in range(1, 20):
        for path in (store / f"{version}.delta", store / name.format(version)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
            missing.add(str(path.relative_to(ck.location)))
        durable.sync(version - 1)
        missing -= set(synced)
        assert f"spark-1/state/0/1/{version}.delta" not in missing
        assert len(missing) <= 8


def test_what_is_done_for_a_batch_does_not_grow_with_those_before_it(
    ck: Checkpoint, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores with a thousand versions: nothing of them is looked at again."""
    durable = Durable(str(ck.spark))
    stores = [ck.spark / "state" / "1" / str(task) for task in range(2)]
    for store in stores:
        store.mkdir(parents=True)
        for number in range(1000):
            (store / f"{number}.delta").write_text("x")
    durable.sync(998)
    entries: list[str] = []
    scandir = os.scandir

    def counted(folder: str) -> object:
        entries.extend(os.listdir(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    for batch in range(1000, 1008):
        for store in stores:
            (store / f"{batch + 1}.delta").write_text("x")
        synced.clear()
        durable.sync(batch)
        below = [f"spark-1/state/1/{task}/{batch + 1}.delta" for task in range(2)]
        assert {*below, *(os.path.dirname(path) for path in below)} <= set(synced)
        assert len(synced) <= 4 + 2 * 8, "those since it was last listed, once more"
    assert len(entries) < 2 * 1010, "each store was listed once in eight versions"


def test_what_can_not_be_made_durable_ends_the_query_before_spark_notes_the_batch(
    ck: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CheckpointError, match=r"can't be made durable.*Input/output error"):
        ck.spark_s.ended(0)
