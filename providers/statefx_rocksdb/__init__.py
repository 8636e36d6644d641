"""State in RocksDB on the worker's disk, durable through changelog files in the checkpoint."""

from statefx_rocksdb.provider import RocksDbStateProvider

__all__ = ["RocksDbStateProvider"]
