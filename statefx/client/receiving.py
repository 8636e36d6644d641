"""Messages that a client receives from queues, and acknowledges in its transactions."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
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
        How often it was handed out before: by this client, and by the queue to others.
    """

    queue: str
    id: Any
    values: dict[str, Any]
    tries: int


class Receiver:
    """What a client has of one queue: the messages that were handed out to it, until a commit takes them off.

    They are renewed as long as the transaction may be committed that has them. Then the client's next `receive` returns
    them again, if it comes soon; else the queue hands them out to whoever asks.

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
        self._until: dict[Any, float] = {}
        """When the transaction ends, or is over its time, that has a message."""
        self._reasons: dict[Any, str] = {}
        """Why those that came back were not processed."""
        spout.open(Context({}, name + ACKS, 0, 1, generation, origin, txid=txid))

    @property
    def owner(self) -> str:
        """As which the client has the messages."""
        return str(self._spout.owner)

    @property
    def max_tries(self) -> int:
        """How often a message is handed out before it is a dead letter."""
        return int(self._spout.maxTries)

    def receive(self, limit: int, taken: Collection[Any], until: float) -> list[Received]:
        """Return some messages that are not among the ids `taken`: those that came back first, then new ones.

        They are renewed until the time `until` of the monotonic clock.
        """
        self._drop()
        back = [message for id, message in self._has.items() if id not in taken][:limit]
        found = [message._replace(tries=message.tries + 1) for message in back]
        if len(found) < limit:
            for id, values, tries in self._spout.take(limit - len(found)):
                found.append(Received(self._name, id, dict(zip(self._spout.schema.names, values, strict=True)), tries))
        for message in found:
            self._has[message.id] = message
            self.hold(message.id, until)
        return found

    def has(self, id: Any) -> bool:
        """Tell whether the client has a message."""
        self._drop()
        return id in self._has

    def hold(self, id: Any, until: float) -> None:
        """Renew a message until the time of the transaction is over that has it."""
        self._until[id] = until
        self._spout.hold(id, until)

    def release(self, ids: Iterable[Any], reason: str) -> None:
        """Take messages back from a transaction that did not acknowledge them, and why."""
        now = time.monotonic()
        for id in ids:
            if id in self._has:
                self._reasons[id] = reason
                self.hold(id, min(now, self._until[id]))

    def reason(self, id: Any) -> str | None:
        """Return why a message was not processed when it was handed out last; None if nobody knows."""
        return self._reasons.get(id)

    def _drop(self) -> None:
        """Forget what nobody has renewed for so long that the queue may soon hand it out to others."""
        secs, now = self._spout.renewSecs, time.monotonic()
        if secs:
            self.forget([id for id, until in self._until.items() if until + secs < now])

    def until(self, id: Any) -> set[Any]:
        """Return the ids of what the client has and received before this one, and this one."""
        ids = list(self._has)
        return set(ids[: ids.index(id) + 1])

    def forget(self, ids: Collection[Any]) -> None:
        """Have these messages no more: they are acknowledged, or somebody else has them."""
        for id in ids:
            for kept in (self._has, self._until, self._reasons):
                kept.pop(id, None)
            self._spout.ack(id)

    def close(self) -> None:
        """Release the connection; the queue hands out again what was not acknowledged."""
        self._spout.close()
