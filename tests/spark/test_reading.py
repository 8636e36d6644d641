"""Readers on Spark of what sinks have published: whole transactions, in order, once; and of what waits to be."""

from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, isnan, nan

import pytest

from statefx import TopologyBuilder
from statefx.connectors.files import FileSink, readCommitted, readUncommitted
from statefx.connectors.sql import SqlSink
from statefx.errors import CheckpointError, ConfigError, SinkError, SinkMismatchError
from statefx.testing import Crash, TopologyTester, rows

pytestmark = pytest.mark.slow

PLAIN = {
    "text string": ['a "b", \\c\nd', None, "ü}{"],
    "yes boolean": [True, False, None],
    "tiny tinyint": [1, -1, None],
    "n bigint": [2**62, -1, None],
    "x double": [nan, -inf, 1.5],
    "money decimal(10,2)": [Decimal("1.10"), Decimal("-2.00"), None],
    "day date": [date(2020, 2, 29), None, date(1969, 1, 1)],
    "at timestamp": [datetime(2020, 1, 1, 1, 2, 3, 4, UTC), None, datetime(1969, 1, 1, tzinfo=UTC)],
    "local timestamp_ntz": [datetime(2020, 1, 1, 1, 2, 3, 4), None, datetime(1969, 1, 1)],
}
NOT_FOLDERS = {  # an empty text becomes null there
    "odd string": ["", " x\t", "null"],
    "quoted string": ['"', '\\"', "'"],
    "lines string": ["\r\n", "a,b", "#"],
}
NESTED = {
    "data binary": [b"\x00\xff", None, b""],
    "tags array<string>": [["a", None], None, []],
    "pair struct<a:int,b:decimal(5,1)>": [{"a": 1, "b": Decimal("1.5")}, None, {"a": None, "b": None}],
}


def topology(place, ddl="word string, n long", format="parquet", **options):
    builder = TopologyBuilder("writes")
    builder.setStream("rows", rows(ddl))
    builder.setSink("out", FileSink(place / "out put ü%41", format, **options), parallelism=2).shuffleGrouping("rows")
    return builder.createTopology()


def target(place):
    return place / "out put ü%41"


def write(place, *transactions, checkpoint="ck", **options):
    with TopologyTester(topology(place, **options), place / checkpoint) as tester:
        for each in transactions:
            tester.send({"rows": each})


def words(*numbers):
    return [(f"w{number}", number) for number in numbers]


def plain(value):
    return "nan" if isinstance(value, float) and isnan(value) else value


@pytest.mark.parametrize(
    ("format", "folders", "stream"),
    [
        ("parquet", False, True),
        ("parquet", True, False),
        ("json", False, False),
        ("csv", False, True),
        ("csv", True, False),
    ],
)
def test_every_type_comes_back_as_it_was(spark, place, format, folders, stream):
    """As values of the files, and as names of folders; times in a zone of the session's that is not UTC."""
    columns = PLAIN | ({} if folders else NOT_FOLDERS) | ({} if folders or format == "csv" else NESTED)
    names = [name.partition(" ")[0] for name in columns]
    given = list(zip(range(3), *columns.values(), strict=True))
    write(
        place, given, ddl=", ".join(["id int", *columns]), format=format, partitionBy=names if folders else ()
    )  # fmt: skip
    frame = readCommitted(spark, target(place), stream=stream)
    assert frame.columns == ["id", *names]
    expected = spark.createDataFrame([], ", ".join(["id int", *columns])).dtypes
    assert frame.dtypes == expected
    found = sorted(map(tuple, batches(frame, place)[0] if stream else frame.collect()), key=lambda row: row[0])
    shown = [[row[0], *(seen(value, name) for value, name in zip(row[1:], names, strict=True))] for row in found]
    assert shown == [
        [row[0], *(seen(value, name) for value, name in zip(row[1:], names, strict=True))] for row in given
    ]


def test_names_come_back_as_they_were(spark, place):
    """Spark takes a name without quotes if its letters are of ASCII."""
    names = ["größe", "año", "m²", "Ähnlich", "名前", "a b", "x`y", "2nd", "select", "a.b"]
    write(place, [range(len(names))], ddl=", ".join("`{}` int".format(name.replace("`", "``")) for name in names))
    frame = readCommitted(spark, target(place))
    assert (frame.columns, [tuple(row) for row in frame.collect()]) == (names, [tuple(range(len(names)))])


def seen(value, name):
    """PySpark hands out times in the zone of this process, structs as rows, and bytes as what can be changed."""
    if name == "at" and value is not None:
        return value.astimezone(UTC)
    if isinstance(value, bytearray):
        return bytes(value)
    return value.asDict() if hasattr(value, "asDict") else plain(value)


def batches(frame, place, name="reader"):
    """Read all that is there as a stream; the rows of each micro-batch."""
    found = []
    query = start(frame, place, found, name, availableNow=True)
    query.awaitTermination()
    return found


def start(frame, place, found, name="reader", **trigger):
    writer = frame.writeStream.foreachBatch(lambda rows, _: found.append(rows.collect()))
    return (
        writer.option("checkpointLocation", str(place / name))
        .trigger(**trigger or {"processingTime": "0 seconds"})
        .start()
    )


def test_a_stream_has_each_transaction_whole_and_once(spark, place):
    """It begins before the first row is there, and goes over several compact manifests; another one comes late."""
    found = []
    with TopologyTester(topology(place, maxFileBytes=1, partitionBy="word"), place / "ck") as tester:
        frame = readCommitted(spark, target(place), txid="txid", stream=True)
        assert readCommitted(spark, target(place)).collect() == []
        query = start(frame, place, found)
        try:
            for txid in range(1, 24):
                tester.send({"rows": words(*range(10 * txid, 10 * txid + txid % 4))})
                (place / "out put ü%41" / f"part-{txid:010d}-00000-nobody-0000.snappy.parquet").write_bytes(b"unnamed")
                if txid % 3 == 0:
                    query.processAllAvailable()
            tester.sweep()
            query.processAllAvailable()
        finally:
            query.stop()
    given = [(word, n, txid) for txid in range(1, 24) for word, n in words(*range(10 * txid, 10 * txid + txid % 4))]
    assert sorted(tuple(row) for batch in found for row in batch) == sorted(given)
    txids = [txid for batch in found for txid in sorted({row.txid for row in batch})]
    assert txids == sorted({row[2] for row in given}), "in order, and none in two batches"
    assert len(found) > 5
    (late,) = batches(readCommitted(spark, target(place), stream=True, txid="txid"), place, "late")
    assert sorted(map(tuple, late)) == sorted(given)
    assert sorted(map(tuple, readCommitted(spark, target(place), txid="txid").collect())) == sorted(given)


def test_a_stream_goes_on_when_another_topology_takes_over(spark, place):
    write(place, words(1), words(2))
    found = []
    query = start(readCommitted(spark, target(place), stream=True, txid="txid"), place, found)
    try:
        query.processAllAvailable()
        with TopologyTester(topology(place), place / "other", adopt="takeover") as tester:
            tester.send({"rows": words(3)})
            query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(tuple(row) for batch in found for row in batch) == [("w1", 1, 1), ("w2", 2, 2), ("w3", 3, 1)]


def test_fields_that_came_later_are_null_in_older_rows(spark, place):
    write(place, words(1))
    write(place, [(2, 2.5)], ddl="n long, more double")
    found = readCommitted(spark, target(place)).orderBy("n")
    assert (found.columns, [tuple(row) for row in found.collect()]) == (
        ["word", "n", "more"],
        [("w1", 1, None), (None, 2, 2.5)],
    )


@pytest.mark.daily(1)
@pytest.mark.parametrize("options", [{}, {"partitionBy": "word"}], ids=["flat", "folders"])
def test_what_is_ready_and_not_committed_can_be_looked_at(spark, place, options, monkeypatch):
    monkeypatch.setattr("statefx.connectors.files.sink.COMMITTABLE_BYTES_MAX", 1)  # the files are named in another one
    write(place, words(1), **options)
    assert readUncommitted(spark, target(place), txid="t").collect() == []
    crashed(lambda at: TopologyTester(topology(place, **options), place / "ck", crash_at=at), spark, place)
    found = readUncommitted(spark, target(place), txid="t")
    assert [tuple(row) for row in found.collect()] == [("}{", 2, 2)]
    assert found.columns == ["word", "n", "t"]
    assert [tuple(row) for row in readCommitted(spark, target(place)).collect()] == [("w1", 1)]


def crashed(tester, spark, place):
    """Send a transaction to a driver that dies before it is published; its files are there by then."""
    for at in range(1, 30):
        try:
            with tester(at) as running:
                running.send({"rows": [("}{", 2)]})
        except Crash:
            pass
        if list(target(place).rglob("part-0000000002-*")):
            return


def test_rows_that_wait_in_the_checkpoint_can_be_looked_at(spark, place, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(place / "nothing"))  # as another python3 on the path
    monkeypatch.delenv("PYSPARK_PYTHON")
    builder = TopologyBuilder("writes")
    builder.setStream("rows", rows("word string, n long"))
    builder.setSink("table", SqlSink(f"sqlite:///{place}/db", "words")).shuffleGrouping("rows")
    wired = builder.createTopology()
    with TopologyTester(wired, place / "ck"):
        assert readUncommitted(spark, place / "ck", "table", txid="t").collect() == []
    for at in range(1, 30):
        try:
            with TopologyTester(wired, place / "ck", crash_at=at) as tester:
                tester.send({"rows": words(1, 2, 3)})
        except Crash:
            pass
        if list((place / "ck" / "staged").rglob("*.arrow")):
            break
    found = readUncommitted(spark, place / "ck", "table", txid="t")
    assert {tuple(row) for row in found.collect()} == {(*word, 1) for word in words(1, 2, 3)}
    with TopologyTester(wired, place / "ck") as tester:
        tester.send({"rows": words(4)})
    assert readUncommitted(spark, place / "ck", "table").columns == []


def test_what_can_not_be_read_says_why(spark, place):
    (place / "empty").mkdir()
    for nothing in ("missing", "empty"):
        for read in (readCommitted, readUncommitted):
            with pytest.raises(SinkError, match="submit its topology first"):
                read(spark, place / nothing)
    with pytest.raises(CheckpointError):
        readUncommitted(spark, place / "empty", "table")
    write(place, words(1))
    for name in ("word", "Word"):
        with pytest.raises(ConfigError, match=f"'{name}' already"):
            readCommitted(spark, target(place), txid=name)
    for name, value in [("fileStreamSink.ignoreMetadata", "true"), ("fileSink.log.compactInterval", "3")]:
        spark.conf.set(f"spark.sql.streaming.{name}", value)
        try:
            with pytest.raises(ConfigError, match=rf"{name} = {value}, .*: set it to"):
                readCommitted(spark, target(place))
        finally:
            spark.conf.unset(f"spark.sql.streaming.{name}")
    manifest = target(place) / "_spark_metadata" / "1"
    manifest.write_bytes(manifest.read_bytes()[:-3])
    with pytest.raises(SinkMismatchError, match=r"_spark_metadata/1 is damaged .*restore the folder"):
        readCommitted(spark, target(place))
    for path in (target(place) / "_spark_metadata").iterdir():
        path.unlink()
    for read in (readCommitted, readUncommitted):
        with pytest.raises(SinkMismatchError, match="_spark_metadata is gone"):
            read(spark, target(place))
