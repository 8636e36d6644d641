"""Counters of users: exactly once at each crash, for committed transactions only; taken back by a restore."""

from functools import partial
from pathlib import Path

import pytest

from statefx import BatchBolt, Checkpoint, Stateful, TopologyBuilder
from statefx.log.entries import read_entries
from statefx.log.log import read_state
from statefx.protocol import counting
from statefx.storage import FolderStorage
from statefx.testing import rows
from statefx.testing.crashes import crashes
from statefx.testing.faults import JobFails
from tests.bolts import FailsOnce
from tests.metrics.reading import values
from tests.testing.topologies import SMALL, Driver, lines, words

TRANSACTIONS = [lines("to be or not to be", "that is"), lines(), lines("the question", "to be")]


class Counting(Stateful, BatchBolt):
    """Counts words in state and by metrics, which must agree; it has hooks, so that a commit has something to run."""

    def open(self, context):
        self.metrics = context.metrics
        self.metrics.counter("opened").inc()

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        for word in tup.value.split():
            self.state.put(word, self.state.get(word, 0) + 1)
            self.metrics.counter("words", word=word).inc()
            self.metrics.histogram("length", buckets=(2, 4)).observe(len(word))
            self.metrics.gauge("last").set(len(word))

    def preCommit(self, txid):
        self.metrics.counter("commits").inc()  # it may run more than once: not counted


def topology(parallelism=2):
    builder = TopologyBuilder("counting")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("count", Counting(), parallelism=parallelism).shuffleGrouping("lines")
    return builder.createTopology()


def counted(tester):
    return dict(values(tester.metrics, "words_total", "word"))


def total(place: Path, name="words"):
    own = read_state(FolderStorage(place)).counters.get("count", {})
    return {
        counting.parts_of(series)[1].get("word"): number for series, number in own.items() if series.startswith(name)
    }


@pytest.mark.slow
def test_counters_agree_with_state_after_a_crash_at_each_moment(place, stride):
    """Before COMMITTING, between COMMITTING and COMMITTED, after it, while the log is folded, and at each start."""
    topologies = topology()

    def drive(driver, cache, steps=None):
        with driver.start(topologies, cache=cache, steps=steps, limits=SMALL) as tester:
            tester.inject(JobFails(), JobFails())  # attempts that are rolled back
            tester.run(TRANSACTIONS)
            return tester

    with Driver(place) as driver:
        life = partial(drive, driver, place / "cache")
        for point in crashes(place, life, every=stride):
            with driver.start(topologies, cache=point.cache, limits=SMALL) as recovered:
                assert total(driver.folder) == words(TRANSACTIONS[: recovered.txid])
                assert counted(recovered) == words(TRANSACTIONS[: recovered.txid])
                txid = recovered.txid
            if point.is_new(txid):
                tester = drive(driver, point.cache)
                assert counted(tester) == words(TRANSACTIONS)
                assert total(driver.folder) == words(TRANSACTIONS)


@pytest.mark.slow
def test_a_driver_that_dies_after_its_decision_counts_once(driver):
    """COMMITTING is durable, and nothing else: the successor rolls it forward."""
    tester = driver.start(topology(), crash_at=None)
    tester.send(lines("to be"))
    moments = tester.steps
    at = next(place for place, moment in enumerate(moments, 1) if moment.startswith("after COMMITTING(1"))
    driver.folder.rename(driver.folder.with_name("first"))
    tester.close()
    crashing = driver.start(topology(), crash_at=at)
    with pytest.raises(BaseException, match="COMMITTING"):
        crashing.send(lines("to be"))
    with driver.start(topology()) as successor:
        assert successor.recoveries == [{"txid": 1, "rolled": "forward"}]
        assert counted(successor) == {"to": 1, "be": 1}


def test_attempts_that_are_rolled_back_count_nothing(driver):
    tester = driver.start(topology(1), freshObjects=False)
    tester.send(lines("to be"), JobFails(), JobFails())
    assert counted(tester) == {"to": 1, "be": 1}
    found = tester.metrics
    assert values(found, "statefx_transactions_total", "outcome") == {"committed": 1, "rolled_back": 2}
    (length,) = values(found, "length", "component").values()
    assert length["count"] == 2


def test_a_task_that_lives_on_counts_an_attempt_that_another_has_failed_once(driver):
    builder = TopologyBuilder("counting")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("count", Counting()).shuffleGrouping("lines")
    builder.setBolt("fails", FailsOnce("value string")).shuffleGrouping("lines")
    tester = driver.start(builder.createTopology(), freshObjects=False)
    for text in ("to be", "to"):
        tester.send(lines(text))
    found = tester.metrics
    assert values(found, "statefx_transactions_total", "outcome") == {"committed": 2, "rolled_back": 2}
    assert counted(tester) == {"to": 2, "be": 1}
    assert values(found, "opened_total", "component") == {}, "the attempt that opened it was rolled back"


def test_totals_go_on_with_other_drivers_and_gauges_begin_anew(driver):
    driver.start(topology()).send(lines("to be"))
    tester = driver.start(topology())
    assert counted(tester) == {"to": 1, "be": 1}
    assert values(tester.metrics, "last", "task") == {}
    tester.send(lines("to"))
    assert counted(tester) == {"to": 2, "be": 1}
    assert set(values(tester.metrics, "last", "task").values()) == {2}


def test_hooks_of_a_commit_count_nothing(driver):
    tester = driver.start(topology(1))
    tester.send(lines("to be"))
    assert values(tester.metrics, "commits_total", "component") == {}
    assert values(tester.metrics, "opened_total", "component") == {"count": 1}


def test_a_restore_takes_counters_back(driver):
    tester = driver.start(topology())
    tester.send(lines("to be"))
    Checkpoint(driver.folder).savepoint("before")
    tester = driver.start(topology())
    tester.send(lines("or not"))
    tester.close()
    Checkpoint(driver.folder).restore("before")
    tester = driver.start(topology())
    assert counted(tester) == {"to": 1, "be": 1}
    tester.send(lines("to"))
    assert counted(tester) == {"to": 2, "be": 1}


def test_renamed_and_dropped_bolts_bring_and_lose_their_counters(driver):
    driver.start(topology()).send(lines("to be"))
    builder = TopologyBuilder("counting")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("tally", Counting(), parallelism=2).shuffleGrouping("lines")
    tester = driver.start(builder.createTopology(), rename={"count": "tally"})
    tester.send(lines("to"))
    assert values(tester.metrics, "words_total", "component", "word") == {("tally", "to"): 2, ("tally", "be"): 1}


def test_a_topology_without_metrics_has_none_in_its_log(driver):
    driver.start().send(lines("to be"))
    written = b"".join(entry.data for entry in read_entries(FolderStorage(driver.folder)))
    assert b"COMMITTING" in written
    assert b"counters" not in written


def test_series_beyond_the_bound_become_others_for_every_reader(driver, monkeypatch, caplog):
    monkeypatch.setattr(counting, "TOTALS_MAX", 3)
    tester = driver.start(topology(1))
    tester.send(lines("to be or not"))
    tester.send(lines("that is to be"))
    expected = {"to": 2, "be": 2, "other": 4}
    assert counted(tester) == expected
    assert total(driver.folder) == expected
    assert counted(driver.start(topology(1))) == expected
    assert sum("as many as there may be" in record.message for record in caplog.records) == 1


def test_names_without_end_are_bounded_as_labels_are():
    """Else each checkpoint of the log has all of them, up to the size that no record may have."""
    totals = {}
    for transaction in range(20):
        names = {f"user_{transaction}_{number}": 1 for number in range(300)}
        labelled = {f'of_{transaction}_{number}{{"a":"x"}}': 1 for number in range(300)}
        totals = counting.then(totals, counting.decided(totals, [("a", names), ("b", labelled)]))
    assert sum(map(len, totals.values())) <= counting.TOTALS_MAX + counting.OTHERS_MAX + 2
    assert sum(totals["a"].values()) == sum(totals["b"].values()) == 20 * 300
    assert totals["a"]["other"] > 0


def test_what_is_added_is_added_once():
    totals = {"a": {"x": 1}}
    added = counting.decided(totals, [("a", {"x": 2, "y": 1}), ("a", {"x": 1}), ("b", {"x": 0.5})])
    assert added == {"a": {"x": 3, "y": 1}, "b": {"x": 0.5}}
    assert counting.then(totals, added) == {"a": {"x": 4, "y": 1}, "b": {"x": 0.5}}
    assert totals == {"a": {"x": 1}}
    assert counting.then(totals, {}) is totals
