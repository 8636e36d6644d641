"""Bolts and spouts that are called otherwise keep what they have; those that are dropped lose it, and nobody else."""

from pathlib import Path

import pytest

from statefx import Checkpoint, Spout, StatefulBolt, TopologyBuilder
from statefx.connectors.files import FileSink
from statefx.errors import CheckpointMismatchError, ConfigError
from statefx.log.log import read_state
from statefx.log.takeover import take_generation
from statefx.storage import FolderStorage
from statefx.testing import Crash, rows
from statefx.testing.steps import every_crash
from tests.spouts.numbers import ALL, Opaque, Planned, Whole
from tests.spouts.numbers import Count as CountNumbers
from tests.testing.topologies import SMALL, Count, Driver, Split, lines, words

WORK = [lines(f"to be {number}", "or not", f"w{number % 3} w{number % 5}") for number in range(12)]


class Remember(StatefulBolt):
    def initState(self, state):
        self.counts = state
        self.last, self.log, self.value = state.map("last"), state.list("log"), state.value("newest")

    def execute(self, tup, collector):
        self.counts.put(tup.word, self.counts.get(tup.word, 0) + 1)
        self.last.put(tup.word, len(tup.word))
        self.log.append(tup.word)
        self.value.put(tup.word)


def counted(*bolts, bolt=Remember):
    builder = TopologyBuilder("words")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    for id in bolts:
        builder.setBolt(id, bolt(), parallelism=2).fieldsGrouping("split", "word")
    return builder.createTopology()


def send(driver, works, topology, **more):
    with driver.start(topology, **more) as tester:
        for work in works:
            tester.send(work)


def committed(driver, component):
    with Checkpoint(driver.folder).state(component) as state:
        return dict(state.items())


def shown(driver, component):
    with (
        Checkpoint(driver.folder).state(component) as state,
        Checkpoint(driver.folder).state(component, map="last") as last,
    ):
        return dict(state.items()), dict(last.items()), state.list("log"), state.value("newest")


@pytest.mark.slow
def test_all_that_a_bolt_has_goes_with_it(place, provider):
    with Driver(place, provider) as driver, Driver(place, provider, "same") as same:
        send(driver, WORK[:5], counted("count"), limits=SMALL)
        send(driver, WORK[5:8], counted("tally"), rename={"count": "tally"}, limits=SMALL)
        send(driver, WORK[8:], counted("tally"), rename={"count": "tally"}, limits=SMALL)  # it may stay in the program
        send(same, WORK, counted("count"))
        assert shown(driver, "tally") == shown(same, "count")
        assert not Path(driver.folder, "state", "tally").exists(), "nothing was copied"


@pytest.mark.slow
def test_a_name_that_is_free_again_begins_with_nothing(place):
    with Driver(place, "rocksdb") as driver:
        send(driver, WORK[:4], counted("count"), limits=SMALL)
        send(driver, WORK[4:6], counted("tally", "count"), rename={"count": "tally"}, limits=SMALL)
        send(driver, WORK[6:8], counted("tally", "count"), limits=SMALL)
        assert (committed(driver, "tally"), committed(driver, "count")) == (words(WORK[:8]), words(WORK[4:8]))
        send(driver, WORK[8:10], counted("sum", "count"), rename={"tally": "sum"}, limits=SMALL)
        send(driver, WORK[10:], counted("count"), drop=["sum"], limits=SMALL)
        assert committed(driver, "count") == words(WORK[4:])
        send(driver, WORK[:1], counted("count", "sum"), drop=["gone"])
        assert committed(driver, "sum") == words(WORK[:1])


@pytest.mark.slow
def test_what_is_dropped_begins_with_nothing_when_it_comes_back(place):
    with Driver(place) as driver:
        send(driver, WORK[:4], counted("count", "gone"), limits=SMALL)
        send(driver, WORK[4:6], counted("count"), drop=["gone"], limits=SMALL)
        assert not [path for path in Path(driver.folder, "state", "gone").rglob("*") if path.is_file()]
        send(driver, WORK[6:], counted("count", "gone"), limits=SMALL)
        assert (committed(driver, "count"), committed(driver, "gone")) == (words(WORK), words(WORK[6:]))


def test_a_savepoint_keeps_the_files_of_a_bolt_that_is_dropped(place):
    with Driver(place) as driver:
        send(driver, WORK[:1], counted("count", "gone"), limits=SMALL)
        Checkpoint(driver.folder).savepoint("old")
        send(driver, WORK[1:2], counted("count"), drop=["gone"], limits=SMALL)
        Checkpoint(driver.folder).restore("old")
        assert committed(driver, "gone") == words(WORK[:1])


@pytest.mark.slow
def test_savepoints_know_the_names_of_their_time(place):
    with Driver(place) as driver:
        send(driver, WORK[:3], counted("count", "gone"), limits=SMALL)
        Checkpoint(driver.folder).savepoint("old")
        send(driver, WORK[3:8], counted("tally", "count"), rename={"count": "tally"}, drop=["gone"], limits=SMALL)
        Checkpoint(driver.folder).savepoint("new")
        send(driver, WORK[8:], counted("tally", "count"), limits=SMALL)
        Checkpoint(driver.folder).restore("old", to=place / "alone")
        Checkpoint(driver.folder).restore("old")
        for name in ("count", "gone"):
            assert committed(driver, name) == words(WORK[:3])
        send(driver, WORK[3:4], counted("count", "gone"), limits=SMALL)
        Checkpoint(driver.folder).restore("new")
        assert (committed(driver, "tally"), committed(driver, "count")) == (words(WORK[:8]), words(WORK[3:8]))
        send(driver, WORK[8:], counted("tally", "count"), limits=SMALL)
        assert (committed(driver, "tally"), committed(driver, "count")) == (words(WORK), words(WORK[3:]))
        with Driver(place, name="alone") as alone:
            send(alone, WORK[3:], counted("count", "gone"))
            assert committed(alone, "gone") == words(WORK)


class Messages(Spout):
    outputFields = "user string, shop string"

    def nextTuple(self, collector):
        pass


def grouped_by(field, name, source):
    builder = TopologyBuilder("orders")
    if source == "stream":
        builder.setStream(name, rows(Messages.outputFields))
    else:
        builder.setSpout(name, Messages(), dedup="1 hour" if source == "dedup" else None)
    builder.setBolt("count", Count(), 2).fieldsGrouping(name, field)
    return builder.createTopology()


@pytest.mark.parametrize(
    ("was", "now"),
    [("stream", "stream"), ("spout", "spout"), ("spout", "dedup"), ("dedup", "dedup"), ("dedup", "spout")],
)
def test_other_fields_of_the_same_input_are_refused_whatever_it_is_called(place, was, now):
    """Keys would go to other tasks than those that have their state: the log knows that it is the same input."""
    changes = {"rename": {"orders": "sales"}, "drop": ["__dedup-sales"] if was == "dedup" != now else []}
    with Driver(place) as driver:
        driver.start(grouped_by("user", "orders", was)).close()
        with pytest.raises(CheckpointMismatchError, match=r"by fields\(shop\), .*go back to fields\(user\)"):
            driver.start(grouped_by("shop", "sales", now), **changes)
        driver.start(grouped_by("user", "sales", now), **changes).close()
        with pytest.raises(CheckpointMismatchError, match=r"by fields\(shop\), .*go back to fields\(user\)"):
            driver.start(grouped_by("shop", "sales", now))


def test_a_start_that_another_has_renamed_a_spout_before_is_refused(place, monkeypatch):
    """It has looked at the checkpoint before that, and would read the input of the former name from its beginning."""

    def topology(name):
        builder = TopologyBuilder("numbers")
        builder.setSpout(name, Whole(place, first=0))
        builder.setBolt("count", CountNumbers()).globalGrouping(name)
        return builder.createTopology()

    def late(*given, **options):
        monkeypatch.undo()
        driver.start(topology("new"), rename={"old": "new"}).close()
        return take_generation(*given, **options)

    with Driver(place) as driver:
        with driver.start(topology("old")) as tester:
            tester.emit()
        monkeypatch.setattr("statefx.coordinator.launch.take_generation", late)
        with pytest.raises(CheckpointMismatchError, match="new"):
            driver.start(topology("old"))
        with driver.start(topology("new")) as tester:
            tester.drain()
        assert committed(driver, "count") == ALL


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Whole, Planned, Opaque])
def test_a_spout_that_is_renamed_goes_on_where_it_was(place, kind):
    def topology(name):
        builder = TopologyBuilder("numbers")
        builder.setSpout(name, kind(place, first=0), 2)
        builder.setBolt("count", CountNumbers(), 2).fieldsGrouping(name, "number")
        return builder.createTopology()

    with Driver(place) as driver:
        with driver.start(topology("old")) as tester:
            tester.emit()
        with pytest.raises(
            CheckpointMismatchError, match=r"rename=\{'old': its name\}; if it is gone, with drop=\['old'\]"
        ):
            driver.start(topology("new"))
        with driver.start(topology("new"), rename={"old": "new"}) as tester:
            tester.drain()
        assert committed(driver, "count") == ALL
        with driver.start(topology("third"), drop=["new"]) as tester:
            tester.drain()
        assert committed(driver, "count") == dict.fromkeys(ALL, 2)


@pytest.mark.slow
def test_a_start_that_was_killed_has_renamed_or_not(place, stride):
    """At whatever moment it ends, the next start, with the same arguments, goes on exactly."""
    seen = set()
    with Driver(place) as same:
        send(same, WORK[:4], counted("count"))
    for at in every_crash(stride):
        with Driver(place, name=f"checkpoint-{at}") as driver:
            send(driver, WORK[:2], counted("count"))
            done = False
            try:
                tester = driver.start(counted("tally"), rename={"count": "tally"}, crash_at=at)
                tester.run(WORK[:4])
                done = True
            except Crash:
                seen.add(read_state(FolderStorage(driver.folder)).topology.stateful.keys() == {"tally"})
            with driver.start(counted("tally"), rename={"count": "tally"}) as tester:
                tester.run(WORK[:4])
            assert committed(driver, "tally") == words(WORK[:4])
        if done:
            break
    assert seen == {False, True}


def test_a_decided_transaction_is_committed_under_the_old_names_first(place):
    def published(name):
        builder = TopologyBuilder("published")
        builder.setStream("lines", rows("value string"))
        builder.setBolt("split", Split()).shuffleGrouping("lines")
        builder.setBolt(name, Count(), parallelism=2).fieldsGrouping("split", "word")
        builder.setSink("out", FileSink(place / "out", "json")).shuffleGrouping(name)
        return builder.createTopology()

    with Driver(place) as driver:
        tester = driver.start(published("count"))

        def crash():
            raise Crash("decided")

        tester.when("after COMMITTING(1, 0)", crash)
        with pytest.raises(Crash):
            tester.send(WORK[0])
        with pytest.raises(CheckpointMismatchError, match="start once with the former topology, and rename then"):
            driver.start(published("tally"), rename={"count": "tally"})
        with driver.start(published("count")):
            pass
        with driver.start(published("tally"), rename={"count": "tally"}) as tester:
            tester.run(WORK[:2])
        assert committed(driver, "tally") == words(WORK[:2])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rename": {"count": "nobody"}}, "'nobody' is no stateful bolt and no spout of this topology"),
        ({"rename": {"count": "split"}}, "'split' is no stateful bolt"),
        ({"rename": {"cuont": "tally"}}, "keeps nothing under the name 'cuont'. .* this topology has not is 'count':"),
        ({"rename": {"tally": "tally"}}, "'tally' has that name already: leave it out"),
        ({"rename": {"count": "tally"}, "drop": ["count"]}, "is not alone"),
        ({"rename": {"__acker": "tally"}}, "'__acker' is statefx's own"),
        ({"rename": ["count"]}, "rename must be a mapping of old ids to new ones"),
        ({"drop": "count"}, r"drop must be a list of ids, such as \['old'\]"),
        ({"drop": ["split"]}, "drop: 'split' is in this topology"),
    ],
)
def test_a_mistake_is_told_before_anything_is_changed(place, given, says):
    with Driver(place) as driver:
        send(driver, WORK[:1], counted("count"))
        with pytest.raises((ConfigError, CheckpointMismatchError), match=says):
            driver.start(counted("tally"), **given)
        assert read_state(FolderStorage(driver.folder)).generation == 1
        with pytest.raises(
            CheckpointMismatchError, match=r"rename=\{'count': its name\}; to give its state up, with drop"
        ):
            driver.start(counted("tally"))


def test_a_name_that_is_both_old_and_new_is_refused(place):
    with Driver(place) as driver:
        send(driver, WORK[:1], counted("count", "tally"))
        with pytest.raises(ConfigError, match=r"has both 'count' and 'tally'.*leave it out now"):
            driver.start(counted("tally"), rename={"count": "tally"})


@pytest.mark.slow
def test_names_that_were_given_before_are_not_given_again_in_a_copy(place):
    """A copy begins with generation 1 again, and brings the names under which state is kept."""
    with Driver(place) as driver:
        with driver.start(counted("a")), driver.start(counted("a")):
            pass
        send(driver, WORK[:2], counted("a"))
        send(driver, WORK[2:3], counted("b", "a"), rename={"a": "b"})
        taken = read_state(FolderStorage(driver.folder)).kept_as["a"]
        Checkpoint(driver.folder).restore(to=place / "copy")
    with Driver(place, name="copy") as copy:
        while f"a~{read_state(FolderStorage(copy.folder)).generation + 1}" != taken:
            with copy.start(counted("b", "a")):
                pass
        send(copy, WORK[3:6], counted("c", "b", "a"), rename={"a": "c"}, limits=SMALL)
        kept = read_state(FolderStorage(copy.folder)).kept_as
        assert len(set(kept.values())) == len(kept) == 3
        send(copy, WORK[6:8], counted("c", "b", "a"), limits=SMALL)
        found = [committed(copy, name) for name in ("c", "b", "a")]
        assert found == [words(WORK[2:8]), words(WORK[:8]), words(WORK[3:8])]
