"""The JVM confirms the pinned hashes, so that tuples and DataFrames with equal keys meet in one task."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructField, StructType

from statefx.operators import parse_schema
from statefx.plan.hashing import row_hasher
from tests.plan.vectors import VECTORS

pytestmark = pytest.mark.slow

IDS = [ddl for ddl, _, _ in VECTORS]


@pytest.fixture(scope="module")
def spark():
    running = SparkSession.getActiveSession()
    started = running or SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    session = started.newSession()  # settings of its own
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    if running is None:
        started.stop()


@pytest.mark.parametrize(("ddl", "rows", "hashes"), VECTORS, ids=IDS)
def test_spark_makes_the_pinned_hashes(spark, ddl, rows, hashes):
    frame = spark.createDataFrame(rows, ddl)
    assert [row[0] for row in frame.select(F.xxhash64(*frame.columns)).collect()] == hashes


def test_a_frames_schema_is_read_as_spark_itself_hands_it_to_arrow(spark):
    """All types in one frame: the seconds that Spark takes are those of a job."""
    fields, row = [], ()
    for number, (ddl, rows, _) in enumerate(VECTORS):
        fields += [StructField(f"{field.name}{number}", field.dataType) for field in StructType.fromDDL(ddl)]
        row += rows[0]
    frame = spark.createDataFrame([row], StructType(fields))
    read = parse_schema(frame.schema)
    assert list(read) == list(frame.toArrow().schema)
    assert list(read) == list(parse_schema(frame.schema.simpleString()))


def test_spark_and_python_route_to_the_same_task(spark):
    rows = [(f"word-{number}", number) for number in range(200)]
    frame = spark.createDataFrame(rows, "word string, count long")
    routed = frame.select(F.expr("cast(pmod(xxhash64(word, count), 7) as int)")).collect()
    hasher = row_hasher(parse_schema(frame.schema), ["word", "count"])
    assert [row[0] for row in routed] == [hasher(row) % 7 for row in rows]


def test_types_without_a_counterpart_are_refused_by_column(spark):
    frame = spark.sql("select 1 as fine, interval 1 day as wait")
    with pytest.raises(ValueError, match="column 'wait' has the type interval day"):
        parse_schema(frame.schema)
    frame = spark.sql("select named_struct('inner', array(parse_json('1'))) as outer")
    with pytest.raises(ValueError, match=r"column 'outer\.inner' has the type variant"):
        parse_schema(frame.schema)
