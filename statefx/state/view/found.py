"""What reading several keys at once comes to."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)

_short = reprlib.Repr()
_short.maxdict = 3


class FoundEntries(Mapping[K, V_co]):
    """The entries that `KeyValueState.getAll` found; a mapping whose keys are told apart as state does."""

    __slots__ = ("_encode_key", "_entries")

    def __init__(self, encode_key: Callable[[Any], bytes], entries: Mapping[bytes, tuple[K, V_co]]) -> None:
        self._encode_key = encode_key
        self._entries = entries

    def __getitem__(self, key: K) -> V_co:
        try:
            return self._entries[self._encode_key(key)][1]
        except KeyError:
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"FoundEntries({_short.repr(dict(self._entries.values()))})"
