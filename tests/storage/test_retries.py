"""What goes wrong on the way to a store once is not seen by those who ask it; what goes on is told as what it is."""

import time

import pyarrow as pa
import pytest

from statefx.errors import AlreadyExistsError, OutcomeUnknownError
from statefx.runtime import staging
from statefx.runtime.staging import PartLostError, PartWriter, read_part
from statefx.storage import objects, storage_at
from statefx.storage.contract import DAMAGED
from tests.storage.network import BUSY, FAULTS, HALF, LATE, LOST, UNANSWERED
from tests.storage.s3_server import as_users_have_it, s3_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    with s3_server(page=2) as address:
        yield address


@pytest.fixture
def storage(between):
    with as_users_have_it(between.address) as made:
        found = storage_at(made())
        found.put("a", b"before")
        found.put("b/1", b"")
        found.put("b/2", b"")
        yield found


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_made_up_for(between, storage, fault):
    def once(call):
        between.spoil(fault)
        return call()

    once(lambda: storage.create("c", b"mine"))
    once(lambda: storage.put("d", b"new"))
    assert once(lambda: storage.read("a")) == b"before"
    assert once(lambda: storage.read("a", 2, 4)) == b"fo"
    assert once(lambda: storage.reader("a").read()) == b"before"
    assert [each.name for each in once(lambda: list(storage.list("b/")))] == ["b/1", "b/2"]
    once(lambda: storage.delete(["b/1", "b/2"]))
    assert [each.name for each in storage.list()] == ["a", "c", "d"]
    assert storage.read("c") == b"mine"
    assert storage.read("d") == b"new"
    with pytest.raises(AlreadyExistsError):
        once(lambda: storage.create("a", b"mine"))


def test_an_object_is_read_in_pieces_that_a_slow_network_brings_in_time(between, storage, monkeypatch):
    monkeypatch.setattr(objects, "READ_BYTES", 3)
    data = bytes(range(10))
    storage.put("large", data)
    for start in range(11):
        for stop in [None, *range(12)]:
            assert storage.read("large", start, stop) == data[start:stop]
    with between.watched() as requests:
        assert storage.read("large") == data
    assert [each.headers["range"] for each in requests] == [
        "bytes=0-2",
        "bytes=3-5",
        "bytes=6-8",
        "bytes=9-9",
    ]


def test_an_answer_that_takes_too_long_is_not_waited_for(between, storage, monkeypatch):
    monkeypatch.setattr(objects, "TIMEOUT", "500ms")
    between.late_secs = 3
    impatient = storage_at(storage.url)
    for call in (
        lambda: impatient.create("c", b"mine"),
        lambda: impatient.put("d", b"new"),
        lambda: impatient.read("a"),
        lambda: impatient.delete(["b/1"]),
    ):
        between.spoil(LATE)
        began = time.monotonic()
        call()
        assert time.monotonic() - began < 2.5
    assert [each.name for each in storage.list()] == ["a", "b/2", "c", "d"]


def test_a_listing_goes_on_where_a_page_of_it_was_lost(between, storage, monkeypatch):
    monkeypatch.setattr(objects, "BATCH", 2)
    names = [f"many/{number}" for number in range(7)]
    for name in names:
        storage.put(name, b"")
    found = storage.list("many/")
    begun = [next(found).name, next(found).name]
    between.spoil(HALF, HALF)
    with between.watched() as requests:
        assert [*begun, *(each.name for each in found)] == names
    assert len(requests) >= 3


@pytest.mark.parametrize("fault", [LOST, BUSY])
def test_who_never_gets_through_does_not_know(between, storage, monkeypatch, fault):
    monkeypatch.setattr(objects, "RETRIES", 1)
    again = storage_at(storage.url)
    between.spoil(*[fault] * 1000)
    began = time.monotonic()
    with pytest.raises(OutcomeUnknownError, match="may or may not have been written"):
        again.create("c", b"mine")
    with pytest.raises(OSError, match="s3://"):
        again.put("d", b"mine")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("fault", [LOST, BUSY])
def test_rows_of_a_store_that_does_not_answer_are_not_lost(between, storage, monkeypatch, fault):
    """Rule 15.2: the next attempt reads the same ones. Nobody can say that a file of a store is damaged for good."""
    monkeypatch.setattr(objects, "RETRIES", 0)
    monkeypatch.setattr(objects, "TRIES", 1)
    monkeypatch.setattr(staging, "INLINE_BYTES_MAX", 0)
    again = storage_at(storage.url)
    batch = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
    writer = PartWriter(again, "input/1-a", "s", 0, batch.schema, None, 0, staging.inline_bytes(1))
    writer.write(batch)
    (part,) = writer.close()
    between.spoil(*[fault] * 1000)
    with pytest.raises(OSError, match="s3://"):
        list(read_part(again, part.share(0, 3)))
    between.mend()
    assert list(read_part(again, part.share(0, 3))) == [batch]
    again.delete([part.name])
    with pytest.raises(PartLostError, match="is missing"):
        list(read_part(again, part.share(0, 3)))


CALLS = {
    "read": lambda storage: storage.read("a"),
    "part": lambda storage: storage.read("a", 2, 4),
    "reader": lambda storage: storage.reader("a"),
    "list": lambda storage: list(storage.list()),
    "put": lambda storage: storage.put("d", b"mine"),
    "delete": lambda storage: storage.delete(["a"]),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_failure_of_a_store_says_that_a_file_is_damaged(between, storage, monkeypatch, call):
    monkeypatch.setattr(objects, "RETRIES", 0)
    monkeypatch.setattr(objects, "TRIES", 1)
    again = storage_at(storage.url)
    between.spoil(*[BUSY] * 1000)
    with pytest.raises(OSError, match="s3://") as caught:
        CALLS[call](again)
    assert caught.value.errno not in DAMAGED


def test_who_was_not_answered_reads_what_came_of_it(between, storage):
    """All tries to write are carried out and not answered; the reading that comes then is."""
    between.spoil(*[UNANSWERED] * objects.TRIES)
    storage.create("c", b"mine")
    assert storage.read("c") == b"mine"
