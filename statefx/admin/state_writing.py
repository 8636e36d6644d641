"""Writes rows into the committed state of a bolt, while its topology stands still: all of them or none.

A step of `statefx.admin.rewrite`. Before any driver is fenced, every key that is there is shown to lie in the task that
its grouping names, so that new ones can be sent there; and rows are compared with what state shows of the same keys.

What state shows may be less than it holds: JSON has no dates and no tuples, and a column of doubles shows 2 as 2.0. A
row that says what is shown of its key changes nothing, so state that was written out can be written back. What would
write something else than was shown is refused. So is what the types of keys and values can't say, and a row that was
shown of a map.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

import pyarrow as pa

from statefx.admin.columns import OWN_KEYS_SPACE, Decoder, UnfitError, elements, says, values_of
from statefx.admin.narrowing import as_key
from statefx.admin.reading import Progress, codec_of, component_of, counted, found_checkpoint, provider_of
from statefx.admin.rewrite import OpenSide, Piece, Rewrite, Source, Step
from statefx.admin.routing import NOWHERE, GroupingKey, Proof, Router, check_function, check_grouping, router_of
from statefx.admin.sorted_files import SortedRun
from statefx.admin.work import Report
from statefx.errors import CheckpointError, CodecError, ConfigError
from statefx.log.location import Folders
from statefx.log.log import TransactionLog
from statefx.operators.schema import OWN, Form, to_ddl, to_ddl_type
from statefx.protocol.log_state import LogState
from statefx.state.contract.ranges import Block, in_blocks
from statefx.state.contract.spaces import Space
from statefx.state.contract.store import StateProvider
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.keys import encode_key
from statefx.state.encoding.options import Encoding
from statefx.state.encoding.values import unwrap, wrap
from statefx.state.view.changes import codec_for
from statefx.storage import Storage

MODES = ("merge", "overwrite")

_BATCH_ROWS = 8192

Encoded = tuple[int, bytes, bytes | None]
"""The task of an entry, its key as it is stored, and its value; None deletes."""

_USER = Space.USER.value
_SPACE = OWN[1].name

_DELETED, _KEPT = b"", b"+"
"""How the value of a row begins in a temporary file."""

_STR, _INT = encode_key("")[:1], encode_key(0)[:1]
_JSON_TAGS = {_STR, _INT, *(encode_key(value)[:1] for value in (None, False, True))}

Thing = Callable[[str, Sequence[Any]], Any]
"""Makes the key or the value that columns say."""


@dataclass(frozen=True)
class Written:
    """What `Checkpoint.write` has done.

    Attributes
    ----------
    component : str
    rows : int
        Rows that were written, without those that delete.
    deleted : int
        Rows whose value is null.
    keys : int
        How many keys of its own the bolt has now.
    bytes : int
        The size of all that its tasks have now, also in maps and timers.
    """

    component: str
    rows: int
    deleted: int
    keys: int
    bytes: int

    def __str__(self) -> str:
        deleted = f", {counted(self.deleted, 'key')} deleted" if self.deleted else ""
        verb = "was" if self.rows == 1 else "were"
        now = counted(self.keys, "key")
        return f"{counted(self.rows, 'row')} {verb} written to {self.component}{deleted}; it has {now} now"


@dataclass(frozen=True)
class Encoder:
    """Makes entries of rows; pickled to the executors, where it needs no checkpoint."""

    component: str
    form: Form
    encoding: Encoding
    codec: Codec | None
    state_version: int
    tasks: int
    router: Router

    @property
    def columns(self) -> list[str]:
        """The columns that it reads, in their order."""
        return [each.name for part in ("key", "value") for each in self.form.fields(part)]

    def encode(self, batch: pa.RecordBatch) -> Iterator[Encoded]:
        """Yield the entries of rows that have the columns `columns`, and may have ``space`` behind them.

        Raises ConfigError: a key or a value is none that the bolt can keep, or not of its type; names it.
        """
        spaced, _ = codec_for(self.codec or self.encoding.build(), _USER)
        columns = self._columns(batch)
        width = len(self.form.fields("key"))
        for row in zip(*columns, strict=True):
            key, value = self.thing("key", row[:width]), self.thing("value", row[width:])
            deletes = all(each is None for each in row[width:])
            try:
                stored = spaced.encode_key(key)
                data = None if deletes else wrap(self.state_version, spaced.encode_value(value))
            except CodecError as error:
                raise ConfigError(
                    f"write: {self.component!r} can't keep key {key!r} with value {value!r:.200}: {error.message}"
                ) from error
            try:
                yield self.router.task_of(key, self.tasks), stored, data
            except CheckpointError as error:
                raise CheckpointError(
                    f"{error.message}. That is the row with key {key!r} and value {value!r:.200}", **error.data
                ) from error

    def _columns(self, batch: pa.RecordBatch) -> list[list[Any]]:
        """Return the columns of key and value, with values of their types."""
        fields = [(part, each) for part in ("key", "value") for each in self.form.fields(part)]
        if batch.num_columns > len(fields):
            _check_space(batch.column(len(fields)))
        found: list[list[Any]] = []
        width = len(self.form.fields("key"))
        for (part, declared), column in zip(fields, batch.columns, strict=False):
            if getattr(self.form, part) is None:  # text, which is read as JSON
                found.append(column.to_pylist())
                continue
            try:
                found.append(values_of(column, declared.type))
            except UnfitError as error:
                value = column[error.at].as_py()
                key = [each[error.at] for each in found[:width]]
                of = f"the row with key {key[0] if width == 1 else tuple(key)!r}" if part == "value" else "a row"
                raise ConfigError(
                    f"write: {of} has {value!r:.200} in the column {declared.name!r}, which is of type {column.type}, "
                    f"and {self.component!r} has a {part} of type {to_ddl(getattr(self.form, part))!r}: cast the "
                    f"column to {to_ddl_type(declared.type)} without loss, or leave the row out. Nothing was changed"
                ) from None
        return found

    def thing(self, part: str, fields: Sequence[Any]) -> Any:
        """Return a key or a value as the bolt has it."""
        if getattr(self.form, part) is not None:
            return fields[0] if len(fields) == 1 else tuple(fields)
        [text] = fields
        if text is None and part == "value":
            return None
        try:
            found = json.loads(text)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"write: {text!r:.200} in column {part!r} is no JSON: give the types of key and value with "
                "schema=, or JSON text"
            ) from error
        return as_key(found) if part == "key" else found


def _check_space(column: pa.Array) -> None:
    """Refuse rows that were shown of a map: their keys are no keys of the bolt's own."""
    column = column if pa.types.is_nested(column.type) else column.unique()
    others = [each for each in column.to_pylist() if each not in (None, OWN_KEYS_SPACE)]
    if others:
        raise ConfigError(
            f"write: the column {_SPACE!r} says {others[0]!r:.200} of a row, and only keys of the bolt's own "
            f"({OWN_KEYS_SPACE!r}) can be written: what is in maps and windows the bolt alone changes. Nothing was "
            f"changed: leave such rows out; if the column is one of yours, leave that out"
        )


def state_writer(
    folders: Folders,
    config: Mapping[str, Any] | None,
    component: str,
    *,
    mode: str = MODES[0],
    schema: Mapping[str, Any] | None = None,
    grouping_key: GroupingKey | None = None,
    codec: Codec | None = None,
) -> StateWriter:
    """Check the arguments of ``Checkpoint.write``; changes nothing."""
    if mode not in MODES:
        raise ConfigError(f"write: mode must be 'merge' or 'overwrite', got {mode!r}")
    check_function(grouping_key, "write")
    Form.parse(schema)
    found = found_checkpoint(folders)
    declared = component_of(found, component, folders).schemas.get("")
    form = Form.parse(schema, declared)
    provider = provider_of(found, config)
    return StateWriter(folders, found, provider, component, mode, form, Form.parse(declared), grouping_key, codec)


@dataclass
class StateWriter(Step):
    """One writing, and the step that it is."""

    folders: Folders
    found: LogState
    provider: StateProvider
    bolt: str
    mode: str
    form: Form
    declared: Form
    grouping_key: GroupingKey | None
    codec: Codec | None
    opened: Callable[[Storage], TransactionLog] = TransactionLog
    encoder: Encoder = field(init=False)
    _comparison: RowComparison = field(init=False)
    _given: Iterable[Encoded] = field(init=False, default=())
    _merged: dict[int, _Merged] = field(init=False, default_factory=dict)
    _rows: int = field(init=False, default=0)
    _deleted: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        known = self.found.topology.stateful[self.bolt]
        if self.found.committed == 0 or not self.found.holds(self.bolt):
            raise CheckpointError(
                f"write: {self.bolt!r} in {self.folders.location} has committed nothing yet: run its topology "
                "once over any input, stop it, and write then",
                component=self.bolt,
            )
        check_grouping(self.bolt, known, "written to")
        router = router_of(self.bolt, known, self.grouping_key, self.codec, "written to")
        self.encoder = Encoder(
            self.bolt, self.form, Encoding(known.encoding), self.codec, known.state_version, known.parallelism, router
        )
        codec = codec_of(self.bolt, known, self.codec)
        self._comparison = RowComparison(
            self.bolt, self.form, self.declared, codec, known.state_version, self.encoder.thing
        )

    def check_columns(self, found: Sequence[str]) -> list[str]:
        """Return the columns that are read; ConfigError if one of them is lacking."""
        columns = self.encoder.columns
        if lacking := [name for name in columns if name not in found]:
            raise ConfigError(
                f"write: there is no column {lacking[0]!r}: there are {list(found)}, and the columns of key and "
                f"value are {columns}. Rename some, or say with schema= what they are"
            )
        return [*columns, *({_SPACE} & set(found))]

    def write_table(self, table: pa.Table, progress: Progress | None = None) -> Written:
        """Write rows that are in memory, without Spark; raises as `write`."""
        batches = table.select(self.check_columns(table.column_names)).to_batches(_BATCH_ROWS)
        encoded = [entry for batch in batches for entry in self.encoder.encode(batch)]
        return self.write(sorted(encoded, key=itemgetter(0, 1)), progress)

    def write(self, entries: Iterable[Encoded], progress: Progress | None = None) -> Written:
        """Write `entries`, which are in order of task and key.

        Raises
        ------
        ConfigError
            Two rows have one key, or one would write something else than was shown.
        CheckpointError
            As of ``Checkpoint.write``.
        """
        # Called again where Spark had given its job a worker without a connection.
        self._given, self._rows, self._deleted, steps = entries, 0, 0, {self.bolt: self}
        done = Rewrite(self.folders, self.provider, steps, "write", self.opened, progress=progress).run(self.found)
        keys = sum(merged.own_keys for merged in self._merged.values())
        return Written(self.bolt, self._rows, self._deleted, keys, done.bytes)

    # ---- the step

    def read(self, source: OpenSide, path: str, report: Report) -> None:
        """Show that each key of the bolt's own lies where its grouping says, and that rows write what they say.

        Rows are sent by the same rule.
        """
        tasks, runs = source.state.topology.stateful[self.bolt].parallelism, self._spooled(path)
        router = self.encoder.router
        for task in range(tasks):
            rows = self._merged[task] = _Merged(
                source, self.bolt, task, runs.get(task, ()), self.mode == "overwrite", self._comparison
            )
            if tasks > 1:
                router.route(rows.compared(report), task, tasks, [NOWHERE] * tasks)
            else:  # whatever the key, there is no other
                deque(rows.compared(report), 0)
            self._deleted -= rows.kept
        self._comparison.check_keys(key for run in runs.values() for key, _ in run)
        if tasks > 1:
            router.check_proof(tasks)

    def entries(
        self, source: OpenSide, piece: Piece, folder: str, report: Report
    ) -> tuple[Mapping[int, Source], Proof]:
        for merged in self._merged.values():
            merged.source = source  # of this generation
        return {task: self._merged[task] for task in piece.now}, Proof()

    def _spooled(self, path: str) -> dict[int, SortedRun]:
        """Put the rows of each task into a temporary file, and count them."""
        runs: dict[int, SortedRun] = {}
        last: bytes | None
        for task, own in groupby(self._given, key=itemgetter(0)):
            with ExitStack() as stack:
                run = runs[task] = SortedRun(f"{path}-rows-{task}", stack)
                last = None
                for _, key, value in own:
                    if key == last:
                        shown = codec_for(self._comparison.codec, _USER)[0].decode_key(key)
                        raise ConfigError(f"write: two rows have the key {shown!r}: one of them would be lost")
                    last = key
                    run.add(key, _DELETED if value is None else _KEPT + value)
                    self._rows, self._deleted = self._rows + (value is not None), self._deleted + (value is None)
        return runs


@dataclass
class _Merged:
    """What a task keeps, with rows in place of the bolt's own entries of the same keys, or of all of them."""

    source: OpenSide
    bolt: str
    task: int
    rows: Iterable[tuple[bytes, bytes]]
    overwrite: bool
    comparison: RowComparison
    keys: int = field(default=0, init=False)
    """The number of entries, known once rows were `compared`."""
    own_keys: int = field(default=0, init=False)
    """How many of them are the bolt's own, outside of maps and timers."""
    kept: int = field(default=0, init=False)
    """Rows without a value that delete nothing: null is what is shown of the value."""
    sum: ClassVar[None] = None

    def compared(self, report: Report) -> Iterator[tuple[bytes, bytes]]:
        """Yield the bolt's own entries as they are; ConfigError for a row that would write something else than said."""
        for key, row, stored, becomes in self._all(report):
            self.keys += becomes is not None
            self.own_keys += becomes is not None and key[:1] == _USER
            if row is not None and becomes is not None:
                self.comparison.check_declared(key, stored, becomes)
            if stored is not None and key[:1] == _USER:
                self.comparison.look_at(key)
                if row is not None:
                    self.kept += becomes is not None and row == _DELETED
                yield key, stored

    def blocks(self) -> Iterator[Block]:
        return in_blocks((key, becomes) for key, *_, becomes in self._all(lambda size: None) if becomes is not None)

    def _all(self, report: Report) -> Iterator[tuple[bytes, bytes | None, bytes | None, bytes | None]]:
        """Yield each key with its row, with what is stored, of which one may be None, and with what it becomes."""
        blocks = self.source.blocks(self.bolt, self.task, report)
        both = heapq.merge(
            ((key, 0, value) for key, value in self.rows),
            ((key, 1, value) for keys, values in blocks for key, value in zip(keys, values, strict=True)),
            key=itemgetter(0, 1),
        )
        for key, same in groupby(both, key=itemgetter(0)):
            found = {place: value for _, place, value in same}
            row, stored = found.get(0), found.get(1)
            yield key, row, stored, self._becomes(key, row, stored)

    def _becomes(self, key: bytes, row: bytes | None, stored: bytes | None) -> bytes | None:
        if row is None:
            return None if self.overwrite and key[:1] == _USER else stored
        value = None if row == _DELETED else row[len(_KEPT) :]
        return value if stored is None else self.comparison.merged(key, value, stored)


@dataclass
class RowComparison:
    """Compares rows of one bolt with its state."""

    component: str
    form: Form
    declared: Form
    """What the bolt's ``stateSchema`` says."""
    codec: Codec
    state_version: int
    thing: Thing
    unshown: dict[bytes, bytes] = field(default_factory=dict)
    """Keys as rows would write them that say what is shown of another key: -> that key as it is stored."""

    def __post_init__(self) -> None:
        self._decoder = Decoder(self.codec, _USER, self.form, self.state_version)
        self._declared = Decoder(self.codec, _USER, self.declared, self.state_version)
        self._spaced, _ = codec_for(self.codec, _USER)
        self._tags = self._same_tags()

    def _same_tags(self) -> set[bytes]:
        """Return how the bytes of those keys begin that are written as they are shown."""
        if type(self.codec) is not StandardCodec:
            return set()
        fields = self.form.fields("key")
        if self.form.key is None:
            return _JSON_TAGS
        if len(fields) != 1:
            return set()
        kind = fields[0].type
        return {_STR} if pa.types.is_string(kind) else {_INT} if pa.types.is_signed_integer(kind) else set()

    def look_at(self, key: bytes) -> None:
        """Take note of a key of which a row would make another one."""
        if key[len(_USER) : len(_USER) + 1] in self._tags:
            return
        try:
            written = self._spaced.encode_key(self._shown("key", self._spaced.decode_key(key), key))
        except (ConfigError, CodecError):  # it does not fit the schema: no row says what is shown of it
            return
        if written != key:
            self.unshown[written] = key

    def check_declared(self, key: bytes, stored: bytes | None, data: bytes) -> None:
        """Refuse a new key or value that was given as JSON and that the bolt's ``stateSchema`` can't say."""
        if stored is not None and unwrap(stored)[1] == unwrap(data)[1]:
            return
        for part in ("key", "value") if stored is None else ("value",):
            declared = getattr(self.declared, part)
            if declared is None or getattr(self.form, part) is not None:
                continue
            thing = self._spaced.decode_key(key) if part == "key" else self._declared.decoded([data])[0]
            try:
                shown = self._declared.shown(part, thing, key)
                fits = says(shown, elements(thing, self.declared.fields(part)))
            except ConfigError:
                fits = False
            if not fits:
                of = "a row" if part == "key" else f"the row with key {self._spaced.decode_key(key)!r}"
                raise ConfigError(
                    f"write: {of} has the {part} {thing!r:.200}, and the stateSchema of {self.component!r} says "
                    f"{part}={to_ddl(declared)!r}: give it as that type, in a column of schema={{{part!r}: "
                    f"{to_ddl(declared)!r}}} where JSON has no such type, or leave the row out. Nothing was changed"
                )

    def check_keys(self, keys: Iterator[bytes]) -> None:
        """Refuse rows whose key says what is shown of another one, with a ConfigError."""
        for key in keys if self.unshown else ():
            if key in self.unshown:
                shown, stored = self._spaced.decode_key(key), self._spaced.decode_key(self.unshown[key])
                raise ConfigError(
                    f"write: state has the key {stored!r}, of which {shown!r} is shown, and the row with "
                    f"{shown!r} would be another key beside it. {_remedy(self.form.key, 'key')}; nothing was changed"
                )

    def merged(self, key: bytes, row: bytes | None, stored: bytes) -> bytes | None:
        """Return the value of an entry for which there is a row, both as they are stored; None: it is deleted.

        Raises ConfigError: the row says something else than JSON shows of the value, which JSON can't hold.
        """
        if row == stored:
            return stored
        value = self._decoder.decoded([stored])[0]
        try:
            fields = self._decoder.shown("value", value, key)
        except ConfigError:  # no row says what is shown of it
            return row
        if row is None:  # which is what is shown of some values, too
            return stored if value is None or all(each is None for each in fields) else None
        shown, now = self.thing("value", fields), self._decoder.decoded([row])[0]
        again = self._spaced.encode_value(shown)
        if again == unwrap(stored)[1]:
            return row
        if again == unwrap(row)[1] or (type(now) is type(shown) and now == shown):
            return stored
        if self.form.value is None:
            raise ConfigError(
                f"write: the value of {self._spaced.decode_key(key)!r} is {value!r:.200}, which JSON can't hold, "
                f"and would become {now!r:.200}. {_remedy(self.form.value, 'value')}; nothing was changed"
            )
        return row

    def _shown(self, part: str, thing: Any, key: bytes) -> Any:
        """Return what a row says that was made of a key or a value."""
        return self.thing(part, self._decoder.shown(part, thing, key))


def _remedy(declared: pa.Schema | None, part: str) -> str:
    if declared is None:
        return f'Say what it is with schema={{"{part}": "{part} timestamp"}} or another type, or leave the row out'
    return f"Give the type that the {part}s have in schema=, or leave the row out"
