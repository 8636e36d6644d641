"""Who wrote a value, in which attempt: the version by which a database tells one write from another."""

from __future__ import annotations

from dataclasses import dataclass

from statefx.protocol.identity import TransactionAttempt


@dataclass(frozen=True, slots=True)
class Stamp:
    """Names one write; as text it is the version of what was written.

    Attributes
    ----------
    attempt : TransactionAttempt
    run : str
        Which run of the attempt: Spark may run a task twice in one attempt, and both write.
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
        """Read what `str` wrote.

        Raises
        ------
        ValueError
            It is no stamp.
        """
        try:
            number, run, owner = text.split(" ", 2)
            txid, attempt = number.split(".")
            return cls(TransactionAttempt(int(txid), int(attempt)), run, owner)
        except ValueError:
            raise ValueError(f"{text!r} is not the version of a value: '5.0 9f3c21aa totals/0@4be1' is one") from None
