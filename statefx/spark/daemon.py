"""The program that forks Spark's Python workers, with what each of them needs loaded before the first fork.

``spark.python.daemon.module`` names it. Spark's own program loads nothing, so that each worker takes half a second of a
processor to load the same: pandas, which pyarrow asks for at the first array, is half of it. Spark fears the threads
that pandas and pyarrow start. These are OpenBLAS's and the allocator's, which have handlers for a fork; Arrow's own
begin with the first task that needs them.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import zipimport
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

LOADED = ("pandas", "pyspark.worker", "statefx.spark.worker")
"""Not obstore, which has threads of its own once it is used: it is imported where a worker first needs it."""

_CLOSED = (BrokenPipeError, ConnectionResetError)
"""What a worker sees if Spark has closed the connection."""


def main() -> None:
    """Fork workers until Spark closes the input."""
    sys.path[:] = unzipped(sys.path)
    for name in LOADED:
        importlib.import_module(name)
    for path, importer in list(sys.path_importer_cache.items()):
        # The first task of a worker forgets what importers know, and each of the 18 for pyspark.zip would read its list
        # of files again at once. Those that a worker needs are made anew.
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    gc.collect()
    gc.freeze()  # workers share the pages that no collection writes to
    program: Any = importlib.import_module("pyspark.daemon")
    program.worker = quiet(program.worker)
    program.manager()


def quiet(worker: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a fork runs, which ends without a trace on stderr if Spark has closed the connection.

    Spark does so with the workers of a run that has ended, well or not: nobody waits for what they would say. Errors of
    a worker's own are sent to Spark before, and whatever else is raised here is printed by Spark's program, as always.
    """

    def run(*arguments: Any) -> Any:
        try:
            return worker(*arguments)
        except _CLOSED as error:
            if error.__context__ is not None and not isinstance(error.__context__, _CLOSED):
                raise  # behind it is an error of another kind
            os._exit(1)  # as Spark's program does after each error

    return run


def unzipped(path: list[str]) -> list[str]:
    """Return a search path without pyspark.zip, if that lies in an installed pyspark which the rest of the path finds.

    Spark puts its archive first. An archive has no compiled modules: to compile those of pyspark takes as long as all
    else that is loaded here.
    """
    for archive in path:
        if os.path.basename(archive) == "pyspark.zip":
            folder = os.path.dirname(archive)
            rest = [each for each in path if not each.endswith(".zip") or os.path.dirname(each) != folder]  # py4j's too
            found = PathFinder.find_spec("pyspark", rest)
            if found is not None and found.origin and folder.startswith(os.path.dirname(found.origin) + os.sep):
                return rest
    return path


if __name__ == "__main__":
    main()
