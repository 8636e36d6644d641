"""A target whose marker is gone: refused at the start if the log knows it, never taken for a new one."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from statefx.connectors.files import FileSink, committedFiles
from statefx.connectors.sql import SqlSink
from statefx.errors import SinkMismatchError
from statefx.testing import Crash, Limits, TopologyTester
from tests.sinks.test_changes import send, topology

GONE = r"the marker, which records what was published, is missing.*Restore the target.*adopt='takeover'"


def start(place, *names, **options):
    sinks = {"table": SqlSink(f"sqlite:///{place}/db", "t"), "files": FileSink(place / "out")}
    chosen = topology({name: sinks[name] for name in names})
    return TopologyTester(chosen, place / "ck", limits=Limits(fold_after=2), **options)


def run(place, statement):
    with closing(sqlite3.connect(place / "db")) as connection, connection:
        return connection.execute(statement).fetchall()


@pytest.mark.slow
def test_a_crash_between_rows_and_committed_and_then_no_marker_doubles_nothing(tmp_path):
    (tmp_path / "try").mkdir()
    with start(tmp_path / "try", "table") as tester:
        send(tester, "a")
        steps = list(tester.steps)
    with pytest.raises(Crash), start(tmp_path, "table", crash_at=steps.index("before COMMITTED(1)") + 1) as tester:
        send(tester, "a")
    assert len(run(tmp_path, "select * from t")) == 1
    run(tmp_path, "delete from statefx_markers")
    with pytest.raises(SinkMismatchError, match=GONE):
        start(tmp_path, "table")
    assert len(run(tmp_path, "select * from t")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table", "files"])
def test_a_target_that_was_deleted_is_refused_after_folds_until_it_is_taken_over(tmp_path, name):
    with start(tmp_path, name) as tester:
        for word in "abcdefgh":
            send(tester, word)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    (tmp_path / "db").unlink(missing_ok=True)
    for _ in range(2):
        with pytest.raises(SinkMismatchError, match=GONE):
            start(tmp_path, name)
    with start(tmp_path, name, adopt="takeover") as tester:
        send(tester, "i")
    with start(tmp_path, name):
        pass
    found = run(tmp_path, "select word from t") if name == "table" else committedFiles(tmp_path / "out")
    assert len(found) == 1


@pytest.mark.slow
def test_a_sink_that_is_added_later_begins_where_the_checkpoint_is(tmp_path):
    with start(tmp_path, "table") as tester:
        send(tester, "a")
    with start(tmp_path, "table", "files") as tester:
        send(tester, "b")
    assert len(committedFiles(tmp_path / "out")) == 1
