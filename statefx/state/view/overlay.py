"""What one task's state keeps in memory: its uncommitted changes, and what it has read of what is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from statefx.errors import CodecError, StateCorruptedError
from statefx.state.contract.ranges import merge
from statefx.state.contract.spaces import end_of
from statefx.state.contract.store import StateStore, Write
from statefx.state.encoding.codec import Codec
from statefx.state.encoding.envelope import MARK, NEVER, expiry_of
from statefx.state.encoding.values import AS_IT_IS, is_settled
from statefx.state.view.pending import (
    ABSENT,
    MAX_KINDS,
    PLAIN,
    UNKNOWN,
    Kind,
    MemoryKey,
    Missing,
    Packed,
    PendingKeys,
)
from statefx.state.view.undo import Journal


class StoreReads:
    """The reads of one store, and whether one has failed.

    A bolt may take an error of `get` for a key that is not there (``except Exception: count = 0``), and what it puts
    then would be committed in place of what was. So nothing is prepared of a transaction in which a read has failed.

    Attributes
    ----------
    failure : Exception or None
        What the first read that failed has raised.
    """

    __slots__ = ("_store", "failure")

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.failure: Exception | None = None

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read some keys (see `StateStore.get`)."""
        try:
            return self._store.get(keys)
        except Exception as error:
            self.failed(error)
            raise

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Read a range (see `StateStore.scan`)."""
        try:
            yield from self._store.scan(start, stop, reverse)
        except Exception as error:
            self.failed(error)
            raise

    def count(self, space: bytes) -> int | None:
        """Count the entries of a space (see `StateStore.count`)."""
        try:
            return self._store.count(space)
        except Exception as error:
            self.failed(error)
            raise

    def failed(self, error: Exception) -> None:
        """Take note that what was read could not be told; a value that can't be decoded is as unknown as any."""
        self.failure = self.failure or error


ENTRY_BYTES = 200
"""What Python needs to remember one entry, besides its bytes: two objects' heads and a place in a dict, about."""


WITH_TTL = "; its map has a ttl: open it with state.map(name, ttl=...), or remove all with deleteRange(None, None)"

_SAMPLE = 100
"""Entries whose size stands for that of others."""


class Overlay:
    """Changes of this transaction over what is committed.

    Four maps, kind -> name -> entry, of the same kinds; they are cleared and never replaced, for `KeyValueState` holds
    them too:

    ============  =========================================  =====================================================
    map           what this transaction has put              what is known of what lies below; may be forgotten
    ============  =========================================  =====================================================
    immutable     ``changed``                                ``known``, which also has `ABSENT`
    mutable       ``changed_bytes``; None stands for a       ``known_bytes``
                  deletion
    ============  =========================================  =====================================================

    Immutable values are kept as they are and encoded when the transaction is prepared: a counter that is put a thousand
    times is encoded once. Mutable ones are encoded at once, so that changing a list after `put` changes no state. A key
    in `changed_bytes` is neither in `changed` nor in `known`: who finds a key in one of these need not look further.

    While there is a `journal`, it is told what each change replaces. `before_undo` is called before that is put back;
    `undone` counts how often.

    `plain` are the types of keys that are looked up as they are. `pending` has the changes in order, from the first
    scan that finds some until they are committed or discarded. `codec` puts `head` before a key; of the store
    nothing is read that begins otherwise. `cache_bytes` bounds `known` and `known_bytes`.
    """

    __slots__ = (
        "_cache_bytes",
        "_decode",
        "_encode",
        "_encode_key",
        "_end",
        "_first",
        "_remembered_bytes",
        "_store",
        "changed",
        "changed_bytes",
        "codec",
        "journal",
        "known",
        "known_bytes",
        "pending",
        "plain",
        "undone",
    )

    def __init__(self, store: StoreReads, codec: Codec, cache_bytes: int, head: bytes) -> None:
        self._store = store
        self._first, self._end = head, end_of(head)
        self.codec = codec
        self._encode_key: Callable[[Any], bytes] = codec.encode_key
        self._encode: Callable[[Any], bytes] = codec.encode_value
        self._decode: Callable[[bytes], Any] = codec.decode_value
        self._cache_bytes = cache_bytes
        self._remembered_bytes = 0
        self.changed: dict[Kind, dict[Any, Any]] = {}
        self.plain = PLAIN
        self.changed_bytes: dict[Kind, dict[Any, bytes | None]] = {}
        self.known: dict[Kind, dict[Any, Any]] = {}
        self.known_bytes: dict[Kind, dict[Any, bytes]] = {}
        self.pending: PendingKeys | None = None
        self.journal: Journal | None = None
        self.undone = 0
        for kind in (*PLAIN, Packed):
            self._admit(kind)

    def read_from(self, store: StoreReads) -> None:
        """Read from another store from now on, which has the same entries."""
        self._store = store

    def _admit(self, kind: Kind) -> None:
        self.changed[kind], self.changed_bytes[kind], self.known[kind], self.known_bytes[kind] = {}, {}, {}, {}

    # ---- reading

    def place(self, key: Any) -> MemoryKey:
        """Return where `key` is kept; raises CodecError for what can't be a key."""
        key_bytes = self._encode_key(key)
        kind: Kind = type(key)
        if kind in PLAIN:
            return kind, key, key_bytes
        kind = self._kind(key)
        return kind, key_bytes if kind is Packed else key, key_bytes

    def _kind(self, key: Any) -> Kind:
        kind: Kind = type(key)
        if kind is tuple:
            kind = tuple(map(type, key))
            if kind not in self.changed and PLAIN.issuperset(kind) and len(self.changed) < MAX_KINDS:
                self._admit(kind)
        return kind if kind in self.changed else Packed

    def find(self, place: MemoryKey) -> Any:
        """Return the value, or `ABSENT`; asks the store if need be."""
        value = self.recall(place)
        return self._remember(place, self._read([place[2]])[0]) if value is UNKNOWN else value

    def find_all(self, keys: list[Any]) -> tuple[type, dict[Any, Any]]:
        """Return the values of those `keys` that are there, in their order, with at most one read of the store.

        They stand under the keys if all are of one plain type, which is returned as well; else, with `Packed`, under
        the bytes of their keys.
        """
        kind = self._plain_kind(keys)
        if kind is None:
            places = [self.place(key) for key in keys]
            found = zip(places, self._find_places(places), strict=True)
            return Packed, {place[2]: value for place, value in found if value is not ABSENT}
        # What is known is looked up without a call of Python's for each key.
        known = map(self.known[kind].get, keys, repeat(UNKNOWN))
        entries = dict(zip(keys, map(self.changed[kind].get, keys, known), strict=True))
        missing = [key for key, value in entries.items() if type(value) is Missing]
        for key, value in zip(missing, self._find_places([self.place(key) for key in missing]), strict=True):
            if value is ABSENT:
                del entries[key]
            else:
                entries[key] = value
        return kind, entries

    def _find_places(self, places: list[MemoryKey]) -> list[Any]:
        values = [self.recall(place) for place in places]
        unknown = [at for at, value in enumerate(values) if value is UNKNOWN]
        for at, data in zip(unknown, self._read([places[at][2] for at in unknown]), strict=True):
            values[at] = self._remember(places[at], data)
        return values

    def _plain_kind(self, keys: Iterable[Any]) -> type | None:
        """Return the type of all `keys`, if they are of one and looked up as they are."""
        types = set(map(type, keys))
        return types.pop() if len(types) == 1 and types <= self.plain else None

    def recall(self, place: MemoryKey) -> Any:
        """Return the value, `ABSENT` or `UNKNOWN`, from memory alone."""
        kind, name, key_bytes = place
        value = self.changed[kind].get(name, UNKNOWN)
        if value is not UNKNOWN:
            return value
        data = self.changed_bytes[kind].get(name, UNKNOWN)
        if data is UNKNOWN:
            value = self.known[kind].get(name, UNKNOWN)
            if value is not UNKNOWN:
                return value
            data = self.known_bytes[kind].get(name, UNKNOWN)
        if data is UNKNOWN:
            return UNKNOWN
        return ABSENT if data is None else self.decoded(key_bytes, data)

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Read what is not known of `keys`, with at most one read of the store."""
        keys = keys if isinstance(keys, list | tuple) else list(keys)
        by_kind: dict[Kind, set[Any]] = {}
        if (plain := self._plain_kind(keys)) is not None:
            by_kind[plain] = set(keys)
        else:
            for key in keys:
                kind = self._kind(key)
                by_kind.setdefault(kind, set()).add(self._encode_key(key) if kind is Packed else key)
        unknown = {kind: self._unknown(kind, names) for kind, names in by_kind.items()}
        wanted: list[bytes] = []
        for kind, missing in unknown.items():
            wanted += missing if kind is Packed else map(self._encode_key, missing)
        found = self._read(wanted)  # one round trip for a batch of tuples, where each get would have made its own
        size = _total_bytes(wanted, found)
        if self._remembered_bytes + size > self._cache_bytes:
            self.forget()
            if size > self._cache_bytes:  # remember the first of them, so that the bound holds: get reads the others
                del found[len(found) * self._cache_bytes // size :]
        self._remembered_bytes += min(size, self._cache_bytes)
        entries = zip(wanted, found, strict=False)
        for kind, missing in unknown.items():
            self._learn(kind, zip(missing, entries, strict=False))

    def _unknown(self, kind: Kind, names: set[Any]) -> set[Any]:
        for entries in (self.known, self.changed, self.known_bytes, self.changed_bytes):
            names = names.difference(entries[kind])
        return names

    def _learn(self, kind: Kind, entries: Iterable[tuple[Any, tuple[bytes, bytes | None]]]) -> None:
        known, known_bytes = self.known[kind], self.known_bytes[kind]
        scalars, decode = AS_IT_IS, self.decoded
        for name, (key_bytes, data) in entries:
            if data is None:
                known[name] = ABSENT
                continue
            value = decode(key_bytes, data)
            if type(value) in scalars or is_settled(value):
                known[name] = value
            else:
                known_bytes[name] = data

    def _read(self, keys: list[bytes]) -> list[bytes | None]:
        return self._store.get(keys) if keys else []

    def _remember(self, place: MemoryKey, data: bytes | None) -> Any:
        kind, name, key_bytes = place
        value = ABSENT if data is None else self.decoded(key_bytes, data)
        size = _total_bytes([key_bytes], [data])
        if self._remembered_bytes + size > self._cache_bytes:
            self.forget()
        if size <= self._cache_bytes:
            self._remembered_bytes += size
            if data is None or self._stays(value):
                self.known[kind][name] = value
            else:
                self.known_bytes[kind][name] = data
        return value

    _stays = staticmethod(is_settled)
    """Whether a value that was read is known as it is, and not as bytes."""

    def decoded(self, key_bytes: bytes, data: bytes) -> Any:
        """Return the value encoded as `data`; the error for damaged bytes names the key."""
        try:
            return self._decode(data)
        except StateCorruptedError as error:
            key = repr(self.codec.decode_key(key_bytes))
            hint = "; a later stateVersion of the bolt wrote it" if data[:1] == MARK else ""
            if expiry_of(data) != NEVER:
                hint = WITH_TTL
            named = StateCorruptedError(f"the value of key {key}: {error.message}{hint}", **{**error.data, "key": key})
            self._store.failed(named)
            raise named from error
        except Exception as error:
            self._store.failed(error)
            raise

    def scan(
        self, start: bytes | None, stop: bytes | None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | tuple[Any, Any]]]:
        """Yield (key bytes, value's bytes or (key, value)) of a range as it is now, whatever is changed meanwhile.

        None stands for the space's own first and last key.

        As long as somebody holds what is returned, `changed` is to be changed by `put` and `delete` alone.
        """
        start, stop = start or self._first, stop or self._end
        rows: Iterator[tuple[bytes, Any]] = self.scan_below(start, stop, reverse)
        pending = self._in_order()
        return rows if pending is None else merge(pending.scan(start, stop, reverse).rows(), rows, reverse)

    def scan_below(self, start: bytes, stop: bytes, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield what lies in a range below this transaction's changes."""
        return self._store.scan(start, stop, reverse)

    def _in_order(self) -> PendingKeys | None:
        """Return the changes in order; None if there are none."""
        if self.pending is None and (any(self.changed.values()) or any(self.changed_bytes.values())):
            self.pending = PendingKeys(self.changed, self.changed_bytes, self._encode_key, self.codec.decode_key)
        return self.pending

    def count(self) -> int | None:
        """Return how many entries there are, if the store knows how many it has: stores count whole spaces."""
        count = self._store.count(self._first) if len(self._first) == 1 else None
        if count is None:
            return None
        pending = self._in_order()
        return count if pending is None else count + pending.balance(self._read)

    def has_scans(self) -> bool:
        """Say whether a scan goes on that has to be told of changes."""
        return self.pending is not None and self.pending.has_scans()

    def forget(self) -> None:
        """Drop what was read; it is read again when asked for."""
        for kind in self.changed:
            self.known[kind].clear()
            self.known_bytes[kind].clear()
        self._remembered_bytes = 0

    # ---- changes

    def note(self, kind: Kind, name: Any) -> None:
        """Tell the journal, if there is one, what stands at a place that is about to be changed."""
        if self.journal is not None:
            for entries in (self.changed[kind], self.changed_bytes[kind]):
                self.journal.append((entries, name, entries.get(name, UNKNOWN)))

    def before_undo(self) -> None:
        """Let scans that go on read what they have to show: what is changed is about to be put back."""
        self.undone += 1
        if self.pending is not None:  # its order is of what was changed; the next scan makes one anew
            self.pending.end()
            self.pending = None

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        place = self.place(key)
        if is_settled(value):
            if self.pending is not None:
                self.pending.before_value(place)
            kind, name, _ = place
            self.note(kind, name)
            self.changed[kind][name] = value
            self.changed_bytes[kind].pop(name, None)
            return
        try:
            data = self._encode(value)
        except CodecError as error:
            raise of_key(error, key) from None
        self._set_bytes(place, data)

    def put_all(self, mapping: Mapping[Any, Any]) -> bool:
        """Set all values of a dict at once; False: nothing was set, for each has to be looked at by itself."""
        kind = self._plain_kind(mapping) if type(mapping) is dict else None
        if kind is None or not AS_IT_IS.issuperset(map(type, mapping.values())):
            return False
        changed, known, changed_bytes = self.changed[kind], self.known[kind], self.changed_bytes[kind]
        if self.journal is not None:
            self.journal += zip(repeat(changed), mapping, map(changed.get, mapping, repeat(UNKNOWN)), strict=False)
        if kind is str and not changed_bytes and _is_encodable(mapping):
            changed.update(mapping)  # all that `put` would do for a new one is done: it can be encoded
            return True
        for key in [key for key in mapping if key not in known and key not in changed]:
            self.put(key, mapping[key])
        changed.update(mapping)
        return True

    def delete(self, place: MemoryKey) -> None:
        """Remove the entry at `place`."""
        self._set_bytes(place, None)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> int:
        """Remove the entries of a range; return how many there were."""
        keys = [row[0] for row in self.scan(start, stop)]  # all of them first: deleting changes what is scanned
        for key in keys:
            self._set_bytes(self.place(self.codec.decode_key(key)), None)
        return len(keys)

    def _set_bytes(self, place: MemoryKey, data: bytes | None) -> None:
        if self.pending is not None:
            self.pending.before_bytes(place, data)
        kind, name, _ = place
        self.note(kind, name)
        self.changed[kind].pop(name, None)
        self.known[kind].pop(name, None)
        self.changed_bytes[kind][name] = data

    def changes(self) -> list[Write]:
        """Return what was changed since the last commit, in no order."""
        encode_key = self._encode_key
        writes: list[Write] = []
        for kind, entries in self.changed.items():
            names = entries if kind is Packed else map(encode_key, entries)
            try:
                writes += zip(names, self._encoded(entries.values()), strict=True)
            except CodecError:  # `map` does not say at which entry: look for it, for the error names the key
                self._refuse(kind, entries)
                raise
        for kind, changed_bytes in self.changed_bytes.items():
            names = changed_bytes if kind is Packed else map(encode_key, changed_bytes)
            writes += zip(names, changed_bytes.values(), strict=True)
        return writes

    def _encoded(self, values: Iterable[Any]) -> Iterable[bytes]:
        """Encode the values of immutable entries, as they are stored."""
        return map(self._encode, values)

    def _refuse(self, kind: Kind, entries: dict[Any, Any]) -> None:
        """Raise CodecError for the first of `entries` that can't be encoded, with its key."""
        for name, value in entries.items():
            try:
                self._encode(value)
            except CodecError as error:
                raise of_key(error, self.codec.decode_key(name) if kind is Packed else name) from None

    def absorb(self, writes: list[Write]) -> None:
        """Count `writes`, all changes there are, among what is known of what is committed: now they are."""
        before = self._remembered
        for kind, entries in self.changed.items():
            known, known_bytes = self.known[kind], self.known_bytes[kind]
            known.update(entries)
            for name, data in self.changed_bytes[kind].items():
                if data is None:
                    known[name] = ABSENT
                else:
                    known_bytes[name] = data
            for name in known_bytes.keys() & known.keys():  # bytes of what has become immutable or absent
                del known_bytes[name]
        added = self._remembered - before  # most of what a transaction changes was known before
        if added > 0:
            keys, values = zip(*writes[:_SAMPLE], strict=True)
            self._remembered_bytes += added * _total_bytes(keys, values) // len(keys)
        if self._remembered_bytes > self._cache_bytes:
            self.forget()
        self.discard()

    @property
    def _remembered(self) -> int:
        return sum(map(len, self.known.values())) + sum(map(len, self.known_bytes.values()))

    def discard(self) -> None:
        """Drop the changes since the last commit."""
        if self.pending is not None:
            self.pending.end()
            self.pending = None
        for kind in self.changed:
            self.changed[kind].clear()
            self.changed_bytes[kind].clear()


def _total_bytes(keys: Iterable[bytes], values: Iterable[bytes | None]) -> int:
    keys = list(keys)
    return sum(map(len, keys)) + sum(map(len, filter(None, values))) + ENTRY_BYTES * len(keys)


def _is_encodable(texts: Iterable[str]) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def of_key(error: CodecError, key: Any) -> CodecError:
    """Return `error` with the key whose value can't be encoded."""
    shown = repr(key)
    return CodecError(f"key {shown}: {error.message}", **{**error.data, "key": shown})
