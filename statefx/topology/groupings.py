"""The groupings: what each promises about the task that a row goes to. `statefx.plan.groupings` keeps the promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Promise(StrEnum):
    """Which tasks of the consumer may get a row."""

    ANY = "any"
    KEY = "key"
    KEY_OF_TWO = "one of two by the key"
    FIRST = "task 0"
    EVERY = "every"
    BROADCAST = "every, before all other rows"
    NAMED = "the one that the sender names"


PROMISES: Mapping[str, Promise] = {
    "shuffle": Promise.ANY,
    "fields": Promise.KEY,
    "global": Promise.FIRST,
    "all": Promise.EVERY,
    "broadcast": Promise.BROADCAST,
    "none": Promise.ANY,
    "local": Promise.ANY,
    "direct": Promise.NAMED,
    "partialKey": Promise.KEY_OF_TWO,
}
"""Kind of a grouping -> what it promises. Checks ask for the promise; only who sends rows asks for the kind."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which task of the consumer a row goes to.

    Attributes
    ----------
    kind : str
        ``shuffle`` any, evenly; ``fields`` by the hash of `fields`; ``global`` task 0; ``all`` every task;
        ``broadcast`` every task, before its other rows; ``none`` any, as is cheapest; ``local`` the
        sender's own process if it can be; ``direct`` the one that the sender names; ``partialKey`` one of two by the
        hashes of `fields`, the one less loaded.
    fields : tuple of str
        For ``fields`` and ``partialKey``.
    """

    kind: str
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in PROMISES:
            raise ValueError(f"no grouping {self.kind!r}; there are {', '.join(PROMISES)}")

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.fields)})" if self.fields else self.kind

    @property
    def promise(self) -> Promise:
        """What it promises about the task."""
        return PROMISES[self.kind]

    @property
    def broadcast(self) -> bool:
        """Whether every task gets the row before its other rows."""
        return self.promise is Promise.BROADCAST

    @property
    def by_key(self) -> bool:
        """Whether the values of fields decide."""
        return self.promise in (Promise.KEY, Promise.KEY_OF_TWO)


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """An input of a component as it was declared, before anything is known of its source."""

    source: str
    stream: str
    grouping: Grouping
