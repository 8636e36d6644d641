"""An attempt that is abandoned while its slot sends on what it has emitted."""

from pathlib import Path

import pyarrow as pa
import pytest

from statefx import BasicBolt, TopologyBuilder
from statefx.plan import wire
from statefx.runtime.slot import AbandonedError, Slot
from statefx.runtime.worker import Worker
from statefx.testing import rows
from tests.runtime.test_conformance import FIRST, deployment


class FirstLarge(BasicBolt):
    """Emits one large row, and nothing for all the tuples behind it."""

    outputFields = "text string"

    def open(self, context):
        self.journal = context.config["journal"]

    def execute(self, tup, collector):
        self.journal.append(tup.n)
        if not tup.n:
            collector.emit(("x" * wire.BATCH_BYTES,))


def test_it_ends_before_the_next_tuple(place: Path) -> None:
    """It was noticed by what was pressing to leave, and that was taken back when it had left."""
    builder = TopologyBuilder("abandoned")
    builder.setStream("ticks", rows("n long"))
    builder.setBolt("first", FirstLarge()).shuffleGrouping("ticks")
    builder.setBolt("same", FirstLarge(), 2).shuffleGrouping("first")
    journal: list[int] = []
    slot = Slot(Worker(), deployment(place, builder.createTopology(), journal=journal), FIRST, 0, 0)
    sent = slot.run([pa.record_batch([pa.array(range(100), pa.int64())], names=["c0"])])
    next(sent)
    slot.abandon()
    with pytest.raises(AbandonedError):
        next(sent)
    assert journal == [0]
