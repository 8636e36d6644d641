"""Names of the owners of a queue's messages: spouts, and the transactions that messages pass to.

A name begins with the origin of its checkpoint, whose log decides if its driver is gone (rule 12.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from statefx.protocol.identity import TransactionAttempt

_SEALED = "/@sealed/"  # no id of a component has an @


def sealed_by(owner: str) -> str:
    """Return the prefix of the names under which the messages of an owner are sealed."""
    return owner + _SEALED


class Epoch(NamedTuple):
    """When an object of a spout was opened: its start, and the attempt of a transaction. Later ones are greater.

    >>> str(Epoch(2, 7, 0))
    '2.7.0'
    >>> Epoch.read("5d1e/jobs/0/2.7.0/a7/@sealed/12/1/9f", "5d1e/jobs/0/")
    Epoch(generation=2, txid=7, attempt=0)
    """

    generation: int
    txid: int
    attempt: int

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def read(cls, owner: str, place: str) -> Epoch | None:
        """Return when an owner of that place was opened, or None if it is none of that place."""
        numbers = owner.removeprefix(place).partition("/")[0].split(".")
        if not owner.startswith(place) or len(numbers) != 3 or not all(each.isdecimal() for each in numbers):
            return None
        return cls(*map(int, numbers))


class Sealed(NamedTuple):
    """Under which name a transaction has messages.

    >>> Sealed.of("5d1e/jobs/0/2.7.0/a7", TransactionAttempt(12, 1), "9f")
    '5d1e/jobs/0/2.7.0/a7/@sealed/12/1/9f'
    >>> Sealed.read("5d1e/jobs/0/2.7.0/a7/@sealed/12/1/9f")
    Sealed(owner='5d1e/jobs/0/2.7.0/a7', txid=12, attempt=1)
    >>> Sealed.read("somebody")
    """

    owner: str
    txid: int
    attempt: int

    @staticmethod
    def of(owner: str, attempt: TransactionAttempt, token: str) -> str:
        """Return the name for an attempt of a task."""
        return f"{sealed_by(owner)}{attempt.txid}/{attempt.attempt}/{token}"

    @classmethod
    def read(cls, name: str) -> Sealed | None:
        """Return the parts of a name, or None if it is none of a transaction."""
        owner, _, rest = name.partition(_SEALED)
        parts = rest.split("/")
        if len(parts) != 3 or not (parts[0].isdecimal() and parts[1].isdecimal()):
            return None
        return cls(owner, int(parts[0]), int(parts[1]))

    def precedes(self, other: Sealed) -> bool:
        """Return whether it is of an attempt of the same owner before another one, and so was rolled back."""
        return self.owner == other.owner and self[1:] < other[1:]


class OwnerName(NamedTuple):
    """The parts of an owner's name.

    >>> OwnerName.read("5d1e/jobs/0/2.7.0/a7")
    OwnerName(origin='5d1e', component='jobs', task=0, epoch=Epoch(generation=2, txid=7, attempt=0))
    >>> OwnerName.read("somebody")
    """

    origin: str
    component: str
    task: int
    epoch: Epoch

    @classmethod
    def read(cls, owner: str) -> OwnerName | None:
        """Return the parts of a name, or None if it is none of a spout of statefx."""
        place, _, rest = owner.rpartition("/")[0].rpartition("/")
        origin, _, spout = place.partition("/")
        component, _, task = spout.rpartition("/")
        epoch = Epoch.read(rest, "")
        if epoch is None or not origin or not component or not task.isdecimal():
            return None
        return cls(origin, component, int(task), epoch)


def sealed_in(committable: Any) -> dict[str, int]:
    """Return the names that a decision has for a queue, and how many messages each; none of any other sink's."""
    tasks = committable.get("tasks") if isinstance(committable, Mapping) else None
    found: dict[str, int] = {}
    for task in tasks.values() if isinstance(tasks, Mapping) else ():
        sealed = task.get("sealed") if isinstance(task, Mapping) else None
        found.update(sealed if isinstance(sealed, Mapping) else {})
    return found
