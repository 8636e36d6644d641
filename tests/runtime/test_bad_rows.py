"""Rows of which a bolt raises an error, and bolts that go on: what the row did is undone, and nothing else."""

import json
import logging
import random
from pathlib import Path

import pyarrow as pa
import pytest

from statefx import (
    BasicBolt,
    Bolt,
    ReplayDeadLetters,
    Spout,
    Stateful,
    StatefulBolt,
    TopologyBuilder,
    WindowedBolt,
    isTick,
)
from statefx.connectors import MemoryTransactionalSpout
from statefx.connectors.files import FileSink, committedFiles
from statefx.errors import BoltError, FailedException, StateError, TopologyError
from statefx.operators.dead_letters import DEAD_LETTERS
from statefx.state.view import changes
from statefx.testing import TopologyTester, rows
from tests.bolts import WithState
from tests.runtime.scripts import NOON, Script, run, scripts_of, topology

MODES = ["skip", "deadLetter"]


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "mode", "provider"),
    [*((seed, MODES[seed % 2], "memory") for seed in range(4)), (98, "skip", "rocksdb"), (99, "deadLetter", "rocksdb")],
)
def test_what_bad_rows_do_is_undone_and_nothing_else(tmp_path, mode, provider, seed):
    """Puts, deletions, ranges, lists, timers, entries with a ttl, scans that go on, and rows on four streams."""
    scripts, good, bad = scripts_of(seed)
    config = {"topology.state.provider": provider}
    chance = random.Random(seed)
    fresh = {"freshObjects": bool(seed % 2)}
    found, aside, letters = run(
        tmp_path / "bad", topology(scripts, mode), config, lambda: chance.random() < 0.2, **fresh
    )
    expected, none, _ = run(tmp_path / "good", topology(good), config, **fresh)
    assert (aside, none) == (len(bad), 0)
    assert found == expected
    if mode == "deadLetter":
        assert [json.loads(letter[0])["number"] for letter in letters] == bad
        assert [json.loads(json.loads(letter[0])["steps"]) for letter in letters] == [scripts[each] for each in bad]


@pytest.mark.slow
def test_rows_that_fill_batches_leave_when_their_call_is_over(tmp_path):
    """In the middle of a call nothing can leave the task: 20 MB are emitted, and then an error is raised."""
    flood = [["put", "state", "a", 1], ["flood", 2000, 10_000]]
    scripts = [[["emit", 1]], [*flood, ["raise"]], [["emit", 2]], flood, [["emit", 3]]]
    found, aside, _ = run(tmp_path / "bad", topology(scripts, "skip"))
    expected, _, _ = run(tmp_path / "good", topology([[] if ["raise"] in each else each for each in scripts]))
    assert aside == 1
    assert found == expected
    assert len(found["emitted"]["default"]) > 2000


def test_bad_rows_that_were_appended_do_not_sort_the_list_anew(monkeypatch):
    sorts = []

    class Counted(changes.PendingKeys):
        def __init__(self, *given):
            sorts.append(given)
            super().__init__(*given)

    class Lists(StatefulBolt):
        outputFields = "length int, first long, last long"

        def initState(self, state):
            self.state = state.list("numbers")

        def execute(self, tup, collector):
            self.state.append(tup.n)
            collector.emit((len(self.state), self.state[0], self.state[-1]))
            if tup.n % 5 == 0:
                raise ValueError("the row is bad")

    monkeypatch.setattr(changes, "PendingKeys", Counted)
    builder = TopologyBuilder("lists")
    builder.setStream("in", rows("n long"))
    builder.setBolt("lists", Lists(), onError="skip").globalGrouping("in")
    with TopologyTester(builder.createTopology()) as tester:
        found = tester.send({"in": [(n,) for n in range(1, 100)]}).emitted("lists")
    expected, kept = [], []
    for n in range(1, 100):
        if n % 5:
            kept.append(n)
            expected.append((len(kept), kept[0], kept[-1]))
    assert found == expected
    assert len(sorts) < 5


@pytest.mark.slow
def test_a_scan_that_goes_on_shows_what_was_there_when_it_began(tmp_path):
    """Also if a call was undone meanwhile, and others have changed what the scan had yet to read."""
    begin = [["put", "state", key, 1] for key in "abcd"]
    scripts = [
        begin,
        [["scan", "state"]],
        [["put", "state", "b", 2], ["raise"]],
        [["put", "state", "c", 3]],
        [["go_on"]],
    ]
    found, aside, _ = run(tmp_path / "ck", topology(scripts, "skip"))
    assert aside == 1
    assert found["emitted"]["default"][0] == ("scan [('b', 1), ('c', 1), ('d', 1)]", 0)
    assert found["states"]["script", 0] == {"a": 1, "b": 1, "c": 3, "d": 1}


@pytest.mark.slow
def test_a_dead_letter_tells_of_the_row_and_of_the_error(tmp_path):
    scripts = [[["emit", 1]], [["emit", 2], ["raise"]], [["emit", 3], ["no_number"]]]
    _, _, letters = run(tmp_path / "ck", topology(scripts, "deadLetter", take=2))
    first, second = (dict(zip(DEAD_LETTERS.names, letter, strict=True)) for letter in letters)
    assert json.loads(first["row"]) == {"number": 1, "steps": json.dumps(scripts[1])}
    assert first["message"].startswith("ValueError: the row is bad (")
    assert "in do_raise)" in first["message"]
    assert {key: first[key] for key in ("source", "stream", "error", "bolt", "task", "hook", "txid", "position")} == {
        "source": "rows", "stream": "default", "error": "ValueError",
        "bolt": "script", "task": 0, "hook": "execute", "txid": 1, "position": 0,
    }  # fmt: skip
    assert (second["error"], second["txid"], second["position"]) == ("SchemaError", 2, 0)
    assert "'1' (str)" in second["message"]


def test_by_default_the_error_ends_the_query(tmp_path):
    with pytest.raises(BoltError, match="the row is bad"):
        run(tmp_path / "ck", topology([[["raise"]]]))


class Whole(Script):
    def executeBatch(self, batch, collector):
        for row in batch.to_pylist():
            super().execute(type("Row", (), row), collector)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_of_a_batch_the_bad_rows_are_found_by_halves(tmp_path, seed):
    """Each good row is kept once, in its order, however often the bolt has had it."""
    scripts, good, bad = scripts_of(seed)
    for each in (*scripts, *good):  # a scan of an object's attributes is not state
        each[:] = [step for step in each if step[0] not in ("scan", "go_on")]
    found, aside, letters = run(tmp_path / "bad", topology(scripts, "deadLetter", take=20, bolt=Whole()))
    expected, _, _ = run(tmp_path / "good", topology(good, take=20))
    assert aside == len(bad)
    assert found == expected
    assert [json.loads(letter[0])["number"] for letter in letters] == bad
    assert {letter[7] for letter in letters} == {"executeBatch"}


FAIL = []


class Picky(WithState):
    outputFields = "what string"

    def execute(self, tup, collector):
        self.state.put("rows", self.state.get("rows", 0) + 1)
        collector.emit((tup.what,))
        if tup.what == "fail" and FAIL.pop():
            raise FailedException("not now")
        if tup.what == "store":
            try:
                raise StateError("the store is away")
            finally:
                self.state.get("rows")
        if tup.what == "memory":
            raise MemoryError("of no row")
        if tup.what == "interrupt":
            raise KeyboardInterrupt
        if tup.what == "returns":
            return 1
        return None


def picky(mode="skip", bolt=None, **more):
    builder = TopologyBuilder("picky")
    builder.setStream("rows", rows("what string"))
    builder.setBolt("picky", bolt or Picky(), onError=mode, **more).globalGrouping("rows")
    return builder


def test_a_failed_exception_fails_the_transaction(tmp_path):
    FAIL[:] = [False, True]
    with TopologyTester(picky().createTopology(), tmp_path / "ck") as tester:
        sent = tester.send({"rows": [("a",), ("fail",), ("b",)]})
        assert sent.progress.attempt == 1
        assert sent.progress.as_dict()["rowsSetAside"] == {}
        assert tester.state("picky") == {"rows": 3}


@pytest.mark.parametrize(
    ("what", "error"), [("memory", "of no row"), ("interrupt", "KeyboardInterrupt"), ("returns", "returned 1")]
)
def test_what_is_no_fault_of_the_row_ends_the_query(tmp_path, what, error):
    with TopologyTester(picky().createTopology(), tmp_path / "ck") as tester, pytest.raises(BoltError, match=error):
        tester.send({"rows": [("a",), (what,)]})


class Damaged(Picky):
    """Reads what can't be read, and takes the error for a bad row's."""

    stateVersion = 2

    def migrateState(self, version, key, value):
        raise ValueError("no idea")

    def execute(self, tup, collector):
        self.state.get("rows")


def test_a_read_that_fails_is_no_fault_of_the_row(tmp_path):
    """What is computed without the value that is there would be committed in its place."""
    with TopologyTester(picky().createTopology(), tmp_path / "ck") as tester:
        tester.send({"rows": [("a",)]})
    tester = TopologyTester(picky(bolt=Damaged()).createTopology(), tmp_path / "ck")
    with pytest.raises(BoltError, match=r"migrateState.*no idea"):
        tester.send({"rows": [("a",)]})


class Checks(Picky):
    def __init__(self, hook):
        self.hook = hook

    def prePrepare(self, txid):
        if self.hook == "prePrepare":
            raise ValueError("of no row")

    def initState(self, state):
        super().initState(state)
        if self.hook == "initState":
            raise ValueError("of no row")


@pytest.mark.parametrize("hook", ["initState", "prePrepare"])
def test_errors_of_other_hooks_end_the_query(tmp_path, hook):
    tester = TopologyTester(picky(bolt=Checks(hook)).createTopology(), tmp_path / "ck")
    with pytest.raises(BoltError, match=f"{hook}.*of no row"):
        tester.send({"rows": [("a",)]})


class Divides(BasicBolt):
    outputFields = "n long"

    def execute(self, tup, collector):
        collector.emit((100 // tup.n,))


def divided(**more):
    builder = TopologyBuilder("divided")
    builder.setStream("rows", rows("n long"))
    builder.setBolt("divide", Divides(), **more).shuffleGrouping("rows")
    return builder


def test_a_bolt_without_state_skips_rows_and_a_warning_tells_of_them_ever_more_rarely(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "statefx")
    with TopologyTester(divided(onError="skip").createTopology(), tmp_path / "ck") as tester:
        for _ in range(9):
            sent = tester.send({"rows": [(1,), (0,), (2,)]})
            assert sent.emitted("divide") == [(100,), (50,)]
            assert sent.progress.as_dict()["rowsSetAside"] == {"divide": 1}
    told = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert [int(text.split("set aside ")[1].split()[0]) for text in told] == [1, 2, 4, 8]
    assert "divided: bolt 'divide'" in told[1]
    assert "1 of them in transaction 2. The first of these: task 0, execute: ZeroDivisionError" in told[1]


def test_dead_letters_are_replayed_as_the_rows_that_they_were(tmp_path):
    """Values of every type, null and nested ones among them."""
    fields = (
        "a long, b double, c string, d boolean, e decimal(10,2), f date, g timestamp, h timestamp_ntz, i binary, "
        "j array<struct<x:int,y:string>>, k map<string,double>, l float, m struct<x:array<long>>"
    )
    table = pa.Table.from_pylist(
        [
            {"a": 1 << 62, "b": float("inf"), "c": 'ü"\n', "d": True, "i": b"\0\xff", "l": 1.5, "k": [("a", 0.1)]},
            {"j": [{"x": 1, "y": None}, None], "m": {"x": [1, None]}, "h": NOON.replace(tzinfo=None), "g": NOON},
            {"f": NOON.date(), "e": 12, "b": -0.0, "c": ""},
        ],
        parse(fields),
    )
    given = list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    class Refuses(BasicBolt):
        def execute(self, tup, collector):
            if tup.j:
                tup.j.clear()  # the letter has the row as it came
            raise ValueError(tup._source)

    builder = TopologyBuilder("letters")
    builder.setStream("rows", rows(fields))
    builder.setBolt("refuses", Refuses(), onError="deadLetter").globalGrouping("rows")
    builder.setBolt("again", ReplayDeadLetters(fields, bolt="refuses", source="rows")).globalGrouping(
        "refuses", stream="deadLetter"
    )
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        assert tester.send({"rows": given}).emitted("again") == given


def parse(fields):
    builder = TopologyBuilder("any")
    builder.setStream("rows", rows(fields))
    return builder._components["rows"].outputs["default"]


# ---- messages


class Handing(Spout):
    outputFields = "what string"
    texts, told = [], []

    def open(self, context):
        self.left = list(enumerate(self.texts))

    def nextTuple(self, collector):
        if self.left:
            number, text = self.left.pop(0)
            collector.emit((text,), id=number)

    def ack(self, id):
        self.told.append(("ack", self.texts[id]))

    def fail(self, id):
        self.told.append(("fail", self.texts[id]))


class Messages(BasicBolt):
    outputFields = "what string"

    def execute(self, tup, collector):
        collector.emit((tup.what,))
        if tup.what.startswith("said"):
            collector.fail(tup, "it was said")
        if tup.what.startswith("fail"):
            raise FailedException("the message")
        if "bad" in tup.what:
            raise ValueError("the row")


def test_a_message_that_was_set_aside_is_acked_and_one_that_failed_is_not(tmp_path):
    Handing.texts, Handing.told = ["a", "bad", "fail", "said", "said, bad", "b"], []
    builder = TopologyBuilder("messages")
    builder.setSpout("spout", Handing())
    builder.setBolt("messages", Messages(), onError="deadLetter").shuffleGrouping("spout")
    builder.setBolt("pass", Passing()).shuffleGrouping("messages").shuffleGrouping("messages", stream="deadLetter")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        while len(Handing.told) < len(Handing.texts):
            assert tester.drain()
        assert sorted(Handing.told) == sorted(
            [("ack", "a"), ("ack", "bad"), ("fail", "fail"), ("fail", "said"), ("ack", "said, bad"), ("ack", "b")]
        )
        assert [json.loads(letter[0])["what"] for letter in tester.emitted("messages", "deadLetter")] == [
            "bad", "said, bad"
        ]  # fmt: skip


class Passing(BasicBolt):
    outputFields = "what string"

    def execute(self, tup, collector):
        collector.emit((str(tup[0]),))


# ---- mistakes


class ByHand(Bolt):
    def execute(self, tup, collector):
        collector.ack(tup)


class Windowed(WindowedBolt):
    def execute(self, window, collector):
        pass


class Adds(StatefulBolt):
    def initState(self, state):
        pass

    def combine(self, a, b):
        return a

    def execute(self, tup, collector):
        pass


def _unknown():
    picky("ignore")


def _unread():
    picky("deadLetter").createTopology()


def _windows():
    picky(bolt=Windowed().withTumblingWindow("1 minute"), mode="quarantineKey")


def _combines():
    picky(bolt=Adds())


def _by_hand():
    builder = TopologyBuilder("by hand")
    builder.setSpout("spout", Handing())
    builder.setBolt("by-hand", ByHand(), onError="skip").shuffleGrouping("spout")
    builder.createTopology()


class OwnLetters(Picky):
    outputFields = {"deadLetter": "a long"}


def _own_stream():
    picky("deadLetter", OwnLetters())


def _no_json():
    builder = TopologyBuilder("maps")
    builder.setStream("rows", rows("m map<long,long>"))
    builder.setBolt("picky", Picky(), onError="deadLetter").shuffleGrouping("rows")
    builder.setBolt("letters", Passing()).shuffleGrouping("picky", stream="deadLetter")
    builder.createTopology()


def _no_letters():
    builder = picky("skip")
    builder.setBolt("letters", Passing()).shuffleGrouping("picky", stream="deadLetter")
    builder.createTopology()


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (_unknown, "onError is one of 'fail', 'skip', 'deadLetter', 'quarantineKey', not 'ignore'"),
        (_unread, "nobody reads its dead letters"),
        (_windows, "rows that are held back would come late"),
        (_combines, "one of a sum of many rows"),
        (_by_hand, "acks its tuples itself"),
        (_own_stream, "is in outputFields too"),
        (_no_json, "dead letters of bolt 'picky', field 'm'"),
        (_no_letters, 'onError="deadLetter" where it is set'),
    ],
)
def test_mistakes_are_told_before_anything_starts(mistake, text):
    with pytest.raises(TopologyError, match=text):
        mistake()


def test_a_plain_bolt_may_skip_rows_where_no_messages_are_tracked(tmp_path):
    class Plain(Stateful, Bolt):
        outputFields = "what string"

        def initState(self, state):
            self.state = state

        def execute(self, tup, collector):
            self.state.put(tup.what, 1)
            collector.emit((tup.what,), anchors=tup)
            if tup.what == "bad":
                raise ValueError("bad")
            collector.ack(tup)

    with TopologyTester(picky(bolt=Plain()).createTopology(), tmp_path / "ck") as tester:
        assert tester.send({"rows": [("a",), ("bad",), ("b",)]}).emitted("picky") == [("a",), ("b",)]
        assert tester.state("picky") == {"a": 1, "b": 1}


class Told(Picky):
    def executeBroadcast(self, tup, collector):
        collector.emit((f"told {tup.what}",))
        if tup.what == "bad":
            raise ValueError("of all tasks")

    def execute(self, tup, collector):
        if isTick(tup):
            collector.emit(("tick",))
            raise ValueError("of no row")
        collector.emit((tup.what,))
        if tup.what == "bad":
            raise ValueError("bad")


def told(ticks=None):
    builder = TopologyBuilder("told")
    builder.setStream("rows", rows("what string"))
    builder.setStream("rules", rows("what string"))
    bolt = builder.setBolt("told", Told(), onError="skip").globalGrouping("rows").broadcastGrouping("rules")
    if ticks:
        bolt.setTicks(ticks)
    builder.setBolt("pass", Passing(), 2).fieldsGrouping("told", "what")
    return builder.createTopology()


def test_what_other_hooks_have_emitted_stays(tmp_path):
    with TopologyTester(told(), tmp_path / "ck") as tester:
        sent = tester.send({"rules": [("rule",)], "rows": [("bad",), ("a",), ("bad",)]})
        assert sent.emitted("told") == [("told rule",), ("a",)]
        assert sorted(sent.emitted("pass")) == [("a",), ("told rule",)]


def test_a_rule_is_never_skipped_since_another_task_might_have_it(tmp_path):
    tester = TopologyTester(told(), tmp_path / "ck")
    with pytest.raises(BoltError, match=r"executeBroadcast.*of all tasks"):
        tester.send({"rules": [("bad",)], "rows": [("a",)]})


def test_a_tick_is_no_row(tmp_path):
    tester = TopologyTester(told(5), tmp_path / "ck", now=NOON)
    tester.send({"rows": [("a",)]})
    tester.advance(5)
    with pytest.raises(BoltError, match="of no row"):
        tester.send({"rows": [("a",)]})


@pytest.mark.slow
def test_an_attempt_that_is_run_again_has_the_same_letters_once(tmp_path):
    builder = TopologyBuilder("letters")
    data = [[(str(number),) for number in range(20)]]
    builder.setSpout("rows", MemoryTransactionalSpout(data, "what string", takePerBatch=5))
    builder.setBolt("odd", Odd(), 2, onError="deadLetter").fieldsGrouping("rows", "what")
    builder.setSink("letters", FileSink(tmp_path / "letters", format="json")).globalGrouping("odd", stream="deadLetter")
    FAIL[:] = ["9", "3"]
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        attempts = [tester.emit().progress.attempt for _ in range(4)]
    assert attempts == [1, 1, 0, 0]
    lines = [line for file in committedFiles(tmp_path / "letters") for line in Path(file).read_text().splitlines()]
    letters = [json.loads(line) for line in lines]
    assert sorted(int(json.loads(letter["row"])["what"]) for letter in letters) == list(range(1, 20, 2))
    assert {letter["txid"] for letter in letters} == {1, 2, 3, 4}


class Odd(WithState):
    def execute(self, tup, collector):
        self.state.put(tup.what, 1)
        if tup.what in FAIL:
            FAIL.remove(tup.what)
            raise FailedException("not now")
        if int(tup.what) % 2:
            raise ValueError("odd")


def test_a_picture_in_words_tells_of_it(tmp_path):
    assert "divide: Divides x 1, onError=skip\n" in divided(onError="skip").createTopology().describe()
