"""The rows that a caller sends, and the messages that it receives, while a transaction is open."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from typing import Any, NamedTuple

import pyarrow as pa

from statefx.errors import SchemaError
from statefx.operators.context import Context
from statefx.operators.fitting import MISFITS, fitted_array, fitted_column, own_names, shown
from statefx.operators.schema import to_ddl
from statefx.operators.sealed_names import sealed_by


def to_batches(sink: str, schema: pa.Schema, rows: Any) -> list[pa.RecordBatch]:
    """Return rows as batches of a sink's schema; SchemaError names the first row and field that do not fit."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return _of_table(sink, schema, rows)
    if hasattr(rows, "columns"):  # pandas' and Polars': iteration is over the names of columns
        raise _refused(sink, f"a {type(rows).__name__} is sent as pyarrow.Table, such as Table.from_pandas(frame)")
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable) or own_names(rows):
        raise _refused(sink, f"rows are a list of dicts or tuples, not {shown(rows)}: of one row write [row]")
    values = [_values(sink, schema.names, place, row) for place, row in enumerate(rows)]
    if not values:
        return []
    columns = zip(zip(*values, strict=True), schema, strict=True)
    return [pa.RecordBatch.from_arrays([_array(sink, column, field) for column, field in columns], schema=schema)]


def _array(sink: str, values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return fitted_array(values, field.type)
    except MISFITS:
        for place, value in enumerate(values):
            try:
                fitted_array([value], field.type)
            except MISFITS as error:
                what = f"row {place}: {shown(value)} ({type(value).__name__}) does not fit `{to_ddl([field])}`: {error}"
                raise _refused(sink, what, field=field.name, row=place) from error
        raise


def _values(sink: str, names: list[str], place: int, row: Any) -> Sequence[Any]:
    """Return the values of one row in the order of the schema."""
    if not isinstance(row, Mapping | tuple | list):
        what = f"row {place} is {shown(row)} ({type(row).__name__}): a row is a dict or a tuple"
        raise _refused(sink, what, row=place)
    own = list(row) if isinstance(row, Mapping) else own_names(row)
    if own is None:
        if len(row) != len(names):
            raise _refused(sink, f"row {place} has {len(row)} values; the fields are {', '.join(names)}", row=place)
        return row  # type: ignore[return-value]  # no Mapping, which has names of its own
    if len(own) != len(names) or set(own) != set(names):
        what = f"row {place} has the fields {', '.join(map(str, own))}, not {', '.join(names)}: name every field, with "
        raise _refused(sink, f"{what}None where it has no value", row=place)
    values = row if isinstance(row, Mapping) else dict(zip(own, row, strict=True))
    return [values[name] for name in names]


def _of_table(sink: str, schema: pa.Schema, table: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    if sorted(table.schema.names) != sorted(schema.names):
        names = ", ".join(table.schema.names)
        raise _refused(sink, f"the table has the fields {names}, not {', '.join(schema.names)}")
    columns = []
    for field in schema:
        column = table.column(field.name)
        try:
            columns.append(fitted_column(column, field.type))
        except MISFITS as error:
            what = f"column {field.name!r} is {column.type}, and does not fit `{to_ddl([field])}`: {error}"
            raise _refused(sink, what, field=field.name) from error
    return pa.Table.from_arrays(columns, schema=schema).to_batches()  # type: ignore[no-any-return]  # pyarrow has no types


def _refused(sink: str, what: str, **data: Any) -> SchemaError:
    return SchemaError(f"send({sink!r}, ...): {what}", component=sink, **data)


ACKS = ".acks"
"""Behind the name of a queue: the client's sink by which its messages leave it."""


class Received(NamedTuple):
    """A message that a transaction has received.

    Attributes
    ----------
    queue : str
        Its name in ``queues``.
    id : int or str
        By which the queue knows it.
    values : dict of str to Any
        By field; a row for `send`.
    tries : int
        How often it was handed out before: by this client, and by the queue to others.
    """

    queue: str
    id: Any
    values: dict[str, Any]
    tries: int


class Receiver:
    """A client's messages of one queue: handed out to it, until a commit takes them off.

    They are renewed as long as the transaction that has them may be committed. Then the client's next `receive` returns
    them again, if it comes soon; otherwise the queue hands them out to any reader. `spout` is a ``QueueSpout`` whose
    messages are acknowledged in the transaction; it is not open. All transactions before `txid` are decided.
    """

    def __init__(self, name: str, spout: Any, origin: str, generation: int, txid: int) -> None:
        self._name, self._spout = name, spout
        self._has: dict[Any, Received] = {}
        self._until: dict[Any, float] = {}
        """When the transaction ends, or is over its time, that has a message."""
        self._reasons: dict[Any, str] = {}
        """Why those that came back were not processed."""
        self._sealed = False
        """Whether a commit that was rolled back may have left messages sealed, as in an outage of the queue."""
        spout.open(Context({}, name + ACKS, 0, 1, generation, origin, txid=txid))

    @property
    def owner(self) -> str:
        """The name under which the client owns the messages."""
        return str(self._spout.owner)

    @property
    def max_tries(self) -> int:
        return int(self._spout.maxTries)

    def receive(self, limit: int, taken: Collection[Any], until: float) -> list[Received]:
        """Return some messages that are not among the ids `taken`: those that came back first, then new ones.

        They are renewed until the time `until` of the monotonic clock.
        """
        self._drop()
        back = [message for id, message in self._has.items() if id not in taken][:limit]
        found = [message._replace(tries=message.tries + 1) for message in back]
        if len(found) < limit:
            self._unseal()
            for id, values, tries in self._spout.take(limit - len(found)):
                found.append(Received(self._name, id, dict(zip(self._spout.schema.names, values, strict=True)), tries))
        for message in found:
            self._has[message.id] = message
            self.hold(message.id, until)
        return deepcopy(found)  # the program may change values, and the message may come again

    def has(self, id: Any) -> bool:
        self._drop()
        return id in self._has

    def hold(self, id: Any, until: float) -> None:
        """Renew a message until the time of its transaction is over."""
        self._until[id] = until
        self._spout.hold(id, until)

    def release(self, ids: Iterable[Any], reason: str) -> None:
        """Take messages back from a transaction that did not acknowledge them, and why."""
        now = time.monotonic()
        for id in ids:
            if id in self._has:
                self._reasons[id] = reason
                self.hold(id, min(now, self._until[id]))

    def rolled_back(self) -> None:
        """Take note that a commit was rolled back that had to take messages off the queue."""
        self._sealed = True

    def _unseal(self) -> None:
        """Give back to the client what its commits have left sealed: no transaction of its is under way or decided.

        A sweep comes late: no message that is sealed expires, so meanwhile nobody would be given it.
        """
        if self._sealed:
            with closing(self._spout.pendingAcks()) as acks:
                for name in acks.sealed(sealed_by(self.owner)):
                    acks.release(name)
            self._sealed = False

    def reason(self, id: Any) -> str | None:
        """Return why a message was not processed when it was handed out last, or None if that is unknown."""
        return self._reasons.get(id)

    def _drop(self) -> None:
        """Forget what was not renewed for so long that the queue may soon hand it out to others."""
        secs, now = self._spout.renewSecs, time.monotonic()
        if secs:
            self.forget([id for id, until in self._until.items() if until + secs < now])

    def until(self, id: Any) -> set[Any]:
        """Return the ids of what the client has and received before this one, and this one."""
        ids = list(self._has)
        return set(ids[: ids.index(id) + 1])

    def forget(self, ids: Collection[Any]) -> None:
        """Forget these messages: they are acknowledged, or another reader has them."""
        for id in ids:
            for kept in (self._has, self._until, self._reasons):
                kept.pop(id, None)
            self._spout.ack(id)

    def close(self) -> None:
        """Release the connection; the queue hands out again what was not acknowledged."""
        self._spout.close()
