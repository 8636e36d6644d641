"""What is wrong with a folder, a file or an argument is told with its remedy, before rows are lost or mixed up."""

import re
from pathlib import Path

import pytest

from statefx.errors import InputError, StatefxError, TopologyError
from statefx.spouts import FilePartitionedSpout
from statefx.testing import TopologyTester
from tests.spouts.test_files import topology

TEXTS = "a string, value string"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def counts(folder, tmp_path, form, schema=None, **options):
    spout = FilePartitionedSpout(folder, form, schema, **options)
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        tester.drain()
        return tester.state("count")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("s3://b/x", "no URLs.*setStream"),
        (Path("s3://b/x"), "no URLs.*setStream"),
        ("dbfs:/x", "no URLs.*setStream"),
        ("file://host/d", "names the host 'host'"),
        ("~/x", "expanduser"),
        ("d/*.parquet", "Name the folder"),
        ("", "it is a folder"),
        (None, "it is a folder"),
    ],
)
def test_a_path_that_is_no_folder_is_refused(path, words):
    with pytest.raises(TopologyError, match=words):
        FilePartitionedSpout(path, "text")


def test_a_plain_file_is_refused_and_a_url_of_a_folder_is_its_path(folder):
    (folder / "a b").touch()
    with pytest.raises(TopologyError, match=r"a b is no folder.*Put the file into a folder"):
        FilePartitionedSpout(folder / "a b", "text")
    assert FilePartitionedSpout(f"file://{folder}", "text").path == str(folder)
    assert FilePartitionedSpout(f"file:{folder}/a%20c", "text").path == str(folder / "a c")
    (folder / "[x]").mkdir()
    assert FilePartitionedSpout(folder / "[x]", "text").path == str(folder / "[x]")


def test_a_folder_that_is_not_there_is_refused_when_the_topology_starts(tmp_path):
    with pytest.raises(TopologyError, match=r"nope is not there.*schema="):
        FilePartitionedSpout(tmp_path / "nope")
    spout = FilePartitionedSpout(tmp_path / "nope", "text")
    with (
        pytest.raises(InputError, match=re.escape(f"{tmp_path}/nope is not there")),
        TopologyTester(topology(spout), tmp_path / "ck") as tester,
    ):
        tester.emit()


@pytest.mark.parametrize("most", [12, 64 << 20])
def test_columns_are_taken_by_the_names_in_the_header_of_each_file(most, folder, tmp_path):
    (folder / "1").write_text("a,value\nx,y\nx,y\n")
    (folder / "2").write_text("\ufeffvalue, A,more,more\ny,x,1,1\ny,x,1,1\n")
    assert counts(folder, tmp_path, "csv", TEXTS, maxBytesPerFile=max(most, 32)) == {("x", "y"): 4}


@pytest.mark.parametrize(
    ("header", "words"), [("a,b", "no field 'value'.*'a', 'b'"), ("a,value,value", "more than one field 'value'")]
)
def test_a_header_without_a_field_is_refused(header, words, folder, tmp_path):
    (folder / "1").write_text(f"{header}\nx,y\n")
    with pytest.raises(StatefxError, match=rf"in/1 has {words}.*header=False"):
        counts(folder, tmp_path, "csv", TEXTS)
