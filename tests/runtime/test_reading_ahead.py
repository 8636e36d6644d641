"""Rows that are read before their order has come: in order, bounded in memory, and with what went wrong."""

import threading

import pyarrow as pa
import pytest

from statefx.runtime import outbox, reading_ahead
from statefx.runtime.outbox import BatchQueue
from statefx.runtime.reading_ahead import ReadAhead


def batch(number, size=1000):
    return pa.RecordBatch.from_pydict({"number": [number], "payload": [bytes(size)]})


def numbers(batches):
    return [each.column("number")[0].as_py() for each in batches]


def test_all_is_read_before_anybody_asks_and_little_of_it_is_in_memory(monkeypatch):
    monkeypatch.setattr(outbox, "HELD_BYTES_MAX", 10_000)
    read = threading.Event()

    def rows():
        for number in range(100):
            yield batch(number)
        read.set()

    ahead = ReadAhead(rows())
    assert read.wait(10)
    assert ahead._queue.held_bytes <= 10_000
    assert numbers(ahead) == list(range(100))
    ahead.close()


def test_who_asks_first_waits_for_a_row():
    go = threading.Event()

    def rows():
        go.wait(10)
        yield batch(7)

    ahead = ReadAhead(rows())
    threading.Timer(0.05, go.set).start()
    assert numbers(ahead) == [7]


def test_what_the_rows_have_raised_is_raised_behind_the_last_of_them():
    def rows():
        yield batch(1)
        raise EOFError("the job ends")

    ahead = ReadAhead(rows())
    assert numbers([next(ahead)]) == [1]
    with pytest.raises(EOFError, match="the job ends"):
        next(ahead)


def test_a_disk_that_is_full_is_told(monkeypatch, tmp_path):
    def refuse(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outbox, "HELD_BYTES_MAX", 1)
    monkeypatch.setattr(outbox.tempfile, "TemporaryFile", refuse)
    ahead = ReadAhead(iter([batch(1), batch(2)]))
    ahead._thread.join(10)
    assert numbers([next(ahead)]) == [1]
    with pytest.raises(OSError, match="No space left"):
        next(ahead)


def test_closing_reads_to_the_end_and_keeps_nothing(monkeypatch):
    monkeypatch.setattr(outbox, "HELD_BYTES_MAX", 1)
    left = list(range(10))
    ahead = ReadAhead(batch(left.pop()) for _ in range(10))
    ahead.close()
    assert not left
    assert not ahead._queue


def test_rows_that_do_not_end_keep_the_process_from_being_used_again(monkeypatch):
    monkeypatch.setattr(reading_ahead, "END_SECS", 0.05)
    never = threading.Event()

    def rows():
        never.wait(10)
        yield batch(1)

    ahead = ReadAhead(rows())
    with pytest.raises(TimeoutError, match="have not ended"):
        ahead.close()
    never.set()


def test_the_files_of_a_queue_that_never_empties_do_not_grow(monkeypatch):
    monkeypatch.setattr(outbox, "FILE_BYTES", 20_000)
    opened = []
    make = outbox.tempfile.TemporaryFile
    monkeypatch.setattr(outbox.tempfile, "TemporaryFile", lambda **named: opened.append(make(**named)) or opened[-1])
    queue = BatchQueue(1)
    for number in range(5):
        queue.append(None, batch(number))
    for number in range(5, 500):
        queue.append(None, batch(number))
        assert numbers([queue.popleft()[1]]) == [number - 5]
        assert sum(not each.closed for each in opened) <= 2
    assert len(opened) > 10
    queue.close()
    assert all(each.closed for each in opened)
