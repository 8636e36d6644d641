"""An attempt that is abandoned while its slot sends on what it has emitted."""

from pathlib import Path

import pytest

from statefx import BasicBolt, TopologyBuilder
from statefx.plan import wire
from statefx.runtime.slot import AbandonedError
from statefx.runtime.worker import Worker
from statefx.testing import rows
from tests.runtime.one_slot import deployment, order_of, slot


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
    found = deployment(place, builder.createTopology(), journal=journal)
    one = slot(Worker(), found, order_of(found, {"ticks": [(n,) for n in range(100)]}))
    sent = one.run([])
    next(sent)
    one.abandon()
    with pytest.raises(AbandonedError):
        next(sent)
    assert journal == [0]
