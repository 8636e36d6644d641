"""Rows of which a windowed bolt raises an error: they are set aside, and the windows are those of the others."""

import json
import random
from collections import Counter
from datetime import timedelta
from itertools import product

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from statefx import Spout, StatefulBolt, TopologyBuilder, WindowedBolt
from statefx.errors import AttemptsExhaustedError, BoltError, FailedException, TopologyError
from statefx.testing import TopologyTester, rows
from tests.runtime.recount import KINDS, NOON, at, windowed

NAN = float("nan")
FIELDS = "key double, at timestamp, number long"


class Values(WindowedBolt):
    """Changes its values in place, and refuses numbers from 90 on after it has done so."""

    outputFields = "key double, start timestamp, numbers string"

    def initWindow(self):
        return []

    def addToWindow(self, value, tup):
        value.append(tup.number)
        if tup.number >= 90:
            raise ValueError(f"number {tup.number}")
        return value

    def mergeWindows(self, a, b):
        return a + b

    def emitWindow(self, window, value, collector):
        collector.emit((window.key, window.start, repr(sorted(value))))


class Tuples(WindowedBolt):
    outputFields = "key double, start timestamp, numbers string"

    def execute(self, window, collector):
        collector.emit((window.key, window.start, repr(sorted(tup.number for tup in window))))


class Batches(Values):
    def executeBatch(self, batch):
        if pc.any(pc.greater_equal(batch.column("number"), 90)).as_py():
            raise ValueError("a number of 90 or more")
        numbers = [[number] for number in batch.column("number").to_pylist()]
        names = {"key": batch.column("key"), "window": batch.column("window"), "value": pa.array(numbers)}
        return pa.table(names)


class Keep(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        row = tup._stream, *tup
        self.state[row] = self.state.get(row, 0) + 1


def topology(bolt, **options):
    builder = TopologyBuilder("bad")
    # A row that is set aside moves the watermark all the same: with this lateness it changes no window of others.
    builder.setStream("rows", rows(FIELDS), timestamp="at", lateness="1 hour")
    builder.setBolt("windows", bolt, **options).fieldsGrouping("rows", "key")
    keep = builder.setBolt("keep", Keep()).globalGrouping("windows")
    if options.get("onError") == "deadLetter":
        keep.globalGrouping("windows", stream="deadLetter")
    return builder.createTopology()


def lives(chance, refuses):
    """Return transactions of rows, and which of their numbers are bad."""

    def row(number):
        key = chance.choice([1.5, 2.5, NAN if chance.random() < 0.3 else 1.5])
        return key, at(number + chance.randint(-30, 30)), chance.choice([number, number, 90 + number])

    sent = [[row(10 * txid + n) for n in range(chance.randint(0, 9))] for txid in range(5)]
    sent.append([(1.5, at(1000), 0)])
    return sent, lambda key, time, number: key != key or (refuses and number >= 90)


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "kind"),
    [
        *product([Values, Tuples], [kind for kind in KINDS if "counted, " not in kind]),
        *product([Batches], ["tumbling", "sliding"]),
    ],
)
def test_windows_are_those_of_the_rows_that_are_not_bad(made, kind, tmp_path):
    for seed, mode in enumerate(["skip", "deadLetter"]):
        sent, is_bad = lives(random.Random(seed), made is not Tuples)
        good = [[row for row in part if not is_bad(*row)] for part in sent]
        found = [
            run(topology(windowed(made(), kind), **given), tmp_path / f"{seed}-{number}", parts)
            for number, (given, parts) in enumerate([({}, good), ({"onError": mode}, sent)])
        ]
        letters = Counter({row: count for row, count in found[1].items() if row[0] == "deadLetter"})
        assert found[1] - letters == found[0]
        bad = Counter(number for part in sent for key, time, number in part if is_bad(key, time, number))
        if mode == "deadLetter":
            numbers = [json.loads(row[1])["number"] for row, count in letters.items() for _ in range(count)]
            assert Counter(numbers) == bad


def run(of, place, transactions):
    with TopologyTester(of, place, now=NOON + timedelta(hours=1)) as tester:
        for part in transactions:
            tester.send({"rows": part})
        tester.closeTime()
        return Counter(tester.state("keep"))


@pytest.mark.parametrize("kind", list(KINDS))
def test_without_on_error_the_error_names_the_field(kind, tmp_path):
    with (
        TopologyTester(topology(windowed(Values(), kind)), tmp_path, now=NOON) as tester,
        pytest.raises(BoltError, match=r"field 'key' of a row of 'rows' is NaN, .*onError=\"deadLetter\""),
    ):
        tester.send({"rows": [(1.5, at(1), 1), (NAN, at(1), 2)]})


def test_rows_are_not_held_back_from_windows(tmp_path):
    with pytest.raises(TopologyError, match=r'held back would come late .*onError="deadLetter"'):
        topology(windowed(Values(), "tumbling"), onError="quarantineKey")


def giving(hook, act):
    """Return a bolt that does something wrong as a full window is given to it, in this hook."""

    def fails(self, *_):
        if act == "return":
            return "a row"
        raise {"raise": KeyError, "fail": FailedException}[act](hook)

    return type("Gives", ({"emitWindow": Values, "execute": Tuples}[hook],), {hook: fails})()


@pytest.mark.parametrize("act", ["raise", "return", "fail"])
@pytest.mark.parametrize("hook", ["emitWindow", "execute"])
def test_an_error_as_a_full_window_is_given_is_of_no_row(hook, act, tmp_path):
    """If it were the last row's, that row and each later one of the key would be set aside, without end."""

    class Messages(Spout):
        outputFields = FIELDS

        def open(self, context):
            self.left = [0, 1, 2]

        def nextTuple(self, collector):
            while self.left:
                number = self.left.pop(0)
                collector.emit((1.5, at(number), number), id=number if number % 2 else None)

    builder = TopologyBuilder("gives")
    builder.setSpout("rows", Messages())
    builder.setBolt("windows", windowed(giving(hook, act), "counted"), onError="skip").fieldsGrouping("rows", "key")
    error, text = (AttemptsExhaustedError, hook) if act == "fail" else (BoltError, f"hook {hook}")
    config = {"topology.transaction.attempts.max": 1}
    with TopologyTester(builder.createTopology(), tmp_path, config) as tester, pytest.raises(error, match=text):
        tester.emit()
