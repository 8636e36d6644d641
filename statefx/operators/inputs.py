"""What a ready-made bolt is told of its inputs before it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from statefx.operators.collector import DEFAULT_STREAM


@dataclass(frozen=True, eq=False)
class Input:
    """One grouping of a bolt.

    Attributes
    ----------
    source, stream : str
    schema : pyarrow.Schema
    grouping : str
        How its rows are given to the tasks of the bolt: ``"fields"``, ``"global"``, ``"shuffle"``, ...
    fields : tuple of str
        By which fields, if the grouping has some.
    timestamp : str or None
        The field that has the event time, if somebody has said which.
    """

    source: str
    stream: str
    schema: pa.Schema
    grouping: str
    fields: tuple[str, ...] = ()
    timestamp: str | None = None

    @property
    def name(self) -> str:
        """Its name, as users write it: ``"orders"``, or ``"parse:orders"`` for a stream that has a name.

        >>> Input("parse", "orders", pa.schema([]), "global").name
        'parse:orders'
        """
        return self.source if self.stream == DEFAULT_STREAM else f"{self.source}:{self.stream}"


class Wired(ABC):
    """A bolt whose streams depend on what it reads; its ``outputFields`` are known when the topology is made."""

    @abstractmethod
    def wired(self, inputs: Sequence[Input], parallelism: int) -> Self:
        """Return a copy of the bolt that knows its inputs, and has ``outputFields``.

        Raises
        ------
        TopologyError
            The inputs do not fit; the builder says of which bolt.
        """
