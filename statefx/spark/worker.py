"""What Spark's Python workers are sent, and what outlives their tasks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TextIO

from statefx.plan.deployment import Deployment
from statefx.runtime.worker import Worker
from statefx.spark.pickling import dumps, loads

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


def process_worker() -> Worker:
    """Return this process's worker."""
    return _worker
