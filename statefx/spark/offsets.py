"""Spark's own part of the checkpoint: compared with our log, and mended from it.

Spark renames its offsets into place without fsync, so a crash can lose the newest. A batch that came back with other
offsets would be another transaction under the same txid; our log has the text of the last two and writes it back.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid

from statefx.coordinator.checkpoint import Folders
from statefx.coordinator.fold import LogState
from statefx.coordinator.records import StreamInput
from statefx.errors import CheckpointMismatchError


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


def check(folders: Folders, state: LogState) -> None:
    """Refuse a checkpoint whose Spark part was lost, belongs to another query or is ahead; changes nothing.

    Raises
    ------
    CheckpointMismatchError
        Names both sides and the remedy.
    """
    ahead = max(_numbers(os.path.join(folders.spark, "commits")), default=-1) + 1
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


def restore(folders: Folders, state: LogState) -> list[int]:
    """Write back the offsets of batches that Spark lost or holds differently; return their ids."""
    mended = []
    for source in _known(state):
        try:
            if read(folders, source.batch_id) == source.offsets:
                continue
        except (FileNotFoundError, UnicodeDecodeError):
            pass
        _write(_path(folders, source.batch_id), source.offsets)
        mended.append(source.batch_id)
    return mended


def _known(state: LogState) -> list[StreamInput]:
    """Inputs that the log can vouch for, by batch id."""
    given = [state.previous_input, state.last_input, *(entry.input for entry in state.in_flight)]
    return [source for source in given if isinstance(source, StreamInput)]


def _numbers(folder: str) -> list[int]:
    """Return the batches that one of Spark's logs holds."""
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]
    except FileNotFoundError:
        return []


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
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, f".{name}.crc"))
    os.replace(temporary, path)
