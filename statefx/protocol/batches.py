"""Batches of spouts in each transaction: their durable parts, and what follows from the transaction before.

Who says what a batch is, and where that becomes durable (rule 9.4)::

    planned   the driver           PREPARING(t, 0)      every attempt of t emits it
    emitted   its first segment    PROCESSED(t, a)      the attempts after a emit it
    opaque    each attempt         COMMITTING(t, a)     an attempt that is rolled back leaves nothing

The batch of t+1 begins behind that of t, also while t is in flight (rule 9.5). If the attempt of t that it began behind
is rolled back, t+1 is as well (rule 6.1): so what it began behind is what the attempt of t says that is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from statefx.protocol.identity import TaskId
from statefx.protocol.jsonform import Json
from statefx.protocol.log_state import LogState
from statefx.protocol.metadata import BySpout, Metadata, merged, read_now
from statefx.protocol.order import Emission, EmissionOrder

Partitions = Mapping[str, Json]
"""Partition -> metadata."""

Read = Callable[[Metadata], Partitions]
"""Reads metadata, which may lie in a file beside the log."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Metadata that tasks have emitted in transactions in flight, by txid and spout; the log has the rest.

    Driver memory only: after a restart, tasks re-emit batches that are not in the log.
    """

    emitted: Mapping[int, Mapping[str, Partitions]] = field(default_factory=dict)

    def processed(self, txid: int, said: Mapping[str, Partitions], committed: int) -> Batches:
        """Return the batches after the tasks of `txid` have emitted; those up to `committed` are dropped.

        The metadata of a rolled-back attempt stays until the next attempt replaces it: nothing begins after it before.
        """
        emitted = {number: each for number, each in self.emitted.items() if number > committed}
        return Batches({**emitted, txid: said})

    def last(self, committed: Partitions, state: LogState, spout: str, txid: int, read: Read) -> dict[str, Json]:
        """Return by partition the last metadata of a spout before `txid`: the batch of `txid` begins after it."""
        return merged([committed, *self.in_flight(state, spout, txid, read)])

    def in_flight(self, state: LogState, spout: str, txid: int, read: Read) -> list[Partitions]:
        """Return a spout's metadata in the uncommitted transactions before `txid`, the oldest first."""
        layers = []
        for number in range(state.committed + 1, txid):
            durable = durable_batch(state, spout, number, read)
            layers.append(self.emitted.get(number, {}).get(spout, {}) if durable is None else durable)
        return layers

    def emission_for(
        self,
        committed: Partitions,
        state: LogState,
        spout: str,
        txid: int,
        emission: Emission,
        names: Callable[[Partitions], Iterable[str]],
        read: Read,
    ) -> tuple[Emission, Partitions]:
        """Return what the tasks of a spout emit in `txid`: `emission`, if nothing is durable of the batch.

        `committed` is the spout's newest metadata in `state`; `names` returns the partitions, given the last one.
        """
        durable = durable_batch(state, spout, txid, read)
        if durable is not None:
            return Emission.AGAIN, durable
        last = self.last(committed, state, spout, txid, read)
        return emission, {name: last.get(name) for name in names(last)}


def durable_batch(state: LogState, spout: str, txid: int, read: Read) -> Partitions | None:
    """Return by partition a spout's batch in a transaction that is not committed, or None if it is not durable yet.

    Only the partitions that its record names: one in which there was nothing new has the metadata of a committed batch,
    and would be emitted a second time.
    """
    layer = state.planned_metadata.get(txid, {}).get(spout)
    decided = state.committing
    if layer is None and decided is not None and decided.committing is not None and decided.txid == txid:
        layer = decided.committing.emitted.get(spout)  # a former driver may have written it: its tasks' acks are gone
    return None if layer is None else merged([read(layer)])


def not_durable(planned: BySpout, state: LogState, txid: int) -> BySpout:
    """Return what PREPARING of an attempt of `txid` has to add; what a former attempt planned stays."""
    durable = state.planned_metadata.get(txid, {})
    return {spout: said for spout, said in planned.items() if spout not in durable}


def changed(order: EmissionOrder, said: Partitions) -> dict[str, Json]:
    """Return a task's metadata beyond its instruction: of 10,000 partitions few may have had new rows."""
    return {name: metadata for name, metadata in said.items() if metadata != order.partitions[name]}


def to_be_durable(
    orders: Mapping[TaskId, EmissionOrder], said: Mapping[str, Partitions], emission: Emission
) -> BySpout:
    """Return what spouts of one kind emitted, for the record that makes it durable.

    `orders` are the tasks' instructions, `said` the metadata beyond them, of some spouts none. `emission` is `NEW` for
    PROCESSED, `OPAQUE` for COMMITTING.
    """
    before: dict[str, list[str]] = {}
    for task, order in orders.items():
        if order.emission is emission:
            names = before.setdefault(task.component, [])
            names += [name for name, last in order.partitions.items() if last is not None]
    return {spout: read_now(names, said.get(spout, {})) for spout, names in before.items()}
