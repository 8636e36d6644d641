"""Stand-ins for DataFrames, and the way their rows take into a topology."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set, Sized
from typing import Any
from uuid import uuid4

import pyarrow as pa

from statefx.errors import ConfigError
from statefx.operators import DEFAULT_STREAM
from statefx.operators.fitting import MISFITS, fitted_array
from statefx.plan.levels import Plan
from statefx.protocol.records import StreamInput
from statefx.protocol.staged import StagedPart
from statefx.runtime.staging import FOLDER, PartWriter
from statefx.storage import Storage
from statefx.topology.graph import RowStream, Topology

Row = Sequence[Any]
Work = Mapping[Any, Sequence[Row]]
"""The rows of one transaction, by stream; of spouts that are fed, by (spout, stream)."""

QUERY = "TopologyTester"
"""Takes the place of the id of Spark's query."""

INPUT_ROWS_MAX = 10_000
"""Rows of a batch at most, as many as Spark gives to Python."""


def rows(schema: Any, *, streaming: bool = True) -> RowStream:
    """Return a stand-in for a DataFrame, whose rows are given to ``TopologyTester.send``.

    Parameters
    ----------
    schema : str or StructType
        Its columns, such as ``"value string"``.
    streaming : bool
        Whether it stands for a streaming DataFrame or for a batch one.

    Examples
    --------
    ::

        builder.setStream("lines", rows("value string"))
    """
    return RowStream(schema, streaming)


def given(topology: Topology, work: Any, fed: Collection[str] = ()) -> Work:
    """Return the rows of a transaction as lists: a generator can be read only once. ConfigError: they don't fit."""
    if not isinstance(work, Mapping):
        raise ConfigError(f"a transaction is given as {{stream: rows}}, such as {{'lines': [('a',)]}}, not as {work!r}")
    schemas: dict[Any, pa.Schema] = {
        one.id: one.outputs[DEFAULT_STREAM] for one in topology.components if one.is_stream
    }
    if fed:
        work = {key if isinstance(key, tuple) else (key, DEFAULT_STREAM): rows for key, rows in work.items()}
        schemas = {(id, stream): of for id in fed for stream, of in topology.component(id).outputs.items()}
    elif topology.reads_spouts:
        raise ConfigError(
            "the topology's spouts emit its rows: run a transaction with emit(), or all with drain(); or name the "
            "spouts that the test's rows are to come from, as in TopologyTester(..., fed='jobs')"
        )
    found = {}
    for stream, sequence in work.items():
        if stream not in schemas:
            there = ", ".join(map(str, schemas))
            raise ConfigError(f"the topology has no stream {stream!r}; its streams are {there}")
        if isinstance(sequence, str | bytes | Mapping) or not isinstance(sequence, Iterable):
            raise ConfigError(f"the rows of stream {stream!r} are a sequence of tuples, not {sequence!r}")
        names = schemas[stream].names
        found[stream] = list(sequence)
        for row in found[stream]:
            # a mapping would come as its keys, a set in any order
            if isinstance(row, str | bytes | Mapping | Set) or not isinstance(row, Sized) or len(row) != len(names):
                raise ConfigError(f"a row of stream {stream!r} is a tuple ({', '.join(names)}), not {row!r}")
    return found


def staged_rows(plan: Plan, storage: Storage, work: Work, clock_ms: int) -> list[StagedPart]:
    """Return the rows of a transaction as Spark would have staged them."""
    parts: list[StagedPart] = []
    for stream, schema in plan.streams.items():
        timing = plan.timings.get(stream)
        for partition, piece in enumerate(_cut(_batch(stream, schema, work.get(stream, ())))):
            writer = PartWriter(storage, f"{FOLDER}{uuid4().hex}", stream, partition, schema, timing, clock_ms)
            writer.write(piece)
            parts += writer.close()
    return parts


def _batch(stream: str, schema: pa.Schema, given: Sequence[Row]) -> pa.RecordBatch:
    columns: Sequence[Sequence[Any]] = list(zip(*given, strict=True)) or [()] * len(schema)
    try:
        arrays = [fitted_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    except MISFITS as error:
        raise ConfigError(f"rows of stream {stream!r} do not fit its schema: {error}", stream=stream) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, INPUT_ROWS_MAX):
        yield batch.slice(start, INPUT_ROWS_MAX)


def identity(committed: int, work: Work) -> StreamInput:
    """Return the identity of the transaction after `committed`, as Spark's offsets would tell it."""
    given: dict[str, Sequence[Row]] = {name: found for name, found in sorted(work.items()) if found}
    text = json.dumps(given, default=repr)
    return StreamInput(QUERY, committed, hashlib.sha256(text.encode()).hexdigest())
