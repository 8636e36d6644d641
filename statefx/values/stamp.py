"""Who wrote a row, in which attempt: the version by which a database tells one write from another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from statefx.errors import ValueMismatchError
from statefx.operators.context import Context
from statefx.protocol.identity import TransactionAttempt
from statefx.values.backend import Row

RESERVED = "statefx:"
"""What the keys of the maps' own rows begin with."""

_ORIGIN_DIGITS = 12  # of 32: chance does not make two checkpoints alike, and the owner stands in every row


@dataclass(frozen=True, slots=True)
class Stamp:
    """Names one write; as text it is the version of what was written.

    Attributes
    ----------
    attempt : TransactionAttempt
    run : str
        Which execution of the task: one that was taken for lost may write beside its successor.
    owner : str
        The map, its task and its checkpoint.

    Examples
    --------
    >>> print(Stamp(TransactionAttempt(5, 1), "9f3c21aa", "totals/0@4be1"))
    5.1 9f3c21aa totals/0@4be1
    """

    attempt: TransactionAttempt
    run: str
    owner: str

    def __str__(self) -> str:
        return f"{self.attempt.txid}.{self.attempt.attempt} {self.run} {self.owner}"

    @classmethod
    def parse(cls, text: str) -> Stamp:
        """Read what `str` wrote; ValueError if it is no stamp."""
        try:
            number, run, owner = text.split(" ", 2)
            txid, attempt = number.split(".")
            return cls(TransactionAttempt(int(txid), int(attempt)), run, owner)
        except ValueError:
            raise ValueError(f"{text!r} is not the version of a value: '5.0 9f3c21aa totals/0@4be1' is one") from None


def owner_of(kind: str, name: str, context: Context) -> str:
    """Name a map, and the checkpoint that it belongs to."""
    return f"{kind} {name}@{context.origin[:_ORIGIN_DIGITS]}"


def check_keys(keys: Iterable[str]) -> list[str]:
    """Return keys, each once; TypeError if one is no str, ValueError if it is the maps' own."""
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
    """Read who wrote a row; ValueMismatchError if it was not `owner`."""
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
