"""Messages that a client receives from queues, and acknowledges in its transactions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from statefx.operators import Context

ACKS = ".acks"
"""Behind the name of a queue: the client's sink by which its messages leave it."""


class Received(NamedTuple):
    """A message that a transaction has received.

    Attributes
    ----------
    queue : str
        Its name in ``queues``.
    id : int or str
        By which the queue knows it.
    values : dict of str to Any
        By field; a row for `send`.
    tries : int
        How often it was handed out before, as far as the queue tells.
    """

    queue: str
    id: Any
    values: dict[str, Any]
    tries: int


class Receiver:
    """What a client has of one queue: the messages that were handed out to it, until a commit takes them off.

    Parameters
    ----------
    name : str
    spout : Spout
        A ``QueueSpout`` whose messages are acknowledged in the transaction; it is not open.
    origin, generation, txid
        Of the checkpoint, of this client, and of the next transaction: all before it are decided.
    """

    def __init__(self, name: str, spout: Any, origin: str, generation: int, txid: int) -> None:
        self._name, self._spout = name, spout
        self._has: dict[Any, Received] = {}
        spout.open(Context({}, name + ACKS, 0, 1, generation, origin, txid=txid))

    @property
    def owner(self) -> str:
        """As which the client has the messages."""
        return str(self._spout.owner)

    def receive(self, limit: int, taken: Collection[Any]) -> list[Received]:
        """Return some messages that are not among the ids `taken`: those that came back first, then new ones."""
        found = [message for id, message in self._has.items() if id not in taken][:limit]
        if len(found) < limit:
            for id, values, tries in self._spout.take(limit - len(found)):
                fields = dict(zip(self._spout.schema.names, values, strict=True))
                self._has[id] = Received(self._name, id, fields, tries)
                found.append(self._has[id])
        return found

    def until(self, id: Any) -> set[Any]:
        """Return the ids of what the client has and received before this one, and this one."""
        ids = list(self._has)
        return set(ids[: ids.index(id) + 1])

    def forget(self, ids: Collection[Any]) -> None:
        """Have these messages no more: they are acknowledged, or somebody else has them."""
        for id in ids:
            self._has.pop(id, None)
            self._spout.ack(id)

    def close(self) -> None:
        """Release the connection; the queue hands out again what was not acknowledged."""
        self._spout.close()
