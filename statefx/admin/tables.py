"""What a checkpoint holds, as rows of plain data, and what of them a table shows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from statefx.admin.columns import OWN_KEYS_SPACE, json_text
from statefx.admin.damage import Verified
from statefx.admin.ending import SealedMessages
from statefx.admin.layouts import plain
from statefx.admin.looking import Explained, Quarantined, Transaction, time_text
from statefx.admin.reading import StateTable, StateView, found_checkpoint
from statefx.errors import ConfigError
from statefx.log.entries import read_entries
from statefx.log.location import Folders
from statefx.log.pins import Savepoint
from statefx.operators.schema import OWN
from statefx.protocol.jsonform import to_json
from statefx.protocol.records import Checkpoint
from statefx.state.contract.spaces import NameKind
from statefx.state.registry import name_of

Row = Mapping[str, Any]
"""Plain data: JSON says all of it."""

_PARQUET = b"PAR1"
_NO_TEXT = pa.nulls(0, pa.string())
_SPACE = OWN[1].name

_WHOLE = (NameKind.LIST.value, NameKind.VALUE.value)
"""Kinds that have no keys, and that no `map` shows."""

_OWN_COLUMN = ("kind", "txid", "attempt", "generation", "number", "time_ms")


@dataclass(frozen=True)
class Listing:
    """Rows, and how a table shows them."""

    header: tuple[str, ...]
    rows: Iterable[Row]
    """Read when they are asked for."""
    cells: Callable[[Row], Sequence[object]]
    """Row -> what its columns show."""
    note: Callable[[], str]
    """Says what there is, where there are no rows; called after `rows` were read."""


def json_line(row: Row) -> str:
    """Return a row as a line of JSON."""
    return "{" + ", ".join(f"{json_text(name)}: {json_text(value)}" for name, value in row.items()) + "}"


def log(folders: Folders) -> Listing:
    """Return the records of the transaction log: the newest CHECKPOINT, and what came after it."""
    found_checkpoint(folders)
    entries = read_entries(folders.storage)
    rows = [{"number": each.number, "time_ms": each.time_ms, **to_json(each.record)} for each in entries]
    return Listing(
        ("number", "time", "record", "txid", "attempt", "generation", "says"),
        rows,
        _record_cells,
        lambda: "the log has no records",
    )


def _record_cells(row: Row) -> Sequence[object]:
    if row["kind"] == Checkpoint.kind:
        says = f"all before it: transaction {row['state'].get('committed', 0)} was the last that is committed"
    else:
        left = [(name, value) for name, value in row.items() if name not in _OWN_COLUMN]
        left.sort(key=lambda field: isinstance(field[1], Mapping | list | tuple))  # how many there are says less
        says = ", ".join(f"{name} {_brief(value)}" for name, value in left)
    named = (row.get(name) for name in ("txid", "attempt", "generation"))
    return (row["number"], time_text(row["time_ms"]), row["kind"], *named, says)


def _brief(value: Any) -> str:
    """Show a field of a record: how many there are where there are many."""
    if isinstance(value, Mapping):
        called = next((value[each] for each in ("kind", "name") if isinstance(value.get(each), str)), None)
        if called is not None:
            return str(called)
    if isinstance(value, Mapping | list | tuple):
        return f"({len(value)})"
    return str(value)


def transactions(attempts: Iterable[Transaction]) -> Listing:
    rows = map(asdict, attempts)
    header = ("txid", "attempt", "generation", "state", "began", "secs", "rows", "state bytes", "sinks", "reason")
    return Listing(header, rows, _transaction_cells, lambda: "no transaction has begun yet")


def _transaction_cells(row: Row) -> Sequence[object]:
    took = (
        None
        if row["ended_ms"] is None or row["prepared_ms"] is None
        else f"{(row['ended_ms'] - row['prepared_ms']) / 1000:.3f}"
    )
    decided = row["committing_ms"] is not None
    rows = f"{row['input_rows']} in, {row['output_rows']} out" if decided else None
    given = [f"{name}: {each['rows']} rows, {each['bytes']} bytes" for name, each in row["sinks"].items()]
    given += [f"{spout}: {each['sealed']} messages sealed" for spout, each in row["queues"].items()]
    sinks = "; ".join(given)
    named = (row[name] for name in ("txid", "attempt", "generation", "state"))
    size = row["state_bytes"] if decided else None
    return (*named, time_text(row["prepared_ms"] or row["ended_ms"]), took, rows, size, sinks, row["reason"])


def resolved(messages: Iterable[SealedMessages]) -> Listing:
    rows = [asdict(each) for each in messages]
    header = ("spout", "task", "txid", "attempt", "generation", "messages", "action", "reason")
    return Listing(header, rows, lambda row: [row[name] for name in header], lambda: "no messages are sealed there")


def savepoints(found: Sequence[Savepoint]) -> Listing:
    rows = [
        {"name": each.name, "txid": each.txid, "time": each.time.isoformat(timespec="seconds"), "bytes": each.bytes}
        for each in found
    ]
    header = ("name", "txid", "time", "bytes")
    return Listing(header, rows, lambda row: tuple(row.values()), lambda: "there are no savepoints")


def bolts(folders: Folders) -> Listing:
    """Return the stateful bolts of a checkpoint."""
    state = found_checkpoint(folders)
    sizes = state.stored_bytes()
    rows = [
        {
            "component": id,
            "tasks": bolt.parallelism,
            "provider": name_of(bolt.provider),
            "codec": bolt.codec,
            "state_version": bolt.state_version,
            "bytes": sizes.get(id, 0),
            "txid": state.state_txid,
        }
        for id, bolt in sorted(state.topology.stateful.items())
    ]
    header = ("component", "tasks", "provider", "codec", "version", "bytes", "txid")
    return Listing(header, rows, lambda row: tuple(row.values()), lambda: "no bolt of this topology keeps state")


def entries(view: StateView) -> Listing:
    """Return the keys and values of a view ``byTask``, which is closed when all of them were read."""
    own = view._opened.own
    names = ("task", *(["key"] if own is None else own.columns), "value")
    why: list[str] = []

    def rows() -> Iterator[Row]:
        empty = True
        with view:
            space = _space(view._opened.space)
            for (owner, key), value in view.items():
                empty = False
                if own is None:
                    yield {"task": owner, "key": key, "value": value, **space}
                else:
                    yield {"task": owner, **plain(own.record(key, value)), **space}
            if empty:
                why.append(why_empty(view))

    def cells(row: Row) -> Sequence[object]:
        return (row["task"], *(_shown(row[name], own) for name in names[1:]))

    return Listing(names, rows(), cells, lambda: why[0])


def why_empty(view: StateView) -> str:
    """Return a sentence about a view without keys: which maps of the bolt have some, and what shows them."""
    component, map = view._request.component, view._request.map
    if map is not None:
        return f"there is nothing in map {map!r} of {component!r} now"
    there = list(maps(view).rows)
    if not there:
        return f"{component!r} is empty"
    told = ", ".join(f"{row['name']} ({row['kind']})" for row in there)
    told = f"{component!r} has no keys of its own; it has {told}: "
    shown = [f"--map {shlex.quote(row['name'])}" for row in there if row["kind"] not in _WHOLE]
    if shown:
        return f"{told}say {' or '.join(shown)}"
    first = there[0]
    return f"{told}in Python Checkpoint(location).state({component!r}).{first['kind']}({first['name']!r}) shows it"


def _space(name: str) -> dict[str, Any]:
    """Return what a row says of where it lies: nothing where it is one of the bolt's own keys."""
    return {} if name == OWN_KEYS_SPACE else {_SPACE: name}


def _shown(value: Any, own: object) -> str:
    return value if own is not None and isinstance(value, str) else repr(value)


def maps(view: StateView) -> Listing:
    """Return the names under which a bolt keeps something, and of which kind each is."""
    rows = [{"name": name, "kind": kind} for kind, names in view.names().items() for name in names]
    return Listing(
        ("name", "kind"),
        rows,
        lambda row: tuple(row.values()),
        lambda: f"{view._request.component!r} has no maps, lists or values",
    )


def quarantined(component: str, keys: Iterable[Quarantined]) -> Listing:
    header = ("key", "task", "rows", "first", "txid", "error")
    rows = (_fields(each, *header) for each in keys)
    return Listing(header, rows, lambda row: tuple(row.values()), lambda: f"no rows of {component!r} are held back")


def at(table: StateTable) -> Listing:
    """Return the rows of a table of JSON: keys and values at one moment, or what differs between two."""
    compares = len(table.moments) > 1
    keys = ["key"] if table.own is None else table.own.columns
    json_columns = (*keys, "before", "after") if compares else (*keys, "value")
    names = ("task", *(("op",) if compares else ()), *json_columns)
    space = _space(table.shown.space)

    def rows() -> Iterator[Row]:
        for each in (row for task in table.tasks for batch in table.read(task) for row in batch.to_pylist()):
            for name in json_columns:
                each[name] = json.loads(each[name]) if isinstance(each[name], str) else plain(each[name])
            yield {name: each[name] for name in names} | space

    def cells(row: Row) -> Sequence[object]:
        return [row[name] if name in ("task", "op") else repr(row[name]) for name in names]

    def note() -> str:
        what = f"{table.component!r}" if not space else f"{space[_SPACE]} of {table.component!r}"
        if compares:
            first, last = (moment.txid for moment in table.moments)
            return f"nothing of {what} has changed from transaction {first} to {last}"
        return f"there was nothing of {what} at transaction {table.moments[0].txid}"

    return Listing(names, rows(), cells, note)


def read_rows(file: BinaryIO, schema: Mapping[str, Any] | None) -> tuple[pa.Table, Mapping[str, Any] | None]:
    """Return the rows of Parquet, or of JSON as `entries` and `at` give them, and what their columns are."""
    data = file.read()
    try:
        if data[:4] == _PARQUET:
            return pq.read_table(pa.BufferReader(data)), schema
        if schema is not None:
            raise ConfigError("--schema is for Parquet; lines of JSON have keys and values as they are")
        rows = [_row(line, file.name, number) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    except pa.ArrowException as error:
        raise ConfigError(f"{file.name} begins as Parquet, and can't be read: {error}") from error
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)] if rows else [_NO_TEXT] * 3
    return pa.table(columns, names=["key", "value", _SPACE]), {}


def _row(line: bytes, file: str, number: int) -> tuple[str, str | None, str | None]:
    """Return key and value of a line as JSON texts, of which None deletes the key, and what it says of its space."""
    try:
        found = json.loads(line)
        key, value, space = found["key"], found["value"], found.get(_SPACE)
    except (ValueError, TypeError, KeyError) as error:
        shown = line.decode(errors="replace")
        raise ConfigError(
            f'{file}, line {number}: neither Parquet nor a line of JSON such as {{"key": "spark", "value": 3}}, but '
            f"{shown:.100}"
        ) from error
    if isinstance(key, dict):
        raise ConfigError(
            f"{file}, line {number}: {key!r:.100} is no key: a key is a text, a number, or an array of these"
        )
    return json_text(key), None if value is None else json_text(value), None if space is None else str(space)


def row_of(done: Any) -> Row:
    """Return the result of a call as a row."""
    if isinstance(done, Savepoint):
        return next(iter(savepoints([done]).rows))
    if isinstance(done, Mapping):
        return done
    row: Row = asdict(done)
    return row


def explained(found: Explained) -> Listing:
    """Return of each task the value that it has now, then its files."""
    rows: list[Row] = []
    for task in found.tasks:
        now = {"txid": found.txid, "deleted": not task.present, "value": task.value, "path": None}
        rows.append({"task": task.task, "kind": "now", "first": None, **now})
        rows += [{"task": task.task, **_fields(file, "kind", "first", *now)} for file in task.files]
    return Listing(("task", "what", "from", "to", "value", "file"), rows, _key_cells, lambda: str(found))


def _key_cells(row: Row) -> Sequence[object]:
    value = "not there" if row["deleted"] else repr(row["value"])
    return (row["task"], row["kind"], row["first"], row["txid"], value, row["path"])


def damaged(found: Verified) -> Listing:
    header = ("path", "problem", "component", "task", "keys", "transactions")
    return Listing(header, [_fields(each, *header) for each in found.damaged], _damage_cells, lambda: str(found))


def _damage_cells(row: Row) -> Sequence[object]:
    low, high = row["keys"]
    keys = f"{low or 'first'} .. {high or 'last'}" if row["component"] else None
    first, last = row["transactions"] or (None, None)
    return (
        *(row[name] for name in ("path", "problem", "component", "task")),
        keys,
        last and (f"{first} .. {last}" if first else f".. {last}"),
    )


def _fields(thing: object, *names: str) -> Row:
    return {name: getattr(thing, name) for name in names}
