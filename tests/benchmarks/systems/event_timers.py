"""Timers of event time: statefx beside Spark's `transformWithState`, over the same files, in turns.

The job is one of sessions. Each row moves the timer of its user to five minutes behind the row; when it fires, the
session is emitted and forgotten. In each minute a fifth of the users goes and as many others come, so as many timers
fire. Spark moves a timer once for each user and batch, statefx for each row. In both the watermark that fires is that
of the rows of the minutes before; of a spout it is that of the minute itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import minutes
import numpy as np
import pandas as pd
import pyarrow as pa
from measuring import LIVING, RECOMMENDED, ROCKSDB, SLOTS, arguments, session, take_turns
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from statefx import StatefulBolt, TopologyBuilder

GAP, LATENESS = timedelta(minutes=5), "10 seconds"
GAP_MS = GAP // timedelta(milliseconds=1)
CLICK, SESSION = "user long, at timestamp", "user long, last timestamp, clicks long"
DROPPED = 9
"""Minutes of each turn that are left out: until as many sessions end in each as there begin."""
STAYS = 5
"""A user comes for so many minutes."""


class Sessions(StatefulBolt):
    """Ends a session when its user has been silent."""

    outputFields = SESSION

    def initState(self, state: Any) -> None:
        self.sessions = state

    def execute(self, click: Any, collector: Any) -> None:
        last, clicks = self.sessions.get(click.user, (click.at, 0))
        last = max(last, click.at)
        self.sessions.put(click.user, (last, clicks + 1))
        self.timers.set(click.user, last + GAP)

    def onTimer(self, user: Any, at: datetime, value: Any, collector: Any) -> None:
        collector.emit((user, *self.sessions.delete(user)))


class SparkSessions(StatefulProcessor):
    """The same by Row objects. Spark's timers are milliseconds, so these are what it keeps."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "last long, clicks long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        last_ms, clicks = self.newest(rows)
        before = self.session.get()
        if before is not None:
            self.handle.deleteTimer(before[0] + GAP_MS)
            last_ms, clicks = max(last_ms, before[0]), clicks + before[1]
        self.session.update((last_ms, clicks))
        self.handle.registerTimer(last_ms + GAP_MS)
        return iter(())

    def newest(self, rows: Iterator[Any]) -> tuple[int, int]:
        """Return the latest time of some rows, and how many they are."""
        times = [row.at for row in rows]
        return round(max(times).timestamp() * 1000), len(times)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's
        last_ms, clicks = self.session.get()
        self.session.clear()
        yield self.ended(key[0], datetime.fromtimestamp(last_ms / 1000, UTC), clicks)

    def ended(self, user: int, last: datetime, clicks: int) -> Any:
        """Return what is emitted."""
        return Row(user=user, last=last, clicks=clicks)

    def close(self) -> None:
        pass


class PandasSessions(SparkSessions):
    """The same by data frames."""

    def newest(self, rows: Iterator[Any]) -> tuple[int, int]:
        frames = list(rows)
        return round(max(frame["at"].max().timestamp() for frame in frames) * 1000), sum(map(len, frames))

    def ended(self, user: int, last: datetime, clicks: int) -> Any:
        return pd.DataFrame({"user": [user], "last": [last], "clicks": [clicks]})


parser = arguments(__doc__)
parser.add_argument("--turns", type=int, default=2)
parser.add_argument(
    "--api", choices=["row", "pandas"], default="row", help="of Spark's two: the quicker one by default"
)
args = parser.parse_args()
turns = min(args.turns, args.batches)
total = args.batches // turns + DROPPED
spark = session(RECOMMENDED | ROCKSDB | LIVING | {"spark.sql.session.timeZone": "UTC"}, SLOTS)
source = args.work / "in"
for minute in range(total):
    random = np.random.default_rng([args.keys, minute])
    users = random.integers(0, args.keys, args.rows) + minute * args.keys // STAYS
    minutes.write(source, minute, pa.table({"user": users, "at": minutes.at_of(minute, random, args.rows)}))


def counted(name: str, found: tuple[int, list[float]]) -> list[float]:
    """Return the milliseconds of each minute that counts; sessions have ended in each of them."""
    ended[name], committed = found
    if ended[name] < (total - DROPPED) * args.keys // STAYS:
        raise RuntimeError(f"{name}: {ended[name]} sessions have ended")
    return minutes.between(committed, total, DROPPED)


def native(name: str, turn: int) -> list[float]:
    """Run a turn of Spark's own."""
    grouped = minutes.frame(spark, source, CLICK).withWatermark("at", LATENESS).groupBy("user")
    if args.api == "row":
        sessions = grouped.transformWithState(SparkSessions(), SESSION, "Append", "EventTime")
    else:
        sessions = grouped.transformWithStateInPandas(PandasSessions(), SESSION, "Append", "EventTime")
    return counted(name, minutes.of_spark(sessions, args.work / f"spark-{turn}", total))


def ran(name: str, given: str, turn: int) -> list[float]:
    """Run a turn of a topology."""
    builder = TopologyBuilder("sessions")
    if given == "frames":
        builder.setStream("clicks", minutes.frame(spark, source, CLICK), timestamp="at", lateness=LATENESS)
    else:
        spout = minutes.Minutes(source, CLICK, total)
        builder.setSpout("clicks", spout, minutes.TASKS, timestamp="at", lateness=LATENESS)
    builder.setBolt("sessions", Sessions(), minutes.TASKS).fieldsGrouping("clicks", "user")
    builder.setBolt("rows", minutes.Rows(), minutes.TASKS).fieldsGrouping("sessions", "user")
    return counted(name, minutes.of_statefx(builder.createTopology(), spark, args.work / f"{given}-{turn}"))


ended: dict[str, int] = {}
reference = f"transformWithState ({args.api})"
systems: dict[str, Callable[[int], list[float]]] = {reference: partial(native, reference)}
for what, kind in {"statefx, DataFrame": "frames", "statefx, spout": "spouts"}.items():
    systems[what] = partial(ran, what, kind)
take_turns(args, systems, turns, (reference,), dict.fromkeys(systems, args.rows), ended=ended)
spark.stop()
