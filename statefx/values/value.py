"""Values that know the transaction that wrote them: what a transaction that comes again makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from statefx.errors import ValueMismatchError
from statefx.protocol.identity import TransactionAttempt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TransactionalValue(Generic[T]):
    """A value, and the transaction that wrote it last: a transaction that comes again changes nothing.

    For spouts that emit the same rows again, and bolts that make the same of them: then it does not matter which
    attempt has written.

    Attributes
    ----------
    attempt : TransactionAttempt
        The one that wrote `curr`.
    curr : Any

    Examples
    --------
    >>> count = TransactionalValue(TransactionAttempt(4, 0), 10)
    >>> count = count.update(TransactionAttempt(5, 0), lambda curr: curr + 3)
    >>> count.update(TransactionAttempt(5, 1), lambda curr: curr + 3).curr
    13
    """

    attempt: TransactionAttempt
    curr: T

    def update(self, attempt: TransactionAttempt, change: Callable[[T], T]) -> TransactionalValue[T]:
        """Return the value as `attempt` leaves it: this one, if its transaction has written it already.

        Raises
        ------
        ValueMismatchError
            A later transaction has written it.
        """
        if attempt.txid < self.attempt.txid:
            raise behind(attempt, self.attempt)
        if attempt.txid == self.attempt.txid:
            return self
        return TransactionalValue(attempt, change(self.curr))


@dataclass(frozen=True, slots=True)
class OpaqueValue(Generic[T]):
    """A value, the attempt that wrote it last, and the value before: an attempt that failed can be taken back.

    For any spout: the attempt that comes after one that failed may have other rows.

    Attributes
    ----------
    attempt : TransactionAttempt
        The one that wrote `curr`.
    curr, prev : Any
        What it wrote, and what it began with: the value that the last committed transaction had left.

    Contract
    --------
    * A later transaction begins with `curr`, if the attempt that wrote it was committed, else with `prev`. That a later
      transaction runs does not say that this *attempt* was committed: attempt 0 of transaction 5 may have written the
      value, and attempt 1, which was committed, may have had no row for it. So who asks says up to which transaction
      the values are known to be those of committed attempts.
    * Another attempt of the same transaction begins with `prev`.
    * A lower transaction is an error, and so is a lower attempt: it is a task that was thought dead (rule 9.6).

    Examples
    --------
    >>> total = OpaqueValue(TransactionAttempt(5, 0), curr=7, prev=4)
    >>> total.get(TransactionAttempt(5, 1)), total.get(TransactionAttempt(6, 0))
    (4, 7)
    >>> total.get(TransactionAttempt(6, 0), committed=4)
    4
    """

    attempt: TransactionAttempt
    curr: T
    prev: T | None = None

    def get(self, attempt: TransactionAttempt, committed: int | None = None) -> T | None:
        """Return the value that `attempt` begins with.

        Parameters
        ----------
        attempt : TransactionAttempt
        committed : int, optional
            Up to this transaction, what stands here was written by attempts that were committed. By default up to the
            one before: that is so if each attempt of a transaction writes this value, with or without a row for it.

        Raises
        ------
        ValueMismatchError
            A later transaction or attempt has written it.
        """
        if attempt < self.attempt:
            raise behind(attempt, self.attempt)
        return self.curr if self.attempt.txid <= (attempt.txid - 1 if committed is None else committed) else self.prev

    def update(self, attempt: TransactionAttempt, curr: T, committed: int | None = None) -> OpaqueValue[T]:
        """Return the value as `attempt` leaves it, with `curr`, which it has made of what `get` returns.

        Raises
        ------
        ValueMismatchError
            As `get`.
        """
        return OpaqueValue(attempt, curr, self.get(attempt, committed))


def behind(attempt: TransactionAttempt, found: TransactionAttempt, what: str = "the value") -> ValueMismatchError:
    """Return the error for an attempt that comes after a later one has written."""
    return ValueMismatchError(
        f"transaction {attempt.txid}, attempt {attempt.attempt}, can't write {what}: transaction {found.txid}, attempt "
        f"{found.attempt}, has written it. If this is a task that was given up, it ends here and nothing is lost. If "
        "not, the checkpoint was restored from a backup, or begun anew, and the database was not: restore both as they "
        "were at one time, or empty the table and use a new checkpoint",
        attempt=attempt,
        found=found,
    )
