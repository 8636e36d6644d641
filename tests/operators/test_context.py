"""A bolt's context: fixed, but for the transaction under way."""

import dataclasses
import pickle

import pytest

from statefx import Context
from statefx.protocol.identity import TransactionAttempt


def test_txid_and_attempt_are_live_and_the_rest_is_fixed():
    context = Context({"feed.url": "x"}, "count", 1, 2, generation=3)
    assert (context.txid, context.attempt) == (0, 0)
    context.enter(TransactionAttempt(7, 2))
    assert (context.txid, context.attempt, context.generation, context.task) == (7, 2, 3, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.task = 2
    assert pickle.loads(pickle.dumps(context)).txid == 7
