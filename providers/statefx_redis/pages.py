"""A range read page by page, each in one round trip."""

from __future__ import annotations

from collections.abc import Sequence

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
    """What is left of a range.

    Parameters
    ----------
    start, stop : bytes | None
        start <= key < stop; None is unbounded.
    reverse : bool
        From the last key to the first.

    Attributes
    ----------
    more : bool
        There may be another page.
    """

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
