"""What a worker logs and prints: which lines go to the driver, in which bounds, and that nothing waits for it."""

import io
import json
import logging
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statefx import logs
from statefx.coordinator.worker_lines import WORKERS, WorkerLines, record_of
from statefx.protocol import messages
from statefx.protocol.identity import TaskId
from statefx.protocol.messages import FrameError, Line
from statefx.runtime import worker_log
from statefx.runtime.worker_log import (
    LINE_CHARS_MAX,
    LINES_BURST,
    LINES_PER_SEC,
    REPORT_SECS,
    Printed,
    Records,
    Wanted,
    WorkerLog,
)
from tests.spark.running import wait_for
from tests.test_logs import Kept

ALL = Wanted(records=True, stdout=True, stderr=True, echo=False)
COUNT = TaskId("count", 3)
BOUND_SECS = 30


class Own(io.TextIOWrapper):
    """A stream of the process's own."""

    def __init__(self):
        super().__init__(io.BytesIO(), "utf-8", "backslashreplace")

    @property
    def text(self):
        self.flush()
        return self.buffer.getvalue().decode("utf-8", "backslashreplace")


class Worker:
    """A worker with its streams; `lines` is what the driver gets."""

    def __init__(self):
        self.now, self.bodies = 0.0, []
        self.log = WorkerLog(lambda: self.now, lambda: 1000.0 + self.now)
        self.log.streams = {"stdout": Own(), "stderr": Own()}
        self.stdout, self.stderr = Printed(self.log, "stdout"), Printed(self.log, "stderr")

    def attach(self, wanted=ALL, tasks=(COUNT,), send=None):
        self.log.attach(send or self.bodies.append, wanted, tasks)
        return self

    def ended(self):
        """Everything that was sent, when the run has ended."""
        self.log.detach()
        return self.lines

    @property
    def lines(self):
        return [line for body in self.bodies for line in messages.unpack_lines(body)]

    @property
    def texts(self):
        return [line.text for line in self.lines]

    def own(self, stream="stderr"):
        return self.log.streams[stream].text


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.log.detach()


# ---- which lines


def test_a_printed_line_has_the_task_that_runs(worker):
    worker.attach()
    with logs.fields(topology="words", component="split", task=1, txid=7, attempt=2):
        print("a", 5, file=worker.stdout)
        print("b", file=worker.stderr)
    out, err = worker.ended()
    assert out == Line(
        1000.0, logging.INFO, "", "stdout", {"component": "split", "task": 1, "txid": 7, "attempt": 2}, "a 5"
    )
    assert (err.level, err.stream, err.text) == (logging.WARNING, "stderr", "b")
    assert worker.own("stdout") == worker.own("stderr") == ""


def test_a_thread_of_the_users_has_the_task_where_there_is_one_only(worker):
    def print_aside():
        thread = threading.Thread(target=print, args=("aside",), kwargs={"file": worker.stdout})
        with logs.fields(component="split", task=1):
            thread.start()
        thread.join()

    worker.attach()
    print_aside()
    worker.log.detach()
    worker.attach(tasks=(COUNT, TaskId("split", 0)))
    print_aside()
    assert [line.fields for line in worker.ended()] == [{"component": "count", "task": 3}, {}]


def test_threads_that_print_at_once_do_not_mix_their_lines(worker):
    worker.attach()
    begun = threading.Barrier(4)

    def talk(name):
        begun.wait(BOUND_SECS)
        for number in range(20):
            print(name, number, name, file=worker.stdout)

    threads = [threading.Thread(target=talk, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    worker.ended()
    assert sorted(worker.texts) == sorted(f"{name} {number} {name}" for name in "abcd" for number in range(20))


@pytest.mark.slow
@given(st.lists(st.binary(max_size=20), max_size=30))
@settings(max_examples=50, deadline=None)
def test_whatever_bytes_are_printed_each_line_arrives_once(pieces):
    worker = Worker().attach()
    for piece in pieces:
        assert worker.stdout.buffer.write(piece) == len(piece)
    worker.ended()
    lines = b"".join(pieces).split(b"\n")
    shown = [line.decode("utf-8", "backslashreplace").rstrip("\r") for line in lines]
    assert worker.texts == [line for line in shown if line]


def test_half_a_surrogate_pair_and_a_null_are_escaped_or_kept(worker):
    worker.attach()
    print("\ud800 \x00", file=worker.stdout)
    worker.ended()
    assert worker.texts == ["\\ud800 \x00"]


def test_a_line_without_an_end_is_sent_after_a_while(worker):
    worker.attach()
    print("waiting for", end="", file=worker.stdout)
    assert worker.log._is_due_later()
    worker.now += worker_log.PARTIAL_SECS
    wait_for(lambda: worker.texts == ["waiting for"], "the line")
    print(" more", file=worker.stdout)
    worker.ended()
    assert worker.texts == ["waiting for", " more"]


def test_a_stream_is_as_those_of_python(worker):
    assert worker.stdout.encoding == "utf-8"
    assert worker.stdout.isatty() is False
    assert worker.stdout.writable()
    worker.stdout.reconfigure(line_buffering=True)
    worker.stdout.writelines(["a\n", "b\n"])
    worker.stdout.flush()
    with pytest.raises(TypeError):
        worker.stdout.write(b"bytes")
    worker.stdout.close()
    assert worker.own("stdout") == "a\nb\n"


def test_without_a_run_all_goes_to_the_own_streams(worker):
    print("before", file=worker.stdout)
    worker.attach()
    print("within", file=worker.stdout)
    worker.ended()
    print("after", file=worker.stdout)
    assert worker.own("stdout") == "before\nafter\n"
    assert worker.texts == ["within"]


@pytest.mark.parametrize(
    ("wanted", "sent", "own"),
    [
        (Wanted(stdout=True, echo=False), ["out"], "err\n"),
        (Wanted(stderr=True, echo=False), ["err"], "out\n"),
        (Wanted(stdout=True, stderr=True), ["out", "err"], "out\nerr\n"),
        (Wanted(), [], "out\nerr\n"),
    ],
    ids=["stdout", "stderr", "with an echo", "nothing"],
)
def test_lines_go_where_the_driver_wants_them(worker, wanted, sent, own):
    worker.attach(wanted)
    print("out", file=worker.stdout)
    print("err", file=worker.stderr)
    worker.ended()
    assert worker.texts == sent
    assert worker.own("stdout") + worker.own("stderr") == own


# ---- records


@pytest.fixture
def logger(worker):
    made = logging.Logger("shop.bolts")  # noqa: LOG001 - of no other test
    made.addHandler(Records(worker.log))
    return made


def test_a_record_arrives_with_its_logger_extra_and_traceback(worker, logger):
    worker.attach()
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("failed for %s", "ann", extra={"order": {5}, "when": 10**400})
    (line,) = worker.ended()
    assert (line.level, line.logger, line.text) == (logging.ERROR, "shop.bolts", "failed for ann")
    assert line.trace.startswith("Traceback (most recent call last):\n")
    assert json.loads(line.extra) == {"order": [5], "when": hex(10**400)}
    assert worker.own() == ""


def test_a_record_without_a_run_is_a_line_on_stderr(worker, logger):
    logger.warning("sold out")
    assert worker.own().endswith(" WARNING shop.bolts: sold out\n")


def test_a_record_that_cannot_be_formatted_harms_nothing(worker, logger, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    worker.attach()
    logger.warning("%d", "x")
    logger.warning("sound")
    worker.ended()
    assert worker.texts == ["sound"]


# ---- bounds


@pytest.mark.parametrize(
    ("name", "level"), [("sh\udc80p", logging.INFO), ("shop", 1 << 70), ("shop", 20.5)], ids=["name", "large", "float"]
)
def test_a_record_that_no_frame_can_hold_as_it_is_costs_no_other_line(worker, name, level):
    worker.attach()
    strange = logging.LogRecord("shop", logging.INFO, "", 0, "strange", None, None)
    strange.name, strange.levelno = name, level
    Records(worker.log).emit(strange)
    wait_for(lambda: worker.texts == ["strange"], "the line")
    Records(worker.log).emit(logging.LogRecord("shop", logging.INFO, "", 0, "after it", None, None))
    worker.ended()
    assert worker.texts == ["strange", "after it"]


@pytest.mark.soak
@pytest.mark.slow
def test_a_task_that_prints_without_end_is_cut_and_counted(worker):
    worker.attach()
    for number in range(100_000):
        print(number, file=worker.stdout)
    worker.ended()
    printed = [line for line in worker.lines if line.stream]
    assert [line.text for line in printed] == [str(number) for number in range(LINES_BURST)]
    told = [line.text for line in worker.lines if not line.stream]
    assert sum(int(text.partition(" ")[0].replace(",", "")) for text in told) == 100_000 - LINES_BURST
    assert len(told) <= 2  # at once, and at the end
    assert {line.level for line in worker.lines if not line.stream} == {logging.WARNING}


def test_the_budget_of_one_task_is_not_that_of_another_and_comes_back(worker):
    worker.attach(tasks=(COUNT, TaskId("split", 0)))
    with logs.fields(component="count", task=3):
        for _ in range(2 * LINES_BURST):
            print("count", file=worker.stdout)
        worker.now += 1.0
        for _ in range(2 * LINES_PER_SEC):
            print("later", file=worker.stdout)
    with logs.fields(component="split", task=0):
        print("split", file=worker.stdout)
    worker.ended()
    texts = worker.texts
    assert [texts.count(text) for text in ("count", "later", "split")] == [LINES_BURST, LINES_PER_SEC, 1]


@pytest.mark.slow
def test_what_was_dropped_is_told_now_and_then(worker):
    worker.attach()

    def flood():
        for _ in range(2 * LINES_BURST):
            print("x", file=worker.stdout)

    flood()
    wait_for(lambda: [text for text in worker.texts if "left out" in text], "the first count")
    before = len([text for text in worker.texts if "left out" in text])
    worker.now += REPORT_SECS
    flood()
    wait_for(lambda: len([text for text in worker.texts if "left out" in text]) > before, "the second count")


def test_a_line_that_is_long_is_cut(worker):
    worker.attach()
    print("x" * (LINE_CHARS_MAX * 3), file=worker.stdout)
    worker.ended()
    assert worker.texts == [f"{'x' * LINE_CHARS_MAX}... ({2 * LINE_CHARS_MAX:,} characters more)"]


@pytest.mark.slow
def test_a_driver_that_reads_nothing_holds_up_no_task(worker, monkeypatch):
    monkeypatch.setattr(worker_log, "DETACH_SECS", 0.05)
    goes_on, asked = threading.Event(), threading.Event()

    def send(body):
        asked.set()
        assert goes_on.wait(BOUND_SECS)

    worker.attach(send=send)
    for number in range(20_000):  # would hang here
        print(number, file=worker.stdout)
    assert asked.wait(BOUND_SECS)
    assert len(worker.log._queue) <= LINES_BURST
    worker.log.detach()
    goes_on.set()


def test_lines_of_a_driver_that_is_gone_go_to_stderr(worker):
    gone = threading.Event()

    def send(body):
        gone.set()
        raise ConnectionError("the driver is gone")

    worker.attach(send=send)
    print("first", file=worker.stdout)
    assert gone.wait(BOUND_SECS)
    wait_for(lambda: not worker.log._wanted.stdout, "the end")
    print("second", file=worker.stdout)
    assert "second\n" in worker.own("stdout")


def test_a_finalizer_that_prints_while_a_line_is_taken_does_not_hang(worker):
    class Prints:
        def __del__(self):
            print("finalised", file=worker.stdout)

    left = [Prints()]

    def clock():
        left.clear()  # asked for within the lock
        return 0.0

    worker.attach()
    worker.log._clock = clock
    print("printed", file=worker.stdout)
    worker.ended()
    assert sorted(worker.texts) == ["finalised", "printed"]


# ---- the driver's end


@pytest.fixture
def kept():
    handler, logger = Kept(), logging.getLogger(WORKERS)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def line(text="text", level=logging.INFO, logger="shop", **more):
    return Line(1000.25, level, logger, "", {"component": "count", "task": 3, "txid": 7, "attempt": 0}, text, **more)


def take(lines, topology="words"):
    made = WorkerLines(topology)
    made.take(messages.pack_lines(lines))
    made.close()


def test_a_line_becomes_a_record_of_a_logger_below(kept):
    take([line(trace="Traceback: x", extra='{"order": 5, "msg": "hidden"}'), line(logger="statefx")])
    record, own = kept.records
    assert (record.name, own.name) == ("statefx.worker.shop", WORKERS)
    assert record.getMessage() == "count[3]: text"
    assert {name: vars(record)[f"statefx_{name}"] for name in logs.FIELDS} == {
        "topology": "words", "txid": 7, "attempt": 0, "component": "count", "task": 3,
    }  # fmt: skip
    assert (record.order, record.created, record.exc_text) == (5, 1000.25, "Traceback: x")
    assert logging.Formatter().format(record) == "count[3]: text\nTraceback: x"


def test_the_level_of_the_workers_logger_is_gone_by(kept):
    logging.getLogger(WORKERS).setLevel(logging.WARNING)
    take([line("low"), line("high", logging.WARNING)])
    assert [record.args[1] for record in kept.records] == ["high"]


def test_lines_without_a_known_task_are_of_a_worker():
    assert record_of(Line(0.0, 20, "", "stdout", {}, "text"), "words").getMessage() == "a worker: text"


def test_a_handler_that_raises_and_bytes_that_are_no_lines_end_nothing(kept, caplog):
    def refuse(record):
        raise RuntimeError("of a filter")

    kept.addFilter(refuse)
    made = WorkerLines("words")
    made.take(b"\xff")
    made.take(messages.pack_lines([line()]))
    wait_for(lambda: "could not be logged" in caplog.text, "the error")
    kept.removeFilter(refuse)
    made.take(messages.pack_lines([line("sound")]))
    made.close()
    assert [record.args[1] for record in kept.records] == ["sound"]
    assert "LINES that can't be read" in caplog.text


def test_a_slow_handler_makes_nobody_wait_and_loses_lines(kept, caplog, monkeypatch):
    monkeypatch.setattr("statefx.coordinator.worker_lines.QUEUED_BYTES_MAX", 10_000)
    goes_on, called = threading.Event(), threading.Event()

    def wait(record):
        called.set()
        return goes_on.wait(BOUND_SECS)

    kept.addFilter(wait)
    made = WorkerLines("words")
    made.take(messages.pack_lines([line()]))
    assert called.wait(BOUND_SECS)
    for _ in range(1000):  # would take 1,000 times as long as the test may
        made.take(messages.pack_lines([line("x" * 100)]))
    goes_on.set()
    made.close()
    assert 10 < len(kept.records) < 100
    assert "batches of the workers' lines were dropped" in caplog.text


@pytest.mark.parametrize("body", [b"", b"\xc1", messages.pack_levels({"a": 1})])
def test_what_is_no_lines_is_refused(body):
    with pytest.raises(FrameError):
        messages.unpack_lines(body)
