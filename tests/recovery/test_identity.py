"""What a bolt's state depends on beside its code: how its rows are routed, and what its bytes are."""

import json
import re
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from statefx import Checkpoint, Topology, TopologyBuilder
from statefx.errors import BoltError, CheckpointMismatchError, ConfigError
from statefx.log.location import Folders
from statefx.log.log import read_state
from statefx.log.takeover import take_generation
from statefx.protocol.jsonform import from_json, to_json
from statefx.protocol.topology_identity import TopologyIdentity
from statefx.state import registry
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows
from statefx.topology.identity import identify, routing
from tests.bolts import Ignores, WithState
from tests.testing.codecs import Json, JsonMoved, JsonTwo, Registered
from tests.testing.topologies import Driver, lines, word_count, words

OPTIONS = "topology.state.provider.config"
CODECS = "tests.testing.codecs:"
WORK = [lines("to be or not to be"), lines("that is the question")]

Wire = Callable[[Any], Any]


class Seen(WithState):
    def execute(self, tup, collector):
        self.state.put("rows", self.state.get("rows", 0) + 1)


def wired(
    *wires: Wire, parallelism: int = 2, left: str = "k string, n int", right: str = "k string, n int"
) -> Topology:
    builder = TopologyBuilder("wired")
    builder.setStream("left", rows(left))
    builder.setStream("right", rows(right))
    declarer = builder.setBolt("seen", Seen(), parallelism)
    for wire in wires:
        wire(declarer)
    builder.setBolt("idle", Ignores()).shuffleGrouping("left").shuffleGrouping("right")  # every stream must be read
    return builder.createTopology()


def by(kind: str, *fields: str, source: str = "left") -> Wire:
    return lambda declarer: getattr(declarer, f"{kind}Grouping")(source, *fields)


@pytest.mark.parametrize(
    ("wires", "ways"),
    [
        ([by("fields", "k")], (("fields", "string"),)),
        ([by("fields", "n", "k")], (("fields", "int", "string"),)),
        ([by("partialKey", "k")], (("partialKey", "string"),)),
        ([by("fields", "k"), by("fields", "k", source="right")], (("fields", "string"),)),
        ([by("shuffle")], (("shuffle",),)),
        ([by("localOrShuffle"), by("none", source="right")], (("shuffle",),)),
        ([by("global")], (("global",),)),
        ([by("all")], (("all",),)),
        ([by("all"), by("fields", "k")], (("fields", "string"),)),
        ([by("global"), by("fields", "k"), by("shuffle")], (("fields", "string"), ("global",), ("shuffle",))),
    ],
)
def test_what_decides_where_rows_go(wires, ways):
    topology = wired(*wires)
    assert routing(topology, "seen") == ways
    assert identify(topology, "m:C").stateful["seen"].routing == ways


def test_not_null_and_names_of_fields_have_no_part_in_the_hash():
    assert routing(wired(by("fields", "k"), left="k string not null, n int"), "seen") == (("fields", "string"),)
    assert routing(wired(by("fields", "key"), left="key string, n int"), "seen") == (("fields", "string"),)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (wired(by("fields", "k")), wired(by("fields", "n")), r"by fields\(int\), .* with fields\(string\), .*to other"),
        (wired(by("fields", "k", "n")), wired(by("fields", "n", "k")), r"by fields\(int, string\)"),
        (
            wired(by("fields", "k")),
            wired(by("fields", "k"), left="k int, n int"),
            r"by fields\(int\), .*go back to fields\(string\)",
        ),
        (wired(by("fields", "k")), wired(by("partialKey", "k")), r"by partialKey\(string\)"),
        (wired(by("fields", "k")), wired(by("shuffle")), "by shuffle"),
        (wired(by("shuffle")), wired(by("global")), "by global, .* with shuffle"),
        (wired(by("all")), wired(by("fields", "k"), by("all")), r"by fields\(string\), .* with all"),
        (
            wired(by("fields", "k")),
            wired(by("fields", "k"), by("shuffle", source="right")),
            r"by fields\(string\) and shuffle, ",
        ),
    ],
)
def test_rows_that_would_go_to_other_tasks_are_refused(driver, before, now, says):
    driver.start(before).send({"left": []})
    with pytest.raises(CheckpointMismatchError, match=rf"bolt 'seen' gets its rows {says}") as told:
        driver.start(now)
    assert told.value.component == "seen"
    assert (told.value.found, told.value.wanted) == (routing(before, "seen"), routing(now, "seen"))
    driver.start(before).send({"left": []})


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (wired(by("fields", "k")), wired(by("fields", "key"), left="key string, n int")),
        (wired(by("fields", "k")), wired(by("fields", "k"), by("all", source="right"))),
        (wired(by("fields", "k")), wired(by("fields", "k", source="right"))),
        (wired(by("shuffle")), wired(by("localOrShuffle"))),
        (wired(by("fields", "k"), parallelism=1), wired(by("fields", "n"), parallelism=1)),
        (wired(by("global"), parallelism=1), wired(by("shuffle"), parallelism=1)),
    ],
)
def test_rows_that_go_where_they_went_are_not(driver, before, now):
    driver.start(before).send({"left": []})
    driver.start(now).send({"left": []})


USERS = "user string, item string, n int"


def on(*wires: Wire, left: str = USERS, parallelism: int = 2) -> Topology:
    return wired(*wires, left=left, right=USERS, parallelism=parallelism)


@pytest.mark.parametrize(
    ("before", "now", "was", "becomes"),
    [
        (
            on(by("fields", "user", "item")),
            on(by("fields", "item", "user")),
            "fields(user, item)",
            "fields(item, user)",
        ),
        (on(by("fields", "user")), on(by("fields", "item")), "fields(user)", "fields(item)"),
        (on(by("fields", "n", "user")), on(by("fields", "n", "item")), "fields(n, user)", "fields(n, item)"),
        (on(by("partialKey", "user")), on(by("partialKey", "item")), "partialKey(user)", "partialKey(item)"),
        (
            on(by("fields", "user")),
            on(by("fields", "thing"), left=USERS + ", thing string"),
            "fields(user)",
            "fields(thing)",
        ),
        (on(by("fields", "user")), on(by("fields", "item"), left="item string"), "fields(user)", "fields(item)"),
        (
            on(by("fields", "user", "item")),
            on(by("fields", "item", "user"), left="item string, user string"),
            "fields(user, item)",
            "fields(item, user)",
        ),
        (
            on(by("fields", "user"), by("fields", "user", source="right")),
            on(by("fields", "item"), by("fields", "user", source="right")),
            "fields(user)",
            "fields(item)",
        ),
        (
            on(by("fields", "user"), by("fields", "item"), left="user string, item string, thing string"),
            on(by("fields", "user"), by("fields", "thing"), left="user string, item string, thing string"),
            "fields(item)",
            "fields(thing)",
        ),
    ],
)
def test_other_fields_of_the_same_types_are_refused(place, before, now, was, becomes):
    with Driver(place) as driver:
        driver.start(before).send({"left": []})
        says = (
            rf"bolt 'seen' gets its rows by {re.escape(becomes)}, the checkpoint in .* was written with "
            rf"{re.escape(was)} of stream 'default' of 'left', .*: go back to {re.escape(was)}"
        )
        with pytest.raises(CheckpointMismatchError, match=says) as told:
            driver.start(now)
        assert (told.value.component, told.value.wanted) == ("seen", becomes)
        driver.start(before).send({"left": []})


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (on(by("fields", "user")), on(by("fields", "customer"), left="customer string, item string, n int")),
        (on(by("fields", "user", "item")), on(by("fields", "a", "b"), left="a string, b string")),
        (on(by("fields", "user", "item")), on(by("fields", "user", "thing"), left="n int, thing string, user string")),
        (on(by("fields", "user")), on(by("fields", "user"), left="item string, user string")),
        (on(by("fields", "user")), on(by("fields", "item", source="right"))),
        (on(by("fields", "user")), on(by("fields", "user"), by("fields", "item"))),
        (on(by("fields", "user"), by("fields", "item")), on(by("fields", "item"))),
        (on(by("fields", "user"), by("fields", "item")), on(by("fields", "item"), by("fields", "user"))),
        (on(by("fields", "user"), by("shuffle")), on(by("shuffle"), by("fields", "user"))),
        (on(by("fields", "user", "item"), parallelism=1), on(by("fields", "item", "user"), parallelism=1)),
        (on(by("fields", "user", "item"), parallelism=1), on(by("fields", "item"), parallelism=1)),
    ],
)
def test_renamed_fields_and_other_inputs_are_not(driver, before, now):
    driver.start(before).send({"left": []})
    driver.start(now).send({"left": []})


def test_a_renamed_field_is_known_by_its_new_name_from_then_on(driver):
    customers = "customer string, item string, n int"
    for topology in (on(by("fields", "user")), on(by("fields", "customer"), left=customers)):
        driver.start(topology).send({"left": []})
    with pytest.raises(CheckpointMismatchError, match=r"by fields\(item\), .* with fields\(customer\)"):
        driver.start(on(by("fields", "item"), left=customers))


# ---- codecs


def coded(**options: Any) -> dict[str, Any]:
    return {"config": {OPTIONS: options}}


JSON = {"codec": CODECS + "Json"}


@pytest.mark.slow
def test_a_codec_of_the_users_own_keeps_state_through_a_restart(driver, provider):
    for work in WORK:
        tester = driver.start(**coded(components={"count": JSON}))
        tester.send(work)
    assert tester.state("count") == words(WORK)
    found = read_state(FolderStorage(driver.folder)).topology.stateful["count"]
    assert (found.codec, found.encoding) == ("json-1", JSON)
    with Checkpoint(driver.folder).state("count") as view:
        assert list(view.items()) == sorted(words(WORK).items()), "in the codec's order, over all tasks"
        assert list(view.items("be", "or")) == [("be", 2), ("is", 1), ("not", 1)]


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        ({}, JSON, "has codec 'json-1', .* with 'statefx-1': go back to 'statefx-1'"),
        (JSON, {}, "has codec 'statefx-1', .* with 'json-1'"),
        (JSON, {"codec": CODECS + "JsonTwo"}, "has codec 'json-2', .* with 'json-1'"),
        (
            {"valueSerializerClass": CODECS + "Pickled"},
            {"keySerializerClass": CODECS + "Pickled"},
            "has codec 'key pickled, value statefx-1', .* with 'key statefx-1, value pickled'",
        ),
    ],
)
def test_another_codec_is_refused(driver, before, now, says):
    driver.start(**coded(**before)).send(WORK[0])
    with pytest.raises(CheckpointMismatchError, match=f"bolt 'count' {says}"):
        driver.start(**coded(**now))
    driver.start(**coded(**before)).send(WORK[1])


@pytest.mark.parametrize(
    "now",
    [{"keyClass": "str", "valueClass": "int"}, {"codec": "statefx.state.encoding.codec:StandardCodec"}],
)
def test_options_that_change_no_bytes_may_come_and_go(driver, now):
    driver.start().send(WORK[0])
    tester = driver.start(**coded(**now))
    tester.send(WORK[1])
    assert tester.state("count") == words(WORK)


def test_the_same_codec_may_be_another_class(driver):
    driver.start(**coded(**JSON)).send(WORK[0])
    tester = driver.start(**coded(codec=CODECS + "JsonMoved"))
    tester.send(WORK[1])
    assert tester.state("count") == words(WORK)


def test_a_mistake_is_found_before_anything_is_written(driver):
    with pytest.raises(ConfigError, match="'cuont', which is not in the topology; did you mean 'count'"):
        driver.start(**coded(components={"cuont": JSON}))
    with pytest.raises(ConfigError, match=r"takes no options, got \['dir'\]; remove"):
        driver.start(**coded(dir="/tmp", **JSON))
    assert not driver.folder.exists()


def test_a_value_that_the_codec_refuses_is_the_bolts_error_and_leaves_nothing(driver, provider):
    tester = driver.start(**coded(valueClass="str"))
    with pytest.raises(
        BoltError, match=r"hook execute.*CodecError: key '(not|be|or|to)': a value of type int, .* is str"
    ):
        tester.send(WORK[0])
    tester = driver.start()
    assert tester.txid == 0
    tester.send(WORK[0])
    assert tester.state("count") == words(WORK[:1])


def test_a_codec_that_cannot_be_made_in_the_task_is_the_bolts_error(driver):
    says = r"bolt 'count', task \d, hook open.*Failing can't be made: OSError"
    with pytest.raises(BoltError, match=says):
        driver.start(**coded(codec=CODECS + "Failing")).send(WORK[0])


def test_a_codec_that_cannot_reach_its_registry_fails_the_transaction_and_not_the_query(
    driver, place, provider, monkeypatch
):
    outages = place / "outages"
    outages.touch()
    monkeypatch.setattr(Registered, "outages", str(outages))
    tester = driver.start(**coded(codec=CODECS + "Registered"))
    tester.send(WORK[0])
    outages.write_text("the registry is down\n" * 3)
    assert tester.send(WORK[0]).progress.attempt in (2, 3), "two tasks may have met the same outage"
    assert tester.state("count") == words([WORK[0], WORK[0]])


# ---- Checkpoint.state


@pytest.mark.slow
def test_open_state_without_the_codecs_class_says_so_and_takes_one(driver):
    driver.start(**coded(**JSON)).send(WORK[0])
    renamed(driver.folder, CODECS + "Json", "gone:Json")
    with pytest.raises(ConfigError, match=r"written with codec 'json-1', which can't be loaded here: gone:Json.*"):
        Checkpoint(driver.folder).state("count")
    for codec in (Json(), JsonMoved()):
        with Checkpoint(driver.folder).state("count", codec=codec) as view:
            assert dict(view.items()) == words(WORK[:1])
            assert view["to"] == 2
    with pytest.raises(CheckpointMismatchError, match="written with codec 'json-1', this one is 'json-2'"):
        Checkpoint(driver.folder).state("count", codec=JsonTwo())
    with pytest.raises(ConfigError, match=r"codec must be an object of a statefx\.state\.Codec"):
        Checkpoint(driver.folder).state("count", codec="tests.testing.codecs:Json")


def renamed(folder: Path, old: str, new: str) -> None:
    """Let the log name another class; it is chained by hashes, so a new generation is written, as a driver does."""
    folders = Folders(str(folder))
    written = json.dumps(to_json(read_state(folders.storage).topology))
    take_generation(
        folders, from_json(TopologyIdentity, json.loads(written.replace(old, new))), frozenset(), shared=False
    )


def test_open_state_goes_in_the_order_of_the_codec(driver):
    driver.start(**coded(codec=CODECS + "Backwards")).send(WORK[0])
    with Checkpoint(driver.folder).state("count") as view:
        assert list(view) == ["to", "or", "not", "be"]
        assert [key for key, _ in view.items("or", "be")] == ["or", "not"]


def test_open_state_of_serializers(driver):
    tester = driver.start(**coded(keySerializerClass=CODECS + "Pickled", valueSerializerClass=CODECS + "Pickled"))
    tester.send(WORK[0])
    with Checkpoint(driver.folder).state("count") as view:
        assert dict(view.items()) == words(WORK[:1])


@pytest.mark.slow
def test_a_word_count_is_the_same_by_any_encoding(place, tmp_path):
    for n, options in enumerate(({}, JSON, {"valueSerializerClass": CODECS + "Pickled"}, {"keyClass": "str"})):
        with TopologyTester(word_count(), place / str(n), {OPTIONS: options}) as tester:
            for work in WORK:
                tester.send(work)
            assert tester.state("count") == words(WORK)


def test_a_restart_that_fits_looks_up_no_name_of_a_provider(driver, monkeypatch):
    """Names are for messages; to look one up reads a file of every package that is installed."""

    def looked_up(**group: str) -> None:
        raise AssertionError(f"looked up {group}")

    driver.start(word_count()).run(WORK[:1])
    registry.resolve.cache_clear()
    monkeypatch.setattr(registry, "entry_points", looked_up)
    tester = driver.start(word_count())
    tester.run(WORK)
    assert tester.state("count") == words(WORK)


# ---- Streaming DataFrames, which Spark's query knows by their places (rule 3.15).


def streamed(*streams: str, streaming: bool = True) -> Topology:
    builder = TopologyBuilder("streamed")
    for id in streams:
        builder.setStream(id, rows("k string, n int", streaming=streaming))
    seen = builder.setBolt("seen", Seen())
    for id in sorted(streams):
        seen.globalGrouping(id)
    return builder.createTopology()


def streams_of(driver: Driver) -> tuple[str, ...]:
    return read_state(FolderStorage(driver.folder)).topology.streams


@pytest.mark.slow
@pytest.mark.parametrize("order", list(permutations("cab")), ids="".join)
def test_streams_keep_the_order_in_which_they_were_first_declared(driver, order):
    for _ in range(2):
        driver.start(streamed(*order)).send({"a": []})
        driver.start(streamed(*"bca")).send({"b": []})
        assert streams_of(driver) == order


@pytest.mark.parametrize(
    ("now", "component", "remedy"),
    [
        ("ab", "c", r"bring back setStream\('c', \.\.\.\); or start with a new"),
        ("abcd", "d", r"read 'd' in a topology of its own; or start with a new"),
        (
            "abd",
            "c",
            r"bring back setStream\('c', .*rename=\{'c': its id\}; read 'd' in .* if it is another stream; or",
        ),
    ],
)
@pytest.mark.parametrize("drop", [(), ("c",)], ids=["", "drop"])
def test_streams_that_come_or_go_are_refused(driver, now, component, remedy, drop):
    if "c" in now:
        drop = ()
    driver.start(streamed(*"cab")).send({"a": []})
    with pytest.raises(
        CheckpointMismatchError, match=rf"DataFrames 'c', 'a', 'b', .* none can be .*: {remedy}"
    ) as told:
        driver.start(streamed(*now), drop=drop)
    assert (told.value.component, told.value.wanted) == (component, list(now))
    assert read_state(FolderStorage(driver.folder)).generation == 1
    driver.start(streamed(*"abc")).send({"c": []})


@pytest.mark.slow
def test_a_stream_with_another_id_keeps_its_place(driver):
    driver.start(streamed(*"cab")).send({"a": []})
    for _ in range(2):  # it may stay in the program
        driver.start(streamed(*"bcd"), rename={"a": "d"}).send({"d": []})
        assert streams_of(driver) == ("c", "d", "b")
    Checkpoint(driver.folder).rename({"c": "e"})
    assert streams_of(driver) == ("e", "d", "b")
    with pytest.raises(ConfigError, match="drop: 'd' is a streaming DataFrame, and none can be taken away"):
        Checkpoint(driver.folder).rename(drop=["d"])
    driver.start(streamed(*"bde")).send({"e": []})


def test_streams_of_batches_may_come_and_go(driver):
    """Each start reads all of them from the beginning."""
    for number, streams in enumerate(("ab", "b", "cb")):
        driver.start(streamed(*streams, streaming=False)).apply(number, {"b": []})
