"""What runs in Spark's Python workers: a slot that lives as long as its job."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from statefx.protocol.messages import SlotId
from statefx.runtime.slot import ReadAhead, Slot
from statefx.spark import worker
from statefx.spark.pipelined.control import ControlLostError, SlotControl
from statefx.spark.worker import Parcel

logger = logging.getLogger("statefx")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """How a slot finds the driver.

    Attributes
    ----------
    address : (host, port)
    run, secret : bytes
    fillers : (int, int)
        As of `Slot`.
    """

    address: tuple[str, int]
    run: bytes
    secret: bytes
    fillers: tuple[int, int]


class LivingLevel:
    """One level of the topology, as a function for mapInArrow that returns when the run ends."""

    def __init__(self, parcel: Parcel, level: int, rendezvous: Rendezvous) -> None:
        self._parcel = parcel
        self._level = level
        self._rendezvous = rendezvous

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the slot of this Spark task."""
        context = TaskContext.get()
        assert context is not None
        slot, meeting = SlotId(self._level, context.partitionId()), self._rendezvous
        deployment = self._parcel.unpack()
        rows = iter(batches)  # of the first level a row for each task, which says nothing: it is read at the end
        control = SlotControl(meeting.address, meeting.run, meeting.secret, slot)
        ahead = ReadAhead(rows) if 0 < deployment.plan.cut <= slot.level else None
        try:
            resident = Slot(worker.process_worker(), deployment, slot, control, meeting.fillers)
            yield from resident.run(ahead or rows)
        except ControlLostError as lost:
            # No error of the task: the driver has noticed too, or is gone. Spark would print one with its own stack.
            logger.info("slot %d/%d ends: %s", slot.level, slot.partition, lost)
        finally:
            control.close()
            if ahead is not None:
                ahead.close()
