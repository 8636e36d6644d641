"""Reads orders, as the driver has sent them: each task what concerns itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from statefx.plan.deployment import Deployment
from statefx.protocol.commands import Resolution
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.order import EmissionOrder, StateOrder
from statefx.protocol.sheet import Sheet, read_emission, read_line

_Told = TypeVar("_Told")


class SentOrder:
    """An order as text, from which a task reads its own line, and only when it asks for it (see `TaskOrder`).

    When it asks, it is under the eyes of its slot, which tells the driver that a file can't be read. An error before
    that would be one of the Spark task, with which Spark ends the query.

    Parameters
    ----------
    text : str
        What came with the job.
    deployment : Deployment
    """

    def __init__(self, text: str, deployment: Deployment) -> None:
        self._sheet = Sheet.parse(text)
        self._deployment = deployment
        self._known: dict[TaskId, StateOrder] = {}

    @property
    def attempt(self) -> TransactionAttempt:
        """What is run, committed or rolled back."""
        return self._sheet.attempt

    @property
    def generation(self) -> int:
        """The generation of the driver that asks."""
        return self._sheet.generation

    def state(self, task: TaskId) -> StateOrder:
        """Return what a task is told of its state.

        Raises
        ------
        OSError
            The file of the order can't be read, is gone because its job is over, or is damaged.
        """
        if task not in self._known:  # asked for when state is opened, and again when it is prepared
            self._known[task] = self._read(self._line(task), lambda line: read_line(line, task))
        return self._known[task]

    def emission(self, task: TaskId) -> EmissionOrder:
        """Return what a task of a spout is told of its batch; raises as `state`."""
        return self._read(self._deployment.plan.emitter_number[task], lambda line: read_emission(line, task))

    def _line(self, task: TaskId) -> int:
        return self._deployment.plan.stateful_number[task]

    def _read(self, line: int, parse: Callable[[str], _Told]) -> _Told:
        sheet = self._sheet
        start, stop = sheet.span(line)
        try:
            if sheet.file:
                found = self._deployment.storage.read(sheet.file, start, stop).decode("ascii")
            else:
                found = sheet.lines[start:stop]
            return parse(found)
        except ValueError as error:  # an OSError, so that the slot acks it and Spark's task ends well (rule 6.6)
            raise OSError(f"{sheet.file or 'the order'}: {error}") from error


class SentResolution(SentOrder):
    """The order of a commit or a rollback, as one task of the job sees it.

    Parameters
    ----------
    text, deployment
        As of `SentOrder`.
    place : int
        Which of those that take part it is.

    Attributes
    ----------
    resolution : Resolution
    task : TaskId
        Who is to commit or to roll back.
    """

    resolution: Resolution

    def __init__(self, text: str, deployment: Deployment, place: int) -> None:
        super().__init__(text, deployment)
        assert self._sheet.resolution is not None
        self.resolution = self._sheet.resolution
        self.task = deployment.plan.stateful[self._sheet.task_number(place)]
        self._place = place

    def _line(self, task: TaskId) -> int:
        return self._place
