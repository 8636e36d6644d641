"""Random inputs of an interval join, and a plain recount of what is to come out of it."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

from statefx import BasicBolt, IntervalJoin, StatefulBolt, TopologyBuilder, openState
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import FailedException

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ORDERS, PAYMENTS = "order string, at timestamp, item long", "order string, at timestamp, cents long"
STREAMS = ("default", "unmatchedLeft", "unmatchedRight", "lateLeft", "lateRight")


def at(secs):
    return None if secs is None else NOON + timedelta(seconds=secs)


def secs(time):
    return (time - NOON).total_seconds()


def join(between=("0 seconds", "60 seconds"), select="order, item, cents", **options):
    return IntervalJoin("orders", "payments", on="order", between=between, select=select, **options)


class Fails(BasicBolt):
    """Passes rows on, and fails by chance."""

    def __init__(self, fields, chance):
        self.outputFields, self.chance = fields, chance

    def execute(self, tup, collector):
        if random.random() < self.chance:
            raise FailedException("by chance")
        collector.emit(tuple(tup))


class Told(StatefulBolt):
    """Keeps all that the join emits, and the watermarks."""

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.rows, self.watermarks = state.map("rows"), state.map("watermarks")
        self.count = state.value("count")

    def execute(self, tup, collector):
        self.count.put(self.count.get(0) + 1)
        self.rows.put(self.count.get(), (tup._stream, *tup))

    def prePrepare(self, txid):
        if self.context.watermark is not None:
            self.watermarks.put(self.context.watermark, None)


class Life:
    """A random input, and what is to come out of it."""

    def __init__(self, seed):
        chance = self.chance = random.Random(seed)
        self.lower, self.upper = sorted(chance.randint(-20, 20) for _ in range(2))
        self.lateness = chance.choice([0, 5, 30])
        self.outer = chance.choice([None, "left", "right", "full"])
        self.number = 0
        self.parts = [[self.rows() for _ in range(chance.randint(1, 2))] for _ in range(2)]
        self.take = chance.randint(1, 8)

    def rows(self):
        chance, found = self.chance, []
        step = chance.choice([1, 3])  # one input may be far behind the other
        for number in range(chance.randint(1, 60)):
            self.number += 1
            key = chance.choice(["a", "b", "c", "d", None] if chance.random() < 0.2 else ["a", "b", "c"])
            time = None if chance.random() < 0.05 else step * number + chance.randint(-12, 12)
            # Rows that are equal are rows of their own.
            found.append((key, at(time), self.number if chance.random() < 0.8 else 0))
        return found

    def topology(self, width, failing=0.0):
        """Return spouts -> bolts that say which field is the time -> the join -> `Told`."""
        builder = TopologyBuilder("life")
        between = tuple(timedelta(seconds=bound) for bound in (self.lower, self.upper))
        bolt = join(between, "order, item, cents, orders.at as ordered", outer=self.outer)
        paid, told = builder.setBolt("paid", bolt, width), builder.setBolt("told", Told())
        late = {"lateness": f"{self.lateness} seconds"} if self.lateness else {}
        for name, fields, parts in zip(("orders", "payments"), (ORDERS, PAYMENTS), self.parts, strict=True):
            paid.fieldsGrouping(name, "order")
            builder.setSpout(f"{name}-in", MemoryTransactionalSpout(parts, fields, takePerBatch=self.take))
            relay = builder.setBolt(name, Fails(fields, failing), timestamp="at", idleAfter="1 minute", **late)
            relay.globalGrouping(f"{name}-in")
        for stream in STREAMS:
            told.globalGrouping("paid", stream=stream)
        return builder.createTopology()

    def recount(self, emitted, watermark):
        """Return what there is to come of all rows but those that were told to be late."""
        given = [Counter(row for part in parts for row in part) for parts in self.parts]
        for side, stream in enumerate(("lateLeft", "lateRight")):
            late = Counter(row[:-1] for row in emitted[stream])
            assert late <= given[side]
            given[side] -= late
        left, right = (list(side.elements()) for side in given)
        partners, pairs = [[0] * len(left), [0] * len(right)], []
        for one, order in enumerate(left):
            for other, payment in enumerate(right):
                if self.is_pair(order, payment):
                    pairs.append((order[0], order[2], payment[2], order[1]))
                    partners[0][one] += 1
                    partners[1][other] += 1
        alone = [
            [row for row, count in zip(side, counts, strict=True) if not count and self.is_over(row, bound, watermark)]
            for side, counts, bound in zip((left, right), partners, (self.upper, -self.lower), strict=True)
        ]
        if self.outer in ("left", "full"):
            pairs += [(row[0], row[2], None, row[1]) for row in alone[0]]
        if self.outer in ("right", "full"):
            pairs += [(row[0], None, row[2], None) for row in alone[1]]
        return {"default": Counter(pairs), "unmatchedLeft": Counter(alone[0]), "unmatchedRight": Counter(alone[1])}

    def is_pair(self, order, payment):
        if None in (order[0], order[1], payment[1]) or order[0] != payment[0]:
            return False
        return self.lower <= secs(payment[1]) - secs(order[1]) <= self.upper

    @staticmethod
    def is_over(row, bound, watermark):
        if None in (row[0], row[1]):
            return True
        return watermark is not None and watermark > secs(row[1]) + bound


def check(life, place):
    """Compare what was told with a recount."""
    with openState(place / "ck", "told", map="rows") as view:
        emitted = {stream: [] for stream in STREAMS}
        for stream, *row in dict(view.items()).values():
            emitted[stream].append(tuple(row))
    with openState(place / "ck", "told", map="watermarks") as view:
        watermarks = [secs(at) for at in view]
    expected = life.recount(emitted, max(watermarks, default=None))
    for stream, rows in expected.items():
        found = Counter(emitted[stream])
        assert (dict(found - rows), dict(rows - found)) == ({}, {}), stream
    for stream in ("lateLeft", "lateRight"):
        for row in emitted[stream]:
            assert row[-1] > 0
            assert secs(row[1]) + row[-1] in watermarks
    return emitted
