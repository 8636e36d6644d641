"""Spouts that emit a batch again: whether they can is checked at a start, and whether they did when it has come.

A transactional spout emits the same rows when a transaction is tried again, or an error says where not. Compared is
what can be: partition by partition, of each task whose ack came. Of a task that never acked, nobody knows what it had
emitted. The driver remembers what acks have said until the transaction is committed, whatever became of the attempt.
What tasks have found out by themselves is durable with PROCESSED, so there the next driver can compare too; what the
driver has planned is durable before any row of it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from statefx.config import REPLAY_CHECK
from statefx.coordinator.log import TransactionLog
from statefx.coordinator.metadata import read_metadata
from statefx.errors import CheckpointMismatchError, InputError
from statefx.operators import OpaquePartitionedTransactionalSpout, ReplayingSpout
from statefx.protocol.barrier import Ack, Content
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.log_state import LogState
from statefx.protocol.metadata import BySpout, Metadata
from statefx.protocol.order import Emission, EmissionOrder
from statefx.storage import Storage

Orders = Mapping[TaskId, EmissionOrder]


@dataclass
class Replays:
    """What spouts have emitted in transactions that are not committed.

    Parameters
    ----------
    storage : Storage
    log : TransactionLog
    """

    storage: Storage
    log: TransactionLog
    _known: dict[int, dict[str, dict[str, Content]]] = field(default_factory=dict, init=False)
    """By txid, spout and place: a partition, or a task of a spout that has none."""

    def difference(self, attempt: TransactionAttempt, orders: Orders, acks: Iterable[Ack]) -> InputError | None:
        """Compare what an attempt has emitted with what is known of its transaction, and remember it."""
        committed = self.log.state.committed
        self._known = {txid: said for txid, said in self._known.items() if txid > committed}
        for ack in acks:
            order = orders.get(ack.id)
            if order is None or ack.attempt != attempt or order.emission is not Emission.AGAIN:
                continue
            known = self._of(attempt.txid, ack.component)
            for partition, content in ack.contents.items():
                place = partition or f"task {ack.task}"  # the tasks of a spout without partitions share its one
                before = known.setdefault(place, content)
                # Other streams or fields, by another release or a topology that was changed: nothing can be said.
                if before != content and before[-1] == content[-1]:
                    where = f"partition {partition}" if partition else place
                    return _error(attempt, ack.component, where, before, content)
        return None

    def _of(self, txid: int, spout: str) -> dict[str, Content]:
        known = self._known.setdefault(txid, {})
        if spout not in known:
            durable = self.log.state.emitted_contents.get(txid, {}).get(spout)
            known[spout] = {} if durable is None else dict(read_metadata(self.storage, durable))
        return known[spout]


def check_spouts(found: LogState, spouts: Mapping[str, ReplayingSpout]) -> None:
    """Refuse a checkpoint in which a spout has read that the topology lacks, or that can't read it again.

    Raises
    ------
    CheckpointMismatchError
        Under another id it would read everything again, and every row would count twice. An opaque spout is told what
        was read before, and can't be told what to read again.
    """
    planned = {spout for metadata in found.planned_metadata.values() for spout in metadata}
    for id in sorted(planned & set(spouts)):
        if isinstance(spouts[id], OpaquePartitionedTransactionalSpout):
            raise CheckpointMismatchError(
                f"spout {id!r} is opaque now, and in the checkpoint in {found.location} it has to read a batch again "
                "as it was: start once with the former class until that is committed",
                spout=id,
            )
    lacking = sorted((planned | set(found.committed_metadata)) - set(spouts))
    if lacking:
        raise CheckpointMismatchError(
            f"spout {lacking[0]!r} has read in the checkpoint in {found.location}, and this topology has no spout of "
            "that id: under another id all of it would be read again, and counted twice. Give the spout its former "
            "id, or start with a new checkpointLocation",
            lacking=lacking,
        )


def emitted_contents(orders: Orders, acks: Iterable[Ack]) -> BySpout:
    """Return what is to be durable of the contents that acks name: of metadata that becomes durable with it."""
    found: dict[str, dict[str, Content]] = {}
    for ack in acks:
        order = orders.get(ack.id)
        if order is not None and order.emission is Emission.NEW and ack.contents:
            found.setdefault(ack.component, {}).update(ack.contents)
    return {spout: Metadata(contents, whole=True) for spout, contents in found.items()}


def _error(attempt: TransactionAttempt, spout: str, place: str, before: Content, now: Content) -> InputError:
    counts = f"{before[0]:,} rows at first, and {now[0]:,} rows now"
    if before[0] == now[0]:
        counts = f"{now[0]:,} rows both times, of which some are others"
    return InputError(
        f"spout {spout!r}, {place}: transaction {attempt.txid} was tried again (attempt {attempt.attempt}), and other "
        f"rows were emitted from the same metadata: {counts}. What a transactional spout emits may follow from its "
        "metadata alone, not from a clock, from chance, or from what its source has forgotten or changed meanwhile. If "
        "the source can't give the same rows again, derive the spout from OpaquePartitionedTransactionalSpout; to get "
        f"past this transaction, start once with {REPLAY_CHECK}=False",
        spout=spout,
        place=place,
        txid=attempt.txid,
    )
