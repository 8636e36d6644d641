"""An object store by its URL, through the ``obstore`` package: S3 and what speaks its language, Google's, Azure's."""

from __future__ import annotations

import errno
import io
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import obstore
from obstore import exceptions as failures
from obstore.store import ObjectStore, from_url

from statefx.errors import AlreadyExistsError, OutcomeUnknownError, StorageError
from statefx.storage.contract import BATCH, Storage, Stored, checked

if TYPE_CHECKING:
    from obstore import ObjectMeta  # for types alone, by obstore's own word

KEPT = timedelta(minutes=10)
"""How long what a profile gives is used. obstore asks again five minutes before the end. The least that a role can be
assumed for is 15 minutes, and a file that somebody has written anew is read."""

_OTHERS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that say where other credentials are: obstore reads these, and boto3 too would take them first."""


def has_profile() -> bool:
    """Return whether credentials are those of a profile: one is named, or there is a file and nothing else is set."""
    if any(os.environ.get(name) for name in _OTHERS):
        return False
    return bool(os.environ.get("AWS_PROFILE")) or os.path.isfile(_file())


def _file() -> str:
    return os.path.expanduser(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")


class ProfileCredentials:
    """Credentials for obstore, which calls this whenever its own are about to expire.

    obstore has a provider of its own for boto3, which keeps the keys that a file had at first. Each call here reads the
    files anew.

    Attributes
    ----------
    config : Mapping
        What else the profile says of the store: the region.

    Raises
    ------
    StorageError
        boto3 is missing, or the profile.
    """

    def __init__(self) -> None:
        region = self._session().region_name
        self.config = {"region": region} if region else {}

    def __call__(self) -> dict[str, Any]:
        """Return the credentials as they are now."""
        found = self._session().get_credentials()
        if found is None:
            raise StorageError(f"{_named()} has no credentials: see `aws configure`")
        keys = found.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + KEPT,
        }

    @staticmethod
    def _session() -> Any:
        try:
            import boto3  # noqa: PLC0415 - an extra of its own: obstore alone reads all but profiles
            from botocore.exceptions import ProfileNotFound  # noqa: PLC0415
        except ImportError as error:
            raise StorageError(
                f"{_named()} is read by boto3, which is not installed: pip install 'statefx[aws]', on the executors "
                "too, or give the credentials in another way"
            ) from error
        try:
            return boto3.Session()
        except ProfileNotFound as error:
            raise StorageError(f"{error}: AWS_PROFILE names a profile of ~/.aws on this machine") from None


def _named() -> str:
    profile = os.environ.get("AWS_PROFILE")
    return f"the profile {profile!r} of AWS_PROFILE" if profile else f"the default profile in {_file()}"


TIMEOUT = "10s"
"""For one request. The library's own 30 s, ten times, would outlast a transaction's timeout."""

RETRIES = 3
"""Of one request, by the library, after 5xx and after connections that could not be made; with jitter."""

TRIES = 3
"""Of each operation as a whole. The library gives up at once where a connection breaks within an answer, or before the
answer to a put or a delete: it can't know that here each may be done twice. No try begins later than `TRY_SECS`."""

TRY_SECS = 10.0

_FIRST_WAIT_SECS = 0.1

BLOCK_BYTES = 4 << 20
"""Read at once: at 30 ms a request and 100 MB/s, less would be spent waiting."""

READ_BYTES = 16 << 20
"""The most that one request reads: it may take `TIMEOUT` with all its bytes, four times in all as the library goes on
behind those that came. Asked for at once, 60 MB at 1 MB/s were given up after 40 s, and so at each later try."""

_SPOOLED_BYTES = 16 << 20
"""Bytes that stay in memory before they go to a local file, which is uploaded when it is complete."""

_FAILED = errno.EREMOTEIO
"""Of every failure of a store. Not EIO, which says of a file that no later try will read it: of a store that does not
answer nobody can say so."""

_Done = TypeVar("_Done")

_used_in: list[int] = []
"""The processes that have talked to a store: obstore's threads do not survive a fork, and a child would hang."""


class ObjectStorage(Storage):
    """Objects below a URL; a name is the rest of the key.

    A put is whole or not there, by the store itself. `create` is a put with ``If-None-Match: *``: S3 has it since
    2024. An answer that was lost is not told from one that says no, so on "exists" the bytes are compared: with every
    third answer dropped, half of all retries report "exists" for an object that is our own.

    Parameters
    ----------
    url : str
        ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``.
        Credentials, region and endpoint come from the environment of each process that uses it, as for any client:
        from variables, a profile, or the role of the container or the machine. What expires is asked for again.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._made: ObjectStore | None = None

    def __repr__(self) -> str:
        return f"ObjectStorage({self._url!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}  # a client has threads and connections, which stay where they are

    @property
    def url(self) -> str:
        """The URL it was made with."""
        return self._url

    def create(self, name: str, data: bytes) -> None:
        """Make `name` durable with these bytes, unless there is one already (see `Storage.create`)."""
        try:
            # In one request: the condition is one of a single put (rule 3.1: one writer has the number). Of a second
            # try after an answer that was lost, "exists" may be our own.
            _again(lambda: obstore.put(self._store, checked(name), data, mode="create", use_multipart=False))
        except failures.AlreadyExistsError as error:
            self._compare(name, data, error)
        except failures.BaseError as error:
            # Also where it says that this is not allowed: that may be the answer to a repeated request, of which the
            # first was carried out before the credentials ended, and its answer was lost.
            self._compare(name, data, error)

    def _compare(self, name: str, data: bytes, error: Exception) -> None:
        """Read back what is under the name, and let that decide."""
        where = self._at(name)
        try:
            found = self.read(name)
        except OSError as unreadable:
            # also where it isn't there: a request that was given up may still be carried out
            raise OutcomeUnknownError(
                f"{where} may or may not have been written: {_said(error)}", path=where
            ) from unreadable
        # Equal bytes are our own, of a request whose answer was lost: each record holds a nonce (rule 3.2).
        if found != data:
            raise AlreadyExistsError(f"{where} is there already", path=where) from None

    @contextmanager
    def writer(self, name: str, ending: Callable[[], str] = str) -> Iterator[BinaryIO]:
        """Open a file to be written (see `Storage.writer`); it is uploaded when the block ends."""
        checked(name)
        with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as file:
            yield cast(BinaryIO, file)
            name += ending()  # a block that raises does not come here, and nothing has been uploaded
            with _as_os_error(self._at(name)):
                _again(lambda: self._upload(checked(name), cast(BinaryIO, file)))

    def _upload(self, name: str, file: BinaryIO) -> None:
        file.seek(0)
        obstore.put(self._store, name, file)

    def reader(self, name: str) -> BinaryIO:
        """Open what is under `name` (see `Storage.reader`): one request per `BLOCK_BYTES`, the first one now."""
        first, size = self._range(name, 0, BLOCK_BYTES)
        return io.BufferedReader(_Object(self, name, first, size), BLOCK_BYTES)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes under `name`, or a part of them (see `Storage.read`); one request per `READ_BYTES`."""
        if stop is not None and stop <= start:
            return b""
        most = start + READ_BYTES
        first, size = self._range(name, start, most if stop is None else min(stop, most))
        parts, at = [first], start + len(first)
        end = size if stop is None else min(stop, size)
        while parts[-1] and at < end:
            parts.append(self._range(name, at, min(end, at + READ_BYTES))[0])
            at += len(parts[-1])
        return b"".join(parts) if len(parts) > 1 else first

    def _range(self, name: str, start: int, stop: int) -> tuple[bytes, int]:
        """Return a part of an object, and the size of the whole."""

        def got() -> tuple[bytes, int]:
            found = obstore.get(self._store, checked(name), options={"range": (start, stop)})
            return bytes(found.bytes()), found.meta["size"]

        with _as_os_error(self._at(name)):
            try:
                return _again(got)
            except (FileNotFoundError, failures.PermissionDeniedError, failures.UnauthenticatedError):
                raise
            except failures.BaseError:
                size = _again(lambda: obstore.head(self._store, name)["size"])
                if size > start:
                    raise
                return b"", size  # a store has an error for what is beyond the end

    def list(self, prefix: str = "", after: str = "") -> Iterator[Stored]:
        """Yield what has a name that begins with `prefix` and comes after `after` (see `Storage.list`)."""
        above = prefix.rpartition("/")[0]  # obstore's prefixes end at a slash
        last, pages = after, None

        def page() -> Sequence[ObjectMeta]:
            nonlocal pages
            try:
                if pages is None:
                    pages = obstore.list(self._store, above or None, offset=last or None, chunk_size=BATCH)
                return next(pages, ())
            except failures.BaseError:
                pages = None  # one that has failed does not go on: the next try begins behind what has come
                raise

        while True:
            with _as_os_error(self._at(prefix)):
                found = _again(page)
            if not found:
                return
            for each in found:
                last = each["path"]
                if last.startswith(prefix) and last > after:
                    yield Stored(last, each["size"], each["last_modified"].timestamp())

    def delete(self, names: Iterable[str]) -> None:
        """Delete all of these, a thousand with one request (see `Storage.delete`)."""
        left = iter(names)
        while batch := [checked(name) for name in islice(left, BATCH)]:
            try:
                _again(lambda: obstore.delete(self._store, batch))
            except (FileNotFoundError, failures.NotFoundError):  # Google's store says so of a name that is not there
                for name in batch:
                    self._delete_one(name)
            except failures.BaseError as error:
                raise OSError(_FAILED, f"{self._url}: {_said(error)}", self._url) from None

    def _delete_one(self, name: str) -> None:
        with suppress(FileNotFoundError), _as_os_error(self._at(name)):
            _again(lambda: obstore.delete(self._store, name))

    def _at(self, name: str) -> str:
        return f"{self._url}/{name}"

    @property
    def _store(self) -> ObjectStore:
        """The client of this process."""
        _check_not_forked()
        if self._made is None:
            client = {"timeout": TIMEOUT, "allow_http": _allows_http()}
            given: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": RETRIES}}
            if self._url.startswith("s3:") and has_profile():
                given["credential_provider"] = ProfileCredentials()
            made: Any = from_url  # its overloads are one per store, by the URL's scheme
            self._made = made(self._url, **given)
        return self._made


def _allows_http() -> bool:
    """Return whether the environment has an endpoint without TLS: options of a client hide what obstore reads of it."""
    said = {key.upper(): value.lower() for key, value in os.environ.items()}
    endpoints = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
    return any(said.get(f"{of}_ALLOW_HTTP") == "true" for of in ("AWS", "AZURE", "GOOGLE")) or any(
        said.get(name, "").startswith("http:") for name in endpoints
    )


def _again(call: Callable[[], _Done]) -> _Done:
    """Return what `call` returns; after a failure that may pass it is called again, `TRIES` times in all."""
    end, wait = time.monotonic() + TRY_SECS, _FIRST_WAIT_SECS
    for _ in range(TRIES - 1):
        try:
            return call()
        except failures.GenericError:
            pause = random.uniform(0, wait)  # many tasks fail together, and must not come back together
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)
            wait *= 2
    return call()


def _said(error: Exception) -> str:
    """Return what a store has said: where it answers in XML, its code and message and nothing else of that.

    The rest of a refusal may hold the session token: S3 repeats one that has expired.
    """
    text = str(error).partition("\n\nDebug source")[0]
    said = ": ".join(each[1] for name in ("Code", "Message") if (each := re.search(f"<{name}>([^<]*)</{name}>", text)))
    line = re.split(r"[<{\n]", text, maxsplit=1)[0].rstrip(": ")
    return f"{line}, {said}" if said else line


class _Object(io.RawIOBase):
    """An object as an unbuffered file."""

    def __init__(self, storage: ObjectStorage, name: str, first: bytes, size: int) -> None:
        self._storage, self._name, self._first, self._size, self._at = storage, name, first, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        if self._at < len(self._first):
            data = self._first[self._at : stop]
        else:
            data = self._storage.read(self._name, self._at, stop) if stop > self._at else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@contextmanager
def _as_os_error(where: str) -> Iterator[None]:
    """Let failures of a store look as those of a file do.

    Without a cause: that would show all of a store's answer wherever a traceback is printed (see `_said`).
    """
    try:
        yield
    except (FileNotFoundError, failures.NotFoundError):
        raise FileNotFoundError(errno.ENOENT, f"there is no {where}", where) from None
    except failures.BaseError as error:
        raise OSError(_FAILED, f"{where}: {_said(error)}", where) from None


def _check_not_forked() -> None:
    """Refuse to hang.

    Raises StorageError: this process was forked from one that has used obstore.
    """
    if _used_in and _used_in[0] != os.getpid():
        raise StorageError(
            "this process was forked from one that had used an object store, and would hang: start processes with "
            'multiprocessing.get_context("spawn")'
        )
    if not _used_in:
        _used_in.append(os.getpid())
