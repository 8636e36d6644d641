"""What describe() and mermaid() show."""

import pytest

from statefx import BasicBolt, Committer, StatefulBolt, TopologyBuilder
from tests.topology.frames import Frame


class Split(BasicBolt):
    outputFields = {"default": "word string", "late": "word string, at timestamp"}

    def execute(self, tup, collector): ...


class Count(StatefulBolt):
    outputFields = "word string, `how many` long NOT NULL"

    def initState(self, state): ...

    def execute(self, tup, collector): ...


class Report(BasicBolt, Committer):
    def execute(self, tup, collector): ...


def wired():
    """A builder with a component of each kind but spouts and sinks."""
    builder = TopologyBuilder("word-count")
    builder.setStream("lines", Frame())
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=3).fieldsGrouping("split", "word").globalGrouping(
        "split", stream="late"
    )
    builder.setBolt("report", Report()).partialKeyGrouping("count", "word", "how many")
    return builder


@pytest.fixture
def topology():
    return wired().createTopology()


def test_describe(topology):
    assert (
        topology.describe()
        == """\
topology word-count
  lines: streaming DataFrame
    -> default: value string
  split: Split x 2
    <- lines by shuffle
    -> default: word string
    -> late: word string, at timestamp
  count: Count x 3, stateful
    <- split by fields(word)
    <- split.late by global
    -> default: word string, `how many` bigint NOT NULL
  report: Report x 1, committer
    <- count by partialKey(word, how many)
    -> emits nothing
"""
    )


def test_mermaid(topology):
    assert (
        topology.mermaid()
        == """\
flowchart LR
    c0(["lines"])
    c1["split x 2"]
    c2[("count x 3")]
    c3[["report x 1"]]
    c0 -->|"shuffle"| c1
    c1 -->|"fields(word)"| c2
    c1 -->|"late: global"| c2
    c2 -->|"partialKey(word, how many)"| c3
"""
    )


@pytest.mark.slow
def test_a_batch_data_frame_says_so_and_quotes_are_escaped():
    builder = TopologyBuilder("once")
    builder.setStream("lines", Frame('`a "b"` string', streaming=False))
    builder.setBolt("report", Report()).fieldsGrouping("lines", 'a "b"')
    topology = builder.createTopology()
    assert "  lines: batch DataFrame\n" in topology.describe()
    assert '-->|"fields(a #quot;b#quot;)"|' in topology.mermaid()
