"""The page on Kafka: its program runs."""

import json

import pytest

from tests.conftest import ROOT
from tests.spouts.kafka_topologies import as_json

pytestmark = pytest.mark.slow


def test_the_program_of_the_page_runs(spark, kafka, place, monkeypatch, capsys):
    kafka.topic(name="payments")
    kafka.topic(name="totals")
    kafka.send(
        "payments",
        *as_json({"account": "a", "amount": 5}, {"account": "b", "amount": 2}, {"account": "a", "amount": 1}),
    )
    page = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    assert "KafkaSink" in program
    monkeypatch.chdir(place)
    exec(program.replace("localhost:9092", kafka.address), {"__name__": "__main__"})
    assert capsys.readouterr().out.endswith("{'a': 6, 'b': 2}\n")
    told = [json.loads(value) for value in kafka.read("totals", 3)]
    assert sorted((each["account"], each["total"]) for each in told) == [("a", 5), ("a", 6), ("b", 2)]
