"""Why a task could not do what it was told to: in an ack of an attempt, or in the report of a commit or a rollback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FailureKind(StrEnum):
    """What the driver makes of a failure depends on its kind alone."""

    FAILED = "failed"
    """The bolt said so with a FailedException: another attempt may succeed."""
    BOLT = "bolt"
    """The code of the bolt raised."""
    MISUSE = "misuse"
    """A hook did what it must not do: no further try can succeed."""
    FENCED = "fenced"
    """A newer generation has taken over: this driver stops."""
    CORRUPTED = "corrupted"
    """State is damaged."""
    STORE = "store"
    """The state provider failed: another try may succeed."""
    INPUT = "input"
    """Rows that a DataFrame has brought are gone: they are read from the source again (rule 15.1)."""
    MISALIGNED = "misaligned"
    """Rows, barriers or tokens do not fit together."""
    UPSTREAM = "upstream"
    """Another task failed, and passed that on in its barrier."""
    MISSING = "missing"
    """There is no ack at all."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a task could not prepare a transaction."""

    kind: FailureKind
    # component, task: Who reports it.
    component: str
    task: int
    reason: str  # one sentence
    # More for the error that the driver makes of it: of ``bolt``, the attributes of the BoltError.
    facts: Mapping[str, Any] = field(default_factory=dict)
