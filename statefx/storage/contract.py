"""A checkpoint's storage of bytes: so few verbs that a folder and an object store both have them."""

from __future__ import annotations

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, TypeVar
from uuid import uuid4

from statefx.errors import AlreadyExistsError, CheckpointError

_Found = TypeVar("_Found")

BATCH = 1000
"""Names that are deleted with one request, where a store can do so: S3's own limit."""

READERS = 16
"""Files that `Storage.read_all` reads at a time. Restoring 100 files of 20 kB at 30 ms a request took 6.4 s one after
the other, 0.5 s with 8 at a time, 0.25 s with 32; each of them is held in memory until it is used."""

DAMAGED = frozenset({errno.EIO, errno.EBADMSG, errno.ESTALE})
"""How `Storage.read` says that no later try will read it either."""

ABANDONED_SECS = 3600.0
"""A file that has no name yet and was not written to for so long is nobody's: its writer has died."""

PROBE = "probe-"
"""How the names begin under which somebody tries what a store can do."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One name that is there.

    Attributes
    ----------
    name : str
        Relative to the storage's root.
    size_bytes : int
    modified : float
        Seconds since the epoch, by the store's clock.
    """

    name: str
    size_bytes: int
    modified: float


class Storage(ABC):
    """Durable bytes below one root.

    Names are relative, in parts separated by ``/``; no part begins with a dot. An instance is made on the driver and
    pickled to the executors; what it needs to talk to a server is made when it is first used, in each process.

    Contract
    --------
    * What was created or written is there for every process that asks afterwards, whole, also after a power cut.
    * A name is there with all its bytes or not at all, whenever a process dies.
    * Of several `create` of one name one succeeds; the others raise AlreadyExistsError, unless their bytes are equal.
    * `create` says whether it is known to have failed (`NotWrittenError`) or not (`OutcomeUnknownError`).
    * `list` has every name that was there before it began and was not deleted, in order.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, as the user would write it; never with a secret in it."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Make `name` durable with these bytes, unless there is one already.

        The caller puts something into `data` that no other caller has: equal bytes are taken for the answer to an
        earlier request of its own that was lost.

        Raises
        ------
        AlreadyExistsError
            There is one, with other bytes.
        NotWrittenError
            Known not to have been written; ``usable`` tells whether trying again makes sense.
        OutcomeUnknownError
            It may be there, or still come: only a later look will tell.
        """

    @abstractmethod
    def writer(self, name: str, ending: Callable[[], str] = str) -> AbstractContextManager[BinaryIO]:
        """Open a file to be written, which gets its name when the block ends well, and is gone when it raises.

        The file can be sought in. Nobody but the caller has its name; what is there under it already is replaced.

        Parameters
        ----------
        name : str
        ending : callable
            Asked when the block has ended; what it returns is added to `name`. So a name can tell of the content.

        Raises
        ------
        OSError
            As a file does; after it nothing is left behind.
        """

    @abstractmethod
    def reader(self, name: str) -> BinaryIO:
        """Open what is under `name`, to be read in order or sought in.

        Raises
        ------
        FileNotFoundError
            There is none.
        OSError
            It can't be read.
        """

    @abstractmethod
    def list(self, prefix: str = "", after: str = "") -> Iterator[Stored]:
        """Yield what has a name that begins with `prefix` and comes after `after`, in order of the names."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete all of these; one that isn't there is fine. May end early by OSError: call it again."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes under `name`, or those from `start` up to `stop`.

        Raises
        ------
        FileNotFoundError
            There is none.
        OSError
            It can't be read; with EIO, EBADMSG or ESTALE only where no later try will read it either.
        """
        with self.reader(name) as file:
            file.seek(start)
            return file.read() if stop is None else file.read(max(0, stop - start))

    def read_all(self, names: Sequence[str], stop: int | None = None) -> Sequence[bytes | OSError]:
        """Read many, `READERS` at a time: for each its bytes (those up to `stop`), or what `read` raised."""
        return at_once(names, lambda name: self._read_or_error(name, stop))

    def _read_or_error(self, name: str, stop: int | None) -> bytes | OSError:
        try:
            return self.read(name, 0, stop)
        except OSError as error:
            return error

    def parts(self) -> Iterator[str]:
        """Yield the first part of each name, once, in order; a folder's empty folders as well.

        It tells whether anything is there at all, and reads no more than that takes.
        """
        last = ""
        for each in self.list():
            part = each.name.partition("/")[0]
            if part != last:
                yield part
            last = part

    def shares(self, name: str, other: Storage) -> bool:
        """Return whether `name` is one file here and in `other`: a file system may be mounted at two places."""
        return self.url == other.url

    def put(self, name: str, data: bytes) -> None:
        """Make `name` durable; nobody but the caller has it."""
        with self.writer(name) as file:
            file.write(data)

    def discard_unfinished(self, prefix: str, min_age_secs: float = ABANDONED_SECS) -> int:
        """Delete what writers that died have left below `prefix`; return how many there were."""
        return 0

    def discard_empty(self, prefix: str, before: str) -> None:
        """Delete empty folders in the folder `prefix` that come before the folder `before`, where a store has folders.

        A writer there at the same moment may fail with NotWrittenError: call it for folders that nobody fills any more.
        """

    def check(self) -> None:
        """Make sure that the store keeps what this contract says of `create`.

        The first start on an object store calls it; folders need no such check.

        Raises
        ------
        CheckpointError
            It lets two writers have one name: two drivers could not be told apart.
        """
        name = f"{PROBE}{uuid4().hex}"
        self.create(name, b"first")
        try:
            self.create(name, b"second")
        except AlreadyExistsError:
            self.delete([name])
            return
        raise CheckpointError(
            f"{self.url} lets a name be created twice: this store (or what stands before it) ignores conditional "
            "requests, and two drivers could both believe that they own the checkpoint. Use another store.",
            path=self.url,
        )


def at_once(names: Sequence[str], look: Callable[[str], _Found]) -> list[_Found]:
    """Return what `look` finds for each name, `READERS` at a time."""
    if len(names) < 2:
        return [look(name) for name in names]
    with ThreadPoolExecutor(min(READERS, len(names)), "statefx-read") as threads:
        return list(threads.map(look, names))


_NO_NAME = re.compile(r"(?:^|/)(?:[./]|\Z)|\0")


def checked(name: str) -> str:
    """Return `name` if it can be one.

    Raises
    ------
    ValueError
        It is absolute, leads out of the root, or has a part that is empty or begins with a dot.

    >>> checked("state/count/0")
    'state/count/0'
    """
    if _NO_NAME.search(name):
        raise ValueError(f"{name!r} can't be a name in a checkpoint")
    return name
