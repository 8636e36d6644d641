"""What it costs to track tuples: words of a `Spout`, split and counted, in turns in one process.

``no ids``: the tuples are not tracked. ``ids``: each sentence has one, and is acked. ``by hand``: a plain bolt anchors
and acks. ``held``: it holds each tuple until the transaction after, so that the acker knows of all of them.

A turn is so many sentences, as fast as they go. The time is that of 1,000 sentences, from the first commit to the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

from in_workers import Count
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, session, take_turns

from statefx import BasicBolt, Bolt, Spout, SpoutCollector, TopologyBuilder, submit

WORDS = 4
WAIT_SECS, POLL_SECS = 300, 0.05

parser = arguments(__doc__)
parser.add_argument("--turns", type=int, default=3)
parser.add_argument("--sentences", type=int, default=0, help="of each task in a turn; by default from --rows")
args = parser.parse_args()
sentences = args.sentences or args.rows
spark = session(RECOMMENDED | LIVING, SLOTS)


class Sentences(Spout):
    """Emits so many, each with a number as id if it is tracked."""

    outputFields = "text string"

    def __init__(self, count: int, *, tracked: bool) -> None:
        self.count, self.tracked = count, tracked

    def open(self, context: Any) -> None:
        self.next = 0

    def nextTuple(self, collector: SpoutCollector) -> None:
        for _ in range(min(100, self.count - self.next)):
            number = self.next
            text = " ".join(f"word-{(number * WORDS + place) % args.keys}" for place in range(WORDS))
            collector.emit((text,), id=number if self.tracked else None)
            self.next = number + 1


class Split(BasicBolt):
    """Emits the words of a sentence."""

    outputFields = "word string"

    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup.text.split():
            collector.emit((word,))


class ByHand(Bolt):
    """The same, anchored and acked by hand; a tuple that it holds is acked in the transaction after."""

    outputFields = "word string"

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds

    def open(self, context: Any) -> None:
        self.context, self.held = context, {}

    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup.text.split():
            collector.emit((word,), anchors=tup)
        if not self.holds:
            collector.ack(tup)
            return
        for txid in [txid for txid in self.held if txid < self.context.txid]:
            for each in self.held.pop(txid):
                collector.ack(each)
        self.held.setdefault(self.context.txid, []).append(tup)


BOLTS: dict[str, tuple[bool, Callable[[], Any]]] = {
    "no ids": (False, Split),
    "ids": (True, Split),
    "by hand": (True, partial(ByHand, holds=False)),
    "held": (True, partial(ByHand, holds=True)),
}


def ran(name: str, turn: int) -> list[float]:
    """Run a turn; return the milliseconds of 1,000 sentences."""
    tracked, split = BOLTS[name]
    builder = TopologyBuilder("acks")
    builder.setSpout("sentences", Sentences(sentences, tracked=tracked), parallelism=2)
    builder.setBolt("split", split(), parallelism=2).localOrShuffleGrouping("sentences")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
    checkpoint = args.work / f"{name}-{turn}".replace(" ", "-")
    config = {"topology.state.provider": "rocksdb", "topology.state.checkpoint.interval.ms": 0}
    query = submit(builder.createTopology(), spark, checkpoint, config=config)
    committed: dict[int, tuple[float, int]] = {}  # when, and of how many sentences, by txid
    ends = time.monotonic() + WAIT_SECS
    while sum(rows for _, rows in committed.values()) < 2 * sentences:
        query.awaitTermination(POLL_SECS)
        for progress in query.recentProgress:
            if rows := progress["rows"].get("split", 0):
                committed[progress["txid"]] = datetime.fromisoformat(progress["timestamp"]).timestamp(), rows
        if not query.isActive or time.monotonic() > ends:
            query.stop()
            raise RuntimeError(f"{committed} were counted: {query.status}")
    query.stop()
    (began, before), *_, (ended, _) = committed.values()
    return [(ended - began) * 1000 / (2 * sentences - before) * 1000]


take_turns(args, {name: partial(ran, name) for name in BOLTS}, args.turns, references=("no ids",))
spark.stop()
