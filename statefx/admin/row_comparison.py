"""Rows that are to be written, against what state shows of the same keys.

What state shows may be less than it holds: JSON has no dates and no tuples, and a column of doubles shows 2 as 2.0. A
row that says what is shown of its key changes nothing, so state that was written out can be written back. What would
write something else than was shown is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from statefx.admin.columns import Decoder
from statefx.errors import CodecError, ConfigError
from statefx.operators.state_schema import Form
from statefx.state.contract.spaces import Space
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.envelope import unwrap
from statefx.state.encoding.keys import encode_key
from statefx.state.view.changes import codec_for

_USER = Space.USER.value
_STR, _INT = encode_key("")[:1], encode_key(0)[:1]
_JSON_TAGS = {_STR, _INT, *(encode_key(each)[:1] for each in (None, False, True))}

Thing = Callable[[str, Sequence[Any]], Any]
"""Makes the key or the value that columns say."""


@dataclass
class RowComparison:
    """Compares rows of one bolt with its state."""

    component: str
    form: Form
    codec: Codec
    state_version: int
    thing: Thing
    unshown: dict[bytes, bytes] = field(default_factory=dict)
    """Keys as rows would write them that say what is shown of another key: -> that key as it is stored."""

    def __post_init__(self) -> None:
        self._decoder = Decoder(self.codec, _USER, self.form, self.state_version)
        self._spaced, _ = codec_for(self.codec, _USER)
        self._tags = self._same_tags()

    def _same_tags(self) -> set[bytes]:
        """Return how the bytes of those keys begin that are written as they are shown."""
        if type(self.codec) is not StandardCodec:
            return set()
        fields = self.form.fields("key")
        if self.form.key is None:
            return _JSON_TAGS
        if len(fields) != 1:
            return set()
        kind = fields[0].type
        return {_STR} if pa.types.is_string(kind) else {_INT} if pa.types.is_signed_integer(kind) else set()

    def look_at(self, key: bytes) -> None:
        """Take note of a key of which a row would make another one."""
        if key[len(_USER) : len(_USER) + 1] in self._tags:
            return
        try:
            written = self._spaced.encode_key(self._shown("key", self._spaced.decode_key(key), key))
        except (ConfigError, CodecError):  # it does not fit the schema: no row says what is shown of it
            return
        if written != key:
            self.unshown[written] = key

    def check_keys(self, keys: Iterator[bytes]) -> None:
        """Refuse rows whose key says what is shown of another one, with a ConfigError."""
        for key in keys if self.unshown else ():
            if key in self.unshown:
                shown, stored = self._spaced.decode_key(key), self._spaced.decode_key(self.unshown[key])
                raise ConfigError(
                    f"writeState: state has the key {stored!r}, of which {shown!r} is shown, and the row with "
                    f"{shown!r} would be another key beside it. {_remedy(self.form.key, 'key')}; nothing was changed"
                )

    def merged(self, key: bytes, row: bytes | None, stored: bytes) -> bytes | None:
        """Return the value of an entry for which there is a row, both as they are stored; None: it is deleted.

        Raises ConfigError: the row says something else than JSON shows of the value, which JSON can't hold.
        """
        if row == stored:
            return stored
        value = self._decoder.decoded([stored])[0]
        try:
            fields = self._decoder.shown("value", value, key)
        except ConfigError:  # no row says what is shown of it
            return row
        if row is None:  # which is what is shown of some values, too
            return stored if value is None or all(each is None for each in fields) else None
        shown, now = self.thing("value", fields), self._decoder.decoded([row])[0]
        again = self._spaced.encode_value(shown)
        if again == unwrap(stored)[1]:
            return row
        if again == unwrap(row)[1] or (type(now) is type(shown) and now == shown):
            return stored
        if self.form.value is None:
            raise ConfigError(
                f"writeState: the value of {self._spaced.decode_key(key)!r} is {value!r:.200}, which JSON can't hold, "
                f"and would become {now!r:.200}. {_remedy(self.form.value, 'value')}; nothing was changed"
            )
        return row

    def _shown(self, part: str, thing: Any, key: bytes) -> Any:
        """Return what a row says that was made of a key or a value."""
        return self.thing(part, self._decoder.shown(part, thing, key))


def _remedy(declared: pa.Schema | None, part: str) -> str:
    if declared is None:
        return f'Say what it is with schema={{"{part}": "{part} timestamp"}} or another type, or leave the row out'
    return f"Give the type that the {part}s have in schema=, or leave the row out"
