"""What the number of a task's state files costs, without Spark: opening state in a warm worker, and a sweep.

``open`` is the time of opening and closing a task's state whose last ``--there`` transactions are a file each, one of
which the worker has not seen. ``sweep`` is what the driver does every so many transactions, for ``--tasks`` tasks with
so many files each, of which none may go. Files are not merged, so that there are as many as that.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

from measuring import arguments, latency

from statefx.coordinator.janitor import Janitor
from statefx.log.location import Folders, write_format
from statefx.log.log import TransactionLog
from statefx.protocol.log_state import LogState
from statefx.protocol.records import BatchInput, Preparing, RolledBack
from statefx.state.contract.store import EMPTY, Namespace, StateContext, StateProvider, Version, prepare_as
from statefx.state.registry import load_provider

UNMERGED = 1 << 30
WRITES = [(b"%04d" % number, b"v" * 20) for number in range(20)]


class Tasks:
    """The tasks of one bolt, and where their state is."""

    def __init__(self, work: Path, provider: StateProvider) -> None:
        self.lineage = uuid.uuid4().hex
        self.folders = Folders(str(work / "checkpoint"))
        self.provider = provider
        self.cache = str(work / "cache")
        write_format(self.folders.storage)
        provider.fence(self.lineage, 1, self.folders.storage)

    def context(self, task: int, version: Version) -> tuple[Namespace, StateContext]:
        """What a worker opens."""
        context = StateContext(1, version, self.folders.storage, self.cache, files_max=UNMERGED)
        return Namespace(self.lineage, "count", task), context

    def transact(self, task: int, version: Version) -> tuple[Version, float]:
        """Commit one more transaction of a task; its version, and how long opening and closing took, in ms."""
        started = time.perf_counter()
        store = self.provider.newState(*self.context(task, version))
        opened = time.perf_counter()
        after = Version(version.txid + 1, prepare_as(store, version.txid + 1, uuid.uuid4().hex, WRITES).token)
        closing = time.perf_counter()
        store.close()
        return after, (opened - started + time.perf_counter() - closing) * 1000

    def janitor(self, heads: dict[int, Version]) -> Janitor:
        """The driver's, with a log that has these heads."""
        state = LogState(
            lineage=self.lineage,
            generation=1,
            location=self.folders.location,
            committed=max(head.txid for head in heads.values()),
            heads={f"count/{task}": head for task, head in heads.items()},
        )
        log = TransactionLog(self.folders.storage)
        log.append(state.checkpoint())
        for attempt in range(45):  # as long as the log becomes before it is folded
            log.append(Preparing(state.committed + 1, attempt, 1, BatchInput()))
            log.append(RolledBack(state.committed + 1, attempt, "the executor was lost"))

        tasks = [("count", task) for task in heads]
        return Janitor(self.folders, self.provider, tasks, self.lineage, 1, min_age_secs=0.0)


def main() -> None:
    """Write the files, then measure."""
    parser = arguments(__doc__)
    parser.add_argument("--provider", choices=["memory", "rocksdb"], default="memory")
    parser.add_argument("--part", choices=["open", "sweep"], required=True)
    parser.add_argument("--there", type=int, required=True)
    parser.add_argument("--tasks", type=int, default=1)
    args = parser.parse_args()
    options: dict[str, Any] = {}
    tasks = Tasks(args.work, load_provider(args.provider, options))
    heads = dict.fromkeys(range(args.tasks), EMPTY)
    for task in heads:
        for _ in range(args.there):
            heads[task], _ = tasks.transact(task, heads[task])
    spans = []
    janitor = tasks.janitor(heads) if args.part == "sweep" else None
    for _ in range(args.warmup + args.batches):
        if janitor is None:
            heads[0], span = tasks.transact(0, heads[0])
            spans.append(span)
            continue
        started = time.perf_counter()
        if janitor.sweep():
            raise RuntimeError("a file was deleted that is needed")
        spans.append((time.perf_counter() - started) * 1000)
    latency(args, spans, provider=args.provider, part=args.part, there=args.there, tasks=args.tasks)


if __name__ == "__main__":
    main()
