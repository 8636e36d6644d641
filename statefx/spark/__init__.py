"""Runs topologies on Spark; the only part of statefx that imports pyspark."""

from statefx.spark.query import Query
from statefx.spark.submit import submit

__all__ = ["Query", "submit"]
