import msgpack
import pytest

from statefx.errors import StatefxError
from statefx.protocol.barrier import Ack, Barrier, LeftOut
from statefx.protocol.failure import Failure, FailureKind
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt, Version

BARRIER = Barrier(TransactionAttempt(2**40, 3), "splitß", 7, "token", {0: 5, 3: 2**33}, "the feed is stale")
ACK = Ack(
    TransactionAttempt(3, 1),
    "count",
    0,
    "token",
    {TaskId("split", 0): "a", TaskId("split", 1): "b"},
    {0: 5},
    {1: 2, 2: 0},
    Failure(FailureKind.BOLT, "count", 0, "no good", {"hook": "execute", "txid": 3, "traceback": "Traceback:\n  line"}),
    1000,
    SnapshotRef(Version(2, "head"), "checksum", 12),
    9,
    {"file": "part-0"},
    [1, None],
)
LEFT_OUT = LeftOut(3, 1, "the record at 7")


@pytest.mark.parametrize("value", [BARRIER, ACK, Barrier(BARRIER.attempt, "a", 0, "t"), Ack(ACK.attempt, "a", 0, "t")])
def test_what_is_packed_comes_out_equal(value):
    assert type(value).unpack(value.pack()) == value


def test_what_a_spout_has_left_out_reaches_the_driver():
    assert Ack.unpack(Ack(ACK.attempt, "a", 0, "t", left_out=LEFT_OUT).pack()).left_out == LEFT_OUT
    assert LEFT_OUT + LeftOut(2, 1, "another") == LeftOut(5, 2, "the record at 7")


def test_half_a_surrogate_pair_in_a_text_of_a_bolt_is_shown_and_no_error_of_its_own():
    failed = Ack(ACK.attempt, "a", 0, "t", failed=Failure(FailureKind.BOLT, "a", 0, "\ud83d", {"traceback": "\ud83d"}))
    found = Ack.unpack(failed.pack()).failed
    assert (found.reason, found.facts) == ("\\ud83d", {"traceback": "\\ud83d"})


@pytest.mark.parametrize("value", [{"\ud83d": ["a\udce9", -0.0, None]}, 1 << 80, float("inf"), "", [], {}])
@pytest.mark.parametrize("failed", [None, Failure(FailureKind.BOLT, "a", 0, "\ud83d")])
def test_a_value_comes_out_as_it_went_in_whatever_the_texts_are(value, failed):
    ack = Ack(ACK.attempt, "a", 0, "t", committable=value, metadata=[value], failed=failed)
    found = Ack.unpack(ack.pack())
    assert repr((found.committable, found.metadata)) == repr((value, [value]))


def test_a_plain_barrier_is_small():
    assert len(Barrier(TransactionAttempt(3, 0), "split", 1, "f" * 32, {0: 100}).pack()) < 64


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"xx", ACK.pack(), BARRIER.pack()[:-3], msgpack.packb(("B", 2, [])), msgpack.packb(("B", 1, []))],
)
def test_what_is_not_a_barrier_of_this_version_names_the_remedy(data):
    with pytest.raises(StatefxError, match="same statefx release"):
        Barrier.unpack(data)
