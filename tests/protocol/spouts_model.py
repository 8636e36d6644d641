"""The spouts of the model: the driver's own code says what they read; this plays their tasks, and checks what counts.

Every attempt would read something else if it were free to: other numbers of rows, other partitions. A second partition
is added with transaction 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from statefx.protocol import batches
from statefx.protocol.commands import Append, Segment
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.log_state import LogState
from statefx.protocol.metadata import BySpout, Metadata, merged, read_now
from statefx.protocol.order import Emission, EmissionOrder
from statefx.protocol.transaction import Phase

Kinds = Mapping[str, Emission]
"""Spout -> what its tasks do in a transaction that nothing is durable of."""

Rows = tuple[str, str, int, int]
"""Spout, partition, and from which row to which."""


def inline(metadata: Metadata) -> Mapping[str, str]:
    assert metadata.file is None
    return metadata.partitions


def committed(log: LogState, spout: str) -> dict[str, str]:
    return merged(map(inline, log.committed_metadata.get(spout, ())))


def names(txid: int) -> list[str]:
    return ["0"] if txid == 1 else ["0", "1"]


def there(partition: str, name: TransactionAttempt) -> int:
    """How many rows an attempt finds: in one partition fewer the second time, in the other one some or none in turn."""
    return 1 + (not name.attempt) if partition == "0" else (name.txid + name.attempt + 1) % 2


def behind(last: str | None, rows: int) -> str:
    start = 0 if last is None else range_of(last)[1]
    return f"{start}-{start + rows}"


def range_of(metadata: str) -> tuple[int, int]:
    start, stop = metadata.split("-")
    return int(start), int(stop)


@dataclass(frozen=True)
class Flight:
    """An attempt whose first segment has begun: what its tasks were told, and what they emit and say."""

    orders: Mapping[TaskId, EmissionOrder]
    rows: tuple[Rows, ...]
    said: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Spouts:
    """Those of one driver; and what was durable once, and how far all that is decided has read."""

    kinds: Kinds = field(default_factory=dict)
    # Looked up when it is made: mutants change the module.
    batches: batches.Batches = field(default_factory=lambda: batches.Batches())  # noqa: PLW0108
    planned: BySpout = field(default_factory=dict)
    flights: Mapping[TransactionAttempt, Flight] = field(default_factory=dict)
    durable: Mapping[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    read: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @cached_property
    def key(self) -> object:
        flights = sorted((name, each.rows, [*each.orders.values()]) for name, each in self.flights.items())
        return repr((self.batches, self.planned, flights, sorted(self.durable.items()), sorted(self.read.items())))

    # ---- the driver

    def restarted(self) -> Spouts:
        """Another driver: of this one nothing is left."""
        return Spouts(self.kinds, durable=self.durable, read=self.read)

    def offered(self, log: LogState, name: TransactionAttempt) -> Spouts:
        """A transaction is admitted: what it reads is planned, whether or not that is durable already."""
        planned = {}
        for spout, kind in self.kinds.items():
            if kind is Emission.AGAIN:
                last = self.batches.last(committed(log, spout), log, spout, name.txid, inline)
                parts = {part: rows for part in names(name.txid) if (rows := there(part, name))}
                planned[spout] = read_now(last, {part: behind(last.get(part), rows) for part, rows in parts.items()})
        return replace(self, planned=batches.not_durable(planned, log, name.txid))

    def run(self, log: LogState, segment: Segment, name: TransactionAttempt) -> Spouts:
        """A job begins."""
        if segment is Segment.ORDERED:
            for spout, kind in self.kinds.items():
                known = (name.txid, spout) in self.durable
                assert known or kind is Emission.OPAQUE, "a committer runs before it is durable what it reads"
            return self
        orders, rows, said = {}, list[Rows](), dict[str, dict[str, str]]()
        for spout, kind in self.kinds.items():
            told = self.batches.emission_for(
                committed(log, spout), log, spout, name.txid, kind, lambda last: names(name.txid), inline
            )
            order = orders[TaskId(spout, 0)] = EmissionOrder(*told)
            self.check_told(spout, name, order)
            emitted = dict(emission(order, name))
            rows += [(spout, part, *range_of(metadata)) for part, metadata in sorted(emitted.items())]
            said[spout] = batches.changed(order, emitted)
        return replace(self, flights={**self.flights, name: Flight(orders, tuple(rows), said)})

    def acked(self, log: LogState, name: TransactionAttempt) -> Spouts:
        """A job has ended, and its acks fit together."""
        said = self.flights[name].said
        return replace(self, batches=self.batches.processed(name.txid, said, log.committed))

    def emitted(self, name: TransactionAttempt, kind: Emission) -> BySpout:
        """What the record says in which it becomes durable what spouts of one kind have emitted."""
        flight = self.flights[name]
        return batches.to_be_durable(flight.orders, flight.said, kind)

    # ---- what must hold

    def check_told(self, spout: str, name: TransactionAttempt, order: EmissionOrder) -> None:
        durable = self.durable.get((name.txid, spout))
        again = order.emission is Emission.AGAIN
        assert again == (durable is not None), "what is durable comes again, and nothing else"
        assert not again or order.partitions == durable, "a batch comes again as it was"

    def landed(self, log: LogState, append: Append) -> Spouts:
        """A record stands in the log."""
        now = replace(self, durable=self.known_durable(log))
        flight = self.flights.get(append.attempt)
        if flight is None or append.kind not in ("COMMITTING", "ROLLED_BACK"):
            return now
        now = replace(now, flights={name: each for name, each in self.flights.items() if name != append.attempt})
        if append.kind == "ROLLED_BACK":
            return now
        read = dict(self.read)
        for spout, part, start, stop in flight.rows:
            assert start == read.get((spout, part), 0), "rows were left out, or read a second time"
            read[spout, part] = stop
        return replace(now, read=read)

    def known_durable(self, log: LogState) -> Mapping[tuple[int, str], Mapping[str, str]]:
        in_log = {
            (txid, spout): inline(said)
            for txid, by_spout in log.planned_metadata.items()
            for spout, said in by_spout.items()
        }
        for key, partitions in self.durable.items():
            assert key[0] <= log.committed or in_log.get(key) == partitions, "what is durable changes"
        return in_log

    def check_committed(self, log: LogState) -> None:
        """While nothing is decided and not committed, the next batches begin where decided ones end."""
        if any(each.phase is Phase.COMMITTING for each in log.in_flight):
            return
        for spout in self.kinds:
            said = merged(map(inline, log.committed_metadata.get(spout, ())))
            found = {(spout, part): range_of(metadata)[1] for part, metadata in said.items()}
            assert found == {key: stop for key, stop in self.read.items() if key[0] == spout}


def emission(order: EmissionOrder, name: TransactionAttempt) -> Iterator[tuple[str, str]]:
    """What a task emits: partition, and which rows."""
    for part, metadata in order.partitions.items():
        if order.emission is Emission.AGAIN:
            yield part, metadata
        elif there(part, name):
            yield part, behind(metadata, there(part, name))
