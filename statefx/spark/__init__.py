"""Runs topologies on Spark; the only part of statefx that imports pyspark.

Nothing is imported here: `statefx.spark.daemon` decides where pyspark comes from before it is loaded.
"""

LEAST_VERSION = 4, 3
"""Of Spark: earlier ones have no pipelined shuffle."""


def is_too_old(version: str) -> bool:
    """Return whether statefx can't run on a version of Spark."""
    return tuple(map(int, version.split(".")[:2])) < LEAST_VERSION
