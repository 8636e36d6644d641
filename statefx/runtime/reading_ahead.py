"""Takes rows out of Spark's shuffle while their slot is busy, or waits for their order."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa

from statefx.runtime.outbox import BatchQueue

END_SECS = 5.0
"""How long the rows of the level before may take to end, when the slot has ended. All slots of a run end together."""


class ReadAhead:
    """The rows of an iterator, read by a thread as they come: in memory up to a bound, further ones in files.

    For slots behind the cut (rule 13.9): rows of t+1 come before their order, while that of t, or its decision, is
    awaited. Meanwhile Spark's connections would hold all of them in memory: of 300 MB that waited, 262 were seen there.
    Slots before the cut don't need it: they take an attempt's rows as soon as they have done with the one before.

    Raises
    ------
    Exception
        What `rows` has raised, where its rows end; OSError if a file can't be written.
    """

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._rows = rows
        self._queue: BatchQueue[None] = BatchQueue()
        self._changed = threading.Condition()
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="statefx-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Wait for a batch."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ended)
            if self._queue:
                return self._queue.popleft()[1]
        if self._error is not None:
            raise self._error
        raise StopIteration

    def _read(self) -> None:
        try:
            for batch in self._rows:
                with self._changed:
                    if not self._closed:
                        self._queue.append(None, batch)
                        self._changed.notify()
        except BaseException as error:  # noqa: BLE001 - raised where the rows are read
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify()

    def close(self) -> None:
        """Read the rows to their end, and forget them.

        Raises
        ------
        TimeoutError
            They don't end. Spark would use this process again for another task, of which the thread might take rows.
        """
        with self._changed:
            self._closed = True
            self._queue.close()
        self._thread.join(END_SECS)
        if self._thread.is_alive():
            raise TimeoutError(f"the rows of the level before have not ended after {END_SECS:g} s")
