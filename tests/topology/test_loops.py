"""A topology that reads its own output is fed without end: it is refused, unless that is said to be wanted."""

import re
import sqlite3
from contextlib import closing

import pytest

from statefx import BasicBolt, FileSink, SqlSink, TopologyBuilder
from statefx.connectors.files import FilePartitionedSpout
from statefx.connectors.kafka import KafkaSink, KafkaSpout
from statefx.connectors.sql import SqlPartitionedSpout
from statefx.errors import TopologyError

SERVERS = "one:9092,two:9092"


class Pass(BasicBolt):
    outputFields = "value string"

    def execute(self, tup, collector):
        collector.emit((tup[0],))


def topology(spout, sink, **options):
    builder = TopologyBuilder("loop")
    builder.setSpout("records", spout)
    builder.setBolt("pass", Pass()).shuffleGrouping("records")
    builder.setSink("out", sink, **options).shuffleGrouping("pass")
    return builder.createTopology()


@pytest.mark.parametrize("topics", ["totals", ["payments", "totals"], re.compile("to.*")])
@pytest.mark.parametrize("id", [None, "of-its-own"])
def test_a_topic_that_the_topology_reads_and_writes_is_refused_and_both_are_named(topics, id):
    sink = KafkaSink(SERVERS, "totals", value="value", transactionalId=id)
    says = r"sink 'out' writes to kafka://one:9092,two:9092/totals.*, and spout 'records' reads it.*loop=True"
    with pytest.raises(TopologyError, match=says) as refused:
        topology(KafkaSpout("two:9092, one:9092", topics), sink)  # the same servers, written in another way
    assert (refused.value.component, refused.value.source) == ("out", "records")


@pytest.mark.parametrize(
    ("servers", "topics"),
    [(SERVERS, "totals-2"), (SERVERS, re.compile("total")), (SERVERS, re.compile("pay.*")), ("one:9092", "totals")],
)
def test_other_topics_and_other_servers_are_no_loop(servers, topics):
    topology(KafkaSpout(servers, topics), KafkaSink(SERVERS, "totals", value="value"))


def test_a_target_that_is_no_topic_is_no_loop_whatever_its_name():
    assert not KafkaSpout(SERVERS, "totals").reads("totals")


def test_a_loop_that_is_wanted_is_allowed():
    topology(KafkaSpout(SERVERS, ["payments", "retry"]), KafkaSink(SERVERS, "retry", value="value"), loop=True)


def test_a_table_that_the_topology_reads_and_writes_is_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / "db")) as database:
        database.execute("create table words (id integer primary key, value text)")
    url = f"sqlite:///{tmp_path}/db"
    spout = SqlPartitionedSpout(url, "words", "id", "value string")
    with pytest.raises(TopologyError, match=r"sink 'out' writes to .*words, and spout 'records' reads it"):
        topology(spout, SqlSink(url, "words"))
    topology(spout, SqlSink(url, "others"))


def test_a_folder_that_the_topology_reads_and_writes_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    spout = FilePartitionedSpout(tmp_path / "link", "text")
    with pytest.raises(TopologyError, match=r"sink 'out' writes to .*/in, and spout 'records' reads it"):
        topology(spout, FileSink(tmp_path / "in"))
    topology(spout, FileSink(tmp_path / "out"))
