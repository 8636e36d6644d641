"""The programs of the pages that need a broker and no Spark."""

import json
import re

import pytest

from statefx import TopologyBuilder
from statefx.connectors.kafka import KafkaSink
from statefx.connectors.kafka.topic import KafkaTopic
from statefx.testing import TopologyTester, rows
from tests.conftest import ROOT
from tests.kafka.topics import read
from tests.spouts.kafka_topologies import spout, topology

pytestmark = pytest.mark.slow

RUN_HERE = re.compile(r"<!-- not run: tests/kafka/test_page\.py [^\n]*-->\n+```python\n(.*?)```", re.DOTALL)


def run(page, number, kafka, **names):
    """Run one of the programs of a page that are run here, with other names in the place of the page's."""
    program = RUN_HERE.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))[number]
    for name, own in {"localhost:9092": kafka.address, **names}.items():
        program = program.replace(name, own)
    exec(program, {})


def test_the_lag_of_each_partition_is_printed(kafka, tmp_path, capsys):
    kafka.topic(partitions=4, name="page-payments")
    for partition, (account, amount) in enumerate([("ann", 5), ("bob", 7), ("ann", 2)]):
        kafka.send("page-payments", json.dumps({"account": account, "amount": amount}), partition=partition)
    reads = spout(kafka, "page-payments", "json", "account string, amount long", group="page", maxRows=1)
    with TopologyTester(topology(reads), tmp_path) as tester:
        tester.emit()
    run("kafka", 0, kafka, **{"statefx.payments.payments": "page"})
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {(topic, int(partition)) for topic, partition, _ in told} == {("page-payments", each) for each in range(4)}
    assert sum(int(lag) for _, _, lag in told) == 2, "one of three records was read"


def test_a_transaction_that_is_given_up_is_passed_over_by_its_marker(kafka, tmp_path, monkeypatch):
    topic = kafka.topic()
    builder = TopologyBuilder("words")
    builder.setStream("words", rows("word string"))
    builder.setSink("out", KafkaSink(kafka.address, topic, value="word")).shuffleGrouping("words")

    def refuse(*arguments):
        raise ConnectionError("the network is gone")

    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        tester.send({"words": [("a",)]})
        tester.when("pause", tester.close)
        monkeypatch.setattr(KafkaTopic, "publish", refuse)
        with pytest.raises(Exception, match="decided"):
            tester.send({"words": [("given up",)]})
    monkeypatch.undo()
    run("how-to/stuck-transaction", 0, kafka, totals=topic, **{'"txid": 7': '"txid": 2', "0, 7,": "0, 2,"})
    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        assert tester.recoveries == [{"txid": 2, "rolled": "forward"}]
        tester.send({"words": [("b",)]})
    assert [each.value() for each in read(kafka, topic)] == [b"a", b"b"]
