"""Runs topologies and reads what they left behind."""

import hashlib
import json
import os
import time
from pathlib import Path
from urllib.request import urlopen

from statefx import Checkpoint, submit
from statefx.log.entries import read_entries
from statefx.log.log import read_state
from statefx.state.contract.caches import cache_folder
from statefx.storage import FolderStorage

BOUND_SECS = 120


def run(*given, **arguments):
    query = submit(*given, **arguments)
    assert query.awaitTermination(BOUND_SECS), f"still running: {query.status}"
    return query


def state(location, component, task=None, config=None, map=None):
    with Checkpoint(location, config).state(component, task, map=map) as view:
        return dict(view.items())


def kept(location, component, tasks):
    """What each task of a `Keep` bolt was given, as lists of tuples."""
    found = [state(location, component, task) for task in range(tasks)]
    return [[tuple(one[number]) for number in range(one.get("n", 0))] for one in found]


def records(location):
    return [entry.record for entry in read_entries(FolderStorage(location))]


def local_folders(location):
    """The folders on this machine in which Spark's queries on a checkpoint are, or were when they died."""
    state = read_state(FolderStorage(location))
    return sorted(Path(cache_folder(), "spark").glob(f"{state.lineage}-*"))


def kinds(location):
    """The log as (kind, txid, attempt) of its transactions' records."""
    return [
        (record.kind, record.txid, getattr(record, "attempt", None))
        for record in records(location)
        if hasattr(record, "txid")
    ]


def reasons(location):
    return [record.reason for record in records(location) if record.kind == "ROLLED_BACK"]


def listing(folder):
    """Every file below `folder` with a hash of its content, every folder, and the times of both."""
    root = Path(folder)
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (content, path.stat().st_mtime_ns)
    return found


def wait_for(condition, what, bound_secs=BOUND_SECS):
    """Return what `condition` returns once it is true.

    A condition may cost much, as opening the state does. It is asked for a tenth of the time at most: the process that
    it waits for needs the processor more.
    """
    end = time.monotonic() + bound_secs
    while True:
        asked = time.thread_time()
        if found := condition():
            return found
        assert time.monotonic() < end, f"waited {bound_secs} s for {what}"
        time.sleep(max(0.01, 9 * (time.thread_time() - asked)))  # noqa: TID251 - a wait with a bound


def feed(folder, **files):
    """Put text files into a folder that a stream reads, each at once; they are read in the order given."""
    Path(folder).mkdir(exist_ok=True)
    for name, lines in files.items():
        hidden = Path(folder, f".{name}")
        hidden.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        age = len(list(Path(folder).iterdir()))
        os.utime(hidden, (age, age))
        hidden.rename(Path(folder, name))


def lines_of(spark, folder, files=1, schema="value string"):
    """A stream of the lines in a folder, so many files a transaction."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files).text(str(folder))


def shown(spark, what):
    """What the REST interface of Spark's UI has, newest first."""
    context = spark.sparkContext
    with urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{what}") as answer:
        return json.load(answer)


def executor():
    """The executor's process, asked for by a task: the parent of the parent of this Python worker."""
    daemon = os.getppid()
    return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
