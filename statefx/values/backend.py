"""What a map needs of a database: two methods; and a backend in memory, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol


class Row(NamedTuple):
    """What a database keeps under a key: three texts, of which it compares the first.

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
