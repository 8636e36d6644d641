"""Spaces: whose keys they are, of all that one task keeps in its store."""

from __future__ import annotations

from enum import Enum


class Space(Enum):
    """The first byte of every key that statefx gives to a store.

    A task has one store, one version and one commit. The bolt's own keys and what statefx keeps for the bolt lie side
    by side in it. A view (`statefx.state.KeyValueState`) is of one space: it reads, counts, scans and deletes nothing
    of another. The bytes are letters, so that a dump of a store can be read, and below 0x80, so that one can stand
    before UTF-8.

    Only `USER` is in use. The others are reserved now, for a key's first byte can't be put in later without rewriting
    all state.
    """

    USER = b"u"
    TIMERS = b"t"
    WINDOWS = b"w"
    SYSTEM = b"s"

    @property
    def end(self) -> bytes:
        """The first bytes behind the space: its keys are those from `value` to below this."""
        return bytes([self.value[0] + 1])
