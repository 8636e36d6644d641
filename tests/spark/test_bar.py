"""The line at the bottom of a terminal, and what else it shows of a query with the settings that Spark comes with."""

import io
import logging
import os
import pty
import re
import subprocess
import sys
import threading

import pytest

from statefx.coordinator.progress import TransactionProgress
from statefx.errors import ConfigError
from statefx.spark import query as query_module
from statefx.spark.query import Bar, Line, bar
from tests.conftest import ROOT
from tests.spark.bolts import word_count


def done(txid, rows):
    return TransactionProgress(txid, 0, {"statefx_input_rows": {(): rows}}, 0.0)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def screen(text):
    """What a terminal shows of it."""
    lines = [[]]
    column = 0
    for letter in text:
        if letter == "\n":
            lines.append([])
            column = 0
        elif letter == "\r":
            column = 0
        else:
            lines[-1][column:] = [letter, *lines[-1][column + 1 :]]
            column += 1
    return ["".join(line).rstrip() for line in lines]


def test_a_terminal_that_logs_as_it_is_written_to_holds_up_nobody():
    """So does the stream of a notebook, or whatever the garbage collector ends meanwhile."""

    class Logging(io.StringIO):
        def write(self, text):
            if not self.getvalue():
                super().write(" ")
                line.filter(logging.makeLogRecord({}))
            return super().write(text)

    line = Line(Logging())
    drawing = threading.Thread(target=line.draw, args=("text",), daemon=True)
    drawing.start()
    drawing.join(30)
    assert not drawing.is_alive()


def test_the_line_tells_of_transactions_rows_and_rows_a_second():
    stream, clock = io.StringIO(), Clock()
    shown = Bar("word-count", Line(stream), clock)
    for txid in range(101, 113):
        clock.now += 0.5
        shown.committed(done(txid, 1000))
    assert screen(stream.getvalue()) == ["word-count: 12 transactions (last: 112), 12,000 rows, 2,000 rows/s"]
    shown.ended()
    assert screen(stream.getvalue())[-1] == ""
    assert len(screen(stream.getvalue())) == 2


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def test_queries_share_the_line_and_a_narrow_terminal_cuts_it(monkeypatch):
    stream = io.StringIO()
    line = Line(stream)
    one, two = (Bar(name, line, clock=Clock()) for name in ("one", "two"))
    one.committed(done(1, 0))
    monkeypatch.setenv("COLUMNS", "30")
    two.committed(done(1, 0))
    assert screen(stream.getvalue()) == ["two: 1 transactions (last: 1)"]
    one.ended()
    assert screen(stream.getvalue()) == ["one: 1 transactions (last: 1), 0 rows, 0 rows/s", ""]
    monkeypatch.setenv("COLUMNS", "300")
    Bar("a" * 90, line).committed(done(2, 0))
    assert len(screen(stream.getvalue())[-1]) <= 79  # what Spark's own bar wipes


def test_what_is_logged_stands_in_lines_of_its_own():
    stream = io.StringIO()
    line = Line(stream)
    logger = logging.getLogger("statefx.test-of-the-line")
    logger.propagate = False
    logger.addFilter(line)
    logger.addHandler(logging.StreamHandler(stream))
    shown = Bar("one", line, Clock())
    shown.committed(done(1, 0))
    logger.warning("something")
    shown.committed(done(2, 0))
    assert screen(stream.getvalue()) == ["something", "one: 2 transactions (last: 2), 0 rows, 0 rows/s"]


def test_what_others_log_stands_in_lines_of_its_own(monkeypatch):
    """Handlers of the root logger, as `logging.basicConfig` makes them, are given the lines of py4j too."""
    stream = io.StringIO()
    handler, root = logging.StreamHandler(stream), logging.getLogger()
    monkeypatch.setattr(root, "handlers", [handler])
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(query_module, "_line", None)
    shown = bar("one", wanted=True)
    shown.committed(done(1, 5))
    logging.getLogger("py4j.of-the-test").warning("closing down")
    assert screen(stream.getvalue()) == ["closing down", ""]
    shown.committed(done(2, 5))
    stream.write("26/11/22 14:51:08 WARN Utils: a line of Spark's own, which its JVM writes past Python's logging\n")
    assert screen(stream.getvalue())[1].startswith("26/11/22 14:51:08 WARN Utils: a line of Spark's own")
    logging.getLogger("statefx").removeFilter(query_module._line)


class Closed(io.StringIO):
    def write(self, text):
        raise OSError("gone")


def test_a_terminal_that_has_gone_changes_nothing():
    shown = Bar("one", Line(Closed()), Clock())
    shown.committed(done(1, 5))
    shown.ended()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("terminal", "wanted", "there"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_where_there_is_a_line(monkeypatch, terminal, wanted, there):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(query_module, "_line", Line(stream))
    assert (bar("one", wanted) is not None) == there


def test_an_option_that_is_no_option_is_refused(spark, place):
    from statefx import submit

    with pytest.raises(ConfigError, match="progress must be True, False or None"):
        submit(word_count(spark.createDataFrame([("a",)], "value string")), spark, place / "ck", progress="yes")
    assert not (place / "ck").exists()


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.spark
def test_a_terminal_with_spark_as_it_comes(tmp_path):
    """Default trigger, default settings, Spark's own bar on; two queries after each other, each stopped."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.terminal", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunks.append(os.read(ours, 65536))
        except OSError:  # the other end is closed
            break
    os.close(ours)
    text = b"".join(chunks).decode().replace("\r\n", "\n")
    assert process.wait(60) == 0, text[-3000:]
    shown = screen(text)
    last = [line for line in shown if re.search(r"transactions \(last: \d+\)", line)]
    assert [line.partition(" (")[0] for line in last] == ["first: 2 transactions", "second: 2 transactions"], shown
    assert all(re.fullmatch(r"\w+: 2 transactions \(last: 2\), 2 rows, [\d,]+ rows/s", line) for line in last), shown
    assert "falling behind" not in text
    assert "Failed to cancel" not in text
    assert text.count("small transactions get cheaper") == 1
