"""What a sink writes, its spout reads: every type and every awkward value, equal, or refused before the decision.

**To add a pair**, subclass `RoundTrips` in a test module of its own (``tests/connectors/test_kafka_round_trips.py``: a
name with ``kafka`` in it keeps it in the process that has the broker) and give it

- `sink(place, schema)`: a new sink for rows of the schema, of a new table, topic or folder below `place`;
- `read(place, schema)`: the rows that are there, read by the spout: ``return emitted(KafkaSpout(...), schema)``; a
  target without a spout is read by its own client;
- `refuses(kind)`: types that the sink refuses by `check_schema`; all others it must take, since a sink that refuses
  everything loses nothing. `test_every_type_is_taken_or_refused_by_name` looks at both.

Values come from `tests.connectors.values`; what is lost by one pair is added there, and so tried with all.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings

from statefx import TopologyBuilder
from statefx.connectors import CollectSink
from statefx.errors import StatefxError, TopologyError
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, Sink, WriterContext
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester
from tests.connectors.values import AWKWARD, batch, content, tables

BEFORE_THE_DECISION = (StatefxError, ValueError, OverflowError)
"""What a task may raise: it rolls the transaction back. The last two are of a value that Python can't hold."""

NESTED = [
    pa.list_(pa.float64()),
    pa.list_(pa.timestamp("us", "UTC")),
    pa.struct([pa.field("x", pa.binary()), pa.field("y", pa.decimal128(10, 2))]),
    pa.map_(pa.string(), pa.date32()),
    pa.map_(pa.int64(), pa.string()),
]


class RefusedError(Exception):
    """The sink does not take these rows, and said so before the decision."""


def publish(sink: Sink, place: Path, *transactions: pa.RecordBatch) -> None:
    """Write each batch in a transaction of its own, as the tasks and the driver do.

    Raises
    ------
    RefusedError
        The sink refused it before the decision. What it raises behind that is raised as it is: the sink is stuck.
    """
    schema, storage = transactions[0].schema, FolderStorage(place / "checkpoint")
    committer = None
    try:
        try:
            sink.check_schema(schema)
            committer = sink.committer(CommitterContext("out", Owner("app", "origin", 1), schema, storage))
            committer.check(CheckpointPosition(0, 0), takeover=False)
        except TopologyError as error:
            raise RefusedError(str(error)) from error
        committer.fence(CheckpointPosition(0, 0), takeover=False)
        for txid, rows in enumerate(transactions, 1):
            attempt = TransactionAttempt(txid, 0)
            writer = sink.writer(WriterContext("out", 0, 1, attempt, f"token{txid}", schema, storage))
            try:
                writer.write(rows)
                prepared = writer.prepare(txid)
            except BEFORE_THE_DECISION as error:
                writer.abort()
                raise RefusedError(str(error)) from error
            finally:
                writer.close()
            committer.commit(attempt, {} if prepared is None else {0: prepared})
    finally:
        if committer is not None:
            committer.close()


def emitted(spout: Any, schema: pa.Schema, place: Path) -> pa.Table:
    """Return all rows that a spout emits, whose fields have the names of the schema."""
    builder = TopologyBuilder("reads")
    builder.setSpout("in", spout)
    found = CollectSink()
    builder.setSink("found", found).globalGrouping("in")
    with TopologyTester(builder.createTopology(), place / "reading") as tester:
        tester.drain()
    columns = [pa.array([row[field.name] for row in found.rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


class RoundTrips(ABC):
    """The tests of a pair of sink and spout."""

    examples = 30
    """How many random tables are written and read; a server takes its time for each."""

    @abstractmethod
    def sink(self, place: Path, schema: pa.Schema) -> Sink:
        """Make a sink with a target of its own."""

    @abstractmethod
    def read(self, place: Path, schema: pa.Schema) -> pa.Table:
        """Return the rows in the target of the sink that was made last at this place."""

    def refuses(self, kind: pa.DataType) -> bool:
        """Tell whether the sink has no form for values of a type."""
        return pa.types.is_map(kind) and not pa.types.is_string(kind.key_type)

    def written(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they come back; a pair overrides it whose page declares a change."""
        return rows

    def test_rows_come_back_as_they_were_or_are_refused_before_the_decision(self) -> None:
        @given(tables())
        @settings(max_examples=self.examples)
        def come_back(rows: pa.RecordBatch) -> None:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    publish(self.sink(Path(folder), rows.schema), Path(folder), rows)
                except RefusedError as why:
                    event(f"refused: {str(why)[:40]}")
                    return
                assert content(self.read(Path(folder), rows.schema)) == content(self.written(rows))

        come_back()

    def test_every_type_is_taken_or_refused_by_name(self, tmp_path: Path) -> None:
        """All that are taken are columns of one table; each that is refused is tried by itself."""
        kinds = {f"f{number}": kind for number, kind in enumerate([*AWKWARD, *NESTED])}
        taken = {name: kind for name, kind in kinds.items() if not self.refuses(kind)}
        for name, kind in ((name, kind) for name, kind in kinds.items() if name not in taken):
            schema = pa.schema([("number", pa.int64()), (name, kind)])
            with pytest.raises(RefusedError, match=f"'{name}'"):
                publish(self.sink(tmp_path, schema), tmp_path, batch(schema, [(0, ordinary(kind)[0])]))
        schema = pa.schema([("number", pa.int64()), *taken.items()])
        columns = [ordinary(kind) for kind in taken.values()]
        rows = batch(schema, [(at, *(values[at % len(values)] for values in columns)) for at in (0, 1)])
        publish(self.sink(tmp_path, schema), tmp_path, rows)
        assert content(self.read(tmp_path, schema)) == content(self.written(rows))


def ordinary(kind: pa.DataType) -> Sequence[Any]:
    """Return values of a type that every sink takes which takes the type."""
    if pa.types.is_list(kind):
        return [list(ordinary(kind.value_type)), []]
    if pa.types.is_struct(kind):
        return [{field.name: ordinary(field.type)[0] for field in kind}]
    if pa.types.is_map(kind):
        return [[(ordinary(kind.key_type)[0], ordinary(kind.item_type)[0])]]
    return ["a text"] if pa.types.is_string(kind) else AWKWARD[kind][:2]
