"""Rows that are written: each is of its type and of the bolt's own keys, or the writing is refused."""

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, WindowedBolt
from statefx.admin import tables
from statefx.admin.columns import says
from statefx.command import main
from statefx.errors import CheckpointError, ConfigError
from statefx.log.log import TransactionLog
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows
from tests.testing.places import place

__all__ = ["place"]

WORDS = [f"w{number}" for number in range(30)]
TYPED = {"key": "word string", "value": "count long"}


class Count(StatefulBolt):
    """Keeps a map and a timer beside each of its keys."""

    outputFields = None

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts, self.last = state, state.map("last")

    def execute(self, tup, collector):
        self.counts.put(tup.word, self.counts.get(tup.word, 0) + 1)
        self.last.put(tup.word, f"seen {tup.word}")
        self.timers.set(tup.word, self.context.processingTime + timedelta(days=1), processing=True)

    def onTimer(self, key, at, value, collector):
        pass


class Typed(Count):
    stateSchema = TYPED


def run(folder, bolt=None, tasks=2):
    builder = TopologyBuilder("words")
    builder.setStream("words", rows("word string"))
    builder.setBolt("count", bolt or Count(), tasks).fieldsGrouping("words", "word")
    with TopologyTester(builder.createTopology(), folder) as tester:
        tester.send({"words": [(word,) for word in WORDS]})
    return Checkpoint(folder)


def kept(checkpoint, **options):
    with checkpoint.state("count", **options) as view:
        return dict(view.items())


def said(checkpoint, rows, **options):
    """Return what the refusal of rows says, which has changed nothing."""
    before = kept(checkpoint), checkpoint.transactions()
    with pytest.raises(ConfigError) as raised:
        checkpoint.write("count", rows, **options)
    assert (kept(checkpoint), checkpoint.transactions()) == before
    return str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("bolt", [Count, Typed])
def test_a_value_of_another_type_is_refused_with_its_key(bolt, place):
    checkpoint = run(place / "ck", bolt())
    options = {} if bolt is Typed else {"schema": TYPED}
    for value in ("x", "2", 2.5, True, [1, 2], b"2", 2**63, date(2026, 5, 1)):
        column = pa.array([7, value] if type(value) is int else [value, value], pa.uint64() if value == 2**63 else None)
        told = said(checkpoint, pa.table({"word": ["w0", "w1"], "count": column}), **options)
        key = "w1" if type(value) is int else "w0"
        assert f"the row with key '{key}' has {value!r} in the column 'count', which is of type" in told
        assert "'count' has a value of type 'count bigint'" in told
    told = said(checkpoint, pa.table({"word": [3], "count": [1]}), **options)
    assert (
        "a row has 3 in the column 'word', which is of type int64, and 'count' has a key of type 'word string'" in told
    )
    alike = pa.table({"word": pa.array(["w0", "w1"]).dictionary_encode(), "count": pa.array([7.0, None])})
    checkpoint.write("count", alike, **options)
    assert (kept(checkpoint)["w0"], type(kept(checkpoint)["w0"]), "w1" in kept(checkpoint)) == (7, int, False)


COLUMNS = [
    pa.array([value]) if not isinstance(value, pa.Array) else value
    for value in (
        1, 2.0, 2.5, -0.0, float("nan"), True, "2", "x", b"x", 2**62, 2**53 + 1, [1, 2], [1.5], {"a": 1},
        {"a": 1, "b": "x"}, Decimal(2), Decimal("2.125"), date(2026, 5, 1), datetime(2026, 5, 1),
        datetime(2026, 5, 1, 12, tzinfo=UTC), datetime(2026, 5, 1, 12, tzinfo=timezone(timedelta(hours=2))),
        pa.array([0.1], pa.float32()), pa.array([300], pa.int16()), pa.array(["x"], pa.large_string()),
        pa.array([1], pa.timestamp("ns", "UTC")), pa.array([1000], pa.timestamp("ns", "UTC")),
    )
]  # fmt: skip
DDL = [
    "v int", "v tinyint", "v long", "v float", "v double", "v boolean", "v string", "v binary", "v date", "v timestamp",
    "v timestamp_ntz", "v decimal(10,2)", "v array<long>", "v array<boolean>", "v struct<a: long>",
]  # fmt: skip


@pytest.mark.slow
def test_what_is_written_is_shown_as_it_was_given(place):
    checkpoint = run(place / "ck", tasks=1)
    written = 0
    for ddl in DDL:
        options = {"schema": {"key": "word string", "value": ddl}}
        for number, column in enumerate(COLUMNS):
            word = f"{ddl} {number}"
            try:
                checkpoint.write("count", pa.table({"word": [word], "v": column}), **options)
            except ConfigError:
                continue
            (shown,) = checkpoint.table("count", start=word, stop=f"{word}\0", **options)["v"].to_pylist()
            assert says(shown, column.to_pylist()[0]), (ddl, column)
            written += 1
    assert written > len(DDL)


@pytest.mark.slow
def test_json_that_the_stateschema_can_not_say_is_refused(place):
    checkpoint = run(place / "ck", Typed())
    for key, value in (("w0", "x"), ("w0", 2.5), ("w0", True), ("w0", [1]), ("new", "x")):
        given = pa.table({"key": [json.dumps(key)], "value": [json.dumps(value)]})
        told = said(checkpoint, given, schema={})
        assert f"the row with key {key!r} has the value {value!r}, and the stateSchema of 'count' says" in told
        assert "schema={'value': 'count bigint'}" in told
    checkpoint.write("count", pa.table({"key": ['"w0"'], "value": ["7"]}), schema={})
    assert checkpoint.table("count").num_rows == len(WORDS)
    assert kept(checkpoint)["w0"] == 7


# ---- whose they are


@pytest.mark.slow
def test_rows_of_a_map_are_no_rows_of_the_bolt(place, capsys):
    checkpoint = run(place / "ck")
    refusal = "the column 'space' says 'map last' of a row, and only keys of the bolt's own ('state') can be written"
    assert refusal in said(checkpoint, checkpoint.table("count", map="last"))
    both = pa.concat_tables([checkpoint.table("count"), checkpoint.table("count", map="last").slice(3, 1)])
    assert refusal in said(checkpoint, both, mode="overwrite")
    checkpoint.write("count", checkpoint.table("count"), mode="overwrite")
    foreign = (
        checkpoint.table("count").drop_columns(["space"]).append_column("space", pa.nulls(len(WORDS), pa.string()))
    )
    checkpoint.write("count", foreign)

    before = kept(checkpoint)
    pq.write_table(checkpoint.table("count", map="last"), place / "rows.parquet")
    for words in (["--map", "last"], ["--map", "last", "--at", "1"]):
        assert main(["state", checkpoint.location, "count", *words]) == 0
        (place / "rows.json").write_text(capsys.readouterr().out)
        for file in ("rows.json", "rows.parquet"):
            assert main(["write-state", checkpoint.location, "count", str(place / file), "--yes"]) == 2
            assert refusal in capsys.readouterr().err
    for words in ([], ["--at", "1"]):
        assert main(["state", checkpoint.location, "count", *words]) == 0
        printed = capsys.readouterr().out
        assert "space" not in printed
        (place / "rows.json").write_text(printed)
        assert main(["write-state", checkpoint.location, "count", str(place / "rows.json"), "--yes"]) == 0
        capsys.readouterr()
    assert kept(checkpoint) == before


class Words(WindowedBolt):
    outputFields = "n long"

    def execute(self, window, collector):
        pass


def test_lines_of_windows_say_what_they_are(place, capsys):
    run(place / "ck", Words().withTumblingWindow("1 day"))
    assert main(["state", str(place / "ck"), "count", "--map", "windows"]) == 0
    printed = capsys.readouterr().out
    assert {json.loads(line)["space"] for line in printed.splitlines()} == {"windows"}
    file = BytesIO(printed.encode())
    file.name = "rows.json"
    assert set(tables.read_rows(file, None)[0]["space"].to_pylist()) == {"windows"}


def test_the_keys_that_there_are_now_are_the_bolts_own(place):
    checkpoint = run(place / "ck")
    done = checkpoint.write("count", pa.table({"word": ["new", "w3"], "count": pa.array([1, None])}), schema=TYPED)
    assert done.keys == len(kept(checkpoint)) == len(WORDS)
    assert str(done) == "1 row was written to count, 1 key deleted; it has 30 keys now"
    done = checkpoint.write("count", pa.table({"word": ["w5"], "count": [1]}), schema=TYPED, mode="overwrite")
    assert str(done) == "1 row was written to count; it has 1 key now"
    assert len(kept(checkpoint, map="last")) == len(WORDS)


# ---- what they are grouped by


@pytest.mark.slow
def test_by_key_takes_the_keys_of_maps_too(place, capsys):
    checkpoint = run(place / "ck", tasks=1)
    before = kept(checkpoint), kept(checkpoint, map="last")
    alone = ["rescale", checkpoint.location, "count=3", "--yes"]
    assert main(alone) == 1
    refused = capsys.readouterr().err
    advised = "lambda key: key[1] if isinstance(key, tuple) else key"
    assert advised in refused
    assert "or in a shell --by-key" in refused
    with pytest.raises(CheckpointError, match=r"returns \('last', 'w\d+'\) for its key 'w\d+' of state.map") as raised:
        checkpoint.rescale({"count": 3}, groupingKey={"count": lambda key: key})
    assert advised in str(raised.value)
    assert main([*alone, "--by-key"]) == 0
    moved = {task: (kept(checkpoint, task=task), kept(checkpoint, task=task, map="last")) for task in range(3)}
    assert all(own.keys() == last.keys() for own, last in moved.values())
    assert (kept(checkpoint), kept(checkpoint, map="last")) == before
    checkpoint.rescale({"count": 1})
    done = checkpoint.rescale({"count": 3}, groupingKey={"count": eval(advised)})  # the very text
    assert str(done).startswith(f"count has 3 tasks, and had 1; {done.keys} entries, ")
    assert {task: (kept(checkpoint, task=task), kept(checkpoint, task=task, map="last")) for task in range(3)} == moved


def test_a_function_that_raises_is_named_with_the_key(place):
    checkpoint = run(place / "ck")
    before = kept(checkpoint)
    told = (
        r"bolt 'count' can't be {}: groupingKey has raised an error of its key 'w\d+'{}: AttributeError: .*test_written"
    )
    with pytest.raises(CheckpointError, match=told.format("given other tasks", r"( of state.map\('last'\))?")):
        checkpoint.rescale({"count": 3}, groupingKey={"count": lambda key: key.word})
    given = pa.table({"word": ["w1"], "count": [1]})
    with pytest.raises(CheckpointError, match=told.format("written to", "") + r".*That is the row with key 'w1'"):
        checkpoint.write("count", given, schema=TYPED, groupingKey=lambda key: key.word)
    assert kept(checkpoint) == before


class KeepsMaps(Count):
    stateSchema = {"key": "word string", "value": "seen map<string,long>"}

    def execute(self, tup, collector):
        self.counts.put(tup.word, {"a": 1, tup.word: 2})


def test_a_map_is_written_as_the_dict_that_it_was(place):
    checkpoint = run(place / "ck", KeepsMaps())
    before = kept(checkpoint)
    kind = pa.map_(pa.string(), pa.int64())
    given = pa.table({"word": ["w0", "new"], "seen": pa.array([[("b", 3)], []], kind)})
    checkpoint.write("count", given)
    assert kept(checkpoint) == before | {"w0": {"b": 3}, "new": {}}
    checkpoint.write("count", checkpoint.table("count"))  # a round trip changes nothing
    assert kept(checkpoint) == before | {"w0": {"b": 3}, "new": {}}
    twice = pa.table({"word": ["w1"], "seen": pa.array([[("b", 3), ("b", 4)]], kind)})
    assert "'w1'" in said(checkpoint, twice)


@pytest.mark.slow
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("to", [None, "copy"])
def test_the_last_transaction_is_gone_back_to_with_the_rows_written_behind_it(place, folded, to):
    checkpoint = run(place / "ck")
    checkpoint.savepoint("before")
    checkpoint.write("count", pa.table({"word": ["w0"], "count": [70]}), schema=TYPED)
    checkpoint.savepoint("behind")
    if folded:
        TransactionLog(FolderStorage(place / "ck")).fold()
    known = () if folded else ("count",)
    for target, undone, count in (({"txid": 1}, (), 70), ({"savepoint": "before"}, known, 1)):
        done = checkpoint.restore(**target, to=to and place / f"to-{count}")
        assert (done.undone, kept(Checkpoint(done.location))["w0"]) == (undone, count)
        assert ("as before they were rescaled, written, renamed or dropped: count" in str(done)) is bool(undone)
    assert checkpoint.restore("behind").undone == ()
    assert kept(checkpoint)["w0"] == 70


@pytest.mark.slow
def test_an_earlier_transaction_is_gone_back_to_as_readers_see_it(place):
    checkpoint = run(place / "ck")
    checkpoint.write("count", pa.table({"word": ["w0"], "count": [70]}), schema=TYPED)
    run(place / "ck")
    table = checkpoint.table("count", at=1, schema=TYPED)
    shown = dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True))
    assert checkpoint.restore(txid=1).undone == ()
    assert shown == kept(checkpoint)
    assert shown["w0"] == 70
