"""Queries in the spirit of Nexmark, as topologies: people open auctions and others bid; and what they have to find.

Every 50 events are a person, three auctions and 46 bids, half of them on auctions and by people that are hot. They are
out of order by less than `LATENESS` seconds. Behind all batches each task emits one more row, an hour later, which ends
all windows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from statefx import JoinBolt, StatefulBolt, TopologyBuilder, TransactionalSpout, WindowedBolt
from statefx.topology.graph import Topology

BEGIN, LATENESS = 1_700_000_400, 2
WINDOW, SLIDE, GAP = 10, 2, 10
"""Seconds."""
MICROS = 1_000_000
KINDS = {
    "persons": "id long, name string, at timestamp",
    "auctions": "id long, seller long, at timestamp",
    "bids": "auction long, bidder long, price long, at timestamp",
}


def events(kind: str, batch: int, rows: int, rate: int) -> dict[str, np.ndarray]:
    """Return the events of a kind in a batch of `rows` events, of which `rate` happen in a second; times in µs."""
    random = np.random.default_rng([batch, rows, rate])
    number = np.arange(batch * rows, (batch + 1) * rows)
    at = BEGIN * MICROS + number * MICROS // rate - random.integers(0, LATENESS * MICROS, rows)
    people, auctions, of = number // 50 + 1, number // 50 * 3 + 3, number % 50
    hot, pick, price = random.integers(0, 2, rows), random.random(rows), random.integers(1, 10_000_000, rows)
    person = np.where(hot, people - people % 10, (people * pick).astype(np.int64))
    auction = np.where(hot, auctions - auctions % 100, (auctions * pick).astype(np.int64))
    if kind == "persons":
        found, there = {"id": people, "at": at}, of == 0
    elif kind == "auctions":
        seller = np.where(hot, people, person)
        found, there = {"id": number // 50 * 3 + of, "seller": seller, "at": at}, (of > 0) & (of < 4)
    else:
        found, there = {"auction": auction, "bidder": person, "price": price, "at": at}, of > 3
    found = {name: column[there] for name, column in found.items()}
    return {"id": found["id"], "name": found["id"] % 1000, "at": found["at"]} if kind == "persons" else found


class Events(TransactionalSpout):
    """Emits the events of a kind, a batch in each transaction."""

    def __init__(self, kind: str, batches: int, rows: int, rate: int) -> None:
        self.outputFields = KINDS[kind]
        self.kind, self.batches, self.rows, self.rate = kind, batches, rows, rate

    def open(self, context: Any) -> None:
        self.context = context

    def initializeTransaction(self, txid: int, previous: Any) -> Any:
        return txid - 1 if txid <= self.batches + 1 else None

    def emitBatch(self, attempt: Any, metadata: Any, collector: Any) -> None:
        if metadata == self.batches:
            end = BEGIN + self.batches * self.rows // self.rate + 3600
            names = [part.split()[0] for part in self.outputFields.split(", ")]
            columns = {name: np.array([end * MICROS if name == "at" else -1]) for name in names}
        else:
            share = slice(self.context.task, None, self.context.parallelism)
            every = events(self.kind, metadata, self.rows, self.rate)
            columns = {name: column[share] for name, column in every.items()}
        types = {"at": pa.timestamp("us", "UTC"), "name": pa.string()}
        arrays = [pa.array(column).cast(types.get(name, pa.int64())) for name, column in columns.items()]
        collector.emitBatch(pa.RecordBatch.from_arrays(arrays, list(columns)))


class Bids(WindowedBolt):
    """How many bids each auction had."""

    outputFields = "auction long, bids long, at timestamp"

    def initWindow(self) -> int:
        return 0

    def addToWindow(self, value: int, tup: Any) -> int:
        return value + 1

    def mergeWindows(self, a: int, b: int) -> int:
        return a + b

    def emitWindow(self, window: Any, value: int, collector: Any) -> None:
        collector.emit((window.key, value, window.maxTimestamp))


class Hottest(WindowedBolt):
    """The auction with the most bids; of several, the first one."""

    outputFields = "at timestamp, auction long, bids long"

    def initWindow(self) -> Any:
        return (0, 0)

    def addToWindow(self, value: Any, tup: Any) -> Any:
        return max(value, (tup.bids, -tup.auction))

    def emitWindow(self, window: Any, value: Any, collector: Any) -> None:
        collector.emit((window.end, -value[1], value[0]))


class Highest(WindowedBolt):
    """The highest bid; of several, that on the last auction, by the last bidder."""

    outputFields = "price long, auction long, bidder long, at timestamp"

    def initWindow(self) -> Any:
        return (0, 0, 0)

    def addToWindow(self, value: Any, tup: Any) -> Any:
        return max(value, (tup.price, tup.auction, tup.bidder))

    def emitWindow(self, window: Any, value: Any, collector: Any) -> None:
        collector.emit((*value, window.maxTimestamp))


class UserSessions(Bids):
    """How many bids a user made without a pause."""

    outputFields = "bidder long, begin timestamp, end timestamp, bids long"

    def emitWindow(self, window: Any, value: int, collector: Any) -> None:
        collector.emit((window.key, window.start, window.end, value))


class Results(StatefulBolt):
    """Keeps each row, and how often it came; times in microseconds."""

    def initState(self, state: Any) -> None:
        self.found = state

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        columns = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns
        ]
        for row in zip(*(column.to_pylist() for column in columns), strict=True):
            self.found.put(row, self.found.get(row, 0) + 1)


def topology(query: str, batches: int, rows: int, rate: int) -> Topology:
    """Return the topology of a query, whose results are the state of its bolt ``results``."""
    builder = TopologyBuilder(f"nexmark-{query}")

    def read(kind: str) -> None:
        spout = Events(kind, batches, rows, rate)
        builder.setSpout(kind, spout, parallelism=2, timestamp="at", lateness=f"{LATENESS} seconds")

    window, last = f"{WINDOW} seconds", query
    if query == "q8":
        read("persons")
        read("auctions")
        join = JoinBolt("persons", "id").join("auctions", "seller", "persons")
        join.select("persons.id as person, persons.name, auctions.id as auction").withTumblingWindow(window)
        builder.setBolt("q8", join, 2).fieldsGrouping("persons", "id").fieldsGrouping("auctions", "seller")
    else:
        read("bids")
    if query == "q5":
        counts = Bids().withWindow(window, f"{SLIDE} seconds")
        builder.setBolt("q5", counts, 2).fieldsGrouping("bids", "auction")
        hottest = Hottest().withTumblingWindow(f"{SLIDE} seconds").withTimestampField("at")
        builder.setBolt("hottest", hottest).globalGrouping("q5")
        last = "hottest"
    elif query == "q7":
        highest = Highest().withTumblingWindow(window)
        builder.setBolt("q7", highest, 2).localOrShuffleGrouping("bids")
        highest = Highest().withTumblingWindow(window).withTimestampField("at")
        builder.setBolt("highest", highest).globalGrouping("q7")
        last = "highest"
    elif query == "q11":
        sessions = UserSessions().withSessionWindow(f"{GAP} seconds")
        builder.setBolt("q11", sessions, 2).fieldsGrouping("bids", "bidder")
    builder.setBolt("results", Results()).globalGrouping(last)
    return builder.createTopology()


Row = tuple[Any, ...]


def expected(query: str, batches: int, rows: int, rate: int) -> dict[Row, int]:
    """Return what a query has to find, computed plainly from all events."""

    def every(kind: str) -> list[Row]:
        found = [events(kind, batch, rows, rate) for batch in range(batches)]
        return [row for one in found for row in zip(*(column.tolist() for column in one.values()), strict=True)]

    if query == "q8":
        return dict(Counter(new_sellers(every("persons"), every("auctions"))))
    return dict(Counter({"q5": hottest, "q7": highest, "q11": sessions}[query](every("bids"))))


def hottest(bids: list[Row]) -> Iterator[Row]:
    """Find the auction with the most bids in each sliding window."""
    length, slide = WINDOW * MICROS, SLIDE * MICROS
    windows: dict[int, Counter[int]] = defaultdict(Counter)
    for auction, _, _, at in bids:
        for end in range(at - at % slide + slide, at - at % slide + length + 1, slide):
            windows[end][auction] += 1
    for end, counts in windows.items():
        most, auction = max((count, -auction) for auction, count in counts.items())
        yield end, -auction, most


def highest(bids: list[Row]) -> Iterator[Row]:
    """Find the highest bid of each window."""
    length = WINDOW * MICROS
    found: dict[int, Row] = {}
    for auction, bidder, price, at in bids:
        end = at - at % length + length
        found[end] = max(found.get(end, (0, 0, 0)), (price, auction, bidder))
    for end, bid in found.items():
        yield *bid, end - 1


def new_sellers(persons: list[Row], auctions: list[Row]) -> Iterator[Row]:
    """Find who opened an auction in the window in which he came."""
    length = WINDOW * MICROS
    opened: dict[Row, list[int]] = defaultdict(list)
    for auction, seller, at in auctions:
        opened[seller, at // length].append(auction)
    for person, name, at in persons:
        for auction in opened.get((person, at // length), []):
            yield person, str(name), auction


def sessions(bids: list[Row]) -> Iterator[Row]:
    """Find the sessions of each bidder."""
    gap = GAP * MICROS
    times: dict[int, list[int]] = defaultdict(list)
    for _, bidder, _, at in bids:
        times[bidder].append(at)
    for bidder, whens in times.items():
        whens.sort()
        breaks = [number for number in range(1, len(whens)) if whens[number] - whens[number - 1] >= gap]
        for first, stop in pairwise([0, *breaks, len(whens)]):
            yield bidder, whens[first], whens[stop - 1] + gap, stop - first
