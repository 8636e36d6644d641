"""A ``file:`` URI means one folder in spouts, sinks, checkpoints and tools."""

import os

import pytest

from statefx import BasicBolt, StatefulBolt, TopologyBuilder, openState
from statefx.admin.command import main
from statefx.connectors.files import FilePartitionedSpout, FileSink, committedFiles
from statefx.errors import ConfigError
from statefx.log.location import local_path
from statefx.testing import TopologyTester


class Count(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("n", self.state.get("n", 0) + 1)


class Pass(BasicBolt):
    outputFields = "value string"

    def execute(self, tup, collector):
        collector.emit((tup.value,))


@pytest.mark.parametrize("name", ["a b", "100%", "a%20b", "\u00e4", "#1", "a;b", "a&b=c", "plain"])
def test_uri_of_a_folder_is_that_folder_wherever_it_is_given(name, tmp_path, capsys):
    base = tmp_path / name
    (base / "in").mkdir(parents=True)
    (base / "in" / "a.txt").write_text("a\n")
    builder = TopologyBuilder("t")
    builder.setSpout("s", FilePartitionedSpout((base / "in").as_uri(), "text"))
    builder.setBolt("c", Count()).globalGrouping("s")
    builder.setBolt("p", Pass()).globalGrouping("s")
    builder.setSink("out", FileSink((base / "out").as_uri())).globalGrouping("p")
    with TopologyTester(builder.createTopology(), (base / "ck").as_uri()) as tester:
        tester.drain()
    assert os.listdir(tmp_path) == [name]
    for location in (base / "ck", str(base / "ck"), (base / "ck").as_uri()):
        with openState(location, "c") as view:
            assert dict(view.items()) == {"n": 1}
        assert main(["state", str(location), "c", "--json"]) == 0
        assert '"value": 1' in capsys.readouterr().out
    assert len(committedFiles((base / "out").as_uri())) == len(committedFiles(base / "out")) == 1


def test_uri_with_nul_is_refused():
    for taking in (local_path, FileSink):
        with pytest.raises(ConfigError):
            taking("file:///a%00b")
