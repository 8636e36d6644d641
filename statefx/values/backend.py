"""A map's database, and its steps over it: tests put other attempts and crashes between any two of them.

A `MemoryBackend` is for tests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from statefx.errors import FailedException, ValueMismatchError
from statefx.operators.context import Context
from statefx.protocol.identity import TransactionAttempt


class Row(NamedTuple):
    """A database's row of a key: three texts, of which it compares the first.

    Attributes
    ----------
    version : str
        Names the write; no two writes of a key have the same.
    value : str or None
        The value, as JSON, for anyone to read; None: the key has none, as if it were not there.
    undo : str or None
        The map's own: what takes the value back.
    """

    version: str
    value: str | None
    undo: str | None


class KeyValueBackend(Protocol):
    """Where a map keeps its values. A bolt makes one in ``open``, or in ``__init__`` if it can be pickled.

    A backend whose database is away for a moment raises FailedException: the transaction is tried again. Anything else
    it raises ends the query.
    """

    def multiGet(self, keys: Iterable[str]) -> Mapping[str, Row]:
        """Return the rows of those keys that are there.

        Guaranteed
            No key comes twice.
        """

    def multiPut(self, rows: Mapping[str, Row], expected: Mapping[str, str | None]) -> Iterable[str]:
        """Write each row whose key still has the version that is expected of it; return the keys not written.

        Parameters
        ----------
        rows : Mapping of str to Row
            By key.
        expected : Mapping of str to str or None
            For each key of `rows` the version that it must have; None: it must not be there.

        Contract
        --------
        * For one key, the comparison and the write are one atomic act: of two writers that expect the same version one
          writes, and the other is told its key.
        * What was written is durable when the method returns, and every later `multiGet` sees it.
        * All keys together may be one atomic act too: then none is written, and all are returned, if one has another
          version. A backend with an attribute ``atomic`` that is true promises that always; maps need fewer round trips
          then, and readers of the database never see half of a transaction.
        """


@dataclass(frozen=True)
class MemoryBackend:
    """Keeps rows in this process, for tests and ``TopologyTester``: tasks of other processes have others.

    What there is, ``backend.rows`` has, by key.

    Parameters
    ----------
    name : str
        All backends of one name share their rows; it travels to tasks by its name.
    atomic : bool
        Whether all rows of a `multiPut` are written or none. False: one by one, as by the simplest of databases.
    """

    name: str
    atomic: bool = False

    _LOCK: ClassVar[threading.Lock] = threading.Lock()
    _ROWS: ClassVar[dict[str, dict[str, Row]]] = {}

    @property
    def rows(self) -> dict[str, Row]:
        """All that is there, by key."""
        return self._ROWS.setdefault(self.name, {})

    def multiGet(self, keys: Iterable[str]) -> dict[str, Row]:
        """See `KeyValueBackend`."""
        with self._LOCK:
            rows = self.rows
            return {key: rows[key] for key in keys if key in rows}

    def multiPut(self, rows: Mapping[str, Row], expected: Mapping[str, str | None]) -> list[str]:
        """See `KeyValueBackend`."""
        with self._LOCK:
            there = self.rows
            refused = [key for key in rows if (there[key].version if key in there else None) != expected[key]]
            if refused and self.atomic:
                return list(rows)
            there.update({key: row for key, row in rows.items() if key not in refused})
        return refused


RESERVED = "statefx:"
"""Prefix of the keys of the maps' own rows."""

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
            "share a key: give each map a table of its own, and group the bolt by the key, so that one task has it. If "
            "the bolt was renamed, give the map its former name=, which is the bolt's if none is given; if the former "
            "owner is gone, empty the table",
            key=key,
            found=stamp.attempt,
            owner=stamp.owner,
        )
    return stamp


T = TypeVar("T")


class Get(NamedTuple):
    """Asks for rows; answered with those that are there."""

    keys: list[str]

    def on(self, backend: KeyValueBackend) -> Mapping[str, Row]:
        """Carry it out."""
        return backend.multiGet(self.keys)


class Put(NamedTuple):
    """Asks to write rows; answered with the keys that were refused."""

    rows: dict[str, Row]
    expected: dict[str, str | None]

    def on(self, backend: KeyValueBackend) -> list[str]:
        """Carry it out."""
        return list(backend.multiPut(self.rows, self.expected))


Steps = Generator[Get | Put, Any, T]


def carry_out(steps: Steps[T], backend: KeyValueBackend) -> T:
    """Run steps to their end; return what they return."""
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = request.on(backend)


def version_of(row: Row | None) -> str | None:
    """Return what is expected of a key at which `row` was read."""
    return None if row is None else row.version


def refuse_stubborn(refused: Iterable[str], expected: Mapping[str, str | None], rows: Mapping[str, Row]) -> None:
    """Raise if a backend refuses keys of which none has changed: else the same would be tried for ever."""
    refused = list(refused)
    if refused and all(version_of(rows.get(key)) == expected[key] for key in refused):
        raise FailedException(
            f"multiPut has not written {refused[0]!r}, although the version there is the one that was expected"
        )


def begun(value: Any, initial: Any) -> Any:
    """Return what an update is given, which may change it in place: of `initial`, that of all keys, a copy."""
    return deepcopy(initial) if value is None else value


def encode(key: str, value: Any) -> str | None:
    """Return a value as JSON; None for None, which stands for no value.

    Raises
    ------
    TypeError
        JSON would give back something else.
    """
    if value is None:
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise TypeError(f"the value of {key!r} can't be kept as JSON: {error}") from None
    if json.loads(text) != value:
        raise TypeError(
            f"the value of {key!r} would not come back from JSON as it is: {value!r}. Use lists rather than tuples, "
            "and dicts whose keys are str"
        )
    return text


def decode(text: str | None) -> Any:
    """Read what `encode` wrote."""
    return None if text is None else json.loads(text)
