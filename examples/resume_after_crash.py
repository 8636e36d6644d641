"""A sum that is killed in the middle of its second transaction, and goes on when it is started again."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, session, submit


class Sum(StatefulBolt):
    """Adds up numbers; the first time the topology runs, it kills its driver on the way."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("sum", self.state.get("sum", 0) + int(tup.value))
        if self.context.generation == 1 and self.context.txid == 2:
            os.kill(self.driver, signal.SIGKILL)


def run(work):
    """Sum up the numbers of all files, one file to a transaction."""
    spark = session("sums", config={"spark.ui.enabled": "false"})
    numbers = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{work}/numbers")
    builder = TopologyBuilder("sum")
    builder.setStream("numbers", numbers)
    builder.setBolt("sum", Sum(os.getpid())).globalGrouping("numbers")
    query = submit(builder.createTopology(), spark, f"{work}/checkpoint", trigger={"availableNow": True})
    print("interrupted before:", query.recoveries, flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        raise SystemExit(run(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="statefx-resume-", ignore_cleanup_errors=True) as work:
        Path(work, "numbers").mkdir()
        for file in "abcd":
            Path(work, "numbers", file).write_text("".join(f"{number}\n" for number in range(1, 101)))
        for start in ("first", "second"):
            ended = subprocess.run([sys.executable, __file__, work], check=False)
            with Checkpoint(f"{work}/checkpoint").state("sum") as state:
                told = f"transaction {state.txid}, sum {state['sum']}"
            print(f"{start} run: exit code {ended.returncode}, {told}", flush=True)  # before the next run's lines
        print("expected:", 4 * sum(range(1, 101)))
