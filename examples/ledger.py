"""Moves money between accounts on Spark, and is killed at random: no cent is made or lost.

    python examples/ledger.py                     the demo: killed 4 times, then checked by SQL
    python examples/ledger.py --kills 20          with so many kills

A transfer moves money within a currency. If the account has it, there is a debit and a credit; else the transfer is
refused. Balances, entries (Parquet files) and refusals (a table in SQLite) take effect together, or not at all. What
the demo shows: each transfer was applied once or refused once, the sum of all balances is what it was, and no account
is below zero, whatever the transaction log said when the process was killed. `ledger_plain.py` does the same without
Spark; `ledger_kills.py` kills both, and `ledger_rules.py` has what they share.
It needs `pip install ".[sql]"`.
"""

import ledger_rules
from ledger_kills import main
from ledger_rules import ENTRY, TRANSFER, move, sinks

from statefx import StatefulBolt, TopologyBuilder, session, submit


class Ledger(StatefulBolt):
    """Keeps the balances of its currencies."""

    outputFields = {"entries": ENTRY, "refused": TRANSFER}

    def initState(self, state):
        self.balances = state

    def execute(self, tup, collector):
        entries = move(self.balances, *tup)
        for entry in entries or ():
            collector.emit(entry, stream="entries")
        if entries is None:
            collector.emit(tup, stream="refused")


def run(work):
    """Run the ledger until it is told to end; a file of transfers is a transaction."""
    spark = session("ledger", config={"spark.ui.enabled": "false"})
    spark.sparkContext.addPyFile(ledger_rules.__file__)  # Spark's workers don't look in this folder
    transfers = spark.readStream.schema(TRANSFER.replace("long", "bigint")).option("maxFilesPerTrigger", 1)
    builder = TopologyBuilder("ledger")
    builder.setStream("transfers", transfers.csv(str(work / "transfers")))
    builder.setBolt("ledger", Ledger(), parallelism=2).fieldsGrouping("transfers", "currency")
    for name, sink in sinks(work).items():
        builder.setSink(name, sink).globalGrouping("ledger", stream=name)
    query = submit(
        builder.createTopology(),
        spark,
        checkpointLocation=work / "checkpoint",
        trigger={"processingTime": "0 seconds"},
        progress=False,
    )
    while not (work / "end").exists():
        query.awaitTermination(0.1)
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, run))
