"""Exactly-once values in a database of the user's: whatever bolts keep outside the topology's own state."""

from typing import TYPE_CHECKING

from statefx.elsewhere import lookup
from statefx.values.backend import KeyValueBackend, MemoryBackend, Row
from statefx.values.opaque import OpaqueMap
from statefx.values.transactional import TransactionalMap
from statefx.values.value import OpaqueValue, TransactionalValue

__all__ = [
    "KeyValueBackend",
    "MemoryBackend",
    "OpaqueMap",
    "OpaqueValue",
    "Row",
    "TransactionalMap",
    "TransactionalValue",
]

if not TYPE_CHECKING:
    __getattr__ = lookup(__name__)
