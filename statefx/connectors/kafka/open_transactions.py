"""Transactions that producers have left open: nothing behind them is read, and a warning says so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from statefx.connectors.kafka.calls import close_consumer
from statefx.connectors.kafka.clients import Clients
from statefx.connectors.kafka.library import kafka
from statefx.connectors.kafka.planning import END, ask_offsets
from statefx.connectors.kafka.rows import Place

if TYPE_CHECKING:
    from confluent_kafka import Consumer

logger = logging.getLogger("statefx")

LOOK_SECS = 10.0
"""The pause between two looks, each one request for each broker. A producer at work does not stand still so long."""


class OpenTransactions:
    """Tells of partitions that stand still, each time once.

    The last stable offset is often before the end: somebody is writing. A warning is due where it is the same offset at
    two looks, and all before it is read.

    Parameters
    ----------
    clients : Clients
    group : str
    clock : callable
        Seconds.
    """

    def __init__(self, clients: Clients, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clients = clients
        self._group = group
        self._clock = clock
        self._consumer: Consumer | None = None
        self._looked: float | None = None
        self._stood: dict[Place, int] = {}
        self._said: dict[Place, int] = {}

    def look(self, stable: Mapping[Place, int]) -> None:
        """Look whether there is anything behind the last stable offsets of partitions that are read up to there."""
        if not stable or (self._looked is not None and self._clock() < self._looked + LOOK_SECS):
            return
        self._looked = self._clock()
        try:
            # The driver's own consumer sees no more than what is committed.
            more = {"isolation.level": "read_uncommitted"}
            self._consumer = self._consumer or self._clients.consumer(self._group, **more)
            ends = {
                place: each.offset for place, each in ask_offsets(self._consumer, dict.fromkeys(stable, END)).items()
            }
        except kafka().KafkaException:
            return  # the driver's own consumer fails as well, and says so
        stands = {place: offset for place, offset in stable.items() if ends.get(place, offset) > offset}
        for place, offset in stands.items():
            if self._stood.get(place) == offset != self._said.get(place):
                self._said[place] = offset
                logger.warning(
                    "%s is read up to offset %d, and %d offsets behind it wait for a transaction that a producer has "
                    "open: until the producer ends it, or Kafka aborts it after the transaction.timeout.ms of the "
                    "producer. kafka-transactions.sh names the producer", place, offset, ends[place] - offset,
                )  # fmt: skip
        self._stood = stands

    def close(self) -> None:
        """End the client."""
        if self._consumer is not None:
            close_consumer(self._consumer)
