"""Each grouping sends a row to the same task, or to one of the same tasks, from Python and by what Spark computes."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx.plan.groupings import ROUTERS, RowExpressions, Spread
from statefx.plan.hashing import row_hasher
from statefx.topology.graph import Edge
from statefx.topology.groupings import PROMISES, Grouping, Promise

SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64())])
SALTED = SCHEMA.append(pa.field("salt", pa.int32()))
ROWS = st.lists(st.tuples(st.one_of(st.none(), st.text(max_size=3)), st.integers(-9, 9)), min_size=1, max_size=40)


class PythonExpressions(RowExpressions):
    """What `statefx.spark.frames.ColumnExpressions` lets Spark compute, computed here; the JVM confirms the hash."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.row = row

    def number(self, value: int) -> int:
        return value

    def share_of_key(self, fields: Sequence[str], ways: int, *salt: int) -> int:
        return row_hasher(SALTED, [*fields, *(["salt"] * len(salt))])((*self.row, *(salt or (0,)))) % ways

    def share_of_row(self, ways: int) -> int:
        return self.share_of_key(SCHEMA.names, ways)

    def around(self, number: int, ways: int) -> int:
        return number % ways

    def either(self, which: int, if_zero: int, if_one: int) -> int:
        return if_one if which else if_zero


class EitherOne(PythonExpressions):
    """Both tasks that might be chosen."""

    def either(self, which: int, if_zero: int, if_one: int) -> Any:
        return {if_zero, if_one}


def edge(kind: str) -> Edge:
    fields = ("key",) if Grouping(kind).by_key else ()
    return Edge(0, "source", "default", "target", Grouping(kind, fields))


def sent(kind: str, rows: list[tuple[Any, ...]], width: int, *, values: bool) -> dict[int, list[tuple[Any, ...]]]:
    columns = [list(column) for column in zip(*rows, strict=True)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
    router = ROUTERS[kind](edge(kind), SCHEMA, width, 0)
    found: dict[int, list[tuple[Any, ...]]] = {}
    for task, part in router.split(batch, columns if values else None):
        found.setdefault(task, []).extend(tuple(row.values()) for row in part.to_pylist())
    return found


def test_every_grouping_that_can_be_declared_has_a_router() -> None:
    assert ROUTERS.keys() == PROMISES.keys()


def test_a_grouping_that_may_stay_promises_no_task() -> None:
    """Else neighbours would be fused, or a DataFrame's rows left where they are, against a promise."""
    free = {kind for kind, router in ROUTERS.items() if router.spread is not Spread.TO_TARGETS}
    assert free == {kind for kind, promise in PROMISES.items() if promise is Promise.ANY}


@pytest.mark.slow
@pytest.mark.parametrize("values", [True, False], ids=["values", "batch"])
@pytest.mark.parametrize("kind", ["fields", "global", "all"])
@given(rows=ROWS, width=st.integers(1, 5))
def test_python_sends_a_row_where_spark_sends_it(
    kind: str, values: bool, rows: list[tuple[Any, ...]], width: int
) -> None:
    expected: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        for task in ROUTERS[kind].targets(PythonExpressions(row), edge(kind).grouping.fields, width):
            expected.setdefault(task, []).append(row)
    assert sent(kind, rows, width, values=values) == expected


@pytest.mark.slow
@pytest.mark.parametrize("values", [True, False], ids=["values", "batch"])
@given(rows=ROWS, width=st.integers(2, 5))
def test_a_partial_key_has_the_same_two_tasks_in_python_and_in_spark(
    values: bool, rows: list[tuple[Any, ...]], width: int
) -> None:
    for task, found in sent("partialKey", rows, width, values=values).items():
        for row in found:
            [pair] = ROUTERS["partialKey"].targets(EitherOne(row), ["key"], width)
            assert len(pair) == 2
            assert task in pair


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind, promise in PROMISES.items() if promise is Promise.ANY])
@given(rows=ROWS, width=st.integers(1, 5))
def test_rows_that_may_go_anywhere_all_arrive_and_spark_sends_each_to_one_task(
    kind: str, rows: list[tuple[Any, ...]], width: int
) -> None:
    found = sent(kind, rows, width, values=True)
    assert Counter(row for part in found.values() for row in part) == Counter(rows)
    assert max(map(len, found.values())) - min(len(found.get(task, ())) for task in range(width)) <= 1
    for row in rows:
        [task] = ROUTERS[kind].targets(PythonExpressions(row), (), width)
        assert 0 <= task < width
