"""What can't work is refused before anything is started: the message names it and the remedy, the disk is as it was."""

import importlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

import statefx
from statefx import Checkpoint, TopologyBuilder, submit
from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError, FencedError, InputError, TopologyError
from statefx.spark.session import DAEMON, LOADED_WORKERS
from statefx.spark.worker import modules_of
from tests.spark.bolts import word_count
from tests.spark.running import BOUND_SECS, feed, lines_of, listing, records, run, state

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stream(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream") / "in"
    feed(folder, a=["x y"], b=["x"])
    return lines_of(spark, folder)


@pytest.fixture(scope="module")
def batch(spark):
    return spark.createDataFrame([("x y",)], "value string")


@pytest.fixture(scope="module")
def finished(spark, stream, tmp_path_factory):
    """A checkpoint with two committed transactions; tests take it out, break it and put it back."""
    folder = tmp_path_factory.mktemp("finished") / "ck"
    run(word_count(stream), spark, folder, trigger={"availableNow": True})
    return folder


@pytest.fixture
def checkpoint(finished):
    kept = finished.with_name("kept")
    shutil.copytree(finished, kept)
    yield finished
    shutil.rmtree(finished, ignore_errors=True)
    kept.rename(finished)


ARGUMENTS = [
    (True, {"batchId": 3}, "batchId is for batch DataFrames"),
    (True, {"trigger": {"continuous": "1 second"}}, "availableNow"),
    (True, {"trigger": {"availableNow": False}}, "availableNow"),
    (True, {"trigger": {"availableNow": True, "once": True}}, "one of"),
    (True, {"trigger": "availableNow"}, "one of"),
    (True, {"trigger": {"processingTime": 5}}, "processingTime"),
    (False, {"trigger": {"availableNow": True}}, "trigger is for streaming DataFrames"),
    (False, {"batchId": -1}, "whole number"),
    (False, {"batchId": True}, "whole number"),
    (False, {"batchId": "7"}, "whole number"),
    (True, {"trigger": {"processingTime": "soon"}}, "'soon'"),
]


@pytest.mark.parametrize(("streaming", "arguments", "words"), ARGUMENTS, ids=str)
def test_arguments(spark, stream, batch, place, streaming, arguments, words):
    before = listing(place)
    with pytest.raises(ConfigError, match=re.escape(words)):
        submit(word_count(stream if streaming else batch), spark, place / "ck", **arguments)
    assert listing(place) == before


BESIDE = """
from statefx import BasicBolt
from statefx.connectors.files import FileSink

class Shout(BasicBolt):
    def execute(self, tup, collector): ...

class Archive(FileSink): ...

def loud(text):
    return text.upper()
"""

PROGRAM = """
import helpers_of_mine
from statefx import BasicBolt

class Shout(BasicBolt):
    def execute(self, tup, collector):
        helpers_of_mine.loud(tup.value)
"""


@pytest.mark.parametrize("what", ["bolt 'shout'", "bolt 'shout' of the program", "sink 'archive'"])
def test_a_module_that_workers_can_t_import_is_named_before_anything_is_begun(spark, batch, place, monkeypatch, what):
    """A module beside the user's script: the driver finds it there, and Spark's workers look elsewhere."""
    (place / "beside").mkdir()
    (place / "beside" / "helpers_of_mine.py").write_text(BESIDE, encoding="ascii")
    monkeypatch.syspath_prepend(place / "beside")
    mine = importlib.import_module("helpers_of_mine")
    builder = TopologyBuilder("shouts")
    builder.setStream("lines", batch)
    if what == "sink 'archive'":
        builder.setSink("archive", mine.Archive(place / "out")).shuffleGrouping("lines")
    else:
        program = {"__name__": "__main__"}
        exec(PROGRAM, program)
        shout = program["Shout"] if "program" in what else mine.Shout
        builder.setBolt("shout", shout()).shuffleGrouping("lines")
    named = what.removesuffix(" of the program")
    says = f"^{named}: module 'helpers_of_mine' can't be imported by Spark's workers: they look along PYTHONPATH"
    with pytest.raises(ConfigError, match=says):
        submit(builder.createTopology(), spark, place / "ck")
    assert not (place / "ck" / "transactions").exists()


WAYS = {
    "a class": ("from helpers_of_mine import Shout", "Shout()"),
    "a function": ("from helpers_of_mine import loud", "lambda: loud('a')"),
    "the module": ("import helpers_of_mine", "lambda: helpers_of_mine.loud('a')"),
    "the module, by another name": ("import helpers_of_mine as mine", "lambda: mine.loud('a')"),
    "the module, as a value": ("import helpers_of_mine as mine", "[mine]"),
    "a module of a package": ("import package_of_mine.helpers", "lambda: package_of_mine.helpers.loud('a')"),
}
"""How what is defined in the user's main program may need a module: cloudpickle sends it as code, and not the module"""


@pytest.mark.parametrize("way", WAYS)
def test_a_module_that_workers_import_is_known_however_it_is_used(place, monkeypatch, way):
    (place / "package_of_mine").mkdir()
    for name in ("helpers_of_mine", "package_of_mine/__init__", "package_of_mine/helpers"):
        (place / f"{name}.py").write_text(BESIDE, encoding="ascii")
    monkeypatch.syspath_prepend(place)
    program = {"__name__": "__main__"}
    begins, thing = WAYS[way]
    exec(begins, program)
    wanted = "package_of_mine.helpers" if "package" in way else "helpers_of_mine"
    assert wanted in modules_of(eval(thing, program))


SESSION = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
"""


@pytest.mark.parametrize(
    ("name", "begins", "says"),
    [
        (
            "opens_a_session",
            SESSION,
            r"which raises \w+: it makes a SparkSession.*Put getOrCreate\(\).*under `if __name__ == '__main__':`",
        ),
        (
            "is_a_program",
            "import __main__\n__main__.job",
            "which raises AttributeError: .*'job'. What a program does belongs under",
        ),
    ],
)
def test_a_module_that_raises_when_workers_import_it_is_named(spark, batch, place, monkeypatch, name, begins, says):
    (place / "beside").mkdir()
    (place / "beside" / f"{name}.py").write_text(f"{begins}\n{BESIDE}", encoding="ascii")
    monkeypatch.syspath_prepend(place / "beside")
    monkeypatch.setattr(sys.modules["__main__"], "job", None, raising=False)
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(place / "beside"))  # of workers
    mine = importlib.import_module(name)
    builder = TopologyBuilder("shouts")
    builder.setStream("lines", batch)
    builder.setBolt("shout", mine.Shout()).shuffleGrouping("lines")
    with pytest.raises(ConfigError, match=f"^bolt 'shout': Spark's workers import module '{name}'.*{says}"):
        submit(builder.createTopology(), spark, place / "ck")
    assert not (place / "ck" / "transactions").exists()


def test_a_session_that_is_none_or_too_old(spark, batch, place):
    before = listing(place)
    with pytest.raises(ConfigError, match="needs the SparkSession"):
        submit(word_count(batch), place / "ck", spark)
    older = type("Older", (type(spark),), {"version": "4.2.1", "__init__": lambda self: None})()
    with pytest.raises(ConfigError, match=r"needs Spark 4\.3 or later, and this session's is 4\.2\.1.*SPARK_HOME"):
        submit(word_count(batch), older, place / "ck")
    connected = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ConfigError, match=r"classic SparkSession.*\.master\(\.\.\.\) instead of \.remote"):
        submit(word_count(batch), connected, place / "ck")
    assert listing(place) == before


def test_locations_that_can_t_be_used(spark, batch, place):
    Path(place, "file").write_text("x", encoding="ascii")
    before = listing(place)
    for location in (place / "file", place / "file" / "below"):
        with pytest.raises(CheckpointError, match=f"{re.escape(str(place / 'file'))}.*folder"):
            submit(word_count(batch), spark, location)
    with pytest.raises(CheckpointError, match=r"/proc/statefx can't be written .*give a folder"):
        submit(word_count(batch), spark, "/proc/statefx")
    with pytest.raises(ConfigError, match="checkpointLocation 'dbfs:/ck' names a file system"):
        submit(word_count(batch), spark, "dbfs:/ck")
    assert listing(place) == before


def other_python(folder):
    """An interpreter that says that it is of another version, as a `python3` of the system may be."""
    (folder / "sitecustomize.py").write_text(
        "import collections, sys\n"
        "names = 'major minor micro releaselevel serial'\n"
        "sys.version_info = collections.namedtuple('version_info', names)(3, 99, 0, 'final', 0)\n",
        encoding="ascii",
    )
    program = folder / "python3"
    start = f'PYTHONPATH={folder}:"$PYTHONPATH" exec {sys.executable} "$@"'
    program.write_text(f"#!/bin/sh\n{start}\n", encoding="ascii")
    program.chmod(0o755)
    return program


def test_workers_of_another_python_are_found_before_anything_is_begun(spark, batch, place, monkeypatch):
    """Also in local mode: nothing but PYSPARK_PYTHON makes the workers run what the driver does."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(other_python(place)))
    with pytest.raises(ConfigError, match=r"can't load statefx.*another version than the driver's.*set PYSPARK_PYTHON"):
        submit(word_count(batch), spark, place / "ck")
    says = r"run another Python than the driver's.*set PYSPARK_PYTHON to one of the same minor.*PYTHON_VERSION_MISMATCH"
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set(DAEMON, "pyspark.daemon")  # a session that the user has built
    try:
        with pytest.raises(ConfigError, match=says):
            submit(word_count(batch), spark, place / "ck")
    finally:
        conf.set(DAEMON, LOADED_WORKERS[DAEMON])
    assert not (place / "ck" / "transactions").exists()
    with monkeypatch.context() as unset:
        unset.delenv("PYSPARK_PYTHON")  # the workers run what the driver does, whatever python3 is on the path
        run(word_count(batch), spark, place / "ck")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(place / "nothing"))
    with pytest.raises(
        ConfigError, match=r"first job on the executors failed: .*Cannot run program.*They run PYSPARK_PYTHON"
    ):
        submit(word_count(batch), spark, place / "ck")


@pytest.mark.soak
def test_local_workers_run_the_drivers_python_in_every_call(spark, batch, place, monkeypatch):
    """A program that was started as ``.venv/bin/python program.py`` has another ``python3`` on its path."""
    run(word_count(batch), spark, place / "ck")
    nothing = str(place / "nothing")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", nothing)
    monkeypatch.delenv("PYSPARK_PYTHON")
    counts = Checkpoint(place / "ck").toDataFrame(spark, "count")
    assert spark.sparkContext.pythonExec == nothing
    assert counts.count() == len(state(place / "ck", "count"))
    Checkpoint(place / "ck").write("count", counts, groupingKey=lambda word: word)
    Checkpoint(place / "ck").rescale({"count": 3}, groupingKey={"count": lambda word: word}, spark=spark)
    assert spark.sparkContext.pythonExec == nothing
    assert statefx.session().range(3).rdd.map(lambda row: row.id).sum() == 3


def refused(spark, topology, checkpoint, kind, words, **arguments):
    """Submitting raises, says this, and changes nothing; the error is returned."""
    before = listing(checkpoint)
    with pytest.raises(kind, match=words) as caught:
        submit(topology, spark, checkpoint, **arguments)
    assert listing(checkpoint) == before
    return caught.value


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("refuse", "reason"),
    [
        (lambda lines: lines.orderBy("value"), "Sorting is not supported"),
        (lambda lines: lines.limit(3), "Limits are not supported"),
    ],
)
def test_a_stream_that_spark_refuses_does_not_fence_the_driver_at_work(spark, stream, checkpoint, refuse, reason):
    refused(
        spark, word_count(refuse(stream)), checkpoint, TopologyError, f"Spark can't run the streaming input.*{reason}"
    )


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", ["staged", "spark"])
def test_folders_that_can_t_be_made_are_found_before_the_driver_at_work_is_fenced(
    spark, stream, checkpoint, place, monkeypatch, kind
):
    """Rule 1.5. A file is in the place of the folder; a disk may be full as well, or another user's."""
    own = place / f"statefx-{os.getuid()}"
    own.mkdir()
    (own / kind).touch()
    before = [entry.kind for entry in records(checkpoint)]
    at_work = submit(word_count(stream), spark, checkpoint, trigger={"processingTime": "100 milliseconds"})
    at_work.processAllAvailable()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(place))
            error = refused(
                spark, word_count(stream), checkpoint, ConfigError, f"can't be made.*{own / kind}.*TMPDIR.*Nothing was"
            )
        assert error.path == str(own / kind)
        at_work.processAllAvailable()
        assert at_work.isActive
    finally:
        at_work.stop()
    assert [entry.kind for entry in records(checkpoint)][len(before) :] == ["GENERATION"]


def test_a_copy_is_not_run_where_the_original_is_at_work(spark, stream, checkpoint):
    """Spark would stop the original, and nobody would be told."""
    copy = checkpoint.with_name("copy")
    shutil.copytree(checkpoint, copy)
    original = submit(word_count(stream), spark, checkpoint)
    try:
        original.processAllAvailable()
        for adopt, says in (("fork", "is at work .* another app"), ("move", "was not moved: it is still in .*/ck")):
            refused(spark, word_count(stream), copy, CheckpointMismatchError, says, adopt=adopt)
        assert original.isActive
    finally:
        original.stop()
    # The other way round, also where neither is in another folder than before.
    fork = submit(word_count(stream), spark, copy, adopt="fork")
    try:
        fork.processAllAvailable()
        refused(
            spark, word_count(stream), checkpoint, CheckpointMismatchError, "a copy of .* is at work .* another app"
        )
        assert fork.isActive
        second = submit(word_count(stream), spark, copy, adopt="fork")  # of the same checkpoint: it takes over
        with pytest.raises(FencedError):
            fork.awaitTermination(BOUND_SECS)
        refused(
            spark, word_count(stream), checkpoint, CheckpointMismatchError, "a copy of .* is at work .* another app"
        )
        second.stop()
    finally:
        fork.stop()
    run(word_count(stream), spark, checkpoint, trigger={"availableNow": True})
    shutil.rmtree(copy)


def test_a_checkpoint_inside_the_input(spark, place):
    """Its own files would come as rows, transaction after transaction."""
    feed(place / "in", a=["x"])
    for path in (place / "in", f"file://{place}/in", f"{place}/in/"):
        before = listing(place)
        with pytest.raises(ConfigError, match=r"ck is inside .*in, which the input is read from"):
            submit(word_count(lines_of(spark, path)), spark, place / "in" / "ck")
        assert listing(place) == before


def test_another_input_on_the_same_checkpoint(spark, place):
    """Spark speaks of a basePath; what that means for the topology is said with it."""
    feed(place / "in", a=["x"])
    feed(place / "other", b=["y"])
    run(word_count(lines_of(spark, place / "in")), spark, place / "ck", trigger={"availableNow": True})
    says = (
        r"outside any transaction.*Transaction 1 is the last one committed.*belongs to the input that it was begun with"
    )
    with pytest.raises(InputError, match=says) as caught:
        run(word_count(lines_of(spark, place / "other")), spark, place / "ck", trigger={"availableNow": True})
    assert caught.value.committed == 1
    assert state(place / "ck", "count") == {"x": 1}


def test_a_timeout_that_is_none(spark, batch, place):
    query = run(word_count(batch), spark, place / "ck")
    for timeout in ("60", -1, True, float("nan")):
        for wait in (query.awaitTermination, query.stop):
            with pytest.raises(ConfigError, match="timeout is a number of seconds, 0 or more, not"):
                wait(timeout)
