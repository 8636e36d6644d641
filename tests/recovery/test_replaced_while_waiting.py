"""A driver that waits to try a commit again, and is replaced meanwhile, does not try it: its successor has done it."""

from pathlib import Path

import pytest

from statefx.errors import FencedError
from tests.testing.places import place
from tests.testing.topologies import Driver, Total, lines, totals

__all__ = ["place"]


class Refused(Total):
    """Can't commit as long as the file ``config["away"]`` is there."""

    def preCommit(self, txid):
        super().preCommit(txid)
        self.context.config["tried"].append(self.context.generation)
        if Path(self.context.config["away"]).exists():
            raise OSError("the target is away")


def test_a_commit_that_waits_is_not_tried_again_by_a_driver_that_was_replaced(place: Path) -> None:
    """The successor may have deleted the state that the commit needs: the former one would ask for ever."""
    away, tried = place / "away", []
    away.touch()
    with Driver(place) as driver:
        driver.config |= {"away": str(away), "tried": tried}
        first = driver.start(totals(Refused()))

        def replace() -> None:
            away.unlink()
            assert tried == [1]
            driver.start(totals(Refused()))

        first.when("pause", replace)
        with pytest.raises(FencedError, match="another driver has taken over"):
            first.send(lines("a b"))
        assert tried == [1, 2]
