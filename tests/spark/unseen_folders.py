"""A topology whose folder only the driver sees, on a cluster: ``python -m tests.spark.unseen_folders SETTINGS``.

A path below ``/proc/self/cwd`` is another folder in each process: that of an executor is its own. It prints JSON.
"""

import json
import os
import sys
from pathlib import Path

from statefx import TopologyBuilder, submit
from statefx.connectors.files import FilePartitionedSpout, FileSink
from statefx.errors import StatefxError
from tests.spark.counting import session, tell

HERE = Path("/proc/self/cwd")


class Archive(FileSink):
    """Its folder, which the driver resolves, is one of the driver's alone."""

    def __init__(self, name):
        super().__init__(name)
        self.path = str(HERE / name)


def topology(unseen, work):
    """Rows of a file go to files; the folder of one of the two is the driver's alone."""
    builder = TopologyBuilder("unseen")
    spout = FilePartitionedSpout(work / "in", "text")
    if unseen == "spout":
        spout.path = str(HERE / "in")
    builder.setSpout("lines", spout)
    archive = Archive("out") if unseen == "sink" else FileSink(work / "seen")
    builder.setSink("archive", archive).shuffleGrouping("lines")
    return builder.createTopology()


def main(work, master, **_):
    work = Path(work)
    os.chdir(work)
    (work / "in").mkdir()
    (work / "in" / "a.txt").write_text("a\n", encoding="ascii")
    spark = session(master, **{"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]})
    for unseen in ("sink", "spout", "nothing"):
        said, location = "", work / f"ck-{unseen}"
        try:
            submit(topology(unseen, work), spark, location, trigger={"availableNow": True}).awaitTermination()
        except StatefxError as error:
            said = f"{type(error).__name__}: {error}"
        tell(**{unseen: [said, (location / "transactions").exists()]})
    tell(left=[str(path) for path in work.rglob(".probe-*")])


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
