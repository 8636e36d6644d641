"""Dead letters: rows that a bolt could not deal with, in a form in which they can be kept, looked at and read again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import TopologyError
from statefx.operators.bolts import BasicBolt
from statefx.operators.context import Collector
from statefx.operators.json_values import JsonRows, refuse_keys
from statefx.operators.schema import parse_schema, to_ddl
from statefx.operators.tuples import isTick

DEAD_LETTER = "deadLetter"
"""The stream of a bolt to which its dead letters go."""

DEAD_LETTERS = parse_schema(
    "row string, source string, stream string, error string, message string, "
    "bolt string, task int, hook string, txid long, position long, number long"
)
"""The fields of a dead letter: the row as a JSON object, where it came from, what was raised, and where.

`number` is of a key in quarantine: in which order the rows of the key are to be executed. A row that was held back
behind another one has no `error`.
"""

NUMBER = "__number"
"""The last field of rows that are replayed to a bolt with keys in quarantine, which does not see it: the number of the
letter, ``~number`` if it is to be forgotten, or null."""


class ReplayDeadLetters(BasicBolt):
    """A ready-made bolt: takes dead letters, from wherever they are kept, and emits the rows that they hold.

    The rows are as they were: the same values, of the same types, in the order in which the letters come. Wire it
    between what reads the letters (a DataFrame, a file spout, a Kafka spout) and the bolt that is to have them.

    Parameters
    ----------
    fields : str or StructType
        The fields of the rows, as the bolt had them as its input: Spark DDL such as ``"account string, cents long"``.
    bolt, source, stream : str, optional
        Take only the letters of this bolt, of rows from this component, of this stream of it.
    quarantined : bool
        The rows go to a bolt with ``onError="quarantineKey"``. The letters' field ``number`` is needed: each row is
        executed once, however often it is replayed, and none before those of its key that came earlier.
    forget : bool
        The bolt is not to execute the rows, but to forget them; with `quarantined` alone. A letter without a number
        waits nowhere, and is dropped.

    Raises
    ------
    TopologyError
        `fields` is malformed, or has a type that JSON can't have.

    Examples
    --------
    ::

        builder.setSpout("letters", FilePartitionedSpout("repaired", "json", "row string"))
        builder.setBolt("again", ReplayDeadLetters("account string, cents long")).shuffleGrouping("letters")
        builder.setBolt("balances", Balances(), parallelism=2).fieldsGrouping("again", "account")
    """

    def __init__(
        self,
        fields: Any,
        *,
        bolt: str | None = None,
        source: str | None = None,
        stream: str | None = None,
        quarantined: bool = False,
        forget: bool = False,
    ) -> None:
        schema = parse_schema(fields)
        if not schema.names:
            raise TopologyError("ReplayDeadLetters takes the fields of the rows, as in 'account string, cents long'")
        refuse_keys(schema, "ReplayDeadLetters")
        if forget and not quarantined:
            raise TopologyError(
                "ReplayDeadLetters: only rows that wait in quarantine can be forgotten: quarantined=True"
            )
        self.quarantined, self._forget = quarantined, forget
        self.outputFields = f"{to_ddl(schema)}, {NUMBER} bigint" if quarantined else fields
        self._rows = JsonRows(schema)
        wanted = {"bolt": bolt, "source": source, "stream": stream}
        self._wanted = {name: value for name, value in wanted.items() if value is not None}
        self.needs = ["row", *self._wanted, *(["number"] if quarantined else [])]
        """The fields of a letter that it reads."""

    def executeBatch(self, batch: pa.RecordBatch, collector: Collector) -> None:
        """Emit the rows of a batch of dead letters."""
        if isTick(batch):
            return
        for name, value in self._wanted.items():
            batch = batch.filter(pc.equal(batch.column(name), value))
        # A letter of a timer has no row.
        batch = batch.filter(pc.is_valid(batch.column("row")))
        if self._forget:  # without a number, the bolt would take a row for a live one
            batch = batch.filter(pc.is_valid(batch.column("number")))
        texts = batch.column("row").to_pylist()
        if not texts:
            return
        rows = self._rows.decode([text.encode() for text in texts])
        if self.quarantined:
            numbers = batch.column("number").cast(pa.int64())
            rows = rows.append_column(NUMBER, pc.bit_wise_not(numbers) if self._forget else numbers)
        collector.emitBatch(rows)
