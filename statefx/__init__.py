"""Checkpointed stateful operators with exactly-once state and output, for Python on Spark."""
