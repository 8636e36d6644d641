"""One namespace on a Redis server.

Reads are of one version: a commit is marked before its first change and unmarked with its last, each in one script;
who sees the mark lays what is prepared over what is committed, and who sees it come or go reads again.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgpack

from statefx.errors import (
    CommitFailedError,
    CommitOutcomeUnknownError,
    StateCorruptedError,
    StateError,
    StatefxError,
    UnreachableError,
)
from statefx.state.contract.ranges import merge
from statefx.state.contract.store import (
    EMPTY,
    Namespace,
    Prepared,
    StateContext,
    StateStore,
    StoreCalls,
    Version,
    Write,
)
from statefx_redis import scripts
from statefx_redis.scripts import (
    BATCH_BYTES,
    CHUNK_BYTES,
    CHUNK_ENTRIES,
    REMEDY,
    Names,
    damaged,
    fenced,
    grouped,
    lineage_keys,
    packed,
    sound,
    text,
)
from statefx_redis.server import Server

AHEAD = "open it again; if that does not help, the checkpoint is older than the server: restore the newer one"


@dataclass(frozen=True, slots=True)
class Stored:
    """A namespace on the server, at one moment.

    `committing` is the commit that is under way: what it changes is decided, though not all of it is among the data
    yet. `entry` is how the token that was asked for is registered, if it is prepared; `complete`: with all its chunks.
    """

    generation: int
    version: Version
    committing: Version | None
    entry: Entry | None
    complete: bool

    def same(self, other: Stored) -> bool:
        """Return whether nothing began or ended between the two, so that what was read between is of one version."""
        return (self.version, self.committing) == (other.version, other.committing)

    def can_become(self, version: Version) -> bool:
        """Return whether `version` is prepared, on top of what is committed."""
        return self.complete and self.entry is not None and self.entry.base == self.version


def parse(answer: Sequence[Any], namespace: Namespace, names: Names) -> Stored:
    """Read what `scripts.LOOK` answered.

    Raises StateCorruptedError: fields are missing or too many, or a key is someone else's.
    """
    meta, fields, ordered, entry, chunks = sound(answer)[:5]
    txid, token, count, next_txid, next_token = meta[1:6]
    if not fields == ordered == int(count or 0):
        raise corrupted(
            namespace,
            names,
            f"there are {fields} values and {ordered} ordered keys, where {int(count or 0)} were committed: "
            "some were evicted, deleted or added",
        )
    lineage = meta[7]
    if lineage is not None and text(lineage) != namespace.lineage:
        raise corrupted(namespace, names, f"it is of lineage {text(lineage)}")
    found_entry = None if entry is None else Entry(entry[0], entry[1], entry[2], text(entry[3]), entry[4])
    return Stored(
        generation=int(meta[0] or 0),
        version=EMPTY if txid is None else Version(int(txid), text(token)),
        committing=None if next_token is None else Version(int(next_txid), text(next_token)),
        entry=found_entry,
        complete=found_entry is not None and chunks == found_entry.chunks + 1,
    )


def corrupted(
    namespace: Namespace, names: Names, what: str, *, missing: bool = False, remedy: str = REMEDY
) -> StateCorruptedError:
    return StateCorruptedError(
        f"state of {namespace.component}/{namespace.task} at {names.meta}: {what}. To go on, {remedy}.",
        namespace=namespace,
        path=names.meta,
        missing=missing,
    )


def mismatch(namespace: Namespace, names: Names, log: Version, server: Version) -> StateCorruptedError:
    ahead, gone = server.txid > log.txid, server == EMPTY
    why = "the server has gone on" if ahead else "the server was emptied, restored from an older dump, or failed over"
    if gone:
        why += "; or this was opened before a tool wrote the state anew, under another name: then open it again"
    return corrupted(
        namespace,
        names,
        f"the transaction log says transaction {log.txid} (token {log.token or 'none'}), the server holds "
        f"transaction {server.txid} (token {server.token or 'none'}): {why}",
        missing=ahead or gone,
        remedy=AHEAD if ahead else REMEDY,
    )


INDEX = "index"
"""The field that holds the first key of each chunk."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a prepared token is registered; `base` is the committed version that it changes."""

    txid: int
    generation: int
    base_txid: int
    base_token: str
    chunks: int
    """-1 until it is complete."""

    @property
    def base(self) -> Version:
        return Version(self.base_txid, self.base_token)


def _chunk(writes: Sequence[Write]) -> tuple[bytes, bytes]:
    """Return (first key, chunk) for `writes`, which are sorted by key; a chunk is [deleted keys], [key, value, ...]."""
    gone = [key for key, value in writes if value is None]
    put = [part for key, value in writes if value is not None for part in (key, value)]
    return writes[0][0], packed([gone, put])


def batches(writes: Sequence[Write]) -> Iterator[tuple[list[str | bytes], int]]:
    """Yield (fields with their chunks, chunks so far or -1 if more follow) for each round trip of a prepare."""
    sized = ((write, len(write[0]) + len(write[1] or b"")) for write in writes)
    chunks = map(_chunk, grouped(sized, CHUNK_BYTES, CHUNK_ENTRIES))
    firsts: list[bytes] = []
    fields: list[str | bytes] = []
    for batch in grouped(((each, len(each[1])) for each in chunks), BATCH_BYTES):
        if fields:
            yield fields, -1
        fields = []
        for first, chunk in batch:
            fields += (str(len(firsts)), chunk)
            firsts.append(first)
    yield [*fields, INDEX, packed(firsts)], len(firsts)


class GoneError(Exception):
    """The prepared version is no longer there: it has just been committed, or was deleted."""


class PreparedChanges:
    """Reads the changes that a token names; what was read is kept, for it never changes."""

    def __init__(self, server: Server, names: Names, token: str) -> None:
        self.token = token
        self._server = server
        self._key = names.prepared(token)
        self._firsts: list[bytes] | None = None
        self._chunks: dict[int, dict[bytes, bytes | None]] = {}

    def of(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """Return the changes of `keys`; those that are not changed are missing."""
        firsts = self._index()
        places = {key: bisect_right(firsts, key) - 1 for key in keys}
        self._load({at for at in places.values() if at >= 0})
        return {key: self._chunks[at][key] for key, at in places.items() if at >= 0 and key in self._chunks[at]}

    def between(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> list[Write]:
        """Return the changes with start <= key < stop, in key order or in the reverse."""
        firsts = self._index()
        lowest = 0 if start is None else max(0, bisect_right(firsts, start) - 1)
        inside = range(lowest, len(firsts) if stop is None else bisect_left(firsts, stop))
        self._load(set(inside))
        found = {key: value for at in inside for key, value in self._chunks[at].items()}
        return sorted(
            (
                (key, value)
                for key, value in found.items()
                if (start is None or key >= start) and (stop is None or key < stop)
            ),
            reverse=reverse,
        )

    def _index(self) -> list[bytes]:
        if self._firsts is None:
            [index] = self._fields([INDEX])
            firsts = _unpack(index)
            if not _is_texts(firsts):
                raise damaged(self._key, "its index is not what was written")
            self._firsts = firsts
        return self._firsts

    def _load(self, wanted: set[int]) -> None:
        missing = sorted(wanted - self._chunks.keys())
        for begin in range(0, len(missing), 16):
            some = missing[begin : begin + 16]
            for at, chunk in zip(some, self._fields([str(at) for at in some]), strict=True):
                changes = _changes(_unpack(chunk))
                if changes is None:
                    raise damaged(self._key, f"its chunk {at} is not what was written")
                self._chunks[at] = changes

    def _fields(self, fields: list[str]) -> list[bytes]:
        found: list[bytes | None] = self._server.call(self._key, lambda client: client.hmget(self._key, fields))
        if None in found:
            raise GoneError
        return [each for each in found if each is not None]


def _unpack(data: bytes) -> Any:
    """Return what `packed` made, or None for other bytes."""
    try:
        return msgpack.unpackb(data, raw=True)
    except (ValueError, msgpack.UnpackException):
        return None


def _changes(chunk: Any) -> dict[bytes, bytes | None] | None:
    """Return what a chunk changes, or None if it is not one of ours."""
    if not isinstance(chunk, list) or len(chunk) != 2 or not all(map(_is_texts, chunk)) or len(chunk[1]) % 2:
        return None
    gone, put = chunk
    return {**dict.fromkeys(gone), **dict(zip(put[::2], put[1::2], strict=True))}


def _is_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(each, bytes) for each in found)


GET_KEYS = 2000
"""Keys of one HMGET; those of one `get` are all in one round trip."""

READ_TRIES = 50

FIRST_KEYS = 32
"""Keys of the first page: many scans are of a few keys, or go no further than the first one."""

MOST_KEYS = 1000
"""Keys of the largest; each page is four times the one before."""

PAGE_BYTES = 1 << 20
"""Values of a page, about: one that is longer is the last of its page."""


def lexical(start: bytes | None, stop: bytes | None) -> tuple[bytes, bytes]:
    """Return start <= key < stop as Redis writes it; None is unbounded."""
    return b"-" if start is None else b"[" + start, b"+" if stop is None else b"(" + stop


class Pages:
    """The rest of a range, read page by page, each in one round trip; `more`: there may be another page."""

    def __init__(self, start: bytes | None, stop: bytes | None, reverse: bool) -> None:
        self.more = True
        self._least, self._most = lexical(start, stop)
        self._reverse = reverse
        self._keys = FIRST_KEYS

    def arguments(self) -> tuple[bytes, bytes, int, int, int]:
        """Return what the script for the next page is given."""
        return self._least, self._most, self._keys, PAGE_BYTES, int(self._reverse)

    def turned(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Return the page's rows: the first of its `keys`, which came with their values."""
        rows = list(zip(keys, values, strict=False))
        self.more = len(values) < len(keys) or len(keys) == self._keys
        self._keys = min(4 * self._keys, MOST_KEYS)
        if rows and self._reverse:
            self._most = b"(" + rows[-1][0]
        elif rows:
            self._least = b"(" + rows[-1][0]
        return rows


class RedisStateStore(StateStore):
    """One namespace, opened at a version.

    Raises StateCorruptedError: the server holds neither ``context.version`` nor what it can be made of.
    """

    def __init__(self, server: Server, namespace: Namespace, context: StateContext) -> None:
        self._server = server
        self._namespace = namespace
        self._names = Names.of(server.settings.prefix, namespace)
        self._context = context
        self._calls = StoreCalls(namespace, context)
        self._deciding: Version | None = None
        self._size_bytes = 0
        self._overlay: PreparedChanges | None = None
        self._check_version(self._look())

    # ---- reading

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._calls.check_open("get")
        if not keys:
            return []
        for _ in range(READ_TRIES):
            before, values, after = self._server.call(self._names.meta, lambda client: self._trip(client, keys))
            stored = self._parse(before)
            if not stored.same(self._parse(after)):
                continue
            try:
                overlay = self._overlay_for(stored)
                if overlay is not None:
                    changes = overlay.of(keys)
                    return [changes.get(key, value) for key, value in zip(keys, values, strict=True)]
            except GoneError:
                self._check_gone(stored)
                continue
            return values
        raise self._restless()

    def _trip(self, client: Any, keys: Sequence[bytes]) -> tuple[Any, list[bytes | None], Any]:
        names = self._names.all(self._calls.version.token)
        pipeline = client.pipeline(transaction=False)
        pipeline.eval(scripts.LOOK, len(names), *names, self._calls.version.token)
        for begin in range(0, len(keys), GET_KEYS):
            pipeline.hmget(self._names.data, keys[begin : begin + GET_KEYS])
        pipeline.eval(scripts.LOOK, len(names), *names, self._calls.version.token)
        answers = pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        before, *parts, after = answers
        return before, [value for part in parts for value in part], after

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._calls.check_open("scan")
        return self._scan(start, stop, reverse)

    def _scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        self._calls.check_open("scan")
        pages = Pages(start, stop, reverse)
        for _ in range(READ_TRIES):
            stored, rows = self._page(pages)
            try:
                overlay = self._overlay_for(stored)
                changes = [] if overlay is None else overlay.between(start, stop, reverse)
            except GoneError:
                self._check_gone(stored)
                pages = Pages(start, stop, reverse)
                continue
            break
        else:
            raise self._restless()
        for row in merge(changes, self._committed(rows, pages, self._decided(stored)), reverse):
            self._calls.check_open("scan")
            yield row

    def _check_gone(self, before: Stored) -> None:
        """Refuse changes that are not there although nothing has been committed meanwhile."""
        if self._look() == before:
            decided = self._decided(before)
            raise damaged(self._names.prepared(decided.token), f"parts of transaction {decided.txid} are gone")

    def count(self, space: bytes) -> int:
        """Return how many keys begin with the byte `space`; where a commit is not done yet, by reading them."""
        self._calls.check_open("count")
        end = None if space == b"\xff" else bytes([space[0] + 1])
        names, token = self._names.all(self._calls.version.token), self._calls.version.token
        answer = self._server.eval(scripts.COUNT, names, token, *lexical(space, end))
        if self._overlay_for(self._parse(answer)) is None:
            return int(answer[5])
        return sum(1 for _ in self._scan(space, end, False))

    def _committed(
        self, rows: list[tuple[bytes, bytes]], pages: Pages, version: Version
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield `rows` and those of the pages that follow, as long as the server shows `version`."""
        yield from rows
        while pages.more:
            stored, rows = self._page(pages)
            if self._decided(stored) != version:
                raise self._moved(stored)
            yield from rows

    def _page(self, pages: Pages) -> tuple[Stored, list[tuple[bytes, bytes]]]:
        names = self._names.all(self._calls.version.token)
        answer = self._server.eval(scripts.SCAN, names, self._calls.version.token, *pages.arguments())
        stored = self._parse(answer)
        keys, values = answer[5], answer[6]
        if None in values:
            raise damaged(self._names.data, f"key {keys[values.index(None)]!r} has no value")
        return stored, pages.turned(keys, values)

    # ---- the transaction

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        """Send `writes` to a hash of their own, named by `token`."""
        version = Version(txid, token)
        self._calls.check_prepare(version)
        if self._calls.prepared is None:
            base, size = self._calls.version, 0
            for fields, chunks in batches(writes):
                entry = Entry(txid, self._context.generation, base.txid, base.token, chunks)
                self._send(token, entry, fields)
                size += sum(map(len, fields[1::2]))
            self._calls.prepared, self._size_bytes = version, size
        return Prepared(token, self._size_bytes)

    def _send(self, token: str, entry: Entry, fields: list[str | bytes]) -> None:
        """Send one batch, once more when the namespace is new or the version below has been committed by that."""
        names = [self._names.meta, self._names.tokens, self._names.prepared(token)]
        lineage, registered = self._namespace.lineage, ""
        answer: list[Any] = []
        for _ in range(3):
            answer = self._server.eval(
                scripts.PREPARE, names, registered, lineage, token, json.dumps(asdict(entry)), *fields
            )
            if answer[0] == b"REGISTER":
                keys = lineage_keys(self._names.prefix, lineage)
                self._expect(self._server.eval(scripts.REGISTER, keys, entry.generation, self._names.tag))
                registered = "registered"
            elif answer[0] == b"MOVED" and self._look().can_become(self._calls.version):
                self._apply(self._calls.version)  # the server lost the commit of the log's version, and can do it again
            else:
                break
        self._expect(answer)

    def commit(self, txid: int, token: str) -> None:
        """Let the server apply what `token` names, chunk by chunk, and make it the committed version."""
        self._calls.check_writable("commit")
        before, self._deciding = self._deciding, Version(txid, token)
        try:
            self._apply(self._deciding)
        except CommitOutcomeUnknownError:
            raise
        except StatefxError:
            self._deciding = before
            raise
        self._calls.commit(Version(txid, token))
        self._deciding, self._overlay = None, None

    def _apply(self, version: Version) -> None:
        txid, token = version.txid, version.token
        under_way = False
        while True:
            try:
                answer = self._server.eval(
                    scripts.COMMIT, self._names.all(token), self._context.generation, txid, token
                )
            except StateCorruptedError:
                raise
            except StateError as error:
                if under_way or (isinstance(error, UnreachableError) and error.sent):
                    raise CommitOutcomeUnknownError(
                        f"commit of transaction {txid} may have happened: {error.message}", txid=txid, token=token
                    ) from error
                raise CommitFailedError(
                    f"transaction {txid} was not committed: {error.message}", txid=txid, token=token
                ) from error
            if answer[0] != b"MORE":
                break
            under_way = True
        if answer[0] == b"MISSING":
            raise corrupted(
                self._namespace,
                self._names,
                f"what was prepared for transaction {txid} (token {token}) is not on the server, or not all of it",
            )
        if answer[0] != b"DONE":
            self._expect(answer)

    def rollback(self, txid: int, token: str) -> None:
        """Forget what this object prepared; it is left to the sweep, since nothing names it."""
        self._calls.check_writable("rollback")
        stored = self._look()
        if Version(txid, token) in (stored.version, stored.committing):
            raise self._calls.refusal(f"rollback({txid}, {token!r}) of what is committed, or being committed")
        self._calls.rollback(Version(txid, token))

    def snapshot(self) -> None:
        """Do nothing: the server has the state."""
        self._calls.check_writable("snapshot")

    def close(self) -> None:
        """Release nothing but memory; connections are the process's."""
        self._calls.closed = True
        self._overlay = None

    # ---- versions

    def _look(self) -> Stored:
        token = self._calls.version.token
        return self._parse(self._server.eval(scripts.LOOK, self._names.all(token), token))

    def _parse(self, answer: Any) -> Stored:
        return parse(answer, self._namespace, self._names)

    def _check_version(self, stored: Stored) -> None:
        """Refuse a server that was emptied, restored or replaced, and for a reader also one that has gone on.

        A store may still be told to commit what was committed already, so one that can be told opens.
        """
        wanted = self._calls.version
        if wanted in (stored.version, stored.committing) or stored.can_become(wanted):
            return
        if stored.version.txid == wanted.txid + 1 and not self._context.read_only:
            return
        raise self._moved(stored)

    def _decided(self, stored: Stored) -> Version:
        """Return the version that readers of `stored` see."""
        if (
            stored.committing is None
            and stored.version != self._calls.version
            and stored.can_become(self._calls.version)
        ):
            return self._calls.version  # in the log, though the server has not been told yet, or has forgotten
        return stored.committing or stored.version

    def _overlay_for(self, stored: Stored) -> PreparedChanges | None:
        """Return what has to be laid over the data; a read-only store goes on with the server."""
        decided = self._decided(stored)
        if decided not in (self._calls.version, self._deciding):
            if not self._context.read_only or decided.txid < self._calls.version.txid:
                raise self._moved(stored)
            self._calls.version = decided
        if decided == stored.version:
            self._overlay = None
        elif self._overlay is None or self._overlay.token != decided.token:
            self._overlay = PreparedChanges(self._server, self._names, decided.token)
        return self._overlay

    # ---- errors

    def _moved(self, stored: Stored) -> StatefxError:
        """Return the error for a server that is at another version; who has been replaced is told that instead."""
        if stored.generation > self._context.generation and not self._context.read_only:
            return fenced(self._names.meta, stored.generation, self._context.generation)
        return mismatch(self._namespace, self._names, self._calls.version, stored.committing or stored.version)

    def _restless(self) -> StateError:
        return StateError(
            f"{self._names.meta} changed {READ_TRIES} times while it was read: try again", namespace=self._namespace
        )

    def _expect(self, answer: Sequence[Any]) -> None:
        """Raise what an answer other than OK means."""
        word, more = answer[0], answer[1:]
        if word == b"OK":
            return
        if word == b"COUNT":
            self._parse([[None, None, None, more[0], None, None, None, None], more[1], more[2], None, 0])
        server = Version(int(more[0]), text(more[1]))
        if word == b"PASSED":
            raise self._calls.refusal(f"another version is committed already, {server}")
        assert word == b"MOVED", answer
        raise mismatch(self._namespace, self._names, self._calls.version, server)
