"""Where a key's entry is kept in memory, and what memory says when it does not have it."""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Any, Final, Literal


class Missing(Enum):
    """What memory says of a key whose value it does not have."""

    ABSENT = "known not to be there"
    UNKNOWN = "only the store can tell"


ABSENT: Final[Literal[Missing.ABSENT]] = Missing.ABSENT
UNKNOWN: Final[Literal[Missing.UNKNOWN]] = Missing.UNKNOWN


class Packed:
    """The kind of keys that are looked up by their bytes: those of no other kind."""


# Looked up as they are, each type in a dict of its own, so that 1, 1.0 and True do not meet. Not among them are
# datetimes, whose == between zones isn't by instant in the hour of a clock change, and Decimals, of which some
# have no hash.
PLAIN: frozenset[type] = frozenset({type(None), bool, int, float, str, bytes, date})

Kind = type | tuple[type, ...]
"""A type in `PLAIN`; for a tuple of such elements their types; else `Packed`."""

MAX_KINDS = 64
"""Kinds of tuple beyond this are `Packed`: each kind has four dicts, and every prepare goes through all of them."""

Place = tuple[Kind, Any, bytes]
"""Kind, name and key bytes. The entry is under ``[kind][name]``; the name is the key, or its bytes if `Packed`."""
