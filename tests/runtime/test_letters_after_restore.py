"""After a restore, letters of transactions that it gave up are not replayed; those from before and after it are."""

import json
from pathlib import Path

import pytest

from statefx import Checkpoint, ReplayDeadLetters, TopologyBuilder
from statefx.connectors.files import FilePartitionedSpout, FileSink, committedFiles
from statefx.testing import TopologyTester
from tests.bolts import WithState

FIELDS = "key string, n long, currency string"


class Sums(WithState):
    def __init__(self, rates):
        self.rates = rates

    def execute(self, tup, collector):
        self.state.put(tup.key, self.state.get(tup.key, 0) + tup.n * self.rates[tup.currency])


def topology(place, mode, **rates):
    held = mode == "quarantineKey"
    builder = TopologyBuilder("sums")
    builder.setSpout("rows", FilePartitionedSpout(str(place / "rows"), "json", FIELDS))
    builder.setSpout("letters", FilePartitionedSpout(str(place / "replayed"), "json", "row string, number long"))
    builder.setBolt("again", ReplayDeadLetters(FIELDS, quarantined=held)).shuffleGrouping("letters")
    sums = builder.setBolt("sums", Sums(rates), 2, onError=mode)
    sums.fieldsGrouping("rows", "key").fieldsGrouping("again", "key")
    builder.setSink("out", FileSink(str(place / "out"), format="json")).shuffleGrouping("sums", stream="deadLetter")
    return builder.createTopology()


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def letters(place):
    return [json.loads(line) for path in committedFiles(place / "out") for line in Path(path).read_text().splitlines()]


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["deadLetter", "quarantineKey"])
def test_which_letters_are_replayed_after_a_restore(tmp_path, mode):
    def run(**rates):
        with TopologyTester(topology(tmp_path, mode, EUR=1, **rates), tmp_path / "ck") as tester:
            tester.drain()
            return tester.state("sums")

    def row(key, n, currency):
        return {"key": key, "n": n, "currency": currency}

    (tmp_path / "replayed").mkdir()
    write(tmp_path / "rows/1.json", [row("a", 1, "EUR"), row("a", 20, "DKK")])
    run()
    write(tmp_path / "rows/2.json", [row("b", 300, "DKK"), row("a", 4000, "EUR"), row("a", 50000, "DKK")])
    run()
    done = Checkpoint(tmp_path / "ck").restore(txid=1, sinks="append")
    run()  # reads the second file again, and sets the same rows aside once more

    found = letters(tmp_path)
    given_up = [each for each in found if done.txid < each["txid"] < done.next_txid]
    assert len(given_up) == len([each for each in found if each["txid"] >= done.next_txid]) >= 2
    kept = [each for each in found if each not in given_up]
    write(tmp_path / "replayed/1.json", [{"row": each["row"], "number": each.get("number")} for each in kept])
    assert run(DKK=1) == {"a": 54021, "b": 300}
    if mode == "quarantineKey":
        assert not list(Checkpoint(tmp_path / "ck").quarantined("sums"))
