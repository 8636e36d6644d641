"""A sum that is killed in the middle of its second transaction, and goes on from the first when started again."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from statefx import StatefulBolt, TopologyBuilder, openState, submit


class Sum(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("sum", self.state.get("sum", 0) + int(tup.value))


def run(work, crash):
    """Sum up the numbers of all files, one file to a transaction; crash on the way if asked to."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    numbers = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{work}/numbers")
    builder = TopologyBuilder("sum")
    builder.setStream("numbers", numbers)
    builder.setBolt("sum", Sum()).globalGrouping("numbers")
    query = submit(builder.createTopology(), spark, f"{work}/checkpoint", trigger={"availableNow": True})
    print("recovered at start:", query.recoveries, flush=True)
    while not query.awaitTermination(0.005):
        now = query.status
        if crash and now["phase"] == "PREPARING" and now["txid"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)


def show(work):
    with openState(f"{work}/checkpoint", "sum") as state:
        print(f"committed: transaction {state.txid}, sum {state['sum']}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1], crash=sys.argv[2] == "crash")
        raise SystemExit
    with tempfile.TemporaryDirectory(prefix="statefx-resume-", ignore_cleanup_errors=True) as work:
        Path(work, "numbers").mkdir()
        for file in range(4):
            Path(work, "numbers", str(file)).write_text("".join(f"{n}\n" for n in range(1, 101)))
        crashed = subprocess.run([sys.executable, __file__, work, "crash"], check=False)
        print(f"the first run ended with {crashed.returncode}; as it left things:", flush=True)
        show(work)
        subprocess.run([sys.executable, __file__, work, "on"], check=True)
        show(work)
        print("expected:", 4 * sum(range(1, 101)))
