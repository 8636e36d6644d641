"""What one task says of a commit or a rollback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from statefx.protocol.failure import FailureKind
from statefx.protocol.identity import TaskId


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one task's commit or rollback.

    Attributes
    ----------
    component, task : str, int
    error : str or None
        None: done.
    kind : FailureKind or None
        Of the error.
    facts : Mapping[str, Any]
        Of ``bolt``, the attributes of the BoltError.
    """

    component: str
    task: int
    error: str | None = None
    kind: FailureKind | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> TaskId:
        """Whose it is."""
        return TaskId(self.component, self.task)

    def pack(self) -> bytes:
        """Write the report as bytes."""
        body = (self.component, self.task, self.error, self.kind, dict(self.facts))
        packed: bytes = msgpack.packb(body, unicode_errors="backslashreplace")
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> Report:
        """Read what `pack` wrote."""
        component, task, error, kind, facts = msgpack.unpackb(data)
        return cls(component, task, error, None if kind is None else FailureKind(kind), facts)
