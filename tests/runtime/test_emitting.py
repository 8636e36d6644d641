"""What a bolt may emit, and the error for what it may not."""

import contextlib
import datetime as dt
import enum
import fractions
import uuid
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from statefx import BasicBolt, BatchBolt, Bolt, StatefulBolt, TopologyBuilder
from statefx.errors import BoltError, ConfigError, FailedException
from statefx.operators.fitting import MISFITS, fitted_table, fitter, to_array
from statefx.operators.schema import parse_schema
from statefx.runtime.gathering import weight
from statefx.testing import rows
from tests.bolts import WithState
from tests.testing.topologies import Driver

Emit = Callable[[Any], object]


class Emits(BatchBolt):
    outputFields = {"default": "word string, count int", "aside": "price decimal(4,2), tags array<string>"}

    def __init__(self, emit: Emit, late: bool = False) -> None:
        self.do = emit
        self.late = late

    def execute(self, tup, collector):
        if not self.late:
            self.do(collector)

    def finishBatch(self, collector):
        if self.late:
            self.do(collector)


class Reads(BasicBolt):
    outputFields = None

    def execute(self, tup, collector):
        pass


def run(place: Path, emit: Emit, late: bool = False, read: str = "default") -> Any:
    builder = TopologyBuilder("emits")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("emits", Emits(emit, late), 2).globalGrouping("lines")
    builder.setBolt("reads", Reads(), 2).shuffleGrouping("emits", stream=read)
    with Driver(place) as driver:
        return driver.start(builder.createTopology()).send({"lines": [("a",)]})


BATCH = pa.schema([("word", pa.string()), ("count", pa.int64())])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("emit", "says"),
    [
        (lambda c: c.emit(("a", "many")), r"emitted 'many' \(str\) on stream 'default'.*declare `count int`"),
        (lambda c: c.emit((7, 1)), r"emitted 7 \(int\) on stream 'default'.*declare `word string`"),
        (lambda c: c.emit(("a", 2**40)), r"emitted 1099511627776 \(int\).*`count int`"),
        (lambda c: c.emit(("a",)), r"emitted 1 values on stream 'default', which has 2 fields: word, count"),
        (lambda c: c.emit(("a", 1, 2)), r"emitted 3 values"),
        (lambda c: c.emit(("a", 1), stream="adise"), r"stream 'adise'.*declared are \['aside', 'default'\]"),
        (
            lambda c: c.emitBatch(pa.record_batch([[1]], ["n"])),
            r"emitted a batch on stream 'default'.*fields are \['n'\]",
        ),
        (lambda c: c.emitBatch(pa.record_batch([["a"], [2**40]], schema=BATCH)), r"emitted a batch.*1099511627776"),
        (lambda c: c.emitBatch(pa.table({"word": ["a"], "count": ["01"]})), r"emitted a batch.*'01' \(str\) is no int"),
        (lambda c: c.emitBatch(pa.record_batch([[1]], ["n"]), stream="no"), r"stream 'no'"),
        (lambda c: c.emitBatch(pa.table({"n": []})), r"emitted a batch.*fields are \['n'\]"),
        (
            lambda c: c.emitBatch([("a", 1)]),
            r"emitted \[\('a', 1\)\] on stream 'default'.*pyarrow.RecordBatch or Table",
        ),
        (lambda c: c.emitBatch(None), r"emitted None on stream 'default'.*a pyarrow.RecordBatch or Table"),
    ],
)
def test_what_does_not_fit_the_declared_schema_is_named(place, emit, says, late):
    with pytest.raises(BoltError, match=says) as caught:
        run(place, emit, late)
    assert (caught.value.component, caught.value.task, caught.value.txid) == ("emits", 0, 1)
    assert caught.value.cause.startswith("SchemaError: ")


@pytest.mark.slow
@pytest.mark.parametrize(("late", "rest"), [(False, 20), (True, 20), (True, 4500)], ids=["now", "late", "of-many"])
def test_a_bolt_that_goes_on_after_an_error_of_emit_loses_no_other_rows(place, late, rest):
    """The error comes when a batch is full: it is that of a row long before, and all rows of the batch go with it."""

    def emit(collector: Any) -> None:
        for number in range(rest):
            with contextlib.suppress(Exception):
                collector.emit(("word", "many" if number == 5 else number))

    with pytest.raises(BoltError, match=r"task 0, collector\.emit, transaction .*emitted 'many' \(str\)"):
        run(place, emit, late)


def test_what_fits_arrives_as_declared(place):
    sent = run(place, lambda c: (c.emit(["a", 1]), c.emitBatch(pa.record_batch([["b"], [2]], schema=BATCH))))
    assert sent.emitted("emits") == [("a", 1), ("b", 2)]
    assert sent.progress.rows == {"emits": 1, "reads": 2}


def test_a_stream_that_nobody_reads_takes_rows_and_counts_none(place):
    sent = run(place, lambda c: c.emit((1, ["x"]), stream="aside"))
    assert sent.progress.rows == {"emits": 1, "reads": 0}


def test_a_null_in_any_field_travels(place):
    assert run(place, lambda c: c.emit((None, None))).emitted("emits") == [(None, None)]


class Anchors(Bolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        collector.emit((tup.value,), anchors=[tup])
        collector.ack(tup)
        collector.ack(tup)
        collector.resetTimeout(tup)
        if tup.value == "bad" and self.context.attempt == 0:
            collector.fail(tup)

    def open(self, context):
        self.context = context


def test_a_plain_bolt_acks_by_hand_and_a_failed_tuple_fails_its_transaction(driver):
    builder = TopologyBuilder("anchors")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("anchors", Anchors()).shuffleGrouping("lines")
    tester = driver.start(builder.createTopology())
    assert tester.send({"lines": [("a",), ("b",)]}).progress.attempt == 0
    sent = tester.send({"lines": [("a",), ("bad",)]})
    assert sent.progress.attempt == 1
    assert sent.emitted("anchors") == [("a",), ("bad",)]


class Calls(Bolt):
    outputFields = "word string"

    def __init__(self, call):
        self.call = call

    def execute(self, tup, collector):
        self.call(collector, tup)


class CallsBasic(BasicBolt):
    outputFields = "word string"
    __init__ = Calls.__init__
    execute = Calls.execute


@pytest.mark.parametrize(
    "call",
    [
        lambda c, tup: c.emit(("a",), anchors=tup),
        lambda c, tup: c.emit(("a",), anchors=[tup, tup]),
        lambda c, tup: c.emit(("a",), anchors=()),
    ],
)
def test_a_plain_bolt_anchors_by_one_tuple_or_several(place, call):
    assert calling(place, Calls(call)).emitted("calls") == [("a",)]


@pytest.mark.parametrize(
    ("bolt", "call", "says"),
    [
        (Calls, lambda c, tup: c.ack(None), r"called ack\(None\): it takes a tuple that execute was given"),
        (Calls, lambda c, tup: c.resetTimeout(("a",)), r"called resetTimeout\(.*it takes a tuple"),
        (Calls, lambda c, tup: c.emit(("a",), anchors=["nonsense"]), "anchors are the tuples that execute was given"),
        (Calls, lambda c, tup: c.emit(("a",), anchors="nonsense"), "anchors are the tuples that execute was given"),
        (Calls, lambda c, tup: c.emit(("a",), anchors=None), "anchors are the tuples that execute was given"),
        (CallsBasic, lambda c, tup: c.emit(("a",), anchors=[tup]), "in finishBatch, anchor by hand: leave anchors out"),
        (Calls, lambda c, tup: c.emit(tup, ["a"]), r"write emit\(values, anchors=tup\)"),
        (Calls, lambda c, tup: c.emit([tup, tup], ["a"]), r"write emit\(values, anchors=tup\)"),
        (Calls, lambda c, tup: c.emit("late", tup, ["a"]), r"write emit\(values, stream='late', anchors=tup\)"),
        (CallsBasic, lambda c, tup: c.emit(tup, ("a",)), r"write emit\(values\), which is anchored by itself"),
        (Calls, lambda c, tup: tup.getString(0), r"getString, which is Storm's: write tup\[position\]"),
        (Calls, lambda c, tup: tup.getStringByField("value"), r'getStringByField, .* write tup\["field"\]'),
        (Calls, lambda c, tup: tup.getSourceComponent(), r"getSourceComponent, .* write tup\._source"),
        (Calls, lambda c, tup: tup.getSourceTask(), r"getSourceTask, .* its context\.task"),
        (Calls, lambda c, tup: tup.getMessageId(), r"getMessageId, .* the spout emits the id"),
    ],
)
def test_storm_s_way_is_refused_with_ours(place, bolt, call, says):
    with pytest.raises(BoltError, match=says):
        calling(place, bolt(call))


def calling(place: Path, bolt: Any) -> Any:
    builder = TopologyBuilder("calls")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("calls", bolt).shuffleGrouping("lines")
    with Driver(place) as driver:
        return driver.start(builder.createTopology()).send({"lines": [("a",)]})


class Careless(Anchors):
    def execute(self, tup, collector):
        with contextlib.suppress(Exception):
            super().execute(tup, collector)


def test_a_tuple_that_was_failed_fails_its_transaction_whatever_the_bolt_catches(driver):
    builder = TopologyBuilder("anchors")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("anchors", Careless()).shuffleGrouping("lines")
    assert driver.start(builder.createTopology()).send({"lines": [("a",), ("bad",)]}).progress.attempt == 1


@pytest.mark.parametrize("late", [False, True])
def test_rows_of_a_failed_attempt_count_for_nothing(place, late):
    failing = [FailedException("not now")]

    def emit(collector: Any) -> None:
        collector.emit(("a", 1))
        if failing:
            raise failing.pop()

    sent = run(place, emit, late)
    assert sent.progress.attempt == 1
    assert sent.emitted("emits") == ([("a", 1), ("a", 1)] if late else [("a", 1)])


class Keeps(BasicBolt):
    outputFields = "word string, count int"
    kept: Any = None

    def __init__(self, emit: Emit) -> None:
        self.do = emit

    def execute(self, tup, collector):
        self.kept = self.kept or collector
        self.do(self.kept)


@pytest.mark.parametrize(
    "emit", [lambda c: c.emit(("a", 1)), lambda c: c.emitBatch(pa.RecordBatch.from_pylist([{"word": "a", "count": 1}]))]
)
def test_a_collector_kept_from_an_earlier_transaction_is_refused(driver, emit):
    builder = TopologyBuilder("keeps")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("keeps", Keeps(emit)).shuffleGrouping("lines")
    builder.setBolt("reads", Reads()).shuffleGrouping("keeps")
    tester = driver.start(builder.createTopology(), freshObjects=False)
    assert tester.send({"lines": [("a",)]}).emitted("keeps") == [("a", 1)]
    with pytest.raises(BoltError, match=r"execute, transaction 2: .*collector of transaction 1 whose rows had left"):
        tester.send({"lines": [("b",)]})


KEPT: list[Any] = []


class FromThreads(BatchBolt, StatefulBolt):
    outputFields = "word string, count int"
    when: Any = None

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def initState(self, state):
        pass

    def execute(self, tup, collector):
        KEPT.append(collector)

    def prePrepare(self, txid):
        self.emits("the end")

    def preCommit(self, txid):
        self.emits("the commit")

    def emits(self, moment):
        if moment == self.moment and KEPT:
            thread = Thread(target=self.emit)
            thread.start()
            thread.join()

    def emit(self):
        with contextlib.suppress(BoltError):  # as a pool does whose futures nobody looks at
            KEPT[0].emit(("late", 1))


@pytest.mark.parametrize("moment", ["the end", "the commit"])
def test_a_row_emitted_late_by_a_thread_ends_the_query(driver, moment):
    """It is in no transaction: who runs the topology learns of it, not the thread alone."""
    KEPT.clear()
    builder = TopologyBuilder("threads")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("late", FromThreads(moment)).shuffleGrouping("lines")
    builder.setBolt("reads", Reads()).shuffleGrouping("late")
    tester = driver.start(builder.createTopology(), freshObjects=False)
    work = [{"lines": [(word,)]} for word in "abcd"]  # one process of two has it: a task may be in either
    with pytest.raises(BoltError, match=r"'late' emitted through .*transaction 1 whose rows had left: the row is"):
        tester.run(work)
    assert (tester.txid == 0) is (moment == "the end")


def test_nothing_can_be_emitted_once_the_barriers_have_left(driver):
    refused: list[str] = []

    class Late(StatefulBolt):
        outputFields = "word string"

        def initState(self, state):
            pass

        def execute(self, tup, collector):
            self.kept = collector

        def close(self):
            try:
                self.kept.emit(("late",))
            except BoltError as error:
                refused.append(error.message)

    builder = TopologyBuilder("late")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("late", Late()).shuffleGrouping("lines")
    builder.setBolt("reads", Reads()).shuffleGrouping("late")
    assert driver.start(builder.createTopology()).send({"lines": [("a",)]}).emitted("late") == []
    driver.start(builder.createTopology()).send({"lines": []})
    assert refused
    assert "transaction 1" in refused[0]


class Raises(BasicBolt):
    outputFields = None

    def __init__(self, error: Exception) -> None:
        self.error = error

    def execute(self, tup, collector):
        raise self.error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("no good"), r"ValueError: no good \(.*test_emitting\.py:\d+, in execute\)$"),
        (ValueError("2 errors:\n  amount\n  name"), r"ValueError: 2 errors: \|   amount \|   name \(.*in execute\)$"),
    ],
)
def test_an_error_names_the_line_of_the_bolt_and_is_told_whole(driver, error, says):
    builder = TopologyBuilder("raises")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("raises", Raises(error)).shuffleGrouping("lines")
    with pytest.raises(BoltError, match=says):
        driver.start(builder.createTopology()).send({"lines": [("a",)]})


@pytest.mark.parametrize("values", ["a", "abc", b"ab"])
def test_a_text_is_not_taken_for_a_tuple_of_its_letters(place, values):
    with pytest.raises(BoltError, match=rf"emit takes a tuple of values: write emit\(\({values!r},\)\)"):
        run(place, lambda c: c.emit(values))


def test_a_row_may_be_emitted_by_name(place):
    sent = run(place, lambda c: (c.emit(count=1, word="a"), c.emit(word="b", count=None, stream="default")))
    assert sent.emitted("emits") == [("a", 1), ("b", None)]
    assert sent.progress.rows == {"emits": 1, "reads": 2}


@pytest.mark.parametrize(
    ("emit", "says"),
    [
        (lambda c: c.emit(word="a"), "by name without count: name every field"),
        (lambda c: c.emit(word="a", cuont=1), "the field 'cuont', which it has not; the nearest is 'count'"),
        (lambda c: c.emit(("a", 1), word="a"), "by position and by name at once"),
        (lambda c: c.emit({"word": "a", "count": 1}), r"write emit\(\*\*row\) to emit by name"),
        (lambda c: c.emit({"a", "b"}), "a set has no order"),
        (lambda c: c.emit({"a": 1, "b": 2}.keys()), "a set has no order"),
        (lambda c: c.emit(7), r"emit takes a tuple of values: of one value: emit\(\(value,\)\)"),
        (lambda c: c.emit(None), "emit takes a tuple of values"),
        (lambda c: c.emit(), "emitted 0 values on stream 'default', which has 2 fields"),
    ],
)
def test_what_is_no_row_is_refused(place, emit, says):
    with pytest.raises(BoltError, match=says):
        run(place, emit)


@pytest.mark.parametrize("values", [["a", 1], iter(("a", 1)), {0: "a", 1: 1}.values()])
def test_what_has_an_order_is_a_row(place, values):
    assert run(place, lambda c: c.emit(values)).progress.rows["reads"] == 1


class Does(WithState):
    outputFields = {"default": "n int, word string", "side": "n int"}

    def __init__(self, thing):
        self.thing = thing

    def execute(self, tup, collector):
        self.state.put("seen", True)
        self.thing(self.state, tup, collector)


THINGS = [
    (lambda state, tup, out: state.put("k", object()), "execute", r"CodecError: .*'k'.*object"),
    (lambda state, tup, out: state.put(object(), 1), "execute", r"CodecError: .*object"),
    (lambda state, tup, out: state.put(float("nan"), 1), "execute", r"CodecError: .*nan"),
    (
        lambda state, tup, out: out.emit((1, 2)),
        "collector.emit",
        r"SchemaError: bolt 'faulty' emitted 2 \(int\).*`word string`",
    ),
    (lambda state, tup, out: out.emit((1,)), "execute", r"SchemaError: .*emitted 1 values .*2 fields: n, word"),
    (lambda state, tup, out: out.emit((1,), stream="side"), "execute", r"stream .*directGrouping: name the task"),
    (lambda state, tup, out: out.emit((1,), stream="side", task=2), "execute", r"task 2 of .*has tasks 0\.\.1"),
    (lambda state, tup, out: tup.nosuch, "execute", r"AttributeError: .*\(n\).* no attribute 'nosuch'"),
    (lambda state, tup, out: tup["nosuch"], "execute", r"KeyError: .*no field 'nosuch'; the fields are n"),
]


@pytest.mark.parametrize(("thing", "hook", "words"), THINGS, ids=[words[:40] for _, _, words in THINGS])
def test_what_a_bolt_must_not_do_names_it(driver, thing, hook, words):
    builder = TopologyBuilder("does")
    builder.setStream("numbers", rows("n long"))
    builder.setBolt("faulty", Does(thing)).globalGrouping("numbers")
    builder.setBolt("words", Reads()).shuffleGrouping("faulty")
    builder.setBolt("side", Reads(), parallelism=2).directGrouping("faulty", stream="side")
    where = hook if hook.startswith("collector.") else f"hook {hook}"
    tester = driver.start(builder.createTopology())
    with pytest.raises(BoltError, match=f"bolt 'faulty', task 0, {where}, transaction 1: .*{words}"):
        tester.send({"numbers": [(1,)]})
    assert tester.state("faulty") == {}


# ---- What is emitted arrives as it was, or is refused: for every type, at every depth, in the tester as on Spark.


NOON = dt.datetime(2026, 1, 1, 12)
NOON_UTC = NOON.replace(tzinfo=dt.UTC)
DAY = dt.date(2026, 1, 1)
Pair = namedtuple("Pair", "x y")
Swapped = namedtuple("Swapped", "y x")
Other = namedtuple("Other", "a b")


class Color(enum.IntEnum):
    RED = 1


class Word(enum.StrEnum):
    RED = "red"


FITTING_KEPT: list[tuple[str, Any, Any]] = [
    ("long", 2**53 + 1, 2**53 + 1),
    ("long", np.int32(7), 7),
    ("long", np.uint64(7), 7),
    ("long", True, 1),
    ("long", Color.RED, 1),
    ("int", 2**31 - 1, 2**31 - 1),
    ("tinyint", -128, -128),
    ("double", 1.5, 1.5),
    ("double", np.float64(1.5), 1.5),
    ("double", np.float32(0.1), float(np.float32(0.1))),
    ("double", 3, 3.0),
    ("double", np.int64(3), 3.0),
    ("double", fractions.Fraction(1, 2), 0.5),
    ("double", float("inf"), float("inf")),
    ("float", 1.5, 1.5),
    ("float", 0.1, float(np.float32(0.1))),
    ("float", float("-inf"), float("-inf")),
    ("string", "a", "a"),
    ("string", Word.RED, "red"),
    ("string", np.str_("a"), "a"),
    ("binary", b"a", b"a"),
    ("boolean", True, True),
    ("boolean", np.bool_(False), False),
    ("decimal(4,2)", Decimal("1.5"), Decimal("1.50")),
    ("decimal(4,2)", 3, Decimal("3.00")),
    ("date", DAY, DAY),
    ("timestamp", NOON_UTC, NOON_UTC),
    ("timestamp", NOON, NOON_UTC),
    ("timestamp", NOON_UTC.astimezone(dt.timezone(dt.timedelta(hours=5))), NOON_UTC),
    ("timestamp", pd.Timestamp(NOON_UTC), NOON_UTC),
    ("timestamp_ntz", NOON, NOON),
    ("array<long>", [1, None, 2], [1, None, 2]),
    ("array<long>", (1, 2), [1, 2]),
    ("array<long>", range(2), [0, 1]),
    ("array<long>", deque([1, 2]), [1, 2]),
    ("array<long>", np.array([1, 2], np.int16), [1, 2]),
    ("array<double>", np.array([0.1, 2]), [0.1, 2.0]),
    ("array<array<double>>", np.array([[0.5], [2]]), [[0.5], [2.0]]),
    ("array<double>", pd.Series([0.5, 2]), [0.5, 2.0]),
    ("array<string>", ["abc"], ["abc"]),
    ("map<string,long>", {"a": 1}, [("a", 1)]),
    ("map<string,long>", OrderedDict(b=2, a=1), [("b", 2), ("a", 1)]),
    ("map<string,long>", [("a", 1), ["b", 2]], [("a", 1), ("b", 2)]),
    ("struct<x:long,y:string>", {"y": "a", "x": 1}, {"x": 1, "y": "a"}),
    ("struct<x:long,y:string>", {"x": 1}, {"x": 1, "y": None}),
    ("struct<x:long,y:string>", (1, "a"), {"x": 1, "y": "a"}),
    ("struct<x:long,y:long>", Pair(1, 2), {"x": 1, "y": 2}),
    ("struct<x:long,y:long>", Swapped(1, 2), {"x": 2, "y": 1}),
    ("struct<x:array<map<string,struct<y:double>>>>", {"x": [{"k": (1,)}]}, {"x": [[("k", {"y": 1.0})]]}),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("long", 1.5, "is no integer"),
    ("long", 1.0, "is no integer"),
    ("long", np.float64(1.5), r"np.float64\(1.5\) \(float64\) is no integer"),
    ("long", np.float32(1.5), "is no integer"),
    ("long", np.float16(1.5), "is no integer"),
    ("long", np.longdouble("0.1"), "is no integer"),
    ("long", np.bool_(True), "is no integer"),
    ("long", Decimal("1.5"), "is no integer"),
    ("long", fractions.Fraction(3, 2), "is no integer"),
    ("long", uuid.UUID(int=1), "is no integer"),
    ("long", np.datetime64("2026-01-01T00:00:00.123456789"), "is no integer"),
    ("long", "1", "is no integer"),
    ("long", 2**63, "."),
    ("int", 2**31, "."),
    ("int", np.float64(2.0), "is no integer"),
    ("double", Decimal("1.5"), "is no float"),
    ("double", np.longdouble("0.1"), "is no float, or not exactly"),
    ("double", fractions.Fraction(1, 3), "is no float, or not exactly"),
    ("double", 2**53 + 1, "."),
    ("double", np.uint64(2**64 - 1), "."),
    ("double", "1.5", "is no float"),
    ("float", 1e300, "too large for a float"),
    ("float", 3.4028235677973366e38, "too large for a float"),
    ("float", 2**24 + 1, "."),
    ("string", b"a", "is no text"),
    ("string", bytearray(b"a"), "is no text"),
    ("string", memoryview(b"a"), "is no text"),
    ("string", "\ud800", "."),
    ("binary", "a", "is no bytes"),
    ("binary", bytearray(b"a"), r"emit bytes\(value\)"),
    ("boolean", 1, "is no bool"),
    ("boolean", "", "is no bool"),
    ("decimal(4,2)", 1.5, "is no Decimal"),
    ("decimal(4,2)", Decimal("1.234"), "."),
    ("date", NOON, "is no date"),
    ("date", 1, "is no date"),
    ("date", 1.5, "is no date"),
    ("date", pd.NaT, "is no date"),
    ("timestamp", 1.5, "is no datetime"),
    ("timestamp", 1_700_000_000, "is no datetime"),
    ("timestamp", DAY, "is no datetime"),
    ("timestamp", pd.Timestamp("2026-01-01T00:00:00.123456789"), "finer one than microseconds"),
    ("timestamp", pd.NaT, "finer one than microseconds"),
    ("timestamp_ntz", NOON_UTC, "has a time zone"),
    ("array<long>", {3, 1}, r"is no array: emit a list \(of a set, sorted\(value\)"),
    ("array<long>", {1: 2}, "is no array"),
    ("array<long>", iter([1]), "is no array"),
    ("array<long>", 1, "is no array"),
    ("array<long>", np.array(1), "is no array"),
    ("array<long>", b"ab", "is no array"),
    ("array<string>", "abc", "is no array"),
    ("array<long>", [1, 1.5], r"\[1\]: 1.5 \(float\) is no integer"),
    ("array<long>", np.array([1.5]), r"\[0\]: 1.5 \(float\) is no integer"),
    ("array<array<long>>", [[1], [2, Decimal("1.5")]], r"\[1\]: \[1\]: Decimal"),
    ("map<string,long>", {"a": 1.5}, r"\[0\]: 1.5 \(float\) is no integer"),
    ("map<string,long>", {1: 1}, "is no text"),
    ("map<string,long>", {None: 1}, "."),
    ("map<string,long>", ["ab"], "is no map"),
    ("map<string,long>", [("a", 1, 2)], "is no map"),
    ("map<string,long>", "ab", "is no map"),
    ("struct<x:long,y:string>", {"x": 1, "z": 2}, "has 'z', which the struct has not: its fields are x, y"),
    ("struct<x:long,y:string>", {"x": 1.5}, r"\.x: 1.5 \(float\) is no integer"),
    ("struct<x:long,y:string>", (1,), "has 1 values: the struct's fields are x, y"),
    ("struct<x:long,y:string>", [1, "a"], "is no struct"),
    ("struct<x:long,y:long>", Row("x", "x")(1, 2), "has 1 values: the struct's fields are x, y"),
    ("struct<x:long,y:long>", Other(1, 2), "has 'a', 'b', which the struct has not"),
    ("struct<x:array<map<string,struct<y:long>>>>", {"x": [{"k": (1.5,)}]}, r"\.x: \[0\]: \[0\]: \.y: 1.5"),
]


def fitted(ddl: str, value: Any) -> pa.Array:
    kind = parse_schema(f"a {ddl}").field("a").type
    return to_array([fitter(kind)(value)] if pa.types.is_nested(kind) else [value], kind)


@pytest.mark.parametrize(("ddl", "value", "arrives"), FITTING_KEPT)
def test_what_fits_arrives_equal(ddl, value, arrives):
    assert fitted(ddl, value).to_pylist() == [arrives]


@pytest.mark.parametrize(("ddl", "value", "says"), REFUSED)
def test_what_would_be_changed_is_refused(ddl, value, says):
    with pytest.raises(MISFITS, match=says):
        fitted(ddl, value)


@pytest.mark.parametrize("depth", ["array<{}>", "struct<x:{}>", "map<int,{}>"])
@pytest.mark.parametrize(("ddl", "value", "says"), [case for case in REFUSED if "<" not in case[0]])
def test_it_is_refused_at_any_depth(ddl, value, says, depth):
    nested = {"array<{}>": [value], "struct<x:{}>": {"x": value}, "map<int,{}>": {1: value}}[depth]
    with pytest.raises(MISFITS, match=says):
        fitted(depth.format(ddl), nested)


@pytest.mark.parametrize(("ddl", "value", "says"), [case for case in REFUSED if "<" not in case[0]])
def test_a_misfit_is_found_among_many_that_fit(ddl, value, says):
    fits = next(given for other, given, _ in FITTING_KEPT if other == ddl)
    for column in ([fits] * 300 + [value], [value] + [fits] * 300, [None, value, None]):
        with pytest.raises(MISFITS):
            to_array(column, parse_schema(f"a {ddl}").field("a").type)


@pytest.mark.parametrize("ddl", sorted({ddl for ddl, _, _ in FITTING_KEPT}))
def test_null_fits_everywhere(ddl):
    assert fitted(ddl, None).to_pylist() == [None]


@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [(None, 8), ([1, 2], 16), ([None, 1.5], 16), (["abc", "d"], 4), ([("a", 1)], 9), ({"x": 1, "y": ["ab"]}, 10)],
)
def test_values_of_nested_types_are_weighed(value, size_bytes):
    assert weight(value) == size_bytes


class FittingEmits(BasicBolt):
    def __init__(self, ddl: str, value: Any) -> None:
        self.outputFields = f"a {ddl}"
        self.value = value

    def execute(self, tup, collector):
        collector.emit((self.value,))


class Tells(BasicBolt):
    outputFields = "a string"

    def execute(self, tup, collector):
        collector.emit((repr(tup.a),))


def chain(ddl: str, value: Any) -> Any:
    builder = TopologyBuilder("chain")
    builder.setStream("ticks", rows("n int"))
    builder.setBolt("emits", FittingEmits(ddl, value)).globalGrouping("ticks")
    builder.setBolt("tells", Tells(), 2).shuffleGrouping("emits")
    return builder.createTopology()


@pytest.mark.parametrize(
    ("ddl", "value", "says"),
    [
        ("long", np.float64(1.5), r"emitted np.float64\(1.5\) \(float64\).*declare `a bigint`: .*is no integer"),
        ("array<long>", [1, Decimal("1.5")], r"declare `a array<bigint>`: \[1\]: Decimal\('1.5'\).*is no integer"),
        ("string", np.array([1, 2]), r"emitted array\(\[1, 2\]\) \(ndarray\) on stream .*is no text"),
        ("long", np.array([1, 2]), r"\(ndarray\) on stream .*is no integer"),
        ("string", "x" * 10_000 + "\ud800", r"emitted 'x{199}\.\.\."),
    ],
)
def test_the_error_names_bolt_stream_and_value(driver, ddl, value, says):
    with pytest.raises(BoltError, match=says) as caught:
        driver.start(chain(ddl, value)).send({"ticks": [(1,)]})
    assert caught.value.component == "emits"


def test_what_fits_travels(driver):
    tester = driver.start(chain("array<struct<x:long>>", [{"x": np.int64(1)}, (2,)]))
    assert tester.send({"ticks": [(1,)]}).emitted("tells") == [("[{'x': 1}, {'x': 2}]",)]


class Changes(BasicBolt):
    outputFields = "tags array<string>, pair struct<x:array<long>>, by map<string,array<long>>, n int"

    def execute(self, tup, collector):
        tags, inner = [f"tag-{tup.n}"], [tup.n]
        collector.emit((tags, {"x": inner}, {"k": inner}, tup.n))
        tags[0] = "changed"
        tags.append("more")
        inner.append(99)


class Here(BasicBolt):
    outputFields = "here int, tags array<string>, x array<long>, k array<long>, n int"

    def open(self, context):
        self.task = context.task

    def execute(self, tup, collector):
        collector.emit((self.task, tup.tags, tup.pair["x"], tup.by[0][1], tup.n))


def test_a_list_that_is_changed_after_it_was_emitted_arrives_as_it_was_and_where_it_belongs(driver):
    builder = TopologyBuilder("changes")
    builder.setStream("ticks", rows("n int"))
    builder.setBolt("changes", Changes()).globalGrouping("ticks")
    builder.setBolt("here", Here(), 3).fieldsGrouping("changes", "tags")
    tester = driver.start(builder.createTopology())
    sent = tester.send({"ticks": [(n % 5,) for n in range(10)]})
    assert min(sent.emitted("changes")) == (["tag-0"], {"x": [0]}, [("k", [0])], 0)
    found = sent.emitted("here")
    assert sorted(row[1:] for row in found) == sorted(([f"tag-{n}"], [n], [n], n) for n in list(range(5)) * 2)
    assert len({(row[0], row[4]) for row in found}) == 5, "equal keys meet in one task"


@pytest.mark.parametrize("value", [1.5, np.float64(1.5), Decimal("1.5"), "1"])
def test_rows_that_are_given_to_the_tester_are_not_changed_either(place, value):
    builder = TopologyBuilder("input")
    builder.setStream("ticks", rows("a long, tags array<long>"))
    builder.setBolt("tells", Tells()).globalGrouping("ticks")
    for row in ((value, [1]), (1, [value])):
        with Driver(place) as driver, pytest.raises(ConfigError, match="rows of stream 'ticks' do not fit its schema"):
            driver.start(builder.createTopology()).send({"ticks": [row]})


ZONED = dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5)))


@pytest.mark.parametrize(
    ("ddl", "column", "fits"),
    [
        ("timestamp_ntz", pa.array([ZONED], pa.timestamp("us", "+05:00")), False),
        ("array<timestamp_ntz>", pa.array([[ZONED]], pa.list_(pa.timestamp("us", "+05:00"))), False),
        ("timestamp", pa.array([ZONED], pa.timestamp("us", "+05:00")), True),
        ("date", pa.array([dt.datetime(2026, 1, 1, 5)], pa.timestamp("us")), False),
        ("array<date>", pa.array([[dt.datetime(2026, 1, 1, 5)]], pa.list_(pa.timestamp("us"))), False),
        ("timestamp", pa.array([1_000_001], pa.timestamp("ns")), False),
        ("timestamp", pa.array([1_000_000], pa.timestamp("ns", "UTC")), True),
        ("boolean", pa.array([2]), False),
        ("string", pa.array([5]), False),
        ("string", pa.array(["a"], pa.large_string()), True),
        ("float", pa.array([1e300]), False),
        ("int", pa.array([2**31]), False),
        ("int", pa.array([2**31 - 1]), True),
        ("double", pa.array([2**53 + 1]), False),
        ("struct<a: int>", pa.array([{"a": 1, "b": 2}]), False),
        ("struct<a: bigint, b: bigint>", pa.array([{"b": 2, "a": 1}]), True),
    ],
)
def test_a_column_of_another_type_has_the_same_values_or_is_refused(ddl, column, fits):
    """`pyarrow.Table.cast` drops zones, times of days and fields of structs without a word."""
    schema = parse_schema(f"v {ddl}")
    with nullcontext() if fits else pytest.raises(MISFITS):
        found = fitted_table(pa.table({"v": column}), schema)
        assert found.schema == schema
        assert found.to_pylist() == [{"v": value} for value in column.to_pylist()]
