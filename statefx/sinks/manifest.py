"""Which files of a folder are committed: the manifest that Spark's own streaming file sink writes and Spark reads.

::

    _spark_metadata/<n>             "v1", then a line of JSON for each file that transaction n added
    _spark_metadata/<n>.compact     the same, for transactions 0 to n: every tenth
    _statefx/owners/<k>             who writes here since fence k
    _statefx/anchors/<k>            which manifest number stands for which transaction of that owner

Numbers have no gaps: Spark refuses a manifest with one. So a transaction without rows has a manifest without lines.
Sources: CompactibleFileStreamLog and FileStreamSinkLog of Apache Spark describe the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from urllib.parse import quote, unquote, urlsplit

from statefx.errors import AlreadyExistsError, FencedError, SinkError, SinkMismatchError
from statefx.operators.sinks import UNFENCED, Marker, Owner
from statefx.storage import FolderStorage

METADATA = "_spark_metadata"
INTERVAL = 10
"""Spark's own default: every tenth manifest holds all files, so a reader opens ten at most."""

_OWN = "_statefx"
_VERSION = "v1"
_NAME = re.compile(r"(\d+)(\.compact)?")
_FENCE_TRIES = 100


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file as the manifest names it.

    Attributes
    ----------
    name : str
        Below the folder.
    size_bytes : int
    modified_ms : int
        Since the epoch.
    """

    name: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class _Anchor:
    """Manifest `number` is transaction `txid` of the owner."""

    number: int
    txid: int


class Manifest:
    """The manifest of one folder.

    Parameters
    ----------
    folder : str
        Absolute.
    """

    def __init__(self, folder: str) -> None:
        self.storage = FolderStorage(folder)

    @cached_property
    def _uri(self) -> str:
        return "file://" + quote(self.storage.root)

    # ---- reading

    def files(self) -> list[AddedFile]:
        """Return the committed files, in the order of their transactions.

        Raises
        ------
        SinkMismatchError
            A manifest is damaged, or one is missing between others.
        """
        newest = self.newest()
        return [] if newest is None else list(self._until(newest))

    def newest(self) -> int | None:
        """Return the newest number; None if there is no manifest."""
        numbers = [number for number, _ in self._numbers()]
        return max(numbers, default=None)

    def _numbers(self) -> Iterator[tuple[int, bool]]:
        """Yield number and whether it is a compact one."""
        for stored in self.storage.list(f"{METADATA}/"):
            found = _NAME.fullmatch(stored.name.rpartition("/")[2])
            if found is not None:
                yield int(found[1]), found[2] is not None

    def _until(self, newest: int) -> Iterator[AddedFile]:
        compacts = [number for number, compact in self._numbers() if compact and number <= newest]
        start = max(compacts, default=-1)
        if start >= 0:
            yield from self._read(_name(start, compact=True))
        for number in range(start + 1, newest + 1):
            yield from self._read(_name(number, compact=False))

    def _read(self, name: str) -> Iterator[AddedFile]:
        path = self.storage.path(name)
        try:
            version, *lines = self.storage.read(name).decode().splitlines()
            if version != _VERSION:
                raise ValueError(f"it begins with {version!r}, not {_VERSION!r}")
            for line in lines:
                entry = json.loads(line)
                yield AddedFile(self._below(str(entry["path"])), int(entry["size"]), int(entry["modificationTime"]))
        except FileNotFoundError as error:
            raise SinkMismatchError(f"{path} is missing: {_RESTORE}", path=path) from error
        except (ValueError, KeyError, TypeError) as error:
            raise SinkMismatchError(f"{path} is damaged ({error}): {_RESTORE}", path=path) from error

    def _below(self, uri: str) -> str:
        """Return the name below the folder of a file that the manifest names by its URI."""
        path = unquote(urlsplit(uri).path)
        root = self.storage.root
        if path.startswith(root + "/"):
            return path[len(root) + 1 :]
        raise ValueError(f"it names {uri}, which is not in this folder")

    # ---- whose it is

    def marker(self) -> Marker | None:
        """Return whose the folder is and what was published last; None if nobody has written here.

        Raises
        ------
        SinkMismatchError
            It was written by others than statefx, or the manifest has gone.
        """
        fence, newest = self._newest_fence(), self.newest()
        if fence == 0:
            others = next((part for part in self.storage.parts() if part != _OWN), None)
            if others is None:
                return None
            raise SinkMismatchError(
                f"{self.storage.root} is not empty, and no FileSink has written here (it holds {others!r}): give a "
                "folder of the sink's own",
                path=self.storage.root,
            )
        owner = self._owner(fence)
        anchor = self._anchor(owner, fence)
        if anchor is None:  # its driver is between the owner and the anchor, or died there: it has published nothing
            return Marker(owner.application, owner.origin, owner.generation, UNFENCED)
        if newest is None or newest < anchor.number:
            raise SinkMismatchError(
                f"{self.storage.root}: {METADATA} is gone or was cut short; {_RESTORE}", path=self.storage.root
            )
        return Marker(owner.application, owner.origin, owner.generation, anchor.txid + newest - anchor.number)

    def _newest_fence(self) -> int:
        return max((int(each.name.rpartition("/")[2]) for each in self.storage.list(f"{_OWN}/owners/")), default=0)

    def _owner(self, fence: int) -> Owner:
        return Owner(**json.loads(self.storage.read(f"{_OWN}/owners/{fence:010d}")))

    def _anchor(self, owner: Owner, fence: int) -> _Anchor | None:
        """Return the newest anchor of `owner`, of any generation, unless another owner has fenced after it."""
        while fence:
            try:
                found = self._owner(fence)
                if (found.application, found.origin) != (owner.application, owner.origin):
                    return None
                return _Anchor(**json.loads(self.storage.read(f"{_OWN}/anchors/{fence:010d}")))
            except FileNotFoundError:
                fence -= 1
        return None

    def fence(self, owner: Owner, txid: int, *, takeover: bool) -> None:
        """Own the folder: from here on others are refused.

        Where it was another's, an empty manifest is put on top, after the owner is named: who owned it may be about to
        write the next number, and finds it taken. In the other order it could count the seal as its own transaction.

        Parameters
        ----------
        owner : Owner
        txid : int
            The owner's last transaction that is committed.
        takeover : bool
            Go on from `txid`, whatever the folder says.

        Raises
        ------
        FencedError
            A newer generation owns it, or others fenced at the same moment, again and again.
        """
        for _ in range(_FENCE_TRIES):
            last = self._newest_fence()
            anchor = None if takeover else self._anchor(owner, last)
            if anchor is not None and self._owner(last).generation > owner.generation:
                break
            try:
                self.storage.create(f"{_OWN}/owners/{last + 1:010d}", _json(asdict(owner)))
            except AlreadyExistsError:
                continue
            anchor = anchor or _Anchor(self._seal(), txid)
            self.storage.create(f"{_OWN}/anchors/{last + 1:010d}", _json(asdict(anchor)))
            return
        raise FencedError(f"{self.storage.root}: a newer driver has taken over", path=self.storage.root)

    def _seal(self) -> int:
        """Put an empty manifest on top, and return its number."""
        for _ in range(_FENCE_TRIES):
            newest = self.newest()
            number = 0 if newest is None else newest + 1
            try:
                self._write(number, [])
            except AlreadyExistsError:
                continue
            return number
        raise SinkError(f"{self.storage.root}: others go on writing to {METADATA}", path=self.storage.root)

    # ---- publishing

    def publish(self, owner: Owner, txid: int, files: Iterable[AddedFile]) -> None:
        """Add the files of transaction `txid` of `owner`, in one atomic act; again: nothing.

        Raises
        ------
        FencedError
            The folder is another owner's.
        SinkMismatchError
            The number is taken by another manifest.
        """
        anchor = self._anchor(owner, self._newest_fence())
        if anchor is None:
            raise FencedError(f"{self.storage.root}: another driver has taken over", path=self.storage.root)
        number = anchor.number + txid - anchor.txid
        try:
            self._write(number, files)
        except AlreadyExistsError as error:
            raise SinkMismatchError(
                f"{self.storage.root}: manifest {number} is there already, with other files than transaction {txid} "
                "has; somebody else writes to this folder",
                path=self.storage.root,
            ) from error

    def _write(self, number: int, files: Iterable[AddedFile]) -> None:
        """Create a manifest. A transaction's has the same bytes whoever publishes it: to `create` they are one."""
        compact = (number + 1) % INTERVAL == 0
        listed = [*(self._until(number - 1) if compact and number else ()), *files]
        lines = [_VERSION, *(self._line(each) for each in listed)]
        self.storage.create(_name(number, compact=compact), "\n".join(lines).encode())

    def _line(self, file: AddedFile) -> str:
        entry = {
            "path": f"{self._uri}/{quote(file.name)}",
            "size": file.size_bytes,
            "isDir": False,
            "modificationTime": file.modified_ms,
            "blockReplication": 1,
            "blockSize": 33554432,
            "action": "add",
        }
        return json.dumps(entry, separators=(",", ":"))

    def forget_old(self) -> None:
        """Delete manifests that two compact ones stand for; a reader that lost one lists again."""
        compacts = sorted(number for number, compact in self._numbers() if compact)
        if len(compacts) > 1:
            self.storage.delete(_name(n, compact=c) for n, c in list(self._numbers()) if n < compacts[-2])


_RESTORE = "restore the folder from a backup, or give the sink a new one"


def _name(number: int, *, compact: bool) -> str:
    return f"{METADATA}/{number}{'.compact' if compact else ''}"


def _json(body: object) -> bytes:
    return json.dumps(body, sort_keys=True).encode()
