"""What stands for a DataFrame where there is no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class RowStream:
    """What ``setStream`` takes in the place of a DataFrame: its schema, and rows that come from elsewhere."""

    schema: Any
    isStreaming: bool  # noqa: N815 - pyspark's name
