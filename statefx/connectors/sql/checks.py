"""Whether a table that is there fits what a sink writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statefx.connectors.sql.url import alchemy
from statefx.errors import SinkError


def check_dead_letters(connection: Any, described: Any, others: Sequence[Any], target: str) -> None:
    """Refuse a table for dead letters that is another one's, or that can't take them.

    Parameters
    ----------
    connection
    described
        The table for dead letters.
    others
        The sink's own.
    target : str

    Raises
    ------
    SinkError
        Names the table, and what it lacks.
    """
    lite = connection.dialect.name == "sqlite"

    def place(table: Any) -> str:
        return str(table.fullname).lower().removeprefix("main.") if lite else str(table.fullname)

    what = f"{target}: deadLetter={described.fullname!r}"
    if place(described) in map(place, others):
        raise SinkError(f"{what} is a table that the sink needs itself: name another one", target=target)
    inspector = alchemy().inspect(connection)
    if not inspector.has_table(described.name, schema=described.schema):
        return
    found = [column["name"] for column in inspector.get_columns(described.name, schema=described.schema)]
    if missing := [name for name in list(described.columns.keys()) if name not in found]:
        raise SinkError(
            f"{what} is there and has no column {missing[0]!r} (it has {', '.join(found)}): name a table that is not "
            "there yet, and it is made",
            target=target,
        )


def check_table(connection: Any, described: Any, key: Sequence[str], target: str) -> None:
    """Refuse a table that is there and does not fit.

    Raises
    ------
    SinkError
        Names the column, both types, and the remedy.
    """
    inspector = alchemy().inspect(connection)
    table, space, fields = described.name, described.schema, list(described.columns.keys())
    if not inspector.has_table(table, schema=space):
        return
    found = {column["name"]: column for column in inspector.get_columns(table, schema=space)}
    for name in fields:
        if name not in found:
            raise SinkError(
                f"{target} has no column {name!r} (it has {', '.join(found)}): add it, or emit rows without that field",
                target=target,
                field=name,
            )
        sqlalchemy = alchemy()
        if isinstance(described.columns[name].type, sqlalchemy.JSON) and isinstance(
            found[name]["type"], sqlalchemy.ARRAY
        ):
            raise SinkError(
                f"{target}: column {name!r} is an array, and lists are written as JSON: make it JSON, JSONB or TEXT",
                target=target,
                field=name,
            )
    for name, column in found.items():
        filled = column["nullable"] or column.get("default") is not None or column.get("autoincrement") is True
        if name not in fields and not filled:
            raise SinkError(
                f"{target}: column {name!r} must not be null, and the rows have no such field: emit it, "
                "or give the column a default",
                target=target,
                field=name,
            )
    if key:
        unique = [inspector.get_pk_constraint(table, schema=space)["constrained_columns"]]
        unique += [each["column_names"] for each in inspector.get_unique_constraints(table, schema=space)]
        unique += [each["column_names"] for each in inspector.get_indexes(table, schema=space) if each["unique"]]
        if not any(set(each) == set(key) for each in unique):
            raise SinkError(
                f"{target} has no primary key or unique constraint on ({', '.join(key)}), "
                "the sink's key: without one, rows can't be replaced",
                target=target,
            )
