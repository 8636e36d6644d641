"""How bolts and settings travel to Spark's workers."""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle


def dumps(thing: Any) -> bytes:
    """Pickle `thing`; what is defined in the user's main module goes by value."""
    pickled: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]  # pyspark leaves it so
    return pickled


def loads(data: bytes) -> Any:
    """Return what `dumps` pickled."""
    return cloudpickle.loads(data)
