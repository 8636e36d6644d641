"""The process in which topologies of spouts run pipelined: ``python -m tests.spark.playing``.

It has the slots and the settings that those need, and plays what its input names, one after the other: a line of JSON
with a program of this folder and what to give its `play`. It answers with lines of JSON, as the program tells them.
A process for each would start a JVM, Spark and its workers: ten seconds of processor time, where a topology takes one.
"""

import importlib
import json
import os
import sys
import traceback

from tests.spark.counting import session, tell
from tests.spark.idle_workers import drop_closed


def main():
    spark = session("local[12]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    for line in sys.stdin:
        asked = json.loads(line)
        drop_closed(spark)  # some programs count the runs that theirs takes
        try:
            importlib.import_module(asked["program"]).play(spark, **asked["settings"])
        except Exception:  # noqa: BLE001 - whatever it is, it is told to the test
            tell(failed=traceback.format_exc())
        tell(played=True)


if __name__ == "__main__":
    main()
