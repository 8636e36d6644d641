"""Names in the protocol: of an attempt, a task, a namespace, a version, a snapshot, a file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, order=True)
class TransactionAttempt:
    """One attempt of one transaction: `txid` from 1, and how many attempts it had before.

    No two have the same numbers, whatever fails between them: attempts count on when a driver is replaced.
    """

    txid: int
    attempt: int


class TaskId(NamedTuple):
    """One task of a component; in the log and in texts ``component/task``.

    >>> print(TaskId("count", 3), TaskId.parse("count/3").task)
    count/3 3
    """

    component: str
    task: int

    def __str__(self) -> str:
        return f"{self.component}/{self.task}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read what `str` wrote; ValueError if it is no task's name."""
        component, slash, task = text.rpartition("/")
        if not slash or not component or not task.isdecimal():
            raise ValueError(f"{text!r} is not the name of a task: component/task was expected")
        return cls(component, int(task))


@dataclass(frozen=True, slots=True, order=True)
class Namespace:
    """The state of one task: lineage, component, task."""

    lineage: str
    component: str
    task: int

    @property
    def id(self) -> TaskId:
        """The task whose state it is."""
        return TaskId(self.component, self.task)

    @property
    def prefix(self) -> str:
        """The prefix of its files' names in a checkpoint, without the slash.

        Without the lineage: a fork goes on with the files that it was copied with.
        """
        return f"state/{self.component}/{self.task}"


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A committed image of one namespace: the txid and the token of what was prepared for it.

    Txid 0 with an empty token is the empty state, before anything was committed.
    """

    txid: int
    token: str


EMPTY = Version(0, "")


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """A full image of a namespace at `version`; it counts once a COMMITTING record names it (rule 4.4)."""

    version: Version
    checksum: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file beside the log, which a record names because its content is too large to stand in the record."""

    name: str  # in the checkpoint's storage
    checksum: str  # SHA-256 of its bytes
    size_bytes: int

    @classmethod
    def of(cls, name: str, data: bytes) -> FileRef:
        return cls(name, hashlib.sha256(data).hexdigest(), len(data))

    def fits(self, data: bytes) -> bool:
        return hashlib.sha256(data).hexdigest() == self.checksum
