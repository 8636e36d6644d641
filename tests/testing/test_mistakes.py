"""What the tester refuses, as ``submit`` would: in the same words, before a bolt has run."""

import logging
import os
import pickle
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from statefx import BasicBolt, StatefulBolt, TopologyBuilder
from statefx.errors import BoltError, ConfigError, TopologyError
from statefx.testing import TopologyTester, rows
from tests.testing.topologies import Driver, lines, word_count


def one_bolt(bolt: Any, parallelism: int = 1, grouping: str = "shuffleGrouping") -> Any:
    builder = TopologyBuilder("one")
    builder.setStream("lines", rows("value string"))
    getattr(builder.setBolt("bolt", bolt, parallelism), grouping)("lines")
    return builder.createTopology()


def test_a_builder_is_no_topology(place: Path) -> None:
    builder = TopologyBuilder("one")
    with pytest.raises(TopologyError, match=r"TopologyTester needs a Topology, got the builder: pass builder\.create"):
        TopologyTester(builder, place / "checkpoint")  # type: ignore[arg-type]
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("config", ["rocksdb", ["topology.state.provider"], 5, [], ""])
def test_a_config_that_is_no_mapping(place: Path, config: Any) -> None:
    with pytest.raises(ConfigError, match="config must be a mapping of settings, got"):
        TopologyTester(word_count(), place / "checkpoint", config)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"topology.max.spout.pending": 2}, "leave it at 1"),
        ({"state.provider": "rocksdb"}, "nearest is 'topology.state.provider'"),
        ({"provider": "rocksdb"}, "'rocksdb', a state provider: the setting is 'topology.state.provider'"),
        (
            {"topology.state.provider": "rocksdb", "dir": "/tmp/state"},
            r"'dir', an option of the state provider 'rocksdb': put it into topology\.state\.provider\.config",
        ),
        (
            {"topology.state.provider": "rocksdb", "topology.state.provider.config": {"dri": "/tmp/state"}},
            "unknown option 'dri'; did you mean 'dir'",
        ),
        (
            {"topology.state.provider.config": {"components": {"cuont": {}}}},
            "'cuont', which is not in the topology; did you mean 'count'",
        ),
        (
            {"topology.state.provider.config": {"components": {"count": {"keyclass": "str"}}}},
            "there is no option 'keyclass'; did you mean 'keyClass'",
        ),
        ({"mine": threading.Lock()}, "setting 'mine' can't be sent to the executors .*lock.*give plain data"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "-".join(value),
)
def test_settings(place: Path, config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TopologyTester(word_count(), place / "checkpoint", config)
    assert list(place.iterdir()) == []


def test_an_option_s_name_is_free_where_the_provider_has_the_option(place: Path) -> None:
    config = {
        "topology.state.provider": "rocksdb",
        "topology.state.provider.config": {"dir": str(place / "caches")},
        "dir": "of my own",
    }
    with TopologyTester(word_count(), place / "checkpoint", config) as tester:
        tester.send(lines("a"))


class Holds(BasicBolt):
    def __init__(self, thing: object) -> None:
        self.fine = 1
        self.thing = thing

    def execute(self, tup, collector):
        pass


LOCK = threading.Lock()
HELD = [
    LOCK,
    sqlite3.connect(":memory:", check_same_thread=False),
    open(os.devnull, "w", encoding="utf-8"),  # noqa: SIM115 - an open file is what is held
    (number for number in range(3)),
    lambda tup, lock=LOCK: lock,
]


@pytest.mark.parametrize("thing", HELD, ids=lambda thing: type(thing).__name__)
def test_a_bolt_that_holds_what_can_not_travel(place: Path, thing: object) -> None:
    says = r"bolt 'bolt' can't be sent to the executors because of its attribute 'thing' \(.*open\(\), not in __init__"
    with pytest.raises(TopologyError, match=says) as caught:
        TopologyTester(one_bolt(Holds(thing)), place / "checkpoint")
    assert caught.value.component == "bolt"
    assert list(place.iterdir()) == []


def test_state_by_key_behind_shuffle_is_told_when_it_starts(place: Path, caplog: Any) -> None:
    class Seen(StatefulBolt):
        def initState(self, state):
            pass

        def execute(self, tup, collector):
            pass

    with caplog.at_level(logging.WARNING, "statefx"), Driver(place) as driver:
        driver.start(one_bolt(Seen(), 2))
    assert "bolt 'bolt' keeps state in 2 tasks, but its input 'lines' comes by shuffle grouping" in caplog.text


def test_what_is_usual_is_told_nothing(place: Path, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "statefx"), Driver(place) as driver:
        driver.start()
    assert caplog.records == []


class Emits(BasicBolt):
    outputFields = "n int"

    def __init__(self, do: Any) -> None:
        self.do = do

    def execute(self, tup, collector):
        self.do(collector)


class UnspeakableError(Exception):
    def __str__(self):
        raise ValueError("no text")


def deep(number: int) -> float:
    return deep(number - 1) if number else 1 / number


def in_two_steps(collector: object) -> None:
    try:
        deep(0)
    except ZeroDivisionError as error:
        raise KeyError("second") from error


def surrogate(collector: object) -> None:
    raise ValueError("half of \ud83d")


def unspeakable(collector: object) -> None:
    raise UnspeakableError


@pytest.mark.parametrize(
    ("do", "places", "last"),
    [
        (lambda c: deep(2), ["execute", "<lambda>", "deep", "deep", "deep"], "ZeroDivisionError: division by zero"),
        (lambda c: c.emit((1, 2)), ["execute", "<lambda>"], "SchemaError: bolt 'bolt' emitted 2 values"),
        (in_two_steps, ["in_two_steps", "deep", "execute", "in_two_steps"], "KeyError: 'second'"),
        (surrogate, ["execute", "surrogate"], "ValueError: half of"),
        (unspeakable, ["execute", "unspeakable"], "UnspeakableError: <exception str() failed>"),
    ],
    ids=["deep", "in the collector", "with a cause", "surrogate", "unspeakable"],
)
def test_a_bolt_error_has_the_whole_traceback_of_the_user_and_no_line_of_statefx(
    place: Path, do: Any, places: list[str], last: str
) -> None:
    with Driver(place) as driver, pytest.raises(BoltError) as caught:
        driver.start(one_bolt(Emits(do))).send(lines("a"))
    told = caught.value.traceback.splitlines()
    frames = [line.rpartition(" in ")[2] for line in told if line.startswith("  File ")]
    assert frames == places
    assert told[0] == "Traceback (most recent call last):"
    assert last in told[-1]
    assert all("test_mistakes.py" in line for line in told if line.startswith("  File "))
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.traceback == caught.value.traceback
    assert caught.value.traceback in str(again.__cause__)
