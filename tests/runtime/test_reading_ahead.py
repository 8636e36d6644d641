"""Rows that are read before their order has come: in order, bounded in memory, and with what went wrong."""

import threading

import pytest

from statefx.plan import wire
from statefx.runtime import outlets, slot
from statefx.runtime.outlets import BatchQueue
from statefx.runtime.slot import ReadAhead


def row(number, size=1000, kind=wire.RECORDS, attempt=(1, 0)):
    """What a level sends; it says its number as the number of rows."""
    head = b"" if kind == wire.FILLER else wire.Address(1, 0, -1, 0, 0, *attempt).pack()
    return 0, kind, number, head, bytes(size)


def batch(number, size=1000, **more):
    return wire.to_batch([row(number, size, **more)])


def numbers(batches):
    return [each.column("rows")[0].as_py() for each in batches]


def test_all_is_read_before_anybody_asks_and_little_of_it_is_in_memory(monkeypatch):
    monkeypatch.setattr(outlets, "HELD_BYTES_MAX", 10_000)
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

    monkeypatch.setattr(outlets, "HELD_BYTES_MAX", 1)
    monkeypatch.setattr(outlets.tempfile, "TemporaryFile", refuse)
    ahead = ReadAhead(iter([batch(1), batch(2)]))
    ahead._thread.join(10)
    assert numbers([next(ahead)]) == [1]
    with pytest.raises(OSError, match="No space left"):
        next(ahead)


def test_a_batch_of_several_rows_is_read_row_by_row():
    ahead = ReadAhead(iter([wire.to_batch([row(1), row(2, kind=wire.FILLER), row(3, attempt=(2, 0))])]))
    assert [(each.num_rows, *numbers([each])) for each in ahead] == [(1, 1), (1, 3)]


def test_of_a_transaction_that_is_tried_again_only_the_newest_attempt_is_kept(monkeypatch):
    """A slot that waits for its order kept those of all attempts that failed before it, in files without a bound."""
    monkeypatch.setattr(outlets, "HELD_BYTES_MAX", 5_000)
    opened = []
    make = outlets.tempfile.TemporaryFile
    monkeypatch.setattr(outlets.tempfile, "TemporaryFile", lambda **named: opened.append(make(**named)) or opened[-1])

    def rows():
        yield batch(1, attempt=(6, 0))
        for attempt in range(50):
            for number in range(10):
                yield batch(number, attempt=(7, attempt))
            yield batch(100, attempt=(8, 0))
            yield batch(attempt, kind=wire.ABANDONED, attempt=(7, attempt))
        yield batch(11, attempt=(7, 48))  # late, by another sender

    ahead = ReadAhead(rows())
    ahead._thread.join(10)
    assert len(ahead._queue) == 1 + 10 + 50 + 50
    assert ahead._queue.held_bytes <= 5_000 + 2_000
    left = [(each.column("kind")[0].as_py(), *numbers([each])) for each in ahead]
    assert [number for kind, number in left if kind == wire.RECORDS] == [1, *[100] * 49, *range(10), 100]
    assert [number for kind, number in left if kind == wire.ABANDONED] == list(range(50))
    assert all(each.closed for each in opened)


def test_of_transactions_long_ago_nothing_is_known(monkeypatch):
    monkeypatch.setattr(slot, "TRANSACTIONS_MAX", 3)
    ahead = ReadAhead(batch(txid, attempt=(txid, 1)) for txid in range(100))
    assert numbers(ahead) == list(range(100))
    assert list(ahead._newest) == [97, 98, 99]


def test_closing_reads_to_the_end_and_keeps_nothing(monkeypatch):
    monkeypatch.setattr(outlets, "HELD_BYTES_MAX", 1)
    left = list(range(10))
    ahead = ReadAhead(batch(left.pop()) for _ in range(10))
    ahead.close()
    assert not left
    assert not ahead._queue


def test_rows_that_do_not_end_keep_the_process_from_being_used_again(monkeypatch):
    monkeypatch.setattr(slot, "END_SECS", 0.05)
    never = threading.Event()

    def rows():
        never.wait(10)
        yield batch(1)

    ahead = ReadAhead(rows())
    with pytest.raises(TimeoutError, match="have not ended"):
        ahead.close()
    never.set()


def test_the_files_of_a_queue_that_never_empties_do_not_grow(monkeypatch):
    monkeypatch.setattr(outlets, "FILE_BYTES", 20_000)
    opened = []
    make = outlets.tempfile.TemporaryFile
    monkeypatch.setattr(outlets.tempfile, "TemporaryFile", lambda **named: opened.append(make(**named)) or opened[-1])
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
