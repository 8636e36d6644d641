"""Transactions from plain Python: rows to sinks and changes of state, by the same coordinator, without Spark."""

from typing import TYPE_CHECKING

from statefx.client.messages import Received
from statefx.client.transaction import OpenTransaction
from statefx.elsewhere import lookup

__all__ = ["OpenTransaction", "Received"]

if not TYPE_CHECKING:
    __getattr__ = lookup(__name__)
