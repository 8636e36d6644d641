"""What the tester refuses, as ``submit`` would: in the same words, before a bolt has run."""

import logging
import os
import pickle
import sqlite3
import threading
from typing import Any

import pytest

from statefx import BasicBolt, BatchBolt, Stateful, StatefulBolt, TopologyBuilder
from statefx.coordinator.retrying import StoppedError
from statefx.errors import AttemptsExhaustedError, BoltError, ConfigError, FailedException, ProviderError, TopologyError
from statefx.testing import TopologyTester, rows
from tests.testing.topologies import Driver, lines, word_count


def one_bolt(bolt: Any, parallelism: int = 1, grouping: str = "shuffleGrouping") -> Any:
    builder = TopologyBuilder("one")
    builder.setStream("lines", rows("value string"))
    getattr(builder.setBolt("bolt", bolt, parallelism), grouping)("lines")
    return builder.createTopology()


def test_a_builder_is_no_topology(place):
    builder = TopologyBuilder("one")
    with pytest.raises(TopologyError, match=r"TopologyTester needs a Topology, got the builder: pass builder\.create"):
        TopologyTester(builder, place / "checkpoint")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("config", ["rocksdb", ["topology.state.provider"], 5, [], ""])
def test_a_config_that_is_no_mapping(place, config):
    with pytest.raises(ConfigError, match="config must be a mapping of settings, got"):
        TopologyTester(word_count(), place / "checkpoint", config)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"topology.max.spout.pending": 2}, "leave it at 1"),
        ({"topology.state.checkpoint.interval.ms": "1000"}, "of type str; it must be a whole number"),
        ({"topology.transaction.timeout.secs": 0}, "topology.transaction.timeout.secs is 0"),
        ({"topology.transaction.timeout.sec": 5}, "nearest is 'topology.transaction.timeout.secs'"),
        ({1: 2}, "the name of a setting is a text"),
        ({"topology.state.provider.config": "{"}, r"topology\.state\.provider\.config is no valid JSON"),
        ({"topology.state.provider.config": {"cache_mb": 3}}, "cache_mb"),
        ({"state.provider": "rocksdb"}, "nearest is 'topology.state.provider'"),
        (
            {"topology.state.provider": "rocksdb", "dir": "/tmp/state"},
            r"'dir', an option of the state provider 'rocksdb': put it into topology\.state\.provider\.config",
        ),
        (
            {"topology.state.provider": "rocksdb", "topology.state.provider.config": {"dri": "/tmp/state"}},
            "unknown option 'dri'; did you mean 'dir'",
        ),
        (
            {"topology.state.provider.config": {"components": {"cuont": {}}}},
            "'cuont', which is not in the topology; did you mean 'count'",
        ),
        (
            {"topology.state.provider.config": {"components": {"count": {"keyclass": "str"}}}},
            "there is no option 'keyclass'; did you mean 'keyClass'",
        ),
        ({"mine": threading.Lock()}, "setting 'mine' can't be sent to the executors .*lock.*give plain data"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "-".join(map(str, value)),
)
def test_settings(place, config, says):
    with pytest.raises(ConfigError, match=says):
        TopologyTester(word_count(), place / "checkpoint", config)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("provider", "says"),
    [
        ("rocksbd", "'rocksbd'; did you mean 'rocksdb'"),
        ("no.such.module:Store", "no.such.module"),
        ("statefx.state:StateStore", "not a subclass of .*StateProvider"),
    ],
)
def test_providers(place, provider, says):
    with pytest.raises(ProviderError, match=says):
        TopologyTester(word_count(), place / "checkpoint", {"topology.state.provider": provider})
    assert list(place.iterdir()) == []


def test_an_option_s_name_is_free_where_the_provider_has_the_option(place):
    config = {
        "topology.state.provider": "rocksdb",
        "topology.state.provider.config": {"dir": str(place / "caches")},
        "dir": "of my own",
    }
    with TopologyTester(word_count(), place / "checkpoint", config) as tester:
        tester.send(lines("a"))


class Holds(BasicBolt):
    def __init__(self, thing: object) -> None:
        self.fine = 1
        self.thing = thing

    def execute(self, tup, collector):
        pass


LOCK = threading.Lock()
HELD = [
    LOCK,
    sqlite3.connect(":memory:", check_same_thread=False),
    open(os.devnull, "w", encoding="utf-8"),  # noqa: SIM115 - an open file is what is held
    (number for number in range(3)),
    lambda tup, lock=LOCK: lock,
]


@pytest.mark.parametrize("thing", HELD, ids=lambda thing: type(thing).__name__)
def test_a_bolt_that_holds_what_can_not_travel(place, thing):
    says = r"bolt 'bolt' can't be sent to the executors because of its attribute 'thing' \(.*open\(\), not in __init__"
    with pytest.raises(TopologyError, match=says) as caught:
        TopologyTester(one_bolt(Holds(thing)), place / "checkpoint")
    assert caught.value.component == "bolt"
    assert list(place.iterdir()) == []


def test_state_by_key_behind_shuffle_is_told_when_it_starts(driver, caplog):
    class Seen(StatefulBolt):
        def initState(self, state):
            pass

        def execute(self, tup, collector):
            pass

    with caplog.at_level(logging.WARNING, "statefx"):
        driver.start(one_bolt(Seen(), 2))
    assert "bolt 'bolt' keeps state in 2 tasks, but its input 'lines' comes by shuffle grouping" in caplog.text


def test_what_is_usual_is_told_nothing(driver, caplog):
    with caplog.at_level(logging.WARNING, "statefx"):
        driver.start()
    assert caplog.records == []


class Emits(BasicBolt):
    outputFields = "n int"

    def __init__(self, do: Any) -> None:
        self.do = do

    def execute(self, tup, collector):
        self.do(collector)


class UnspeakableError(Exception):
    def __str__(self):
        raise ValueError("no text")


def deep(number: int) -> float:
    return deep(number - 1) if number else 1 / number


def in_two_steps(collector: object) -> None:
    try:
        deep(0)
    except ZeroDivisionError as error:
        raise KeyError("second") from error


def surrogate(collector: object) -> None:
    raise ValueError("half of \ud83d")


def unspeakable(collector: object) -> None:
    raise UnspeakableError


@pytest.mark.parametrize(
    ("do", "places", "last"),
    [
        (lambda c: deep(2), ["execute", "<lambda>", "deep", "deep", "deep"], "ZeroDivisionError: division by zero"),
        (lambda c: c.emit((1, 2)), ["execute", "<lambda>"], "SchemaError: bolt 'bolt' emitted 2 values"),
        (in_two_steps, ["in_two_steps", "deep", "execute", "in_two_steps"], "KeyError: 'second'"),
        (surrogate, ["execute", "surrogate"], "ValueError: half of"),
        (unspeakable, ["execute", "unspeakable"], "UnspeakableError: <exception str() failed>"),
    ],
    ids=["deep", "in the collector", "with a cause", "surrogate", "unspeakable"],
)
def test_a_bolt_error_has_the_whole_traceback_of_the_user_and_no_line_of_statefx(driver, do, places, last):
    with pytest.raises(BoltError) as caught:
        driver.start(one_bolt(Emits(do))).send(lines("a"))
    told = caught.value.traceback.splitlines()
    frames = [line.rpartition(" in ")[2] for line in told if line.startswith("  File ")]
    assert frames == places
    assert told[0] == "Traceback (most recent call last):"
    assert last in told[-1]
    assert all("test_mistakes.py" in line for line in told if line.startswith("  File "))
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.traceback == caught.value.traceback
    assert caught.value.traceback in str(again.__cause__)


class Does(Stateful, BatchBolt):
    outputFields = "value string"

    def __init__(self, hook: str, do: Any) -> None:
        self.hook = hook
        self.do = do

    def initState(self, state):
        self.state = state

    def act(self, hook: str, *arguments: Any) -> Any:
        return self.do(self.state, *arguments) if hook == self.hook else None

    def execute(self, tup, collector):
        self.state.put("seen", self.state.get("seen", 0) + 1)
        return self.act("execute", collector)

    def finishBatch(self, collector):
        return self.act("finishBatch", collector)

    def prePrepare(self, txid):
        self.act("prePrepare")

    def preCommit(self, txid):
        self.act("preCommit")


async def coroutine() -> None:
    pass


RETURNED = [
    ([("x",)], r"returned \[\('x',\)\] \(list\)"),
    (("x", 1), r"returned \('x', 1\) \(tuple\)"),
    (lambda: (row for row in [1]), r"returned <generator .*\(generator\)"),
    (coroutine, r"returned <coroutine .*\(coroutine\)"),
    (True, r"returned True \(bool\)"),
]


@pytest.mark.parametrize("hook", ["execute", "finishBatch"])
@pytest.mark.parametrize(("value", "says"), RETURNED, ids=["list", "tuple", "generator", "coroutine", "bool"])
def test_rows_that_are_returned_instead_of_emitted(driver, hook, value, says):
    bolt = Does(hook, lambda state, collector: value() if callable(value) else value)
    with pytest.raises(BoltError, match=rf"{hook} {says}, which nobody would see: emit") as told:
        driver.start(one_bolt(bolt)).send(lines("a"))
    assert told.value.hook == hook


def test_a_batch_that_is_returned_instead_of_emitted(driver):
    class Returns(BasicBolt):
        outputFields = "value string"

        def executeBatch(self, batch, collector):
            return batch

    with pytest.raises(BoltError, match=r"executeBatch returned .*\(RecordBatch\), which"):
        driver.start(one_bolt(Returns())).send(lines("a"))


@pytest.mark.parametrize("hook", ["execute", "finishBatch", "prePrepare", "preCommit"])
@pytest.mark.parametrize(
    ("call", "arguments", "remedy"),
    [
        ("rollback", (), "raise FailedException to have the whole transaction rolled back"),
        ("commit", (1,), "it is committed once every task has prepared"),
        ("prepareCommit", (1,), "it is prepared when prePrepare has returned"),
        ("close", (), "it is closed when the transaction has ended"),
    ],
)
def test_a_bolt_can_not_end_its_transaction(place, hook, call, arguments, remedy):
    bolt = Does(hook, lambda state, *_: getattr(state, call)(*arguments))
    says = rf"hook {hook}, transaction 1: StatePhaseError: {call}\(\) is not the bolt's to call: {remedy}"
    with Driver(place) as driver, pytest.raises(BoltError, match=says):
        driver.start(one_bolt(bolt)).send(lines("a"))
    with Driver(place) as driver:
        done = driver.start(one_bolt(Does("none", None)))
        done.send(lines("a"))
        committed = 2 if hook == "preCommit" else 1  # the first is decided before preCommit comes
        assert done.state("bolt") == {"seen": committed}


def test_a_change_of_state_in_pre_commit_ends_the_query_at_once(driver, caplog):
    """It can never succeed, however often it is tried; what is decided is committed by the mended bolt."""
    with caplog.at_level(logging.WARNING, "statefx"):
        tester = driver.start(one_bolt(Does("preCommit", lambda state: state.put("more", 1))))
        says = r"hook preCommit, transaction 1: StatePhaseError: put on a read-only .*fix the cause and start again"
        with pytest.raises(BoltError, match=says):
            tester.send(lines("a"))
        assert tester.pauses == []
        assert caplog.records == []
        mended = tester.restart(one_bolt(Does("none", None)))
        assert mended.recoveries == [{"txid": 1, "rolled": "forward"}]
        assert mended.state("bolt") == {"seen": 1}


@pytest.mark.slow
def test_a_raise_in_pre_commit_is_told_with_its_cause_and_not_fifty_times(driver, caplog):
    def fail(state: Any) -> None:
        raise ValueError("no such mailbox")

    with caplog.at_level(logging.WARNING, "statefx"):
        tester = driver.start(one_bolt(Does("preCommit", fail)))
        with pytest.raises(StoppedError, match=r"hook preCommit, transaction 1: ValueError: no such mailbox .*in fail"):
            tester.send(lines("a"))
        assert len(tester.pauses) == 50
        assert len(caplog.records) == 1
        assert "It is decided and can't be rolled back: fix the cause" in caplog.text


def test_a_failed_exception_without_a_reason_names_the_line(driver):
    def fail(state: Any, collector: Any) -> None:
        raise FailedException

    says = r"failed 8 times .*FailedException, without a reason \(.*test_mistakes\.py:\d+, in fail\)"
    with pytest.raises(AttemptsExhaustedError, match=says):
        driver.start(one_bolt(Does("execute", fail))).send(lines("a"))


def test_a_bolt_that_can_not_be_copied_for_its_tasks(place):
    class NoCopies(Emits):
        def __deepcopy__(self, memo):
            raise ValueError("there is one of me")

    for bolt in (Holds(logging), NoCopies(None)):
        with pytest.raises(
            TopologyError, match=r"bolt 'bolt' can't be copied \(.*make what can't be copied in open\(\)"
        ):
            TopologyTester(one_bolt(bolt), place / "checkpoint")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("location", [None, 5, "", " ", "a\0b", b"x", ["ck"]])
def test_a_location_that_is_no_path(location):
    with pytest.raises(ConfigError, match="checkpointLocation must be a folder's path, got"):
        TopologyTester(word_count(), location)


@pytest.mark.parametrize(
    ("work", "says"),
    [
        ([("a",)], r"given as \{stream: rows\}, .* not as \[\('a',\)\]"),
        (None, "not as None"),
        ({"lines": "a b"}, "the rows of stream 'lines' are a sequence of tuples, not 'a b'"),
        ({"lines": {"value": "a"}}, "are a sequence of tuples, not {'value': 'a'}"),
        ({"lines": 5}, "are a sequence of tuples, not 5"),
        ({"lines": [{"value": "a"}]}, r"a row of stream 'lines' is a tuple \(value\), not \{'value': 'a'\}"),
        ({"lines": [{"a"}]}, r"a row of stream 'lines' is a tuple \(value\), not \{'a'\}"),
        ({"lines": [5]}, r"a row of stream 'lines' is a tuple \(value\), not 5"),
        ({"lnies": [("a",)]}, "the topology has no stream 'lnies'; its streams are lines"),
        ({"split": [("a",)]}, "the topology has no stream 'split'"),
    ],
)
def test_rows_that_would_come_otherwise_than_meant(driver, work, says):
    tester = driver.start()
    for send in (tester.send, lambda work: tester.run([work])):
        with pytest.raises(ConfigError, match=says):
            send(work)
    tester.send(lines("a"))  # nothing was begun
    assert tester.state("count") == {"a": 1}


def test_rows_of_a_generator_come_all(driver):
    tester = driver.start()
    sent = tester.send({"lines": ((text,) for text in ("a", "b"))})
    assert sent.progress.input_rows == 2
    assert tester.state("count") == {"a": 1, "b": 1}


def test_what_nobody_can_have_emitted_is_not_an_empty_list(driver):
    tester = driver.start()
    sent = tester.send(lines("a"))
    for asked in (tester, sent):
        with pytest.raises(TopologyError, match="no component 'cuont'; the nearest is 'count'"):
            asked.emitted("cuont")
        with pytest.raises(TopologyError, match="'split' has no stream 'late'; its streams are default"):
            asked.emitted("split", "late")


def test_settings_can_not_be_written_by_a_bolt(driver):
    class Writes(BasicBolt):
        def open(self, context):
            context.config["last"] = 1

        def execute(self, tup, collector):
            pass

    with pytest.raises(BoltError, match=r"hook open, .*does not support item assignment"):
        driver.start(one_bolt(Writes())).send(lines("a"))


def test_a_task_that_nobody_heeds(driver):
    builder = TopologyBuilder("two")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("emits", Emits(lambda c: c.emit((1,), task=1))).shuffleGrouping("lines")
    builder.setBolt("reads", Holds(1), 2).shuffleGrouping("emits")
    says = "task=1 would change nothing: nobody reads the stream by directGrouping .it is read by 'reads' by shuffle"
    with pytest.raises(BoltError, match=says):
        driver.start(builder.createTopology()).send(lines("a"))


def test_a_bolt_that_emits_without_output_fields(driver):
    class Forgets(Emits):
        outputFields = None

    says = r"on stream 'default', .*declared are none\. Say what it emits: outputFields = \"word string"
    with pytest.raises(BoltError, match=says):
        driver.start(one_bolt(Forgets(lambda c: c.emit((1,))))).send(lines("a"))
