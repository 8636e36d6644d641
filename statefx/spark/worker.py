"""What runs in Spark's Python workers: one function per stage, the same for every transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

import pyarrow as pa
from pyspark import TaskContext

from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.runtime.orders import SentOrder, SentResolution
from statefx.runtime.resolution import resolve_task
from statefx.runtime.slot import Slot
from statefx.runtime.worker import Worker
from statefx.spark.pickling import dumps, loads

ORDER_PROPERTY = "statefx.order"
TRIES_PROPERTY = "statefx.tries"
"""How often Spark tries a task."""

_worker = Worker()
"""What is sent to a process lives for a task only: this is the one place that outlives it."""


class Parcel:
    """A pickled deployment on its way to the workers; a worker unpacks it once. Its name is unique per run."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.content = content
        self.levels = levels_here()

    @classmethod
    def pack(cls, deployment: Deployment) -> Parcel:
        """Pickle a deployment; bolts of the user's main module go by value."""
        return cls(deployment.run, dumps(deployment))

    def unpack(self) -> Deployment:
        """Return this process's copy of the deployment, whose bolts may log."""
        log_as(self.levels)
        deployment: Deployment = _worker.deployment(self.name, lambda: loads(self.content))
        return deployment


def levels_here() -> dict[str, int]:
    """Return the levels of this process's loggers that have one, by name; the root's by ""."""
    levels = {"": logging.getLogger().level}
    for name, found in list(logging.root.manager.loggerDict.items()):
        if isinstance(found, logging.Logger) and found.level != logging.NOTSET:
            levels[name] = found.level
    return levels


_logged_as: dict[str, int] = {}
"""What `log_as` was given last: it is called for each task."""


class _Stderr(logging.StreamHandler[TextIO]):
    """The handler of a worker in which nobody has set up another one."""


def log_as(levels: Mapping[str, int]) -> None:
    """Give this worker's loggers the levels that those of the driver had, and let them write to stderr.

    By itself Python writes only warnings there. Where a module of the user's has set logging up, it stays as it is.
    """
    root = logging.getLogger()
    if _logged_as == levels or not all(isinstance(handler, _Stderr) for handler in root.handlers):
        return
    _logged_as.clear()
    _logged_as.update(levels)
    if not root.handlers:
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class LevelFunction:
    """One level of the topology, as a function for mapInArrow."""

    def __init__(self, parcel: Parcel, level: int) -> None:
        self._parcel = parcel
        self._level = level

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the slot of this Spark task."""
        context = TaskContext.get()
        assert context is not None
        deployment = self._parcel.unpack()
        order = SentOrder(str(context.getLocalProperty(ORDER_PROPERTY)), deployment)
        # Rule 6.7: at its last try a bolt's error is acked, as text that is the user's; before that Spark tries again.
        last_try = context.attemptNumber() + 1 >= int(str(context.getLocalProperty(TRIES_PROPERTY)))
        slot = Slot(_worker, deployment, order, self._level, context.partitionId(), last_try=last_try)
        yield from slot.run(batches)
        _worker.settle()


class Hooks:
    """The commit or the rollback of a transaction, as a function for mapInArrow; partition i runs task i."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task's hooks and yield its report."""
        for _ in batches:
            pass
        context = TaskContext.get()
        assert context is not None
        deployment = self._parcel.unpack()
        order = SentResolution(str(context.getLocalProperty(ORDER_PROPERTY)), deployment)
        report = resolve_task(_worker, deployment, order, order.task(context.partitionId()))
        row = ([0], [wire.ACK], [0], [b""], [report.pack()])
        arrays = [pa.array(column, field.type) for column, field in zip(row, wire.SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=wire.SCHEMA)
        _worker.settle()


def process_worker() -> Worker:
    """Return this process's worker."""
    return _worker
