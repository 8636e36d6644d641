"""How the rows in a FileSink's folder are written: its readers use it, and a later start must fit it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa

from statefx.errors import SinkMismatchError
from statefx.operators.schema import parse_schema, to_ddl, to_ddl_type


@dataclass(frozen=True, slots=True)
class Layout:
    """Format, fields and folders of the rows; `format` and `partition_by` are those of FileSink."""

    format: str
    partition_by: tuple[str, ...]
    schema: str
    """DDL of all fields that rows have had, in the order in which they came; any of them may be null in some rows."""

    @classmethod
    def of(cls, format: str, partition_by: Sequence[str], schema: pa.Schema) -> Self:
        """Return the layout of rows of one schema."""
        return cls(format, tuple(partition_by), to_ddl(field.with_nullable(True) for field in schema))

    @classmethod
    def from_json(cls, body: Any) -> Self:
        """Return what ``dataclasses.asdict`` made JSON of."""
        return cls(body["format"], tuple(body["partition_by"]), body["schema"])

    @property
    def fields(self) -> pa.Schema:
        """The schema, for Arrow."""
        return parse_schema(self.schema)

    @property
    def ddl_as_files(self) -> str:
        """DDL in the order in which Spark reads it: what the files hold, then the folders.

        Spark's stream takes columns by their place: in another order, it would show the values of one field as another.
        """
        fields = self.fields
        files = [field for field in fields if field.name not in self.partition_by]
        return to_ddl([*files, *(fields.field(name) for name in self.partition_by)])

    def added_to(self, before: Layout | None, folder: str) -> Layout:
        """Return the layout of a folder like `before` that is given files like this.

        SinkMismatchError if no reader could read both.
        """
        if before is None:
            return self
        remedy = "give the sink a new folder, or as before"
        for what in ("format", "partition_by"):
            old, new = getattr(before, what), getattr(self, what)
            if old != new:
                raise SinkMismatchError(
                    f"{folder} holds rows with {what.replace('_by', 'By')} {old!r}, not {new!r}: {remedy}", path=folder
                )
        old, new = before.fields, self.fields
        for field in new:
            at = old.get_field_index(field.name)
            if at >= 0 and (was := to_ddl_type(old.field(at).type)) != (now := to_ddl_type(field.type)):
                raise SinkMismatchError(
                    f"{folder} holds rows whose field {field.name!r} is {was}, not {now}: {remedy}",
                    path=folder,
                    field=field.name,
                )
        if self.format == "csv" and old.names != new.names:  # whose readers go by the place of a column
            raise SinkMismatchError(
                f"{folder} holds CSV with the fields {', '.join(old.names)}, not {', '.join(new.names)}: {remedy}",
                path=folder,
            )
        more = [field for field in new if old.get_field_index(field.name) < 0]
        return replace(self, schema=to_ddl([*old, *more]))
