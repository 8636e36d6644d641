"""What one task says of a commit or a rollback."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one task's commit or rollback.

    Attributes
    ----------
    component, task : str, int
    error : str or None
        None: done.
    kind : str
        ``bolt``, ``fenced`` or ``store``, where there is an error.
    """

    component: str
    task: int
    error: str | None = None
    kind: str = ""

    def pack(self) -> bytes:
        """Write the report as bytes."""
        packed: bytes = msgpack.packb((self.component, self.task, self.error, self.kind))
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> Report:
        """Read what `pack` wrote."""
        return cls(*msgpack.unpackb(data))
