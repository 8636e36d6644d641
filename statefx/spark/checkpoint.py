"""Spark's own checkpoint: a folder that each driver builds from the transaction log, and that no other driver reads.

It lies in a `RunFolder` of the driver, which ends with the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import NoReturn
from urllib.parse import unquote

from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError
from statefx.log.location import Folders
from statefx.log.log import TransactionLog
from statefx.log.takeover import check_newest
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Noted, StreamInput
from statefx.spark.source_notes import SourceFiles, last_read, lists_of
from statefx.state.contract.caches import cache_folder, own_folder
from statefx.storage import Storage

STAGED = "staged"
"""Of the folder for rows of DataFrames, below the machine's own."""

_SPARK = "spark"
_LOCK = "lock"
_CONTENT = "content"


def run_folder(kind: str, name: str) -> RunFolder:
    """Make a folder of this process alone below the machine's own; OSError if that can't be."""
    return RunFolder(os.path.join(own_folder(cache_folder()), kind), name)


def check_run_folders(*, streaming: bool, staged: bool) -> None:
    """Refuse a machine where the folders that a start needs can't be made: ConfigError names the folder.

    It makes them, before a generation is taken (rule 1.5): no other question tells of a full disk, or of a quota.
    """
    for kind in [_SPARK] * streaming + [STAGED] * staged:
        try:
            folder = run_folder(kind, "check")
            try:
                with open(os.path.join(folder.path, "check"), "wb") as file:
                    file.write(b"x")
            finally:
                folder.remove()
        except OSError as error:
            raise ConfigError(f"{not_made(error)}. Nothing was changed", path=error.filename) from error


def not_made(error: OSError) -> str:
    """Return what to do about a folder of this machine that could not be made."""
    return (
        f"a folder for what waits for its transaction can't be made on this machine: {error}. Make room there, or let "
        "this user write there; or name another place: set the environment variable TMPDIR to a local folder before "
        "Python starts, as in TMPDIR=/var/tmp"
    )


class RunFolder:
    """A folder of this process alone.

    Its process holds a lock on it, which the kernel takes away when the process has died, and not when it is merely
    stopped: so the folder of a driver that was replaced while it slept is left alone until it has ended. A process id
    would not do: it may be another process's by now, and means nothing in another container. Folders in `above` whose
    process has died are deleted first.
    """

    def __init__(self, above: str, name: str) -> None:
        os.makedirs(above, exist_ok=True)
        sweep(above)
        lock = None
        while lock is None:  # another process that begins may take it for a dead one's before it is locked
            self._root = tempfile.mkdtemp(prefix=f"{name}-", dir=above)
            lock = _lock(self._root)
        self._lock = lock
        # systemd-tmpfiles deletes below /tmp what was not used for days, a source's beginning first, and leaves alone
        # what lies in a locked folder. A shared lock, as NFS gives no other one on what is open for reading.
        self._folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            fcntl.flock(self._folder, fcntl.LOCK_SH)
        self.path = os.path.join(self._root, _CONTENT)
        os.mkdir(self.path)

    def remove(self) -> None:
        """Delete it; the next one that begins deletes what the JVM still writes there."""
        shutil.rmtree(self._root, ignore_errors=True)
        os.close(self._lock)
        os.close(self._folder)


def sweep(above: str) -> None:
    """Delete folders of processes that have died."""
    for name in os.listdir(above):
        root = os.path.join(above, name)
        with suppress(OSError):  # of another user
            lock = _lock(root) if os.path.isdir(root) else None
            if lock is not None:
                shutil.rmtree(root, ignore_errors=True)
                os.close(lock)


def _lock(root: str) -> int | None:
    """Lock a folder; return None if another process has it, or has deleted it.

    It never waits: a driver that was stopped while it begins would keep its successors from beginning.
    """
    path = os.path.join(root, _LOCK)
    with suppress(BlockingIOError, FileNotFoundError), ExitStack() as opened:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        opened.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # who had it may have deleted it, and another one may be there under its name: that one counts
        if os.path.samestat(os.fstat(lock), os.stat(path)):
            opened.pop_all()
            return lock
    return None


_NOTE = 'v1\n{"nextBatchWatermarkMs":0}'
"""Spark's note of an ended batch; without stateful operators of its own it has no use for a watermark."""


def query_id(state: LogState) -> str | None:
    """Return the id of the Spark query that the log knows, or None if there has been no transaction."""
    known = _known(state)
    return known[-1].query_id if known else None


def _known(state: LogState) -> list[StreamInput]:
    """Return the inputs that the log has, by batch id."""
    given = (state.previous_input, state.last_input, state.planned, *(entry.input for entry in state.in_flight))
    return [source for source in given if isinstance(source, StreamInput)]


def check_places(state: LogState, places: Sequence[tuple[int, str]], storage: Storage) -> None:
    """Refuse streams whose DataFrames read their sources in other places than the log knows them by (rule 3.15).

    `places` are from `internals.places_of`. Spark notices none of this where the last transaction had no rows, and
    would read all of a source again, or pass over some of it.
    """
    known = _known(state)
    if not known:
        return

    def refuse(what: str) -> NoReturn:
        raise CheckpointMismatchError(
            f"{what}, and how far each source was read is known by its place in the streams of the checkpoint in "
            f"{state.location}: go back to the former DataFrames, or start with a new checkpointLocation (and empty "
            "state)",
            location=state.location,
        )

    offsets, sources = known[-1].offsets, [source for source, _ in places]
    lines = offsets.rstrip("\n").split("\n")[2:]  # as Spark reads it: an offset may have other ends of lines in it
    if len(lines) != len(places):
        refuse(f"the DataFrames of the streams read {len(places)} sources, and did read {len(lines)}")
    if any(of != lines[sources.index(source)] for of, source in zip(lines, sources, strict=True)):
        refuse("several DataFrames read one source where they read several before")
    lists = lists_of(offsets, sources)
    last = last_read(state.notes, storage, lists)
    folders = {str(source): _folder_of(path) for source, path in places if path}
    for source, path in sorted(last.items()):
        if path is None:
            refuse("several DataFrames read sources of their own where they read one before")
        own = folders.get(source)
        others = [folder for other, folder in folders.items() if other != source and folder != own]
        if path and own and not _is_below(path, own) and (there := [one for one in others if _is_below(path, one)]):
            refuse(f"{own} is read in the place of {there[0]}")


def _folder_of(path: str) -> str:
    """Return a folder of files as the paths of its files begin in Spark's lists, but for the scheme of local ones."""
    if "://" in path or path.startswith("file:"):
        return re.sub("^file:/*", "/", path).rstrip("/")
    return os.path.abspath(path)


def _is_below(path: str, folder: str) -> bool:
    return re.sub("^file:/*", "/", unquote(path)).startswith(f"{folder}/")


class SparkCheckpoint:
    """Spark's record of a stream's progress, in a folder of this run alone (rule 3.7).

    Spark looks whether a file is there and then renames one over it, without fsync: two drivers could write over each
    other's files, and a crash of the machine could take any of them. Neither matters, because every start builds the
    folder from the log:

    =================  ==========================================================  ==================
    Spark's            what Spark's next batch needs of it                         durable with
    =================  ==========================================================  ==================
    ``metadata``       the query's id, by which a batch is told from another's     PREPARING
    ``offsets``        the text of the last two: where a batch begins and ends     PREPARING
    ``sources``        all that sources have written down, see `source_notes`      PREPARING, NOTED
    ``commits``        that the last batch has ended                               COMMITTED
    =================  ==========================================================  ==================

    PREPARING and not COMMITTING, though nothing is decided before that: the next attempt reads the same rows, also
    where another driver runs it. The folder is on the driver's machine: Spark's own stateful operators, whose tasks
    write state on any machine, are refused before a topology (`preflight.check_stream`).
    """

    def __init__(self, folders: Folders, log: TransactionLog, sources: Sequence[int]) -> None:
        self._folders = folders
        self._log = log
        self._numbers = sources
        self._local: RunFolder | None = None
        self._noting = threading.Lock()
        self.folder = ""

    def rebuild(self, compact_interval: int) -> None:
        """Build the folder; called once, when nothing is in flight any more.

        `compact_interval` is a setting of the session (`statefx.spark.source_notes.SETTING`). StateCorruptedError: what
        the log names is missing or damaged. FencedError: a newer generation has taken over. CheckpointError: the folder
        can't be made.
        """
        state = self._log.state
        try:
            self._local = run_folder(_SPARK, f"{state.lineage}-{state.generation}")
            self.folder = self._local.path
            for batch in range(max(0, state.committed - 2), state.committed):
                self._write(f"commits/{batch}", _NOTE)
            for source in _known(state):
                self._write("metadata", json.dumps({"id": source.query_id}))
                self._write(f"offsets/{source.batch_id}", source.offsets)
            self._sources = SourceFiles(os.path.join(self.folder, "sources"), self._log, self._numbers)
            self._sources.restore(state.notes)
            self._sources.compact(
                {each for given in _known(state) for each in lists_of(given.offsets, self._numbers)}, compact_interval
            )
        except OSError as error:
            # A successor may have deleted what is linked here: then this driver is fenced, and nothing is broken.
            check_newest(self._folders, state.generation)
            raise CheckpointError(f"for Spark's query, {not_made(error)}", path=self.folder) from error

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)

    def batch(self, query: str, batch_id: int) -> StreamInput:
        path = os.path.join(self.folder, "offsets", str(batch_id))
        try:
            with open(path, encoding="utf-8", newline="") as file:
                return StreamInput(query, batch_id, file.read())
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{path} is missing: what the next transaction reads. Who deletes in the folder of a query that is at "
                "work? Submit again",
                path=path,
            ) from error

    def with_notes(self, batch: StreamInput) -> StreamInput:
        """Return the batch as PREPARING holds it: with the new notes of its sources.

        CheckpointError: something that the batch needs can't be kept, and no transaction may begin. FencedError: a
        newer generation has taken over.
        """
        state = self._log.state
        before = next((source.offsets for source in _known(state) if source.batch_id < batch.batch_id), "")
        # Rule 3.7: with this record, since a driver that starts after it runs the batch again and reads no folder of
        # ours.
        with self._noting:
            notes = self._sources.of_batch(self._log.state.notes, batch.offsets, before)
        if os.path.isdir(os.path.join(self.folder, "state")):
            raise CheckpointError(
                "Spark keeps state before this topology, by an operator that statefx does not know: it would be lost "
                f"with {self.folder}, on this machine. Do that step in a bolt instead",
                path=self.folder,
            )
        return StreamInput(batch.query_id, batch.batch_id, batch.offsets, notes)

    def note(self) -> None:
        """Log where sources begin, if they have written notes between transactions (rule 3.8).

        A source that begins with what is newest may wait for hours for its first row, and its driver may die meanwhile.
        The next one must begin where this one did.
        """
        with self._noting:  # the record comes before that of a batch that is planned at this moment
            notes = self._sources.beginnings(self._log.state.notes)
            if notes.files or notes.aside:
                self._log.append(Noted(self._log.state.generation, notes))

    def remove(self) -> None:
        """Delete the folder where nobody needs it; called when Spark's query has ended."""
        if self._local is not None:
            self._local.remove()
            self._local = None
