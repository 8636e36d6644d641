"""What stands in the folder of a FileSink: its files, and which of them are committed.

The manifest is that which Spark's own streaming file sink writes and Spark reads.

::

    part-<txid>-<task>-<token>-<n>  rows of one task in one attempt, under their final name, with a suffix; they count
                                    when the commit has named them
    _statefx/lists/part-<txid>-...  names of a task's files, where those are too many for the log
    _spark_metadata/<n>             "v1", then a line of JSON for each file that transaction n added
    _spark_metadata/<n>.compact     the same, for transactions 0 to n: every tenth; where none of these ten added a
                                    file, a hard link to the compact one before
    _statefx/owners/<k>             who owns the folder since fence k, which number is which transaction of that owner,
                                    and how the rows are written
    _statefx/sealed/<k>             that number is written: the owner may publish

Numbers have no gaps: Spark refuses a manifest with one. So a transaction without rows has a manifest without lines.
Sources: CompactibleFileStreamLog and FileStreamSinkLog of Apache Spark describe the format.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from xxhash import xxh3_128

from statefx.errors import AlreadyExistsError, NotWrittenError, SinkError, SinkMismatchError, StagedRowsLostError
from statefx.operators.schema import parse_schema, to_ddl, to_ddl_type
from statefx.operators.sinks import (
    UNFENCED,
    CheckpointPosition,
    Committable,
    Marker,
    Owner,
    is_published,
    refuse_twin,
    starting_point,
)
from statefx.storage import FolderStorage, Stored

# ---- how the rows are written: readers use it, and a later start must fit it


@dataclass(frozen=True, slots=True)
class Layout:
    """Format, fields and folders of the rows; `format` and `partition_by` are those of FileSink."""

    format: str
    partition_by: tuple[str, ...]
    schema: str
    """DDL of all fields that rows have had, in the order in which they came; any of them may be null in some rows."""

    @classmethod
    def of(cls, format: str, partition_by: Sequence[str], schema: pa.Schema) -> Self:
        return cls(format, tuple(partition_by), to_ddl(field.with_nullable(True) for field in schema))

    @classmethod
    def from_json(cls, body: Any) -> Self:
        return cls(body["format"], tuple(body["partition_by"]), body["schema"])

    @property
    def fields(self) -> pa.Schema:
        return parse_schema(self.schema)

    @property
    def ddl_as_files(self) -> str:
        """DDL in the order in which Spark reads it: what the files hold, then the folders.

        Spark's stream takes columns by their place: in another order, it would show the values of one field as another.
        """
        fields = self.fields
        files = [field for field in fields if field.name not in self.partition_by]
        return to_ddl([*files, *(fields.field(name) for name in self.partition_by)])

    def added_to(self, before: Layout | None, folder: str) -> Layout:
        """Return the layout of a folder like `before` that is given files like this.

        SinkMismatchError if no reader could read both.
        """
        if before is None:
            return self
        remedy = "give the sink a new folder, or as before"
        for what in ("format", "partition_by"):
            old, new = getattr(before, what), getattr(self, what)
            if old != new:
                raise SinkMismatchError(
                    f"{folder} holds rows with {what.replace('_by', 'By')} {old!r}, not {new!r}: {remedy}", path=folder
                )
        old, new = before.fields, self.fields
        known = {name.lower(): name for name in old.names}
        for field in new:
            if (was := known.get(field.name.lower(), field.name)) != field.name:
                raise SinkMismatchError(
                    f"{folder} holds rows with the field {was!r}, which Spark takes for {field.name!r}: {remedy}",
                    path=folder,
                    field=field.name,
                )
            at = old.get_field_index(field.name)
            if at >= 0 and (was := to_ddl_type(old.field(at).type)) != (now := to_ddl_type(field.type)):
                raise SinkMismatchError(
                    f"{folder} holds rows whose field {field.name!r} is {was}, not {now}: {remedy}",
                    path=folder,
                    field=field.name,
                )
        if self.format == "csv" and old.names != new.names:  # whose readers go by the place of a column
            raise SinkMismatchError(
                f"{folder} holds CSV with the fields {', '.join(old.names)}, not {', '.join(new.names)}: {remedy}",
                path=folder,
            )
        more = [field for field in new if old.get_field_index(field.name) < 0]
        return replace(self, schema=to_ddl([*old, *more]))


# ---- files that tasks have written: they count when the commit has named them

LISTS = "_statefx/lists"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task has written: its name below the folder, its size, and when (since the epoch)."""

    name: str
    size_bytes: int
    modified_ms: int


def written_files(storage: FolderStorage, committables: Mapping[int, Committable]) -> list[WrittenFile]:
    """Return the files of a transaction, in the order of the tasks.

    StagedRowsLostError if one is missing, or has another length than it was given. Its bytes are not read: the driver
    would read again what all tasks have written.
    """
    found = [file for task in sorted(committables) for file in _files(storage, committables[task])]
    for file, size_bytes in zip(found, storage.sizes([file.name for file in found]), strict=True):
        if size_bytes != file.size_bytes:
            path = storage.path(file.name)
            seen = "is missing" if size_bytes is None else f"has {size_bytes} bytes, not {file.size_bytes}"
            raise StagedRowsLostError(
                f"{path} {seen}: it holds rows of a transaction that is decided, and that is not published yet. "
                "Restore the file; the sink goes on by itself then",
                file=path,
            )
    return found


def _files(storage: FolderStorage, committable: Committable) -> Iterator[WrittenFile]:
    """Yield the files of a task; a long list of them is in a file of its own."""
    if "files" not in committable:
        name = str(committable["list"])
        try:
            data = storage.read(name)
        except FileNotFoundError:
            data = b""
        if xxh3_128(data).hexdigest() != committable["checksum"]:
            raise StagedRowsLostError(
                f"{storage.url}/{name} is missing or damaged: it names files of a transaction that is decided. Restore "
                "it; the sink goes on by itself then",
                file=name,
            )
        committable = json.loads(data)
    for file in committable["files"]:
        yield WrittenFile(**file)


def txid_of_file(name: str) -> int | None:
    """Return the transaction of a file that a writer named; None if the name is not a writer's."""
    found = re.match(r"part-(\d{10})-", name.rpartition("/")[2])
    return None if found is None else int(found[1])


# ---- which files are committed

METADATA = "_spark_metadata"
INTERVAL = 10
"""Spark's own default: every tenth manifest holds all files, so a reader opens ten at most."""

KEPT_SECS = 600.0
"""As Spark's. Its readers that lose a manifest go on from the next compact one, and fail if that is gone as well."""

COMPACT_KEPT_SECS = 60.0
"""Of compact ones, each of which names all files. Readers open one right after they have listed them."""

_OWN = "_statefx"
_VERSION = "v1"
_NAME = re.compile(r"(\d+)(\.compact)?")
_FENCE_TRIES = 100


@dataclass(frozen=True, slots=True)
class Fence:
    """The owner of the folder: manifest `number` is transaction `txid` of `owner`."""

    owner: Owner
    number: int
    txid: int
    taken_on: bool
    """Whether a former start of the same application has sealed `number`, so that this one has nothing to seal."""
    layout: Layout
    """Of the files of all owners until now."""
    foreign: int = 0
    """The number of files of other checkpoints before those of this one: their transactions have numbers of their
    own."""


@dataclass(frozen=True, slots=True)
class _FolderState:
    """The folder at one moment: the newest fence, whether its owner may publish, the newest manifest."""

    fences: int
    """The number of the newest fence; 0 if there is none."""
    fence: Fence | None
    sealed: bool
    newest: int | None

    @property
    def is_cut_short(self) -> bool:
        return self.fence is not None and self.sealed and (self.newest is None or self.newest < self.fence.number)

    @property
    def marker(self) -> Marker | None:
        if self.fence is None:
            return None
        if not self.sealed or self.newest is None:
            return Marker.of(self.fence.owner, UNFENCED)
        return Marker.of(self.fence.owner, self.fence.txid + self.newest - self.fence.number)


class Manifest:
    """The manifest of one folder, which is given by its absolute path."""

    def __init__(self, folder: str) -> None:
        self.storage = FolderStorage(folder)
        self._latest: tuple[int, int] | None = None  # a number, and the newest time in the manifests up to it
        self._known: _FolderState | None = None
        """How the folder was when this object had published last."""

    @cached_property
    def _uri(self) -> str:
        return f"file://{quote(self.storage.root)}/"

    # ---- reading

    def files(self) -> list[WrittenFile]:
        """Return the committed files, in the order of their transactions; SinkMismatchError if a manifest is lost."""
        newest = self.newest()
        while newest is not None:
            try:
                return list(self._until(newest))
            except SinkMismatchError:
                before, newest = newest, self.newest()
                if newest == before:
                    raise
                # ten or more transactions came while we read, and `forget_old` has deleted what we had listed
        return []

    def newest(self) -> int | None:
        return max((number for number, _, _ in self._manifests()), default=None)

    def _manifests(self) -> Iterator[tuple[int, bool, Stored]]:
        """Yield number, whether it is a compact one, and the file."""
        for stored in self.storage.list(f"{METADATA}/"):
            found = _NAME.fullmatch(stored.name.rpartition("/")[2])
            if found is not None:
                yield int(found[1]), found[2] is not None, stored

    def _until(self, newest: int) -> Iterator[WrittenFile]:
        for name in self._names_until(newest):
            with self._found(name) as data:
                found = [self._file(json.loads(line)) for line in _lines(data)]
            yield from found

    def _names_until(self, newest: int) -> list[str]:
        start = max((number for number, compact, _ in self._manifests() if compact and number <= newest), default=-1)
        first = [_name(start, compact=True)] if start >= 0 else []
        return [*first, *(_name(number, compact=False) for number in range(start + 1, newest + 1))]

    def _file(self, entry: Any) -> WrittenFile:
        return WrittenFile(self._below(str(entry["path"])), int(entry["size"]), int(entry["modificationTime"]))

    @contextmanager
    def _found(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file that must be there; an error of the block that reads them means damage."""
        path = self.storage.path(name)
        try:
            yield self.storage.read(name)
        except FileNotFoundError as error:
            raise SinkMismatchError(f"{path} is missing: {_RESTORE}", path=path) from error
        except (ValueError, KeyError, TypeError) as error:
            raise SinkMismatchError(f"{path} is damaged ({error}): {_RESTORE}", path=path) from error

    def _below(self, uri: str) -> str:
        """Return the name below the folder of a file that the manifest names by its URI."""
        if uri.startswith(self._uri):  # as `_line` writes it; there may be a hundred thousand
            return unquote(uri[len(self._uri) :])
        path, root = unquote(urlsplit(uri).path), self.storage.root
        if path.startswith(root + "/"):
            return path[len(root) + 1 :]
        raise ValueError(f"it names {uri}, which is not in this folder")

    # ---- whose it is

    def marker(self, *, takeover: bool = False) -> Marker | None:
        """Return the owner of the folder and what it has published last; None if nobody has written here.

        SinkMismatchError if another program has written to the folder, or the manifest is gone; with `takeover` it does
        not look.
        """
        state = self._state()
        return state.marker if takeover else self._checked(state)

    def _state(self) -> _FolderState:
        """Return what stands here at one moment.

        It reads the newest fence before and after the newest manifest. With one reading, a driver that sleeps between
        the two while another takes over would count that driver's manifests as its own transactions, and would not
        publish its rows.

        Who has published here looks at its own manifest and the one after it instead of all, and does not read its
        fence again. All that others publish or delete comes after a fence of theirs, which is looked for behind the
        manifests. So a driver that was replaced or taken over, wherever it slept before that, lists as at a start. One
        that sleeps after it is one that sleeps between here and its write, where `publish` guards it.
        """
        known = self._known
        if known is not None and self._is_newest(known.newest or 0) and self._newest_fence() == known.fences:
            return known
        while True:
            at = self._newest_fence()
            try:
                fence = self._fence(at) if at else None
            except SinkMismatchError:
                if self._newest_fence() == at:
                    raise
                continue  # others have fenced since, and `forget_old` has deleted it
            sealed = fence is not None and self._is_sealed(at, fence)
            newest = self.newest()
            if self._newest_fence() == at:
                return _FolderState(at, fence, sealed, newest)

    def _is_newest(self, number: int) -> bool:
        """Whether a manifest of a FileSink is there, and none after it: numbers have no gaps."""
        last, following = self.storage.sizes([_name(number), _name(number + 1)])
        return last is not None and following is None

    def _checked(self, state: _FolderState) -> Marker | None:
        """Return the marker of a folder that FileSinks alone have written to, all of whose manifests are there."""
        root = self.storage.root
        if state.is_cut_short:
            raise SinkMismatchError(f"{root}: {METADATA} is gone or was cut short; {_RESTORE}", path=root)
        others = None if state.fences else next((part for part in self.storage.parts() if part != _OWN), None)
        if others is not None and self._newest_fence() == 0:  # else one has begun while we looked
            raise SinkMismatchError(
                f"{root} is not empty, and no FileSink has written here (it holds {others!r}): give a "
                "folder of the sink's own",
                path=root,
            )
        return state.marker

    def _newest_fence(self) -> int:
        return max((int(stored.name.rpartition("/")[2]) for stored in self.storage.list(f"{_OWN}/owners/")), default=0)

    def _fence(self, at: int) -> Fence:
        with self._found(_owner(at)) as data:
            body = json.loads(data)
            return Fence(Owner(**body.pop("owner")), layout=Layout.from_json(body.pop("layout")), **body)

    def _is_sealed(self, at: int, fence: Fence) -> bool:
        return fence.taken_on or any(self.storage.list(_sealed(at)))

    def layout(self, added: Layout | None = None) -> Layout | None:
        """Return how the rows are written here, or would be with files like `added`; None if nobody has written.

        SinkMismatchError if no reader could read `added` beside what is here.
        """
        fence = self._state().fence
        before = None if fence is None else fence.layout
        return before if added is None else added.added_to(before, self.storage.root)

    def fence(self, owner: Owner, reached: CheckpointPosition, layout: Layout, *, takeover: bool) -> None:
        """Own the folder: from here on other owners are refused.

        1. Write a file that names the owner and the number of its seal.
        2. Write the seal, an empty manifest with that number. A former owner that is about to publish under this number
           then finds it taken.

        The number is chosen in step 1, because a driver may sleep between the steps and wake up when another one owns
        the folder: its number is sealed or passed then, and step 2 fails. Chosen in step 2, it would be the next free
        number; the other driver would count the seal as its own transaction, and lose the rows of that transaction.

        With `takeover` it goes on from what is committed, whatever the folder says. Raises what `starting_point`,
        `marker` and `layout` do; SinkError too if other drivers fence at the same moment, again and again.
        """
        root, before = self.storage.root, self._state().marker
        refuse_twin(before, owner, root)
        for _ in range(_FENCE_TRIES):
            state = self._state()
            marker = state.marker if takeover else self._checked(state)
            try:
                marker = self._before_unsealed(state, marker, owner, reached)
            except SinkMismatchError:
                if self._newest_fence() == state.fences:
                    raise
                continue  # as in `_state`
            # The user has seen another owner than the one that came meanwhile (rule 10.10).
            takeover = takeover and (marker is before or (marker is not None and marker.is_of(before or owner)))
            txid = starting_point(marker, owner, reached, root, takeover=takeover)
            same = marker is not None and marker.is_of(owner) and marker.txid == txid
            goes_on = same and state.sealed and not state.is_cut_short
            grown = layout.added_to(None if state.fence is None else state.fence.layout, root)
            if goes_on and state.fence is not None:
                mine = replace(state.fence, owner=owner, taken_on=True, layout=grown)
            else:
                number = 0 if state.newest is None else state.newest + 1
                mine = Fence(owner, number, txid, False, grown, self._foreign(state, owner))
            at = state.fences + 1
            try:
                self.storage.create(_owner(at), _json(asdict(mine)))  # 1.
                before = Marker.of(owner, UNFENCED)
                # Who slept before step 1 may have been given the name of a fence that `forget_old` has deleted.
                if self._newest_fence() != at:
                    continue
                if not mine.taken_on:
                    # An empty transaction has the bytes of a seal. If the former owner has published one before this
                    # fence, step 2 does not fail, and what came after it would count as ours. Behind the fence at most
                    # one more comes, from a commit that has begun: empty, it is a seal as good as our own.
                    if self.newest() != state.newest:
                        continue
                    self._write(mine.number, [])  # 2.
                    self.storage.create(_sealed(at), _json(asdict(owner)))
            except AlreadyExistsError:  # another has fenced, or the former owner has just published
                continue
            return
        raise SinkError(f"{root}: others go on writing to {METADATA}", path=root)

    def _foreign(self, state: _FolderState, owner: Owner) -> int:
        if state.fence is not None and state.fence.owner.origin == owner.origin:
            return state.fence.foreign
        return 0 if state.newest is None else len(list(self._until(state.newest)))

    def rewind(self, owner: Owner, after: int) -> None:
        """Name the files of `owner`'s transactions after `after` no more, in one atomic act; again: nothing.

        Spark believes the newest compact manifest, and looks for one at every tenth number alone. So:

        1. Write a file that names the number of the next compact one as this owner's seal.
        2. Write empty manifests up to it: Spark refuses gaps.
        3. Write the compact one, without these files. From here on readers do not see them.
        4. Write the seal.

        A crash before 4 leaves a fence without its seal; the next start fences anew, and rewinds again. SinkError if
        another driver has fenced meanwhile.
        """
        state = self._state()
        if state.fence is None or state.fence.owner != owner or state.newest is None or not state.sealed:
            raise self._taken_meanwhile()
        files = list(self._until(state.newest))
        foreign = state.fence.foreign
        kept = files[:foreign] + [file for file in files[foreign:] if (txid_of_file(file.name) or 0) <= after]
        if len(kept) == len(files):
            return
        marker, at = self._checked(state), state.fences + 1
        assert marker is not None
        number = state.newest + INTERVAL - (state.newest + 1) % INTERVAL
        try:
            mine = replace(state.fence, number=number, txid=marker.txid, taken_on=False)
            self.storage.create(_owner(at), _json(asdict(mine)))  # 1.
            for gap in range(state.newest + 1, number):  # 2.
                self._check_newest(at)
                self._write(gap, [])
            self._check_newest(at)
            lines = [_VERSION, *map(self._line, kept)]
            self.storage.create(_name(number), "\n".join(lines).encode())  # 3.
            self.storage.create(_sealed(at), _json(asdict(owner)))  # 4.
        except AlreadyExistsError as error:
            raise self._taken_meanwhile() from error

    def _check_newest(self, fence: int) -> None:
        """Stop where another has fenced: an empty manifest of ours would pass for one of its transactions."""
        if self._newest_fence() != fence:
            raise self._taken_meanwhile()

    def _taken_meanwhile(self) -> SinkError:
        return SinkError(f"{self.storage.root}: another driver has taken the folder over", path=self.storage.root)

    def _before_unsealed(
        self, state: _FolderState, marker: Marker | None, owner: Owner, reached: CheckpointPosition
    ) -> Marker | None:
        """Return the marker, or the one from before a start of this checkpoint that died without its seal.

        Rows of the decided transaction may stand there under the application's former name. Without them, the
        transaction would be published twice (rule 10.2).
        """
        if marker is None or marker.txid != UNFENCED or not marker.is_of(owner):
            return marker
        at, after = state.fences, state.fence
        while at > 1:
            fence, at = self._fence(at - 1), at - 1
            if not self._is_sealed(at, fence):
                after = fence
                continue
            assert after is not None
            # The former owner could publish until the number of the next fence was taken. If it has taken that number
            # itself, the manifest there has rows, and a seal has none.
            published = fence.txid + after.number - 1 - fence.number + self._has_rows(after.number)
            ours = (
                fence.owner.origin in (owner.origin, *reached.originals)
                and reached.committed <= published <= reached.decided
            )
            return replace(marker, txid=published) if ours else marker
        return marker

    def _has_rows(self, number: int) -> bool:
        """Return whether a manifest is there that adds files to those before it."""
        newest = self.newest()
        if newest is None or newest < number:
            return False
        before = list(self._until(number - 1)) if number else []
        return len(list(self._until(number))) > len(before)

    # ---- publishing

    def publish(self, owner: Owner, txid: int, files: Callable[[], Sequence[WrittenFile]]) -> None:
        """Add the files of transaction `txid` of `owner`, in one atomic act; again: nothing.

        `files` is asked only if the transaction is not there yet. Raises what it and `is_published` raise,
        SinkMismatchError if the number is taken by another manifest, and SinkError if another has fenced meanwhile, and
        the files do not count.
        """
        state = self._state()
        if is_published(self._checked(state), owner, txid, self.storage.root):
            return
        assert state.fence is not None
        number = state.fence.number + txid - state.fence.txid
        added = files()
        # Spark's streams read in the order of these times, and ignore a file that is a week older than the newest that
        # they have seen. So times must not run back when a machine's clock does.
        latest = self._latest_until(number - 1)
        added = [replace(file, modified_ms=max(file.modified_ms, latest)) for file in added]
        try:
            self._write(number, added)
        except AlreadyExistsError as error:
            if self._newest_fence() != state.fences and is_published(self.marker(), owner, txid, self.storage.root):
                return
            raise SinkMismatchError(
                f"{self.storage.root}: manifest {number} is there already, with other files than transaction {txid} "
                "has; somebody else writes to this folder",
                path=self.storage.root,
            ) from error
        # Who slept before the write may have woken up when another owns the folder, has published under this number
        # and has deleted that manifest again (`forget_old`). The number was free then, and no reader comes to it.
        if added and self._newest_fence() != state.fences:
            named = {file.name for file in self.files()}
            if not all(file.name in named for file in added):
                raise self._taken_meanwhile()
        self._latest = number, max([latest, *(file.modified_ms for file in added)])
        self._known = replace(state, newest=number)

    def _latest_until(self, number: int) -> int:
        if self._latest is None or self._latest[0] != number:
            self._latest = number, max((file.modified_ms for file in self._until(number)), default=0)
        return self._latest[1]

    def _write(self, number: int, files: Iterable[WrittenFile]) -> None:
        """Create a manifest. A transaction's has the same bytes whoever publishes it: to `create` they are one."""
        lines = []
        if _is_compact(number):
            for each in range(number - INTERVAL + 1, number):
                with self._found(_name(each)) as data:
                    lines += _lines(data)
        lines += [self._line(file) for file in files]
        if _is_compact(number) and number >= INTERVAL:
            before = _name(number - INTERVAL)
            if not lines:
                # Not written again, with all files that ever were. Refused where a file has too many names, or is
                # another user's; the next `with` says what is wrong if it is missing.
                with suppress(NotWrittenError, FileNotFoundError):
                    self.storage.create_alike(_name(number), before)
                    return
            with self._found(before) as data:
                lines = _lines(data) + lines
        self.storage.create(_name(number), "\n".join([_VERSION, *lines]).encode())

    def _line(self, file: WrittenFile) -> str:
        entry = {
            "path": self._uri + quote(file.name),
            "size": file.size_bytes,
            "isDir": False,
            "modificationTime": file.modified_ms,
            "blockReplication": 1,
            "blockSize": 33554432,
            "action": "add",
        }
        return json.dumps(entry, separators=(",", ":"))

    def forget_old(self, min_age_secs: float = KEPT_SECS) -> None:
        """Delete manifests that two compact ones stand for, unless they are young: somebody may be reading them.

        And fences before one that is sealed and not young. The newest stays, so numbers go on, and so does the newest
        sealed one, behind which `_before_unsealed` does not look. Only who slept since before that one misses another:
        at a fence or rewind it looks for the newest behind its own; whatever else it reads, it looks at that again.
        """
        self._forget_fences(time.time() - min_age_secs)
        found = list(self._manifests())
        compacts = sorted(number for number, compact, _ in found if compact)
        if len(compacts) < 2:
            return
        for of_compact, secs in ((False, min_age_secs), (True, min(min_age_secs, COMPACT_KEPT_SECS))):
            # By the others alone: a compact one that is a link has the time of the first that had its bytes.
            since = time.time() - secs
            stop = min([compacts[-2], *(n for n, compact, file in found if not compact and file.modified > since)])
            self.storage.delete(file.name for n, compact, file in found if compact == of_compact and n < stop)

    def _forget_fences(self, since: float) -> None:
        fences = {int(file.name.rpartition("/")[2]): file for file in self.storage.list(f"{_OWN}/owners/")}
        for at in sorted(fences, reverse=True):
            if fences[at].modified <= since and self._is_sealed(at, self._fence(at)):
                old = [each for each in fences if each < at]
                self.storage.delete([*map(_sealed, old), *map(_owner, old)])  # of a seal alone nobody would know
                return


_RESTORE = "restore the folder from a backup, or give the sink a new one"


def _is_compact(number: int) -> bool:
    return (number + 1) % INTERVAL == 0


def _name(number: int, *, compact: bool | None = None) -> str:
    """Return a manifest's name; `compact` is given where another program, with another interval, may have written."""
    return f"{METADATA}/{number}{'.compact' if (_is_compact(number) if compact is None else compact) else ''}"


def _lines(data: bytes) -> list[str]:
    """Return the lines of a manifest, each of which is a file; ValueError if it is no manifest, or was cut."""
    version, *lines = data.decode().split("\n")
    if version != _VERSION:
        raise ValueError(f"it begins with {version!r}, not {_VERSION!r}")
    if not all(line[:1] == "{" and line[-1:] == "}" for line in lines):
        raise ValueError("a line is cut")
    return lines


def _owner(fence: int) -> str:
    return f"{_OWN}/owners/{fence:010d}"


def _sealed(fence: int) -> str:
    return f"{_OWN}/sealed/{fence:010d}"


def _json(body: object) -> bytes:
    return json.dumps(body, sort_keys=True).encode()
