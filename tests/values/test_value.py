"""What a transaction that comes again makes of a value: the rules of the values alone."""

import pickle

import pytest

from statefx.errors import ValueMismatchError
from statefx.protocol.identity import TransactionAttempt
from statefx.values import OpaqueValue, TransactionalValue
from statefx.values.stamp import Stamp

FIVE, FIVE_AGAIN, SIX = TransactionAttempt(5, 0), TransactionAttempt(5, 1), TransactionAttempt(6, 0)


def add(amount):
    return lambda curr: curr + amount


def test_a_transactional_value_is_changed_once_by_a_transaction():
    value = TransactionalValue(TransactionAttempt(4, 2), 10).update(FIVE, add(3))
    assert value == TransactionalValue(FIVE, 13)
    assert value.update(FIVE, add(3)) is value.update(FIVE_AGAIN, add(3)) is value
    assert value.update(SIX, add(1)) == TransactionalValue(SIX, 14)


def test_a_transactional_value_refuses_a_lower_transaction():
    with pytest.raises(ValueMismatchError, match=r"transaction 5, attempt 1, can't .* transaction 6, attempt 0"):
        TransactionalValue(SIX, 10).update(FIVE_AGAIN, add(3))


def test_an_opaque_value_begins_again_with_what_was_before():
    value = OpaqueValue(TransactionAttempt(4, 0), 4).update(FIVE, 7)
    assert value == OpaqueValue(FIVE, 7, 4)
    assert value.get(FIVE) == value.get(FIVE_AGAIN) == 4
    assert value.update(FIVE_AGAIN, 6) == OpaqueValue(FIVE_AGAIN, 6, 4)


def test_an_opaque_value_of_a_later_transaction_begins_with_the_last_one():
    value = OpaqueValue(FIVE, 7, 4)
    assert value.get(SIX) == 7
    assert value.update(SIX, 9) == OpaqueValue(SIX, 9, 7)


def test_an_opaque_value_that_was_not_committed_counts_in_no_later_transaction():
    value = OpaqueValue(FIVE, 7, 4)
    assert value.get(SIX, committed=4) == 4
    assert value.update(SIX, 6, committed=4) == OpaqueValue(SIX, 6, 4)


@pytest.mark.parametrize("attempt", [FIVE, TransactionAttempt(4, 9)])
def test_an_opaque_value_refuses_a_lower_attempt(attempt):
    """Compared by the transaction alone, a late task of attempt 0 would write over attempt 1."""
    value = OpaqueValue(FIVE_AGAIN, 6, 4)
    for use in (value.get, lambda attempt: value.update(attempt, 7)):
        with pytest.raises(ValueMismatchError, match="restored from a backup") as raised:
            use(attempt)
        assert (raised.value.attempt, raised.value.found) == (attempt, FIVE_AGAIN)
        assert pickle.loads(pickle.dumps(raised.value)).found == FIVE_AGAIN


@pytest.mark.parametrize("owner", ["opaque totals/0@4be1", "opaque a name/0@4be1"])
def test_a_stamp_is_read_as_it_was_written(owner):
    stamp = Stamp(FIVE_AGAIN, "9f3c21aa", owner)
    assert Stamp.parse(str(stamp)) == stamp


@pytest.mark.parametrize("text", ["", "5", "5.0", "5.0 run", "5 run owner", "x.0 run owner", "5.0.1 run owner"])
def test_what_is_no_stamp_is_refused(text):
    with pytest.raises(ValueError, match="is not the version of a value"):
        Stamp.parse(text)
