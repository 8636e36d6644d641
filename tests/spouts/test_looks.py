"""What a look for something to read costs: what is new, and not what was ever read."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statefx import Context, OpaquePartitionedTransactionalSpout, PartitionedTransactionalSpout, TopologyBuilder
from statefx.connectors.files import FilePartitionedSpout
from statefx.connectors.files import spout as spouts
from statefx.connectors.files.spout import CHECKED
from statefx.coordinator.driver_spout import DriverSpout
from statefx.errors import InputError
from statefx.operators.context import DRIVER
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester
from tests.spouts.test_files import Count, topology


def calls(work: Callable[[], object]) -> int:
    """Return how many functions are called, Python's and C's, system calls among them."""
    count = 0

    def take(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(take)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class Driver:
    def __init__(self, folder, said=None, **options):
        spout = FilePartitionedSpout(folder, "text", **options)
        self.own = DriverSpout("files", spout, 1)
        self.said = dict(said or {})
        spout.open(Context({}, "files", DRIVER, 1, 1, "origin"))
        spout.initPartitions({int(name): metadata for name, metadata in self.said.items()})

    def look(self):
        planned = self.own.plan(1, self.said)
        self.said = {name: each for name, each in {**self.said, **planned}.items() if each is not None}
        return {each["file"] for each in planned.values() if each and "file" in each}


def write(folder, names):
    for name in names:
        (folder / name).write_text("a\n")


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("gone", [True, False])
def test_look_after_100_and_10_000_files_takes_as_many_calls(gone, tmp_path):
    took = {}
    for files in (100, 10_000):
        folder = tmp_path / str(files)
        folder.mkdir()
        driver = Driver(folder)
        write(folder, [f"{number:05d}" for number in range(files)])
        assert len(driver.look()) == files
        if gone:
            for each in os.scandir(folder):
                os.unlink(each)
        for _ in range(3):  # until all of them are known to be read
            assert not driver.look()
        idle = calls(driver.look)
        write(folder, ["new"])
        found = []
        new = calls(lambda driver=driver, found=found: found.extend(driver.look()))
        assert found == ["new"]
        # The names of the files that are there are listed at each look: some calls for each of those.
        listed = 0 if gone else 4 * files
        took[files] = idle - listed, new - listed
    few, many = took[100], took[10_000]
    assert many[0] < 1.5 * few[0] + 25 * CHECKED, "nothing new"
    assert many[1] < 1.5 * few[1] + 25 * CHECKED, "a new file"


def test_a_read_file_that_changes_is_refused_within_a_turn(tmp_path):
    names = [f"{number:04d}" for number in range(5 * CHECKED)]
    write(tmp_path, names)
    driver = Driver(tmp_path)
    assert driver.look() == set(names)
    for _ in range(2):
        assert not driver.look()
    (tmp_path / names[-1]).write_text("a\nb\n")

    def turn():
        for _ in range(len(names) // CHECKED + 2):
            driver.look()

    with pytest.raises(InputError, match="0499 has grown"):
        turn()
    with pytest.raises(InputError, match="0499 has grown"):  # a start compares all of them at once: it may look once
        Driver(tmp_path, driver.said).look()


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("content", ["a\n", "a\nb\n", "b\n"])
def test_a_read_file_that_is_gone_and_back_is_not_read_again(content, restarted, tmp_path):
    write(tmp_path, ["a", "b"])
    times = os.stat(tmp_path / "a")
    driver = Driver(tmp_path)
    assert driver.look() == {"a", "b"}
    driver.look()
    (tmp_path / "a").rename(tmp_path / "_a")
    driver.look()
    if restarted:
        driver = Driver(tmp_path, driver.said)
        driver.look()
    (tmp_path / "a").write_text(content)
    os.utime(tmp_path / "a", ns=(times.st_atime_ns, times.st_mtime_ns + (content != "a\n")))
    if content == "a\n":
        assert not driver.look() | driver.look()
    else:
        with pytest.raises(InputError, match=r"has grown|newer than"):
            [driver.look() for _ in range(2)]


STEPS = ["write", "write", "delete", "delete", "changed", "look", "look", "look", "look", "lost", "start"]


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), min_size=15, max_size=40))
def test_each_file_is_read_once_whatever_goes_and_comes_back(steps, tmp_path_factory):
    folder = tmp_path_factory.mktemp("in")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spouts, "LISTED", 1)
        driver, read, stamps = Driver(folder), set(), {}
        for step, number in steps:
            path = folder / str(number)
            if step == "delete":
                path.unlink(missing_ok=True)
            elif step == "lost":  # what was planned never became durable, and is planned once more
                with suppress(InputError):
                    driver.own.plan(1, driver.said)
            elif step == "start":
                driver = Driver(folder, driver.said)
            elif step == "look":
                changed = [name for name in os.listdir(folder) if name in read and stamp(folder / name) != stamps[name]]
                if changed:
                    with pytest.raises(InputError, match=r"has grown|newer than|is shorter"):
                        [driver.look() for _ in range(3)]
                    return
                new = driver.look()
                assert new == set(os.listdir(folder)) - read
                read |= new
                stamps |= {name: stamp(folder / name) for name in new}
                assert len(driver.said) <= len(os.listdir(folder)) + 10 + 6
            elif not path.exists():
                path.write_text("a\n" if step != "changed" else "a\nb\n")
                os.utime(path, ns=(0, number))


def stamp(path):
    said = os.stat(path)
    return said.st_size, said.st_mtime_ns


def test_names_of_gone_files_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(spouts, "LISTED", 10)
    monkeypatch.setattr(spouts, "NAMES_MAX", 50)
    driver, most = Driver(tmp_path), 0
    for turn in range(40):
        write(tmp_path, [f"{turn}-{number}" for number in range(5)])
        assert len(driver.look()) == 5
        driver.look()
        for each in os.scandir(tmp_path):
            os.unlink(each)
        if turn % 7 == 6:
            driver = Driver(tmp_path, driver.said)
        most = max(most, len(driver.said))
    assert most <= 40, "of 200 files, of which 50 and some are kept in lists of ten"
    write(tmp_path, ["35-0"])
    with pytest.raises(InputError, match="35-0 is newer than the one that was read"):
        driver.look()
    os.unlink(tmp_path / "35-0")
    write(tmp_path, ["0-0"])
    assert driver.look() == {"0-0"}, "forgotten: more than so many were read since"


@pytest.mark.soak
@pytest.mark.slow
def test_start_after_10_000_files_that_are_gone_takes_as_many_calls(tmp_path):
    took = {}
    for files in (1_000, 10_000):
        folder = tmp_path / str(files)
        folder.mkdir()
        driver = Driver(folder)
        write(folder, [f"{number:05d}" for number in range(files)])
        assert len(driver.look()) == files
        driver.look()
        for each in os.scandir(folder):
            os.unlink(each)
        for _ in range(3):
            driver.look()
        took[files] = calls(lambda folder=folder, said=driver.said: Driver(folder, said).look())
    assert took[10_000] < 1.1 * took[1_000]


class Many(PartitionedTransactionalSpout):
    """So many partitions, of which each has been read to its end but the last: in each start it has so many rows."""

    outputFields = "value string"
    rows = 1

    def __init__(self, partitions):
        self.partitions = partitions
        self.looks = 0

    def numPartitions(self):
        return self.partitions

    def partitionsToPlan(self):
        self.looks += 1
        return [self.partitions - 1] if self.looks > 1 else None

    def planPartitionBatch(self, partition, lastMetadata):
        if partition == self.partitions - 1:
            last = -1 if lastMetadata is None else lastMetadata["n"]
            return {"n": last + 1} if self.looks <= self.rows else None
        return {"n": partition} if lastMetadata is None else None

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        if partition == self.partitions - 1:
            collector.emit((str(metadata["n"]),))


@pytest.mark.slow
def test_transaction_of_one_of_10_000_partitions_costs_as_of_100(tmp_path, monkeypatch):
    took = {}
    for partitions in (100, 10_000):
        monkeypatch.setattr(Many, "rows", 1)
        with TopologyTester(topology(Many(partitions)), tmp_path / str(partitions)) as tester:
            tester.drain()
            drained = {}
            for rows in (2, 12):  # what is left when they are subtracted: ten transactions, and no start
                monkeypatch.setattr(Many, "rows", rows)
                drained[rows] = calls(tester.drain)
            took[partitions] = drained[12] - drained[2]
            assert tester.state("count") == {(str(n),): 1 for n in range(15)}
    assert took[10_000] < 1.1 * took[100]


class Told:
    """Two partitions that are read in each transaction, whose metadata is beside the log, and one that is read once.

    Whatever it is given it changes in place.
    """

    outputFields = "value string"
    rows = 12

    def numPartitions(self):
        return 3

    def upcoming(self, partition, last):
        n = 0 if last is None else last.pop("n") + 1
        text = "x" * (40 << 10) if partition < 2 else ""
        return {"n": n, "text": text} if n < (self.rows if text else 1) else None

    def initPartitions(self, metadata):
        for said in metadata.values():
            said["n"] = -5

    def committed(self, metadata):
        self.initPartitions(metadata)

    def emitted(self, collector, partition, metadata):
        if metadata is not None:
            collector.emit((f"{partition} {metadata['n']}",))
        return metadata


class PlannedTold(Told, PartitionedTransactionalSpout):
    def planPartitionBatch(self, partition, lastMetadata):
        return self.upcoming(partition, lastMetadata)

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        self.emitted(collector, partition, metadata)


class EmittedTold(Told, PartitionedTransactionalSpout):
    def emitPartitionBatchNew(self, attempt, collector, partition, lastMetadata):
        return self.emitted(collector, partition, self.upcoming(partition, lastMetadata))

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        self.emitted(collector, partition, metadata)


class OpaqueTold(Told, OpaquePartitionedTransactionalSpout):
    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        return self.emitted(collector, partition, self.upcoming(partition, lastMetadata))


@pytest.mark.slow
@pytest.mark.parametrize("spout", [PlannedTold, EmittedTold, OpaqueTold])
def test_metadata_beside_the_log_is_read_once_and_not_with_each_transaction_again(spout, tmp_path, monkeypatch):
    read, reading = [], FolderStorage.read

    def noting(storage, name, *span):
        read.append(name)
        return reading(storage, name, *span)

    monkeypatch.setattr(FolderStorage, "read", noting)
    with TopologyTester(topology(spout()), tmp_path / "ck") as tester:
        tester.drain()
        layers = Counter(name for name in read if name.startswith("metadata/"))
        assert len(layers) == spout.rows
        assert set(layers.values()) == {1}
        monkeypatch.setattr(spout, "rows", 14)
        tester.drain()
        expected = [f"{partition} {n}" for partition in (0, 1) for n in range(spout.rows)] + ["2 0"]
        assert tester.state("count") == {(value,): 1 for value in expected}


@pytest.mark.parametrize("wrong", [[-1], [2], ["0"], [True]])
def test_partitions_to_plan_that_are_none_are_refused(wrong, tmp_path):
    class Wrong(Many):
        def partitionsToPlan(self):
            return wrong

    builder = TopologyBuilder("wrong")
    builder.setSpout("s", Wrong(2))
    builder.setBolt("c", Count()).globalGrouping("s")
    with (
        TopologyTester(builder.createTopology(), tmp_path / "ck") as tester,
        pytest.raises(Exception, match="partitionsToPlan returns numbers from 0 to 1, or None"),
    ):
        tester.emit()
