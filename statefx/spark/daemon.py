"""The program that forks Spark's Python workers, with what each of them needs loaded before the first fork.

``spark.python.daemon.module`` names it. Spark's own program loads nothing, so that each worker takes half a second of a
processor to load the same: pandas, which pyarrow asks for at the first array, is half of it. Spark fears the threads
that pandas and pyarrow start. These are OpenBLAS's and the allocator's, which have handlers for a fork; Arrow's own
begin with the first task that needs them.
"""

from __future__ import annotations

import gc
import sys
import zipimport

import pandas  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark import daemon

import statefx.spark.pipelined.level
import statefx.spark.worker  # noqa: F401


def main() -> None:
    """Fork workers until Spark closes the input."""
    for path, importer in list(sys.path_importer_cache.items()):
        # The first task of a worker forgets what importers know, and each of the 18 for pyspark.zip would read its list
        # of files again at once. Those that a worker needs are made anew.
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    gc.collect()
    gc.freeze()  # workers share the pages that no collection writes to
    daemon.manager()


if __name__ == "__main__":
    main()
