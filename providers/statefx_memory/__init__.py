"""State in the worker process's memory, durable through changelog files in the checkpoint."""

from statefx_memory.provider import MemoryStateProvider

__all__ = ["MemoryStateProvider"]
