"""State that is given to other tasks: it is as if the bolt had had them from the beginning."""

from datetime import timedelta
from pathlib import Path

import pytest

from statefx import BatchBolt, Checkpoint, Stateful, TopologyBuilder
from statefx.coordinator.launch import Launch
from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError, StatefxError
from statefx.log.log import read_state
from statefx.storage import FolderStorage
from statefx.testing import rows
from tests.coordinator.changing import held, send
from tests.testing.topologies import SMALL, Driver, Split, lines


class Everything(Stateful, BatchBolt):
    """Keeps what it counts in every space that belongs to keys, and what all tasks hold alike."""

    outputFields = "word string, count long"

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts, self.last = state, state.map("last")
        self.recent = state.map("recent", ttl="30 seconds")
        self.pairs = state.map("pairs")
        self.lines = state.broadcast("lines")

    def executeBroadcast(self, tup, collector):
        self.lines.put(tup.value, self.lines.get(tup.value, 0) + 1)

    def execute(self, tup, collector):
        count = self.counts.get(tup.word, 0) + 1
        self.counts.put(tup.word, count)
        self.last.put(tup.word, (tup.word, self.context.txid))
        self.recent.put(tup.word, count)
        self.pairs.put((tup.word, count % 3), count)
        self.timers.set(tup.word, self.context.processingTime + timedelta(seconds=20), count, processing=True)
        self.timers.set(tup.word, self.context.processingTime + timedelta(seconds=400), name="far", processing=True)

    def onTimer(self, key, at, value, collector):
        fired = self.last.get(("fired", key), 0)
        self.last.delete(("fired", key))
        self.pairs.put((key, "fired"), fired + 1 + self.pairs.get((key, "fired"), 0))


class Plain(Stateful, BatchBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.word, self.state.get(tup.word, 0) + 1)


class Misplaced(Plain):
    """Its keys have nothing to do with its grouping."""

    def execute(self, tup, collector):
        self.state.put(f"length {len(tup.word)}", 1)
        self.state.put(f"first {tup.word[0]}", 1)


class Upside(Plain):
    """Its keys are what it is grouped by, the other way round."""

    def execute(self, tup, collector):
        self.state.put(tup.word[::-1], self.state.get(tup.word[::-1], 0) + 1)


class Listing(Plain):
    def initState(self, state):
        self.list = state.list("all")

    def execute(self, tup, collector):
        self.list.append(tup.word)


def topology(parallelism, bolt=Everything, grouping="fieldsGrouping"):
    builder = TopologyBuilder("rescaled")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    declared = builder.setBolt("count", bolt(), parallelism)
    fields = ("word",) if grouping.startswith(("fields", "partial")) else ()
    getattr(declared, grouping)("split", *fields)
    if bolt is Everything:
        declared.broadcastGrouping("lines")
    builder.setBolt("other", Plain(), 2).fieldsGrouping("split", "word")
    return builder.createTopology()


@pytest.mark.daily(1)
@pytest.mark.parametrize(("was", "now", "provider"), [(3, 1, "memory"), (2, 3, "rocksdb")])
@pytest.mark.slow
def test_it_is_as_if_the_bolt_had_had_these_tasks_from_the_beginning(place, provider, was, now):
    with Driver(place, provider) as driver, Driver(place, provider, "same") as same:
        send(driver, range(6), topology(was), limits=SMALL)
        send(same, range(6), topology(now), limits=SMALL)
        before = held(driver, 2, "other")
        done = Checkpoint(driver.folder).rescale({"count": now})
        assert done.tasks == {"count": (was, now)}
        assert done.keys > 50
        assert held(driver, now) == held(same, now)
        assert held(driver, 2, "other") == before
        send(driver, range(6, 12), topology(now), limits=SMALL)
        send(same, range(6, 12), topology(now), limits=SMALL)
        assert held(driver, now) == held(same, now)
        fired = [value for own in held(driver, now) for key, value in own["pairs"] if key[1] == "fired"]
        assert sum(fired) > 3, "timers of before have fired in their new tasks"


@pytest.mark.slow
def test_one_task_needs_to_be_told(place):
    with Driver(place) as driver, Driver(place, name="same") as same:
        send(driver, range(4), topology(1, Upside))
        send(same, range(4), topology(3, Upside))
        with pytest.raises(CheckpointError, match=r"has one task, .*\(word\).*=\{'count': lambda key: key\}"):
            Checkpoint(driver.folder).rescale({"count": 3})
        with pytest.raises(CheckpointError, match=r"returns None for its key .* return the field, or \(None,\)"):
            Checkpoint(driver.folder).rescale({"count": 3}, groupingKey={"count": lambda key: None})
        Checkpoint(driver.folder).rescale({"count": 3}, groupingKey={"count": lambda key: key[::-1]})
        assert held(driver, 3) == held(same, 3)
        send(driver, range(4, 8), topology(3, Upside))
        send(same, range(4, 8), topology(3, Upside))
        assert held(driver, 3) == held(same, 3)


@pytest.mark.slow
def test_files_of_the_tasks_of_before_are_swept(place):
    with Driver(place, "rocksdb") as driver:
        send(driver, range(4), topology(4), limits=SMALL)
        Checkpoint(driver.folder).rescale({"count": 2})
        send(driver, range(4, 6), topology(2), limits=SMALL)
        for task in (2, 3):
            assert not [each for each in Path(driver.folder, "state/count", str(task)).glob("*") if each.is_file()]


# ---- what is refused


@pytest.mark.slow
def test_a_few_keys_prove_nothing(place):
    with Driver(place) as driver:
        with driver.start(topology(2, Plain)) as tester:
            tester.send(lines("to be"))
        with pytest.raises(CheckpointError, match=r"it has 2 keys, .*may be chance.*lambda key: key"):
            Checkpoint(driver.folder).rescale({"count": 4})
        assert Checkpoint(driver.folder).rescale({"count": 4}, groupingKey={"count": lambda key: key}).keys == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bolt", "says"),
    [
        (Misplaced, r"its key '.*' lies in task \d, and taken for \(word\), .* it belongs to task \d"),
        (Upside, r"its key '.*' lies in task \d"),
        (Listing, r"it keeps state.list\('all'\), which belongs to a task and to no key"),
    ],
)
def test_what_can_not_be_proved_is_refused_and_nothing_is_changed(place, bolt, says):
    with Driver(place) as driver:
        send(driver, range(4), topology(2, bolt))
        before = held(driver, 2)
        with pytest.raises(CheckpointError, match=says):
            Checkpoint(driver.folder).rescale({"count": 4})
        assert held(driver, 2) == before
        send(driver, [4], topology(2, bolt))
        for wrong, returned in ((lambda key: 5, "5"), (lambda key: None, "None"), (lambda key: [key], r"\['.*'\]")):
            told = rf"groupingKey returns {returned} for its key '.*' \(word string\): return the field|to a task"
            with pytest.raises(CheckpointError, match=told.replace("' ", "', and its rows are grouped by ")):
                Checkpoint(driver.folder).rescale({"count": 4}, groupingKey={"count": wrong})


class Unlisted(Listing):
    """Its next version: by key, what the version before has kept in a list."""

    def initState(self, state):
        super().initState(state)
        self.words, self.found = state.map("words"), state.value("found")
        for word in self.list:
            self.words.put(word, self.words.get(word, 0) + 1)
        self.list.truncate(0)
        self.found.put(1)
        self.found.delete()

    def execute(self, tup, collector):
        self.words.put(tup.word, self.words.get(tup.word, 0) + 1)


@pytest.mark.slow
def test_what_belonged_to_a_task_is_moved_by_the_bolt_as_the_refusal_says(place):
    with Driver(place) as driver, Driver(place, name="same") as same:
        send(driver, range(4), topology(2, Listing))
        with pytest.raises(CheckpointError, match=r"Let the bolt, with the tasks of now, move what is in it into"):
            Checkpoint(driver.folder).rescale({"count": 4})
        send(driver, [4], topology(2, Unlisted))
        send(same, range(5), topology(4, Unlisted))
        Checkpoint(driver.folder).rescale({"count": 4}, groupingKey={"count": lambda key: key[1]})
        for task in range(4):
            with (
                Checkpoint(driver.folder).state("count", task, map="words") as moved,
                Checkpoint(same.folder).state("count", task, map="words") as wanted,
            ):
                assert dict(moved.items()) == dict(wanted.items())


@pytest.mark.parametrize("grouping", ["shuffleGrouping", "partialKeyGrouping", "allGrouping"])
def test_other_groupings_are_refused(place, grouping):
    with Driver(place) as driver:
        send(driver, range(2), topology(2, Plain, grouping))
        with pytest.raises(CheckpointError, match=r"it gets its rows by .*, and only fieldsGrouping"):
            Checkpoint(driver.folder).rescale({"count": 4})


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ({}, "tasks must be a mapping such as"),
        ({"cuont": 2}, r"has no stateful bolt 'cuont'; there are \['count', 'other'\]"),
        ({"count": 0}, "'count' must have from 1 to 32768 tasks, got 0"),
        ({"count": "4"}, "must have from 1 to 32768 tasks, got '4'"),
    ],
)
def test_a_mistake_is_told_before_anybody_is_fenced(place, tasks, says):
    with Driver(place) as driver:
        send(driver, range(2), topology(2))
        generation = read_state(FolderStorage(driver.folder)).generation
        with pytest.raises(StatefxError, match=says):
            Checkpoint(driver.folder).rescale(tasks)
        with pytest.raises(ConfigError, match="groupingKey: 'split' is no stateful bolt"):
            Checkpoint(driver.folder).rescale({"count": 4}, groupingKey={"split": str})
        assert Checkpoint(driver.folder).rescale({"count": 2}).tasks == {}
        assert read_state(FolderStorage(driver.folder)).generation == generation


def test_the_refusal_of_a_start_names_the_call(place):
    with Driver(place) as driver:
        send(driver, range(2), topology(2))
        with pytest.raises(CheckpointMismatchError, match=r"Checkpoint\(location\).rescale\(\{'count': 4\}\)"):
            driver.start(topology(4))


class Ruled(Plain):
    """Counts words up to a limit, which all tasks hold alike."""

    def initState(self, state):
        self.state, self.rules = state, state.broadcast("rules")

    def executeBroadcast(self, tup, collector):
        self.rules.put(tup.name, tup.value)

    def execute(self, tup, collector):
        if (count := self.state.get(tup.word, 0)) < self.rules.get("most", 9):
            self.state.put(tup.word, count + 1)


@pytest.mark.slow
@pytest.mark.parametrize(("was", "now"), [pytest.param(3, 1, marks=pytest.mark.slow), (2, 3)])
def test_all_of_the_new_tasks_hold_what_is_broadcast(place, was, now):
    def ruled(tasks):
        builder = TopologyBuilder("ruled")
        builder.setStream("words", rows("word string"))
        builder.setStream("rules", rows("name string, value long"))
        builder.setBolt("count", Ruled(), tasks).fieldsGrouping("words", "word").broadcastGrouping("rules")
        return builder.createTopology()

    words = [(f"w{number}",) for number in range(40)]
    with Driver(place) as driver:
        with driver.start(ruled(was)) as tester:
            tester.send({"words": words, "rules": [("most", 2), ("least", 1)]})
        assert Checkpoint(driver.folder).rescale({"count": now}).tasks == {"count": (was, now)}
        for task in range(now):
            with Checkpoint(driver.folder).state("count", task, map="rules") as rules:
                assert dict(rules.items()) == {"least": 1, "most": 2}
        with driver.start(ruled(now)) as tester:
            for _ in range(2):
                tester.send({"words": words})
            assert tester.state("count") == {word: 2 for (word,) in words}


class Pages(Plain):
    """Its own keys are what it is grouped by; those of its map are not, or are, as the setting says."""

    other = "page"

    def initState(self, state):
        self.state, self.pages = state, state.map("pages")

    def execute(self, tup, collector):
        self.state.put(tup.word, self.state.get(tup.word, 0) + 1)
        if tup.word in ("w1", "v2"):
            key = f"page {tup.word[0]}" if self.other == "page" else tup.word
            self.pages.put(key, self.pages.get(key, 0) + 1)


class SamePages(Pages):
    other = "word"


@pytest.mark.slow
def test_each_map_is_proved_by_itself(place):
    """Its keys may be keys of the state and stand for another thing: then they are where they are by chance."""
    for pages in (Pages, SamePages):
        with Driver(place, name=pages.__name__) as driver:
            send(driver, range(8), topology(2, pages))
            with pytest.raises(CheckpointError, match=r"may be chance|its key 'page .' of state.map\('pages'\) lies"):
                Checkpoint(driver.folder).rescale({"count": 4})
    with Driver(place, name="right") as driver, Driver(place, name="same") as same:
        send(driver, range(8), topology(2, SamePages))
        send(same, range(8), topology(4, SamePages))
        Checkpoint(driver.folder).rescale(
            {"count": 4}, groupingKey={"count": lambda key: key if isinstance(key, str) else key[1]}
        )
        assert held(driver, 4) == held(same, 4)


class Reminding(Plain):
    """Has a timer of one of its keys."""

    def open(self, context):
        self.context = context

    def execute(self, tup, collector):
        super().execute(tup, collector)
        if tup.word == "v2":
            self.timers.set(tup.word, self.context.processingTime + timedelta(seconds=30), processing=True)

    def onTimer(self, key, at, value, collector):
        self.state.put(key, -self.state.get(key))


@pytest.mark.slow
def test_a_timer_goes_with_the_state_of_its_key(place):
    with Driver(place) as driver, Driver(place, name="same") as same:
        for each, tasks in ((driver, 2), (same, 4)):
            send(each, range(6), topology(tasks, Reminding))
        Checkpoint(driver.folder).rescale({"count": 4})
        for each in (driver, same):
            send(each, range(6, 10), topology(4, Reminding))
        assert held(driver, 4) == held(same, 4)
        assert any(value < 0 for own in held(driver, 4) for _, value in own[None])


@pytest.mark.slow
@pytest.mark.parametrize(
    "few", [("v2",), *(pytest.param(few, marks=pytest.mark.slow) for few in (("v2", "v3"), ("be", "v2")))]
)
def test_a_few_timers_without_state_of_their_keys_prove_nothing(place, few):
    """Nothing shows that such a key is the grouping's field: it may lie in this task by chance."""

    class Timers(Reminding):
        def execute(self, tup, collector):
            if tup.word in few:
                self.timers.set(tup.word, self.context.processingTime + timedelta(days=1), processing=True)
            if tup.word not in few or tup.word == "be":
                self.state.put(tup.word, 1)

    with Driver(place) as driver:
        send(driver, range(8), topology(2, Timers))
        before = held(driver, 2)
        keys = "1 key" if len(few) == 1 else f"{len(few)} keys"
        with pytest.raises(CheckpointError, match=rf"it has {keys}, .* may be chance"):
            Checkpoint(driver.folder).rescale({"count": 4})
        assert held(driver, 2) == before
        assert Checkpoint(driver.folder).rescale({"count": 4}, groupingKey={"count": lambda key: key}).tasks == {
            "count": (2, 4)
        }


def test_a_bolt_that_has_kept_nothing_needs_no_proof(place):
    with Driver(place) as driver:
        with driver.start(topology(1, Plain)):
            pass
        assert Checkpoint(driver.folder).rescale({"count": 4}).keys == 0
        send(driver, range(2), topology(4, Plain))


@pytest.mark.slow
def test_a_new_bolt_with_the_name_of_a_renamed_one_is_not_taken_for_it(place):
    def named(**tasks):
        builder = TopologyBuilder("rescaled")
        builder.setStream("lines", rows("value string"))
        builder.setBolt("split", Split()).shuffleGrouping("lines")
        for name, number in tasks.items():
            builder.setBolt(name, Plain(), number).fieldsGrouping("split", "word")
        return builder.createTopology()

    for order in (["tally", "count"], ["count", "tally"]):
        tasks = {name: {"tally": 4, "count": 2}[name] for name in order}
        launch = Launch(
            named(**tasks), None, place, None, caller="submit", dumps=None, rename={"count": "tally"}, rescale=True
        )
        with Driver(place, name=order[0]) as driver:
            send(driver, range(6), named(count=2))
            assert launch.rescalings(read_state(FolderStorage(driver.folder))) == {"count": 4}


def test_a_function_alone_is_no_mapping_of_grouping_keys(tmp_path):
    with pytest.raises(ConfigError, match="groupingKey must be a mapping such as"):
        Checkpoint(tmp_path).rescale({"count": 2}, groupingKey=lambda key: key)
