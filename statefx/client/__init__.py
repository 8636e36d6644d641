"""Transactions from plain Python: rows to sinks and changes of state, by the same coordinator, without Spark."""

from statefx.client.transaction import OpenTransaction

__all__ = ["OpenTransaction"]
