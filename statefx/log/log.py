"""The transaction log: numbered, immutable records, each won by exactly one writer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple, Never
from uuid import uuid4

from statefx.errors import (
    AlreadyExistsError,
    CheckpointError,
    FencedError,
    LogOutcomeUnknownError,
    NotWrittenError,
    OutcomeUnknownError,
    StateCorruptedError,
    StatefxError,
    StatePhaseError,
)
from statefx.log.beside import Files, compacted, named_files, put_aside, written_files
from statefx.log.entries import (
    FENCING,
    FIRST,
    FOLDED,
    FOLDER,
    Entry,
    as_read,
    check_size,
    digest,
    entry_name,
    entry_of,
    folded_mark,
    followers_kept,
    kinds_of,
    numbers,
    read_entries,
    text_of,
)
from statefx.protocol.log_rules import apply, checkpoint
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Checkpoint, Preparing, Record
from statefx.storage import Storage, sync_secs

RECORDS_BEFORE_CHECKPOINT = 100


class Writing(NamedTuple):
    """An append that is under way."""

    kind: str
    """Of the record."""
    since: float
    """In seconds since the epoch."""


class TransactionLog:
    """The log of one checkpoint, open for appending.

    Opening reads and verifies the records and folds them. It takes no lock and fences nobody: a GENERATION record does.
    StateCorruptedError names a record that is damaged, missing, edited or misplaced, and the remedy;
    CheckpointFormatError one of another release.

    A driver that was replaced meets its successor at its very next append: the first thing that a successor appends,
    LINEAGE or GENERATION, has that number, and such records are never deleted. (With all old records folded away, a
    driver that had been asleep could win a number that was used before, and would have to list the log after every
    append to see it.) So nothing is folded before such a record: a CHECKPOINT would take its number, and go one day. A
    successor itself may have been asleep between its reading and that record, while the driver at work folded away what
    has its number: after this one record it looks whether anything that it had not read has been deleted.

    After `limit` records everything is folded into a CHECKPOINT and older records are deleted: before the next
    PREPARING alone, thus by a topology that runs, and in the thread that reads what spouts have said. RESTORED may name
    files of before, which a fold would delete; and what ends a transaction, or goes back, has to go where a fold finds
    damage. `clock` is in seconds since the epoch, for the records.

    * When `append` returns, the record is durable, no other writer has its number and no successor has been here.
    * When it raises, `state` is as before.
    * Numbers are never used again, also after records were deleted.
    * After an unknown outcome, a fence, a failed fsync or an interruption every further append is refused.
    """

    def __init__(
        self, storage: Storage, limit: int = RECORDS_BEFORE_CHECKPOINT, clock: Callable[[], float] = time.time
    ) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        self.storage = storage
        self.where = f"{storage.url}/{FOLDER}".rstrip("/")
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._refusal: StatefxError | None = None
        entries = read_entries(storage)
        self.state = _folded(storage, entries)
        self.number = entries[-1].number if entries else FIRST - 1
        self._previous = digest(entries[-1].data) if entries else ""
        self._unfolded = len(entries)
        self._first = entries[0] if entries else None
        self._kinds: dict[int, type[Record] | None] = {entry.number: type(entry.record) for entry in entries}
        self._marked = False
        self.appended: Callable[[str, int, float, float], None] = lambda kind, size_bytes, secs, synced_secs: None
        """Called with each record that is durable: its kind, its size, how long that took, and how much was fsync."""
        self.writing: Writing | None = None
        """The append that has not returned; another thread reads it."""

    def append(self, record: Record) -> int:
        """Make `record` durable as the next one and apply it to `state`; return its number.

        Nothing was written after StatePhaseError (the record can't follow `state`), TypeError (it holds what JSON does
        not) or CheckpointError (disk full, no permission, or larger than `RECORD_BYTES_MAX`). FencedError: another
        driver has written here; stop, do not retry. LogOutcomeUnknownError: it may have been written; end this driver,
        and the next one reads the real outcome.
        """
        with self._lock:
            self._check_usable()
            now = self._clock()
            with self._written(record.kind, now):
                return self._append_at(now, record)

    def _append_at(self, now: float, record: Record) -> int:
        time_ms, files = round(now * 1000), Files()
        record = put_aside(record, files)
        text = text_of(record)
        check_size(record, text, self.where)
        # Of what a reader will find in the bytes: else this driver and its successor might go on from two states.
        record = as_read(record, text)
        after = self._after(record, time_ms)
        if self._unfolded >= self._limit and isinstance(record, Preparing):
            self._fold(self._clock())
            after = self._after(record, time_ms)  # of the state that the fold has put together
        self._put(files)  # not before the fold, which would delete what no record names yet
        return self._append(record, after, text)

    def fold(self) -> None:
        """Append a CHECKPOINT and delete what is before it."""
        with self._lock:
            self._check_usable()
            now = self._clock()
            with self._written(Checkpoint.kind, now):
                self._fold(now)

    @contextmanager
    def _written(self, kind: str, since: float) -> Iterator[None]:
        self.writing = Writing(kind, since)
        try:
            yield
        finally:
            self.writing = None

    def check(self) -> None:
        """Raise FencedError if another driver has taken over by now."""
        with suppress(OSError):  # who can't see it learns it from the next record
            self.check_newest()

    def check_newest(self) -> None:
        """As `check`, before something is deleted; OSError if the store can't be asked."""
        with self._lock:
            self._check_usable()
            with suppress(FileNotFoundError):
                self.storage.read(entry_name(self.number + 1))
                self._fenced(self.number + 1)

    def _put(self, files: Files) -> None:
        try:
            for name, data in files.items():
                self.storage.put(name, data)
        except OSError as error:
            raise CheckpointError(f"nothing was appended to {self.where}: {error}", path=self.where) from error

    def _after(self, record: Record, time_ms: int) -> LogState:
        try:
            return apply(self.state, record, time_ms)
        except StateCorruptedError as error:
            raise StatePhaseError(f"{error.message}; nothing was written", kind=record.kind) from error

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.message, **self._refusal.data)

    def _append(self, record: Record, after: LogState, text: str) -> int:
        entry = entry_of(self.number + 1, self._previous, uuid4().hex, record, after.time_ms, text)
        # Rule 3.2: set before the write and taken back behind it, so that an interruption anywhere in between leaves
        # the outcome unknown, and nothing else is appended.
        self._refusal = LogOutcomeUnknownError(
            f"an append to {self.where} was interrupted; open the log again to see what it holds",
            path=self.where,
            number=entry.number,
        )
        began, synced = time.perf_counter(), sync_secs()
        self._create(entry)
        taken_secs, synced_secs = time.perf_counter() - began, sync_secs() - synced
        # Rule 3.3: any other record would have met a fencing record under its number. Only with these can a driver that
        # slept since it read the log win a number that was used.
        if isinstance(record, FENCING):
            self._check_followed(entry)
        self.state = after
        self.number = entry.number
        self._kinds[entry.number] = type(record)
        self._previous = digest(entry.data)
        self._unfolded += 1
        if isinstance(record, Checkpoint):
            self._first, self._unfolded = entry, 1
        self._refusal = None
        self.appended(record.kind, len(entry.data), taken_secs, synced_secs)
        return entry.number

    def _create(self, entry: Entry) -> None:
        try:
            self.storage.create(entry_name(entry.number), entry.data)
        except AlreadyExistsError as error:  # rule 3.1: who has the number goes on, whoever it is
            self._fenced(entry.number, error)
        except NotWrittenError as error:
            failure = CheckpointError(f"nothing was appended to {self.where}: {error.message}", path=self.where)
            # After a failed fsync the kernel may call lost pages clean: what is read back would prove nothing.
            self._refusal = None if error.usable else failure
            raise failure from error
        except OutcomeUnknownError as error:
            self._unknown(entry, error)

    def _check_followed(self, entry: Entry) -> None:
        """Make sure that a driver that takes over has not won a number that was used, and folded away, before.

        No listing tells that: the driver at work may append and fold on while the names are read (rule 3.4). But before
        the record that had this number was deleted, the CHECKPOINT that this driver has read was.
        """
        try:
            kept = followers_kept(self.storage, self._first)
        except OSError as error:
            self._unknown(entry, OutcomeUnknownError(f"whether its number was used before can't be read ({error})"))
        if not kept:
            self._fenced(entry.number)

    def _fenced(self, number: int, error: AlreadyExistsError | None = None) -> Never:
        self._refusal = FencedError(
            f"another driver has taken over {self.where}, or a tool that changes the checkpoint, such as restore or "
            f"rescale: record {number} is its own. This driver must stop.",
            path=self.where,
            number=number,
            generation=self.state.generation,
        )
        raise self._refusal from error

    def _unknown(self, entry: Entry, error: OutcomeUnknownError) -> Never:
        self._refusal = LogOutcomeUnknownError(
            f"record {entry.number} ({entry.record.kind}) may or may not have been appended: {error.message}. "
            "This driver stops; the next start reads the real outcome from the log.",
            path=self.where,
            number=entry.number,
        )
        raise self._refusal from error

    def _fold(self, now: float) -> None:
        """Append the CHECKPOINT, then delete older records, except those that fence drivers (see the class)."""
        state, aside = self.state, set[str]()
        with suppress(OSError):  # then it is done by the next fold
            if state.committed_metadata:  # rule 4.3: listed before the CHECKPOINT that proves who is the newest
                aside = written_files(self.storage)
            files = Files()
            together = compacted(self.storage, state, files)
            for name, data in files.items():
                self.storage.put(name, data)
            state = together
        state = replace(state, time_ms=round(now * 1000))
        folded = checkpoint(state)  # equal to what it was made of: it is not read back
        number = self._append(folded, state, text_of(folded))
        with suppress(OSError):  # the next fold deletes what is left
            self.storage.delete(sorted(aside.difference(ref.name for ref in named_files(self.state))))
            self._delete_before(number)
            self.storage.discard_unfinished(FOLDER)

    def _delete_before(self, number: int) -> None:
        """Delete what CHECKPOINT `number` stands for, in the order that `followers_kept` relies on."""
        old = [each for each in numbers(self.storage) if each < number]
        self._kinds |= kinds_of(self.storage, [each for each in old if each not in self._kinds])
        # Rule 3.3: the next number of every driver of before stays taken.
        stay = {each: kind for each in old if (kind := self._kinds[each]) is None or issubclass(kind, FENCING)}
        gone = [each for each in old if each not in stay]
        if gone and not self._marked:
            self.storage.put(FOLDED, folded_mark(each for each, kind in stay.items() if kind is not None))
            self._marked = True
        # in two steps, because a store may delete many names in any order
        self.storage.delete(entry_name(each) for each in gone if self._kinds[each] is Checkpoint)
        self.storage.delete(entry_name(each) for each in gone if self._kinds[each] is not Checkpoint)
        self._kinds = {each: kind for each, kind in self._kinds.items() if each >= number or each in stay}


def read_state(storage: Storage) -> LogState:
    """Read the folded log without writing anything, also while a driver appends and folds."""
    entries = read_entries(storage)
    if not entries:
        raise CheckpointError(f"there is no transaction log in {storage.url}: is the checkpointLocation right?")
    return _folded(storage, entries)


def _folded(storage: Storage, entries: list[Entry]) -> LogState:
    state = LogState()
    for entry in entries:
        try:
            state = apply(state, entry.record, entry.time_ms)
        except StateCorruptedError as error:
            path = f"{storage.url}/{entry_name(entry.number)}"
            message = f"transaction log record {path}: {error.message}. Restore the folder from a copy."
            raise StateCorruptedError(message, path=path, number=entry.number) from error
    return state
