"""The sessions of a site's users, which end when nobody clicks any more; killed in between, and recounted.

    python examples/sessions.py

Two servers write logs of clicks, and a topology reads them while they grow. A session of a user ends when they have not
clicked for two seconds, by the times of the clicks. Three things belong to that:

- Clicks may be up to five seconds older than those that were read before. Older ones are late: they go to a sink of
  their own.
- A server whose users are gone must not hold back the sessions of the other one: after five seconds it is idle.
- When nobody clicks at all, somebody has to say that time goes on: a spout that emits the time.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq

from statefx import TopologyBuilder, TransactionalSpout, WindowedBolt, session, submit
from statefx.connectors.files import FilePartitionedSpout, FileSink, committedFiles
from statefx.errors import SinkError

GAP = timedelta(seconds=2)
LATENESS = "5 seconds"
SERVERS, USERS = ("a", "b"), ("ann", "bob", "cid", "dot", "eve")
FIELDS = "user string, at timestamp"
WAIT_SECS = 120


class Clock(TransactionalSpout):
    """Emits the time, second by second, as a click of nobody."""

    outputFields = FIELDS

    def initializeTransaction(self, txid, previous):
        now = int(time.time())
        return {"secs": now} if previous is None or previous["secs"] < now else None

    def emitBatch(self, attempt, metadata, collector):
        collector.emit((None, datetime.fromtimestamp(metadata["secs"], UTC)))


class Sessions(WindowedBolt):
    """Counts the clicks of a session."""

    outputFields = "user string, began timestamp, last timestamp, clicks long"

    def initWindow(self):
        return 0

    def addToWindow(self, clicks, tup):
        return clicks + 1

    def mergeWindows(self, a, b):
        return a + b

    def emitWindow(self, window, clicks, collector):
        if window.key is not None:
            collector.emit((window.key, window.start, window.end - GAP, clicks))


def topology(work):
    builder = TopologyBuilder("sessions")
    clicks = FilePartitionedSpout(f"{work}/logs", "json", FIELDS, growing=True)
    builder.setSpout("clicks", clicks, len(SERVERS), timestamp="at", lateness=LATENESS, idleAfter="5 seconds")
    builder.setSpout("clock", Clock(), timestamp="at", lateness=LATENESS)
    bolt = Sessions().withSessionWindow(GAP).withLateTupleStream("late")
    sessions = builder.setBolt("sessions", bolt, parallelism=2)
    sessions.fieldsGrouping("clicks", "user").fieldsGrouping("clock", "user")
    builder.setSink("ended", FileSink(f"{work}/ended")).globalGrouping("sessions")
    builder.setSink("late", FileSink(f"{work}/late")).globalGrouping("sessions", stream="late")
    return builder.createTopology()


def run(work):
    """Run until there is a file `stop`."""
    spark = session("sessions", config={"spark.ui.enabled": "false"})
    query = submit(topology(work), spark, f"{work}/checkpoint", trigger={"processingTime": "200 milliseconds"})
    print("interrupted before:", query.recoveries, flush=True)
    while not query.awaitTermination(0.1):
        if Path(work, "stop").exists():
            query.stop()


class Site:
    """Writes the clicks of some users, as time goes by; keeps what it has written."""

    def __init__(self, work):
        self.work, self.chance = Path(work), random.Random(1)
        self.in_time, self.late = [], []
        (self.work / "logs").mkdir()

    def write(self, secs, servers=SERVERS):
        """Let users click for so many seconds."""
        end = time.monotonic() + secs
        while time.monotonic() < end:
            for server in servers:
                ago = timedelta(seconds=self.chance.uniform(0, 1))
                # Each user is there for a while, and gone for a while.
                here = [user for number, user in enumerate(USERS) if int(time.time() / 4 + number) % 3]
                self.click(server, self.chance.choice(here), datetime.now(UTC) - ago, self.in_time)
            time.sleep(0.1)  # noqa: TID251 - users who think

    def write_late(self):
        """Write what a phone has kept since an hour ago."""
        for number in range(3):
            self.click("a", "ann", datetime.now(UTC) - timedelta(hours=1, seconds=number), self.late)

    def click(self, server, user, at, kept):
        kept.append((user, at))
        with (self.work / "logs" / server).open("a") as log:
            log.write(json.dumps({"user": user, "at": at.isoformat()}) + "\n")


def rows(folder):
    """Return what any program sees in the folder of a sink."""
    try:
        return [tuple(row.values()) for file in committedFiles(folder) for row in pq.read_table(file).to_pylist()]
    except SinkError:
        return []  # nothing is committed yet


def wait_for(condition, what):
    end = time.monotonic() + WAIT_SECS
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited for {what}")
        time.sleep(0.2)  # noqa: TID251 - a wait with a bound


def recount(clicks):
    """Return the sessions from a list of all clicks."""
    found = []
    for user, at in sorted(clicks):
        if found and found[-1][0] == user and at - found[-1][2] < GAP:
            found[-1][2:] = at, found[-1][3] + 1
        else:
            found.append([user, at, at, 1])
    return [tuple(each) for each in found]


def demo(work):
    site, ended, late = Site(work), Path(work, "ended"), Path(work, "late")
    site.write(2)
    command = [sys.executable, __file__, work]
    with subprocess.Popen(command) as first:
        while not rows(ended):
            site.write(1)
        first.kill()
    print(f"first run: exit code {first.returncode}", flush=True)
    site.write(4)
    site.write_late()
    with subprocess.Popen(command) as second:
        wait_for(lambda: len(rows(late)) >= len(site.late), "the late clicks")
        site.write(8, servers=["b"])  # nobody is on the server a any more, and then on none
        wait_for(lambda: sum(row[3] for row in rows(ended)) >= len(site.in_time), "all sessions to end")
        Path(work, "stop").touch()
    print(f"second run: exit code {second.returncode}", flush=True)
    found, seen = rows(ended), [row[:2] for row in rows(late)]
    users = {row[0] for row in found}
    print(f"{len(site.in_time)} clicks in {len(found)} sessions of {len(users)} users; {len(seen)} late clicks")
    exact = Counter(found) == Counter(recount(site.in_time)) and Counter(seen) == Counter(site.late)
    print("exact: each session as a recount has it, and each late click once" if exact else "NOT exact")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        raise SystemExit(run(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="statefx-sessions-", ignore_cleanup_errors=True) as folder:
        demo(folder)
