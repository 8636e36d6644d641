"""What comes to mind to somebody who knows dicts, Spark and pandas, and is told what to write here instead."""

import re
from collections import namedtuple
from collections.abc import Callable
from copy import deepcopy
from dataclasses import make_dataclass
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row

from statefx import Checkpoint, StatefulBolt, TopologyBuilder
from statefx.errors import BoltError, TopologyError
from statefx.testing import rows
from tests.bolts import WithState
from tests.testing.topologies import Driver

Turned = namedtuple("Turned", "n w")
Moved = namedtuple("Moved", "n other")
Half = make_dataclass("Half", ["other", "w"])

KEPT: list[Any] = []


class Does(WithState):
    outputFields = "w string, n string"

    def __init__(self, does: Callable[[Any, Any], object]) -> None:
        self.does = does

    def execute(self, tup, collector):
        self.does(self.state, collector)


class Ends(StatefulBolt):
    def initState(self, state):
        pass

    def execute(self, tup, collector):
        pass


def started(driver: Driver, does: Callable[[Any, Any], object]) -> Any:
    builder = TopologyBuilder("idioms")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("does", Does(does)).globalGrouping("lines")
    builder.setBolt("ends", Ends()).globalGrouping("does")
    return driver.start(builder.createTopology())


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (lambda s, c: s == {}, r"never equal to a dict: compare dict\(state\.items"),
        (lambda s, c: deepcopy(s), r"can't be pickled or copied: take dict\(state\.items"),
        (lambda s, c: s["a":"b"], r"a range of keys is items\(start, stop\)"),
        (lambda s, c: s.getAll("ab"), r"getAll takes several keys, .* \['ab'\]"),
        (lambda s, c: s.putAll([("a", 1)]), r"putAll takes a dict, not a list: of pairs make dict\(pairs\)"),
        (lambda s, c: c.emit("a", 1), r"called emit\('a', 1\); emit takes one tuple of values"),
        (lambda s, c: c.emit("default", ("a", "1")), r"or emit\(values, stream='name'\)"),
        (lambda s, c: c.emit("default", ["a", "1"]), r"or emit\(values, stream='name'\)"),
        (
            lambda s, c: c.emit([("a", 1), ("b", 2)]),
            r"\('a', 1\) \(tuple\) is no text: .* of several rows each by itself",
        ),
        (lambda s, c: c.emit(pd.DataFrame({"w": ["a"], "n": ["1"]})), "emit its rows one by one"),
        (lambda s, c: c.emit(Turned("1", "a")), r"another order than w, n: write emit\(\*\*row\._asdict\(\)\)"),
        (lambda s, c: c.emit(Row(n="1", w="a")), r"another order than w, n: write emit\(\*\*row\.asDict\(\)\)"),
        (lambda s, c: c.emit(Moved("1", "a")), r"'n' stands in another place than in w, n.*write emit\(tuple\(row\)\)"),
        (lambda s, c: c.emit(Row(n="1", other="a")), "'n' stands in another place than in w, n"),
        (lambda s, c: c.emit(Half("1", "a")), "'w' stands in another place than in w, n"),
        (lambda s, c: c.emit(pd.Series({"n": "1", "x": "a"})), "'n' stands in another place than in w, n"),
        (lambda s, c: c.emit(namedtuple("Long", "n w x")("1", "a", "b")), "emitted 3 values"),
        (
            lambda s, c: c.emit(pd.Series({"n": "1", "w": "a"})),
            r"another order than w, n: write emit\(\*\*row\) to emit",
        ),
    ],
)
def test_the_error_says_what_to_write(driver, does, says):
    tester = started(driver, does)
    with pytest.raises(BoltError, match=says):
        tester.send({"lines": [("a",)]})


def test_a_row_that_bears_other_names_is_taken_by_position(driver):
    other = namedtuple("other", "left right")
    assert started(driver, lambda s, c: c.emit(other("a", "1"))).send({"lines": [("a",)]}).emitted("does") == [
        ("a", "1")
    ]


def test_a_state_is_equal_to_itself_and_a_key_of_a_dict(driver):
    sent = started(driver, lambda s, c: c.emit((str(s == s), str({s: 1}[s])))).send({"lines": [("a",)]})
    assert sent.emitted("does") == [("True", "1")]


def test_a_state_that_was_kept_says_which_one_to_use(driver):
    KEPT.clear()
    tester = started(driver, lambda s, c: (KEPT.append(s), KEPT[0].put("a", 1)))
    tester.send({"lines": [("a",)]})
    with pytest.raises(BoltError, match=r"the state is closed: .* Use the one that initState was given last"):
        tester.send({"lines": [("a",)]})


class Sessions:
    """Pickles as a DataFrame does."""

    def __reduce__(self) -> Any:
        raise PySparkRuntimeError("CONTEXT_ONLY_VALID_ON_DRIVER")


def test_a_bolt_that_holds_spark_is_told_where_its_data_come_from(driver):
    bolt = Ends()
    bolt.session = Sessions()
    builder = TopologyBuilder("idioms")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("ends", bolt).globalGrouping("lines")
    with pytest.raises(TopologyError, match=r"attribute 'session' .* as a stream \(setStream\)"):
        driver.start(builder.createTopology())


def keeps(state: Any, collector: Any) -> None:
    state.put("a", [1])
    state["a"].append(2)


def keeps_a_default(state: Any, collector: Any) -> None:
    state.get("a", []).append(2)


def keeps_what_it_put(state: Any, collector: Any) -> None:
    value: dict[str, int] = {}
    state["a"] = value
    value["b"] = 1


def puts_again(state: Any, collector: Any) -> None:
    value = state.get("a", [])
    value.append(2)
    state["a"] = value
    state["b"] = state["a"]
    assert "a" in state
    assert state.get("c") is None
    assert state.get("c", {}) == {}


@pytest.mark.parametrize("does", [keeps, keeps_a_default, keeps_what_it_put, puts_again])
def test_a_value_that_was_changed_and_not_put_is_told(driver, does, caplog):
    started(driver, does).send({"lines": [("a",)]})
    told = [record.message for record in caplog.records if "in place" in record.message]
    assert len(told) == (does is not puts_again)
    assert all("'does' changed the value of key 'a'" in line for line in told)


def test_a_bolt_s_error_shows_the_test_and_the_bolt_and_little_between(driver):
    def divides(state: Any, collector: Any) -> None:
        state["a"] = 1 / 0

    tester = started(driver, divides)
    with pytest.raises(BoltError) as caught:
        tester.send({"lines": [("a",)]})
    assert [entry.name for entry in caught.traceback][1:] == ["send", "_transact", "_driving"]
    shown = re.findall(r'File ".*/(.+)", line \d+, in (.+)', str(caught.value.__cause__))
    assert shown == [("test_idioms.py", "execute"), ("test_idioms.py", "divides")]


def test_a_view_can_not_be_written(driver, place):
    tester = started(driver, lambda s, c: s.put("a", 1))
    tester.send({"lines": [("a",)]})
    with (
        Checkpoint(place / "checkpoint").state("does") as view,
        pytest.raises(TypeError, match="read-only: its bolt changes it, in execute"),
    ):
        view["a"] = 2


def test_the_tester_knows_its_bolts_before_anything_was_sent(driver):
    tester = started(driver, lambda s, c: None)
    with pytest.raises(TopologyError, match="no component 'dose'; the nearest is 'does'"):
        tester.emitted("dose")
