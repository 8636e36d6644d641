"""Spaces: whose keys they are, of all that one task keeps in its store."""

from __future__ import annotations

from enum import Enum


class Space(Enum):
    """The first byte of every key that statefx gives to a store.

    A task has one store, one version and one commit. The bolt's own keys and what statefx keeps for the bolt lie side
    by side in it. A view (`statefx.KeyValueState`) is of one space: it reads, counts, scans and deletes nothing
    of another. The bytes are letters, so that a dump of a store can be read, and below 0x80, so that one can stand
    before UTF-8.

    `USER` is what the state shows that ``initState`` is given; in `NAMED`, what is kept under each name has a range of
    its own (`head_of`). `SYSTEM` has by time the keys of entries that are over then, `QUARANTINE` the keys of the
    grouping whose rows are held back, and `WAITING` the tuples that wait for another call. The others are reserved
    now, for a key's first byte can't be put in later without rewriting all state.
    """

    USER = b"u"
    NAMED = b"n"
    TIMERS = b"t"
    SYSTEM = b"s"
    QUARANTINE = b"q"
    WAITING = b"w"


class NameKind(Enum):
    """The kinds of names in `Space.NAMED`: the user's, and those of the windows of a windowed bolt."""

    MAP = "map"
    LIST = "list"
    VALUE = "value"
    BROADCAST = "broadcast"
    """A map that all tasks hold alike."""
    WINDOWS = "windows"


def head_of(kind: NameKind, name: str) -> bytes:
    r"""Return the prefix of all keys of a named map, list or value, which no other key has.

    >>> head_of(NameKind.MAP, "recent")
    b'nmap\x00recent\x00'
    """
    return b"\0".join((Space.NAMED.value + kind.value.encode(), name.encode(), b""))


def name_of(key: bytes) -> tuple[NameKind, str]:
    """Return whose key this is, of `Space.NAMED`."""
    kind, name, _ = key[1:].split(b"\0", 2)
    return NameKind(kind.decode()), name.decode()


def end_of(head: bytes) -> bytes:
    """Return the first bytes after all keys that begin with `head`, whose last byte is below 0xFF.

    >>> end_of(b"u")
    b'v'
    """
    return head[:-1] + bytes([head[-1] + 1])
