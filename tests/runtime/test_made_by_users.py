"""What a user's factory returns is looked at at once: something else names the class, the method and what is wanted."""

import pytest

from statefx import FileSink, TopologyBuilder, TransactionalClient, openState
from statefx.connectors import MemoryTransactionalSpout, QueueSpout
from statefx.errors import BoltError, ProviderError, TopologyError
from statefx.testing import TopologyTester
from statefx_memory import MemoryStateProvider
from tests.spouts.test_loose import Count, Messages


class Provider(MemoryStateProvider):
    def newState(self, namespace, context):
        return {}


class NoWriter(FileSink):
    def writer(self, context):
        return []


class NoCommitter(FileSink):
    def committer(self, context):
        return "committer"


class NoCommittable(FileSink):
    def writer(self, context):
        made = super().writer(context)
        made.prepare = lambda txid: ["a file"]
        return made


class NoJson(FileSink):
    def writer(self, context):
        made = super().writer(context)
        made.prepare = lambda txid: {"file": object()}
        return made


class NoAcks(QueueSpout):
    def receive(self, limit):
        return []

    def finish(self, ids):
        pass

    def pendingAcks(self):
        return None


class NoSink(Messages):
    def acknowledging(self):
        return "acks"


def to_sink(kind):
    def make(folder):
        builder = TopologyBuilder("made")
        builder.setSpout("numbers", MemoryTransactionalSpout([[(1,)]], "number long"))
        builder.setSink("out", kind(folder / "out")).shuffleGrouping("numbers")
        return builder.createTopology()

    return make


def from_spout(make):
    def made(folder):
        builder = TopologyBuilder("made")
        builder.setSpout("numbers", make())
        builder.setBolt("count", Count()).globalGrouping("numbers")
        return builder.createTopology()

    return made


@pytest.mark.parametrize(
    ("made", "error", "match"),
    [
        (to_sink(NoWriter), BoltError, r"sink 'out'.*writer returned \[\].*SinkWriter"),
        (to_sink(NoCommittable), BoltError, r"sink 'out'.*prepare returned \['a file'\].*dict"),
        (to_sink(NoJson), BoltError, r"sink 'out'.*hook prepare.*object is not JSON"),
        (to_sink(NoCommitter), TopologyError, r"NoCommitter.committer returned 'committer'.*SinkCommitter"),
        (from_spout(lambda: NoSink([])), TopologyError, r"NoSink.acknowledging returned 'acks'.*Sink"),
        (
            from_spout(lambda: NoAcks("number long", exactlyOnce=True)),
            TopologyError,
            r"NoAcks.pendingAcks returned None.*PendingAcks",
        ),
    ],
)
def test_something_else_than_is_wanted_is_refused_at_once(place, made, error, match):
    with pytest.raises(error, match=match), TopologyTester(made(place), place / "ck") as tester:
        tester.emit()


def numbers():
    return from_spout(lambda: MemoryTransactionalSpout([[(1, "", "")]], "number long, first string, second string"))


def test_a_provider_that_makes_no_store_ends_the_query(place):
    """The first attempt does: no other one would be given anything else."""
    config = {"topology.state.provider": f"{__name__}:Provider"}
    match = r"Provider.newState returned {} \(dict\): it has to return a StateStore"
    with pytest.raises(BoltError, match=match), TopologyTester(numbers()(place), place / "ck", config) as tester:
        tester.emit()
    with pytest.raises(ProviderError, match=match), openState(place / "ck", "count"):
        pass
    with TransactionalClient(place / "client", id="client", state=["kept"], config=config) as client:
        t = client.begin()
        with pytest.raises(ProviderError, match=match):
            t.get("kept", 1)
