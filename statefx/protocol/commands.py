"""What the pipeline tells the driver to do, and what the driver tells the pipeline: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from statefx.protocol.identity import TransactionAttempt


class Segment(StrEnum):
    """What one job runs of a topology.

    `PROCESSING` is what no committer stands before; `ORDERED` the committers and all that is downstream of one.
    """

    WHOLE = "whole"
    PROCESSING = "processing"
    ORDERED = "ordered"


class Resolution(StrEnum):
    """How an attempt ends in its tasks: hooks and stores are told."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


# ---- commands


@dataclass(frozen=True, slots=True)
class Append:
    """Make a record durable; nothing else is appended before its `Appended` or the driver's end."""

    kind: str  # ``PREPARING``, ``PROCESSED``, ``COMMITTING``, ``COMMITTED`` or ``ROLLED_BACK``
    attempt: TransactionAttempt
    # The transaction whose COMMITTED this record carries as well: it costs no record of its own.
    committed: int | None = None


@dataclass(frozen=True, slots=True)
class StartSegment:
    """Start a segment; its state opens at the version before this transaction."""

    segment: Segment
    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel what runs of an attempt; nobody waits for its end."""

    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Resolve:
    """Tell every task that has something to do; once all have done it, `Resolved`."""

    resolution: Resolution
    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Deliver:
    """The transaction is committed for everybody, and COMMITTED is durable: tell who waits for that.

    It comes again after a restart, if the former driver may not have come to it (rule 11.3).
    """

    txid: int


Command = Append | StartSegment | Cancel | Resolve | Deliver


# ---- events


@dataclass(frozen=True, slots=True)
class Offered:
    """The input of the next transaction is there. Passed over unless the pipeline `admits` one."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The record of this `Append` is durable."""

    append: Append


@dataclass(frozen=True, slots=True)
class Acked:
    """All acks of the segment are in and fit together."""

    segment: Segment
    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Failed:
    """The segment failed, or its acks do not fit; `final`: trying again would not help."""

    attempt: TransactionAttempt
    final: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """All tasks have done what they were told to."""

    resolution: Resolution
    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Some task has not: it is told again."""

    resolution: Resolution
    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Idle:
    """No input is in sight: what would ride with the next record is written by itself."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Admit nothing more. The lowest transaction may finish, unless `now`; the others are rolled back."""

    now: bool = False


Happening = Offered | Appended | Acked | Failed | Resolved | Unresolved | Idle | Stop
