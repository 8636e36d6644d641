"""A driver of a cut topology with several transactions in flight, over inputs that are planned."""

from collections.abc import Sequence

from statefx.coordinator.source import Batch
from statefx.testing import TopologyTester
from statefx.testing.streams import Work, given, identity


class Planned:
    """A source whose inputs are there from the start; a transaction that is tried again reads the same."""

    def __init__(self, tester: TopologyTester, transactions: Sequence[Work]) -> None:
        self._works = [given(tester.topology, work) for work in transactions]
        self.asked: list[int] = []

    def ready(self, txid: int) -> bool:
        return not self.ended(txid)

    def next(self, txid: int) -> Batch:
        self.asked.append(txid)
        work = self._works[txid - 1]
        return Batch(identity(txid - 1, work), work)

    def ended(self, txid: int) -> bool:
        return txid > len(self._works)


class InFlight(TopologyTester):
    """A tester that has up to three transactions in flight."""

    _pending = 3

    def drive(self, transactions: Sequence[Work]) -> None:
        """Take all transactions that are not committed yet through the coordinator."""
        self._driving(lambda: self._coordinator.run(Planned(self, transactions)))

    def stop(self, *, now: bool) -> None:
        self._coordinator.stop(now=now)

    def at_once(self) -> int:
        """Return how many transactions were in flight at once, at most."""
        highest, found = 0, set[str]()
        for step in self.steps:
            if step.startswith("after PREPARING("):
                found.add(step.split("(")[1].split(",")[0])
            elif step.startswith(("before COMMITTING(", "after ROLLED_BACK(")):
                found.discard(step.split("(")[1].split(",")[0])
            highest = max(highest, len(found))
        return highest
