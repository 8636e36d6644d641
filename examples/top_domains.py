"""The domains with the most traffic, in three stores; killed at random, and compared with a run without failure.

    python examples/top_domains.py                killed 3 times
    python examples/top_domains.py --kills 10     with so many kills; --seed 7 chooses other moments

A spout reads lines of logs, and reads other lines when an attempt fails: it is opaque. Views by page are counted in the
topology's own state (RocksDB), bytes by domain in a table of SQLite (an OpaqueMap), and a sink puts the new totals into
another table. All three must be what a run without failure makes of the same logs. It needs `pip install
".[rocksdb,sql]"`.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from operator import add
from pathlib import Path

import sqlalchemy

from statefx import (
    BatchBolt,
    OpaquePartitionedTransactionalSpout,
    Stateful,
    StatefulBolt,
    TopologyBuilder,
    openState,
    session,
    submit,
)
from statefx.connectors.sql import SqlBackend, SqlSink
from statefx.testing import TopologyTester
from statefx.values import OpaqueMap

LOGS, DOMAINS = 2, 40
LINES_AT_ONCE = 120
TRANSACTIONS = 3  # at most, from one kill to the next
PLACES = ("in the middle of its rows", "when it has written its totals")
CONFIG = {"topology.state.provider": "rocksdb", "topology.max.spout.pending": 2}


class Views(OpaquePartitionedTransactionalSpout):
    """Each log is a partition; no attempt reads as many lines as the one before."""

    outputFields = "domain string, page string, bytes long"

    def __init__(self, logs):
        self.logs = logs

    def numPartitions(self):
        return LOGS

    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        with Path(self.logs, str(partition)).open("rb") as log:
            log.seek(lastMetadata["stop"] if lastMetadata else 0)
            for _ in range(random.randint(LINES_AT_ONCE // 3, LINES_AT_ONCE)):
                if line := log.readline().decode():
                    domain, page, size = line.split()
                    collector.emit((domain, page, int(size)))
            return {"stop": log.tell()}


class Kill:
    """Kills the driver, from within a task, at a place of a transaction."""

    def __init__(self, driver, place, txid):
        self.driver, self.place, self.txid = driver, place, txid

    def at(self, place, context):
        if place == self.place and context.txid >= self.txid:
            os.kill(self.driver, signal.SIGKILL)


class Pages(StatefulBolt):
    """Counts views by page, in its state."""

    def __init__(self, kill):
        self.kill = kill

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts[tup.page] = self.counts.get(tup.page, 0) + 1
        self.kill.at(PLACES[0], self.context)


class Domains(Stateful, BatchBolt):
    """Adds up bytes by domain, in a table."""

    outputFields = "domain string, total long"

    def __init__(self, url, kill):
        self.backend, self.kill = SqlBackend(url, "domains"), kill

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.totals = OpaqueMap(self.backend, state, self.context)
        self.new = Counter()

    def execute(self, tup, collector):
        self.new[tup.domain] += tup.bytes

    def finishBatch(self, collector):
        for domain, total in self.totals.multiUpdate(self.new, add, initial=0).items():
            collector.emit((domain, total))
        self.kill.at(PLACES[1], self.context)

    def close(self):
        self.backend.close()


def topology(logs, work, kill):
    builder = TopologyBuilder("top-domains")
    builder.setSpout("views", Views(logs), parallelism=LOGS)
    builder.setBolt("pages", Pages(kill), parallelism=2).fieldsGrouping("views", "page")
    builder.setBolt("domains", Domains(f"sqlite:///{work}/totals.db", kill), 2).fieldsGrouping("views", "domain")
    sink = SqlSink(f"sqlite:///{work}/board.db", "board", key="domain")
    builder.setSink("board", sink).fieldsGrouping("domains", "domain")
    return builder.createTopology()


def run(logs, work, place, txid):
    """Run on Spark what is left, or until the kill."""
    spark = session("top-domains", config={"spark.ui.enabled": "false"})
    kill = Kill(os.getpid(), place, int(txid))
    query = submit(topology(logs, work, kill), spark, f"{work}/checkpoint", CONFIG, trigger={"availableNow": True})
    print("interrupted before:", query.recoveries, flush=True)
    query.awaitTermination()


def table(url, columns):
    """Return a table as any program sees it."""
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        totals = {domain: int(total) for domain, total in connection.exec_driver_sql(columns)}
    engine.dispose()
    return totals


def stores(work):
    """Return what the three stores have."""
    with openState(f"{work}/checkpoint", "pages") as pages:
        return {
            "pages": dict(pages.items()),
            "domains": table(f"sqlite:///{work}/totals.db", "SELECT key, value FROM domains WHERE value IS NOT NULL"),
            "board": table(f"sqlite:///{work}/board.db", "SELECT domain, total FROM board"),
        }


def write_logs(logs, transactions, chance):
    logs.mkdir()
    for number in range(LOGS):
        lines = []
        for _ in range(transactions * LINES_AT_ONCE):
            domain = f"d{int(chance.paretovariate(1)) % DOMAINS}.org"
            lines.append(f"{domain} {domain}/{chance.randrange(5)} {chance.randrange(1, 1000)}\n")
        (logs / str(number)).write_text("".join(lines))


def demo(kills, chance):
    with tempfile.TemporaryDirectory(prefix="statefx-domains-", ignore_cleanup_errors=True) as folder:
        logs, work, calm = Path(folder, "logs"), Path(folder, "work"), Path(folder, "calm")
        write_logs(logs, TRANSACTIONS * (kills + 1), chance)
        work.mkdir()
        calm.mkdir()
        with TopologyTester(topology(logs, calm, Kill(0, None, 0)), calm / "checkpoint", CONFIG) as tester:
            tester.drain()
        txid = 1
        for kill in range(kills + 1):
            place = chance.choice(PLACES) if kill < kills else "never"
            txid += chance.randint(1, TRANSACTIONS)
            ended = subprocess.run([sys.executable, __file__, logs, work, place, str(txid)], check=False)
            killed = f": killed in transaction {txid}, {place}" if kill < kills else ""
            print(f"start {kill + 1}: exit code {ended.returncode}{killed}", flush=True)
        found, expected = stores(work), stores(calm)
        best = sorted(found["domains"].items(), key=lambda each: -each[1])[:3]
        print("most traffic:", ", ".join(f"{domain} {total:,}" for domain, total in best))
        wrong = [name for name in expected if found[name] != expected[name]]
        print(f"NOT exact: {wrong}" if wrong else "exact: all three stores are as without failure")
        return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) == 5 and "--" not in sys.argv[1]:
        raise SystemExit(run(*sys.argv[1:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    raise SystemExit(demo(given.kills, random.Random(given.seed)))
