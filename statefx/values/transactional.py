"""Values in a database of the user's, exact with spouts that emit the same rows again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from statefx.errors import TopologyError, ValueMismatchError
from statefx.operators.context import Context
from statefx.protocol.identity import TransactionAttempt
from statefx.values.backend import (
    Get,
    KeyValueBackend,
    Put,
    Row,
    Stamp,
    Steps,
    begun,
    carry_out,
    check_keys,
    decode,
    encode,
    owner_of,
    refuse_stubborn,
    stamp_of,
    version_of,
)
from statefx.values.value import TransactionalValue

T = TypeVar("T")


class TransactionalMap:
    """Values by key in a database of the user's, exactly once if each attempt makes the same of each key.

    Beside each value stands the transaction that wrote it last, and a transaction that comes again changes nothing. So
    it needs a spout that emits the same rows again, bolts that make the same of them, and a committer: a bolt with
    state, or one marked ``Committer``. In ``preCommit`` it is exact with any spout, because one attempt alone comes
    so far.

    Parameters
    ----------
    backend : KeyValueBackend
        Where the values are.
    context : Context
        What ``open`` is given.
    name : str, optional
        Of the map; by default the component's.

    Contract
    --------
    * Of all attempts of a transaction, one changes the value of a key.
    * A late task of an earlier transaction changes nothing.
    * A key can be updated once in a transaction: gather what is to be done to it.
    """

    def __init__(self, backend: KeyValueBackend, context: Context, name: str | None = None) -> None:
        self._backend = backend
        self._context = context
        self._owner = owner_of("transactional", context.component if name is None else name, context)
        self._attempt: TransactionAttempt | None = None
        self._updated: set[str] = set()

    def multiGet(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of those keys that have one.

        Not guaranteed
            Whether what an earlier attempt of this transaction has made of them is in it. A bolt that must know what
            was there before needs an `OpaqueMap`.

        Raises
        ------
        ValueMismatchError
            A value is another map's.
        """
        return carry_out(self._get(check_keys(keys)), self._backend)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of one key; as `multiGet`."""
        return self.multiGet([key]).get(key, default)

    def multiUpdate(
        self, changes: Mapping[str, T], update: Callable[[Any, T], Any], initial: Any = None
    ) -> dict[str, Any]:
        """Change values, if no attempt of this transaction has done it yet; return what they are now.

        Parameters
        ----------
        changes : Mapping
            What is to be done to each key.
        update : callable
            Given the value and the change, returns the new value; None: the key has none any more. It may be called
            several times for a key and must depend on its arguments alone; the value it may change in place.
        initial : Any
            The value of a key that has none.

        Raises
        ------
        ValueError
            A key was updated in this attempt before.
        ValueMismatchError
            A later transaction has written, or keys are another map's or task's.
        TypeError
            A key is no str, or JSON can't hold a value.
        TopologyError
            The bolt works on several transactions at once.
        """
        if not self._context.ordered:
            raise TopologyError(
                f"a TransactionalMap is changed by {self._context.component!r}, which works on several transactions at "
                "once (topology.max.spout.pending), so a later one may write first: mark its class Committer, as "
                "in `class Totals(BatchBolt, Committer)`"
            )
        keys = check_keys(changes)
        attempt = TransactionAttempt(self._context.txid, self._context.attempt)
        if attempt != self._attempt:
            self._attempt, self._updated = attempt, set()
        for key in self._updated.intersection(keys):
            # The next attempt could not tell whether the first or both updates have happened.
            raise ValueError(f"{key!r} was updated in this transaction already: gather changes, and update once")
        new = carry_out(self._update(keys, attempt, changes, update, initial), self._backend)
        self._updated.update(keys)
        return new

    def multiPut(self, values: Mapping[str, Any]) -> None:
        """Set values, whatever they were; as `multiUpdate`."""
        self.multiUpdate(values, lambda _, value: value)

    def _get(self, keys: list[str]) -> Steps[dict[str, Any]]:
        rows = yield Get(keys)
        for key, row in rows.items():
            stamp_of(key, row, self._owner)
        return {key: decode(row.value) for key, row in rows.items() if row.value is not None}

    def _update(
        self,
        keys: list[str],
        attempt: TransactionAttempt,
        changes: Mapping[str, Any],
        update: Callable[[Any, Any], Any],
        initial: Any,
    ) -> Steps[dict[str, Any]]:
        new: dict[str, Any] = {}
        own = str(Stamp(attempt, f"{self._context.task}/{self._context.parallelism}", self._owner))
        left, expected = keys, dict[str, str | None]()
        while left:
            rows = yield Get(left)
            refuse_stubborn(left if expected else (), expected, rows)
            expected, writes = {key: version_of(rows.get(key)) for key in left}, {}
            for key in left:
                row = rows.get(key)
                if row is not None and self._is_done(key, row, attempt):
                    new[key] = decode(row.value)
                    continue
                value = None if row is None else decode(row.value)
                new[key] = update(begun(value, initial), changes[key])
                writes[key] = Row(own, encode(key, new[key]), None)
            left = (yield Put(writes, {key: expected[key] for key in writes})) if writes else []
        return new

    def _is_done(self, key: str, row: Row, attempt: TransactionAttempt) -> bool:
        """Return whether an attempt of this transaction has written a row."""
        stamp = stamp_of(key, row, self._owner)
        stored = TransactionalValue(stamp.attempt, row.value)
        if stored.update(attempt, lambda curr: curr) is not stored:
            return False
        task, parallelism = stamp.run.split("/")
        # After a start with another parallelism the key may well be another task's.
        if int(task) != self._context.task and int(parallelism) == self._context.parallelism:
            raise ValueMismatchError(
                f"{key!r} was updated by task {task} in this transaction, and now by task {self._context.task}: one of "
                "the two would be lost. Group the bolt by the key, so that one task has it",
                key=key,
            )
        return True
