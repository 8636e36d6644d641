"""What Spark's own stateful operators keep (``dropDuplicates``, aggregations, joins before a bolt).

Their tasks write it, on any machine, so Spark's folder lies in the checkpoint then: ``spark-<generation>``. No driver
writes into the folder of another. One that starts begins with links to the files of the folder that the log names as
that of the last committed transaction; Spark writes a file once, under a name of its own or over another. So nobody
reads what an older driver still writes, nothing has to be fenced, and a driver that dies while it begins has changed
nothing. The alternative, to rename the folder, needed a search for what had become of it wherever two drivers met.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from zlib import crc32

from statefx.coordinator.generation import read_checkpoint
from statefx.coordinator.location import Folders
from statefx.errors import CheckpointError, CheckpointMismatchError
from statefx.protocol.log_state import LogState
from statefx.protocol.records import StreamInput

LOOK_TRIES = 10

_AT_ONCE = 16
"""Files that are synced at the same time have their journal written once."""

_CHANGES = (".delta", ".changelog")
"""How the names of files end that alone bring a store of Spark's from the version before to theirs."""

_LISTED_EVERY = 8
"""A store is listed at every so many versions, its snapshots come to light then. Before they are needed instead of the
changes, Spark keeps these for 100 versions more."""

_NAME = re.compile(r"spark-([1-9]\d*)")

_SCHEMA = re.compile(r'"(file:)?(?:[^"\\]|\\.)*/(state/\d+/_stateSchema/)')
"""The path of a schema, up to where it lies in Spark's folder; Spark notes it in full, as JSON."""


def folder_of(generation: int) -> str:
    """Return the name of the folder of a driver."""
    return f"spark-{generation}"


def kept_in(state: LogState) -> str:
    """Return the name of the folder that the next driver begins with; empty if there is none."""
    return state.last_input.state_folder if isinstance(state.last_input, StreamInput) else ""


# ---- at the start


def check(folders: Folders, state: LogState) -> None:
    """Refuse a checkpoint whose Spark part was lost, belongs to another query or is ahead; changes nothing.

    Raises
    ------
    CheckpointMismatchError
        Names both sides and the remedy.
    """
    for _ in range(LOOK_TRIES):
        try:
            _check(folders, state)
        except CheckpointMismatchError:
            now = read_checkpoint(folders)
            if now == state:
                raise
            state = now  # others have gone on, or taken over, since it was read
        else:
            return
    _check(folders, state)


def _check(folders: Folders, state: LogState) -> None:
    name = kept_in(state)
    part = os.path.join(folders.location, name)
    ahead = max((int(each) for each in _names(os.path.join(part, "commits")) if each.isdecimal()), default=-1) + 1
    newest = max((number for _, number in _parts(folders)), default=0)
    both = (("transaction", ahead if name else 0, state.committed), ("generation", newest, state.generation))
    # Spark notes a batch only after it is COMMITTED (rule 6.10): notes that are ahead of the log say that the log is
    # old.
    for what, gone, ends in both:
        if gone > ends:
            raise CheckpointMismatchError(
                f"Spark's part of the checkpoint, in {folders.location}, has gone on to {what} {gone}, but the "
                f"transaction log in {folders.log} ends with {what} {ends}: it was lost, or replaced by an older copy. "
                f"Restore {folders.log} and {folders.state}, or start with a new checkpointLocation (and an empty "
                "state).",
                path=folders.log,
                found=ends,
                wanted=gone,
            )
    if not name:
        return
    assert isinstance(state.last_input, StreamInput)
    wanted, found = state.last_input.query_id, _query_id(part)
    if found != wanted or not os.path.isdir(os.path.join(part, "state")):
        what = "is missing" if found in (None, wanted) else f"is of query {found}"
        raise CheckpointMismatchError(
            f"Spark's part of the checkpoint, {part}, {what}, but the transaction log has committed "
            f"transaction {state.committed} of query {wanted}. Restore {part} from a copy made with "
            "the rest, or start with a new checkpointLocation (and an empty state).",
            path=part,
            found=found,
            wanted=wanted,
        )


def _query_id(part: str) -> str | None:
    path = os.path.join(part, "metadata")
    try:
        with open(path, encoding="utf-8") as file:
            return str(json.load(file)["id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointMismatchError(
            f"{path} can't be read ({error}): restore Spark's part of the checkpoint from a copy", path=path
        ) from error


def carry_over(former: str, own: str, committed: int) -> None:
    """Put into a new folder what Spark's operators had kept at the last committed transaction, and what Spark noted.

    The notes come first: where Spark has noted a batch, nobody writes its state again; where it has not, Spark runs the
    batch again and writes its state a second time, so that links to half of it do no harm. What is empty was left so by
    a crash of the machine, is of such a batch or made in passing, and is made again.

    Raises
    ------
    OSError
        The former folder has gone: a newer driver has deleted it.
    """
    notes = os.path.join(own, "commits")
    os.makedirs(notes)
    for batch in (committed - 2, committed - 1):
        with suppress(FileNotFoundError):
            _link(os.path.join(former, "commits", str(batch)), os.path.join(notes, str(batch)))
    below = os.path.join(former, "state")
    os.stat(below)  # else a walk would find nothing, and say nothing
    for folder, _, names in os.walk(below):
        there = os.path.join(own, os.path.relpath(folder, former))
        os.makedirs(there, exist_ok=True)
        for name in names:
            if not name.endswith(".tmp"):
                with suppress(FileNotFoundError):  # Spark deletes what is old
                    _link(os.path.join(folder, name), os.path.join(there, name))
    _point_to_schemas(own)


def _link(path: str, own: str) -> None:
    if os.path.getsize(path):
        os.link(path, own)


def _point_to_schemas(own: str) -> None:
    """Mend the paths that Spark has noted in full: they lead to the former folder, or to where the checkpoint was."""
    text_of_own = json.dumps(own)[1:-1]
    for operator in _names(os.path.join(own, "state")):
        notes = os.path.join(own, "state", operator, "_metadata", "v2")
        for name in (name for name in _names(notes) if name.isdecimal()):
            path = os.path.join(notes, name)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            os.unlink(path)  # it is the former driver's file, under another name
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(notes, f".{name}.crc"))
            with open(path, "w", encoding="utf-8") as file:
                file.write(_SCHEMA.sub(lambda found: f'"{found[1] or ""}{text_of_own}/{found[2]}', text))


def delete_former(folders: Folders, generation: int) -> None:
    """Delete the folders of older drivers; called when a transaction of this one is committed, so none is needed."""
    for name, number in list(_parts(folders)):
        # Never one of a newer driver: this one may have been replaced since it looked.
        if number < generation:
            shutil.rmtree(os.path.join(folders.location, name), ignore_errors=True)


def _parts(folders: Folders) -> Iterator[tuple[str, int]]:
    for name in _names(folders.location):
        found = _NAME.fullmatch(name)
        if found:
            yield name, int(found[1])


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


# ---- after each transaction


@dataclass(frozen=True, slots=True)
class _Listing:
    """What was in a folder when it was last listed.

    Attributes
    ----------
    changed_ns : int
        The folder's own time. Between two looks at it lies a whole micro-batch, which is longer than a tick of the
        file system's clock: what came since shows.
    entries : frozenset of (name, inode)
        With inodes, since Spark replaces files by others when it runs a batch again.
    folders : tuple of str
        The names of those that are folders.
    kinds : frozenset of str
        Which of `_CHANGES` there were.
    """

    changed_ns: int
    entries: frozenset[tuple[str, int]]
    folders: tuple[str, ...]
    kinds: frozenset[str]


class Durable:
    """The state of Spark's operators, as far as it was made durable; Spark renames files into place without fsync.

    What is done for a transaction grows with what is new, not with what is there: the versions of a store are found by
    their numbers, and other folders are listed only when they have changed.

    Parameters
    ----------
    spark : str
        Spark's folder.
    """

    def __init__(self, spark: str) -> None:
        self._spark = spark
        self._listings: dict[str, _Listing] = {}

    def sync(self, batch_id: int) -> None:
        """Make durable what is new; called before Spark notes that the batch has ended.

        From then on Spark does not run the batch again, and can't do without.

        Parameters
        ----------
        batch_id : int
            Its state is of the version after that.

        Raises
        ------
        CheckpointError
            It can't be: Spark must not go on.
        """
        self._sync(self._new_in(os.path.join(self._spark, "state"), batch_id + 1))

    def _sync(self, new: Iterable[str]) -> None:
        try:
            found = set(new)
            paths = sorted(found | {os.path.dirname(path) for path in found})
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(_fsync, paths))
        except OSError as error:
            raise CheckpointError(
                f"Spark's part of the checkpoint, {self._spark}, can't be made durable: {error}", path=self._spark
            ) from error

    def _new_in(self, folder: str, version: int) -> Iterator[str]:
        """Yield what is new below a folder, and the folder when it is new itself.

        Parameters
        ----------
        folder : str
        version : int
            The changes of this version count as new, and are mostly all that is needed of a store.
        """
        try:
            changed_ns = os.stat(folder).st_mtime_ns
        except FileNotFoundError:
            return
        before = self._listings.get(folder)
        if before is None:
            yield folder
        changes: list[str] = []
        if before is not None:
            changes = [path for kind in before.kinds if os.path.exists(path := f"{folder}/{version}{kind}")]
            yield from changes
        turn = crc32(folder.removeprefix(self._spark).encode())  # spreads stores over versions
        due = not changes or (version - turn) % _LISTED_EVERY == 0
        if before is None or (due and before.changed_ns != changed_ns):
            now = self._listings[folder] = _listing(folder, changed_ns)
            known = frozenset() if before is None else before.entries
            yield from (os.path.join(folder, name) for name, _ in now.entries - known)
            before = now
        for name in before.folders:
            yield from self._new_in(os.path.join(folder, name), version)


def _listing(folder: str, changed_ns: int) -> _Listing:
    entries, folders, kinds = [], [], set()
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith("."):  # checksums, and what is being written
                continue
            entries.append((entry.name, entry.inode()))
            number, dot, kind = entry.name.partition(".")
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif number.isdecimal() and dot + kind in _CHANGES:
                kinds.add(dot + kind)
    return _Listing(changed_ns, frozenset(entries), tuple(folders), frozenset(kinds))


def _fsync(path: str) -> None:
    """Make a file or folder durable; one that has gone meanwhile needs it no more."""
    with suppress(FileNotFoundError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
