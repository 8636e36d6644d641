"""The transaction log in a local folder: numbered, immutable records, each won by exactly one writer."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import Never
from uuid import uuid4

from statefx.coordinator.entries import (
    FIRST,
    Entry,
    as_read,
    digest,
    entry_of,
    entry_path,
    numbers,
    read_entries,
    read_entry,
)
from statefx.coordinator.fold import LogState
from statefx.coordinator.records import Checkpoint, Record
from statefx.errors import (
    CheckpointError,
    FencedError,
    LogOutcomeUnknownError,
    StateCorruptedError,
    StatefxError,
    StatePhaseError,
)

RECORDS_BEFORE_CHECKPOINT = 100

_REFUSED = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV)
)
_TEMPORARY = ".append-"


class TransactionLog:
    """The log of one checkpoint, open for appending.

    Opening creates the folder if need be, reads and verifies the records, folds them, and makes sure that what was
    read is durable. It takes no lock and fences nobody: a GENERATION record does.

    Parameters
    ----------
    folder : str
        ``<checkpointLocation>/transactions``.
    limit : int
        After so many records everything is folded into a CHECKPOINT and older files are deleted.

    Raises
    ------
    StateCorruptedError
        A record is damaged, missing, edited, or can't stand where it stands; names the file and the remedy.
    CheckpointFormatError
        A newer statefx wrote it.

    Contract
    --------
    * When `append` returns, the record is durable, no other writer has its number and no successor has been here.
    * When it raises, `state` is as before.
    * Numbers are never used again, also after files were deleted.
    * After an unknown outcome, a fence, a failed fsync or an interruption every further append is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = RECORDS_BEFORE_CHECKPOINT) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        self.folder = os.fspath(folder)
        self._limit = limit
        self._lock = threading.Lock()
        self._refusal: StatefxError | None = None
        _make_folder(self.folder)
        entries = read_entries(self.folder)
        _fsync_folder(self.folder)
        self.state = _folded(self.folder, entries)
        self.number = entries[-1].number if entries else FIRST - 1
        self._previous = digest(entries[-1].data) if entries else ""
        self._unfolded = len(entries)

    def append(self, record: Record) -> int:
        """Make `record` durable as the next one and apply it to `state`; return its number.

        Raises
        ------
        StatePhaseError
            The record can't follow `state`; nothing was written.
        TypeError
            It holds something that JSON does not; nothing was written.
        CheckpointError
            Known not to have been written (disk full, no permission).
        FencedError
            Another driver has written here: stop, do not retry. The record may stand in the log all the same.
        LogOutcomeUnknownError
            It may have been written: end this driver; the next one reads what is true.
        """
        with self._lock:
            self._check_usable()
            record = as_read(record)
            after = self._after(record)
            if self._unfolded >= self._limit and not isinstance(record, Checkpoint):
                self._fold()
            return self._append(record, after)

    def fold(self) -> None:
        """Append a CHECKPOINT and delete what is before it."""
        with self._lock:
            self._check_usable()
            self._fold()

    def _after(self, record: Record) -> LogState:
        try:
            return self.state.apply(record)
        except StateCorruptedError as error:
            raise StatePhaseError(f"{error.message}; nothing was written", kind=record.kind) from error

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.message, **self._refusal.data)

    def _append(self, record: Record, after: LogState) -> int:
        entry = entry_of(self.number + 1, self._previous, uuid4().hex, record)
        self._refusal = LogOutcomeUnknownError(
            f"an append to {self.folder} was interrupted; open the log anew to see what it holds",
            path=self.folder,
            number=entry.number,
        )
        temporary = os.path.join(self.folder, f"{_TEMPORARY}{entry.number:020d}-{entry.nonce}")
        self._write(temporary, entry)
        self._link(temporary, entry)
        self._settle(entry)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        self.state = after
        self.number = entry.number
        self._previous = digest(entry.data)
        self._unfolded = 1 if isinstance(record, Checkpoint) else self._unfolded + 1
        self._refusal = None
        return entry.number

    def _write(self, temporary: str, entry: Entry) -> None:
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            self._not_written(error, usable=True)
        try:
            left = memoryview(entry.data)
            while left:
                left = left[os.write(file, left) :]
        except OSError as error:
            self._not_written(error, usable=True, temporary=temporary)
        else:
            try:
                os.fsync(file)
            except OSError as error:
                self._not_written(error, usable=False, temporary=temporary)
        finally:
            os.close(file)

    def _not_written(self, error: OSError, usable: bool, temporary: str | None = None) -> Never:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        hint = " (the file system must have hard links)" if error.errno in (errno.EPERM, errno.ENOTSUP) else ""
        failure = CheckpointError(f"nothing was appended to {self.folder}: {error}{hint}", path=self.folder)
        self._refusal = None if usable else failure
        raise failure from error

    def _link(self, temporary: str, entry: Entry) -> None:
        """Take the number; whatever the call says, the file under the number decides."""
        try:
            os.link(temporary, entry_path(self.folder, entry.number))
        except OSError as error:
            try:
                found = read_entry(self.folder, entry.number)
            except FileNotFoundError:
                self._absent(temporary, entry, error)
            except (OSError, StateCorruptedError) as unreadable:
                self._unknown(entry, unreadable)
            if found.data != entry.data:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                self._fenced(entry, f"record {entry.number} is another driver's")

    def _absent(self, temporary: str, entry: Entry, error: OSError) -> Never:
        try:
            newest = max(numbers(self.folder), default=0)
        except OSError as unlisted:
            self._unknown(entry, unlisted)
        if newest >= entry.number:
            self._fenced(entry, f"the log has gone on to record {newest}")
        if error.errno in _REFUSED:
            self._not_written(error, usable=True, temporary=temporary)
        self._unknown(entry, error)

    def _settle(self, entry: Entry) -> None:
        """Make the name durable, then look whether a successor has been here."""
        try:
            _fsync_folder(self.folder)
            newest = numbers(self.folder)[-1]
        except OSError as error:
            self._unknown(entry, error)
        if newest > entry.number:
            self._fenced(entry, f"record {entry.number} was won, but the log had gone on to {newest}")

    def _fenced(self, entry: Entry, what: str) -> Never:
        self._refusal = FencedError(
            f"another driver has taken over {self.folder}: {what}. This one must stop.",
            path=self.folder,
            number=entry.number,
            generation=self.state.generation,
        )
        raise self._refusal

    def _unknown(self, entry: Entry, error: Exception) -> Never:
        self._refusal = LogOutcomeUnknownError(
            f"record {entry.number} ({entry.record.kind}) may or may not have been appended to {self.folder}: {error}. "
            "This driver must end; the next start reads what is true.",
            path=self.folder,
            number=entry.number,
        )
        raise self._refusal from error

    def _fold(self) -> None:
        """Append the CHECKPOINT, then delete in ascending order: a crash leaves a tail that readers pass over."""
        checkpoint = self.state.checkpoint()
        number = self._append(checkpoint, self.state.apply(checkpoint))
        for old in numbers(self.folder):
            if old < number:
                with contextlib.suppress(OSError):
                    os.unlink(entry_path(self.folder, old))
        for name in os.listdir(self.folder):
            if name.startswith(_TEMPORARY) and name < f"{_TEMPORARY}{number:020d}":
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.folder, name))


def read_state(folder: str | os.PathLike[str]) -> LogState:
    """Read the folded log without writing anything, also while a driver appends and folds.

    Raises
    ------
    CheckpointError
        There is no transaction log here.
    StateCorruptedError, CheckpointFormatError
        As for `TransactionLog`.
    """
    path = os.fspath(folder)
    try:
        entries = read_entries(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"there is no transaction log in {path}: is the checkpointLocation right?") from error
    return _folded(path, entries)


def _folded(folder: str, entries: list[Entry]) -> LogState:
    state = LogState()
    for entry in entries:
        try:
            state = state.apply(entry.record)
        except StateCorruptedError as error:
            path = entry_path(folder, entry.number)
            message = f"transaction log record {path}: {error.message}. Restore the folder from a copy."
            raise StateCorruptedError(message, path=path, number=entry.number) from error
    return state


def _make_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        os.makedirs(folder, exist_ok=True)
        _fsync_folder(os.path.dirname(os.path.abspath(folder)))


def _fsync_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
