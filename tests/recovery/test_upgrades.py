"""A bolt's values change their form from run to run, and crashes come in between."""

import contextlib
from typing import Any

import pytest

from statefx import Checkpoint, Topology, TopologyBuilder
from statefx.errors import BoltError, CheckpointMismatchError, FailedException
from statefx.log.log import read_state
from statefx.storage import FolderStorage
from statefx.testing import Crash, TopologyTester, rows
from tests.bolts import WithState
from tests.testing.topologies import SMALL, Driver, Lines, Split, lines, words

FIRST, SECOND, THIRD = lines("to be or not to be"), lines("that is to be"), lines("the question is that")
STEPS_MAX = 100


class One(WithState):
    """Version 1: a word's count is a number."""

    outputFields = "word string, count long"

    def execute(self, tup, collector):
        count = self.number(self.state.get(tup.word)) + 1
        self.state.put(tup.word, self.form(count))
        collector.emit((tup.word, count))

    def preCommit(self, txid):
        self.context.config["journal"].append((txid, sorted(map(self.number, dict(self.state.items()).values()))))

    def preRollback(self):
        self.preCommit(-self.context.txid)

    def form(self, count):
        return count

    def number(self, value):
        return value or 0


class Two(One):
    """Version 2: it is in a list."""

    stateVersion = 2

    def form(self, count):
        return [count]

    def number(self, value):
        return value[0] if value else 0

    def migrateState(self, version, key, value):
        assert (version, type(key), type(value)) == (1, str, int)
        return [value]


class Four(One):
    """Version 4: it is a text, with the word. There was no version 3."""

    stateVersion = 4

    def execute(self, tup, collector):
        word, count = self.state.get(tup.word, (tup.word, "0"))
        assert word == tup.word
        self.state.put(word, (word, str(int(count) + 1)))
        collector.emit((word, int(count) + 1))

    def number(self, value):
        return int(value[1])

    def migrateState(self, version, key, value):
        assert (version, type(value)) in [(1, int), (2, list)]
        return key, str(value if version == 1 else value[0])


class TwoWithout(One):
    stateVersion = 2


class TwoRaising(Two):
    error: Exception = ValueError("no such form")

    def migrateState(self, version, key, value):
        raise self.error


class TwoFailing(TwoRaising):
    def migrateState(self, version, key, value):
        if self.context.attempt == 0:
            raise FailedException("not at the first attempt")
        return [value]

    def preRollback(self):
        pass


def topology(bolt: One, *, keyed: bool = True) -> Topology:
    """Where rows aren't keyed, nothing is read ahead of the bolt."""
    builder = TopologyBuilder("counts")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    if keyed:
        builder.setBolt("count", bolt, parallelism=2).fieldsGrouping("split", "word")
    else:
        builder.setBolt("count", bolt).globalGrouping("split")
    return builder.createTopology()


def numbers(tester: TopologyTester, bolt: One) -> dict[str, int]:
    with Checkpoint(tester._folders.location).state("count", migrate=bolt.migrateState) as view:
        return {word: bolt.number(value) for word, value in view.items()}


def written(driver: Driver) -> dict[str, Any]:
    with Checkpoint(driver.folder).state("count") as view:
        return dict(view.items())


def sums(*works: Lines) -> list[int]:
    return sorted(words(works).values())


@pytest.mark.slow
def test_state_is_upgraded_run_by_run(driver, provider):
    driver.start(topology(One()), limits=SMALL).send(FIRST)
    assert written(driver) == words([FIRST])

    tester = driver.start(topology(Two()), limits=SMALL)
    assert read_state(FolderStorage(driver.folder)).topology.stateful["count"].state_version == 2
    tester.send(SECOND)
    assert ("to", 3) in tester.emitted("count")
    assert written(driver) == {"to": [3], "be": [3], "or": 1, "not": 1, "that": [1], "is": [1]}

    tester = driver.start(topology(Four()), limits=SMALL)
    tester.send(THIRD)
    assert numbers(tester, Four()) == words([FIRST, SECOND, THIRD])
    assert written(driver) == {
        "be": [3],
        "to": [3],
        "or": 1,
        "not": 1,
        **{word: (word, str(n)) for word, n in {"that": 2, "is": 2, "the": 1, "question": 1}.items()},
    }, "what was not put anew is as it was"


@pytest.mark.slow
def test_a_crash_in_the_first_transaction_after_an_upgrade(place, provider, stride):
    """At moments of it: rolled back or forward, and gone on with as if nothing had been."""
    outcomes = set()
    for at in range(1, STEPS_MAX, stride):
        with Driver(place, provider, f"at-{at}") as driver:
            driver.start(topology(One()), limits=SMALL).send(FIRST)
            crashed = False
            try:
                driver.start(topology(Four()), crash_at=at, limits=SMALL).send(SECOND)
            except Crash:
                crashed = True
            tester = driver.start(topology(Four()), limits=SMALL)
            outcomes |= {each["rolled"] for each in tester.recoveries}
            if tester.txid == 1:
                tester.send(SECOND)
            assert numbers(tester, Four()) == words([FIRST, SECOND])
            tester.send(THIRD)
            assert numbers(tester, Four()) == words([FIRST, SECOND, THIRD])
        if not crashed:
            break
    assert not crashed
    assert outcomes == {"back", "forward"}


@pytest.mark.slow
def test_a_transaction_of_the_old_version_is_ended_by_the_new_one(place, provider):
    """It was written as numbers, and is committed, or rolled back, by a bolt that has lists."""
    with Driver(place, provider, "rehearsal") as driver:
        rehearsal = driver.start(topology(One()))
        rehearsal.send(FIRST)
        rehearsal.send(SECOND)
        steps = rehearsal.steps
    for moment, rolled, expected in [
        ("after COMMITTING(2, 0)", "forward", (FIRST, SECOND)),
        ("before COMMITTING(2, 0)", "back", (FIRST,)),
    ]:
        with Driver(place, provider, rolled) as driver:
            tester = driver.start(topology(One()), crash_at=steps.index(moment) + 1)
            tester.send(FIRST)
            driver.journal.clear()
            with pytest.raises(Crash):
                tester.send(SECOND)
            tester = driver.start(topology(Two()))
            assert [each["rolled"] for each in tester.recoveries] == [rolled]
            told = {abs(txid) for txid, _ in driver.journal}
            assert told == {2}, "its hook was called in the new version, and could read the state"
            assert sorted(n for _, found in driver.journal for n in found) == sums(*expected)
            assert written(driver) == words(expected)
            tester.send(THIRD)
            assert numbers(tester, Two()) == words([*expected, THIRD])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (One(), TwoWithout(), "has stateVersion 2, .* was written with 1: declare migrateState"),
        (Two(), One(), "has stateVersion 1, .* by a newer version, 2: run the version of the topology that wrote it"),
        (Four(), Two(), "has stateVersion 2, .* by a newer version, 4"),
    ],
)
def test_what_cannot_be_upgraded_is_refused(driver, before, now, says):
    driver.start(topology(before)).send(FIRST)
    with pytest.raises(CheckpointMismatchError, match=f"bolt 'count' {says}"):
        driver.start(topology(now))
    tester = driver.start(topology(before))
    tester.send(SECOND)


def test_a_first_run_may_have_any_version_and_need_not_migrate(driver):
    for work in (FIRST, SECOND):
        tester = driver.start(topology(TwoWithout()))
        tester.send(work)
    assert written(driver) == words([FIRST, SECOND])


@pytest.mark.slow
def test_migrate_state_that_was_taken_out_too_early_is_missed(driver, provider):
    driver.start(topology(One())).send(FIRST)
    driver.start(topology(Two())).send(lines("other"))
    with pytest.raises(BoltError, match=r"hook migrateState.*TwoWithout has no migrateState.*version 1 wrote") as e:
        driver.start(topology(TwoWithout())).send(FIRST)
    assert (e.value.hook, e.value.component, e.value.txid) == ("migrateState", "count", 3)


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [True, False])
def test_what_migrate_state_raises_names_it(driver, provider, keyed):
    driver.start(topology(One(), keyed=keyed)).send(FIRST)
    with pytest.raises(BoltError, match="hook migrateState, transaction 2: ValueError: no such form") as told:
        driver.start(topology(TwoRaising(), keyed=keyed)).send(FIRST)
    cause, _, line = told.value.cause.partition(f" ({__file__}:")
    assert line.endswith(", in migrateState)")
    assert (told.value.hook, told.value.component, cause) == ("migrateState", "count", "ValueError: no such form")
    tester = driver.start(topology(Two(), keyed=keyed))
    tester.send(FIRST)
    assert numbers(tester, Two()) == words([FIRST, FIRST])


class TwoCareless(TwoRaising):
    def execute(self, tup, collector):
        with contextlib.suppress(ValueError, BoltError):
            self.state.get(tup.word)
        self.state.put(tup.word, [1])


@pytest.mark.slow
def test_a_value_that_could_not_be_brought_up_to_date_is_not_overwritten(driver, provider):
    driver.start(topology(One(), keyed=False)).send(FIRST)
    with pytest.raises(BoltError, match="migrateState"):
        driver.start(topology(TwoCareless(), keyed=False)).send(FIRST)
    assert written(driver) == words([FIRST])


def test_migrate_state_may_fail_the_transaction_and_not_the_query(driver):
    driver.start(topology(One())).send(FIRST)
    tester = driver.start(topology(TwoFailing()))
    assert tester.send(SECOND).progress.attempt == 1
    assert numbers(tester, Two()) == words([FIRST, SECOND])


def test_an_own_codec_is_upgraded_too(driver, provider):
    config = {"topology.state.provider.config": {"codec": "tests.testing.codecs:Marked"}}
    driver.start(topology(One()), config=config).send(FIRST)
    tester = driver.start(topology(Two()), config=config)
    tester.send(SECOND)
    assert numbers(tester, Two()) == words([FIRST, SECOND])
