"""To which tasks each grouping sends a row, by values and by whole batches."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx.plan.groupings import ROUTERS
from statefx.plan.hashing import partial_key_chooser, row_hasher
from statefx.topology.graph import Edge
from statefx.topology.groupings import PROMISES, Grouping, Promise

SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64())])
Row = tuple[str | None, int]
ROWS = st.lists(st.tuples(st.one_of(st.none(), st.text(max_size=3)), st.integers(-9, 9)), min_size=1, max_size=40)


def sent(kind: str, rows: list[Row], width: int, *, values: bool) -> dict[int, list[Any]]:
    columns = [list(column) for column in zip(*rows, strict=True)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
    edge = Edge(0, "source", "default", "target", Grouping(kind, ("key",) if Grouping(kind).by_key else ()))
    router = ROUTERS[kind](edge, SCHEMA, width, 0)
    found: dict[int, list[Any]] = {}
    for task, part in router.split(batch, columns if values else None):
        found.setdefault(task, []).extend(tuple(row.values()) for row in part.to_pylist())
    return found


def tasks_of(kind: str, rows: list[Row], width: int) -> list[list[int]]:
    """Return the tasks to which each row goes."""
    match kind:
        case "fields":
            key_hash = row_hasher(SCHEMA, ["key"])
            return [[key_hash(row) % width] for row in rows]
        case "partialKey":
            choose = partial_key_chooser(SCHEMA, ["key"], width)
            return [[choose(row)] for row in rows]
        case "global":
            return [[0] for _ in rows]
        case _:
            return [list(range(width)) for _ in rows]


def test_every_grouping_that_can_be_declared_has_a_router() -> None:
    assert ROUTERS.keys() == PROMISES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("values", [True, False], ids=["values", "batch"])
@pytest.mark.parametrize("kind", ["fields", "partialKey", "global", "all", "broadcast"])
@given(rows=ROWS, width=st.integers(1, 5))
def test_a_row_goes_where_the_grouping_promises(kind: str, values: bool, rows: list[Row], width: int) -> None:
    expected: dict[int, list[Row]] = {}
    for row, tasks in zip(rows, tasks_of(kind, rows, width), strict=True):
        for task in tasks:
            expected.setdefault(task, []).append(row)
    assert sent(kind, rows, width, values=values) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind, promise in PROMISES.items() if promise is Promise.ANY])
@given(rows=ROWS, width=st.integers(1, 5))
def test_rows_that_may_go_anywhere_all_arrive_in_even_shares(kind: str, rows: list[Row], width: int) -> None:
    found = sent(kind, rows, width, values=True)
    assert Counter(row for part in found.values() for row in part) == Counter(rows)
    assert max(map(len, found.values())) - min(len(found.get(task, ())) for task in range(width)) <= 1
