"""How bolts and settings travel to Spark's workers."""

from __future__ import annotations

import io
import pickle
from typing import Any

from pyspark import cloudpickle


def dumps(thing: Any) -> bytes:
    """Pickle `thing`; what is defined in the user's main module goes by value."""
    pickled: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]  # pyspark leaves it so
    return pickled


class _ImportedModules(pickle.Unpickler):
    """Notes what an unpickler imports."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.modules: set[str] = set()

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        self.modules.add(module_name)
        return super().find_class(module_name, global_name)


def modules_of(thing: Any) -> set[str]:
    """Return the names of the modules that a worker imports to unpickle `thing`: of classes and functions in it."""
    unpickler = _ImportedModules(dumps(thing))
    unpickler.load()
    return unpickler.modules


def loads(data: bytes) -> Any:
    """Return what `dumps` pickled."""
    return cloudpickle.loads(data)
