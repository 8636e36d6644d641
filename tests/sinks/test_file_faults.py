"""What befalls a FileSink's folder: said in the status, nothing lost or doubled, and over when it is mended."""

import errno
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statefx import TopologyBuilder
from statefx.connectors.files import FileSink, committedFiles
from statefx.connectors.files.manifest import Layout
from statefx.errors import ConfigError, SinkError, SinkMismatchError, SinkOwnedError
from statefx.testing import TopologyTester, rows
from tests.testing.disks import FULL, Disk

DENIED = PermissionError(errno.EACCES, "Permission denied")


def topology(place, ddl="word string, n long", name="writes", **options):
    builder = TopologyBuilder(name)
    builder.setStream("rows", rows(ddl))
    builder.setSink("out", FileSink(place / "out", **options), parallelism=2).fieldsGrouping("rows", "word")
    return builder.createTopology()


def words(*numbers):
    return {"rows": [(f"w{number}", number) for number in numbers]}


def published(place):
    return sorted(n for file in committedFiles(place / "out") for n in pq.ParquetFile(file).read()["n"].to_pylist())


class Fault:
    """Something that goes wrong with a folder between COMMITTING and the manifest, and how it is mended."""

    def __init__(self, place, patch):
        self.out, self.patch, self.kept = place / "out", patch, place / "kept"

    def disk(self, error):
        self.patched = Disk(self.patch, self.out / "_spark_metadata", error)
        self.patched.left = 1000

    def mend_disk(self):
        self.patched.left = 0

    def spoil(self, path, spoil):
        shutil.copy2(path, self.kept)
        self.path = path
        spoil(path)

    def mend(self):
        shutil.copy2(self.kept, self.path)

    def file(self):
        return next(self.out.glob("part-0000000002-*"))

    def move(self, path):
        self.path = path
        path.rename(self.kept)

    def move_back(self):
        self.kept.rename(self.path)


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


FAULTS = {
    "out of space": (lambda fault: fault.disk(FULL), Fault.mend_disk, "No space left on device"),
    "permission lost": (lambda fault: fault.disk(DENIED), Fault.mend_disk, "Permission denied"),
    "file cut": (lambda fault: fault.spoil(fault.file(), cut), Fault.mend, r"part-0{9}2-.* bytes, not .*Restore the f"),
    "file deleted": (lambda fault: fault.spoil(fault.file(), Path.unlink), Fault.mend, r"is missing.*Restore the f"),
    "manifest torn": (
        lambda fault: fault.spoil(fault.out / "_spark_metadata" / "1", cut),
        Fault.mend,
        r"_spark_metadata/1 is damaged .*restore the folder from a backup",
    ),
    "manifest not text": (
        lambda fault: fault.spoil(fault.out / "_spark_metadata" / "1", lambda path: path.write_bytes(b"v1\n\xff\n")),
        Fault.mend,
        r"_spark_metadata/1 is damaged .*restore the folder from a backup",
    ),
    "manifests deleted": (
        lambda fault: fault.move(fault.out / "_spark_metadata"),
        Fault.move_back,
        "_spark_metadata is gone or was cut short; restore the folder from a backup",
    ),
    "owner damaged": (
        lambda fault: fault.spoil(fault.out / "_statefx" / "owners" / f"{2:010d}", cut),
        Fault.mend,
        r"owners/0{9}2 is damaged .*restore the folder from a backup",
    ),
    "folder gone": (
        lambda fault: fault.move(fault.out),
        Fault.move_back,
        "the marker, which records.*Restore the target",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_keeps_a_commit_from_being_published_is_said_and_over_when_mended(tmp_path, monkeypatch, fault):
    spoil, mend, said = FAULTS[fault]
    playing, stuck = Fault(tmp_path, monkeypatch), []
    with TopologyTester(topology(tmp_path), tmp_path / "ck") as tester:
        tester.send(words(1))
    with TopologyTester(topology(tmp_path), tmp_path / "ck") as tester:  # another process: it remembers no manifest

        def paused():
            stuck.append(tester.status["stuck"])
            mend(playing)

        tester.when("after COMMITTING(2, 0)", lambda: spoil(playing))
        tester.when("pause", paused)
        tester.send(words(2, 3))
        (found,) = stuck
        assert (found["phase"], found["txid"]) == ("commit", 2)
        with pytest.raises(SinkError, match=rf"(?s)out: .*{said}"):
            raise SinkError(found["reason"])
        tester.send(words(4))
    assert published(tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize("passing", range(4))
def test_a_disk_that_is_full_while_rows_are_written(tmp_path, monkeypatch, passing):
    with TopologyTester(topology(tmp_path), tmp_path / "ck") as tester:
        tester.send(words(1))
        disk = Disk(monkeypatch, tmp_path / "out" / ".unfinished-part-")
        disk.left, disk.passing = 2, passing
        sent = tester.send(words(*range(2, 9)))
        assert bool(disk.failed) == bool(sent.progress.attempt) == (passing < 2)
        disk.left = 0
        tester.send(words(9))
    assert published(tmp_path) == list(range(1, 10))
    assert list((tmp_path / "out").glob(".unfinished-*")) == []


@pytest.mark.slow
def test_a_disk_that_is_full_for_some_files_of_a_task(tmp_path, monkeypatch):
    """They become durable together, each on a thread; of those that did, none is published."""
    with TopologyTester(topology(tmp_path, partitionBy="word"), tmp_path / "ck") as tester:
        tester.send(words(1))
        disk = Disk(monkeypatch, tmp_path / "out" / "word=")
        disk.left, disk.passing = 2, 5
        sent = tester.send(words(*range(2, 20)))
        assert disk.failed == 2
        assert sent.progress.attempt >= 1
        assert published(tmp_path) == list(range(1, 20))
        tester.sweep()
    found = {str(path) for path in (tmp_path / "out").glob("word=*/*")}
    assert found == set(committedFiles(tmp_path / "out")), "nothing is left of the attempt that failed"


@pytest.mark.parametrize(
    ("options", "ddl", "said"),
    [
        ({"format": "json"}, "word string, n long", r"format 'parquet', not 'json': give the sink a new folder"),
        ({"partitionBy": "n"}, "word string, n long", r"partitionBy \(\), not \('n',\)"),
        ({}, "word string, n string", r"field 'n' is bigint, not string"),
        ({}, "word string, N long", r"field 'n', which Spark takes for 'N': give the sink a new folder"),
    ],
)
@pytest.mark.parametrize("adopt", [None, "takeover"])
def test_rows_that_no_reader_could_read_beside_those_that_are_there_are_refused(tmp_path, options, ddl, said, adopt):
    with TopologyTester(topology(tmp_path), tmp_path / "ck") as tester:
        tester.send(words(1))
        generation = tester.generation
    changed = topology(tmp_path, ddl, **options)
    with pytest.raises(SinkMismatchError, match=said):
        TopologyTester(changed, tmp_path / "ck", adopt=adopt)
    with TopologyTester(topology(tmp_path), tmp_path / "ck") as tester:
        assert tester.generation == generation + 1, "none was taken by the one that was refused"
        tester.send(words(2))
    assert published(tmp_path) == [1, 2]


def test_a_byte_of_parquet_that_has_changed_is_told_to_a_reader_that_asks(tmp_path):
    with TopologyTester(topology(tmp_path), tmp_path / "ck") as tester:
        tester.send({"rows": [("a" * 100, 7), ("a" * 100, 8)]})
    (file, *_) = committedFiles(tmp_path / "out")
    assert pq.ParquetFile(file, page_checksum_verification=True).read()["word"].to_pylist()[0] == "a" * 100
    data = bytearray(Path(file).read_bytes())
    data[data.index(b"a")] = ord("b")
    Path(file).write_bytes(data)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(file, page_checksum_verification=True).read()


def test_fields_of_csv_keep_their_places(tmp_path):
    before = Layout.of("csv", (), pa.schema([("a", pa.int64()), ("b", pa.string())]))
    for names in (["b", "a"], ["a"], ["a", "b", "c"]):
        kinds = {"a": pa.int64(), "b": pa.string(), "c": pa.int64()}
        after = Layout.of("csv", (), pa.schema([(name, kinds[name]) for name in names]))
        with pytest.raises(SinkMismatchError, match="holds CSV with the fields a, b, not"):
            after.added_to(before, "folder")
    assert before.added_to(before, "folder") == before


@pytest.mark.slow
def test_a_torn_manifest_is_not_taken_into_a_compact_one(tmp_path):
    with TopologyTester(topology(tmp_path), tmp_path / "ck") as tester:
        for number in range(1, 9):
            tester.send(words(number))
        cut(tmp_path / "out" / "_spark_metadata" / "5")
        stuck = []
        tester.when("pause", lambda: stuck.append(tester.status["stuck"]["reason"]) or tester.close())
        with pytest.raises(Exception, match=r"stopped|is damaged"):
            tester.send(words(9))
    assert "_spark_metadata/5 is damaged (a line is cut): restore" in stuck[0]
    assert not list((tmp_path / "out").glob("_spark_metadata/*.compact"))


def test_manifests_that_were_removed_by_hand_are_missed_by_a_start_and_by_readers(tmp_path):
    with TopologyTester(topology(tmp_path), tmp_path / "ck") as tester:
        tester.send(words(1))
    shutil.rmtree(tmp_path / "out" / "_spark_metadata")
    with pytest.raises(SinkMismatchError, match="_spark_metadata is gone or was cut short; restore the folder"):
        TopologyTester(topology(tmp_path), tmp_path / "ck")
    with pytest.raises(SinkError, match="holds no committed files"):
        committedFiles(tmp_path / "out")


def test_a_folder_by_two_names_and_of_two_topologies_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "out")
    assert FileSink(tmp_path / "link").target == FileSink(tmp_path / "out").target
    with TopologyTester(topology(tmp_path), tmp_path / "ck") as tester:
        tester.send(words(1))
    with pytest.raises(SinkOwnedError, match=r"belongs to application 'writes'\. .*give this one a target of its own"):
        TopologyTester(topology(tmp_path, name="other"), tmp_path / "other")
    with pytest.raises(SinkOwnedError, match="with another checkpoint"):
        TopologyTester(topology(tmp_path), tmp_path / "other")
    assert not os.path.exists(tmp_path / "other" / "transactions")


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("file", "Not a directory"),
        ("file/below", "Not a directory"),
        ("/proc/statefx", "No such file"),
        ("cut", "symbolic links"),
    ],
)
def test_a_folder_that_can_not_be_written_is_refused_before_anything_starts(tmp_path, path, cause):
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "cut").symlink_to(tmp_path / "cut")
    builder = TopologyBuilder("writes")
    builder.setStream("rows", rows("word string, n long"))
    builder.setSink("out", FileSink(tmp_path / path)).shuffleGrouping("rows")
    found = rf"FileSink can't write to the folder {tmp_path / path} \(.*{cause}.*\): give a folder in which"
    with pytest.raises(SinkError, match=found):
        TopologyTester(builder.createTopology(), checkpointLocation=tmp_path / "checkpoint")
    assert not list((tmp_path / "checkpoint").rglob("0*"))  # no generation was taken


def test_a_folder_of_another_topology_is_said_before_its_fields(tmp_path):
    with TopologyTester(topology(tmp_path), checkpointLocation=tmp_path / "checkpoint") as tester:
        tester.send(words(1))
    other = topology(tmp_path, "word string, n string", name="other", partitionBy="word")
    before = sorted((tmp_path / "out").rglob("*"))
    with pytest.raises(SinkOwnedError, match="belongs to application 'writes'"):
        TopologyTester(other, checkpointLocation=tmp_path / "another")
    assert sorted((tmp_path / "out").rglob("*")) == before


@pytest.mark.parametrize("name", ["a[1]", "a*", "what?", "{x}", "back\\slash"])
def test_a_folder_that_spark_would_take_for_a_pattern_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="for patterns"):
        FileSink(tmp_path / name)
