"""Rows of tables as the input of transactions, in the order of a column that grows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statefx.connectors.sql.settling import Settling, holders_of
from statefx.connectors.sql.source import SourceTable, column_of, inspect_table, is_of_data, unreadable
from statefx.connectors.sql.types import reader
from statefx.connectors.sql.url import SqlUrl, alchemy, open_engine
from statefx.errors import ConfigError, FailedException, InputError, TopologyError
from statefx.operators import Collector, Context, PartitionedTransactionalSpout, parse_schema, to_ddl
from statefx.operators.fitting import MISFITS, fitted_array
from statefx.operators.json_values import refuse_keys
from statefx.protocol.identity import TransactionAttempt

if TYPE_CHECKING:
    import sqlalchemy as sa

_FETCH_ROWS = 10_000
"""Of one round trip and of one Arrow batch: some 10 MB as Python objects."""

_NAME = "SqlPartitionedSpout"


class SqlPartitionedSpout(PartitionedTransactionalSpout):
    """Emits the rows of one or more tables to which rows are added, each once, in the order of a column that grows.

    A batch is a range of that column, so it is the same rows again as long as nobody changes or deletes them.

    **Rows that come late.** A number is taken before its row is committed: row 6 may be there while row 5 is not. So a
    range ends at a value below which no row can come any more. On SQLite, where one transaction writes at a time,
    that is the largest value. On PostgreSQL it is a value at which every transaction has ended that wrote to the table
    when it was the largest one. It holds for values that the insert itself takes (``serial``, ``identity``, ``default
    now()``); for those that a program fetches before or makes up, and for sequences with a cache, give `settleSecs`.

    Parameters
    ----------
    url : str
        As SQLAlchemy has it: ``sqlite:///events.db``, ``postgresql+psycopg://user:password@host/database``. Driver and
        executors connect.
    table : str or sequence of str
        Optionally with a schema, ``schema.table``. Of several, all have the same fields; new ones go behind the others.
    orderBy : str
        A column of whole numbers or of timestamps with time zone, never null, that grows: an id, or when the row came.
        It needs an index. Where a later row can have the value of an earlier one, as with whole seconds, give
        `settleSecs`.
    schema : str, StructType or pyarrow.Schema, optional
        The columns to read, as fields. By default all columns, by their types in the first table.
    partitions : int
        Parts of each table, which are read side by side.
    partitionBy : str, optional
        An SQL expression of a whole number, such as ``hashtext(account)``: rows go to the part of its remainder. By
        default `orderBy`, if that is whole numbers.
    takePerBatch : int
        Rows of each part in a transaction, at most, and all that have the last one's value.
    settleSecs : float, optional
        A value counts as one below which no row can come if it was there so long ago: longer than any transaction takes
        from taking a value to its commit, and as long as new rows get one value. Required where statefx can't tell: for
        columns that are not unique, for views, for a standby of PostgreSQL, and for databases other than these two.

    Raises
    ------
    ConfigError
        SQLAlchemy or the driver is not installed, `url` is not a URL, or `settleSecs` is required.
    TopologyError
        There is no such table or column, or the column can't be the order.
    InputError
        The database can't be reached, to look at the tables.
    """

    def __init__(
        self,
        url: str,
        table: str | Sequence[str],
        orderBy: str,
        schema: Any = None,
        *,
        partitions: int = 1,
        partitionBy: str | None = None,
        takePerBatch: int = 10_000,
        settleSecs: float | None = None,
    ) -> None:
        parsed = SqlUrl(url, _NAME, "MemoryTransactionalSpout for rows that the program has")
        parsed.require_driver()
        tables = [table] if isinstance(table, str) else list(table)
        _check_arguments(tables, partitions, takePerBatch, settleSecs)
        self.database = parsed.location
        self._url = url
        self.parts, self.take, self.settle_secs = partitions, takePerBatch, settleSecs
        given = None if schema is None else schema if isinstance(schema, pa.Schema) else parse_schema(schema)
        self._engine: Any = None
        self._connection: sa.Connection | None = None
        try:
            with self._connected() as connection:
                found = [inspect_table(connection, name, orderBy, given, parsed.location) for name in tables]
                self._check_late_rows(connection, found)
        except FailedException as failure:
            raise InputError(f"{_NAME}: {failure.message}") from failure
        finally:
            self.close()
        self.tables = found
        self.schema = found[0].fields
        refuse_keys(self.schema, _NAME)
        for each in found:
            if each.fields != self.schema:
                raise TopologyError(
                    f"{parsed.location}: {each.name} has the fields {to_ddl(each.fields)}, and {found[0].name} has "
                    f"{to_ddl(self.schema)}: name those that all tables have, schema='...', or make a spout for each"
                )
        if partitions > 1 and partitionBy is None and not found[0].numeric:
            raise TopologyError(
                f"{_NAME}: rows can't be parted by {orderBy!r}, which is no whole number: "
                "partitionBy='an SQL expression of a whole number'"
            )
        self.part_by = partitionBy
        self.outputFields = to_ddl(self.schema)

    def _check_late_rows(self, connection: sa.Connection, tables: Sequence[SourceTable]) -> None:
        if self.settle_secs is not None:
            return
        why = ""
        if connection.dialect.name == "postgresql":
            views = [each.name for each in tables if each.view]
            standby = connection.exec_driver_sql("select pg_is_in_recovery()").scalar()
            why = f"{views[0]} is a view" if views else "the server is a standby" if standby else ""
        elif connection.dialect.name != "sqlite":
            why = f"{connection.dialect.name} does not tell which transactions still write to a table"
        if why:
            raise ConfigError(
                f"{_NAME}: {why}, so that rows which are committed late can't be waited for: settleSecs=..., more "
                "than any transaction takes from its insert to its commit"
            )
        for each in tables:
            if each.ties:
                raise ConfigError(
                    f"{_NAME}: several rows of {each.name} can have one {each.order}, so that a row may come with the "
                    "value that was read last, and would never be read: order by a unique column, such as an id, make "
                    "this one unique, or give settleSecs=..., more than the time in which rows get one value and are "
                    "committed"
                )

    def reads(self, target: str) -> bool:
        """Tell whether it is one of the tables."""
        return target in [f"{self.database}#{table.name}" for table in self.tables]

    # ---- on the driver

    def open(self, context: Context) -> None:
        """Begin with nothing known of how far the tables can be read."""
        self._settling = [Settling(holders_of(each), self.settle_secs or 0.0) for each in self.tables]
        self._bounds: list[Any] = [None] * len(self.tables)
        self._read: dict[int, Any] = {}

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        if self._engine is not None:
            self._engine.dispose()
        self._engine = self._connection = None

    def initPartitions(self, metadata: Mapping[int, Any]) -> None:
        """Refuse other tables, parts or columns than before: numbers of partitions and values stand for them."""
        for number, said in sorted(metadata.items()):
            index = number // self.parts
            names = [each.name for each in self.tables]
            if index < len(names) and said["order"] != self.tables[index].order:
                raise InputError(
                    f"{_NAME}: {names[index]} was read in the order of {said['order']!r}, up to {said['to']}, which "
                    f"says nothing of {self.tables[index].order!r}: go back to orderBy={said['order']!r}, or start "
                    "with a new checkpointLocation"
                )
            if index >= len(names) or (said["table"], said["parts"]) != (names[index], self.parts):
                raise InputError(
                    f"{_NAME}: partition {number} was a part of {said['table']!r} in {said['parts']}, and now there "
                    f"are {', '.join(names)} in {self.parts}: go back to the former tables, in their order, and to "
                    f"partitions={said['parts']}; new tables go behind the others"
                )
            if self.parts > 1 and said["by"] != self._partitioned_by(self.tables[index]):
                raise InputError(
                    f"{_NAME}: the rows of {names[index]} were parted by {said['by']!r}, and each part was read up to "
                    f"a value of its own: go back to partitionBy={said['by']!r}, or start with a new checkpointLocation"
                )

    def isReady(self) -> bool:
        """Look how far each table can be read; FailedException if rows are there, and none can be read yet."""
        with self._connected() as connection:
            for number, (table, settling) in enumerate(zip(self.tables, self._settling, strict=True)):
                self._bounds[number] = settling.advance(connection, table, time.monotonic())
            connection.rollback()
        waiting = [each for each in self._settling if each.blocked]
        if waiting and not any(bound is not None for bound in self._bounds):
            # Else a query that ends when there is nothing to read would end before it has read what is there.
            raise FailedException(f"{self.database}: {waiting[0].reason()}")
        return True

    def numPartitions(self) -> int:
        """Return how many parts all tables have."""
        return len(self.tables) * self.parts

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        """Return the next range of a part of a table."""
        index, part = divmod(partition, self.parts)
        table, bound = self.tables[index], self._bounds[index]
        after = None if lastMetadata is None else table.from_json(lastMetadata["to"])
        if bound is not None and after is not None and bound < after:
            raise InputError(
                f"{self.database}: {table.name} was read up to the {table.order} {table.to_json(after)}, and now the "
                f"largest is {table.to_json(bound)}: either values begin anew, and rows with them would never be read, "
                "or the last rows were deleted. Let new rows have higher values (SQLite: autoincrement; PostgreSQL: "
                "setval), and delete the row of the largest value last, or start with a new checkpointLocation"
            )
        if bound is None or self._read.get(partition) == bound or (after is not None and after >= bound):
            return None
        seen = self._read.get(partition)
        # Rows of other parts are looked at once: up to here this part has none, and none with a lower value can come.
        lower = seen if seen is not None and seen < bound and (after is None or after < seen) else after
        with self._connected() as connection:
            sqlalchemy = alchemy()
            order = table.order_column
            conditions = self._conditions(table, part, lower, bound)
            some = sqlalchemy.select(order).select_from(table.clause).where(*conditions)
            some = some.order_by(order).limit(self.take).subquery()
            to, rows = connection.execute(
                sqlalchemy.select(sqlalchemy.func.max(some.c[table.order]), sqlalchemy.func.count())
            ).one()
            if to is not None and not table.unique:  # with all rows that have the last one's value
                conditions = self._conditions(table, part, lower, to)
                rows = connection.execute(
                    sqlalchemy.select(sqlalchemy.func.count()).select_from(table.clause).where(*conditions)
                ).scalar()
            connection.rollback()
        if to is None:
            self._read[partition] = bound
            return None
        metadata = {
            "table": table.name,
            "parts": self.parts,
            "order": table.order,
            "to": table.to_json(to),
            "rows": rows,
        }
        if self.parts > 1:
            metadata["by"] = self._partitioned_by(table)
        return metadata if after is None else {**metadata, "after": table.to_json(after)}

    # ---- in the tasks

    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> Iterator[None]:
        """Emit a range, batch by batch."""
        index, part = divmod(partition, self.parts)
        table = self.tables[index]
        after = table.from_json(metadata["after"]) if "after" in metadata else None
        conditions = self._conditions(table, part, after, table.from_json(metadata["to"]))
        rows = 0
        with self._connected() as connection:
            batches = self._batches(connection, table, self.schema, conditions)
            while (batch := self._next(connection, batches, table, conditions)) is not None:
                rows += batch.num_rows
                collector.emitBatch(batch)
                yield
            connection.rollback()
        if rows != metadata["rows"]:
            raise InputError(
                f"{self.database}: {table.name} had {metadata['rows']:,} rows of {table.order} up to {metadata['to']} "
                f"when they were planned, and has {rows:,}: rows that are read may not be changed or deleted, nor come "
                "with lower values; if they were committed late, set settleSecs higher"
            )

    def _batches(
        self, connection: sa.Connection, table: SourceTable, fields: pa.Schema, conditions: Sequence[Any]
    ) -> Iterator[pa.RecordBatch]:
        """Read fields of rows, in their order."""
        columns = [column_of(field, table.as_text) for field in fields]
        asked = alchemy().select(*columns).select_from(table.clause).where(*conditions)
        streamed = connection.execution_options(stream_results=True, yield_per=_FETCH_ROWS)
        for rows in streamed.execute(asked.order_by(table.order_column)).partitions():
            arrays = []
            for field, values in zip(fields, zip(*rows, strict=True), strict=True):
                text = pa.types.is_string(field.type) and field.name in table.text_columns
                read = None if text else reader(field.type)
                arrays.append(fitted_array(values if read is None else list(map(read, values)), field.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=fields)

    def _next(
        self, connection: sa.Connection, batches: Iterator[pa.RecordBatch], table: SourceTable, conditions: list[Any]
    ) -> pa.RecordBatch | None:
        """Return the next batch; InputError names the value that can't be read, and None is the end."""
        try:
            return next(batches, None)
        except Exception as error:
            if not isinstance(error, MISFITS) and not is_of_data(error):
                raise
            failed = error
        connection.rollback()
        order = table.order_column
        asked = alchemy().select(order).select_from(table.clause).where(*conditions).order_by(order)
        keys = connection.execute(asked).scalars().all()

        def read(keys: Sequence[Any], fields: pa.Schema) -> None:
            try:
                for _ in self._batches(connection, table, fields, [*conditions, order >= keys[0], order <= keys[-1]]):
                    pass
            finally:
                connection.rollback()

        found = unreadable(f"{self.database}: {table.name}", table.order, keys, self.schema, read)
        raise found or FailedException(f"{self.database} can't be read: {failed}") from failed

    # ---- both

    def _partitioned_by(self, table: SourceTable) -> str:
        """Return what rows are parted by, as metadata has it."""
        return self.part_by or table.order

    def _conditions(self, table: SourceTable, part: int, after: Any, to: Any) -> list[Any]:
        """Return the conditions of a range of a part."""
        sqlalchemy = alchemy()
        order = table.order_column
        found = [order <= to] if after is None else [order > after, order <= to]
        if self.parts > 1:
            by = (
                order
                if self.part_by is None
                else sqlalchemy.literal_column(f"({self.part_by})", sqlalchemy.BigInteger())
            )
            whole = sqlalchemy.func.coalesce(by, 0)
            found.append((whole % self.parts + self.parts) % self.parts == part)  # a remainder may be negative
        return found

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        """Yield the connection of this copy; FailedException if the database can't be reached."""
        try:
            if self._engine is None:
                self._engine = open_engine(self._url)
            if self._connection is None:
                # Each statement sees what is committed by then: with one view for a whole transaction, rows whose
                # writers have ended since it began would be missing.
                options = {"isolation_level": "READ COMMITTED"} if self._engine.name == "postgresql" else {}
                self._connection = self._engine.connect().execution_options(**options)
            yield self._connection
        except BaseException as error:
            self.close()  # nothing is known of a connection that has failed
            if not isinstance(error, alchemy().exc.DBAPIError):
                raise
            reason = " ".join(str(error.orig).split())
            away = isinstance(error, alchemy().exc.OperationalError | alchemy().exc.InterfaceError)
            if away and not reason.startswith("no such "):  # of SQLite: a table or a column is gone
                raise FailedException(f"{self.database} can't be read: {reason}") from error
            raise InputError(f"{self.database}: {reason}") from error


def _check_arguments(tables: Sequence[str], partitions: Any, take: Any, settle_secs: Any) -> None:
    if not tables or len(set(tables)) < len(tables):
        raise TopologyError(f"{_NAME}: table names one table, or several different ones, not {list(tables)!r}")
    for name, value in (("partitions", partitions), ("takePerBatch", take)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TopologyError(f"{_NAME}: {name} is a whole number from 1, not {value!r}")
    if settle_secs is not None and (
        isinstance(settle_secs, bool) or not isinstance(settle_secs, int | float) or settle_secs < 0
    ):
        raise TopologyError(f"{_NAME}: settleSecs is a number of seconds from 0, not {settle_secs!r}")
