"""What the pipeline tells the driver to do, and what the driver tells the pipeline: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from statefx.protocol.identity import TransactionAttempt


class Segment(StrEnum):
    """A part of a topology that runs as one.

    `PROCESSING` has no committer before it; `ORDERED` is the committers and all that is downstream of one.
    """

    WHOLE = "whole"
    PROCESSING = "processing"
    ORDERED = "ordered"


class Resolution(StrEnum):
    """How an attempt ends in its tasks."""

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
    """Cancel an attempt's segment, without waiting for its end."""

    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Resolve:
    """Commit or roll back in every participant with something to do; `Resolved` follows when all are done."""

    resolution: Resolution
    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Deliver:
    """The commit is complete and in the log: report it to waiting callers.

    It is repeated after a restart, if the former driver may not have reported it (rule 11.3).
    """

    txid: int


Command = Append | StartSegment | Cancel | Resolve | Deliver


# ---- events


@dataclass(frozen=True, slots=True)
class Offered:
    """The input of the next transaction is there. Ignored unless the pipeline `admits` one."""


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
    """Every participant finished this commit or rollback."""

    resolution: Resolution
    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Unresolved:
    """At least one participant failed; only the failed ones are retried."""

    resolution: Resolution
    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class Idle:
    """No input is in sight: write by itself what would ride with the next record."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Admit nothing more. The lowest transaction may finish, unless `now`; the others are rolled back."""

    now: bool = False


Happening = Offered | Appended | Acked | Failed | Resolved | Unresolved | Idle | Stop
