"""A file that a writer holds open over several calls, until it gets its name or is dropped."""

from __future__ import annotations

from contextlib import suppress

from statefx.storage import Storage


class HeldFile:
    """One file of a storage, being written.

    Parameters
    ----------
    storage : Storage
    name : str
        What it is called when it is kept.

    Attributes
    ----------
    name : str
    file : BinaryIO
        To be written to.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = name
        self._writer = storage.writer(name)
        self.file = self._writer.__enter__()

    def keep(self) -> None:
        """Make it durable and give it its name."""
        self._writer.__exit__(None, None, None)

    def drop(self) -> None:
        """Leave nothing of it."""
        with suppress(_Dropped):
            self._writer.__exit__(_Dropped, _Dropped(), None)


class _Dropped(Exception):  # noqa: N818 - nobody sees it: it makes storage drop an unfinished file
    """The attempt was given up."""
