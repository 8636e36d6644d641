"""An interval join as a process of its own, to be killed: ``python -m tests.spark.joining SETTINGS`` (JSON)."""

import json
import os
import sys
from pathlib import Path

from statefx import submit
from tests.runtime.joining import Life
from tests.spark.counting import session, tell

FILES = 12


def life_of(seed):
    return Life(seed, most=400)


def begun(spark, work, seed, inputs):
    """Return what `submit` is given."""

    def frame(name, fields, rows):
        return files_of(spark, Path(work, name), fields, rows)

    topology = life_of(seed).topology(2, frames=frame if inputs == "frames" else None)
    return topology, spark, f"{work}/ck", {"topology.state.provider": "rocksdb"}


def files_of(spark, folder, fields, rows):
    """Return a stream of files that hold equal parts of the rows, in their order; they are written the first time."""
    if not folder.exists():
        hidden = folder.with_name(f".{folder.name}")
        hidden.mkdir(parents=True)
        names = [field.split()[0] for field in fields.split(", ")]
        size = -(-len(rows) // FILES)
        for number in range(0, len(rows), size):
            part = [dict(zip(names, row, strict=True)) for row in rows[number : number + size]]
            path = hidden / f"{number}.json"
            path.write_text("".join(json.dumps(row, default=lambda at: at.isoformat()) + "\n" for row in part))
            os.utime(path, (number, number))  # Spark reads the oldest first
        hidden.rename(folder)
    return spark.readStream.schema(fields).option("maxFilesPerTrigger", 1).json(str(folder))


def play(spark, work, provider, options, trigger, **more):
    query = submit(*begun(spark, work, **more), trigger)
    query.awaitTermination()
    tell(**query.status)


def main(**given):
    spark = session("local[8]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    play(spark, **given)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
