"""Where transactions come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from statefx.errors import StatefxError
from statefx.protocol.identity import TaskId
from statefx.protocol.metadata import BySpout
from statefx.protocol.order import Emission, EmissionOrder
from statefx.protocol.records import Input
from statefx.protocol.watermark import Heard

if TYPE_CHECKING:
    from statefx.coordinator.attempt import Attempt

LOOK_SECS = 0.1
"""How long it takes at most until a source is asked again; nothing wakes the loop when there is something to read."""


def _never(failure: StatefxError) -> bool:
    return False


class Emissions:
    """What the tasks of sources are told of an attempt, and what they say; by default nothing."""

    def orders(self, attempt: Attempt) -> Mapping[TaskId, EmissionOrder]:
        """Return what each task is told; asked for when it begins, and what is before it has been processed."""
        return {}

    def partitions(self, attempt: Attempt) -> Mapping[str, int]:
        """Return how many partitions each spout with event time has, if any (rule 14.4); asked for after `orders`."""
        return {}

    def finished(self) -> Mapping[str, Iterable[int]]:
        """Return the partitions that are finished, of each spout that has event time and says so, as committed now."""
        return {}

    def processed(self, attempt: Attempt) -> None:
        """Take note of what the tasks have emitted: the next transaction goes on behind it."""

    def times(self, clock_ms: int) -> tuple[Mapping[str, Heard], Mapping[str, int]]:
        """Return what rows of DataFrames say of event time, by stream, and how many are too far ahead to count."""
        return {}, {}

    def emitted(self, attempt: Attempt, emission: Emission) -> BySpout:
        """Return what spouts of one kind have emitted, for the record in which it becomes durable."""
        return {}


class Batch(NamedTuple):
    """The input of one transaction: what PREPARING says of it, and what its tasks are told."""

    input: Input
    work: Any = None
    """Of a client's transaction, what it changes."""
    planned: BySpout = MappingProxyType({})
    """What the driver has planned that spouts read, and that is not in the log yet."""
    emissions: Emissions = Emissions()
    closes: bool = False
    """Whether it reads nothing and closes event time."""
    renews: Callable[[StatefxError], bool] = _never
    """Tells of what an attempt has failed of whether another one over this very batch is of no use."""


class Source(Protocol):
    """Gives transactions their input; called by the coordinator's thread alone.

    A transaction that was rolled back is asked for again, also after later ones were given: a source whose input must
    be the same again remembers it until the transaction is committed (rule 9.4).
    """

    def ready(self, txid: int) -> bool:
        """Tell whether there is input for `txid` now."""

    def next(self, txid: int) -> Batch:
        """Return the input of `txid`, for which it is ready."""

    def look_secs(self) -> float:
        """Return when to ask again, if it was not ready."""

    def ended(self, txid: int) -> bool:
        """Tell whether there will never be any for `txid`."""


@dataclass
class OneBatch:
    """The source of one transaction, whose input is there; `committed` returns the last committed txid."""

    batch: Batch
    txid: int
    committed: Callable[[], int]

    def ready(self, txid: int) -> bool:
        """Tell whether it is not committed yet."""
        return txid == self.txid and not self.ended(txid)

    def next(self, txid: int) -> Batch:
        """Return the batch; the same one to every attempt."""
        return self.batch

    def look_secs(self) -> float:
        """Return any time: it is ready for its transaction until that is committed."""
        return LOOK_SECS

    def ended(self, txid: int) -> bool:
        """Tell whether it is committed."""
        return self.committed() >= self.txid
