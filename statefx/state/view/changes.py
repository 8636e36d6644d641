"""One task's state in memory: uncommitted changes, in order where a scan wants it, and the entries it has read.

The order is made at the first scan of a transaction. `put` of a key that is known writes into a dict and nothing
else; so the order learns of new keys only when somebody scans again, from the end of each dict, where they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from enum import Enum
from itertools import islice, repeat
from typing import Any, Final, Literal, TypeVar

from statefx.errors import CodecError, StateCorruptedError
from statefx.state.contract.ranges import OrderedEntries, merge
from statefx.state.contract.spaces import end_of
from statefx.state.contract.store import StateStore, Write
from statefx.state.encoding.codec import Codec, GuardedCodec, StandardCodec
from statefx.state.encoding.values import AS_IT_IS, MARK, NEVER, envelope, expiry_of, is_settled, unwrap


class Missing(Enum):
    """Markers for keys whose value is not in memory."""

    ABSENT = "known not to be there"
    UNKNOWN = "only the store can tell"


ABSENT: Final[Literal[Missing.ABSENT]] = Missing.ABSENT
UNKNOWN: Final[Literal[Missing.UNKNOWN]] = Missing.UNKNOWN


class Packed:
    """The kind of keys that are looked up by their bytes: those of no other kind."""


# Looked up as they are, each type in a dict of its own, so that 1 and True do not meet. Not among them are datetimes,
# whose == between zones isn't by instant in the hour of a clock change, Decimals, of which some have no hash, and
# floats: -0.0 would be shown as it was put before a commit, and as 0.0 after it.
PLAIN: frozenset[type] = frozenset({type(None), bool, int, str, bytes, date})

KeyKind = type | tuple[type, ...]
"""A type in `PLAIN`; for a tuple of such elements their types; else `Packed`."""

MAX_KINDS = 64
"""Kinds of tuple beyond this are `Packed`: each kind has four dicts, and every prepare goes through all of them."""

MemoryKey = tuple[KeyKind, Any, bytes]
"""Kind, name and key bytes. The entry is under ``[kind][name]``; the name is the key, or its bytes if `Packed`."""


Change = tuple[Any, Any] | bytes | None
"""Of an immutable value (key, value) as they are; of a mutable one its bytes; None: deleted."""

_FIRST_KEYS, _MOST_KEYS = 16, 1024  # read ahead: one key is often enough, many cost less by the thousand


class PendingKeys:
    """The keys that a transaction has changed, in order.

    `changed` and `changed_bytes` are the overlay's own. An entry of `changed` may be added at any time; before one is
    removed, or `changed_bytes` changes, `before_value` or `before_bytes` is called.
    """

    __slots__ = (
        "_asked",
        "_changed",
        "_changed_bytes",
        "_counted",
        "_decode_key",
        "_deletions",
        "_encode_key",
        "_hidden",
        "_places",
        "_scans",
    )

    def __init__(
        self,
        changed: Mapping[KeyKind, dict[Any, Any]],
        changed_bytes: Mapping[KeyKind, dict[Any, bytes | None]],
        encode_key: Callable[[Any], bytes],
        decode_key: Callable[[bytes], Any],
    ) -> None:
        self._changed = changed
        self._changed_bytes = changed_bytes
        self._encode_key = encode_key
        self._decode_key = decode_key
        self._places: OrderedEntries[tuple[KeyKind, Any]] = OrderedEntries()
        self._counted: dict[KeyKind, int] = {}  # of each dict of `changed`, how many of its first keys have their place
        self._scans: set[weakref.ref[PendingScan]] = set()  # each leaves it as its scan does
        self._deletions = 0  # of all changes, how many are deletions
        self._hidden = 0  # of the first `_asked` places, how many have an entry below
        self._asked = 0
        for kind, entries in changed_bytes.items():
            self._place(kind, entries)
            self._deletions += sum(data is None for data in entries.values())

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> PendingScan:
        """Return what is changed in a range now, whatever is changed while it is read."""
        self._catch_up()
        scan = PendingScan(self, start, stop, reverse)
        self._scans.add(weakref.ref(scan, self._scans.discard))
        return scan

    def has_scans(self) -> bool:
        """Return whether a scan goes on, which must see every change before it is made."""
        return bool(self._scans)

    def balance(self, below: Callable[[list[bytes]], list[bytes | None]]) -> int:
        """Return by how many entries the changes outnumber those they hide; `below` reads what is under them."""
        self._catch_up()
        keys = self._places.by_key
        if len(keys) != self._asked:  # no place is ever given up, so the new ones are the last ones
            self._hidden += sum(
                data is not None for data in below(list(islice(reversed(keys), len(keys) - self._asked)))
            )
            self._asked = len(keys)
        return len(keys) - self._deletions - self._hidden

    def before_value(self, place: MemoryKey) -> None:
        """Note that the entry at `place` is about to become one of `changed`."""
        kind, name, key = place
        if self._changed_bytes[kind].get(name, UNKNOWN) is None:
            self._deletions -= 1
        if self._scans:
            before = self.change(kind, name)
            for ref in [*self._scans]:
                scan = ref()
                if scan is not None:
                    scan.keep(key, before)

    def before_bytes(self, place: MemoryKey, data: bytes | None) -> None:
        """Note that the entry at `place` is about to become one of `changed_bytes`."""
        self.before_value(place)
        self._deletions += data is None
        self._catch_up()  # else a key that has no place yet would be taken for one that has, when it is taken away
        kind, name, key = place
        if name in self._changed[kind]:
            self._counted[kind] -= 1
        self._places.apply((key,), ((kind, name),))

    def end(self) -> None:
        """Note that all changes are about to be removed."""
        for ref in [*self._scans]:
            scan = ref()
            if scan is not None:
                scan.freeze()

    def change(self, kind: KeyKind, name: Any) -> Change | Any:
        """Return the change under a name, or UNKNOWN."""
        value = self._changed[kind].get(name, UNKNOWN)
        if value is UNKNOWN:
            return self._changed_bytes[kind].get(name, UNKNOWN)
        return (self._decode_key(name) if kind is Packed else name), value

    def places(
        self, start: bytes | None, stop: bytes | None, reverse: bool, most: int | None
    ) -> list[tuple[bytes, tuple[KeyKind, Any]]]:
        """Return the first places of a range; None: all."""
        return list(islice(self._places.between(start, stop, reverse), most))

    def _catch_up(self) -> None:
        for kind, entries in self._changed.items():
            counted = self._counted.get(kind, 0)
            if len(entries) != counted:
                self._place(kind, islice(reversed(entries), len(entries) - counted))
                self._counted[kind] = len(entries)

    def _place(self, kind: KeyKind, names: Iterable[Any]) -> None:
        names = list(names)
        keys = names if kind is Packed else list(map(self._encode_key, names))
        self._places.apply(keys, [(kind, name) for name in names])


class PendingScan:
    """The changes in a range as they were when the scan began, read only as far as it goes.

    `pending` calls it for each change that is about to be made, as long as this object exists.
    """

    __slots__ = ("__weakref__", "_before", "_frozen", "_pending", "_reverse", "_start", "_stop")

    def __init__(self, pending: PendingKeys, start: bytes | None, stop: bytes | None, reverse: bool) -> None:
        self._pending = pending
        self._start = start  # what is left: from here
        self._stop = stop  # to here
        self._reverse = reverse
        self._before: dict[bytes, Any] = {}
        self._frozen: list[tuple[bytes, Any]] | None = None

    def keep(self, key: bytes, before: Any) -> None:
        """Remember what was changed of `key`, or UNKNOWN for nothing, if this is its first change since."""
        self._before.setdefault(key, before)

    def freeze(self) -> None:
        if self._frozen is None:
            places = self._pending.places(self._start, self._stop, self._reverse, None)
            changes = ((key, self._change(key, *place)) for key, place in places)
            self._frozen = [(key, change) for key, change in changes if change is not UNKNOWN]

    def rows(self) -> Iterator[tuple[bytes, Change]]:
        """Yield (key, change) in the order of the scan; to be called once."""
        most = _FIRST_KEYS
        while self._frozen is None:
            places = self._pending.places(self._start, self._stop, self._reverse, most)
            for key, place in places:
                if self._frozen is not None:
                    break
                change = self._change(key, *place)
                if self._reverse:
                    self._stop = key
                else:
                    self._start = key + b"\x00"
                if change is not UNKNOWN:
                    yield key, change
            else:
                if len(places) < most:
                    return
            most = min(2 * most, _MOST_KEYS)
        yield from self._frozen

    def _change(self, key: bytes, kind: KeyKind, name: Any) -> Change | Any:
        """Return the change of a key when the scan began, or UNKNOWN if there was none."""
        if key in self._before:
            return self._before[key]
        return self._pending.change(kind, name)


Undo = tuple[dict[Any, Any], Any, Any] | Callable[[], object]
"""(a dict, a key in it, what stood there before or `UNKNOWN`); or what is called to take something else back."""

Journal = list[Undo]


class StepJournal(Journal):
    """The journal of a step of a call that others overlap; a read is no change there, also if it restarts a time."""

    __slots__ = ()


def take_back(journal: Journal) -> None:
    while journal:
        undo = journal.pop()
        if type(undo) is tuple:
            entries, key, before = undo
            if before is UNKNOWN:
                entries.pop(key, None)
            else:
                entries[key] = before
        else:
            undo()  # type: ignore[operator]  # no tuple


class StoreReads:
    """The reads of one store; `failure` is what the first failed one raised, or None.

    A bolt may take an error of `get` for a key that is not there (``except Exception: count = 0``), and what it puts
    then would be committed in place of what was. So nothing is prepared of a transaction in which a read has failed.
    """

    __slots__ = ("_store", "failure")

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.failure: Exception | None = None

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            return self._store.get(keys)
        except Exception as error:
            self.failed(error)
            raise

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from self._store.scan(start, stop, reverse)
        except Exception as error:
            self.failed(error)
            raise

    def count(self, space: bytes) -> int | None:
        try:
            return self._store.count(space)
        except Exception as error:
            self.failed(error)
            raise

    def failed(self, error: Exception) -> None:
        """Note that a read failed; a key or value that can't be decoded is as unknown as any."""
        self.failure = self.failure or error


ENTRY_BYTES = 200
"""Python's bytes for one entry, besides its own: two objects' heads and a place in a dict, about."""


WITH_TTL = "; its map has a ttl: open it with state.map(name, ttl=...), or remove all with deleteRange(None, None)"

_SAMPLE = 100
"""Entries whose size stands for that of others."""


Upgrade = Callable[[int, Any, Any], Any]
"""(version, key, value) -> the value in its current form."""

OWN_KEYS = "statefx.values."
"""Prefixes of statefx's own keys in a bolt's state: no bolt knows older forms of their values."""


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

    While there is a `journal`, it is told what each change replaces. `before_undo` is called before that is put back.

    `plain` are the types of keys that are looked up as they are. `pending` has the changes in order, from the first
    scan that finds some until they are committed or discarded. `codec` puts `head` before a key; of the store
    nothing is read that begins otherwise. `cache_bytes` bounds `known` and `known_bytes`.

    Values of a `version` above 1, which is the bolt's ``stateVersion``, tell it. `upgrade` is called with what an older
    one wrote, as it is read; without it, it is shown as it was written.

    If `strict`, the codec's bytes alone are trusted, for codecs that statefx did not write: keys with equal bytes are
    one key, and a value is encoded when it is put and decoded when it is read again, also in the same transaction.
    """

    __slots__ = (
        "_cache_bytes",
        "_decode",
        "_encode",
        "_end",
        "_envelope",
        "_first",
        "_remembered_bytes",
        "_store",
        "_upgrade",
        "_version",
        "changed",
        "changed_bytes",
        "codec",
        "encode_key",
        "journal",
        "known",
        "known_bytes",
        "pending",
        "plain",
    )

    def __init__(
        self,
        store: StoreReads,
        codec: Codec,
        cache_bytes: int,
        head: bytes,
        version: int = 1,
        upgrade: Upgrade | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._store = store
        self._first, self._end = head, end_of(head)
        self.codec = codec
        self.encode_key: Callable[[Any], bytes] = self._bytes_of if strict else codec.encode_key
        self._version, self._upgrade = version, upgrade
        self._envelope = envelope(version) if strict or version > 1 else b""
        self._encode: Callable[[Any], bytes] = self._enveloped if self._envelope else codec.encode_value
        self._decode: Callable[[bytes], Any] = codec.decode_value
        self._cache_bytes = cache_bytes
        self._remembered_bytes = 0
        self.changed: dict[KeyKind, dict[Any, Any]] = {}
        # Strict: no key may be looked up as it is. The codec may make one key of several, or several of equal ones.
        self.plain: frozenset[type] = frozenset() if strict else PLAIN
        self.changed_bytes: dict[KeyKind, dict[Any, bytes | None]] = {}
        self.known: dict[KeyKind, dict[Any, Any]] = {}
        self.known_bytes: dict[KeyKind, dict[Any, bytes]] = {}
        self.pending: PendingKeys | None = None
        self.journal: Journal | None = None
        for kind in (*self.plain, Packed):
            self._admit(kind)

    def read_from(self, store: StoreReads) -> None:
        """Read from another store from now on, which has the same entries."""
        self._store = store

    def _admit(self, kind: KeyKind) -> None:
        self.changed[kind], self.changed_bytes[kind], self.known[kind], self.known_bytes[kind] = {}, {}, {}, {}

    # ---- reading

    def _bytes_of(self, key: Any) -> bytes:
        """Return the bytes of a key; where they can't be told for now, what is read of it is unknown."""
        try:
            return self.codec.encode_key(key)
        except CodecError:  # it can't be a key, so there is nothing to read
            raise
        except Exception as error:
            self._store.failed(error)
            raise

    def key_of(self, key_bytes: bytes) -> Any:
        """Return the key of `key_bytes`; one that can't be decoded is a read that failed."""
        try:
            return self.codec.decode_key(key_bytes)
        except Exception as error:
            self._store.failed(error)
            raise

    def place(self, key: Any) -> MemoryKey:
        key_bytes = self.encode_key(key)
        kind: KeyKind = type(key)
        if kind in self.plain:
            return kind, key, key_bytes
        kind = self._kind(key)
        return kind, key_bytes if kind is Packed else key, key_bytes

    def _kind(self, key: Any) -> KeyKind:
        kind: KeyKind = type(key)
        if kind is tuple and self.plain:
            kind = tuple(map(type, key))
            if kind not in self.changed and PLAIN.issuperset(kind) and len(self.changed) < MAX_KINDS:
                self._admit(kind)
        return kind if kind in self.changed else Packed

    def find(self, place: MemoryKey) -> Any:
        """Return the value, or `ABSENT`; reads the store if necessary."""
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
        types = set(map(type, keys))
        return types.pop() if len(types) == 1 and types <= self.plain else None

    def recall(self, place: MemoryKey) -> Any:
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
        by_kind: dict[KeyKind, set[Any]] = {}
        if (plain := self._plain_kind(keys)) is not None:
            by_kind[plain] = set(keys)
        else:
            for key in keys:
                kind = self._kind(key)
                by_kind.setdefault(kind, set()).add(self.encode_key(key) if kind is Packed else key)
        unknown = {kind: self._unknown(kind, names) for kind, names in by_kind.items()}
        wanted: list[bytes] = []
        for kind, missing in unknown.items():
            wanted += missing if kind is Packed else map(self.encode_key, missing)
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

    def _unknown(self, kind: KeyKind, names: set[Any]) -> set[Any]:
        for entries in (self.known, self.changed, self.known_bytes, self.changed_bytes):
            names = names.difference(entries[kind])
        return names

    def _learn(self, kind: KeyKind, entries: Iterable[tuple[Any, tuple[bytes, bytes | None]]]) -> None:
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

    def _enveloped(self, value: Any) -> bytes:
        data = self.codec.encode_value(value)
        return data if self._version == 1 and data[:1] != MARK else self._envelope + data

    def decoded(self, key_bytes: bytes, data: bytes) -> Any:
        """Return the value encoded as `data`, in its current form; the error for damaged bytes names the key."""
        try:
            return self._in_current_form(key_bytes, data) if self._envelope else self._decode(data)
        except StateCorruptedError as error:
            named = error if "key" in error.data else self._of_key(error, key_bytes, data)
            self._store.failed(named)
            raise named from (error if named is not error else error.__cause__)
        except Exception as error:
            self._store.failed(error)
            raise

    def _of_key(self, error: StateCorruptedError, key_bytes: bytes, data: bytes) -> StateCorruptedError:
        key = repr(self.key_of(key_bytes))
        hint = "; a later stateVersion of the bolt wrote it" if data[:1] == MARK and not self._envelope else ""
        if expiry_of(data) != NEVER:
            hint = WITH_TTL
        return StateCorruptedError(f"the value of key {key}: {error.message}{hint}", **{**error.data, "key": key})

    def _in_current_form(self, key_bytes: bytes, data: bytes) -> Any:
        version, inner = unwrap(data)
        if version > self._version:  # a bolt that was rolled back to older code must not guess at a newer form
            key = repr(self.key_of(key_bytes))
            raise StateCorruptedError(
                f"the value of key {key} was written by stateVersion {version} of its bolt, this one has "
                f"{self._version}: run the version of the topology that wrote it",
                key=key,
                found=version,
                wanted=self._version,
            )
        value = self._decode(inner)
        if version == self._version or self._upgrade is None:
            return value
        key = self.key_of(key_bytes)
        if isinstance(key, str) and key.startswith(OWN_KEYS):
            return value
        return self._upgrade(version, key, value)

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
        """Yield a range as it lies below this transaction's changes."""
        return self._store.scan(start, stop, reverse)

    def _in_order(self) -> PendingKeys | None:
        """Return the changes in order, or None if there are none."""
        if self.pending is None and (any(self.changed.values()) or any(self.changed_bytes.values())):
            self.pending = PendingKeys(self.changed, self.changed_bytes, self.encode_key, self.key_of)
        return self.pending

    def count(self) -> int | None:
        """Return how many entries there are, if the store knows how many it has: stores count whole spaces."""
        count = self._store.count(self._first) if len(self._first) == 1 else None
        if count is None:
            return None
        pending = self._in_order()
        return count if pending is None else count + pending.balance(self._read)

    def has_scans(self) -> bool:
        return self.pending is not None and self.pending.has_scans()

    def forget(self) -> None:
        """Drop what was read; it is read again when needed."""
        for kind in self.changed:
            self.known[kind].clear()
            self.known_bytes[kind].clear()
        self._remembered_bytes = 0

    # ---- changes

    def note(self, kind: KeyKind, name: Any) -> None:
        """Journal, if there is a journal, the entry at a place that is about to be changed."""
        if self.journal is not None:
            for entries in (self.changed[kind], self.changed_bytes[kind]):
                self.journal.append((entries, name, entries.get(name, UNKNOWN)))

    def before_undo(self) -> None:
        """Let running scans read what they have to show: changes are about to be undone."""
        if self.pending is not None:  # its order is of what was changed; the next scan makes one anew
            self.pending.end()
            self.pending = None

    def put(self, key: Any, value: Any) -> None:
        place = self.place(key)
        if self.plain and is_settled(value):
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
        """Set all values of a dict at once; False if nothing was set, since each must be looked at by itself."""
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
        self._set_bytes(place, None)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> int:
        # All of them first: deleting changes what is scanned, and where one can't be decoded none is deleted.
        places = [self.place(self.key_of(row[0])) for row in self.scan(start, stop)]
        for place in places:
            self._set_bytes(place, None)
        return len(places)

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
        encode_key = self.encode_key
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
        return map(self._encode, values)

    def _refuse(self, kind: KeyKind, entries: dict[Any, Any]) -> None:
        """Raise CodecError for the first of `entries` that can't be encoded, with its key."""
        for name, value in entries.items():
            try:
                self._encode(value)
            except CodecError as error:
                raise of_key(error, self.key_of(name) if kind is Packed else name) from None

    def absorb(self, writes: list[Write]) -> None:
        """Count `writes`, all changes there are, among the known committed entries: now they are."""
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
    shown = repr(key)
    return CodecError(f"key {shown}: {error.message}", **{**error.data, "key": shown})


def codec_for(codec: Codec | None, head: bytes) -> tuple[Codec, bool]:
    """Return a codec that puts `head` before the keys of `codec`, and whether statefx did not write that one."""
    if codec is None or type(codec) is StandardCodec:
        return StandardCodec(head), False
    return GuardedCodec(codec, head), True


AnyOverlay = TypeVar("AnyOverlay", bound=Overlay)


def overlay_for(
    kind: type[AnyOverlay],
    store: StoreReads,
    codec: Codec | None,
    cache_bytes: int,
    head: bytes,
    version: int = 1,
    upgrade: Upgrade | None = None,
) -> AnyOverlay:
    spaced, own = codec_for(codec, head)
    return kind(store, spaced, cache_bytes, head, version, upgrade, strict=own)
