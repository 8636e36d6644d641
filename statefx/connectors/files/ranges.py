"""Ranges of a file: their bytes, and where one can end."""

from __future__ import annotations

from typing import NamedTuple

_LOOK_BACK_BYTES = 64 << 10


class ShorterError(OSError):
    """A file has become shorter while it was read."""


class Range(NamedTuple):
    """What a task reads of a file."""

    path: str
    start: int
    stop: int


def behind_last_line(path: str, start: int, stop: int) -> int:
    """Return the offset behind the last line feed before `stop`; `start` if there is none."""
    with open(path, "rb") as file:
        while stop > start:
            begin = max(start, stop - _LOOK_BACK_BYTES)
            file.seek(begin)
            found = file.read(stop - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            stop = begin
    return start


def behind_last_row(path: str, start: int, stop: int) -> int:
    """Return the offset behind the last line feed before `stop` that is not in quotes; `start` if there is none."""
    data = read_range(Range(path, start, stop))
    end, quotes = len(data), data.count(b'"')
    while (found := data.rfind(b"\n", 0, end)) >= 0:
        quotes -= data.count(b'"', found, end)
        if quotes % 2 == 0:
            return start + found + 1
        end = found
    return start


def read_range(part: Range) -> bytes:
    """Return the bytes of a range; ShorterError if the file has become shorter."""
    with open(part.path, "rb") as file:
        file.seek(part.start)
        found = file.read(part.stop - part.start)
    if len(found) != part.stop - part.start:
        raise ShorterError(f"it has {part.start + len(found):,} bytes, and {part.stop:,} are to be read")
    return found
