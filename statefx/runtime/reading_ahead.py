"""Takes rows out of Spark's shuffle while their slot is busy, or waits for their order."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa

from statefx.plan import wire
from statefx.protocol.identity import TransactionAttempt
from statefx.runtime.outbox import BatchQueue

END_SECS = 5.0
"""How long the rows of the level before may take to end, when the slot has ended. All slots of a run end together."""


TRANSACTIONS_MAX = 1000
"""Transactions of which the newest attempt is known: more than are ever in flight. Of others more rows are kept."""


class ReadAhead:
    """The rows of an iterator, one by one, read by a thread as they come: in memory up to a bound, others in files.

    For slots behind the cut (rule 13.9): rows of t+1 come before their order, while that of t, or its decision, is
    awaited. Meanwhile Spark's connections would hold all of them in memory: of 300 MB that waited, 262 were seen there.
    Slots before the cut don't need it: they take an attempt's rows as soon as they have done with the one before.

    Rows of an attempt go when one of the transaction's next attempt comes: a slot that waits for its order would else
    keep those of all attempts that have failed before the cut, however often they are tried. Fillers go at once.

    Raises
    ------
    Exception
        What `rows` has raised, where its rows end; OSError if a file can't be written.
    """

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._rows = rows
        self._queue: BatchQueue[TransactionAttempt | None] = BatchQueue()
        """Each with its attempt; what says that one is abandoned has none, for who reads may wait for it."""
        self._newest: dict[int, TransactionAttempt] = {}
        """The newest attempt of each of the last transactions."""
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
                for at in range(batch.num_rows):
                    self._keep(batch if batch.num_rows == 1 else batch.slice(at, 1))
        except BaseException as error:  # noqa: BLE001 - raised where the rows are read
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify()

    def _keep(self, row: pa.RecordBatch) -> None:
        kind = row.column(1)[0].as_py()
        if kind == wire.FILLER:
            return
        attempt = TransactionAttempt(*wire.attempt_of(row.column(3)[0].as_py())) if kind != wire.ABANDONED else None
        with self._changed:
            if self._closed:
                return
            if attempt is not None and not self._is_newest(attempt):
                return
            self._queue.append(attempt, row)
            self._changed.notify()

    def _is_newest(self, attempt: TransactionAttempt) -> bool:
        """Tell whether an attempt is the newest of its transaction, and forget the rows of those before it."""
        newest = self._newest.get(attempt.txid)
        if newest is None or newest < attempt:
            self._newest[attempt.txid] = attempt
            if newest is not None:
                self._queue.drop(lambda each: each is not None and each.txid == attempt.txid and each < attempt)
            elif len(self._newest) > TRANSACTIONS_MAX:
                del self._newest[next(iter(self._newest))]
        return newest is None or newest <= attempt

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
