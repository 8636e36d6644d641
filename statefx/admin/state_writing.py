"""Writes rows into the committed state of a bolt, while its topology stands still: all of them or none.

::

    1 what can be refused is
    2 every key that is there is shown to lie in the task that its grouping names, so that new ones can be sent there
    3 the next generation: who ran before is fenced
    4 each task's entries and its rows are merged into one file of state, which is read back and compared
    5 RESCALED is durable: the bolt has as many tasks as before, and these files
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from statefx.admin.narrowing import as_key
from statefx.admin.progress import Metered, ProgressMeter
from statefx.admin.reading import Progress, check_idle, codec_of, component_of, counted, open_task
from statefx.admin.routing import GroupingKey, Router, check_grouping, router_of
from statefx.admin.row_comparison import RowComparison
from statefx.admin.runs import Run
from statefx.admin.savepoints import fence, found_checkpoint, provider_of, taken
from statefx.admin.task_writing import TaskWriter, new_names, unless_overtaken
from statefx.coordinator.location import Folders
from statefx.errors import CheckpointError, CodecError, ConfigError
from statefx.operators.state_schema import Form
from statefx.protocol.identity import TaskId
from statefx.protocol.log_rules import pin_of, with_names
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Rescaled
from statefx.state.contract.spaces import Space, end_of
from statefx.state.contract.store import StateProvider, StateStore
from statefx.state.encoding.codec import Codec
from statefx.state.encoding.envelope import wrap
from statefx.state.encoding.options import Encoding
from statefx.state.view.changes import codec_for

logger = logging.getLogger("statefx")

MODES = ("merge", "overwrite")

_BATCH_ROWS = 8192

_PASSES = 3
"""State is read to show where keys belong and what rows change, written, and read back."""

Encoded = tuple[int, bytes, bytes | None]
"""The task of an entry, its key as it is stored, and its value; None deletes."""

_USER = Space.USER.value

_DELETED, _KEPT = b"", b"+"
"""How the value of a row begins in a temporary file."""


@dataclass(frozen=True)
class Written:
    """What `writeState` has done.

    Attributes
    ----------
    component : str
    rows : int
        Rows that were written, without those that delete.
    deleted : int
        Rows whose value is null.
    keys, bytes : int
        How many entries the bolt's tasks have now, with those in maps and timers, and the size of keys and values.
    """

    component: str
    rows: int
    deleted: int
    keys: int
    bytes: int

    def __str__(self) -> str:
        deleted = f", {counted(self.deleted, 'key')} deleted" if self.deleted else ""
        verb = "was" if self.rows == 1 else "were"
        return f"{counted(self.rows, 'row')} {verb} written to {self.component}{deleted}; it has {self.keys} now"


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
        """Yield the entries of rows that have the columns `columns`.

        Raises ConfigError: a key or a value is none that the bolt can keep; names it.
        """
        spaced, _ = codec_for(self.codec or self.encoding.build(), _USER)
        columns = [column.to_pylist() for column in batch.columns]
        width = len(self.form.fields("key"))
        for row in zip(*columns, strict=True):
            key, value = self.thing("key", row[:width]), self.thing("value", row[width:])
            deletes = all(each is None for each in row[width:])
            try:
                stored = spaced.encode_key(key)
                data = None if deletes else wrap(self.state_version, spaced.encode_value(value))
            except CodecError as error:
                raise ConfigError(
                    f"writeState: {self.component!r} can't keep key {key!r} with value {value!r:.200}: {error.message}"
                ) from error
            try:
                yield self.router.task_of(key, self.tasks), stored, data
            except CheckpointError as error:
                raise CheckpointError(
                    f"{error.message}. That is the row with key {key!r} and value {value!r:.200}", **error.data
                ) from error

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
                f"writeState: {text!r:.200} in column {part!r} is no JSON: give the types of key and value with "
                "schema=, or JSON text"
            ) from error
        return as_key(found) if part == "key" else found


def state_writer(
    checkpointLocation: str | os.PathLike[str],
    component: str,
    mode: str,
    schema: Mapping[str, Any] | None,
    groupingKey: GroupingKey | None,
    config: Mapping[str, Any] | None,
    codec: Codec | None,
) -> StateWriter:
    """Check the arguments of ``statefx.writeState``; changes nothing."""
    if mode not in MODES:
        raise ConfigError(f"writeState: mode must be 'merge' or 'overwrite', got {mode!r}")
    if groupingKey is not None and not callable(groupingKey):
        raise ConfigError(f"writeState: groupingKey must be a function of a key, got {groupingKey!r}")
    Form.parse(schema)
    folders, found = found_checkpoint(checkpointLocation)
    form = Form.parse(schema, component_of(found, component, folders).schemas.get(""))
    return StateWriter(folders, found, provider_of(found, config), component, mode, form, groupingKey, codec)


@dataclass
class StateWriter:
    """One writing."""

    folders: Folders
    found: LogState
    provider: StateProvider
    component: str
    mode: str
    form: Form
    grouping_key: GroupingKey | None
    codec: Codec | None
    encoder: Encoder = field(init=False)
    _comparison: RowComparison = field(init=False)

    def __post_init__(self) -> None:
        known = self.found.topology.stateful[self.component]
        if self.found.committed == 0 or not self.found.holds(self.component):
            raise CheckpointError(
                f"writeState: {self.component!r} in {self.folders.location} has committed nothing yet: run its "
                "topology once over any input, stop it, and write then",
                component=self.component,
            )
        check_grouping(self.component, known, "written to")
        router = router_of(self.component, known, self.grouping_key, self.codec, "written to")
        self.encoder = Encoder(
            self.component, self.form, Encoding(known.encoding), self.codec, known.state_version, known.parallelism,
            router,
        )  # fmt: skip
        codec = codec_of(self.component, known, self.codec)
        self._comparison = RowComparison(self.component, self.form, codec, known.state_version, self.encoder.thing)

    def check_columns(self, found: Sequence[str]) -> list[str]:
        """Return the columns that are read; ConfigError if one of them is lacking."""
        columns = self.encoder.columns
        if lacking := [name for name in columns if name not in found]:
            raise ConfigError(
                f"writeState: there is no column {lacking[0]!r}: there are {list(found)}, and the columns of key and "
                f"value are {columns}. Rename some, or say with schema= what they are"
            )
        return columns

    def write_table(self, table: pa.Table, progress: Progress | None = None) -> Written:
        """Write rows that are in memory, without Spark; raises as `write`."""
        batches = table.select(self.check_columns(table.column_names)).to_batches(_BATCH_ROWS)
        encoded = [each for batch in batches for each in self.encoder.encode(batch)]
        return self.write(sorted(encoded, key=itemgetter(0, 1)), progress)

    def write(self, entries: Iterable[Encoded], progress: Progress | None = None) -> Written:
        """Write `entries`, which are in order of task and key.

        `progress` is told the bytes of the bolt's state that were read, written and read back, and about how many there
        are.

        Raises
        ------
        ConfigError
            Two rows have one key.
        CheckpointError
            As of ``statefx.writeState``.
        """
        # Rule 1.5: what can refuse comes before the generation is taken. `_check_same` sees to it that it still holds.
        check_idle(self.found, self.folders, "write")
        tasks = self.found.topology.stateful[self.component].parallelism
        meter = ProgressMeter.of(progress, pin_of(self.found), _PASSES, [self.component])
        with tempfile.TemporaryDirectory(prefix="statefx-write-", ignore_cleanup_errors=True) as folder:
            runs, rows, deleted = self._spooled(entries, folder)
            deleted -= self._prove(self.found, runs, meter)
            log = taken(self.folders, "write", self._check_same)
            state = log.state
            names = new_names(self.provider, state, [self.component])
            target = with_names(state, names)
            fence(self.provider, self.folders, state)
            writer = TaskWriter(self.folders.storage, self.provider, meter.blocks)
            with unless_overtaken(self.folders, state):
                for task in range(tasks):
                    id = TaskId(self.component, task)
                    with closing(open_task(self.provider, self.folders, state, *id)[0]) as store:
                        merged = _Merged(store, runs.get(task, ()), self.mode == "overwrite", self._comparison)
                        writer.write(target, id, tasks, merged, folder)
            own = writer.done
            log.append(Rescaled(state.generation, {self.component: tasks}, own.tokens, own.sizes, names))
        done = Written(self.component, rows, deleted, own.keys, own.bytes)
        logger.info("%s: %s", self.folders.location, done)
        meter.end()
        return done

    def _check_same(self, state: LogState) -> None:
        if state.heads != self.found.heads:
            raise CheckpointError(
                f"the checkpoint in {self.folders.location} has gone on since writeState was called: stop its "
                "topology, and write then",
                path=self.folders.location,
            )

    def _spooled(self, entries: Iterable[Encoded], folder: str) -> tuple[dict[int, Run], int, int]:
        """Put the entries of each task into a temporary file; return these, and how many write and delete."""
        runs: dict[int, Run] = {}
        rows = deleted = 0
        last: bytes | None
        for task, own in groupby(entries, key=itemgetter(0)):
            with ExitStack() as stack:
                run = runs[task] = Run(os.path.join(folder, f"rows-{task}"), stack)
                last = None
                for _, key, value in own:
                    if key == last:
                        raise ConfigError(
                            f"writeState: two rows have the key {self._shown(key)}: one of them would be lost"
                        )
                    last = key
                    run.add(key, _DELETED if value is None else _KEPT + value)
                    rows, deleted = rows + (value is not None), deleted + (value is None)
        return runs, rows, deleted

    def _shown(self, key: bytes) -> str:
        known = self.found.topology.stateful[self.component]
        return repr(codec_for(codec_of(self.component, known, self.codec), _USER)[0].decode_key(key))

    def _prove(self, state: LogState, runs: Mapping[int, Run], meter: ProgressMeter) -> int:
        """Show that each key of the bolt's own lies where its grouping says, and that rows write what they say.

        Rows will be sent by the same rule. Returns how many rows do not delete though they have no value.
        """
        tasks = state.topology.stateful[self.component].parallelism
        router, kept = self.encoder.router, 0
        for task in range(tasks):
            with closing(open_task(self.provider, self.folders, state, self.component, task)[0]) as store:
                own = Metered(store, meter)
                rows = _Merged(own, runs.get(task, ()), self.mode == "overwrite", self._comparison)
                if tasks > 1:
                    router.route(rows.compared(), task, tasks, [_NOWHERE] * tasks)
                else:  # whatever the key, there is no other
                    deque(rows.compared(), 0)
                kept += rows.kept
        self._comparison.check_keys(key for run in runs.values() for key, _ in run)
        if tasks > 1:
            router.check_proof(tasks)
        return kept


class _Nowhere:
    def add(self, key: bytes, value: bytes) -> None:
        """Take an entry and forget it."""


_NOWHERE = _Nowhere()


@dataclass
class _Merged:
    """What a task keeps, with rows in place of the bolt's own entries of the same keys, or of all of them."""

    store: StateStore | Metered
    rows: Iterable[tuple[bytes, bytes]]
    overwrite: bool
    comparison: RowComparison
    kept: int = field(default=0, init=False)
    """Rows without a value that delete nothing: null is what is shown of the value."""

    def scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries in key order."""
        for key, row, stored in self._both(None, None):
            if row is not None:
                value = self._merged(key, row, stored)
                if value is not None:
                    yield key, value
            elif stored is not None and not (self.overwrite and key[:1] == _USER):
                yield key, stored

    def compared(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the bolt's own entries as they are; ConfigError for a row that would write something else than said."""
        for key, row, stored in self._both(_USER, end_of(_USER)):
            if stored is not None:
                self.comparison.look_at(key)
                if row is not None:
                    self.kept += self._merged(key, row, stored) is not None and row == _DELETED
                yield key, stored

    def _merged(self, key: bytes, row: bytes, stored: bytes | None) -> bytes | None:
        value = None if row == _DELETED else row[len(_KEPT) :]
        return value if stored is None else self.comparison.merged(key, value, stored)

    def _both(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
        """Yield each key with its row and with what is stored, of which one may be None."""
        both = heapq.merge(
            ((key, 0, value) for key, value in self.rows),
            ((key, 1, value) for key, value in self.store.scan(start, stop)),
            key=_place,
        )
        for key, same in groupby(both, key=itemgetter(0)):
            found = {place: value for _, place, value in same}
            yield key, found.get(0), found.get(1)


_place = itemgetter(0, 1)
