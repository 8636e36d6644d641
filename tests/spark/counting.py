"""A word count as a process of its own, to be killed: ``python -m tests.spark.counting SETTINGS`` (JSON).

While the file ``hold-<phase>`` in the work folder holds the number of this driver's generation, its tasks wait in that
phase: in ``execute`` (PREPARING) or in ``preCommit`` (COMMITTING).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from statefx import submit
from statefx.connectors.files import FileSink
from statefx.errors import StatefxError
from statefx.spark.session import LOADED_WORKERS, PIPELINED_PYTHON, RECOMMENDED
from tests.bolts import WithState
from tests.spark.bolts import word_count
from tests.spark.running import lines_of

BOUND_SECS = 240
ONCE = {"availableNow": True}


class Held(WithState):
    outputFields = "word string, count long"

    def __init__(self, work, since=2):
        self.work = work
        self.since = since

    def execute(self, tup, collector):
        self.hold("PREPARING")
        self.state.put(tup.word, self.state.get(tup.word, 0) + 1)

    def preCommit(self, txid):
        self.hold("COMMITTING")

    def preRollback(self):
        self.hold("ROLLBACK")

    def hold(self, phase):
        if self.context.txid < self.since:
            return
        path = Path(self.work, f"hold-{phase}")
        end = time.monotonic() + BOUND_SECS
        while time.monotonic() < end:
            try:
                if path.read_text(encoding="ascii") != str(self.context.generation):
                    return
            except FileNotFoundError:
                return
            time.sleep(0.01)  # noqa: TID251 - a wait with a bound


def session(master, **settings):
    builder = SparkSession.builder.master(master)
    given = {
        **RECOMMENDED,
        **(LOADED_WORKERS if master.startswith("local[") else {}),  # as `statefx.session` does
        PIPELINED_PYTHON: "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Whoever kills or cancels a task waits for the others of its job: by default Spark gives those two seconds.
        "spark.python.task.killTimeout": "100ms",
        **settings,
    }
    for key, value in given.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def tell(**facts):
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(work, provider, options, trigger, location=None, masked=()):
    spark = session("local[12]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    # The main thread gets none of these signals: the system gives them to another thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, masked)
    run(*begun(spark, work, provider, options, trigger, location))


def begun(spark, work, provider="memory", options=None, trigger=ONCE, location=None):
    """What `submit` is given: here, and by tests whose last driver nobody kills; it runs in their own session."""
    config = {"topology.state.provider": provider, "topology.state.provider.config": options or {}}
    topology = word_count(lines_of(spark, f"{work}/in"), count=Held(work), sink=FileSink(f"{work}/out"))
    return topology, spark, location or f"{work}/ck", config, trigger


def run(*given):
    """Submit, and tell what became of it."""
    query = submit(*given)
    tell(recoveries=query.recoveries)
    try:
        query.awaitTermination()
    except StatefxError as error:
        tell(error=type(error).__name__, message=str(error))
        sys.exit(3)
    time.sleep(0.3)  # noqa: TID251 - whoever ends the process too early would do it meanwhile
    tell(ended=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
