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
import shutil
import uuid

from statefx.coordinator.generation import read_checkpoint
from statefx.coordinator.location import Folders
from statefx.errors import CheckpointError, CheckpointMismatchError
from statefx.protocol.log_state import LogState
from statefx.protocol.records import StreamInput
from statefx.spark import part

logger = logging.getLogger("statefx")

LOOK_TRIES = 10

_LISTED = re.compile(r'\{"logOffset":(\d+)\}')
"""The offset of a file source: the number of a list of files in its own log, ``sources/<source>/<number>``."""

_SNAPSHOTS = (".snapshot", ".zip")
"""How the names of snapshots end, by Spark's two state stores."""

_SCHEMAS = {"_metadata", "_stateSchema"}
"""Folders of what Spark writes about its own state before the first batch, and not again if it is there."""


_SCHEMA = re.compile(r'"(file:)?(?:[^"\\]|\\.)*/(state/\d+/_stateSchema/)')
"""The path of a schema, up to where it lies in Spark's part; Spark notes it in full, as JSON."""


def read(folders: Folders, batch_id: int) -> str:
    """Return the text of one batch's offsets, as Spark wrote it."""
    with open(_path(folders, batch_id), encoding="utf-8") as file:
        return file.read()


def lists(offsets: str) -> dict[int, int]:
    """Return, for each file source of a batch with these offsets, the number of the last list of files it reads."""
    lines = enumerate(offsets.splitlines()[2:])  # after version and metadata, one line a source
    found = {source: _LISTED.fullmatch(line) for source, line in lines}
    return {source: int(each[1]) for source, each in found.items() if each}


def wanted(state: LogState) -> str | None:
    """Return the id of the Spark query that the log knows, or None if there has been no transaction."""
    known = _known(state)
    return known[-1].query_id if known else None


def check(folders: Folders, state: LogState) -> None:
    """Refuse a checkpoint whose Spark part was lost, belongs to another query or is ahead; changes nothing.

    Raises
    ------
    CheckpointMismatchError
        Names both sides and the remedy, or what is missing.
    """
    seen = None
    for _ in range(LOOK_TRIES):
        live = part.live(folders, wanted(state), state.generation)
        try:
            _check(live, state)
        except CheckpointMismatchError:
            if seen == (live, state):
                raise
            seen = (live, state)
            state = read_checkpoint(folders)  # others may have gone on, or taken over, since it was read
        else:
            return
    _check(part.live(folders, wanted(state), state.generation), state)


def _check(folders: Folders, state: LogState) -> None:
    ahead = max(_numbers(os.path.join(folders.spark, "commits")), default=-1) + 1
    generation = part.number(folders)
    for what, gone, ends in (("transaction", ahead, state.committed), ("generation", generation, state.generation)):
        if gone > ends:
            raise CheckpointMismatchError(
                f"Spark's part of the checkpoint, {folders.spark}, has gone on to {what} {gone}, but the transaction "
                f"log in {folders.log} ends with {what} {ends}: it was lost, or replaced by an older copy. Restore "
                f"{folders.log} and {folders.state}, or start with a new checkpointLocation (and an empty state).",
                path=folders.log,
                found=ends,
                wanted=gone,
            )
    known = _known(state)
    if not known:
        return
    found = part.query_id(folders)
    if found != wanted(state):
        what = "is missing" if found is None else f"is of query {found}"
        raise CheckpointMismatchError(
            f"Spark's part of the checkpoint, {folders.spark}, {what}, but the transaction log has committed "
            f"transaction {state.committed} of query {wanted(state)}. Restore {folders.spark} from a copy made with "
            "the rest, or start with a new checkpointLocation (and an empty state).",
            path=folders.spark,
            found=found,
            wanted=wanted(state),
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
    away instead, so that Spark plans it anew. Other files that hold nothing are taken away where Spark makes them
    again, and would otherwise not start: its notes of what it has committed (it runs the last batch again, which is
    passed over), lists of files of batches that are not decided, schemas and snapshots of its own state, and its
    metadata before the first transaction. Paths that Spark notes in full (``transformWithState``) are made to point to
    where this part is now.

    While nothing is decided, Spark's part keeps only what tells what the first batch reads (see `_begin_anew`).

    Raises
    ------
    CheckpointError
        What is not to be kept can't be deleted.
    """
    mended = []
    undecided = _undecided(state)
    if undecided == 0:
        _begin_anew(folders)
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
    _drop_last_if_empty(os.path.join(folders.spark, "commits"))
    for name in _names(os.path.join(folders.spark, "sources")):
        _drop_last_if_empty(os.path.join(folders.spark, "sources", name))
    for folder, _, names in os.walk(os.path.join(folders.spark, "state")):
        schemas = not _SCHEMAS.isdisjoint(folder.split(os.sep))
        for name in names:
            path = os.path.join(folder, name)
            if not name.startswith(".") and (schemas or name.endswith(_SNAPSHOTS)) and not _size_bytes(path):
                _drop(path)
    metadata = os.path.join(folders.spark, "metadata")
    if wanted(state) is None and os.path.exists(metadata) and not _size_bytes(metadata):
        _drop(metadata)
    _point_to_schemas(folders)
    return mended


def _begin_anew(folders: Folders) -> None:
    """Take away what the first batch has left, but for its offsets: Spark makes all of it again.

    Spark begins only where ``offsets``, ``commits`` and ``state`` hold nothing, not even a temporary file of its own.
    Two schedules would otherwise end every later start: a kill while Spark writes the first offsets; and first offsets
    that have to be given up, after Spark's own operators have kept state. Nothing is decided, so all of this is of a
    batch that is run again from empty state. The sources keep theirs: one that begins with what is newest has noted
    there where that was.
    """
    offsets = os.path.join(folders.spark, "offsets")
    try:
        for name in ("commits", "state"):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(os.path.join(folders.spark, name))
        for name in _names(offsets):
            if name != "0":
                os.unlink(os.path.join(offsets, name))
    except OSError as error:
        raise CheckpointError(
            f"what a first transaction that was rolled back left in {folders.spark} can't be deleted ({error}): this "
            f"user must own what is in {folders.location}",
            path=folders.spark,
        ) from error


def _known(state: LogState) -> list[StreamInput]:
    """Inputs that the log can vouch for, by batch id."""
    given = [state.previous_input, state.last_input, *(entry.input for entry in state.in_flight)]
    return [source for source in given if isinstance(source, StreamInput)]


def _undecided(state: LogState) -> int:
    """Return the first batch that may still be another one: the one after those committed or COMMITTING."""
    return state.committed + (state.committing is not None)


def _lost_list(folders: Folders, offsets: str) -> str | None:
    """Return the list of files that a batch with these offsets needs of a file source, if it is not there."""
    for source, number in lists(offsets).items():
        folder = os.path.join(folders.spark, "sources", str(source))
        if not _holds(folder, number):
            return os.path.join(folder, str(number))
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


def _drop_last_if_empty(folder: str) -> None:
    """Take away the newest files of one of Spark's logs as long as they hold nothing; older ones were made durable."""
    numbered = {name: int(name.partition(".")[0]) for name in _names(folder) if name.partition(".")[0].isdecimal()}
    for name in sorted(numbered, key=numbered.__getitem__, reverse=True):
        if _size_bytes(os.path.join(folder, name)):
            break
        _drop(os.path.join(folder, name))


def _drop(path: str) -> None:
    logger.warning("%s was damaged by a crash of the machine: it is taken away, and Spark makes it anew", path)
    _forget_checksum(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _point_to_schemas(folders: Folders) -> None:
    """Mend the paths that Spark has noted before its part was renamed, or the checkpoint moved."""
    own = json.dumps(folders.spark)[1:-1]
    for operator in _names(os.path.join(folders.spark, "state")):
        notes = os.path.join(folders.spark, "state", operator, "_metadata", "v2")
        for path in (os.path.join(notes, name) for name in _names(notes) if name.isdecimal()):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            pointed = _SCHEMA.sub(lambda found: f'"{found[1] or ""}{own}/{found[2]}', text)
            if pointed != text:
                _write(path, pointed)


def _numbers(folder: str) -> list[int]:
    """Return the batches that one of Spark's logs holds."""
    return [int(name) for name in _names(folder) if name.isdecimal()]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
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
