"""Rows of a DataFrame that wait for their transaction, in parts (rule 15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from statefx.protocol.identity import TaskId
from statefx.protocol.jsonform import Json
from statefx.protocol.order import Emission, EmissionOrder
from statefx.protocol.watermark import Timing, UnitTime


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Some rows of one stream, as an Arrow stream: in a file, or here where there are few."""

    stream: str
    partition: int  # which of Spark's tasks has written it: the rows of one stay in their order, over all of its parts
    rows: int
    size_bytes: int
    content: str = ""  # in base64; empty: they are in the file `name`
    name: str = ""
    checksum: str = ""  # of the file
    # The greatest event time of the rows, in microseconds; None: they have none that counts. And how many rows have one
    # that is too far ahead to count.
    greatest_us: int | None = None
    ahead: int = 0

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> StagedPart:
        return msgspec.msgpack.decode(data, type=cls)

    def share(self, start: int, stop: int) -> Json:
        """Return the instruction to emit the rows from `start` up to `stop`."""
        return [self.content, self.name, self.checksum, start, stop]


class Sharing(Enum):
    """How the rows of a stream are shared out among its tasks."""

    EVENLY = "each has as many"
    STAYING = "by partition, where there are as many of these as tasks, else evenly"
    IN_ORDER = "by partition: rows of one key must not overtake each other"


def orders_of(parts: Sequence[StagedPart], streams: Mapping[str, tuple[int, Sharing]]) -> dict[TaskId, EmissionOrder]:
    """Return the rows that each task of all streams emits, by their number and how they share."""
    found: dict[TaskId, EmissionOrder] = {}
    for stream, (width, sharing) in streams.items():
        own = [part for part in parts if part.stream == stream]
        partitions = sorted({part.partition for part in own})
        if sharing is Sharing.EVENLY or (sharing is Sharing.STAYING and len(partitions) < width):
            shares = _even_shares(own, width)
        else:
            shares = [{} for _ in range(width)]
            for number, part in enumerate(own):
                shares[partitions.index(part.partition) % width][str(number)] = part.share(0, part.rows)
        found |= {TaskId(stream, task): EmissionOrder(Emission.AGAIN, told) for task, told in enumerate(shares)}
    return found


def _even_shares(parts: Sequence[StagedPart], width: int) -> list[dict[str, Json]]:
    """Cut the rows of a stream into as many shares as it has tasks; of each, the parts by their numbers."""
    rows = sum(part.rows for part in parts)
    shares: list[dict[str, Json]] = [{} for _ in range(width)]
    first = 0
    for number, part in enumerate(parts):
        for task, share in enumerate(shares):
            start, stop = (max(0, min(part.rows, -(-at * rows // width) - first)) for at in (task, task + 1))
            if start < stop:
                share[str(number)] = part.share(start, stop)
        first += part.rows
    return shares


def times_of(parts: Sequence[StagedPart], timings: Mapping[str, Timing], read_ms: int) -> dict[str, UnitTime]:
    """Return the event times of a transaction's rows, by stream; `read_ms` is as of `TimeOrder`."""
    found: dict[str, UnitTime] = {}
    for part in parts:
        if part.greatest_us is not None:
            at_ms = 0 if timings[part.stream].idle_ms is None else read_ms
            known = found.get(part.stream)
            greatest = part.greatest_us if known is None else max(known.time_us, part.greatest_us)
            found[part.stream] = UnitTime(greatest, at_ms)
    return found
