"""Keys by which a service knows a call that is made again: ``context.idempotencyKey(tup)``.

A bolt is not told where in its input a row stood, and need not be: a key is made of what is the same in every attempt.
That is the checkpoint, the bolt, the transaction, the tuple's own source, stream and values, and, of tuples that are
equal in all of these, which of them it is. Equal tuples can't be told apart, so it does not matter which of them gets
which number, as long as all of them come to the same task.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from typing import Any

from statefx.errors import BoltError
from statefx.operators.fitting import shown
from statefx.operators.tuples import is_tuple, isTick


class IdempotencyKeys:
    """The keys of one attempt of a task.

    `origin` and `component` begin every key. `refusals` say, by source and stream, why a key can't be made.
    """

    def __init__(self, origin: str, component: str, txid: int, refusals: dict[tuple[str, str], str]) -> None:
        self._head = f"{origin}\0{component}\0{txid}"
        self._component = component
        self._refusals = refusals
        self._made: dict[int, tuple[Any, str]] = {}
        """By the object: the tuple, which keeps the object alive, and its key."""
        self._equal: Counter[bytes] = Counter()
        self._successors: dict[int, tuple[Any, Any]] = {}
        """By the object: a tuple, and the one that was made of its row for another call."""
        self._lock = threading.RLock()  # calls may run in threads

    def of(self, tup: Any) -> str:
        """Return the key of a tuple that the bolt was given in this attempt."""
        made = self._made.get(id(tup))
        if made is not None:
            return made[1]
        source, stream = getattr(tup, "_source", None), getattr(tup, "_stream", None)
        if not is_tuple(tup) or source is None or stream is None or isTick(tup):
            raise BoltError(
                f"bolt {self._component!r} called context.idempotencyKey({shown(tup)}): it takes a tuple that execute "
                "was given in this transaction, and no copy of one. For what is kept in state, keep the key with it",
                component=self._component,
            )
        refusal = self._refusals.get((source, stream))
        if refusal is not None:
            raise BoltError(
                f"bolt {self._component!r} called context.idempotencyKey(tup): {refusal}", component=self._component
            )
        alike = _digest(f"{self._head}\0{source}\0{stream}\0{tuple(tup)!r}".encode("utf-8", "surrogatepass"))
        with self._lock:
            if id(tup) in self._successors:  # its values may be changed
                return self.of(self._successors[id(tup)][1])
            number = self._equal[alike]
            self._equal[alike] += 1
            key = _digest(alike + number.to_bytes(8)).hex()
            self._made[id(tup)] = tup, key
        return key

    def adopt(self, tup: Any, key: str) -> None:
        """Give a tuple of an earlier transaction, which is tried again, the key that it had there."""
        self._made[id(tup)] = tup, key

    def hand_on(self, before: Any, tup: Any) -> None:
        """Let a tuple and the one that was made of its row once more have one key, whichever is asked for first.

        The call that had the former one may go on in a thread, and ask for it there.
        """
        with self._lock:
            made = self._made.get(id(before))
            if made is None:
                self._successors[id(before)] = before, tup
            else:
                self._made[id(tup)] = tup, made[1]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
