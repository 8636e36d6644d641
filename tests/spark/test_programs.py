"""What a script with a mistake leaves on the terminal: the user's own lines, last and unburied."""

import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pyspark
import pytest

from statefx import TopologyBuilder, submit
from statefx.errors import BoltError, ConfigError
from statefx.spark import worker
from tests.bolts import Pass, WithState
from tests.conftest import ROOT
from tests.docs.test_code_blocks import program
from tests.spark.bolts import word_count
from tests.spark.logging_bolts import PRINTED
from tests.spark.running import BOUND_SECS, feed, kinds, records, run, state, wait_for


def run_of(program, *arguments, code=0):
    """Run a script; return its lines of JSON on stdout, and its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.spark.{program}", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done.stdout.splitlines(), done.stderr


def stderr_of(program, *arguments, code=0):
    return run_of(program, *arguments, code=code)[1]


def told(place, mistake, code):
    """Run a script; return what it wrote to stderr after each query that it submitted, and before the next one."""
    stderr = stderr_of("scripts", mistake, place, code=code)
    _, *parts = re.split(r"\w+ submitted\n", stderr)
    return [part.replace("\r", "\n").splitlines() for part in parts]


TRACEBACK = [
    "Traceback (most recent call last):",
    ", in execute",
    "self.divide(tup.n)",
    ", in divide",
    "return 1 / n",
    "~~^~~",
    "ZeroDivisionError: division by zero",
]


def shows(lines, expected):
    for start in range(len(lines)):
        if all(line.endswith(end) for line, end in zip(lines[start:], expected, strict=False)):
            return len(lines) - start >= len(expected)
    return False


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.soak
def test_the_users_traceback_is_shown_and_spark_s_is_not(place):
    (lines,) = told(place, "waiting", 1)
    assert shows(lines, TRACEBACK)
    assert lines[-1].startswith("statefx.errors.BoltError: bolt 'divide', task "), "\n".join(lines)
    assert re.search(r"scripts\.py:\d+, in divide\)$", lines[-1])
    assert [line for line in lines if line.startswith("\tat ")] == []
    assert len(lines) < 45


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.soak
def test_an_error_that_nobody_waits_for_is_logged_and_the_end_of_the_script_while_a_query_runs(place):
    failed, ended = told(place, "not waiting", 0)
    assert any(line.startswith("query zero ended: BoltError: bolt ") for line in failed)
    assert shows(failed, TRACEBACK)
    assert [line for line in ended if line.startswith("query 'sound' was running when the script ended")]


@pytest.mark.spark
def test_a_refusal_has_the_user_s_line_above_it_and_no_frames_of_ours_but_one(spark, place, caplog):
    topology = word_count(spark.createDataFrame([("a",)], "value string"))
    with caplog.at_level(logging.DEBUG, "statefx"), pytest.raises(ConfigError, match="names a file system") as caught:
        submit(topology, spark, "hdfs://host/checkpoint")
    frames = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [os.path.basename(each) for each in frames] == ["test_programs.py", "submit.py"]
    (logged,) = [record for record in caplog.records if record.exc_info]
    # Not `caplog.text`: PySpark's own logger has pytest's handler write JSON once a test has used it.
    functions = [frame.name for frame in traceback.extract_tb(logged.exc_info[2])]
    assert "local_path" in functions, "whoever looks for a defect finds the others there"


# ---- The program of the page "Operations", started by spark-submit, ended by SIGTERM, and run again.


SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
LINES = [f"{number % 7} {number % 11}" for number in range(200)]
FILES = 8


@pytest.fixture
def started(place):
    """The job, started with spark-submit, and its log; what is left of it in the end is killed."""
    feed(place / "in", **{f"f{number}": LINES for number in range(FILES)})
    job = place / "job.py"
    job.write_text(program((ROOT / "docs" / "operations.md").read_text(encoding="utf-8")), encoding="utf-8")
    command = [SUBMIT, "--master", "local[4]", "--conf", "spark.ui.enabled=false", job, place / "in", place / "ck"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (place / "run.log").open("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, process_group=0)
        yield process, log
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def text_of(log):
    log.seek(0)
    return log.read()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.soak
def test_what_sigterm_interrupts_the_next_start_completes(place, started, programs):
    process, log = started

    def at_work():
        assert process.poll() is None, text_of(log)
        return (place / "ck" / "transactions").exists() and any(
            record.kind == "PREPARING" and record.txid >= 2 for record in records(place / "ck")
        )

    wait_for(at_work, "the second transaction")
    process.terminate()
    assert process.wait(BOUND_SECS) == 128 + signal.SIGTERM, text_of(log)

    again = programs.run(place / "job.py", place / "in", place / "ck", "once")
    assert again["failure"] is None, again["failure"]
    assert again["stdout"].startswith("recovered: [")
    words = " ".join(LINES).split()
    assert state(place / "ck", "count") == {word: FILES * words.count(word) for word in words}


# ---- What bolts log in Spark's workers comes out as the driver's loggers are set.


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.spark
def test_what_bolts_log_and_print_is_logged_by_the_driver_once(place):
    lines, stderr = run_of("logging_bolts", place)
    records = [record for record in map(json.loads, lines) if record["logger"].startswith("statefx.worker")]
    told = [(record["logger"], record["level"], record["message"]) for record in records]
    named = [each for each in told if "many" not in each[2] and "left out" not in each[2]]
    assert named == [
        ("statefx.worker.shop.bolts", "INFO", "logs[0]: counted log"),
        ("statefx.worker.shop.bolts", "ERROR", "logs[0]: failed"),
        ("statefx.worker", "INFO", "logs[0]: printed print"),
        ("statefx.worker", "WARNING", "logs[0]: printed to stderr"),
        ("statefx.worker", "INFO", "logs[0]: no text: \\xff\\xfe"),
        ("statefx.worker", "INFO", "logs[0]: printed in a thread"),
        ("statefx.worker", "INFO", "logs[0]: without an end"),
    ]
    assert records[0]["order"] == [5]
    assert records[1]["exception"].endswith("ValueError: no such word")
    assert {
        (record["statefx_topology"], record["statefx_component"], record["statefx_task"]) for record in records
    } == {("logging", "logs", 0)}
    assert {record.get("statefx_txid") for record in records[:5]} == {1}
    many = [each for each in told if "many" in each[2]]
    counts = [
        int(re.search(r": ([\d,]+) lines", each[2])[1].replace(",", "")) for each in told if "left out" in each[2]
    ]
    assert len(many) + sum(counts) == PRINTED
    assert 0 < len(many) < PRINTED / 10
    assert "by the descriptor\n" in stderr
    for once in ("printed", "counted", "no such word", "many", "not to be heard"):
        assert once not in stderr


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.spark
def test_a_program_without_logging_has_the_lines_of_bolts_on_stderr(place):
    lines, stderr = run_of("logging_bolts", place, "quiet")
    assert lines == []
    assert re.search(r"^[\d-]+ [\d:,]+ ERROR shop\.bolts: failed\nTraceback", stderr, re.MULTILINE)
    assert "\nprinted print\n" in stderr
    assert len(re.findall(r"^many \d+$", stderr, re.MULTILINE)) == PRINTED
    assert "counted" not in stderr


@pytest.fixture
def loggers(monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(worker, "_logged_as", {})
    level = root.level
    yield root
    root.setLevel(level)
    logging.getLogger("shop.bolts").setLevel(logging.NOTSET)


def test_a_worker_takes_over_the_levels_that_the_driver_has_set(loggers, monkeypatch):
    monkeypatch.setattr(loggers, "handlers", [])  # here, and not in the fixture: pytest adds its own for each phase
    loggers.setLevel(logging.ERROR)
    logging.getLogger("shop.bolts").setLevel(logging.DEBUG)
    levels = worker.levels_here()
    assert (levels[""], levels["shop.bolts"]) == (logging.ERROR, logging.DEBUG)
    worker.log_as({"": logging.INFO, "shop.bolts": logging.WARNING})
    worker.log_as({"": logging.INFO, "shop.bolts": logging.WARNING})
    assert len(loggers.handlers) == 1
    assert (loggers.level, logging.getLogger("shop.bolts").level) == (logging.INFO, logging.WARNING)


@pytest.mark.parametrize(
    ("level", "wanted"),
    [(None, (False, False, False)), (logging.INFO, (True, True, True)), (logging.ERROR, (True, False, False))],
    ids=["no logging", "info", "error"],
)
def test_a_driver_wants_what_it_would_show(loggers, monkeypatch, level, wanted):
    monkeypatch.setattr(loggers, "handlers", [] if level is None else [logging.NullHandler()])
    loggers.setLevel(level or logging.WARNING)
    assert worker.wanted_here(local=True) == (*wanted, False)
    assert worker.wanted_here(local=False) == (*wanted, True)


def test_logging_that_a_worker_has_set_up_itself_stays(loggers, monkeypatch):
    own = logging.NullHandler()
    monkeypatch.setattr(loggers, "handlers", [own])
    loggers.setLevel(logging.ERROR)
    worker.log_as({"": logging.DEBUG})
    assert (loggers.handlers, loggers.level) == ([own], logging.ERROR)


# ---- A bolt that fails in a worker: what the driver is told, and that the next start goes on exactly.


class Faulty(WithState):
    def __init__(self, switch):
        self.switch = Path(switch)

    def execute(self, tup, collector):
        self.state.put("total", self.state.get("total", 0) + tup.n)
        if tup.n == 7 and self.switch.exists():
            if self.switch.read_text() == "exit":
                sys.exit(3)
            raise ValueError("no good")


@pytest.mark.daily(1)
@pytest.mark.parametrize(("how", "says"), [("raise", "ValueError: no good"), ("exit", "SystemExit: 3")])
def test_a_hook_that_fails_ends_the_query_and_the_next_start_goes_on(spark, place, how, says):
    switch = place / "switch"
    builder = TopologyBuilder("faulty")
    builder.setStream("numbers", spark.createDataFrame([(number,) for number in range(10)], "n long"))
    builder.setBolt("first", Pass("n long"), parallelism=2).shuffleGrouping("numbers")
    builder.setBolt("faulty", Faulty(switch)).globalGrouping("first")
    topology = builder.createTopology()
    run(topology, spark, place / "ck")
    switch.write_text(how)
    query = submit(topology, spark, place / "ck")
    with pytest.raises(BoltError, match=f"bolt 'faulty', task 0, hook execute, transaction 2: .*{says}") as caught:
        query.awaitTermination(120)
    error = caught.value
    assert (error.component, error.task, error.hook, error.txid) == ("faulty", 0, "execute", 2)
    assert query.exception() is error
    assert error.traceback.splitlines()[0] == "Traceback (most recent call last):"
    assert error.traceback.splitlines()[-1] == says
    assert f"{__file__}" in error.traceback
    assert "/statefx/" not in error.traceback
    assert query.status["message"] == error.message
    assert pickle.loads(pickle.dumps(error)).txid == 2
    assert state(place / "ck", "faulty") == {"total": 45}
    assert kinds(place / "ck")[-2:] == [("PREPARING", 2, 0), ("ROLLED_BACK", 2, 0)]
    switch.unlink()
    run(topology, spark, place / "ck")
    assert state(place / "ck", "faulty") == {"total": 90}
    assert kinds(place / "ck")[-2:] == [("PREPARING", 2, 1), ("COMMITTING", 2, 1)]
