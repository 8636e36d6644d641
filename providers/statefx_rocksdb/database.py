"""One RocksDB directory: the image of one namespace, with a head that says of which version.

The head lies under the empty key; of the user's keys, those made of NUL bytes alone (the empty one among
them) get one more NUL, which keeps all keys apart and in order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import msgspec
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from statefx.errors import StateError
from statefx.state.changelog.files import Chunk
from statefx.state.contract.store import Namespace, Version
from statefx_rocksdb.provider import Settings

_HEAD_KEY = b""
_FIRST_PLAIN = b"\x01"
BATCH_BYTES = 16 << 20
"""Up to so much is written all at once."""

_RUNS = 8
"""Sorted runs that are merged into one; runs of like size, so that small ones never rewrite the large one."""

_RUNS_MAX = 32
_BLOCK_BYTES = 2048
"""A read of a key unpacks a block: half of the usual size saves a seventh of its time, and a fourth of it no more."""

BLOOM_BITS = 10
"""Bits for each key of the filters that say which files lack a key: for a million keys 1.25 MB in each process that has
the state open. Without them a read looks into each of the sorted files, and a key that is not there costs most."""

_WRITE_BUFFER_BYTES = 16 << 20
"""RocksDB's memtable, of which there are two at most while a cache catches up."""

_PENDING, _RUNNING = "compaction-pending", "num-running-compactions"
_IDLE_LOOKS = 25
_LOOK_SECS = 0.002
_OPEN_TRIES = 3


class UnusableError(StateError):
    """The local copy is damaged or can't be opened; it is a cache, so another one is built."""


@dataclass(frozen=True, slots=True)
class Head:
    """The content of a directory; while `complete` is False it holds a part of the version."""

    namespace: Namespace
    version: Version
    generation: int
    complete: bool = True


class Database:
    """A RocksDB directory, opened read-only (beside any writer) or for writing (one, under a lock).

    A `writable` one is made if it is missing. UnusableError: it is missing or damaged; so do all methods that find
    damage.
    """

    def __init__(self, path: str, settings: Settings, *, writable: bool = False) -> None:
        self.path = path
        if not writable and not os.path.exists(os.path.join(path, "CURRENT")):
            raise UnusableError(f"{path}: there is no database", path=path)
        access = AccessType.read_write() if writable else AccessType.read_only(False)
        for left in reversed(range(1 if writable else _OPEN_TRIES)):
            try:
                options = _options(settings)
                # By the column family's name, or rocksdict takes them for a new directory only: one that is there is
                # opened with the options that it was made with, of which neither the filter nor the cache are kept.
                families = {"default": options}
                self._rdict = Rdict(path, options, column_families=families, access_type=access)
                return
            except Exception as error:
                if not left:
                    raise UnusableError(f"{path}: {error}", path=path) from error

    def head(self) -> Head | None:
        """Return what the directory holds; None if nothing was ever written."""
        [raw] = self._multi_get([_HEAD_KEY])
        if raw is None:
            return None
        with self._usable():
            return msgspec.msgpack.decode(raw, type=Head)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        if min(keys) < _FIRST_PLAIN:
            return self._multi_get([_stored(key) for key in keys])
        return self._multi_get(keys)

    def _multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._usable():
            return cast("list[bytes | None]", self._rdict.get(list(keys)))

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        low = _stored(start or b"")
        high = None if stop is None else _stored(stop)
        if high is not None and high <= low:
            return
        bounds = ReadOptions()
        if high is not None:
            bounds.set_iterate_upper_bound(high)
        # A cursor and not `items`: both end at damage as they end at the last key, and only a cursor tells which
        with self._usable():
            cursor = self._rdict.iter(bounds)
            if reverse:
                cursor.seek_to_last()
            else:
                cursor.seek(low)
            step = cursor.prev if reverse else cursor.next
            while cursor.valid():
                stored = cast("bytes", cursor.key())
                if stored < low:  # rocksdict 0.3.29 sets the upper bound when told a lower one
                    return
                yield (stored if stored >= _FIRST_PLAIN else _plain(stored)), cast("bytes", cursor.value())
                step()
            cursor.status()

    def apply(self, chunks: Iterable[Chunk], size_bytes: int, head: Head) -> None:
        """Write `chunks` and `head` so that a kill at any moment leaves the old head, the new, or an incomplete one.

        Without RocksDB's own log: memtables reach the disk whole and in order, and the head rides in the
        batch of the last entries.
        """
        whole = size_bytes <= BATCH_BYTES
        options = WriteOptions()
        options.disable_wal = True  # type: ignore[assignment, method-assign]  # a property, which the stub calls a method
        with self._usable():
            if not whole:
                self._write_head(Head(head.namespace, head.version, head.generation, complete=False), options)
            batch = WriteBatch(raw_mode=True)
            for keys, values in chunks:
                _fill(batch, keys, values)
                if not whole:
                    self._rdict.write(batch, options)
                    batch = WriteBatch(raw_mode=True)
            batch.put(_HEAD_KEY, msgspec.msgpack.encode(head))
            self._rdict.write(batch, options)
            self._rdict.flush()

    def merge(self) -> None:
        """Wait until RocksDB has merged runs that are too many: closing breaks that off, and what was merged is lost.

        Without this the runs of one catch-up after another are never merged until `_RUNS_MAX` stops the writes, and a
        read of a large state looks into each of them. A run is rewritten as often as there are powers of `_RUNS`
        between its size and the whole, which comes to a few milliseconds for each catch-up.
        """
        number = self._rdict.property_int_value
        idle = 0
        with self._usable():
            while idle < _IDLE_LOOKS:  # one that is needed and does not begin is none that is worth waiting for
                # running between two looks for pending: one that begins or ends meanwhile is seen by a later look
                pending, running, more = (number(f"rocksdb.{name}") for name in (_PENDING, _RUNNING, _PENDING))
                if not (pending or running or more):
                    return
                idle = 0 if running else idle + 1
                threading.Event().wait(_LOOK_SECS)

    def _write_head(self, head: Head, options: WriteOptions) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.put(_HEAD_KEY, msgspec.msgpack.encode(head))
        self._rdict.write(batch, options)
        self._rdict.flush()

    def close(self) -> None:
        with self._usable():
            self._rdict.close()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Have whatever fails, but for what is read from the changelog, tell that this directory is damaged."""
        try:
            yield
        except StateError:
            raise
        except Exception as error:  # rocksdict raises nothing more exact
            raise UnusableError(f"{self.path}: {error}", path=self.path) from error


def _fill(batch: WriteBatch, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
    put, delete = batch.put, batch.delete
    if keys and keys[0] < _FIRST_PLAIN:
        keys = [_stored(key) for key in keys]
    for key, value in zip(keys, values, strict=True):
        if value is None:
            delete(key)
        else:
            put(key, value)


def _stored(key: bytes) -> bytes:
    return key if key.strip(b"\x00") else b"\x00" + key


def _plain(stored: bytes) -> bytes:
    return stored if stored.strip(b"\x00") else stored[1:]


@cache
def _block_cache(size_mb: int) -> Any:
    return Cache(size_mb << 20)


def _options(settings: Settings) -> Options:
    """Return the options that were measured; all files stay open, so compaction can't pull them from a reader.

    There is no block cache unless one is asked for. Keys that are read again are in the hot cache, blocks are in the
    system's page cache, and a block cache that is smaller than the state costs more than it saves: 25,000 random keys
    of 10 million took 7.3 us each with one of 16 MB, 5.2 without, 5.5 with one that held everything. Tried as well, and
    no better than 2 kB blocks: no compression, files mapped into memory (which count as the worker's memory), a hash
    index in each block, the clock cache.
    """
    table = BlockBasedOptions()
    if settings.block_cache_mb:
        table.set_block_cache(_block_cache(settings.block_cache_mb))
    else:
        table.disable_cache()
    table.set_bloom_filter(BLOOM_BITS, False)
    table.set_block_size(_BLOCK_BYTES)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_max_open_files(-1)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(_RUNS)
    options.set_level_zero_slowdown_writes_trigger(_RUNS_MAX)
    options.set_level_zero_stop_writes_trigger(_RUNS_MAX)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options
