"""Which transaction a restored checkpoint shows, and what it says of those that were given up, against a model."""

import json
import random

import pytest

from statefx import Checkpoint
from statefx.command import main
from statefx.errors import CheckpointError
from statefx.log.observation import OUTCOMES
from statefx.ui.archive import merged
from tests.testing.places import place
from tests.testing.topologies import Driver, lines, totals, words

__all__ = ["place"]


class Life:
    """A checkpoint, and which transactions its state has come from."""

    def __init__(self, driver, chance):
        self.driver, self.chance = driver, chance
        self.ancestors, self.given, self.number = [], {}, 0
        self.saved, self.restored = {}, []

    def send(self):
        with self.driver.start(totals()) as tester:
            for _ in range(self.chance.randint(1, 3)):
                self.number += 1
                self.given[self.number] = lines(f"w{self.number % 5} w{self.number}")
                tester.send(self.given[self.number])
                self.ancestors.append(self.number)

    def save(self):
        name = f"v{len(self.saved)}"
        assert Checkpoint(self.driver.folder).savepoint(name).txid == self.ancestors[-1]
        self.saved[name] = list(self.ancestors)

    def restore(self):
        if self.saved and self.chance.random() < 0.6:
            name = self.chance.choice(sorted(self.saved))
            Checkpoint(self.driver.folder).restore(name)
            self.ancestors = list(self.saved[name])
        else:
            at = self.chance.randrange(len(self.ancestors))
            Checkpoint(self.driver.folder).restore(txid=self.ancestors[at])
            self.ancestors = self.ancestors[: at + 1]
        self.restored.append(self.ancestors[-1])

    def expected(self, upto=None):
        return words([self.given[txid] for txid in self.ancestors if upto is None or txid <= upto])

    def read(self, txid):
        """Return the state of a transaction; None if it is not kept any more."""
        try:
            found = Checkpoint(self.driver.folder).table("count", at=txid, schema={}).to_pylist()
        except CheckpointError as error:
            if "is not kept any more" in str(error):
                return None
            raise
        return {json.loads(row["key"]): json.loads(row["value"]) for row in found}

    def check(self, capsys):
        folder, last = self.driver.folder, self.ancestors[-1]
        with Checkpoint(folder).state("count") as view:
            assert (view.txid, dict(view.items())) == (last, self.expected())
        assert Checkpoint(folder).verify().txid == Checkpoint(folder).explain("count", "w1").txid == last
        assert main(["state", str(folder), "--json"]) == 0
        assert {json.loads(line)["txid"] for line in capsys.readouterr().out.splitlines()} == {last}
        for txid in range(1, self.number + 1):
            if txid not in self.ancestors:
                with pytest.raises(CheckpointError, match=f"transaction {txid} of .* was given up"):
                    Checkpoint(folder)._table("count", at=txid)
            else:
                found = self.read(txid)
                assert found == self.expected(txid) or (found is None and txid != last)
        for name, ancestors in self.saved.items():
            assert Checkpoint(folder)._table("count", at=name).moments[0].txid == ancestors[-1]
        listed = Checkpoint(folder).transactions()
        states = {each.txid: each.state for each in listed if each.state != "RESTORED"}
        kept = set(self.ancestors)
        assert states == {n: "COMMITTED" if n in kept else "GIVEN_UP" for n in range(1, self.number + 1)}
        assert [each.txid for each in listed if each.state == "RESTORED"] == self.restored
        of_log = Checkpoint(folder).observation()["transactions"]
        for shown in (of_log, merged(of_log, listed), merged([], listed)):
            outcomes = sorted((each["txid"], each["outcome"]) for each in shown)
            assert outcomes == sorted((each.txid, OUTCOMES[each.state]) for each in listed)


@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_a_life_with_restores_shows_the_transactions_of_its_state(seed, place, capsys):
    chance = random.Random(seed)
    with Driver(place, ("memory", "rocksdb")[seed % 2]) as driver:
        life = Life(driver, chance)
        life.send()
        for _ in range(9):
            chance.choice([life.send, life.save, life.restore])()
            life.check(capsys)


@pytest.mark.slow
def test_the_restore_is_a_line_between_transactions(place, capsys):
    with Driver(place) as driver:
        with driver.start(totals()) as tester:
            for number in range(3):
                tester.send(lines(f"w{number}"))
        Checkpoint(driver.folder).restore(txid=1)
        with driver.start(totals()) as tester:
            tester.send(lines("again"))
        assert main(["transactions", str(driver.folder), "--table"]) == 0
        shown = [line.split()[:4] for line in capsys.readouterr().out.splitlines()[1:]]
        assert [(txid, state) for txid, _, _, state in shown] == [
            ("1", "COMMITTED"), ("2", "GIVEN_UP"), ("3", "GIVEN_UP"), ("1", "RESTORED"), ("4", "COMMITTED"),
        ]  # fmt: skip
