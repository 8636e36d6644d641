"""Runs topologies on Spark; the only part of statefx that imports pyspark.

Nothing is imported here: `statefx.spark.daemon` decides where pyspark comes from before it is loaded.
"""
