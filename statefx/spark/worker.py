"""Spark's Python workers: what they are sent, what outlives their tasks, and the chain of each of a run's tasks."""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.cloudpickle.cloudpickle import subimport

from statefx.coordinator.worker_lines import WORKERS
from statefx.plan.deployment import Deployment
from statefx.protocol import messages
from statefx.protocol.identity import TaskId
from statefx.protocol.messages import ChainId, FrameKind
from statefx.runtime.chain import ReadAhead, TaskChain
from statefx.runtime.worker import Worker
from statefx.runtime.worker_log import Records, Wanted, WorkerLog, capture
from statefx.spark.control import ChainControl, ControlLostError
from statefx.topology.graph import INTERNAL

logger = logging.getLogger("statefx")


def dumps(thing: Any) -> bytes:
    """Pickle `thing`; what is defined in the user's main module goes by value."""
    pickled: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]  # pyspark leaves it so
    return pickled


class _ImportedModules(pickle.Unpickler):
    """Collects the imports of an unpickler."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.modules: set[str] = set()

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        self.modules.add(module_name)
        found = super().find_class(module_name, global_name)
        return self._subimport if found is subimport else found

    def _subimport(self, name: str) -> Any:
        """Import a module that is used as such: in the pickle its name is an argument of cloudpickle's function."""
        self.modules.add(name)
        return subimport(name)  # type: ignore[no-untyped-call]  # as above


def modules_of(thing: Any) -> set[str]:
    """Return the names of the modules that a worker imports to unpickle `thing`."""
    unpickler = _ImportedModules(dumps(thing))
    unpickler.load()
    return unpickler.modules


def loads(data: bytes) -> Any:
    return cloudpickle.loads(data)


_worker = Worker()
"""Data of this process that outlives a task, which is all that anything sent to it does."""

_log = WorkerLog()
"""What this process logs and prints."""


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
"""The last argument of `log_as`, which is called for each task."""


def wanted_here(*, local: bool) -> Wanted:
    """Return what of the workers' lines this process logs: where it has set logging up, and as its levels are.

    In local mode their stderr is this program's own, and gets nothing a second time.
    """
    logger = logging.getLogger(WORKERS)
    shown = logger.hasHandlers()
    return Wanted(
        records=shown,
        stdout=shown and logger.isEnabledFor(logging.INFO),
        stderr=shown and logger.isEnabledFor(logging.WARNING),
        echo=not local,
    )


def log_as(levels: Mapping[str, int]) -> None:
    """Give this worker's loggers the driver's levels, and let them write to the driver's, or to stderr.

    By itself Python writes only warnings there. Where a module of the user's has set logging up, it stays as it is.
    """
    root = logging.getLogger()
    if _logged_as == levels or not all(isinstance(handler, Records) for handler in root.handlers):
        return
    _logged_as.clear()
    _logged_as.update(levels)
    if not root.handlers:
        root.addHandler(Records(_log))
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _of_users(deployment: Deployment, chain: ChainId) -> list[TaskId]:
    """Return the tasks of a chain that run code of the user's."""
    plan = deployment.plan
    return [
        task
        for task in plan.levels[chain.level][chain.partition]
        if not task.component.startswith(INTERNAL) and not plan.components[task.component].is_stream
    ]


def process_worker() -> Worker:
    return _worker


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address of the driver for a chain, with `run` and `secret`; `fillers` as of `TaskChain`."""

    address: tuple[str, int]
    run: bytes
    secret: bytes = field(repr=False)
    fillers: tuple[int, int]
    wanted: Wanted


class ResidentLevel:
    """One level of the topology, as a function for mapInArrow that returns when the run ends."""

    def __init__(self, parcel: Parcel, level: int, rendezvous: Rendezvous) -> None:
        self._parcel = parcel
        self._level = level
        self._rendezvous = rendezvous

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        chain, meeting = ChainId(self._level, context.partitionId()), self._rendezvous
        capture(_log)  # before the user's modules are imported: what they set up for logging keeps the stream it finds
        deployment = self._parcel.unpack()
        rows = iter(batches)  # of the first level a row for each task, which says nothing: it is read at the end
        control = ChainControl(meeting.address, meeting.run, meeting.secret, chain)
        ahead = ReadAhead(rows) if 0 < deployment.plan.cut <= chain.level else None
        control.levels = lambda body: log_as(messages.unpack_levels(body))
        _log.attach(lambda body: control.send(FrameKind.LINES, body), meeting.wanted, _of_users(deployment, chain))
        try:
            resident = TaskChain(process_worker(), deployment, chain, control, meeting.fillers)
            yield from resident.run(ahead or rows)
        except ControlLostError as lost:
            # No error of the task: the driver has noticed too, or is gone. Spark would print one with its own stack.
            logger.info("chain %d/%d ends: %s", chain.level, chain.partition, lost)
        finally:
            _log.detach()
            control.close()
            if ahead is not None:
                ahead.close()
