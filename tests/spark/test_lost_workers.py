"""Python workers that have lost the program that starts them, and what that program has loaded."""

import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException

from statefx.spark import daemon
from statefx.spark.daemon import unzipped
from statefx.spark.executors import with_open_workers
from statefx.spark.internals import got_closed_worker
from tests.spark.bolts import word_count
from tests.spark.idle_workers import drop_closed, factories, idle
from tests.spark.running import feed, lines_of, run, state, wait_for

TRIES = 40
"""Spark does not notice every other time or so; a try takes a second at most."""


def programs(spark):
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    found = set()
    for children in Path(f"/proc/{jvm}/task").glob("*/children"):
        for process in children.read_text().split():
            try:
                if b"statefx.spark.daemon" in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.add(int(process))
            except OSError:
                continue
    return found


def fails(spark):
    def same(batches):
        yield from batches

    try:
        spark.range(0, 1, 1, 1).mapInArrow(same, "id long").collect()
    except (PySparkException, Py4JError) as error:
        return str(error)
    return ""


def lose(spark, group):
    def work():
        spark.sparkContext.setJobGroup(group, "to be cancelled", interruptOnCancel=True)
        fails(spark)

    before = programs(spark)
    thread = InheritableThread(target=work)
    thread.start()
    (program,) = wait_for(lambda: programs(spark) - before, "Spark to start workers")
    os.kill(program, signal.SIGSTOP)
    spark.sparkContext.cancelJobGroup(group)
    thread.join(60)
    os.kill(program, signal.SIGKILL)


@pytest.fixture
def lost(spark, monkeypatch):
    """Only for functions with an environment of this test's own: all others find their workers."""
    for _ in range(TRIES):
        monkeypatch.setitem(spark.sparkContext.environment, "STATEFX_TEST", uuid.uuid4().hex)
        lose(spark, f"lost-{uuid.uuid4().hex}")
        if "NullPointerException" in fails(spark):
            return
    raise AssertionError("Spark always noticed")


@pytest.mark.soak
def test_a_topology_is_given_others(spark, place, lost, caplog):
    feed(place / "in", a=["x", "y"], b=["x"])
    run(word_count(lines_of(spark, place / "in")), spark, place / "ck", trigger={"availableNow": True})
    assert state(place / "ck", "count") == {"x": 2, "y": 1}
    assert "Spark has lost the program that starts its Python workers" in caplog.text
    assert "NullPointerException" in fails(spark), "the user's own functions have the others still"


# ---- Spark's idle workers that have lost their connection


def pids(session):
    def own(batches):
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "rows": [rows]})

    found = session.range(0, 4, 1, 2).mapInArrow(own, "pid long, rows long").collect()
    assert sum(each.rows for each in found) == 4
    return {each.pid for each in found}


@pytest.fixture
def closed(spark):
    """Idle workers whose connection is closed, and which have not noticed."""
    for pid in (stopped := pids(spark)):
        os.kill(pid, signal.SIGSTOP)  # one that sees it ends, and Spark skips it
    for factory in factories(spark):
        for worker in idle(factory):
            worker.channel().close()
    yield stopped
    for pid in stopped:
        with suppress(ProcessLookupError):  # Spark has ended those that a failed task had got
            os.kill(pid, signal.SIGKILL)


def test_spark_gives_them_to_a_task(spark, closed):
    """Else nothing of this would be needed any more."""
    with pytest.raises(Exception, match="ClosedChannelException") as caught:
        pids(spark)
    assert got_closed_worker(caught.value)
    drop_closed(spark)


def test_a_test_gets_none(spark, closed):
    drop_closed(spark)
    assert not pids(spark) & closed


def test_a_tool_passes_over_them(spark, closed):
    assert not with_open_workers(lambda: pids(spark)) & closed


# ---- What the program that forks Spark's Python workers has loaded, and where it takes pyspark from.


def spark_in(folder, package="pyspark"):
    """A Spark in `folder`, as it lies in a downloaded one, or as pip installs it; return its archives."""
    lib = folder / package / "python" / "lib" if package else folder / "python" / "lib"
    lib.mkdir(parents=True)
    archives = [lib / "pyspark.zip", lib / "py4j-0.10-src.zip"]
    for archive in archives:
        archive.touch()
    if package:
        (folder / package / "__init__.py").touch()
    return [str(archive) for archive in archives]


def test_pyspark_comes_compiled_from_where_pip_has_installed_it(tmp_path):
    archives = spark_in(tmp_path / "site-packages")
    mine = [str(tmp_path / "mine"), str(tmp_path / "mine.zip")]
    path = ["", *archives, *mine, str(tmp_path / "site-packages")]
    assert unzipped(path) == ["", *mine, str(tmp_path / "site-packages")]


def test_the_archive_of_another_spark_stays(tmp_path):
    """Workers must not run the pyspark that happens to be installed beside a downloaded Spark."""
    spark_in(tmp_path / "site-packages")
    path = [*spark_in(tmp_path / "spark-4.3.0-bin-hadoop3", package=""), str(tmp_path / "site-packages")]
    assert unzipped(path) == path


def test_an_archive_stays_where_the_rest_of_the_path_does_not_find_its_package(tmp_path):
    path = [*spark_in(tmp_path / "site-packages"), os.fspath(tmp_path)]
    assert unzipped(path) == path


FORKED = """
import importlib, os, socket, sys
from statefx.spark.daemon import quiet

program = importlib.import_module("pyspark.daemon")
os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"  # as Spark has it
ours, spark = socket.socketpair()


def main(infile, outfile):
    outfile.write(b"what nobody waits for")
    spark.close()
    {ends}


program.worker, program.sys.argv = quiet(program.worker), ["daemon", "pyspark.worker"]
importlib.import_module("pyspark.worker").main = main
program.worker(ours, True)
"""
"""A worker of Spark's program, whose connection Spark closes before it has told the end."""


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(("ends", "says"), [("pass", ""), ("raise SystemExit(0)", ""), ("1 / 0", "ZeroDivisionError")])
def test_a_worker_that_spark_no_longer_waits_for_ends_without_a_trace(ends, says):
    run = subprocess.run(
        [sys.executable, "-c", FORKED.format(ends=ends)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 1
    assert says in run.stderr if says else run.stderr == ""


def test_errors_of_a_worker_are_raised_as_ever():
    def worker(sock, authenticated):
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        daemon.quiet(worker)(None, True)
    assert daemon.quiet(lambda sock, authenticated: 0)(None, True) == 0


@pytest.mark.slow
def test_nothing_talks_to_an_object_store_before_workers_are_forked():
    """Its client has threads, which no fork takes along: workers would hang at their first request."""
    loaded = f"import importlib, sys; [importlib.import_module(name) for name in {daemon.LOADED}]"
    run = subprocess.run(
        [sys.executable, "-c", f"{loaded}; print('obstore' in sys.modules, 'statefx.runtime.chain' in sys.modules)"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert run.stdout.split() == ["False", "True"]
