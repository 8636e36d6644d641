"""Ticks: the tuples by which a bolt is told that its period is over, with Storm's names."""

from __future__ import annotations

from typing import Any

from statefx.operators.schema import parse_schema
from statefx.operators.tuples import tuple_class

SYSTEM, TICK = "__system", "__tick"
"""Component and stream that a tick comes from."""

TICK_ROWS = parse_schema("rate_secs double").with_metadata({"source": SYSTEM, "stream": TICK})
"""The schema of a tick as a batch."""


class Tick(tuple_class(TICK_ROWS)):  # type: ignore[misc]  # a class that is made at run time
    """A tick, as ``execute`` is given it."""

    __slots__ = ()
    _source, _stream = SYSTEM, TICK


def isTick(tup: Any) -> bool:
    """Tell whether what a bolt was given is a tick, as Storm's ``TupleUtils.isTick``.

    Parameters
    ----------
    tup : tuple or pyarrow.RecordBatch
        What ``execute`` or ``executeBatch`` was given.

    Examples
    --------
    ::

        def execute(self, tup, collector):
            if isTick(tup):
                self.flush(collector)
            else:
                self.rows.append(tup)
    """
    if isinstance(tup, tuple):
        return (getattr(tup, "_source", None), getattr(tup, "_stream", None)) == (SYSTEM, TICK)
    metadata = getattr(getattr(tup, "schema", None), "metadata", None) or {}
    return (metadata.get(b"source"), metadata.get(b"stream")) == (SYSTEM.encode(), TICK.encode())
