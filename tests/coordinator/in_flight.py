"""A driver that may have several transactions in flight."""

from typing import Any

from statefx.testing import TopologyTester


class InFlight(TopologyTester):
    """A tester that has up to three transactions in flight."""

    def __init__(self, *given: Any, **named: Any) -> None:
        named["config"] = {"topology.max.spout.pending": 3, **named.get("config", {})}
        super().__init__(*given, **named)

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
