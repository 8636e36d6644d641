"""Drivers that are killed, stopped or replaced, and workers that die: the outcome is that of an undisturbed run."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import PythonException

from statefx import BasicBolt, StatefulBolt, TopologyBuilder, submit
from statefx.connectors import MemoryTransactionalSpout
from statefx.coordinator.retrying import JobFailedError
from statefx.coordinator.runs import NoSlotsError
from statefx.errors import AttemptsExhaustedError, FencedError, InputError
from statefx.log.location import Folders
from statefx.log.takeover import read_checkpoint, take_generation
from statefx.operators.context import DRIVER
from statefx.spark.checkpoint import SparkCheckpoint
from statefx.spark.failures import job_error, last_line
from statefx.spark.feeds import StreamFeed
from statefx.spark.job import held_slots
from tests.bolts import Split, WithState
from tests.providers.redis_server import RedisServer
from tests.spark.bolts import Once, recount, word_count
from tests.spark.counting import begun
from tests.spark.drivers import EXPECTED, FILES, ON, ONCE, hold, log_of, published, under_way
from tests.spark.running import BOUND_SECS, feed, kinds, lines_of, listing, local_folders, reasons, run, state, wait_for


@pytest.mark.soak
@pytest.mark.parametrize("provider", ["rocksdb", "memory"])
def test_killed_in_every_phase(spark, drivers, place, provider):
    """Also in the recovery from what the one before has left."""
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    first = drivers(place, provider)
    first.wait_until(lambda log: log.committed >= 1 and log.in_flight, "a second transaction to be PREPARING")
    fell = [first.kill()]

    hold(place, "ROLLBACK", 2)
    second = drivers(place, provider)
    second.wait_until(lambda log: log.generation == 2, "the second driver to recover")
    fell.append(second.kill())  # in recovery, on the way back

    hold(place, "COMMITTING", 3)
    third = drivers(place, provider)
    third.wait_until(under_way("COMMITTING", 3), "a transaction to be COMMITTING")
    fell.append(third.kill())

    hold(place, "COMMITTING", 4)
    fourth = drivers(place, provider)
    fourth.wait_until(lambda log: log.generation == 4, "the fourth driver to recover")
    fell.append(fourth.kill())  # in recovery, on the way forward

    lose_spark_s(place)
    last = run(*begun(spark, place, provider))
    assert fell == [("PREPARING", 2), ("PREPARING", 2), ("COMMITTING", 2), ("COMMITTING", 2)]
    assert last.recoveries == [{"txid": 2, "rolled": "forward"}]
    assert ("ROLLED_BACK", 2, 0) in kinds(place / "ck")
    assert state(place / "ck", "count") == published(place) == {**EXPECTED, "late": 1}


def lose_spark_s(work):
    """All that Spark has written is gone with the machine, while there is more to read."""
    for folder in local_folders(work / "ck"):
        shutil.rmtree(folder)
    feed(work / "in", later=["late"])


TO_ANOTHER = pytest.param([signal.SIGTERM], id="to another", marks=pytest.mark.soak)


@pytest.mark.parametrize("masked", [pytest.param([], id="to the main thread"), TO_ANOTHER])
def test_sigterm_drains(drivers, place, masked):
    """Where the main thread masks the signal, transactions are committed until it wakes up and sees it."""
    files = {f"{number:02}": [f"{number} b c"] * 40 for number in range(60)}
    feed(place / "in", **files)
    hold(place, "PREPARING", 1)
    driver = drivers(place, trigger=ON, more={"masked": masked})
    driver.wait_until(lambda log: log.committed == 1 and log.in_flight, "a second transaction to be PREPARING")
    driver.process.send_signal(signal.SIGTERM)
    (place / "hold-PREPARING").unlink()
    assert driver.end(-signal.SIGTERM)["ended"], "the program goes on behind awaitTermination"
    log = log_of(place)
    assert (kinds(place / "ck")[-1], log.in_flight) == (("COMMITTED", log.committed, None), ())
    assert log.committed == 2 or (masked and 2 < log.committed < len(files))
    read = list(files.values())[: log.committed]
    assert state(place / "ck", "count") == recount(line for lines in read for line in lines)


def pause(begun):
    begun.set()
    signal.pause()


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_sigterm_ends_a_forked_process_and_leaves_the_query_of_its_parent_alone(spark, place):
    feed(place / "in", a=FILES["a"])
    query = submit(word_count(lines_of(spark, place / "in")), spark, place / "ck", trigger=ALWAYS)
    forking = multiprocessing.get_context("fork")
    begun = forking.Event()
    child = forking.Process(target=pause, args=(begun,))
    child.start()
    try:
        assert begun.wait(BOUND_SECS)
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM, "as it leaves its block, a Pool waits for ever"
    finally:
        child.kill()
    query.processAllAvailable()
    query.stop()
    assert state(place / "ck", "count") == recount(FILES["a"])


class Interrupting(MemoryTransactionalSpout):
    """Its copy on the driver is opened while `submit` waits; then Ctrl-C comes, once."""

    def __init__(self, once):
        super().__init__([[("a b",)]], "value string")
        self.once = once

    def open(self, context):
        super().open(context)
        if context.task == DRIVER and self.once:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.parametrize("moment", ["starting", "begun"])
def test_ctrl_c_in_submit_leaves_no_query_that_nobody_has(spark, place, monkeypatch, moment):
    def interrupt(query):
        raise KeyboardInterrupt

    builder = TopologyBuilder("interrupted")
    once = Once(place)
    builder.setSpout(
        "lines", Interrupting(once) if moment == "begun" else MemoryTransactionalSpout([[]], "value string")
    )
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    topology, held = builder.createTopology(), held_slots()
    if moment == "starting":
        monkeypatch.setattr(sys.modules["statefx.spark.submit"], "watch", interrupt)
    with pytest.raises(KeyboardInterrupt) as kept:  # as IPython keeps the last one, with all that its frames hold
        submit(topology, spark, place / "ck")
    assert held_slots() == held
    assert [thread for thread in threading.enumerate() if thread.name == "statefx-interrupted"] == []
    del kept
    monkeypatch.undo()
    query = submit(topology, spark, place / "ck")
    query.processAllAvailable()
    query.stop()


@pytest.mark.soak  # two that are replaced, and wake up, come below
def test_two_drivers_on_one_checkpoint(spark, drivers, place):
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    first = drivers(place, trigger=ON)
    first.wait_until(lambda log: log.committed == 1 and log.in_flight, "a second transaction to be PREPARING")
    second = submit(*begun(spark, place))
    wait_for(lambda: log_of(place).committed >= 2, "the second driver to go on")
    (place / "hold-PREPARING").unlink()
    assert first.end(3)["error"] == "FencedError"
    assert second.awaitTermination(BOUND_SECS)
    assert second.recoveries == [{"txid": 2, "rolled": "back"}]
    assert state(place / "ck", "count") == published(place) == EXPECTED
    assert log_of(place).generation == 2


@pytest.mark.slow
def test_no_java(place):
    """What a user without Java sees is PySpark's own: it names Java and JAVA_HOME."""
    code = "from pyspark.sql import SparkSession; SparkSession.builder.master('local[1]').getOrCreate()"
    folder = place / "bin"
    folder.mkdir()
    for tool in ("bash", "dirname", "basename", "sed", "env", "nice", "ps", "cat", "grep", "head", "tr"):
        if found := shutil.which(tool):
            (folder / tool).symlink_to(found)
    env = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "SPARK_HOME")}
    env |= {"PATH": str(folder), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    assert "JAVA_HOME is not set" in done.stderr
    assert "JAVA_GATEWAY_EXITED" in done.stderr


# ---- Drivers that are stopped, replaced, and then go on: nothing of what they do lands, whatever keeps the state.


@pytest.mark.soak
@pytest.mark.parametrize("provider", ["redis", "memory", "rocksdb"])
def test_stopped_drivers_go_on_when_others_have_taken_over(spark, drivers, place, provider):
    """One is stopped while PREPARING, the next while COMMITTING, a third does the work; then both are continued."""
    feed(place / "in", **FILES)
    with ExitStack() as stack:
        options = {"url": stack.enter_context(RedisServer()).url} if provider == "redis" else {}
        config = {"topology.state.provider": provider, "topology.state.provider.config": options}

        hold(place, "PREPARING", 1)
        preparing = drivers(place, provider, **options)
        preparing.wait_until(lambda log: log.committed >= 1 and log.in_flight, "a transaction to be PREPARING")
        assert preparing.stop() == ("PREPARING", 2)

        hold(place, "COMMITTING", 2)
        committing = drivers(place, provider, **options)
        committing.wait_until(under_way("COMMITTING", 2), "a transaction to be COMMITTING")
        assert committing.stop() == ("COMMITTING", 2)

        last = run(*begun(spark, place, provider, options))
        assert last.recoveries == [{"txid": 2, "rolled": "forward"}]
        log, found = kinds(place / "ck"), state(place / "ck", "count", config=config)
        assert found == published(place) == EXPECTED
        asleep = local_folders(place / "ck")
        assert len(asleep) == 2, "those of drivers that sleep are left alone, that of the last one is gone"

        for zombie in (preparing, committing):
            zombie.go_on()
            (place / f"hold-{'PREPARING' if zombie is preparing else 'COMMITTING'}").unlink()
        for zombie in (preparing, committing):
            assert zombie.end(3)["error"] == "FencedError"
        assert kinds(place / "ck") == log
        assert published(place) == EXPECTED
        assert [folder for folder in asleep if folder.exists()] == [], "each has deleted its own"
        assert log_of(place).generation == 3
        assert state(place / "ck", "count", config=config) == found


@pytest.mark.parametrize(
    "when", ["planning", *(pytest.param(when, marks=pytest.mark.soak) for when in ("beginning", "ending"))]
)
def test_a_driver_that_was_replaced_is_fenced_whatever_spark_says(spark, place, monkeypatch, when):
    """It goes on in its own folder."""
    feed(place / "in", a=FILES["a"])
    topology = word_count(lines_of(spark, place / "in"))
    query = submit(topology, spark, place / "ck", trigger={"processingTime": "100 milliseconds"})
    query.processAllAvailable()
    take = StreamFeed._take

    def overtaken(moment):
        if moment == when and not took:
            taken_over = take_over(place / "ck")
            folder = Path(taken_over.folder)
            took.append((taken_over, folder, listing(folder), kinds(place / "ck")))

    def taken(*arguments):
        overtaken("beginning")
        take(*arguments)
        overtaken("ending")

    took = []
    monkeypatch.setattr(StreamFeed, "_take", taken)
    overtaken("planning")
    feed(place / "in", b=FILES["b"], c=FILES["c"])
    with pytest.raises(FencedError, match="taken over"):
        query.awaitTermination(BOUND_SECS)
    ((successor, folder, was, log),) = took
    assert (listing(folder), kinds(place / "ck")) == (was, log)
    successor.remove()
    monkeypatch.undo()
    run(topology, spark, place / "ck", trigger=ONCE)
    assert state(place / "ck", "count") == recount(FILES["a"] + FILES["b"] + FILES["c"])


def take_over(location):
    folders = Folders(str(location))
    log = take_generation(folders, read_checkpoint(folders).topology, frozenset(), shared=False)
    found = SparkCheckpoint(folders, log, [0])
    found.rebuild(10)
    return found


# ---- Workers that die, jobs that are cancelled, transactions that take too long: the next attempt is exact.


FAULT_FILES = {name: [f"{name} b c {number % 7}" for number in range(40)] for name in "abc"}
ALL = [line for lines in FAULT_FILES.values() for line in lines]


def held(path, bound_secs=BOUND_SECS):
    end = time.monotonic() + bound_secs
    while os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.01)  # noqa: TID251 - a wait with a bound


class Count(StatefulBolt):
    outputFields = "word string, count long"

    def __init__(self, once, odd):
        self.once = once
        self.odd = odd

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts = state
        self.left = 5

    def execute(self, tup, collector):
        self.counts.put(tup.word, self.counts.get(tup.word, 0) + 1)
        self.left -= 1
        if self.context.txid == 2 and self.left == 0 and self.once:
            self.odd()


class Killer(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.soak
def test_workers_that_are_killed_each_time_end_the_query_with_a_bound(spark, place):
    topology = word_count(spark.createDataFrame([("a",)], "value string"), split=Killer())
    with pytest.raises(AttemptsExhaustedError, match=r"failed 2 times.*(?i:crashed|exited)"):
        run(topology, spark, place / "ck", {"topology.transaction.attempts.max": 2})
    assert kinds(place / "ck")[-1] == ("ROLLED_BACK", 1, 1)


AVAILABLE, ALWAYS = {"availableNow": True}, {"processingTime": "0 seconds"}


def at_work(spark, place, trigger, count=Count):
    """Submit a word count; its second transaction is at work as long as the file `hold` is there."""
    feed(place / "in", **FAULT_FILES)
    hold, once = place / "hold", Once(place)
    hold.touch()
    topology = word_count(lines_of(spark, place / "in"), count=count(once, lambda: held(hold)))
    query = submit(topology, spark, place / "ck", trigger=trigger)
    wait_for(lambda: once.happened, "the transaction to be at work")
    return topology, hold, query


@pytest.mark.soak
def test_the_user_cancels_all_jobs(spark, place):
    _, hold, query = at_work(spark, place, AVAILABLE)
    spark.sparkContext.cancelAllJobs()
    wait_for(lambda: ("ROLLED_BACK", 2, 0) in kinds(place / "ck"), "the attempt to be rolled back")
    hold.unlink()
    assert query.awaitTermination(BOUND_SECS)
    assert query.exception() is None
    assert "ancel" in reasons(place / "ck")[0]
    assert state(place / "ck", "count") == recount(ALL)


class Noting(Count):
    def preRollback(self):
        with open(self.once.path + "-rolled-back", "a", encoding="ascii") as file:
            file.write(f"{self.context.txid}.{self.context.attempt}\n")


def test_stop_drains_or_rolls_back(spark, place):
    topology, hold, query = at_work(spark, place, ALWAYS, Noting)
    began = time.monotonic()
    query.stop(timeout=0.2)  # can't be drained, and its task does not answer
    assert time.monotonic() - began < 20
    assert query.exception() is None
    assert kinds(place / "ck")[-1] == ("PREPARING", 2, 0)

    (place / "once").unlink()
    query = submit(topology, spark, place / "ck", trigger=ALWAYS)
    wait_for((place / "once").exists, "the transaction to be at work")
    rolled_back = (place / "once-rolled-back").read_text(encoding="ascii").split()
    assert set(rolled_back) == {"2.0"}
    assert len(rolled_back) >= 2  # in each task; the first driver may have had one of them do it
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    wait_for(lambda: query._feed._draining, "the query to drain")
    hold.unlink()
    stopping.join(BOUND_SECS)
    assert kinds(place / "ck")[-1] == ("COMMITTING", 2, 1)  # and the third was not begun
    run(topology, spark, place / "ck", trigger={"availableNow": True})
    assert state(place / "ck", "count") == recount(ALL)


def test_stop_waits_for_what_is_at_work_with_available_now(spark, place):
    """Spark ends its own query at once, and the run of all tasks does not belong to it."""
    _, hold, query = at_work(spark, place, AVAILABLE)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    wait_for(lambda: not spark.streams.active, "Spark's query to end")
    hold.unlink()
    stopping.join(BOUND_SECS)
    assert kinds(place / "ck")[-2:] == [("PREPARING", 2, 0), ("COMMITTING", 2, 0)]


@pytest.mark.parametrize(
    "trigger", [pytest.param(ALWAYS, id="always"), pytest.param(AVAILABLE, id="available", marks=pytest.mark.soak)]
)
def test_somebody_stops_spark_s_own_query(spark, place, trigger):
    """Rows would come, or are there, and nobody reads them: that is no end like that of ``stop``."""
    topology, hold, query = at_work(spark, place, trigger)
    (inner,) = spark.streams.active
    inner.stop()
    hold.unlink()
    with pytest.raises(InputError, match=r"Spark's own query was stopped, and not by .* is not read.*submit again"):
        query.awaitTermination(BOUND_SECS)
    assert kinds(place / "ck")[-1] == ("COMMITTING", 2, 0)  # what it has staged, and no more
    run(topology, spark, place / "ck", trigger={"availableNow": True})
    assert state(place / "ck", "count") == recount(ALL)


@pytest.mark.soak
def test_a_second_driver_in_the_same_session(spark, place):
    topology, hold, first = at_work(spark, place, ALWAYS)
    second = submit(topology, spark, place / "ck", trigger={"availableNow": True})
    hold.unlink()
    assert second.awaitTermination(BOUND_SECS)
    with pytest.raises(Exception, match=r"generation 2|taken over"):
        first.awaitTermination(BOUND_SECS)
    assert type(first.exception()).__name__ == "FencedError"
    assert state(place / "ck", "count") == recount(ALL)


# ---- What a failure of Spark's is told as.


WAITED = """An error occurred while calling o1.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
Caused by: java.net.SocketException: Broken pipe
\tat java.base/sun.nio.ch.Net.write(Net.java:1)
"""
PYTHON = """Job aborted
Traceback (most recent call last):
  File "x.py", line 1, in f
ValueError: no number
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (WAITED, "java.net.SocketException: Broken pipe"),
        (PYTHON, "ValueError: no number"),
        ("o1.collect.\n: java.io.IOException: no space\n\tat x", "o1.collect. : java.io.IOException: no space at x"),
    ],
    ids=["waited", "python", "java"],
)
def test_a_trace_is_told_by_the_line_that_says_why(text, says):
    assert last_line(text) == says


# ---- What ends a query as stopped, and what only looks like it.


READ = "if(value = 'b', raise_error('java.lang.InterruptedException: a read was interrupted'), value) as value"


class HeldAt(WithState):
    """Holds each line for as long as a file of its name is there."""

    def __init__(self, folder):
        self.folder = folder

    def execute(self, tup, collector):
        (self.folder / f"{tup[0]} began").touch()
        held(self.folder / tup[0])
        self.state.put(tup[0], self.state.get(tup[0], 0) + 1)


@pytest.mark.slow
def test_an_input_that_fails_while_a_transaction_runs_names_the_last_one_committed(spark, place):
    """Spark can't plan the third batch, while the second one is executed, and then committed."""
    feed(place / "in", a=["a"], b=["b"], c=["c"])
    for line in "ab":
        (place / line).touch()
    builder = TopologyBuilder("held")
    builder.setStream("lines", lines_of(spark, place / "in"))
    builder.setBolt("count", HeldAt(place)).globalGrouping("lines")
    query = submit(builder.createTopology(), spark, place / "ck", trigger={"processingTime": "10 milliseconds"})
    wait_for((place / "a began").exists, "the first transaction")
    (folder,) = local_folders(place / "ck")
    (folder / "content" / "offsets" / "2").mkdir()  # as where a disk is full
    (place / "a").unlink()
    wait_for((place / "b began").exists, "the second transaction")
    wait_for(lambda: query._feed._source.is_over, "Spark's query to end")
    (place / "b").unlink()
    with pytest.raises(InputError, match=r"outside any transaction.*Transaction 2 is the last one committed") as caught:
        query.awaitTermination(BOUND_SECS)
    assert caught.value.committed == log_of(place).committed == 2
    assert state(place / "ck", "count") == {"a": 1, "b": 1}


@pytest.mark.slow
def test_no_text_of_a_failure_is_a_stop():
    trace = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most "
        "recent failure: Lost task 0.0: java.lang.InterruptedException\n\tat org.apache.hadoop.hdfs.DFSInputStream.read"
    )
    assert type(job_error(Exception(trace), local=True)) is JobFailedError


@pytest.mark.slow
def test_slots_that_others_hold_are_named():
    text = (
        "Job aborted due to stage failure: [CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT] The stage group needs 6 concurrent "
        "task slots, but only 4 are currently free."
    )
    found = job_error(Exception(text), local=True)
    assert type(found) is NoSlotsError
    assert found.message.startswith("the tasks of the topology live at the same time")
    assert "needs 6 concurrent task slots, but only 4 are" in found.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "is_lost"),
    [
        ("pyarrow.lib.ArrowInvalid: Expected to read 240 metadata bytes, but only read 96", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("NotADirectoryError: [Errno 20] Not a directory: '/data/rates.csv'", False),
        ("TimeoutError: the rows of the level before have not ended after 5 s", True),
        ("AttributeError: Can't get attribute 'Count' on <module 'bolts'>", False),
    ],
)
def test_input_that_is_cut_off_is_no_mistake_of_the_user(last, is_lost):
    """Spark stops giving rows when the job fails elsewhere, and may tell of that first."""
    trace = f'Traceback (most recent call last):\n  File "worker.py", line 60, in __call__\n    yield\n{last}\n'
    found = job_error(PythonException(trace), local=True)
    assert (type(found) is JobFailedError) == is_lost
    assert last[:60] in found.message


@pytest.mark.slow
def test_rows_that_find_no_room_are_no_mistake_of_the_user():
    """Rule 6.8: whatever the system says of the folder, it is tried again, and no function of theirs is named."""
    last = "statefx.runtime.outlets.RowsNotWrittenError: rows can't be written to /tmp ([Errno 20] Not a directory)"
    found = job_error(PythonException(f"Traceback (most recent call last):\n  File ...\n{last}\n"), local=True)
    assert type(found) is JobFailedError
    assert found.message == last.partition(": ")[2]


@pytest.mark.soak
@pytest.mark.parametrize("kind", [pytest.param("batch", marks=pytest.mark.soak), "stream"])
def test_a_read_that_is_interrupted_in_a_task_is_a_failure(spark, place, kind):
    """The driver says so: whoever runs a batch would think it applied."""
    feed(place / "in", a=["a"], b=["b"])
    lines = lines_of(spark, place / "in") if kind == "stream" else spark.read.text(str(place / "in"))
    arguments = {"trigger": {"availableNow": True}} if kind == "stream" else {"batchId": 7}
    config = {"topology.transaction.attempts.max": 2}
    with pytest.raises(AttemptsExhaustedError, match=r"failed 2 times.*a read was interrupted"):
        run(word_count(lines.selectExpr(READ)), spark, place / "ck", config, **arguments)
    assert kinds(place / "ck") == ([("PREPARING", 1, 0), ("COMMITTING", 1, 0)] if kind == "stream" else [])
