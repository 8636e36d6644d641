"""A folder, on a file system that the driver and the executors see."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, TypeVar
from urllib.parse import unquote_to_bytes
from uuid import uuid4

from statefx.errors import AlreadyExistsError, NotWrittenError, OutcomeUnknownError
from statefx.storage.contract import ABANDONED_SECS, Storage, Stored, at_once, checked

_Found = TypeVar("_Found")

_LOCAL = re.compile(r"file:(?:/|///+|//localhost/+)((?:[^/].*)?)", re.IGNORECASE | re.DOTALL)
"""A path as a URI without a host: ``file:/x``, ``file:///x``, ``file://localhost/x``."""


def path_of(location: str) -> str:
    """Return the path that a text names: of a ``file:`` URI what `pathlib.Path.as_uri` made it of; else the text.

    All that takes a folder goes by this, so that one text means one folder in spouts, sinks, checkpoints and tools.

    >>> path_of("file:///data/a%20b"), path_of("/data/a%20b")
    ('/data/a b', '/data/a%20b')
    """
    found = _LOCAL.fullmatch(location)
    return location if found is None else os.fsdecode(unquote_to_bytes(f"/{found[1]}"))


_UNFINISHED = ".unfinished-"
"""How the names of files begin that are being written. Writers that died leave some."""

_SLOW_SECS = 0.002
"""A disk reads dozens of small files in this time, and threads would take longer to start. A file server that answers
in a millisecond does not."""

_DELETED = (
    "it was deleted while it was being written. Either somebody deleted it, or a sweep took it for older than an hour "
    "because a clock jumped or the machines' clocks differ"
)

_REFUSED = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV)
)
"""After these a link was not made. After any other failure, such as EIO of a file server, it may have been."""


class FolderStorage(Storage):
    """Files below a folder; a name is a path.

    A file is written under a name of its own, made durable, and only then linked (`create`) or renamed (`writer`) to
    its name, so that a name never stands for half a file. A link fails where there is one already, on every file system
    with hard links, and over NFS too; that is what makes `create` exclusive. ``open`` with O_EXCL would be as
    exclusive, but shows an empty file first.

    Parameters
    ----------
    root : str or path
        Absolute, or relative to where the process is now.
    durable : bool
        False: what `writer` and `put` write need not outlive the machine.
    """

    def __init__(self, root: str | os.PathLike[str], *, durable: bool = True) -> None:
        self._durable = durable
        self.root = os.path.abspath(os.fspath(root))

    def __repr__(self) -> str:
        return f"FolderStorage({self.root!r})"

    @property
    def url(self) -> str:
        """The folder's path."""
        return self.root

    def path(self, name: str) -> str:
        """Return the path of `name`, for people and for code that can only read files."""
        return os.path.join(self.root, checked(name))

    def create(self, name: str, data: bytes) -> None:
        """Make `name` durable with these bytes, unless there is one already (see `Storage.create`)."""
        path = self.path(name)
        temporary = self._write(path, data)
        try:
            self._link(temporary, path, lambda: data)
        finally:
            with contextlib.suppress(OSError):  # one that stays is deleted as unfinished, an hour later
                os.unlink(temporary)

    def create_alike(self, name: str, other: str) -> None:
        """Make `name` durable with the bytes of `other`, as `create` does, but without writing them: as a hard link.

        It has the time of `other`. Raises what `create` does, and FileNotFoundError if there is no `other`.
        """
        source = self.path(other)
        os.stat(source)  # else a missing one would look like an answer that was lost
        self._link(source, self.path(name), lambda: self.read(other))

    def _link(self, source: str, path: str, data: Callable[[], bytes]) -> None:
        """Give what is durable under `source` the name `path`, unless there is one already."""
        try:
            os.link(source, path)
        except OSError as error:
            self._judge(path, data, error)
        # A link is durable with its folder. When that fails, others see the name and a power cut may take it back.
        try:
            sync_folder(os.path.dirname(path))
        except OSError as error:
            raise OutcomeUnknownError(f"{path} was created, but may not be durable: {error}", path=path) from error

    def _write(self, path: str, data: bytes) -> str:
        """Write `data` under a name of its own and return that."""
        temporary = _temporary(path)
        try:
            make_folder(os.path.dirname(path))
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise NotWrittenError(f"{path} was not written: {error}", path=path, usable=True) from error
        usable = True
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            usable = False  # after a failed fsync the kernel may say that dirty pages are clean: no further try
            _sync(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise NotWrittenError(f"{path} was not written: {error}", path=path, usable=usable) from error
        finally:
            os.close(file)
        return temporary

    def _judge(self, path: str, data: Callable[[], bytes], error: OSError) -> None:
        """Whatever a failed link says, the file under the name decides; over NFS a reply may have been lost."""
        try:
            with open(path, "rb") as file:
                found = file.read()
        except FileNotFoundError:
            if error.errno in _REFUSED:
                hint = " (the file system must have hard links)" if error.errno in (errno.EPERM, errno.ENOTSUP) else ""
                raise NotWrittenError(f"{path} was not written: {error}{hint}", path=path, usable=True) from error
            raise OutcomeUnknownError(f"{path} may or may not have been written: {error}", path=path) from error
        except OSError as unreadable:
            raise OutcomeUnknownError(f"{path} may or may not have been written: {unreadable}", path=path) from error
        # Equal bytes are our own: each record holds a nonce. The link was made, and its answer was lost (rule 3.2).
        if found != data():
            raise AlreadyExistsError(f"{path} is there already", path=path) from error

    @contextmanager
    def writer(self, name: str, ending: Callable[[], str] = str) -> Iterator[BinaryIO]:
        """Open a file to be written (see `Storage.writer`)."""
        path = self.path(name)
        make_folder(os.path.dirname(path))
        temporary = _temporary(path)
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                if self._durable:
                    _sync(file.fileno())
            # Not before the content is durable: a rename may reach the disk first, and the name would stand for
            # nothing.
            try:
                os.rename(temporary, self.path(name + ending()))
            except FileNotFoundError as error:
                raise FileNotFoundError(errno.ENOENT, _DELETED, path) from error
        except BaseException:  # a KeyboardInterrupt too: nobody else knows of the file
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        if self._durable:
            sync_folder(os.path.dirname(path))

    def reader(self, name: str) -> BinaryIO:
        """Open what is under `name` (see `Storage.reader`)."""
        path = self.path(name)
        try:
            return open(path, "rb")
        except (IsADirectoryError, NotADirectoryError) as error:  # parts of other names
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes under `name`, or a part of them (see `Storage.read`)."""
        with self.reader(name) as file:
            size = os.fstat(
                file.fileno()
            ).st_size  # else room is made for all that was asked for, 128 kB for a small file
            file.seek(start)
            return file.read(max(0, (size if stop is None else min(stop, size)) - start))

    def read_all(self, names: Sequence[str], stop: int | None = None) -> Sequence[bytes | OSError]:
        """Read many (see `Storage.read_all`); with threads only where the file system turns out to be slow."""
        return _each(names, lambda name: self._read_or_error(name, stop))

    def sizes(self, names: Sequence[str]) -> Sequence[int | None]:
        """Return the size of each file in bytes; None where there is none."""
        return _each(names, self._size)

    def _size(self, name: str) -> int | None:
        try:
            return os.stat(self.path(name)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def parts(self) -> Iterator[str]:
        """Yield the first part of each name (see `Storage.parts`)."""
        with contextlib.suppress(FileNotFoundError):
            yield from (name for name in sorted(os.listdir(self.root)) if not name.startswith("."))

    def shares(self, name: str, other: Storage) -> bool:
        """Return whether `name` is one file here and in `other` (see `Storage.shares`)."""
        try:
            return isinstance(other, FolderStorage) and os.path.samefile(self.path(name), other.path(name))
        except OSError:
            return False

    def list(self, prefix: str = "", after: str = "") -> Iterator[Stored]:
        """Yield what has a name that begins with `prefix` and comes after `after` (see `Storage.list`)."""
        for name in self._names(prefix.rpartition("/")[0], prefix):
            if name > after:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    found = os.stat(self.path(name))
                    yield Stored(name, found.st_size, found.st_mtime)

    def _names(self, above: str, prefix: str, *, unfinished: bool = False) -> Iterator[str]:
        """Yield the names in the folder `above` and below it that begin with `prefix`, in order, each folder when due.

        Of writers' files, which have no name yet, those in folders that begin with `prefix`.
        """
        try:
            with os.scandir(os.path.join(self.root, above)) as found:
                parts = sorted(each.name + "/" * each.is_dir() for each in found)
        except (FileNotFoundError, NotADirectoryError):
            return
        for part in parts:  # with its slash, a folder stands where the names in it do
            name = f"{above}/{part}" if above else part
            if part.startswith("."):
                if unfinished and part.startswith(_UNFINISHED):
                    yield name
            elif part.endswith("/"):
                if name.startswith(prefix) or prefix.startswith(name):
                    yield from self._names(name[:-1], prefix, unfinished=unfinished)
            elif not unfinished and name.startswith(prefix):
                yield name

    def delete(self, names: Iterable[str]) -> None:
        """Delete all of these (see `Storage.delete`)."""
        # Without a sync of the folder: a name that a power cut brings back is garbage still, and is deleted again.
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))

    def discard_unfinished(self, prefix: str, min_age_secs: float = ABANDONED_SECS) -> int:
        """Delete what writers that died have left (see `Storage.discard_unfinished`)."""
        gone = 0
        for name in self._names(prefix.rpartition("/")[0], prefix, unfinished=True):
            path = os.path.join(self.root, name)
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.stat(path).st_mtime >= min_age_secs:
                    os.unlink(path)
                    gone += 1
        return gone

    def discard_empty(self, prefix: str, before: str) -> None:
        """Delete empty folders (see `Storage.discard_empty`)."""
        with contextlib.suppress(FileNotFoundError):
            for part in os.listdir(os.path.join(self.root, prefix)):
                if f"{prefix}{part}/" < before:
                    with contextlib.suppress(OSError):  # it is not empty, or no folder
                        os.rmdir(os.path.join(self.root, prefix, part))


def _each(names: Sequence[str], look: Callable[[str], _Found]) -> list[_Found]:
    """Return what `look` finds for each name, with threads from where the file system turns out to be slow."""
    found: list[_Found] = []
    began = time.perf_counter()
    for at, name in enumerate(names):
        if time.perf_counter() - began > _SLOW_SECS:
            return [*found, *at_once(names[at:], look)]
        found.append(look(name))
    return found


class _Spent(threading.local):
    sync_secs = 0.0


_spent = _Spent()


def sync_secs() -> float:
    """Return how many seconds this thread has waited for fsync of files and folders, since it began."""
    return _spent.sync_secs


def _sync(descriptor: int) -> None:
    began = time.perf_counter()
    try:
        os.fsync(descriptor)
    finally:
        _spent.sync_secs += time.perf_counter() - began


def _temporary(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f"{_UNFINISHED}{name}-{uuid4().hex}")


def make_folder(folder: str) -> None:
    """Make `folder` and what is missing above it, durably."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(os.path.abspath(folder))
    make_folder(parent)
    with contextlib.suppress(FileExistsError):  # another process makes it at this moment
        os.mkdir(folder)
    sync_folder(parent)  # also then: that process may not have come to it, and what lies in the folder counts on it


@contextmanager
def probe(folder: str) -> Iterator[str]:
    """Make a folder in `folder`, or above it as far as there is none; yield its path, and leave nothing behind.

    Files can be made there then, and who sees the probe sees `folder`, or will see it. Whether a user may write is not
    asked for, but tried: root may write everywhere, and not to a file system that is read only, or that lets nobody
    make folders, such as /proc.

    Raises OSError: from the file system.
    """
    nearest = folder
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    made = tempfile.mkdtemp(prefix=".probe-", dir=nearest)
    try:
        yield made
    finally:
        os.rmdir(made)


def sync_folder(folder: str) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)
