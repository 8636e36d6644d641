"""Keys that get another form at a start: it is as if the bolt had had them from the beginning."""

import json
import shutil
import tempfile
from datetime import UTC, datetime, timedelta

import pytest

from statefx import BasicBolt, BatchBolt, Checkpoint, Stateful, TopologyBuilder
from statefx.admin import sorted_files
from statefx.coordinator.launch import Launch
from statefx.errors import BoltError, CheckpointError, CheckpointMismatchError
from statefx.log.log import TransactionLog
from statefx.state import Codec
from statefx.testing import Crash, rows
from statefx.testing.steps import every_crash
from tests.coordinator.changing import START, WORK, held, log_of, send
from tests.testing.topologies import SMALL, Driver


class Lower(BasicBolt):
    """Words as they are: in small letters."""

    outputFields = "word string, size long"

    def execute(self, tup, collector):
        for word in tup.value.split():
            collector.emit((word, len(word)))


class Upper(BasicBolt):
    outputFields = "word string, size long"

    def execute(self, tup, collector):
        for word in tup.value.split():
            collector.emit((word.upper(), len(word)))


class First(Stateful, BatchBolt):
    """Version 1: keeps what it counts in every space that belongs to keys, and some of it for its task alone."""

    outputFields = "word string, count long"
    split, fields = Lower, ("word",)

    def __init__(self, for_task=True):
        self.for_task = for_task

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts, self.last = state, state.map("last")
        self.recent = state.map("recent", ttl="4000 days")
        self.pairs = state.map("pairs")
        self.batches = state.value("batches") if self.for_task else None

    def key(self, tup):
        return tup.word

    def execute(self, tup, collector):
        key = self.key(tup)
        count = self.counts.get(key, 0) + 1
        self.counts.put(key, count)
        self.last.put(key, (count, self.context.txid))
        self.recent.put(key, count)
        self.pairs.put((key, count % 3), count)
        self.timers.set(key, self.context.processingTime + timedelta(seconds=20), count, processing=True)
        self.timers.set(key, self.context.processingTime + timedelta(seconds=400), name="far", processing=True)

    def finishBatch(self, collector):
        if self.batches is not None:
            self.batches.put((self.batches.get() or 0) + 1)

    def onTimer(self, key, at, value, collector):
        self.pairs.put((key, "fired"), 1 + self.pairs.get((key, "fired"), 0))


class Second(First):
    """Version 2: what comes is in capitals."""

    stateVersion = 2
    split = Upper

    def migrateState(self, version, key, value):
        return value

    def new(self, key):
        return key.upper()

    def migrateKey(self, version, key):
        assert version == 1
        match key:
            case ("pairs", (word, rest)):
                return "pairs", (self.new(word), rest)
            case (name, word):
                return name, self.new(word)
        return self.new(key)

    def groupingKey(self, key):
        match key:
            case ("pairs", (word, _)):
                return word
            case (_, word):
                return word
        return key


class Sized(Second):
    """Version 2: a key is the word and its size, and so is its grouping."""

    split, fields = Lower, ("word", "size")

    def key(self, tup):
        return tup.word, tup.size

    def new(self, key):
        return key, len(key)

    def groupingKey(self, key):
        match key:
            case ("pairs", (word, _)):
                return word
            case ("last" | "recent", word):
                return word
        return key


def topology(parallelism, bolt, grouping="fieldsGrouping", name="count"):
    """The bolt, behind what its version gets."""
    builder = TopologyBuilder("keys")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", bolt.split()).shuffleGrouping("lines")
    fields = bolt.fields if grouping.startswith(("fields", "partial")) else ()
    getattr(builder.setBolt(name, bolt, parallelism), grouping)("split", *fields)
    return builder.createTopology()


class Elsewhere:
    """Workers on another machine: they have the checkpoint, and none of this one's temporary files."""

    slots = 3

    def __init__(self, place, patch):
        self.machines, self.pieces = [place / name for name in ("driver", "executor")], 0
        for each in self.machines:
            each.mkdir()
        patch.setattr(tempfile, "tempdir", str(self.machines[0]))

    def run(self, work, pieces, report):
        driver, executor = self.machines
        hidden, tempfile.tempdir, self.pieces = driver.rename(f"{driver}-hidden"), str(executor), len(pieces)
        try:
            return [work(piece, report) for piece in pieces]
        finally:
            tempfile.tempdir = str(hidden.rename(driver))


@pytest.mark.daily(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "now", "pieces"), [(First, 4, 4), (First, 1, 0), (Second, 2, 0), (Second, 3, 0), (Sized, 1, 0)]
)
def test_a_machine_that_does_a_piece_needs_no_file_of_the_driver(place, monkeypatch, version, now, pieces):
    bolt, workers = version(for_task=False), Elsewhere(place, monkeypatch)
    with Driver(place, "rocksdb") as driver, Driver(place, "rocksdb", "same") as same:
        for each in (driver, same):
            send(each, range(6), topology(2, First(for_task=False)), limits=SMALL)
        launch = Launch(
            topology(now, bolt), driver.config, driver.folder, None, caller="submit", dumps=None, rescale=True
        )
        launch.start(workers=workers)
        assert workers.pieces == pieces
        same.start(topology(now, bolt), rescale=True)
        assert held(driver, now) == held(same, now)
        assert not any(path.is_file() for each in workers.machines for path in each.rglob("*"))


def fired(driver, tasks):
    return sum(value for own in held(driver, tasks) for key, value in own["pairs"] if key[1] == "fired")


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("bolt", "was", "now", "provider"),
    [
        (Second, 2, 2, "rocksdb"),
        (Sized, 2, 3, "memory"),
        (Sized, 1, 1, "memory"),
    ],
)
@pytest.mark.slow
def test_it_is_as_if_the_bolt_had_had_these_keys_from_the_beginning(place, provider, monkeypatch, bolt, was, now):
    monkeypatch.setattr(sorted_files, "_SORTED_BYTES", 4000)  # several runs of each task
    first, second = First(was == now), bolt(was == now)
    with Driver(place, provider) as driver, Driver(place, provider, "same") as same:
        send(driver, range(6), topology(was, first), limits=SMALL)
        send(same, range(6), topology(now, second), limits=SMALL)
        with driver.start(topology(now, second), now=START + timedelta(seconds=36), rescale=was != now):
            assert held(driver, now) == held(same, now)
        assert log_of(driver).topology.stateful["count"].state_version == 2
        send(driver, range(6, 12), topology(now, second), limits=SMALL)
        send(same, range(6, 12), topology(now, second), limits=SMALL)
        assert held(driver, now) == held(same, now)
        assert fired(driver, now) == fired(same, now) > 3, "timers of before have fired under their new keys"


@pytest.mark.slow
def test_a_start_that_was_killed_has_migrated_all_keys_or_none(place, stride):
    second = topology(3, Second(for_task=False), name="tally")
    with Driver(place) as driver, Driver(place, name="same") as same:
        send(driver, range(5), topology(2, First(for_task=False)))
        send(same, range(6), second)
        shutil.copytree(driver.folder, place / "before")
        changes = {"rescale": True, "rename": {"count": "tally"}, "now": START + timedelta(seconds=35)}
        seen = []
        for at in every_crash(max(stride // 2, 1)):  # a start has few steps
            shutil.rmtree(driver.folder)
            shutil.copytree(place / "before", driver.folder)
            try:
                driver.start(second, crash_at=at, **changes)
            except Crash:
                known = log_of(driver).topology.stateful
                found = known.get("tally") or known["count"]
                seen.append((found.state_version, found.parallelism))
                with driver.start(second, **changes) as tester:
                    tester.send(WORK[5])
                assert held(driver, 3, "tally") == held(same, 3, "tally")
                continue
            break
        assert set(seen) == {(1, 2), (2, 3)}
        assert seen == sorted(seen)


class Third(Second):
    """Version 3, for checkpoints of versions 1 and 2: values are in a list, and keys have a mark."""

    stateVersion = 3

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts.put(f"{tup.word}!", [self.counts.get(f"{tup.word}!", [0])[0] + 1])

    def finishBatch(self, collector):
        pass

    def onTimer(self, key, at, value, collector):
        pass

    def migrateState(self, version, key, value):
        assert type(key) is tuple or (key.endswith("!") and key == key.upper())
        return [value]

    def migrateKey(self, version, key):
        if version == 1:
            key = super().migrateKey(1, key)
        match key:
            case ("pairs", (word, rest)):
                return "pairs", (f"{word}!", rest)
            case (name, word):
                return name, f"{word}!"
        return f"{key}!"

    def groupingKey(self, key):
        found = super().groupingKey(key)
        return found.removesuffix("!")


@pytest.mark.slow
def test_versions_may_be_skipped_and_values_are_migrated_under_their_new_keys(place):
    shown = []
    for name, versions in (("skipped", [First]), ("both", [First, Second])):
        with Driver(place, name=name) as driver:
            for number, version in enumerate(versions):
                send(driver, range(3 * number, 3 * number + 3), topology(2, version()), limits=SMALL)
            send(driver, range(3 * len(versions), 9), topology(2, Third()), limits=SMALL)
            with Checkpoint(driver.folder).state("count", migrate=Third().migrateState) as state:
                shown.append(dict(state.items()))
    assert shown[0] == shown[1]
    assert all(key.endswith("!") and type(value) is list for key, value in shown[0].items())
    assert sum(value for [value] in shown[0].values()) == sum(
        len(text.split()) for w in WORK[:9] for (text,) in w["lines"]
    )


@pytest.mark.slow
def test_where_no_key_belongs_to_a_task_all_stay_where_they_are(place):
    for number, grouping in enumerate(["globalGrouping", "allGrouping", "shuffleGrouping"]):
        with Driver(place, "rocksdb", f"driver{number}") as driver, Driver(place, "rocksdb", f"same{number}") as same:
            send(driver, range(6), topology(2, First(), grouping=grouping), limits=SMALL)
            send(same, range(6), topology(2, Second(), grouping=grouping), limits=SMALL)
            with driver.start(topology(2, Second(), grouping=grouping), now=START + timedelta(seconds=36)):
                assert held(driver, 2) == held(same, 2)


class Words(First):
    """Version 1: a word's count."""

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts.put(tup.word, self.counts.get(tup.word, 0) + 1)

    def finishBatch(self, collector):
        pass


class Parts(Words):
    """Version 2: the count of a part of it. Where keys belong has not changed, so that nothing has to be said."""

    stateVersion = 2
    migrateState = Second.migrateState

    def migrateKey(self, version, key):
        return key, "whole"


@pytest.mark.slow
def test_keys_that_belong_where_they_lie_need_no_groupingkey(place):
    with Driver(place) as driver:
        send(driver, range(6), topology(2, Words()))
        before = held(driver, 2)
        with driver.start(topology(2, Parts())):
            assert [{(key, "whole"): n for key, n in own[None]} for own in before] == [
                dict(o[None]) for o in held(driver, 2)
            ]


class Ruled(Stateful, BatchBolt):
    """Has rules that all tasks hold alike, and timers of event time."""

    def initState(self, state):
        self.counts, self.rules = state, state.broadcast("rules")

    def executeBroadcast(self, tup, collector):
        self.rules.put(tup.name, tup.value)

    def execute(self, tup, collector):
        self.counts.put(tup.word, self.rules.get(self.rule, "none"))
        self.timers.set(tup.word, datetime(2026, 1, 1, tzinfo=UTC))

    rule = "on"

    def onTimer(self, key, at, value, collector):
        self.counts.put(key, "fired")


class RuledCapitals(Ruled):
    stateVersion, rule = 2, "ON"

    def migrateState(self, version, key, value):
        return value

    def migrateKey(self, version, key):
        return (key[0], key[1].upper()) if type(key) is tuple else key.upper()

    def groupingKey(self, key):
        return key


@pytest.mark.slow
@pytest.mark.parametrize(("now", "provider"), [(2, "memory"), (3, "rocksdb")])
def test_what_is_broadcast_has_other_keys_in_all_tasks(place, provider, now):
    def ruled(parallelism, bolt):
        builder = TopologyBuilder("ruled")
        builder.setStream("words", rows("word string, at timestamp"), timestamp="at")
        builder.setStream("rules", rows("name string, value string"))
        declared = builder.setBolt("count", bolt, parallelism)
        declared.fieldsGrouping("words", "word").broadcastGrouping("rules")
        return builder.createTopology()

    at = datetime(2025, 6, 1, tzinfo=UTC)
    words = [(f"w{number}", at) for number in range(8)]
    capitals = [(word.upper(), at) for word, at in words]
    with Driver(place, provider) as driver:
        with driver.start(ruled(2, Ruled())) as tester:
            tester.send({"words": words, "rules": [("on", "a"), ("off", "b")]})
        with driver.start(ruled(now, RuledCapitals()), rescale=now != 2) as tester:
            for task in range(now):
                with Checkpoint(driver.folder).state("count", task, map="rules") as rules:
                    assert dict(rules.items()) == {"ON": "a", "OFF": "b"}
            tester.send({"words": capitals})
            assert tester.state("count") == {word: "a" for word, _ in capitals}
            later = datetime(2026, 2, 1, tzinfo=UTC)
            tester.send({"words": [("late", later)]})
            tester.send({"words": [("late", later)]})
            assert tester.state("count") == {**{word: "fired" for word, _ in capitals}, "late": "fired"}


class Backwards(Codec):
    """Text keys, from their last letter on."""

    name = "backwards-1"

    def encode_key(self, key):
        return key[::-1].encode()

    def decode_key(self, data):
        return data.decode()[::-1]

    def encode_value(self, value):
        return json.dumps(value).encode()

    def decode_value(self, data):
        return json.loads(data)


@pytest.mark.slow
def test_keys_of_a_codec_of_the_users_own(place):
    config = {"topology.state.provider.config": {"components": {"count": {"codec": f"{__name__}:Backwards"}}}}
    with Driver(place) as driver, Driver(place, name="same") as same:
        send(driver, range(6), topology(2, Timed()), config=config)
        send(same, range(6), topology(2, TimedCapitals()), config=config)
        send(driver, range(6, 9), topology(2, TimedCapitals()), config=config)
        send(same, range(6, 9), topology(2, TimedCapitals()), config=config)
        assert held(driver, 2) == held(same, 2)
        assert max(count for own in held(driver, 2) for _, count in own[None]) > 100


class Timed(Stateful, BatchBolt):
    split, fields = Lower, ("word",)

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts.put(tup.word, self.counts.get(tup.word, 0) + 1)
        self.timers.set(tup.word, self.context.processingTime + timedelta(seconds=20), 1, processing=True)

    def onTimer(self, key, at, value, collector):
        self.counts.put(key, self.counts.get(key) + 100)


class TimedCapitals(Timed):
    stateVersion = 2
    split = Upper
    migrateState, migrateKey = RuledCapitals.migrateState, RuledCapitals.migrateKey
    groupingKey = RuledCapitals.groupingKey


@pytest.mark.slow
def test_a_fork_has_new_keys_and_its_original_has_the_old_ones(place):
    with Driver(place) as driver, Driver(place, name="copy") as copy:
        send(driver, range(6), topology(2, First()))
        before = held(driver, 2)
        shutil.copytree(driver.folder, copy.folder)
        with copy.start(topology(2, Second()), adopt="fork", now=START + timedelta(seconds=42)) as tester:
            tester.send(WORK[6])
        assert all(key == key.upper() for own in held(copy, 2) for key, _ in own[None])
        assert held(driver, 2) == before
        send(driver, [6], topology(2, First()))


# ---- what is refused


def refused(driver, bolt, error, says, parallelism=2, **more):
    """A start that raises, and has changed nothing: the former version goes on."""
    before, generation = held(driver, 2), log_of(driver).generation
    with pytest.raises(error, match=says):
        driver.start(topology(parallelism, bolt, **more), rescale=parallelism != 2)
    assert held(driver, 2) == before
    assert log_of(driver).generation == generation, "nobody was fenced"


class Halved(Parts):
    groupingKey = Second.groupingKey

    def migrateKey(self, version, key):
        return key[:1]


class Capitals(Parts):
    split = Upper

    def migrateKey(self, version, key):
        return key.upper()


class Told(Capitals):
    def groupingKey(self, key):
        return key


class Wrong(Capitals):
    """Some of its keys stay, and it says that these belong elsewhere."""

    def migrateKey(self, version, key):
        return key.upper() if key == "w1" else key

    def groupingKey(self, key):
        return f"{key} "


class Raising(Capitals):
    def migrateKey(self, version, key):
        raise ValueError("no such key")


class NoKey(Raising):
    def migrateKey(self, version, key):
        return [key]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bolt", "error", "says"),
    [
        (Halved, CheckpointError, r"migrateKey makes one key of '..?' in task \d and '..?' in task \d.*, which is '.'"),
        (Capitals, CheckpointError, r"its key '.*' lies in task \d, .* Define groupingKey\(self, key\) in the bolt"),
        (
            Wrong,
            CheckpointError,
            r"its key '.*' lies in task \d, and by what groupingKey returns .* to task \d",
        ),
        (
            Raising,
            BoltError,
            r"'count', on the driver, hook migrateKey, .*ValueError: no such key.*; of key '.*'. Nothing",
        ),
        (NoKey, BoltError, r"hook migrateKey, .*key is a list, which can't be a key of state"),
    ],
)
def test_what_can_not_be_is_told_and_nothing_is_changed(place, bolt, error, says):
    with Driver(place) as driver:
        send(driver, range(6), topology(2, Words()))
        refused(driver, bolt(), error, says)
        send(driver, [6], topology(2, Words()))


class BySize(Parts):
    fields = ("word", "size")


@pytest.mark.slow
def test_a_key_must_be_told_where_nothing_shows_it(place):
    with Driver(place) as driver:
        send(driver, range(6), topology(2, Words()))
        refused(
            driver, BySize(), CheckpointError, r"grouped otherwise than before, .*Define groupingKey.*\(word, size\)"
        )
        with pytest.raises(CheckpointMismatchError, match=r"gets its rows by partialKey"):
            driver.start(topology(2, Capitals(), grouping="partialKeyGrouping"))
    with Driver(place, name="one") as driver:
        send(driver, range(6), topology(1, Words()))
        with pytest.raises(CheckpointError, match=r"it has had one task, .*Define groupingKey"):
            driver.start(topology(2, Capitals()), rescale=True)
        with pytest.raises(CheckpointMismatchError, match=r"start with rescale=True"):
            driver.start(topology(2, Capitals()))
        send(driver, [6], topology(1, Capitals()))
    with Driver(place, name="two") as driver:
        send(driver, range(2), topology(2, Words(), grouping="partialKeyGrouping"))
        with pytest.raises(CheckpointError, match=r"rows by partialKey\(string\), and only fieldsGrouping"):
            driver.start(topology(2, Capitals(), grouping="partialKeyGrouping"))


class ValuesForgotten(Words):
    stateVersion = 2
    migrateKey = Capitals.migrateKey


def test_without_migratestate_it_is_asked_for(place):
    with Driver(place) as driver:
        send(driver, range(2), topology(2, Words()))
        says = r"declare migrateState\(self, version, key, value\)"
        refused(driver, ValuesForgotten(), CheckpointMismatchError, says)


class SameName(Second):
    def migrateKey(self, version, key):
        return key.upper() if type(key) is str else key[1]


@pytest.mark.slow
def test_of_a_map_the_name_must_come_back(place):
    with Driver(place) as driver:
        send(driver, range(2), topology(2, First()))
        refused(driver, SameName(), BoltError, r"it must return \('last', the new key\)")


@pytest.mark.slow
def test_a_transaction_that_the_former_version_has_begun_is_ended_by_it(place):
    with Driver(place) as driver:
        send(driver, range(2), topology(2, Words()))
        at = len(driver.start(topology(2, Words())).steps)
        with pytest.raises(Crash):
            driver.start(topology(2, Words()), crash_at=at + 2).send(WORK[2])
        refused(driver, Capitals(), CheckpointError, "PREPARING.*start the version that gives state other keys")
        with driver.start(topology(2, Words())):
            pass
        send(driver, [2], topology(2, Told()))


@pytest.mark.slow
def test_a_driver_that_has_gone_on_meanwhile_is_not_fenced(place):
    with Driver(place) as driver:
        send(driver, range(2), topology(2, Words()))
        running = driver.start(topology(2, Words()))
        launch = Launch(topology(2, Told()), driver.config, driver.folder, None, caller="submit", dumps=None)

        def opened(storage):
            if running.txid == 2:
                running.send(WORK[2])
            return TransactionLog(storage)

        with pytest.raises(CheckpointError, match="has gone on meanwhile: stop its topology, and start the version"):
            launch.start(opened)
        running.send(WORK[3])


@pytest.mark.slow
def test_a_checkpoint_that_was_restored_in_this_moment_is_not_gone_on_with(place):
    """Else its keys would be of version 1, in a checkpoint of version 2."""
    with Driver(place) as driver:
        send(driver, range(2), topology(2, Words()))
        Checkpoint(driver.folder).savepoint("one")
        launch = Launch(topology(2, Told()), driver.config, driver.folder, None, caller="submit", dumps=None)
        opens = []

        def opened(storage):
            opens.append(storage)
            if len(opens) == 2:  # the keys are written, and no generation is taken yet
                Checkpoint(driver.folder).restore("one")
            return TransactionLog(storage)

        with pytest.raises(CheckpointMismatchError, match="another one has changed the checkpoint at the same time"):
            launch.start(opened)
        assert len(opens) == 2


def test_a_bolt_that_has_kept_nothing_has_no_keys(place):
    with Driver(place) as driver:
        with driver.start(topology(2, Words())):
            pass
        send(driver, range(2), topology(2, Capitals()))
        assert log_of(driver).topology.stateful["count"].state_version == 2
