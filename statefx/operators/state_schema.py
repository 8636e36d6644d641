"""Keys and values of state as columns: which there are, and what a bolt declares of its own (``stateSchema``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statefx.errors import ConfigError, TopologyError
from statefx.operators.schema import parse_schema

PARTS = ("key", "value")
OWN = (pa.field("task", pa.int32()), pa.field("space", pa.string()))
"""Columns behind those of key and value."""

CHANGES = ("op", "before", "after")
"""Columns of a comparison, beside the key's."""

MAPS = "maps"


@dataclass(frozen=True)
class Form:
    """Which columns a key and a value become; None: one column of JSON text."""

    key: pa.Schema | None = None
    value: pa.Schema | None = None

    @classmethod
    def parse(cls, schema: Any, declared: Mapping[str, str] | None = None) -> Form:
        """Read ``{"key": "word string", "value": "count long"}``, or one of both; ConfigError if it is wrong.

        None: what the bolt has `declared`.
        """
        if schema is None:
            schema = declared or {}
        if not isinstance(schema, Mapping) or not schema.keys() <= set(PARTS):
            raise ConfigError(
                f"schema={schema!r}: give the types of key and value as Spark DDL, such as "
                '{"key": "word string", "value": "count long"}; what is left out is shown as JSON'
            )
        try:
            form = cls(**{part: parse_schema(fields) for part, fields in schema.items()})
        except TopologyError as error:
            raise ConfigError(f"schema={schema!r}: {error.message}") from error
        for names in (form.row.names, form.change.names):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigError(f"schema={schema!r}: two columns would be called {twice}; give other names")
        return form

    def fields(self, part: str) -> list[pa.Field]:
        """Return the columns of the key or of the value."""
        schema = getattr(self, part)
        return [pa.field(part, pa.string())] if schema is None else [field.with_nullable(True) for field in schema]

    @property
    def row(self) -> pa.Schema:
        """The columns of state."""
        return pa.schema([*self.fields("key"), *self.fields("value"), *OWN])

    @property
    def change(self) -> pa.Schema:
        """The columns of a comparison: a value of several fields is one column there, a struct."""
        fields = self.fields("value")
        kind = fields[0].type if len(fields) == 1 else pa.struct(fields)
        values = [pa.field(name, kind) for name in CHANGES[1:]]
        return pa.schema([pa.field(CHANGES[0], pa.string()), *self.fields("key"), *values, *OWN])


def declared_schemas(declared: Any) -> dict[str, dict[str, str]]:
    """Return what a ``stateSchema`` says: of the bolt's own keys, by "", and of its maps, by their names.

    Raises ConfigError if it is none, or a reader could not show it.
    """
    if declared is None:
        return {}
    if not isinstance(declared, Mapping) or not isinstance(declared.get(MAPS, {}), Mapping):
        raise ConfigError(
            f'stateSchema={declared!r}: write {{"key": "word string", "value": "count long"}}, and types of maps as '
            '"maps": {"recent": {"key": ..., "value": ...}}'
        )
    maps = declared.get(MAPS, {})
    own = {part: each for part, each in declared.items() if part != MAPS}
    found: dict[str, dict[str, str]] = {}
    for name in maps:
        if not isinstance(name, str) or not name or "\0" in name:
            raise ConfigError(f"stateSchema: {name!r} is no name of a map")
    for name, each in {"": own, **maps}.items():
        if not isinstance(each, Mapping) or not all(isinstance(fields, str) for fields in each.values()):
            raise ConfigError(f"stateSchema: the types of key and value are texts of DDL, got {each!r}")
        Form.parse(each)
        if each or name:  # a map without types is known by its name, though nothing is kept in it
            found[name] = dict(each)
    return found
