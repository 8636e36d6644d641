"""Keys in quarantine: no row of a key passes an earlier one, whatever comes when."""

import json
import logging
import random

import pytest

from statefx import Checkpoint, ReplayDeadLetters, Spout, StatefulBolt, TopologyBuilder
from statefx.command import main
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import CheckpointError, TopologyError
from statefx.operators.dead_letters import DEAD_LETTERS
from statefx.testing import TopologyTester, rows
from statefx.testing.crashes import crashes
from tests.bolts import Ignores, WithState

FIELDS = "key string, n long"
MENDED = set()
"""Rows of which the bolt raises no error any more."""


class Orders(WithState):
    outputFields = FIELDS

    def execute(self, tup, collector):
        self.state.put(tup.key, [*self.state.get(tup.key, []), tup.n])
        collector.emit((tup.key, tup.n))
        if tup.n < 0 and tup.n not in MENDED:
            raise ValueError(f"no order {tup.n}")


class Whole(Orders):
    def executeBatch(self, batch, collector):
        assert batch.schema.names == ["key", "n"]
        for row in batch.to_pylist():
            super().execute(type("Row", (), row), collector)


@pytest.fixture(autouse=True)
def _as_bad_as_before():
    MENDED.clear()


def topology(bolt=Orders, parallelism=2, mode="quarantineKey", forget=False):
    builder = TopologyBuilder("orders")
    builder.setStream("live", rows(FIELDS))
    builder.setStream("letters", rows("row string, number long"))
    replay = ReplayDeadLetters(FIELDS, quarantined=mode == "quarantineKey", forget=forget)
    builder.setBolt("again", replay).globalGrouping("letters")
    orders = builder.setBolt("orders", bolt(), parallelism, onError=mode)
    orders.fieldsGrouping("live", "key").fieldsGrouping("again", "key")
    builder.setBolt("read", Ignores()).shuffleGrouping("orders", stream="deadLetter")
    return builder.createTopology()


def started(place, given=None, **config):
    return TopologyTester(given or topology(), place, {"topology.state.provider": "memory", **config})


def send(tester, live=(), letters=()):
    sent = tester.send({"live": list(live), "letters": [(each["row"], each["number"]) for each in letters]})
    found = [dict(zip(DEAD_LETTERS.names, each, strict=True)) for each in sent.emitted("orders", "deadLetter")]
    return sorted(found, key=lambda each: (each["task"], each["position"]))


def rows_of(letters):
    return [tuple(json.loads(each["row"]).values()) for each in letters]


def waiting(place):
    return {each.key: each.rows for each in Checkpoint(place).quarantined("orders")}


@pytest.mark.slow
def test_rows_behind_a_bad_one_wait_until_it_was_replayed(tmp_path):
    """A bad row, rows behind it, a replay in the middle of which live rows of the key come, and what is free again."""
    with started(tmp_path / "ck") as tester:
        letters = send(tester, [("a", 1), ("a", -2), ("b", 1), ("a", 3)])
        letters += send(tester, [("a", 4), ("b", 2)])
        assert tester.state("orders") == {"a": [1], "b": [1, 2]}
        assert rows_of(letters) == [("a", -2), ("a", 3), ("a", 4)]
        assert [each["error"] for each in letters] == ["ValueError", None, None]
        assert [each["hook"] for each in letters] == ["execute", None, None]
        first = letters[0]["number"]
        assert [each["number"] for each in letters] == [first, first + 1, first + 2]
        assert letters[1]["message"].startswith(
            "held back: in transaction 1 a row of key 'a' raised ValueError: no ord"
        )
        [found] = Checkpoint(tmp_path / "ck").quarantined("orders")
        assert (found.key, found.rows, found.first, found.txid) == ("a", 3, first, 1)
        assert found.error.startswith("ValueError: no order -2")

        MENDED.add(-2)
        behind = send(tester, [("a", 5)], letters[:2])  # one is left, and 5 may not pass it
        assert tester.state("orders")["a"][:3] == [1, -2, 3]
        assert rows_of(behind) == [("a", 5)]
        assert send(tester, [], letters[2:]) == []
        assert waiting(tmp_path / "ck") == {"a": 1}
        assert send(tester, [], behind) == []
        assert waiting(tmp_path / "ck") == {}
        assert send(tester, [("a", 6)]) == []
        assert tester.state("orders") == {"a": [1, -2, 3, 4, 5, 6], "b": [1, 2]}


@pytest.mark.slow
def test_what_is_replayed_out_of_order_or_twice_is_not_executed(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "statefx")
    with started(tmp_path / "ck") as tester:
        letters = send(tester, [("a", -1), ("a", 2), ("a", 3)])
        MENDED.add(-1)
        again = send(tester, [], [letters[2], letters[0], letters[0]])
        assert [(each["number"], each["row"]) for each in again] == [(letters[2]["number"], letters[2]["row"])]
        assert tester.state("orders") == {"a": [-1]}
        assert send(tester, [], letters) == []
        assert tester.state("orders") == {"a": [-1, 2, 3]}
        assert send(tester, [], letters + again) == []
        assert tester.state("orders") == {"a": [-1, 2, 3]}
    told = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert "of a row of key 'a', which is held back from now on" in told[0]
    assert any("of key 'a' does not wait: it was dealt with already" in text for text in told)


@pytest.mark.slow
def test_rows_can_be_forgotten_and_mended(tmp_path):
    with started(tmp_path / "ck", topology(forget=True)) as tester:
        letters = send(tester, [("a", -1), ("a", -2), ("a", 3)])
        unnumbered = {"row": '{"key":"b","n":1}', "number": None}  # as of onError="deadLetter": it waits nowhere
        assert send(tester, [], [unnumbered]) == send(tester, [], [unnumbered, letters[0]]) == []
        assert tester.state("orders") == {}
        tester = tester.restart(topology())
        letters[1]["row"] = '{"key":"a","n":2}'
        assert send(tester, [], letters[1:]) == []
        assert tester.state("orders") == {"a": [2, 3]}
        tester.close()


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("bolt", [Orders, Whole])
@pytest.mark.parametrize(("provider", "seed"), [("memory", 1), ("rocksdb", 2)])
def test_whatever_is_replayed_when_each_key_has_its_rows_in_order(tmp_path, bolt, provider, seed):
    """Compared with a plain model: of each key, the rows that were executed are the first of those that came."""
    chance = random.Random(seed)
    came, letters, number = {}, [], 0
    tester = started(tmp_path / "ck", topology(bolt), **{"topology.state.provider": provider})
    for turn in range(16):
        live = []
        for _ in range(chance.randrange(12)):
            number += 1
            live.append((chance.choice("abcdef"), -number if chance.random() < 0.1 else number))
            came.setdefault(live[-1][0], []).append(live[-1][1])
        replayed = [each for each in letters if chance.random() < 0.4]
        if chance.random() < 0.5:
            chance.shuffle(replayed)
        MENDED.update(each for each in range(-number, 0) if chance.random() < 0.1)
        letters += send(tester, live, replayed)
        if turn % 6 == 5:
            tester = tester.restart()
        done, waits = tester.state("orders"), waiting(tmp_path / "ck")
        for key, numbers in came.items():
            executed = done.get(key, [])
            assert executed == numbers[: len(executed)]
            assert waits.get(key, 0) == len(numbers) - len(executed)
    assert any(each["error"] is None for each in letters)
    MENDED.update(range(-number, 0))
    letters.sort(key=lambda each: each["number"])
    assert send(tester, [], letters) == []
    assert tester.state("orders") == came
    assert waiting(tmp_path / "ck") == {}
    tester.close()


FIRST = 1 << 32
"""The number of the first letter of the first transaction."""

LIVE = [("a", -1), ("a", 2), ("a", 3), ("b", -4), ("b", 5), ("a", 6)]
"""One in each transaction, of which the third has the first letter of a as well: 3 has to wait behind 2."""

REPLAYED = [
    *(('{"key":"z","n":0}', None) for _ in range(2)),
    *((json.dumps({"key": "a", "n": n}), FIRST + number) for number, n in enumerate([1, 2, 3])),
]


class Keep(WithState):
    def execute(self, tup, collector):
        key = (tup.number, tup.row)
        self.state.put(key, self.state.get(key, 0) + 1)


def spouted():
    builder = TopologyBuilder("spouted")
    builder.setSpout("live", MemoryTransactionalSpout([LIVE], FIELDS, takePerBatch=1))
    builder.setSpout("letters", MemoryTransactionalSpout([REPLAYED], "row string, number long", takePerBatch=1))
    builder.setBolt("again", ReplayDeadLetters(FIELDS, quarantined=True)).globalGrouping("letters")
    orders = builder.setBolt("orders", Orders(), 2, onError="quarantineKey")
    orders.fieldsGrouping("live", "key").fieldsGrouping("again", "key")
    builder.setBolt("kept", Keep()).globalGrouping("orders", stream="deadLetter")
    return builder.createTopology()


def check_left(place, tester):
    assert tester.state("orders") == {"a": [1, 2, 3, 6], "z": [0, 0]}
    assert waiting(place) == {"b": 2}
    letters = tester.state("kept")
    assert set(letters.values()) == {1}
    assert sorted(json.loads(row)["n"] for _, row in letters) == [-4, -1, 2, 3, 5]
    assert [number for number, _ in sorted(letters)][:3] == [FIRST, FIRST + 1, FIRST + 2]


@pytest.mark.slow
def test_a_crash_at_any_step_leaves_what_is_left_without_one(place, stride):
    config = {"topology.state.provider": "memory"}

    def life(steps=None):
        with TopologyTester(spouted(), place / "ck", config, steps=steps) as tester:
            tester.drain()
            return tester

    found = 0
    for _point in crashes(place, life, every=stride):
        check_left(place / "ck", life())
        found += 1
    assert found > 50 // stride


@pytest.mark.slow
@pytest.mark.parametrize(("was", "now"), [(2, 5), (5, 2)])
def test_a_key_in_quarantine_moves_with_its_state(tmp_path, was, now):
    place, keys = tmp_path / "ck", [f"key {number}" for number in range(40)]
    with started(place, topology(parallelism=was)) as tester:
        send(tester, [(key, 1) for key in keys])
        letters = send(tester, [(key, -2) for key in keys[:20]] + [(key, 3) for key in keys])
    before = {each.key: (each.rows, each.first) for each in Checkpoint(place).quarantined("orders")}
    Checkpoint(place).rescale({"orders": now})
    assert {each.key: (each.rows, each.first) for each in Checkpoint(place).quarantined("orders")} == before
    assert len({each.task for each in Checkpoint(place).quarantined("orders")}) == now
    MENDED.add(-2)
    with started(place, topology(parallelism=now)) as tester:
        letters += send(tester, [(key, 4) for key in keys])
        assert len(letters) == 60
        assert send(tester, [], letters) == []
        assert tester.state("orders") == {key: [1, -2, 3, 4] if key in keys[:20] else [1, 3, 4] for key in keys}


def test_the_grouping_may_have_fields_of_any_type(tmp_path):
    fields = "a double, b decimal(5,2), c timestamp, d array<struct<x:int>>, e string"
    given = [
        (0.0, None, None, [{"x": 1}], "ü"),
        (-0.0, None, None, [{"x": 1}], "ü"),
        (float("nan"), None, None, [], None),
    ]

    class Bad(StatefulBolt):
        def initState(self, state):
            pass

        def execute(self, tup, collector):
            raise ValueError("bad")

    builder = TopologyBuilder("types")
    builder.setStream("live", rows(fields))
    builder.setBolt("orders", Bad(), 2, onError="quarantineKey").fieldsGrouping("live", "a", "b", "c", "d", "e")
    builder.setBolt("read", Ignores()).shuffleGrouping("orders", stream="deadLetter")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        sent = tester.send({"live": [*given, given[2]]})
        errors = [letter[3] for letter in sent.emitted("orders", "deadLetter")]
        assert sorted(errors, key=str) == [None, None, "ValueError", "ValueError"]
    found = {each.key[4]: (each.rows, str(each.key[0])) for each in Checkpoint(tmp_path / "ck").quarantined("orders")}
    assert found == {"ü": (2, "0.0"), None: (2, "nan")}


@pytest.mark.slow
def test_with_another_mode_the_keys_wait_untouched(tmp_path):
    """Who says so lets rows pass; back in quarantine, what has not been replayed waits as before."""
    with started(tmp_path / "ck") as tester:
        send(tester, [("a", -1)])
        tester = tester.restart(topology(mode="deadLetter"))
        assert send(tester, [("a", 2)]) == []
        assert waiting(tmp_path / "ck") == {"a": 1}
        tester = tester.restart(topology())
        assert rows_of(send(tester, [("a", 3)])) == [("a", 3)]
        tester.close()


class Handing(Spout):
    outputFields = FIELDS
    given, told = [], []

    def open(self, context):
        self.left = list(enumerate(self.given))

    def nextTuple(self, collector):
        if self.left:
            number, row = self.left.pop(0)
            collector.emit(row, id=number)

    def ack(self, id):
        self.told.append(("ack", id))

    def fail(self, id):
        self.told.append(("fail", id))


def test_a_message_that_is_held_back_is_acked(tmp_path):
    Handing.given, Handing.told = [("a", 1), ("a", -2), ("a", 3), ("b", 4)], []
    builder = TopologyBuilder("messages")
    builder.setSpout("spout", Handing())
    builder.setBolt("orders", Orders(), onError="quarantineKey").fieldsGrouping("spout", "key")
    builder.setBolt("read", Ignores()).shuffleGrouping("orders", stream="deadLetter").shuffleGrouping("orders")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        while len(Handing.told) < len(Handing.given):
            assert tester.drain()
        assert sorted(Handing.told) == [("ack", number) for number in range(4)]
        assert tester.state("orders") == {"a": [1], "b": [4]}


def test_the_command_shows_what_waits(tmp_path, capsys):
    with started(tmp_path / "ck") as tester:
        send(tester, [("a", -1), ("a", 2)])
    assert main(["quarantined", str(tmp_path / "ck"), "orders", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["key"], found["rows"], found["txid"]) == ("a", 2, 1)


# ---- mistakes


def _wired(wire, mode="quarantineKey", bolt=None, replay=None, letters="row string, number long"):
    builder = TopologyBuilder("orders")
    builder.setStream("live", rows(FIELDS))
    builder.setStream("letters", rows(letters))
    builder.setBolt("again", replay or Ignores()).globalGrouping("letters")
    wire(builder.setBolt("orders", bolt or Orders(), 2, onError=mode))
    builder.setBolt("read-live", Ignores()).shuffleGrouping("live")
    if mode == "quarantineKey":
        builder.setBolt("read", Ignores()).shuffleGrouping("orders", stream="deadLetter")
    builder.createTopology()


MISTAKES = {
    "without state": (lambda: _wired(None, bolt=Ignores()), "Ignores keeps no state"),
    "without a key": (
        lambda: _wired(lambda orders: orders.shuffleGrouping("live")),
        "reads 'live' by shuffle, and only the fields of a fieldsGrouping",
    ),
    "with letters without numbers": (
        lambda: _wired(lambda orders: orders.fieldsGrouping("again", "key"), replay=ReplayDeadLetters(FIELDS)),
        r"Say ReplayDeadLetters\(\.\.\., quarantined=True\)",
    ),
    "with numbers where nothing waits": (
        lambda: _wired(
            lambda orders: orders.fieldsGrouping("again", "key"),
            mode="skip",
            replay=ReplayDeadLetters(FIELDS, quarantined=True),
        ),
        'only a bolt with onError="quarantineKey" can read it: leave that out',
    ),
    **{
        f"with letters that lack {name}": (
            lambda fields=fields, options=options: _wired(
                lambda orders: orders.fieldsGrouping("again", "key"),
                mode="quarantineKey" if "quarantined" in options else "skip",
                replay=ReplayDeadLetters(FIELDS, **options),
                letters=fields,
            ),
            f"needs the field '{name}' of dead letters",
        )
        for name, fields, options in [
            ("row", "value string", {}),
            ("bolt", "row string, txid long", {"bolt": "orders"}),
            ("source", "row string, bolt string", {"bolt": "orders", "source": "live"}),
            ("stream", "row string", {"stream": "default"}),
            ("number", "row string", {"quarantined": True}),
        ]
    },
    "with rows to forget that do not wait": (
        lambda: ReplayDeadLetters(FIELDS, forget=True),
        "only rows that wait in quarantine can be forgotten",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_before_anything_starts(mistake):
    do, text = MISTAKES[mistake]
    with pytest.raises(TopologyError, match=text):
        do()


def test_a_bolt_without_keys_has_none_in_quarantine(tmp_path):
    builder = TopologyBuilder("no keys")
    builder.setStream("live", rows(FIELDS))
    builder.setBolt("orders", Orders()).globalGrouping("live")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        tester.send({"live": [("a", 1)]})
    with pytest.raises(CheckpointError, match="no key of it can be in quarantine"):
        Checkpoint(tmp_path / "ck").quarantined("orders")
    with Checkpoint(tmp_path / "ck").state("orders") as state:
        assert dict(state) == {"a": [1]}
