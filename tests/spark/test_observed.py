"""A real driver from outside, by what it writes beside its log: at work, killed, and restarted."""

import pytest

from statefx import Checkpoint
from statefx.command import main
from tests.spark.drivers import FILES, ON
from tests.spark.running import feed, wait_for


@pytest.mark.soak
def test_a_driver_that_is_killed_is_told_from_one_at_work_and_the_next_one_writes_on(drivers, place, capsys):
    checkpoint = Checkpoint(place / "ck")

    def health(state):
        return lambda: (found := checkpoint.observation())["health"]["state"] == state and found

    feed(place / "in", a=FILES["a"])
    first = drivers(place, trigger=ON)
    first.wait_until(lambda log: log.committed >= 1, "a transaction to be committed")
    found = wait_for(lambda: (told := checkpoint.observation()).get("transactions") and told, "the document")
    found = wait_for(
        lambda: checkpoint.observation()["components"]["count"]["rowsIn"] and checkpoint.observation(), "its rows"
    )
    assert found["health"]["state"] in ("healthy", "idle")
    assert (found["driver"]["pid"], found["generation"]) == (first.process.pid, 1)
    assert main(["top", str(place / "ck"), "--once", "--table"]) == 0
    first.kill()
    dead = wait_for(health("dead"), "its death to be seen")
    assert dead["components"] == found["components"]
    capsys.readouterr()
    assert main(["top", str(place / "ck"), "--once", "--table"]) == 1
    assert "is gone without having ended" in capsys.readouterr().out
    second = drivers(place, trigger=ON)
    second.wait_until(lambda log: log.generation == 2, "the next driver to start")
    wait_for(lambda: checkpoint.observation()["driver"].get("pid") == second.process.pid, "its document")
