"""Spark's own part of the checkpoint: compared with our log, and mended from it.

Spark renames its files into place without fsync, so a crash can lose the newest. A batch that came back with other
offsets would be another transaction under the same txid; our log has the text of the last two and writes it back. What
the sources keep for themselves it does not have: see `durable`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import uuid
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from statefx.coordinator import checkpoint
from statefx.coordinator.checkpoint import Folders
from statefx.coordinator.engine import RenewInputError
from statefx.coordinator.fold import LogState
from statefx.coordinator.records import StreamInput
from statefx.errors import CheckpointMismatchError

logger = logging.getLogger("statefx")

_LISTED = re.compile(r'\{"logOffset":(\d+)\}')
"""The offset of a file source: the number of a list of files in its own log, ``sources/<source>/<number>``."""


def query_id(folders: Folders) -> str | None:
    """Return the id of the Spark query that wrote this part, or None if there is none yet."""
    try:
        with open(os.path.join(folders.spark, "metadata"), encoding="utf-8") as file:
            return str(json.load(file)["id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        path = os.path.join(folders.spark, "metadata")
        raise CheckpointMismatchError(
            f"{path} can't be read ({error}): restore Spark's part of the checkpoint from a copy", path=path
        ) from error


def read(folders: Folders, batch_id: int) -> str:
    """Return the text of one batch's offsets, as Spark wrote it."""
    with open(_path(folders, batch_id), encoding="utf-8") as file:
        return file.read()


def check_planned(folders: Folders, source: StreamInput, query: StreamingQuery) -> None:
    """Refuse a batch that was planned by other offsets than those on disk.

    A driver that is being replaced may plan the same batch at the same moment, and rename its offsets over ours.

    Raises
    ------
    RenewInputError
        Started again, Spark's query takes the batch as it is on disk.
    """
    execution: Any = query._jsq.streamingQuery()
    planned = execution.getLatestExecutionContext()
    known = [f'"batchTimestampMs":{planned.offsetSeqMetadata().batchTimestampMs()}']
    ends = planned.endOffsets().valuesIterator()
    while ends.hasNext():
        known.append(str(ends.next().json()))
    if query_id(folders) != source.query_id or any(one not in source.offsets for one in known):
        raise RenewInputError(
            f"batch {source.batch_id} was planned with other offsets than those in {_path(folders, source.batch_id)}: "
            "another driver has written there"
        )


def check(folders: Folders, state: LogState) -> None:
    """Refuse a checkpoint whose Spark part was lost, belongs to another query or is ahead; changes nothing.

    Raises
    ------
    CheckpointMismatchError
        Names both sides and the remedy, or what is missing.
    """
    ahead = max(_numbers(os.path.join(folders.spark, "commits")), default=-1) + 1
    if ahead > state.committed:  # a driver that is still at work may have committed it since the log was read
        state = checkpoint.look(folders)
    if ahead > state.committed:
        raise CheckpointMismatchError(
            f"Spark's part of the checkpoint, {folders.spark}, has gone on to transaction {ahead}, but the transaction "
            f"log in {folders.log} ends with transaction {state.committed}: it was lost, or replaced by an older copy. "
            f"Restore {folders.log} and {folders.state}, or start with a new checkpointLocation (and an empty state).",
            path=folders.log,
            found=state.committed,
            wanted=ahead,
        )
    known = _known(state)
    if not known:
        return
    found = query_id(folders)
    wanted = known[-1].query_id
    if found != wanted:
        what = "is missing" if found is None else f"is of query {found}"
        raise CheckpointMismatchError(
            f"Spark's part of the checkpoint, {folders.spark}, {what}, but the transaction log has committed "
            f"transaction {state.committed} of query {wanted}. Restore {folders.spark} from a copy made with the rest, "
            "or start with a new checkpointLocation (and an empty state).",
            path=folders.spark,
            found=found,
            wanted=wanted,
        )
    for source in [source for source in known if source.batch_id < _undecided(state)][-1:]:
        lost = _lost_list(folders, source.offsets)
        if lost is not None:
            raise CheckpointMismatchError(
                f"{lost} is missing: the list of the files that transaction {source.batch_id + 1} has read. Without it "
                f"Spark would read them again. Restore {folders.spark} from a copy made with the rest, or start with a "
                "new checkpointLocation (and an empty state).",
                path=lost,
                txid=source.batch_id + 1,
            )


def restore(folders: Folders, state: LogState) -> list[int]:
    """Write back the offsets of batches that Spark lost or holds differently; return their ids.

    A batch that is not decided and has lost what a source kept for it could never be run again: its offsets are taken
    away instead, so that Spark plans it anew. Spark's notes of what it has committed are taken away where they were
    damaged: it runs the last batch again, which is passed over.
    """
    mended = []
    undecided = _undecided(state)
    for source in _known(state):
        if source.batch_id == undecided and _lost_list(folders, source.offsets) is not None:
            continue
        try:
            if read(folders, source.batch_id) == source.offsets:
                continue
        except (FileNotFoundError, UnicodeDecodeError):
            pass
        _write(_path(folders, source.batch_id), source.offsets)
        mended.append(source.batch_id)
    _drop_if_lost(folders, undecided)
    commits = os.path.join(folders.spark, "commits")
    for number in sorted(_numbers(commits), reverse=True):
        if _size_bytes(os.path.join(commits, str(number))):
            break
        _drop(os.path.join(commits, str(number)))
    return mended


def _known(state: LogState) -> list[StreamInput]:
    """Inputs that the log can vouch for, by batch id."""
    given = [state.previous_input, state.last_input, *(entry.input for entry in state.in_flight)]
    return [source for source in given if isinstance(source, StreamInput)]


def _undecided(state: LogState) -> int:
    """Return the first batch that may still be another one: the one after those committed or COMMITTING."""
    return state.committed + (state.committing is not None)


def _lost_list(folders: Folders, offsets: str) -> str | None:
    """Return the list of files that a batch with these offsets needs of a file source, if it is not there."""
    for number, line in enumerate(offsets.splitlines()[2:]):  # after version and metadata, one line a source
        found = _LISTED.fullmatch(line)
        folder = os.path.join(folders.spark, "sources", str(number))
        if found and not _holds(folder, int(found[1])):
            return os.path.join(folder, found[1])
    return None


def _holds(folder: str, number: int) -> bool:
    """Tell whether the log of a file source holds a list, by itself or in a later list of all until then."""
    for name in _names(folder):
        own, _, kind = name.partition(".")
        if not own.isdecimal() or kind not in ("", "compact"):
            continue
        covers = int(own) == number or (kind == "compact" and int(own) > number)
        if covers and _size_bytes(os.path.join(folder, name)):
            return True
    return False


def _drop_if_lost(folders: Folders, batch_id: int) -> None:
    """Take away the offsets of an undecided batch that are damaged, or that name what a source has lost."""
    path = _path(folders, batch_id)
    try:
        text = read(folders, batch_id)
    except FileNotFoundError:
        return
    except UnicodeDecodeError:
        text = ""
    if text.startswith("v") and _lost_list(folders, text) is None:
        return
    _drop(path)


def _drop(path: str) -> None:
    logger.warning("%s was damaged by a crash of the machine: it is taken away, and Spark makes it anew", path)
    _forget_checksum(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _numbers(folder: str) -> list[int]:
    """Return the batches that one of Spark's logs holds."""
    return [int(name) for name in _names(folder) if name.isdecimal()]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _size_bytes(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def _path(folders: Folders, batch_id: int) -> str:
    return os.path.join(folders.spark, "offsets", str(batch_id))


def _write(path: str, text: str) -> None:
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _forget_checksum(path)
    os.replace(temporary, path)


def _forget_checksum(path: str) -> None:
    """Remove the checksum that Hadoop keeps beside a file."""
    folder, name = os.path.split(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, f".{name}.crc"))
