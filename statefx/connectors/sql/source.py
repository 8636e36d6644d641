"""A table that is read in the order of a column: its columns, and whether that order holds."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from statefx.connectors.sql.types import arrow_type
from statefx.connectors.sql.url import alchemy
from statefx.errors import InputError, TopologyError
from statefx.operators import to_ddl
from statefx.operators.fitting import MISFITS

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One table, under the name that was given, and what is read of it."""

    name: str
    fields: pa.Schema
    order: str
    """The column that grows."""
    numeric: bool
    """Whether its values are whole numbers; else they are timestamps."""
    unique: bool
    """Whether no two rows have the same."""
    ties: bool
    """Whether a row can come with a value that another row has: the column is neither unique, nor given its values by a
    sequence, nor by a clock of microseconds (which has gone on when a row that has its time can be seen)."""
    view: bool
    text_columns: frozenset[str]
    """Columns that the database has as text."""
    as_text: frozenset[str]
    """Columns that it makes a text of (see `read_as_text`)."""

    @property
    def space(self) -> str:
        """The schema; empty if none was given."""
        return self.name.rpartition(".")[0]

    @property
    def plain(self) -> str:
        """The name without it."""
        return self.name.rpartition(".")[2]

    @property
    def clause(self) -> Any:
        """The table, for a statement."""
        return alchemy().table(self.plain, schema=self.space or None)

    @property
    def order_column(self) -> Any:
        """The column that grows, for a statement."""
        sa = alchemy()
        return sa.column(self.order, sa.BigInteger() if self.numeric else sa.DateTime(timezone=True))

    def to_json(self, value: Any) -> Any:
        """Return a value of the column as JSON."""
        return value if self.numeric else value.isoformat()

    def from_json(self, value: Any) -> Any:
        """Return what `to_json` was given."""
        return value if self.numeric else datetime.fromisoformat(value)


def table_columns(connection: Any, name: str, wanted: Sequence[str], database: str) -> dict[str, Any]:
    """Return what SQLAlchemy tells of a table's columns; TopologyError if one of `wanted` is not there, or no table."""
    sqlalchemy = alchemy()
    space, _, plain = name.rpartition(".")
    inspector = sqlalchemy.inspect(connection)
    try:
        with warnings.catch_warnings():  # of types that SQLAlchemy does not know: told below if they are to be read
            warnings.simplefilter("ignore", sqlalchemy.exc.SAWarning)
            columns = {each["name"]: each for each in inspector.get_columns(plain, schema=space or None)}
    except sqlalchemy.exc.NoSuchTableError:
        near = ", ".join(sorted(inspector.get_table_names(schema=space or None))[:10]) or "none"
        raise TopologyError(f"{database} has no table {name!r}; there are {near}") from None
    for column in wanted:
        if column not in columns:
            raise TopologyError(f"{database}: {name} has no column {column!r} (it has {', '.join(columns)})")
    return columns


def read_as_text(fields: pa.Schema, columns: Any, *, lite: bool) -> frozenset[str]:
    """Return the fields that the database makes a text of: strings of another type, and JSON.

    Of JSON, PostgreSQL's driver would make floats of all numbers with a point.

    SQLite would make a text of 15 digits of a double, and has JSON as text.
    """
    sqlalchemy = alchemy()
    if lite:
        return frozenset()
    return frozenset(
        field.name
        for field in fields
        if isinstance(kind := columns[field.name]["type"], sqlalchemy.JSON)
        or (pa.types.is_nested(field.type) and not isinstance(kind, sqlalchemy.ARRAY))
        or (pa.types.is_string(field.type) and not isinstance(kind, sqlalchemy.String))
    )


def column_of(field: pa.Field, as_text: Collection[str]) -> Any:
    """Return what a field is read by: the column as the driver gives it, or a text that the database makes of it.

    SQLAlchemy's types have no part in it: they round numbers, and take any value for a boolean.
    """
    sqlalchemy = alchemy()
    column = sqlalchemy.column(field.name)
    return sqlalchemy.cast(column, sqlalchemy.Text).label(field.name) if field.name in as_text else column


def inspect_table(connection: Any, name: str, order: str, given: pa.Schema | None, database: str) -> SourceTable:
    """Look at a table; TopologyError if it is not there, lacks a column, or can't be read in the order of `order`."""
    sqlalchemy = alchemy()
    space, _, plain = name.rpartition(".")
    inspector = sqlalchemy.inspect(connection)
    columns = table_columns(connection, name, [order, *(given.names if given is not None else [])], database)
    view = plain in inspector.get_view_names(schema=space or None)
    kind = columns[order]["type"]
    numeric = isinstance(kind, sqlalchemy.Integer)
    what = f"{database}: {name}.{order}"
    if isinstance(kind, sqlalchemy.DateTime) and not getattr(kind, "timezone", False):
        raise TopologyError(
            f"{what} has no time zone, so it may run backwards where clocks are changed: order by an id, or by a "
            "timestamp with time zone"
        )
    if not numeric and not isinstance(kind, sqlalchemy.DateTime):
        raise TopologyError(
            f"{what} is {kind}, of which nobody knows that new rows come last: order by a whole number that grows, "
            "such as an id, or by a timestamp with time zone"
        )
    key = inspector.get_pk_constraint(plain, schema=space or None)["constrained_columns"]
    if columns[order]["nullable"] and key != [order] and not view:
        raise TopologyError(
            f"{what} may be null, and rows with a null in it would never be read: make it NOT NULL, or order by "
            "another column"
        )
    if key == [order]:
        _warn_of_reuse(connection, plain, what)
    keys = [key]
    keys += [each["column_names"] for each in inspector.get_unique_constraints(plain, schema=space or None)]
    indexes = inspector.get_indexes(plain, schema=space or None)
    if not view and not any(columns[:1] == [order] for columns in [*keys, *(each["column_names"] for each in indexes)]):
        logger.warning(
            "%s has no index, so that each look for new rows reads the whole table: CREATE INDEX ON %s (%s)",
            what, name, order,
        )  # fmt: skip
    for each in indexes:
        partial = any(option.endswith("_where") for option in each.get("dialect_options", {}))
        if each["unique"] and not partial:
            keys.append(each["column_names"])
    unique, lite = [order] in keys, connection.dialect.name == "sqlite"
    fields = fields_of(columns, f"{database}: {name}", lite=lite) if given is None else given
    if given is not None and not lite:
        _check_zones(given, columns, f"{database}: {name}")
    text_columns = frozenset(column for column, each in columns.items() if isinstance(each["type"], sqlalchemy.String))
    ties = not unique and not _in_turn(columns[order])
    as_text = read_as_text(fields, columns, lite=lite)
    return SourceTable(name, fields, order, numeric, unique, ties, view, text_columns, as_text)


def _in_turn(column: Any) -> bool:
    """Tell whether a later row has another value than those that can be seen, though nothing forbids it."""
    if isinstance(column["type"], alchemy().DateTime):
        return getattr(column["type"], "precision", None) in (None, 6)
    return bool(column.get("identity")) or "nextval(" in (column.get("default") or "")


def reuses_numbers(connection: Any, table: str) -> bool:
    """Tell whether SQLite gives the numbers of a table's deleted rows to new ones, if they are its key."""
    if connection.dialect.name != "sqlite":
        return False
    made = connection.exec_driver_sql("select sql from sqlite_master where name = ?", (table,)).scalar()
    return "autoincrement" not in (made or "").lower()


def _warn_of_reuse(connection: Any, table: str, what: str) -> None:
    """Warn of a key that SQLite continues from the largest row that is there, also after rows were deleted."""
    if reuses_numbers(connection, table):
        logger.warning(
            "%s has no AUTOINCREMENT, so SQLite gives the numbers of rows that were deleted to new rows, which are "
            "then not read: keep the row of the largest number, or make the column 'integer primary key autoincrement'",
            what,
        )


def fields_of(columns: Any, what: str, *, lite: bool) -> pa.Schema:
    """Return the fields that the columns fit; TopologyError for one of which that has to be said."""
    found = {}
    for name, column in columns.items():
        kind = arrow_type(column["type"], lite=lite)
        if kind is None:
            unknown = isinstance(column["type"], alchemy().types.NullType)
            raise TopologyError(
                f"{what}.{name} is {'no type that SQLAlchemy knows' if unknown else column['type']}, for which there "
                "is no one type: declare what is read, schema='id long, ...', where a string takes anything as text",
                field=name,
            )
        found[name] = kind
    return pa.schema(found)


def is_of_data(error: Exception) -> bool:
    """Return whether reading failed for a value that stands in the table, which no retry changes.

    SQLite's module raises the error of a lost connection for a text that is not UTF-8; drivers raise errors of Python
    for values that Python does not have.
    """
    cause = getattr(error, "orig", None) or error
    if isinstance(error, alchemy().exc.DataError) or isinstance(cause, ValueError | ArithmeticError):
        return True
    return "Could not decode to UTF-8" in str(cause)


Keys = Sequence[Any]


def unreadable(
    table: str, order: str, keys: Keys, fields: pa.Schema, read: Callable[[Keys, pa.Schema], None]
) -> InputError | None:
    """Return the error of the first value that can't be read, by its column and key; None if all can be read now.

    `read` reads fields of the rows of some keys, and raises what it is that can't be read.
    """

    def failure(keys: Keys, fields: pa.Schema) -> Exception | None:
        try:
            read(keys, fields)
        except Exception as error:
            if not isinstance(error, MISFITS) and not is_of_data(error):
                raise
            return error
        return None

    error = failure(keys, fields)
    while error is not None and len(keys) > 1:
        first = keys[: len(keys) // 2]
        error = failure(first, fields)
        keys = first if error is not None else keys[len(first) :]
        error = error or failure(keys, fields)
    for field in fields if error is not None else ():
        if (cause := failure(keys, pa.schema([field]))) is not None:
            reason = " ".join(str(getattr(cause, "orig", cause)).split())
            return InputError(
                f"{table}.{field.name} can't be read as {to_ddl(pa.schema([field]))}: {reason}; it is in the row with "
                f"{order}={keys[0]!r}: declare another type, schema='...', or correct the value (UPDATE "
                f"{table.rpartition(' ')[2]} SET {field.name} = ... WHERE {order} = {keys[0]!r})",
                field=field.name,
                key=keys[0],
            )
    return None


def _check_zones(fields: pa.Schema, columns: Any, what: str) -> None:
    """Refuse to read times with a zone as times without one, and the other way round: nobody says which zone."""
    for field in fields:
        kind = columns[field.name]["type"]
        times = pa.types.is_timestamp(field.type) and isinstance(kind, alchemy().DateTime)
        if times and (field.type.tz is not None) != bool(kind.timezone):
            has, word = ("a", "timestamp") if kind.timezone else ("no", "timestamp_ntz")
            raise TopologyError(f"{what}.{field.name} has {has} time zone: declare it as {word}", field=field.name)
