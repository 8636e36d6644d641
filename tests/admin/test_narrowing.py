"""Which ranges of keys a filter leaves: none that holds a row which it keeps, and few others."""

import json
import operator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statefx import Checkpoint
from statefx.admin.columns import json_text
from statefx.admin.narrowing import POINTS_MAX, Comparison, narrowed
from statefx.admin.reading import StateTable
from statefx.state.encoding.codec import StandardCodec
from tests.admin.checkpoints import Keeper, put
from tests.testing.codecs import Json
from tests.testing.places import place

__all__ = ["place"]

SIGNS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
TEXTS = st.text("ab\0\x01\xff", max_size=3)
PARTS: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "long": st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1]),
    "double": st.sampled_from([-1.5, -0.0, 0.0, 0.25, 1e300, float("inf"), float("-inf")]),
    "date": st.dates(date(2026, 1, 1), date(2026, 1, 4)),
}
TYPES = {"string": str, "long": int, "double": float, "date": date}
ANY = st.none() | st.booleans() | TEXTS | st.integers(-(2**70), 2**70) | st.binary(max_size=2) | st.floats(0, 1)
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ENCODE = StandardCodec(b"u").encode_key


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What makes a table of a schema; its keys do not matter here."""
    with Keeper(tmp_path_factory.mktemp("narrowing")) as keeper:
        keeper.run(put(a=1))
        yield lambda schema: Checkpoint(keeper.folder)._table("keep", schema=schema)


def reads(table: StateTable, key: Any) -> bool:
    data = ENCODE(key)
    return sum(low <= data < high for low, high in table.shown.ranges) == 1


def compared(kinds: dict[str, str]) -> st.SearchStrategy[list[Comparison]]:
    """Comparisons of columns with constants of their types."""
    of = [
        st.builds(Comparison, st.just(name), st.just("="), st.lists(PARTS[kind], min_size=1, max_size=3).map(tuple))
        | st.builds(Comparison, st.just(name), st.sampled_from(list(SIGNS)), st.tuples(PARTS[kind]))
        for name, kind in kinds.items()
    ]
    return st.lists(st.one_of(of), min_size=1, max_size=3)


def keeps(given: list[Comparison], row: dict[str, Any]) -> bool:
    return all(any(SIGNS[sign](row[name], value) for value in values) for name, sign, values in given)


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", PARTS)
@QUICK
@given(data=st.data())
@pytest.mark.slow
def test_a_key_of_one_column(tables: Any, kind: str, data: st.DataObject) -> None:
    comparisons = data.draw(compared({"k": kind}))
    table = narrowed(tables({"key": f"k {kind}"}), comparisons)
    for key in data.draw(st.lists(PARTS[kind], max_size=9)):
        if keeps(comparisons, {"k": key}):
            assert reads(table, key)
    for other in data.draw(st.lists(ANY, max_size=5)):
        if type(other) is not TYPES[kind]:
            assert reads(table, other), "it may be shown as this type, or reading it is an error"


@pytest.mark.daily(1)
@pytest.mark.parametrize(("first", "second"), [("string", "long"), ("long", "string"), ("double", "date")])
@QUICK
@given(data=st.data())
@pytest.mark.slow
def test_a_tuple_by_its_columns(tables: Any, first: str, second: str, data: st.DataObject) -> None:
    comparisons = data.draw(compared({"a": first, "b": second}))
    table = narrowed(tables({"key": f"a {first}, b {second}"}), comparisons)
    for a, b in data.draw(st.lists(st.tuples(PARTS[first], PARTS[second]), max_size=9)):
        if keeps(comparisons, {"a": a, "b": b}):
            assert reads(table, (a, b))
    for other in data.draw(st.lists(ANY, max_size=5)):
        assert reads(table, other), "it is no tuple, and reading it is an error"


@QUICK
@given(data=st.data())
@pytest.mark.slow
def test_json_by_its_text(tables: Any, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.recursive(ANY, lambda each: st.lists(each, max_size=3).map(tuple)), max_size=9))
    texts = (
        data.draw(st.lists(st.sampled_from(list(map(json_text, keys))), min_size=1, max_size=3)) if keys else ['"a"']
    )
    table = narrowed(tables(None), [Comparison("key", "=", tuple(texts))])
    for key in keys:
        if json_text(key) in texts:
            assert reads(table, key)


@pytest.mark.slow
def test_what_a_filter_leaves_out(tables: Any) -> None:
    """So that the tests above would not be content with a range of everything."""
    typed, pair = {"key": "k string"}, {"key": "a string, b long"}
    for schema, comparisons, read, unread in [
        (typed, [("k", "=", ("b",))], ["b"], ["a", "b\0", "c", ""]),
        (typed, [("k", "=", ("a", "c"))], ["a", "c"], ["b", "d", ""]),
        (typed, [("k", ">=", ("b",)), ("k", "<", ("c",))], ["b", "bz"], ["a", "c", "d"]),
        (typed, [("k", "=", ("b",)), ("k", "<", ("b",))], [], ["a", "b", "c"]),
        ({"key": "k long"}, [("k", "<=", (5,))], [-7, 5, 2**70], [6, 7]),
        ({"key": "k double"}, [("k", "=", (-0.0, float("nan")))], [0.0, 0], [-1.0, 1.0]),
        (pair, [("a", "=", ("x",))], [("x", 1), ("x",), "x"], [("w", 1), ("y", 1), ("x\0", 1)]),
        (pair, [("a", "=", ("x", "z")), ("b", ">", (5,))], [("x", 6), ("z", 9)], [("x", 4), ("y", 9), ("z", 4)]),
        (pair, [("a", "<", ("x",)), ("b", "=", (5,))], [("a", 5), ("a", 6)], [("x", 5), ("y", 5)]),
        (None, [("key", "=", ('"b"',))], ["b", ("b",), date(2026, 1, 1)], ["a", "c", 1]),
        (None, [("key", "=", ('["b", 1]', "7"))], [("b", 1), 7, None], ["b", ("b", 2), 8]),
        (None, [("key", "=", (json.dumps("\N{GRINNING FACE}"),))], ["\N{GRINNING FACE}"], ["a"]),
    ]:
        table = narrowed(tables(schema), [Comparison(*each) for each in comparisons])  # type: ignore[arg-type]
        assert [key for key in [*read, *unread] if reads(table, key)] == read, (schema, comparisons)


def test_what_nothing_is_known_of(tables: Any, place: Path) -> None:
    for schema, comparison in [
        ({"key": "k float"}, Comparison("k", "=", (0.5,))),
        ({"key": "k timestamp"}, Comparison("k", "=", ("2026-01-01",))),
        ({"key": "k string"}, Comparison("k", "=", ("a", None))),
        ({"key": "k string"}, Comparison("k", "<", ("\ud800",))),
        ({"key": "k double"}, Comparison("k", "<", (float("nan"),))),
        ({"key": "a string, b long"}, Comparison("b", "=", (1,))),
        (None, Comparison("key", ">", ('"a"',))),
        (None, Comparison("key", "=", ("not json",))),
        (None, Comparison("value", "=", ("1",))),
        (None, Comparison("task", "=", (None,))),
    ]:
        table = tables(schema)
        assert narrowed(table, [comparison]) == table, comparison
    with Keeper(place) as keeper:  # of a codec whose keys have an order of their own
        keeper.config["topology.state.provider.config"] = {"codec": "tests.testing.codecs:Json"}
        keeper.run(put(a=1))
        table = Checkpoint(keeper.folder)._table("keep", schema={"key": "k string"}, codec=Json())
        assert narrowed(table, [Comparison("k", "=", ("b",))]) == table


def test_many_constants_are_one_range(tables: Any) -> None:
    many = tuple(range(POINTS_MAX + 1))
    found = narrowed(tables({"key": "k long"}), [Comparison("k", "=", many)])
    assert len(found.shown.ranges) == 3
    assert [key for key in range(-3, POINTS_MAX + 5) if reads(found, key)] == list(many)


def test_tasks(tables: Any) -> None:
    for comparison, tasks in [(("=", (1,)), (1,)), (("=", (0, 1, 7)), (0, 1)), (("<", (1,)), (0,)), ((">=", (2,)), ())]:
        assert narrowed(tables(None), [Comparison("task", *comparison)]).tasks == tasks
