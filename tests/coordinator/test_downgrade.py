"""State that is written as an older version of its bolt reads it: that goes on as if it had run all the time."""

from datetime import timedelta

import pytest

from statefx import BatchBolt, Checkpoint, Stateful, TopologyBuilder
from statefx.command import main
from statefx.errors import BoltError, CheckpointError, CheckpointMismatchError, ConfigError
from statefx.testing import rows
from tests.coordinator import changing
from tests.coordinator.changing import log_of
from tests.testing.topologies import SMALL, Driver, Split


class One(Stateful, BatchBolt):
    """Version 1: numbers."""

    outputFields = "word string, count long"

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts, self.recent = state, state.map("recent", ttl="4000 days")
        self.seen, self.total = state.list("seen"), state.value("total")

    def key(self, word):
        return word

    def form(self, number):
        return number

    def number(self, value):
        return value or 0

    def execute(self, tup, collector):
        key = self.key(tup.word)
        count = self.number(self.counts.get(key)) + 1
        for entries in (self.counts, self.recent):
            entries.put(key, self.form(count))
        self.seen.append(self.form(count))
        self.total.put(self.form(self.number(self.total.get()) + 1))
        self.timers.set(key, self.context.processingTime + timedelta(seconds=20), "due", processing=True)

    def onTimer(self, key, at, value, collector):
        assert (type(key), value) == (type(self.key("")), "due")
        self.counts.put(key, self.form(self.number(self.counts.get(key)) + 100))


class Two(One):
    """Version 2: lists."""

    stateVersion = 2

    def form(self, number):
        return [number]

    def number(self, value):
        return 0 if value is None else value[0]

    def migrateState(self, version, key, value):
        assert version == 1
        return [value]

    def downgradeState(self, version, key, value):
        assert version == 1
        return value[0]


class Three(Two):
    """Version 3: texts."""

    stateVersion = 3

    def form(self, number):
        return str(number)

    def number(self, value):
        return int(value or 0)

    def migrateState(self, version, key, value):
        return str(value if version == 1 else value[0])

    def downgradeState(self, version, key, value):
        return int(value) if version == 1 else [int(value)]


class Tuples(Two):
    """Version 2, whose keys have a part more."""

    def key(self, word):
        return word, "word"

    def migrateKey(self, version, key):
        name, word = key if type(key) is tuple else (None, key)
        return (word, "word") if name is None else (name, (word, "word"))

    def downgradeKey(self, version, key):
        assert version == 1
        match key:
            case (name, (word, "word")):
                return name, word
            case (word, "word"):
                return word

    def groupingKey(self, key):
        return key[1][0] if type(key[1]) is tuple else key[0]


def word_of(key):
    """What a key of version 1 is grouped by; of so few keys nothing is shown."""
    return key[1] if type(key) is tuple else key


def topology(bolt, parallelism=2):
    builder = TopologyBuilder("versions")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    builder.setBolt("count", bolt, parallelism).fieldsGrouping("split", "word")
    return builder.createTopology()


def send(driver, numbers, bolt, **more):
    changing.send(driver, numbers, topology(bolt), **more)


def held(driver):
    return changing.held(driver, 2)


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(("newer", "provider"), [([Two], "rocksdb"), ([Two, Three], "memory"), ([Tuples], "rocksdb")])
def test_the_older_code_goes_on_as_if_it_had_run_all_the_time(place, provider, newer):
    with Driver(place, provider) as driver, Driver(place, provider, "same") as same:
        bolts = [One, *newer]
        for number, bolt in enumerate(bolts):  # so that values of all versions are there
            send(driver, range(2 * number, 2 * number + 2), bolt(), limits=SMALL)
        at = 2 * len(bolts)
        send(same, range(at), One(), limits=SMALL)
        done = Checkpoint(driver.folder).downgrade("count", newer[-1](), 1, groupingKey=word_of)
        assert (done.was, done.version) == (newer[-1].stateVersion, 1)
        assert done.keys > 20
        assert held(driver) == held(same)
        send(driver, range(at, at + 3), One(), limits=SMALL)
        send(same, range(at, at + 3), One(), limits=SMALL)
        assert held(driver) == held(same)
        assert max(n for _, n in held(driver)[0][None]) > 100, "timers have fired"
        send(driver, range(at + 3, at + 5), newer[-1](), limits=SMALL)  # and the newer one once more
        assert log_of(driver).topology.stateful["count"].state_version == newer[-1].stateVersion


@pytest.mark.slow
def test_to_a_version_between(place):
    with Driver(place) as driver, Driver(place, name="same") as same:
        for number, (bolt, other) in enumerate([(One, One), (Two, Two), (Three, Two)]):
            send(driver, [number], bolt())
            send(same, [number], other())
        Checkpoint(driver.folder).downgrade("count", Three(), 2)
        send(driver, [3], Two())
        send(same, [3], Two())
        for folder in (driver.folder, same.folder):
            with Checkpoint(folder).state("count", migrate=Two().migrateState) as state:
                assert all(type(value) is list for _, value in state.items())
        with (
            Checkpoint(driver.folder).state("count", migrate=Two().migrateState) as mine,
            Checkpoint(same.folder).state("count", migrate=Two().migrateState) as theirs,
        ):
            assert dict(mine.items()) == dict(theirs.items())


# ---- what is refused


@pytest.mark.slow
def test_the_refusal_of_an_older_version_names_the_call_and_the_call_does_it(place):
    with Driver(place) as driver:
        send(driver, range(2), Two())
        with pytest.raises(
            CheckpointMismatchError, match=r"Checkpoint\(location\).downgrade\('count', bolt, 1\), .*savepoint"
        ):
            driver.start(topology(One()))
        assert "count has version 1, and had 2" in str(Checkpoint(driver.folder).downgrade("count", Two(), 1))
        assert "count has version 1 already" in str(Checkpoint(driver.folder).downgrade("count", Two(), 1))
        send(driver, [2], One())


class Sized(Two):
    def __init__(self, size):
        self.size = size


class Raising(Two):
    def downgradeState(self, version, key, value):
        raise ValueError(f"{key!r} has no such form")


class Joining(Tuples):
    def downgradeKey(self, version, key):
        return "all" if type(key[1]) is str else (key[0], "all")


class Elsewhere(Tuples):
    def downgradeKey(self, version, key):
        match key:
            case (name, (word, "word")):
                return name, word.upper()
            case (word, "word"):
                return word.upper()


class HasNoDowngrade(One):
    stateVersion = 2


class HasMigrateKeyOnly(HasNoDowngrade):
    migrateKey = Tuples.migrateKey
    downgradeState = Two.downgradeState


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bolt", "version", "error", "says"),
    [
        (
            HasNoDowngrade(),
            1,
            ConfigError,
            r"no downgradeState: define def downgradeState\(self, version, key, value\)",
        ),
        (
            HasMigrateKeyOnly(),
            1,
            ConfigError,
            r"has no downgradeKey: it has a migrateKey, .*\(self, version, key\); or",
        ),
        (Tuples, 1, ConfigError, "give an object of the bolt's class"),
        (Tuples(), 0, ConfigError, "version must be the stateVersion of the older code, from 1, got 0"),
        (Tuples(), 3, CheckpointError, "'count' in .* has version 2: a start with a bolt of version 3 upgrades it"),
        (
            Three(),
            1,
            CheckpointMismatchError,
            "has version 2, and Three has stateVersion 3: give the bolt that ran last",
        ),
        (Joining(), 1, CheckpointError, r"downgradeKey makes one key of .* in task \d and .*"),
        (
            Elsewhere(),
            1,
            CheckpointError,
            r"lies in task \d.*belongs to task \d.*Give groupingKey=, a function that returns",
        ),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Stateful) else "",
)
def test_what_can_not_be_is_told_and_nothing_is_changed(place, bolt, version, error, says):
    with Driver(place) as driver:
        send(driver, range(4), Tuples())
        before, generation = held(driver), log_of(driver).generation
        with pytest.raises(error, match=says):
            Checkpoint(driver.folder).downgrade(
                "count", bolt, version, groupingKey=str if type(bolt) is Joining else None
            )
        assert (held(driver), log_of(driver).generation) == (before, generation)
        send(driver, [4], Tuples())


@pytest.mark.slow
def test_what_a_hook_raises_names_it(place):
    with Driver(place) as driver:
        send(driver, range(2), Two())
        with pytest.raises(
            BoltError, match=r"'count', on the driver, hook downgradeState, .*ValueError: .* no such form"
        ):
            Checkpoint(driver.folder).downgrade("count", Raising(), 1)
        send(driver, [2], Two())


@pytest.mark.slow
def test_keys_of_other_tasks_are_told_by_groupingkey(place):
    with Driver(place) as driver:
        send(driver, range(4), Tuples())
        Checkpoint(driver.folder).downgrade("count", Elsewhere(), 1, groupingKey=word_of)
        words = {key for own in held(driver) for key, _ in own[None]}
        assert words
        assert words == {word.upper() for word in words}


@pytest.mark.slow
def test_from_a_shell(place, capsys):
    with Driver(place) as driver:
        send(driver, range(2), Two())
        words = ["downgrade", str(driver.folder), "count=1", f"{__name__}:Two"]
        assert main(words) == 2
        assert "Nothing was changed" in capsys.readouterr().err
        assert main([*words[:3], f"{__name__}:Sized", '{"length": 1}', "--yes"]) == 2
        assert "can't be made with ['length']" in capsys.readouterr().err
        assert main([*words[:2], "count", words[3], "--yes"]) == 2
        assert "write it as in count=1" in capsys.readouterr().err
        assert main([*words[:3], f"{__name__}:Sized", '{"size": 1}', "--by-key", "--table", "--yes"]) == 0
        assert "count has version 1, and had 2" in capsys.readouterr().out
        send(driver, [2], One())
