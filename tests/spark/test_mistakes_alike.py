"""A mistake is refused by ``submit`` and by ``TopologyTester`` alike: the same class of error, in the same words."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statefx import BasicBolt, TopologyBuilder, submit
from statefx.errors import StatefxError
from statefx.testing import TopologyTester, rows
from tests.spark.running import listing
from tests.testing.topologies import Count, Split

pytestmark = pytest.mark.slow

CONFIG = "topology.state.provider.config"


class Holds(BasicBolt):
    def __init__(self, thing: object) -> None:
        self.thing = thing

    def execute(self, tup, collector):
        pass


def words(frame: Any, *, parallelism: int = 2, split: Any = None) -> Any:
    builder = TopologyBuilder("words")
    builder.setStream("lines", frame)
    builder.setBolt("split", split or Split()).shuffleGrouping("lines")
    if split is None:
        builder.setBolt("count", Count(), parallelism).fieldsGrouping("split", "word")
    return builder.createTopology()


def holding(make: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda frame: words(frame, split=Holds(make()))


def unfinished(frame: Any) -> Any:
    return TopologyBuilder("words")


TOPOLOGIES: dict[str, Callable[[Any], Any]] = {
    "the builder": unfinished,
    "nothing": lambda frame: None,
    "a lock in a bolt": holding(threading.Lock),
    "a generator in a bolt": holding(lambda: (number for number in range(3))),
    "a module in a bolt": holding(lambda: json),
    "the DataFrame in a bolt": lambda frame: words(frame, split=Holds(SESSION[0].range(3))),
    "the session in a bolt": lambda frame: words(frame, split=Holds(SESSION[0])),
}
SESSION: list[Any] = []

# One mistake of each step of a start: with Spark, a test of its own costs more than the mistake that it makes, and what
# each mistake is told as is for `tests/testing/test_mistakes.py`.
CONFIGS: list[Any] = [
    "rocksdb",
    {"topology.max.spout.pendng": 1},
    {"availableNow": True},
    {"topology.state.provider": "rocksbd"},
    {CONFIG: {"components": {"cuont": {}}}},
    {CONFIG: {"codec": "tests.testing.codecs:Jsn"}},
    {"mine": threading.Lock()},
]

LOCATIONS: list[Any] = [None, 5, "", "s3://bucket", "s3a://bucket/ck", "hdfs://host/ck", "/dev/null/ck", "/usr"]


class Both:
    """The same call, of ``submit`` and of the tester."""

    def __init__(self, spark: Any, frames: dict[bool, Any]) -> None:
        self.spark = spark
        self.frames = frames

    def refuse(
        self, build: Callable[[Any], Any], location: Any, config: Any = None, *, streaming: bool = False, **more: Any
    ) -> None:
        """Both raise the same, and change nothing."""
        before = listing(location) if isinstance(location, Path) else None
        errors = []
        stand_in = rows("value string", streaming=streaming)
        for caller, start in (
            ("submit", lambda: submit(build(self.frames[streaming]), self.spark, location, config, **more)),
            ("TopologyTester", lambda: TopologyTester(build(stand_in), location, config, **more)),
        ):
            with pytest.raises(StatefxError) as caught:
                start()
            message = re.sub(r" at 0x[0-9a-f]+", "", caught.value.message)
            errors.append(
                (type(caught.value), message.replace(f"{caller} needs", "CALLER needs"), caught.value.data.keys())
            )
        assert errors[0] == errors[1]
        assert (listing(location) if isinstance(location, Path) else None) == before


@pytest.fixture(scope="module")
def both(spark: Any) -> Iterator[Both]:
    SESSION[:] = [spark]
    stream = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")
    yield Both(spark, {True: stream, False: spark.createDataFrame([("to be",)], "value string")})
    SESSION.clear()


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "batch"])
def test_topologies(both, place, streaming):
    for build in TOPOLOGIES.values():
        both.refuse(build, place, streaming=streaming)


def test_settings(both, place):
    for config in CONFIGS:
        both.refuse(words, place, config, streaming=True)


def test_locations(both):
    for location in LOCATIONS:
        both.refuse(words, location)


@pytest.mark.parametrize("batch_id", [-1, "7"])
def test_ids_of_batches(both, place, batch_id):
    with pytest.raises(StatefxError) as submitted:
        submit(words(both.frames[False]), both.spark, place / "ck", batchId=batch_id)
    with (
        TopologyTester(words(rows("value string", streaming=False)), place / "ck") as tester,
        pytest.raises(StatefxError) as applied,
    ):
        tester.apply(batch_id, {"lines": [("a",)]})
    assert (type(submitted.value), submitted.value.message) == (type(applied.value), applied.value.message)


@pytest.fixture
def checkpoint(place: Path) -> Path:
    with TopologyTester(words(rows("value string", streaming=False)), place / "ck") as tester:
        tester.send({"lines": [("to be",)]})
    return place / "ck"


def test_another_topology(both, checkpoint):
    both.refuse(lambda frame: words(frame, parallelism=3), checkpoint)
    both.refuse(words, checkpoint, streaming=True)
    both.refuse(words, checkpoint, adopt="copy")


def test_a_copy(both, checkpoint):
    copy = checkpoint.with_name("copy")
    shutil.copytree(checkpoint, copy)
    both.refuse(words, copy)
    both.refuse(words, copy, adopt="move")
