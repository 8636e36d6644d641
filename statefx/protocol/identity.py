"""What names a thing in the protocol: namespace, attempt, version."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TransactionAttempt:
    """One try of one transaction."""

    txid: int
    attempt: int


@dataclass(frozen=True, slots=True, order=True)
class Namespace:
    """The state of one task: lineage, component, task."""

    lineage: str
    component: str
    task: int


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A committed image of one namespace: the txid and the token of what was prepared for it.

    Txid 0 with an empty token is the empty state, before anything was committed.
    """

    txid: int
    token: str


EMPTY = Version(0, "")
