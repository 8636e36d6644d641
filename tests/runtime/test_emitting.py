"""What a bolt may emit, and the error for what it may not."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from statefx import BasicBolt, BatchBolt, Bolt, StatefulBolt, TopologyBuilder
from statefx.errors import BoltError, FailedException
from statefx.testing import rows
from tests.testing.topologies import Driver

Emit = Callable[[Any], object]


class Emits(BatchBolt):
    """Lets the test emit, in ``execute`` or in ``finishBatch``."""

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
def test_what_does_not_fit_the_declared_schema_is_named(place: Path, emit: Emit, says: str, late: bool) -> None:
    with pytest.raises(BoltError, match=says) as caught:
        run(place, emit, late)
    assert (caught.value.component, caught.value.task, caught.value.txid) == ("emits", 0, 1)
    assert caught.value.cause.startswith("SchemaError: ")


@pytest.mark.slow
@pytest.mark.parametrize(("late", "rest"), [(False, 20), (True, 20), (True, 20_000)], ids=["now", "late", "of-many"])
def test_a_bolt_that_goes_on_after_an_error_of_emit_loses_no_other_rows(place: Path, late: bool, rest: int) -> None:
    """The error comes when a batch is full: it is that of a row long before, and all rows of the batch go with it."""

    def emit(collector: Any) -> None:
        for number in range(rest):
            with contextlib.suppress(Exception):
                collector.emit(("word", "many" if number == 5 else number))

    with pytest.raises(BoltError, match=r"task 0, collector\.emit, transaction .*emitted 'many' \(str\)"):
        run(place, emit, late)


def test_what_fits_arrives_as_declared(place: Path) -> None:
    sent = run(place, lambda c: (c.emit(["a", 1]), c.emitBatch(pa.record_batch([["b"], [2]], schema=BATCH))))
    assert sent.emitted("emits") == [("a", 1), ("b", 2)]
    assert sent.progress.rows == {"emits": 1, "reads": 2}


def test_a_stream_that_nobody_reads_takes_rows_and_counts_none(place: Path) -> None:
    sent = run(place, lambda c: c.emit((1, ["x"]), stream="aside"))
    assert sent.progress.rows == {"emits": 1, "reads": 0}


def test_a_null_in_any_field_travels(place: Path) -> None:
    assert run(place, lambda c: c.emit((None, None))).emitted("emits") == [(None, None)]


class Anchors(Bolt):
    """A plain bolt acks by hand; twice does no harm."""

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


def test_a_plain_bolt_acks_by_hand_and_a_failed_tuple_fails_its_transaction(place: Path) -> None:
    builder = TopologyBuilder("anchors")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("anchors", Anchors()).shuffleGrouping("lines")
    with Driver(place) as driver:
        tester = driver.start(builder.createTopology())
        assert tester.send({"lines": [("a",), ("b",)]}).progress.attempt == 0
        sent = tester.send({"lines": [("a",), ("bad",)]})
        assert sent.progress.attempt == 1
        assert sent.emitted("anchors") == [("a",), ("bad",)]


class Calls(Bolt):
    """A plain bolt that calls its collector in one way."""

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
def test_a_plain_bolt_anchors_by_one_tuple_or_several(place: Path, call: Any) -> None:
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
def test_storm_s_way_is_refused_with_ours(place: Path, bolt: Any, call: Any, says: str) -> None:
    with pytest.raises(BoltError, match=says):
        calling(place, bolt(call))


def calling(place: Path, bolt: Any) -> Any:
    builder = TopologyBuilder("calls")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("calls", bolt).shuffleGrouping("lines")
    with Driver(place) as driver:
        return driver.start(builder.createTopology()).send({"lines": [("a",)]})


class Careless(Anchors):
    """Catches whatever comes, and with it what `fail` raises."""

    def execute(self, tup, collector):
        with contextlib.suppress(Exception):
            super().execute(tup, collector)


def test_a_tuple_that_was_failed_fails_its_transaction_whatever_the_bolt_catches(place: Path) -> None:
    builder = TopologyBuilder("anchors")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("anchors", Careless()).shuffleGrouping("lines")
    with Driver(place) as driver:
        assert driver.start(builder.createTopology()).send({"lines": [("a",), ("bad",)]}).progress.attempt == 1


@pytest.mark.parametrize("late", [False, True])
def test_rows_of_a_failed_attempt_count_for_nothing(place: Path, late: bool) -> None:
    failing = [FailedException("not now")]

    def emit(collector: Any) -> None:
        collector.emit(("a", 1))
        if failing:
            raise failing.pop()

    sent = run(place, emit, late)
    assert sent.progress.attempt == 1
    assert sent.emitted("emits") == ([("a", 1), ("a", 1)] if late else [("a", 1)])


class Keeps(BasicBolt):
    """Emits through the collector that it was given first, as one that writes late or from a thread would."""

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
def test_a_collector_kept_from_an_earlier_transaction_is_refused(place: Path, emit: Emit) -> None:
    builder = TopologyBuilder("keeps")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("keeps", Keeps(emit)).shuffleGrouping("lines")
    builder.setBolt("reads", Reads()).shuffleGrouping("keeps")
    with Driver(place) as driver:
        tester = driver.start(builder.createTopology(), freshObjects=False)
        assert tester.send({"lines": [("a",)]}).emitted("keeps") == [("a", 1)]
        with pytest.raises(
            BoltError, match=r"execute, transaction 2: .*collector of transaction 1 whose rows had left"
        ):
            tester.send({"lines": [("b",)]})


KEPT: list[Any] = []


class FromThreads(BatchBolt, StatefulBolt):
    """Emits from a thread of its own: when the input has ended, or when it has prepared."""

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
def test_a_row_emitted_late_by_a_thread_ends_the_query(place: Path, moment: str) -> None:
    """It is in no transaction: who runs the topology learns of it, not the thread alone."""
    KEPT.clear()
    builder = TopologyBuilder("threads")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("late", FromThreads(moment)).shuffleGrouping("lines")
    builder.setBolt("reads", Reads()).shuffleGrouping("late")
    with Driver(place) as driver:
        tester = driver.start(builder.createTopology(), freshObjects=False)
        work = [{"lines": [(word,)]} for word in "abcd"]  # one process of two has it: a task may be in either
        with pytest.raises(BoltError, match=r"'late' emitted through .*transaction 1 whose rows had left: the row is"):
            tester.run(work)
        assert (tester.txid == 0) is (moment == "the end")


def test_nothing_can_be_emitted_once_the_barriers_have_left(place: Path) -> None:
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
    with Driver(place) as driver:
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
def test_an_error_names_the_line_of_the_bolt_and_is_told_whole(place: Path, error: Exception, says: str) -> None:
    builder = TopologyBuilder("raises")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("raises", Raises(error)).shuffleGrouping("lines")
    with Driver(place) as driver, pytest.raises(BoltError, match=says):
        driver.start(builder.createTopology()).send({"lines": [("a",)]})


@pytest.mark.parametrize("values", ["a", "abc", b"ab"])
def test_a_text_is_not_taken_for_a_tuple_of_its_letters(place: Path, values: Any) -> None:
    with pytest.raises(BoltError, match=rf"emit takes a tuple of values: write emit\(\({values!r},\)\)"):
        run(place, lambda c: c.emit(values))


def test_a_row_may_be_emitted_by_name(place: Path) -> None:
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
def test_what_is_no_row_is_refused(place: Path, emit: Emit, says: str) -> None:
    with pytest.raises(BoltError, match=says):
        run(place, emit)


@pytest.mark.parametrize("values", [["a", 1], iter(("a", 1)), {0: "a", 1: 1}.values()])
def test_what_has_an_order_is_a_row(place: Path, values: Any) -> None:
    assert run(place, lambda c: c.emit(values)).progress.rows["reads"] == 1


class Does(StatefulBolt):
    """Does one thing with each tuple."""

    outputFields = {"default": "n int, word string", "side": "n int"}

    def __init__(self, thing):
        self.thing = thing

    def initState(self, state):
        self.state = state

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
    (
        lambda state, tup, out: out.emit((2**31, "x")),
        "collector.emit",
        r"SchemaError: bolt 'faulty' emitted 2147483648 .*`n int`",
    ),
    (lambda state, tup, out: out.emit((1.5, "x")), "collector.emit", r"SchemaError: .*emitted 1.5 \(float\).*`n int`"),
    (lambda state, tup, out: out.emit((1,)), "execute", r"SchemaError: .*emitted 1 values .*2 fields: n, word"),
    (lambda state, tup, out: out.emit(5), "execute", r"(SchemaError|TypeError): .*5|int"),
    (lambda state, tup, out: out.emit((1,), stream="sid"), "execute", r"SchemaError: .*'sid'.*\['default', 'side'\]"),
    (lambda state, tup, out: out.emit((1,), stream="side"), "execute", r"stream .*directGrouping: name the task"),
    (lambda state, tup, out: out.emit((1,), stream="side", task=2), "execute", r"task 2 of .*has tasks 0\.\.1"),
    (lambda state, tup, out: tup.nosuch, "execute", r"AttributeError: .*\(n\).* no attribute 'nosuch'"),
    (lambda state, tup, out: tup["nosuch"], "execute", r"KeyError: .*no field 'nosuch'; the fields are n"),
]


@pytest.mark.parametrize(("thing", "hook", "words"), THINGS, ids=[words[:40] for _, _, words in THINGS])
def test_what_a_bolt_must_not_do_names_it(place: Path, thing: Any, hook: str, words: str) -> None:
    builder = TopologyBuilder("does")
    builder.setStream("numbers", rows("n long"))
    builder.setBolt("faulty", Does(thing)).globalGrouping("numbers")
    builder.setBolt("words", Reads()).shuffleGrouping("faulty")
    builder.setBolt("side", Reads(), parallelism=2).directGrouping("faulty", stream="side")
    where = hook if hook.startswith("collector.") else f"hook {hook}"
    with Driver(place) as driver:
        tester = driver.start(builder.createTopology())
        with pytest.raises(BoltError, match=f"bolt 'faulty', task 0, {where}, transaction 1: .*{words}"):
            tester.send({"numbers": [(1,)]})
        assert tester.state("faulty") == {}
