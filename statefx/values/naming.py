"""Whose a row is: keys that a map takes, and the owner that its versions name."""

from __future__ import annotations

from collections.abc import Iterable

from statefx.errors import ValueMismatchError
from statefx.operators.context import Context
from statefx.values.backend import Row
from statefx.values.stamp import Stamp

RESERVED = "statefx:"
"""What the keys of the maps' own rows begin with."""

_ORIGIN_DIGITS = 12  # of 32: chance does not make two checkpoints alike, and the owner stands in every row


def owner_of(kind: str, name: str, context: Context) -> str:
    """Name a map, and the checkpoint that it belongs to."""
    return f"{kind} {name}@{context.origin[:_ORIGIN_DIGITS]}"


def check_keys(keys: Iterable[str]) -> list[str]:
    """Return keys, each once.

    Raises
    ------
    TypeError
        One is no str.
    ValueError
        One is the maps' own.
    """
    if isinstance(keys, str):
        raise TypeError(f"keys are a collection of str, and this is one str: {keys!r}")
    found = list(dict.fromkeys(keys))
    for key in found:
        if not isinstance(key, str):
            raise TypeError(f"a key of a database is a str, and {key!r} is none: make a text of it, such as f'{{key}}'")
        if key.startswith(RESERVED):
            raise ValueError(f"keys that begin with {RESERVED!r} are the maps' own: {key!r}")
    return found


def stamp_of(key: str, row: Row, owner: str) -> Stamp:
    """Read who wrote a row.

    Raises
    ------
    ValueMismatchError
        It was not `owner`.
    """
    try:
        stamp = Stamp.parse(row.version)
    except ValueError as error:
        raise ValueMismatchError(f"the row of {key!r} was not written by a map: {error}", key=key) from None
    if stamp.owner != owner:
        raise ValueMismatchError(
            f"the row of {key!r} was written by {stamp.owner!r}, in transaction {stamp.attempt.txid}, and this is "
            f"{owner!r} (kind and name of the map, task, @ checkpoint). Topologies, maps, tasks and checkpoints can't "
            "share a key: give each map a table of its own, empty the table if its former owner is gone, and group the "
            "bolt by the key, so that one task has it",
            key=key,
            found=stamp.attempt,
            owner=stamp.owner,
        )
    return stamp
