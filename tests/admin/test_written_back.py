"""State that was shown and is written back is the same, entry by entry, or the writing is refused."""

import json
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from statefx import Checkpoint, StatefulBolt, TopologyBuilder
from statefx.admin import tables
from statefx.errors import CodecError, ConfigError
from statefx.testing import TopologyTester, rows
from tests.state.test_before_and_after import KEYS, VALUES, shown

ENTRIES = []
SCHEMAS = [
    None,
    {"key": "k double"},
    {"key": "k string"},
    {"key": "k long", "value": "v double"},
    {"key": "a long, b double", "value": "v string"},
    {"value": "v double"},
    {"value": "v float"},
    {"value": "v decimal(10,2)"},
    {"value": "v timestamp"},
    {"value": "v binary"},
    {"value": "a int, b string"},
    {"value": "v array<double>"},
]
FEW = st.one_of(
    st.sampled_from(
        [None, 1, 2, 2.0, -0.0, True, 0.1, "2", "null", Decimal("2.00"), date(2026, 5, 1), b"\0", (1, "a")]
    ),
    st.sampled_from([datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 5, 1), timedelta(1), (1, 2.0), [1, 2.0]]),
    st.sampled_from([{1: "a"}, {"a": 1, "b": "c"}, [(1,)], "datetime.date(2026, 5, 1)", float("inf"), 2**64]),
)


class Keep(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        for key, value in ENTRIES:
            with suppress(CodecError):
                self.state.put(key, value)


def keeping(entries, folder):
    ENTRIES[:] = entries
    builder = TopologyBuilder("t")
    builder.setStream("s", rows("k string"))
    builder.setBolt("keep", Keep()).fieldsGrouping("s", "k")
    with TopologyTester(builder.createTopology(), folder) as tester:
        tester.send({"s": [("a",)]})


def state_of(folder):
    with Checkpoint(folder).state("keep") as view:
        return [(shown(key), shown(value)) for key, value in view.items()]


def dumped(folder, schema):
    """Return state as `state --json` shows it, or as a table of these types, and what `write-state` makes of it."""
    if schema is not None:
        return Checkpoint(folder).table("keep", schema=schema), schema
    with Checkpoint(folder).state("keep") as view:
        lines = [tables.json_line({"key": key, "value": value}) for key, value in view.items()]
    return tables.read_rows(named(lines), None)


def named(lines):
    file = BytesIO("\n".join(lines).encode())
    file.name = "rows.json"
    return file


@pytest.mark.slow
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    entries=st.lists(st.tuples(FEW | KEYS, FEW | VALUES), min_size=1, max_size=4),
    schema=st.sampled_from(SCHEMAS),
    mode=st.sampled_from(["merge", "overwrite"]),
)
@example(entries=[(2, 2)], schema={"key": "k double"}, mode="overwrite")
@example(entries=[("none", None), ("dict", {1: "a"}), ("date", date(2026, 5, 1))], schema=None, mode="merge")
@example(entries=[("none", None), ("both", (None, None))], schema={"value": "a int, b string"}, mode="overwrite")
def test_state_that_is_written_back_is_the_same_or_refused(entries, schema, mode, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    keeping(entries, folder)
    before = state_of(folder)
    with suppress(ConfigError):  # refused: by the tool that shows it, or by the one that writes
        table, form = dumped(folder, schema)
        writer = Checkpoint(folder)._writer("keep", mode=mode, schema=form)
        writer.write_table(table)
    assert state_of(folder) == before


@pytest.mark.parametrize(
    ("stored", "row"), [(datetime(2026, 5, 1, tzinfo=UTC), "2026-05-02"), ((1, 2), [1, 3]), ({1: "a"}, {"1": "b"})]
)
def test_row_that_changes_what_json_cannot_hold_is_refused(stored, row, tmp_path):
    keeping([("a", stored), ("b", 1)], tmp_path)
    before = state_of(tmp_path)
    lines = [json.dumps({"key": "b", "value": 2}), json.dumps({"key": "a", "value": row})]
    table, form = tables.read_rows(named(lines), None)
    with pytest.raises(ConfigError, match=r"the value of 'a' is .*, which JSON can't hold, and would become"):
        Checkpoint(tmp_path)._writer("keep", mode="merge", schema=form).write_table(table)
    assert state_of(tmp_path) == before


def test_row_of_null_deletes_and_of_what_is_none_keeps(tmp_path):
    keeping([("a", 1), ("b", None), ("c", (1, 2))], tmp_path)
    table, form = tables.read_rows(named([json.dumps({"key": key, "value": None}) for key in "abc"]), None)
    done = Checkpoint(tmp_path)._writer("keep", mode="merge", schema=form).write_table(table)
    assert (done.rows, done.deleted, done.keys) == (0, 2, 1)
    assert state_of(tmp_path) == [(shown("b"), shown(None))]
