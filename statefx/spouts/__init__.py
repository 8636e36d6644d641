"""Ready-made spouts."""

from statefx.spouts.files import FilePartitionedSpout
from statefx.spouts.kafka import KafkaSpout
from statefx.spouts.memory import MemoryTransactionalSpout
from statefx.spouts.sql import SqlPartitionedSpout

__all__ = ["FilePartitionedSpout", "KafkaSpout", "MemoryTransactionalSpout", "SqlPartitionedSpout"]
