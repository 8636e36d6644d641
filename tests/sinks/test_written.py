"""The base of sinks whose tasks write final files: what it does for a catalog that only names and compares."""

import json
from dataclasses import asdict

import pyarrow.parquet as pq
import pytest

from statefx import TopologyBuilder, WrittenSink
from statefx.connectors import Catalog, Marker, Reached
from statefx.errors import AlreadyExistsError, SinkError, TopologyError
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows
from statefx.testing.sink_contract import FIRST, SECOND, SinkContract
from statefx.testing.sink_contract import _Driver as Driver
from tests.sinks.durable_steps import fast

__all__ = ["fast"]

pytestmark = pytest.mark.usefixtures("fast")


class Numbered(Catalog):
    """A file for each change: the next number is free, or another driver was here."""

    def __init__(self, folder):
        self.storage = FolderStorage(folder)

    def changes(self):
        return [json.loads(self.storage.read(each.name)) for each in self.storage.list("_catalog/")]

    def marker(self):
        found = self.changes()
        return Marker(**found[-1]["marker"]) if found else None

    def publish(self, marker, previous, files):
        found = self.changes()
        body = {"marker": asdict(marker), "names": [each.name for each in files]}
        if (Marker(**found[-1]["marker"]) if found else None) != previous:
            raise SinkError("another driver was here")
        try:
            self.storage.create(f"_catalog/{len(found):06d}", json.dumps(body).encode())
        except AlreadyExistsError as error:
            raise SinkError("another driver was here") from error

    def names(self):
        return [name for each in self.changes() for name in each["names"]]


class NumberedSink(WrittenSink):
    suffix = ".parquet"

    target = None

    def __init__(self, folder, catalog=Numbered):
        self.target, self.catalog = str(folder), catalog

    def begin(self, file, schema):
        return pq.ParquetWriter(file, schema)

    def connect(self, schema):
        return self.catalog(self.target)


class TestNumbered(SinkContract):
    options = {}

    def make(self, place):
        return NumberedSink(place / "out", **self.options)

    def read(self, sink):
        names = Numbered(sink.target).names()
        return [word for name in names for word in pq.ParquetFile(f"{sink.target}/{name}").read()["word"].to_pylist()]


class Forgetful(Numbered):
    """Does not say which files count."""

    def names(self):
        return []


def test_a_catalog_that_forgets_its_files_is_caught(tmp_path):
    contract = TestNumbered()
    contract.options = {"catalog": Forgetful}
    with pytest.raises(FileNotFoundError):
        contract.test_a_sweep_leaves_what_is_to_come(tmp_path)


class ByNumber(NumberedSink):
    """Has a folder for each number, and a file for each row."""

    max_file_bytes = 1

    def parts(self, batch):
        for at, n in enumerate(batch["n"].to_pylist()):
            yield f"n={n}/", batch.slice(at, 1)


def topology(sink):
    builder = TopologyBuilder("writes")
    builder.setStream("rows", rows("word string, n long"))
    builder.setSink("out", sink).globalGrouping("rows")
    return builder.createTopology()


def test_folders_and_files_of_one_row_each(tmp_path):
    with TopologyTester(topology(ByNumber(tmp_path / "out")), tmp_path / "ck") as tester:
        tester.send({"rows": [(f"w{n}", n % 3) for n in range(40)]})
    names = Numbered(tmp_path / "out").names()
    assert len(names) == 40
    assert {name.partition("/")[0] for name in names} == {"n=0", "n=1", "n=2"}
    assert all((tmp_path / "out" / name).exists() for name in names)


def test_files_of_attempts_that_were_not_named_are_swept(tmp_path):
    driver = Driver(TestNumbered(), tmp_path)
    committer = driver.start(FIRST)
    driver.write(1, ["nobody", "names"], ["this"])
    named = driver.write(1, ["a"])
    committer.commit(TransactionAttempt(1, 0), named)
    coming = driver.write(2, ["b"])
    committer.sweep(1)
    (is_named,), (is_coming,) = named[0]["files"], coming[0]["files"]
    assert [path.name for path in TestNumbered().staged(driver.sink, None)] == [is_named["name"], is_coming["name"]]
    driver.start(SECOND, Reached(1, 1))
    committer.sweep(2)
    assert (tmp_path / "out" / is_coming["name"]).exists(), "it is the newer driver's to delete"


class Unfit(NumberedSink):
    def begin(self, file, schema):
        raise ValueError("no such format")


def test_a_file_that_can_not_be_begun_is_not_left_behind(tmp_path):
    driver = Driver(TestNumbered(), tmp_path)
    driver.sink = Unfit(tmp_path / "out")
    with pytest.raises(ValueError, match="no such format") as caught:  # and so the open file, which would end with it
        driver.write(1, ["a"])
    assert caught.traceback
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_is_elsewhere_for_each_process_is_refused():
    with pytest.raises(TopologyError, match=r"'out/here'.*an absolute path"):
        topology(NumberedSink("out/here"))
