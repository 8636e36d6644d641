"""Attempts of a task as tests drive them: each is some steps, between which others may run, or it may end."""

import json
from collections import Counter

from statefx import Context
from statefx.protocol.identity import TransactionAttempt
from statefx.state.view.changes import StoreReads
from statefx.values import OpaqueMap


class Kept(dict):
    """The state of one attempt: a copy of what was committed, which counts if the attempt is committed."""

    def __init__(self, *committed):
        super().__init__(*committed)
        self._reads = StoreReads(None)

    def put(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


def context(attempt, component="totals", task=0, parallelism=1, origin="o" * 32):
    return Context({}, component, task, parallelism, 1, origin, attempt=attempt.attempt, txid=attempt.txid)


def add(value, change):
    return value + change


class Actor:
    """A run of an attempt, which updates a map by `changes`, or which rolls the attempt back."""

    def __init__(self, backend, state, txid, attempt, changes, rolls_back=False):
        self.attempt, self.changes = TransactionAttempt(txid, attempt), Counter(changes)
        self.backend, self.state = backend, Kept(state)
        self.map = OpaqueMap(backend, self.state, context(self.attempt))
        self.map._rolling_back = rolls_back
        self._steps = self.map._update(sorted(changes), changes, add, 0)
        self._answer = None
        self.ended, self.error = False, None

    def step(self):
        """Do the next thing that it asks of the database; at its end, or when it raises, it has ended."""
        if self.ended:
            return
        try:
            self._answer = self._steps.send(self._answer).on(self.backend)
        except StopIteration:
            self.ended = True
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            self.ended, self.error = True, error

    def finish(self):
        while not self.ended:
            self.step()
        return self.error is None


def values(backend):
    return {key: json.loads(row.value) for key, row in backend.rows.items() if row.value is not None}
