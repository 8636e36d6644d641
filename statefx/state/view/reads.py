"""What a store answers to reads, and that it has failed to answer one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statefx.state.contract.store import StateStore


class StoreReads:
    """The reads of one store, and whether one has failed.

    A bolt may take an error of `get` for a key that is not there (``except Exception: count = 0``), and what it puts
    then would be committed in place of what was. So nothing is prepared of a transaction in which a read has failed.

    Attributes
    ----------
    failure : Exception or None
        What the first read that failed has raised.
    """

    __slots__ = ("_store", "failure")

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.failure: Exception | None = None

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read some keys (see `StateStore.get`)."""
        try:
            return self._store.get(keys)
        except Exception as error:
            self.failed(error)
            raise

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Read a range (see `StateStore.scan`)."""
        try:
            yield from self._store.scan(start, stop, reverse)
        except Exception as error:
            self.failed(error)
            raise

    def count(self, space: bytes) -> int | None:
        """Count the entries of a space (see `StateStore.count`)."""
        try:
            return self._store.count(space)
        except Exception as error:
            self.failed(error)
            raise

    def failed(self, error: Exception) -> None:
        """Take note that what was read could not be told; a value that can't be decoded is as unknown as any."""
        self.failure = self.failure or error
