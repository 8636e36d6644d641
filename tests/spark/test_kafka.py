"""KafkaSpout on real Spark: workers are killed, several transactions are in flight, and each record counts once."""

import json
import time

import pytest

from statefx import submit
from statefx.connectors.kafka import planning
from tests.conftest import ROOT
from tests.spark.bolts import KilledOnce
from tests.spark.running import state, wait_for
from tests.spouts.kafka_topologies import Count, as_json, lines, once, spout, topology

pytestmark = pytest.mark.slow


class Killed(KilledOnce, Count):
    pass


def counts(location):
    return {row[0]: count for row, count in state(location, "count").items()}


@pytest.mark.soak
def test_a_worker_is_killed_and_then_the_broker_and_it_goes_on(spark, kafka, place, monkeypatch):
    topic = kafka.topic(partitions=3)
    for partition in range(3):
        kafka.send(topic, *lines(partition * 100, partition * 100 + 60), partition=partition)
    reads = spout(kafka, topic, maxRows=60, start="earliest", group="on-spark")
    config = {"topology.max.spout.pending": 2}
    query = submit(topology(reads, Killed(place)), spark, place / "ck", config, {"processingTime": "0 seconds"})
    query.processAllAvailable()
    assert (place / "killed").exists()
    expected = [*lines(0, 60), *lines(100, 160), *lines(200, 260)]
    assert counts(place / "ck") == once(*expected)
    reached = query.lastProgress["sources"]["records"]
    assert (reached["partitions"], reached["maxOffsetsBehindLatest"]) == (3, 0)
    assert reached["endOffset"] == reached["latestOffset"] == {topic: {"0": 60, "1": 60, "2": 60}}

    kafka.transact(topic, *lines(300, 310), commit=False)
    kafka.settle(topic)
    kafka.restart()
    kafka.transact(topic, *lines(400, 410))
    expected += lines(400, 410)
    wait_for(lambda: counts(place / "ck") == once(*expected), "what came after the restart")
    # The group is told behind the commit, and nobody waits for it. Behind 80 records stand the markers of two
    # transactions, and the first one may be there twice: who kills a broker may do so before it has noted that the
    # marker is written.
    told = [{0: end, 1: 60, 2: 60} for end in (82, 83)]
    wait_for(lambda: kafka.group_offsets("on-spark", topic) in told, "the group to be told")
    kafka.freeze()
    monkeypatch.setattr(planning, "REQUEST_SECS", 1.0)
    wait_for(lambda: "stuck" in query.status, "the status to say that nobody answers")
    assert "can't be asked" in query.status["stuck"]["reason"]
    began = time.monotonic()
    query.stop()
    assert time.monotonic() < began + 15, "a broker that does not answer must not hold the end"
    kafka.thaw()
    assert query.exception() is None
    assert kafka.group_offsets("on-spark", topic) in told


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
