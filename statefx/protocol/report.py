"""What one task says of a commit or a rollback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

MISUSE = "misuse"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one task's commit or rollback.

    Attributes
    ----------
    component, task : str, int
    error : str or None
        None: done.
    kind : str
        ``bolt``, ``misuse`` (no further try can succeed), ``fenced`` or ``store``, where there is an error.
    facts : Mapping[str, Any]
        Of ``bolt``, the attributes of the BoltError.
    """

    component: str
    task: int
    error: str | None = None
    kind: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Write the report as bytes."""
        body = (self.component, self.task, self.error, self.kind, dict(self.facts))
        packed: bytes = msgpack.packb(body, unicode_errors="backslashreplace")
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> Report:
        """Read what `pack` wrote."""
        return cls(*msgpack.unpackb(data))
