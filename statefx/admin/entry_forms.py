"""The new form of one entry of a bolt's state: its key, and its value, as the bolt's own functions make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from statefx.errors import BoltError
from statefx.operators.context import DRIVER
from statefx.operators.user_errors import bolt_error
from statefx.state.contract.spaces import NameKind, Space, head_of, name_of
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.values import EXPIRY_BYTES, NEVER, expiry_of, unwrap, wrap
from statefx.state.view.changes import OWN_KEYS, codec_for
from statefx.state.view.time_index import index_entry, timer_key, timer_value, with_timer_key, with_timer_value

KeyForm = Callable[[Any], Any]
"""Returns the new form of a key: of a map (name, key)."""

ValueForm = Callable[[int, Any, Any], Any]
"""(version that wrote it, key, value) -> the new form of a value."""


class Owner(Enum):
    """Whose an entry is: a key's, and so the task's that the key belongs to; a task's; or that of all tasks."""

    KEY = "key"
    TASK = "task"
    ALL = "all"


class Entry(NamedTuple):
    """An entry in its new form; `is_new` says whether its key is another one than before."""

    stored: bytes
    data: bytes
    owner: Owner
    is_new: bool


@dataclass
class EntryForms:
    """Makes the new form of the entries of one bolt.

    Parameters
    ----------
    bolt, txid
        For messages: the bolt, and the transaction whose state this is.
    codec : Codec
        The bolt's.
    key : callable, optional
        Makes the keys; None: they stay.
    key_hook : str
        What the user calls it.
    version : int, optional
        Values of later versions become of this one.
    value : callable, optional
        Makes these values.
    """

    bolt: str
    txid: int
    codec: Codec
    key: KeyForm | None
    key_hook: str
    version: int | None = None
    value: ValueForm | None = None
    _codecs: dict[bytes, Codec] = field(default_factory=dict, init=False)

    def entries(self, stored: bytes, data: bytes) -> list[Entry]:
        """Return the new form of an entry, and of its place in the index if it is over at a time.

        Raises
        ------
        BoltError
            A function of the user's has raised, or what it returned can't be kept; names it and the key.
        """
        if stored[:1] == Space.SYSTEM.value:
            # Places in the index are made of the entries: those of deleted entries may have keys that become one.
            return []
        entry = self._entry(stored, data)
        if stored[:1] != Space.NAMED.value or (expiry := expiry_of(data)) == NEVER:
            return [entry]
        place, keys = index_entry(entry.stored, expiry)
        return [entry, entry._replace(stored=place, data=keys)]

    def _entry(self, stored: bytes, data: bytes) -> Entry:
        space = stored[:1]
        if space == Space.QUARANTINE.value:  # by what rows are grouped by, which no hook knows
            return Entry(stored, data, Owner.KEY, is_new=False)
        if space == Space.TIMERS.value:
            return self._timer(stored, data)
        kind, name = name_of(stored) if space == Space.NAMED.value else (None, None)
        head = space if kind is None else head_of(kind, name or "")
        codec = self._spaced(head, of_task=kind in (NameKind.LIST, NameKind.VALUE))
        key = codec.decode_key(stored)
        if kind is None and isinstance(key, str) and key.startswith(OWN_KEYS):
            return Entry(stored, self._relabelled(data), Owner.TASK, is_new=False)
        data = self._value(key if name is None else (name, key), data)
        if kind in (NameKind.LIST, NameKind.VALUE):  # their keys are statefx's own
            return Entry(stored, data, Owner.TASK, is_new=False)
        moved = stored if self.key is None else self._moved(codec, key, name)
        return Entry(moved, data, Owner.ALL if kind is NameKind.BROADCAST else Owner.KEY, moved != stored)

    def shown(self, stored: bytes) -> str:
        """Return the key of an entry as a message names it."""
        if stored[:1] == Space.TIMERS.value:
            return f"{self.codec.decode_key(timer_key(stored))!r} (of a timer)"
        kind, name = name_of(stored) if stored[:1] == Space.NAMED.value else (None, None)
        codec = self._spaced(stored[:1] if kind is None else head_of(kind, name or ""))
        return f"{codec.decode_key(stored)!r}" + ("" if kind is None else f" of state.{kind.value}({name!r})")

    def _spaced(self, head: bytes, *, of_task: bool = False) -> Codec:
        found = self._codecs.get(head)
        if found is None:
            found = self._codecs[head] = StandardCodec(head) if of_task else codec_for(self.codec, head)[0]
        return found

    # ---- keys

    def _moved(self, codec: Codec, key: Any, name: str | None) -> bytes:
        assert self.key is not None
        given = key if name is None else (name, key)
        with self._hook(self.key_hook, given):
            new = self.key(given)
            if name is not None:
                if not isinstance(new, tuple) or len(new) != 2 or new[0] != name:
                    raise TypeError(
                        f"it returned {new!r}: of what is kept under a name it must return ({name!r}, the new key)"
                    )
                new = new[1]
            return codec.encode_key(new)

    def _timer(self, stored: bytes, data: bytes) -> Entry:
        value = timer_value(stored, data)
        if value is not None:
            data = with_timer_value(self._relabelled(value))
        moved = stored
        if self.key is not None:
            codec = self._spaced(b"")
            moved = with_timer_key(stored, self._moved(codec, codec.decode_key(timer_key(stored)), None))
        return Entry(moved, data, Owner.KEY, moved != stored)

    # ---- values

    def _value(self, key: Any, data: bytes) -> bytes:
        if self.version is None:
            return data
        lasts = data[:EXPIRY_BYTES] if expiry_of(data) != NEVER else b""
        version, inner = unwrap(data[len(lasts) :])
        if version <= self.version:
            return data
        assert self.value is not None
        codec = self._spaced(b"")
        value = codec.decode_value(inner)
        with self._hook("downgradeState", key):
            return lasts + wrap(self.version, codec.encode_value(self.value(version, key, value)))

    def _relabelled(self, data: bytes) -> bytes:
        """Return a value whose form is the same in all versions, as one of the version that is to be."""
        if self.version is None:
            return data
        version, inner = unwrap(data)
        return data if version <= self.version else wrap(self.version, inner)

    @contextmanager
    def _hook(self, name: str, key: Any) -> Iterator[None]:
        try:
            yield
        except BoltError:
            raise
        except Exception as error:
            raised = bolt_error(error, self.bolt, DRIVER, name, self.txid)
            raise BoltError(f"{raised.message}; of key {key!r}. Nothing was changed", **raised.data) from error
