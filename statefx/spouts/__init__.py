"""Ready-made spouts."""

from statefx.spouts.files import FilePartitionedSpout
from statefx.spouts.kafka import KafkaSpout
from statefx.spouts.memory import MemoryTransactionalSpout

__all__ = ["FilePartitionedSpout", "KafkaSpout", "MemoryTransactionalSpout"]
