"""Log records that programs read: their fields, repeats, and JSON whatever is in them."""

import json
import logging
import logging.config
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx import BasicBolt, Spout, TopologyBuilder, logs
from statefx.errors import BoltError, ConfigError
from statefx.logs import FIELDS, REPEATS_SECS, JsonFormatter, Repeats
from statefx.testing import TopologyTester, rows
from tests.bolts import WithState
from tests.testing.topologies import lines, word_count

logger = logging.getLogger("statefx")


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)

    def fields(self, number=-1):
        return {name: vars(self.records[number])[f"statefx_{name}"] for name in FIELDS}

    @property
    def messages(self):
        return [record.getMessage() for record in self.records]


@pytest.fixture
def kept():
    handler, level = Kept(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


# ---- fields


NOTHING = dict.fromkeys(FIELDS)


def test_a_record_has_the_fields_of_the_blocks_around_it(kept):
    with logs.fields(topology="words", txid=7):
        with logs.fields(component="count", task=0):
            logger.info("inner")
        logger.info("outer")
    logger.info("outside")
    assert kept.fields(0) == NOTHING | {"topology": "words", "txid": 7, "component": "count", "task": 0}
    assert kept.fields(1) == NOTHING | {"topology": "words", "txid": 7}
    assert kept.fields(2) == NOTHING


def test_extra_of_the_caller_comes_before_the_fields_of_the_block(kept):
    with logs.fields(txid=7):
        logger.info("x", extra={"statefx_txid": 8})
    assert kept.fields()["txid"] == 8


def test_another_thread_has_the_fields_only_if_they_are_carried(kept):
    with logs.fields(topology="words", txid=7):
        for target in (logger.info, logs.carrying(logger.info)):
            thread = threading.Thread(target=target, args=("x",))
            thread.start()
            thread.join()
        with logs.of_no_transaction():
            logger.info("x")
    assert [kept.fields(number)["txid"] for number in range(3)] == [None, 7, None]
    assert [kept.fields(number)["topology"] for number in range(3)] == [None, "words", "words"]


class Fails(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        logging.getLogger("statefx").info("sees %s", tup.word)
        raise ValueError(f"no such word: {tup.word}")


def failing():
    builder = TopologyBuilder("failing")
    builder.setStream("words", rows("word string"))
    builder.setBolt("fails", Fails(), parallelism=2).fieldsGrouping("words", "word")
    return builder.createTopology()


def test_records_of_a_transaction_name_it_and_those_of_a_task_the_task(kept, place):
    with TopologyTester(word_count(), place) as tester:
        tester.send(lines("a"))
    (done,) = [
        number for number, record in enumerate(kept.records) if "transaction 1, attempt 0" in record.getMessage()
    ]
    assert kept.fields(done) == NOTHING | {"topology": "word-count", "txid": 1, "attempt": 0}


def test_records_of_a_failed_attempt_name_task_and_attempt(kept, place):
    with TopologyTester(failing(), place) as tester, pytest.raises(BoltError):
        tester.send({"words": [("a",)]})
    (seen,) = [number for number, message in enumerate(kept.messages) if message == "sees a"]
    found = kept.fields(seen)
    assert found.pop("task") in (0, 1)
    assert found["component"] == "fails"
    assert (found["txid"], found["attempt"]) == (1, 0)
    (back,) = [number for number, message in enumerate(kept.messages) if "was rolled back" in message]
    assert kept.fields(back) == NOTHING | {"topology": "failing", "txid": 1, "attempt": 0}


class Numbers(Spout):
    outputFields = "n long"

    def open(self, context):
        self.left = [1]

    def nextTuple(self, collector):
        logger.info("nextTuple")
        while self.left:
            collector.emit((self.left.pop(),), id=1)

    def ack(self, id):
        logger.info("ack")


class Adds(WithState):
    def execute(self, tup, collector):
        logger.info("execute")
        self.state.put(tup.n, 1)

    def preCommit(self, txid):
        logger.info("preCommit")

    def close(self):
        logger.info("close")


def test_whatever_hook_logs_has_the_task(kept, place):
    builder = TopologyBuilder("numbers")
    builder.setSpout("numbers", Numbers())
    builder.setBolt("adds", Adds()).globalGrouping("numbers")
    with TopologyTester(builder.createTopology(), place) as tester:
        tester.emit()
    found = {message: kept.fields(number) for number, message in enumerate(kept.messages)}
    for message, component in [
        ("nextTuple", "numbers"), ("ack", "numbers"), ("execute", "adds"), ("preCommit", "adds"), ("close", "adds"),
    ]:  # fmt: skip
        assert (found[message]["component"], found[message]["task"]) == (component, 0), message
    assert (found["execute"]["txid"], found["preCommit"]["txid"]) == (1, 1)


# ---- repeats


class Later:
    """A clock, and the calls that wait for it."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def __call__(self):
        return self.now

    def later(self, secs, call):
        self.calls.append((self.now + secs, call))

    def turn(self, secs):
        self.now += secs
        due = [each for each in self.calls if each[0] <= self.now]
        self.calls = [each for each in self.calls if each[0] > self.now]
        for _, call in due:
            call()


@pytest.fixture
def clock():
    return Later()


@pytest.fixture
def query(clock):
    repeats = Repeats(clock, clock.later)
    with logs.of_query("words", repeats):
        yield repeats


def warn(number):
    with logs.fields(txid=number):
        logger.warning("transaction %d failed", number)


def test_a_repeated_warning_is_logged_at_once_and_then_as_a_count(kept, clock, query):
    for number in range(1, 100):
        warn(number)
        clock.turn(0.5)
    assert kept.messages[:3] == [
        "transaction 1 failed",
        "transaction 20 failed (the last of 19 such lines in 10 s)",
        "transaction 40 failed (the last of 20 such lines in 10 s)",
    ]
    assert len(kept.messages) == 5
    assert kept.fields(1) == NOTHING | {"topology": "words", "txid": 20}


def test_what_is_counted_is_logged_when_the_query_ends(kept, query):
    for number in range(3):
        warn(number)
    assert len(kept.messages) == 1
    query.close()
    assert kept.messages[1:] == ["transaction 2 failed (the last of 2 such lines in 0 s)"]


def test_a_warning_that_is_repeated_once_says_so(kept, clock, query):
    warn(1)
    clock.turn(4.0)
    warn(2)
    query.close()
    assert kept.messages[1:] == ["transaction 2 failed (repeated within 4 s)"]


def test_a_warning_that_comes_again_later_is_logged_at_once(kept, clock, query):
    warn(1)
    clock.turn(REPEATS_SECS)
    warn(2)
    assert kept.messages == ["transaction 1 failed", "transaction 2 failed"]
    assert not clock.calls


def test_other_places_levels_and_queries_are_not_held_back(kept, clock, query):
    warn(1)
    logger.warning("transaction %d failed", 2)  # another place
    for number in range(3):
        logger.info("information %d", number)
    with logs.of_query("other", Repeats(clock, clock.later)):
        warn(3)
    with logs.of_query("no driver", None):
        warn(4)
        warn(5)
    assert len(kept.messages) == 8


def test_templates_without_end_take_no_memory_without_end(kept, query):
    for number in range(logs._PLACES_MAX + 10):
        logger.warning(f"made up {number}")  # noqa: G004 - as a user may
    assert len(query._places) == logs._PLACES_MAX
    assert len(kept.messages) == logs._PLACES_MAX + 10


# ---- JSON


def record_of(message="text", *args, exc_info=None, name="statefx", **extra):
    record = logging.LogRecord(name, logging.WARNING, "/x.py", 1, message, args or None, exc_info)
    vars(record).update(extra)
    return record


def read(record):
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    return json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


class Unshowable:
    def __str__(self):
        raise RuntimeError("no text")


class Endless(dict):
    pass


ENDLESS = Endless()
ENDLESS["self"] = ENDLESS

ODD = [
    float("nan"), float("-inf"), b"\xff\n", {1, 2}, {("a", 1): object()}, 10**5000, Unshowable(), {Unshowable(): 1},
    ENDLESS, "\ud800", "\u2028\r\n\x00", [[[[[[[[[[[]]]]]]]]]]], ValueError("x"),
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_any_value_becomes_one_line_of_valid_json(value):
    found = read(record_of("%s", value, given=value))
    assert {"time", "level", "logger", "message", "given"} == set(found)


@pytest.mark.slow
@given(
    st.text(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    ),
)
def test_texts_and_nested_values_come_back_as_json(text, value):
    found = read(record_of("%s", text, given=value))
    assert found["message"] == text
    assert ("given" in found) is (value is not None)


def test_the_keys_of_a_record_with_fields_and_a_traceback():
    try:
        raise KeyError("of the user's")
    except KeyError as error:
        found = read(record_of("failed", exc_info=(KeyError, error, error.__traceback__), statefx_txid=7, order=5))
    assert found["exception"].splitlines()[-1] == 'KeyError: "of the user\'s"'
    assert (found["level"], found["logger"], found["statefx_txid"], found["order"]) == ("WARNING", "statefx", 7, 5)
    assert found["time"].endswith("+00:00")


@pytest.mark.parametrize("key", ["()", "class"])
def test_it_is_named_in_a_configuration_of_logging(key):
    found = logging.config.DictConfigurator({}).configure_formatter({key: "statefx.logs.JsonFormatter"})
    assert isinstance(found, JsonFormatter)


def test_a_format_that_would_change_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"'%\(message\)s' would change nothing. Leave format and datefmt out"):
        JsonFormatter("%(message)s")


def test_arguments_that_do_not_fit_lose_no_record():
    assert read(record_of("%d rows", "x"))["message"].startswith("%d rows (its arguments can't be filled in: TypeError")


def test_an_extra_that_is_called_as_a_key_of_ours_keeps_its_value():
    found = read(record_of("text", time="noon", exception="none"))
    assert (found["time_"], found["exception_"]) == ("noon", "none")
    assert found["message"] == "text"


def test_what_is_long_is_cut_and_what_is_none_left_out():
    found = read(record_of("x", many=list(range(5000)), statefx_txid=None))
    assert len(found["many"]) == logs._ITEMS_MAX
    assert "statefx_txid" not in found
