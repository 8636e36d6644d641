"""Transactions in milliseconds: one Spark job that holds all tasks of a topology, over Spark's pipelined shuffle."""
