"""A topology that is wired wrong is refused before Spark starts, with the thing's name and what to do."""

import pickle
import re
import sqlite3
from contextlib import closing
from itertools import pairwise
from types import SimpleNamespace

import pytest

from statefx import (
    BasicBolt,
    BatchBolt,
    Bolt,
    Committer,
    IntervalJoin,
    StatefulBolt,
    StatefulWindowedBolt,
    TopologyBuilder,
    TransactionalSpout,
    WindowedBolt,
)
from statefx.config import Config
from statefx.connectors import ConsoleSink, MemoryTransactionalSpout
from statefx.connectors.files import FilePartitionedSpout, FileSink
from statefx.connectors.kafka import KafkaSink, KafkaSpout
from statefx.connectors.sql import SqlPartitionedSpout, SqlSink
from statefx.errors import ConfigError, TopologyError
from statefx.operators.schema import parse_schema
from statefx.plan.levels import compile_plan
from statefx.testing import rows
from statefx.topology.graph import Edge, Grouping, Topology
from statefx.topology.identity import routing
from statefx.topology.submission import check_config, doubts
from tests.bolts import Pass
from tests.topology.frames import Frame


class Split(BasicBolt):
    outputFields = "word string, size int"

    def execute(self, tup, collector): ...


class Count(StatefulBolt):
    outputFields = "word string, count long"

    def initState(self, state): ...

    def execute(self, tup, collector): ...


class Sink(BasicBolt):
    def execute(self, tup, collector): ...


class Fork(BasicBolt):
    outputFields = {"default": "word string", "late": "word string, at timestamp"}

    def execute(self, tup, collector): ...


@pytest.fixture
def builder():
    made = TopologyBuilder("words")
    made.setStream("lines", Frame())
    return made


def refuse(builder, message, **data):
    with pytest.raises(TopologyError, match=message) as caught:
        builder.createTopology()
    for name, value in data.items():
        assert getattr(caught.value, name) == value
    assert isinstance(caught.value, ValueError)


def test_a_word_count(builder):
    split, count = Split(), Count()
    builder.setBolt("split", split, parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", count, parallelism=3).fieldsGrouping("split", "word")
    topology = builder.createTopology()
    assert topology.name == "words"
    assert [component.id for component in topology.components] == ["lines", "split", "count"]
    assert topology.edges == (
        Edge(0, "lines", "default", "split", Grouping("shuffle")),
        Edge(1, "split", "default", "count", Grouping("fields", ("word",))),
    )
    lines, splits, counts = topology.components
    assert (lines.parallelism, lines.is_stream, lines.stateful, lines.operator) == (0, True, False, None)
    assert lines.outputs == {"default": parse_schema("value string")}
    assert (splits.parallelism, splits.is_stream, splits.stateful, splits.committer) == (2, False, False, False)
    assert (counts.operator, counts.stateful, counts.committer) == (count, True, True)
    assert topology.inputs("split") == topology.outputs("lines") == topology.edges[:1]
    assert topology.inputs("lines") == topology.outputs("count") == ()
    assert topology.schema(topology.edges[1]) == parse_schema("word string, size int")
    with pytest.raises(TopologyError, match="no component 'cuont'; the nearest is 'count'"):
        topology.component("cuont")


def test_every_grouping_can_be_declared_and_chained(builder):
    builder.setBolt("fork", Fork()).noneGrouping("lines")
    declarer = builder.setBolt("all", Sink(), 2)
    chained = (
        declarer.shuffleGrouping("fork")
        .fieldsGrouping("fork", "word", "at", stream="late")
        .globalGrouping("fork", stream="late")
        .allGrouping("fork")
        .noneGrouping("fork")
        .localOrShuffleGrouping("fork")
        .directGrouping("fork")
        .partialKeyGrouping("fork", "word", "at", stream="late")
    )
    assert chained is declarer
    edges = builder.createTopology().inputs("all")
    assert [(edge.stream, str(edge.grouping)) for edge in edges] == [
        ("default", "shuffle"),
        ("late", "fields(word, at)"),
        ("late", "global"),
        ("default", "all"),
        ("default", "none"),
        ("default", "local"),
        ("default", "direct"),
        ("late", "partialKey(word, at)"),
    ]
    assert [edge.id for edge in edges] == list(range(1, 9))


WITHOUT_FIELDS = ["shuffle", "global", "all", "broadcast", "none", "localOrShuffle", "direct"]


@pytest.mark.parametrize("name", WITHOUT_FIELDS)
@pytest.mark.parametrize(("others", "named"), [(("late",), "late"), ((["word"],), "errors"), (("late", 1), "late")])
def test_a_stream_is_given_by_name_and_not_by_place(builder, name, others, named):
    for declarer in (builder.setBolt("bolt", Sink()), builder.setSink("sink", ConsoleSink())):
        with pytest.raises(TopologyError) as told:
            getattr(declarer, f"{name}Grouping")("fork", *others)
        assert str(told.value).startswith(f"{declarer.kind} '{declarer.id}': {name}Grouping('fork', {others[0]!r}")
        assert f'write {name}Grouping("fork", stream="{named}")' in str(told.value)
        assert declarer.inputs == []


@pytest.mark.parametrize("name", ["fields", "partialKey"])
def test_who_gives_fields_in_a_list_behind_a_stream_is_told_how_both_are_given(builder, name):
    with pytest.raises(TopologyError, match="a stream of its own as stream="):
        getattr(builder.setBolt("bolt", Sink()), f"{name}Grouping")("fork", "late", ["word"])


def test_components_are_sorted_and_ties_keep_the_order_of_declaration(builder):
    builder.setBolt("z", Sink()).shuffleGrouping("b").shuffleGrouping("a")
    builder.setBolt("b", Split()).shuffleGrouping("late")
    builder.setBolt("a", Split()).shuffleGrouping("lines")
    builder.setStream("late", Frame())
    topology = builder.createTopology()
    assert [component.id for component in topology.components] == ["lines", "a", "late", "b", "z"]
    assert [(edge.id, edge.source, edge.target) for edge in topology.edges] == [
        (0, "lines", "a"),
        (1, "late", "b"),
        (2, "b", "z"),
        (3, "a", "z"),
    ]


def test_committers_are_marked_or_stateful(builder):
    class Writer(Committer, BatchBolt):
        def execute(self, tup, collector): ...

    builder.setBolt("plain", Sink()).shuffleGrouping("lines")
    builder.setBolt("marked", Writer()).shuffleGrouping("lines")
    builder.setBolt("stateful", Count()).shuffleGrouping("lines")
    committers = {component.id: component.committer for component in builder.createTopology().components}
    assert committers == {"lines": False, "plain": False, "marked": True, "stateful": True}


def test_one_bolt_object_may_be_used_twice(builder):
    sink = Sink()
    builder.setBolt("one", sink).shuffleGrouping("lines")
    builder.setBolt("two", sink).shuffleGrouping("lines")
    assert len(builder.createTopology().components) == 3


def test_a_builder_can_be_used_on_after_a_topology_was_made(builder):
    builder.setBolt("one", Sink()).shuffleGrouping("lines")
    first = builder.createTopology()
    builder.setBolt("two", Sink()).shuffleGrouping("lines")
    assert len(builder.createTopology().components) == 3
    assert len(first.components) == 2


def test_output_fields_may_be_a_property_of_the_object(builder):
    class Pick(BasicBolt):
        def __init__(self, field):
            self.field = field

        @property
        def outputFields(self):
            return f"{self.field} string"

        def execute(self, tup, collector): ...

    builder.setBolt("pick", Pick("word")).shuffleGrouping("lines")
    assert builder.createTopology().component("pick").outputs["default"].names == ["word"]


def test_bolts_components_and_edges_can_be_pickled(builder):
    builder.setBolt("split", Split(), 2).fieldsGrouping("lines", "value")
    topology = builder.createTopology()
    split = pickle.loads(pickle.dumps(topology.component("split")))
    assert (split.id, split.parallelism, split.outputs) == ("split", 2, topology.component("split").outputs)
    assert pickle.loads(pickle.dumps(topology.edges)) == topology.edges


# What is refused where it is declared


@pytest.mark.parametrize("name", ["", "  ", None, 5, "x" * 256, "a\0", "a\ud800"])
def test_a_topology_needs_a_name(name):
    with pytest.raises(TopologyError, match="the name of a topology is a text that is not empty"):
        TopologyBuilder(name)


@pytest.mark.parametrize("id", ["", "a/b", "..", ".hidden", "a b", "é", "__own", "x" * 129, None, 5, "a\n", "a\0"])
def test_an_id_that_can_not_name_a_folder(builder, id):
    for declare in (lambda: builder.setStream(id, Frame()), lambda: builder.setBolt(id, Sink())):
        with pytest.raises(TopologyError, match=r"can't be a component's id.*letters, digits"):
            declare()


@pytest.mark.parametrize("id", ["a", "A-1", "_a", "a.b", "0", "a__b"])
def test_an_id_that_can(builder, id):
    builder.setBolt(id, Sink())


def test_a_duplicate_id(builder):
    for declare in (lambda: builder.setStream("lines", Frame()), lambda: builder.setBolt("lines", Sink())):
        with pytest.raises(TopologyError, match="the id 'lines' is already used"):
            declare()


def test_ids_that_differ_only_in_capitals(builder):
    with pytest.raises(TopologyError, match="the ids 'lines' and 'Lines' differ only in capitals"):
        builder.setBolt("Lines", Sink())


def test_a_data_frame_without_columns(builder):
    with pytest.raises(TopologyError, match="stream 'empty' has no columns"):
        builder.setStream("empty", Frame(SimpleNamespace(fields=[])))


def test_several_transactions_at_a_time_need_spouts(builder):
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    topology = builder.createTopology()
    check_config(topology, Config.parse({}, "words"))
    with pytest.raises(
        ConfigError, match=r"topology\.max\.spout\.pending is 2, but 'words' reads DataFrames \(lines\)"
    ):
        check_config(topology, Config.parse({"topology.max.spout.pending": 2}, "words"))


@pytest.mark.parametrize("parallelism", [0, -1, 1.0, "2", None, True, 100_001])
def test_a_parallelism_that_is_no_number_of_tasks(builder, parallelism):
    with pytest.raises(
        TopologyError, match="bolt 'split': parallelism is a whole number from 1 to 100000, not"
    ) as caught:
        builder.setBolt("split", Split(), parallelism)
    assert caught.value.component == "split"


@pytest.mark.parametrize(
    ("bolt", "message"),
    [
        (Split, r"is the class Split; pass an object: Split\(...\)"),
        (object(), "is of type object, not a Bolt; derive"),
        (len, "is of type builtin_function_or_method, not a Bolt"),
        (dict, "is the class dict, not a Bolt"),
        (None, "is of type NoneType, not a Bolt"),
    ],
)
def test_an_object_that_is_no_bolt(builder, bolt, message):
    with pytest.raises(TopologyError, match=f"bolt 'split' {message}"):
        builder.setBolt("split", bolt)


@pytest.mark.parametrize("frame", ["lines.txt", None, SimpleNamespace(schema="value string"), Frame])
def test_a_stream_that_is_no_data_frame(frame):
    with pytest.raises(TopologyError, match=r"stream 'lines' is .*, not a DataFrame; pass one"):
        TopologyBuilder("words").setStream("lines", frame)


def test_a_column_that_can_not_travel(builder):
    wait = SimpleNamespace(name="wait", dataType=SimpleNamespace(simpleString=lambda: "interval"), nullable=True)
    with pytest.raises(TopologyError, match=r"stream 'slow': column 'wait' has the type interval.*Cast") as caught:
        builder.setStream("slow", Frame(SimpleNamespace(fields=[wait])))
    assert (caught.value.component, caught.value.column) == ("slow", "wait")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("word strin", r"'strin' is not a type"),
        ({"late": "word"}, r"stream 'late': expected a type"),
        (lambda self: "word string", "outputFields is a method"),
        (5, "a schema is Spark DDL"),
    ],
)
def test_malformed_output_fields_name_the_component(builder, fields, message):
    wrong = type("Wrong", (Split,), {"outputFields": fields})()
    with pytest.raises(TopologyError, match=f"bolt 'wrong': outputFields of Wrong: {message}") as caught:
        builder.setBolt("wrong", wrong)
    assert caught.value.component == "wrong"


@pytest.mark.parametrize("name", ["fieldsGrouping", "partialKeyGrouping"])
@pytest.mark.parametrize("fields", [(), (5,), (["word"],)])
def test_a_keyed_grouping_without_fields(builder, name, fields):
    declarer = builder.setBolt("split", Split())
    with pytest.raises(TopologyError, match=rf"bolt 'split': {name}\('lines', ...\) takes the names of one or more"):
        getattr(declarer, name)("lines", *fields)


def test_a_source_or_stream_that_is_no_id(builder):
    with pytest.raises(TopologyError, match="bolt 'split': the source of its shuffle grouping is an id"):
        builder.setBolt("split", Split()).shuffleGrouping(Split())
    with pytest.raises(TopologyError, match="the stream of its all grouping is an id, not None"):
        builder.setBolt("other", Split()).allGrouping("lines", stream=None)


def test_there_are_no_other_groupings():
    with pytest.raises(ValueError, match="no grouping 'feilds'; there are shuffle, fields, global"):
        Grouping("feilds")


# What is refused when everything is known


def test_no_stream():
    builder = TopologyBuilder("words")
    refuse(builder, "topology 'words' has no stream; add a DataFrame with setStream")
    builder.setBolt("split", Split()).shuffleGrouping("split")
    refuse(builder, "topology 'words' has no stream")


def test_a_bolt_without_inputs(builder):
    builder.setBolt("split", Split())
    refuse(builder, "bolt 'split' has no input; chain a grouping", component="split")


def test_an_unknown_source(builder):
    builder.setBolt("split", Split()).shuffleGrouping("line")
    refuse(builder, "bolt 'split' reads 'line', which is not in the topology; the nearest id is 'lines'", source="line")


def test_the_default_stream_of_a_bolt_that_emits_nothing(builder):
    builder.setBolt("sink", Sink()).shuffleGrouping("lines")
    builder.setBolt("split", Split()).shuffleGrouping("sink")
    refuse(builder, "reads stream 'default' of 'sink', which does not declare it")


def test_a_bolt_that_reads_itself(builder):
    builder.setBolt("a", Split()).shuffleGrouping("lines").shuffleGrouping("a")
    refuse(builder, "form a cycle: a -> a", path=["a", "a"])


@pytest.mark.parametrize("kind", ["map<string, int>", "array<map<string, int>>", "struct<a: struct<b: map<int, int>>>"])
def test_a_key_that_holds_a_map(kind):
    builder = TopologyBuilder("words")
    builder.setStream("lines", Frame(f"tags {kind}"))
    builder.setBolt("count", Count()).fieldsGrouping("lines", "tags")
    refuse(builder, "groups 'lines' by 'tags', which holds a map; a map has no hash", field="tags")


@pytest.mark.parametrize("kind", ["double", "array<struct<a: decimal(38,1)>>", "timestamp_ntz"])
def test_a_key_of_any_other_type(kind):
    builder = TopologyBuilder("words")
    builder.setStream("lines", Frame(f"tags {kind}"))
    builder.setBolt("count", Count()).fieldsGrouping("lines", "tags")
    assert builder.createTopology()


def test_keys_of_two_sources_must_be_as_many(builder):
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    builder.setBolt("join", Count()).fieldsGrouping("lines", "value").partialKeyGrouping("split", "word", "size")
    refuse(builder, r"of type \(string\) and 'split' by partialKey\(word, size\) of type \(string, int\)")


def test_direct_grouping_of_a_data_frame(builder):
    builder.setBolt("split", Split()).directGrouping("lines")
    refuse(builder, "bolt 'split' reads 'lines' by directGrouping, but a DataFrame names no tasks", source="lines")


def test_a_stream_that_nobody_reads(builder):
    builder.setStream("idle", Frame())
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    refuse(builder, "nobody reads the stream 'idle'; give a bolt a grouping of it, or take it out", component="idle")


@pytest.mark.parametrize("first", [True, False])
def test_streaming_and_batch_together(first):
    builder = TopologyBuilder("words")
    builder.setStream("one", Frame(streaming=first))
    builder.setStream("two", Frame(streaming=not first))
    live, batch = ("one", "two") if first else ("two", "one")
    refuse(builder, f"'{live}' is a streaming DataFrame and '{batch}' a batch one", components=(live, batch))


def test_data_frames_of_two_sessions():
    builder = TopologyBuilder("words")
    builder.setStream("one", Frame(session=object()))
    builder.setStream("two", Frame(session=object()))
    refuse(builder, "'one' and 'two' belong to different sessions", components=("one", "two"))


@pytest.mark.parametrize(
    ("name", "fields"), [("shuffleGrouping", ()), ("allGrouping", ()), ("fieldsGrouping", ("word", "size"))]
)
def test_an_input_that_is_declared_twice(builder, name, fields):
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    declarer = builder.setBolt("count", Count())
    getattr(getattr(declarer, name)("split", *fields), name)("split", *fields)
    refuse(builder, r"bolt 'count' reads stream 'default' of 'split' by .* grouping 2 times: every row would come 2",
           component="count", source="split", stream="default")  # fmt: skip


def test_a_stream_read_by_two_keys_comes_twice_on_purpose(builder):
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    builder.setBolt("fork", Fork()).shuffleGrouping("lines")
    joined = builder.setBolt("count", Count()).globalGrouping("split").allGrouping("split")
    joined.shuffleGrouping("fork").shuffleGrouping("fork", stream="late")
    assert len(builder.createTopology().inputs("count")) == 4


# What is allowed, but mostly not meant


@pytest.mark.parametrize("grouping", ["shuffleGrouping", "noneGrouping", "localOrShuffleGrouping"])
def test_state_by_key_behind_a_grouping_that_promises_no_task_is_doubted(builder, grouping):
    getattr(builder.setBolt("count", Count(), 2), grouping)("lines")
    (doubt,) = doubts(builder.createTopology())
    assert re.match(r"bolt 'count' keeps state in 2 tasks, but its input 'lines' comes by .*Use fieldsGrouping", doubt)


def test_tasks_that_get_no_row_are_doubted(builder):
    builder.setBolt("split", Split(), 3).globalGrouping("lines")
    (doubt,) = doubts(builder.createTopology())
    assert "bolt 'split' has 3 tasks" in doubt


@pytest.mark.parametrize(
    ("grouping", "fields"), [("shuffleGrouping", ()), ("partialKeyGrouping", ("word",)), ("fieldsGrouping", ("size",))]
)
def test_a_sink_that_replaces_rows_by_a_key_it_is_not_grouped_by_is_doubted(builder, grouping, fields):
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    getattr(builder.setSink("table", SqlSink("sqlite:///a.db", "t", key="word"), 2), grouping)("split", *fields)
    (doubt,) = doubts(builder.createTopology())
    assert re.match(
        r"sink 'table' replaces rows by its key \(word\) in 2 tasks, but its input 'split' comes by .* grouping: .*"
        r"Use fieldsGrouping\('split', 'word'\), or parallelism=1",
        doubt,
    )


def test_sinks_whose_rows_of_one_key_are_in_one_task_are_not_doubted(builder):
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    for name, key, tasks in [("by_part", ["size", "word"], 2), ("by_all", "word", 2), ("added", (), 2)]:
        sink = SqlSink("sqlite:///a.db", name, key=key)
        builder.setSink(name, sink, tasks).fieldsGrouping("split", "word" if key else "size")
    builder.setSink("one_task", SqlSink("sqlite:///a.db", "one", key="word")).shuffleGrouping("split")
    assert doubts(builder.createTopology()) == []


def test_what_is_usual_is_not_doubted(builder):
    builder.setBolt("split", Split(), 3).shuffleGrouping("lines")
    builder.setBolt("count", Count(), 3).fieldsGrouping("split", "word")
    builder.setBolt("total", Count()).shuffleGrouping("split")
    builder.setBolt("all", Count(), 2).allGrouping("split").globalGrouping("count")
    assert doubts(builder.createTopology()) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("fork", r"its streams are default, late\)\. Add it to outputFields of Fork: \{'lat': ...\}"),
        ("sink", "it emits nothing"),
        ("lines", "A DataFrame has the stream 'default' only"),
    ],
)
def test_an_undeclared_stream(builder, source, message):
    builder.setBolt("fork", Fork()).shuffleGrouping("lines")
    builder.setBolt("sink", Sink()).shuffleGrouping("lines")
    builder.setBolt("split", Split()).shuffleGrouping(source, stream="lat")
    refuse(builder, f"bolt 'split' reads stream 'lat' of '{source}'.*{message}", stream="lat", source=source)


def test_a_cycle_shows_its_path(builder):
    builder.setBolt("a", Split()).shuffleGrouping("lines").shuffleGrouping("c")
    builder.setBolt("b", Split()).shuffleGrouping("a")
    builder.setBolt("c", Split()).shuffleGrouping("b")
    builder.setBolt("after", Split()).shuffleGrouping("c")
    with pytest.raises(TopologyError, match=r"form a cycle: . -> . -> . -> .") as caught:
        builder.createTopology()
    path = caught.value.path
    assert path[0] == path[-1]
    assert set(pairwise(path)) == {("a", "b"), ("b", "c"), ("c", "a")}


@pytest.mark.parametrize("name", ["fieldsGrouping", "partialKeyGrouping"])
def test_a_field_that_the_stream_lacks(builder, name):
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    getattr(builder.setBolt("count", Count()), name)("split", "word", "Size")
    refuse(builder, "bolt 'count' groups 'split' by 'Size', .* its fields are word, size", field="Size", source="split")


@pytest.mark.parametrize(
    ("left", "right", "fine"),
    [
        ("k int", "k int NOT NULL", True),
        ("k int", "k long", False),
        ("k decimal(10,2)", "k decimal(11,2)", False),
        ("k struct<a: int not null>", "k struct<a: int>", True),
        ("k timestamp", "k timestamp_ntz", False),
        ("k string", "k char(3)", True),
    ],
)
def test_keys_of_two_sources_must_have_equal_types(left, right, fine):
    builder = TopologyBuilder("join")
    builder.setStream("left", Frame(left))
    builder.setStream("right", Frame(right))
    builder.setBolt("join", Count()).fieldsGrouping("left", "k").fieldsGrouping("right", "k")
    if fine:
        assert builder.createTopology()
    else:
        refuse(
            builder, r"bolt 'join' groups 'left' by fields\(k\) of type \(.*cast one side", sources=("left", "right")
        )


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "2", None, 2**31])
def test_a_state_version_that_is_no_number_of_a_version(builder, version):
    bolt = type("Odd", (Count,), {"stateVersion": version})()
    with pytest.raises(TopologyError, match=r"bolt 'count': stateVersion of Odd is a whole number from 1") as told:
        builder.setBolt("count", bolt)
    assert told.value.component == "count"


def migrate(self, version, key, value):
    return value


def migrate_key(self, version, key):
    return key


@pytest.mark.parametrize(
    "hook",
    [
        {"migrateState": migrate},
        {"migrateKey": migrate_key},
        {"downgradeState": migrate},
        {"downgradeKey": migrate_key},
    ],
    ids=lambda hook: next(iter(hook)),
)
def test_hooks_of_other_versions_that_would_never_be_called(builder, hook):
    (name,) = hook
    with pytest.raises(TopologyError, match=rf"{name} of Old would never be called.*set stateVersion to 2"):
        builder.setBolt("count", type("Old", (Count,), hook)())
    builder.setBolt("count", type("New", (Count,), {**hook, "stateVersion": 2})())


class Windows(WindowedBolt):
    stateVersion = 2

    def execute(self, window, collector):
        pass

    migrateKey = migrate_key


def test_keys_of_windows_are_not_the_bolts(builder):
    with pytest.raises(TopologyError, match="migrateKey of Windows would never be called: what a windowed bolt keeps"):
        builder.setBolt("windows", Windows().withTumblingWindow("1 minute"))


class Pairs(IntervalJoin):
    stateVersion = 2
    migrateKey = migrate_key


def test_keys_of_a_join_are_not_the_bolts(builder):
    pairs = Pairs("a", "b", on="key", between=("0 seconds", "1 hour"), select="a.key")
    with pytest.raises(TopologyError, match="migrateKey of Pairs would never be called: what a join keeps"):
        builder.setBolt("pairs", pairs)


# ---- An input by broadcastGrouping that a bolt can't keep, or has no use for, is refused before anything starts.


def nothing(self, *given):
    pass


ROWS = {"execute": nothing}
STATE = {"initState": nothing, "outputFields": "account string", **ROWS}


def hears(self, tup, collector):
    pass


def combine_batch(self, batch):
    return batch


def made(base, hooks):
    return type("Check", (base,), hooks)()


def wired(bolt, *groupings, tasks=2):
    builder = TopologyBuilder("checked")
    builder.setStream("payments", rows("account string, cents long"))
    builder.setStream("rules", rows("name string, cents long"))
    declarer = builder.setBolt("check", bolt, tasks)
    for name, *given in groupings:
        getattr(declarer, name)(*given)
    used = {source for _, source, *_ in groupings}
    for source in {"payments", "rules"} - used:
        builder.setBolt(f"other-{source}", made(BasicBolt, ROWS)).shuffleGrouping(source)
    return builder


PAYMENTS, RULES = ("fieldsGrouping", "payments", "account"), ("broadcastGrouping", "rules")


@pytest.mark.parametrize(
    ("base", "hooks", "groupings", "said"),
    [
        (BasicBolt, ROWS, [PAYMENTS, RULES], ["Check keeps no state", "StatefulBolt", "allGrouping"]),
        (StatefulBolt, STATE, [PAYMENTS, RULES], ["def executeBroadcast(self, tup, collector)"]),
        (
            StatefulBolt,
            {**STATE, "executeBroadcast": hears, "combineBatch": combine_batch},
            [PAYMENTS, RULES],
            ["added up before it is sent", "a bolt behind it"],
        ),
        (StatefulBolt, {**STATE, "executeBroadcast": hears}, [RULES], ["no other input", "fieldsGrouping"]),
        (
            StatefulBolt,
            {**STATE, "executeBroadcast": hears},
            [PAYMENTS, ("allGrouping", "rules")],
            ["would never be called", "broadcastGrouping"],
        ),
        (StatefulBolt, {**STATE, "executeBroadcast": hears}, [PAYMENTS, ("broadcastGrouping", "check")], ["cycle"]),
        (StatefulBolt, {**STATE, "executeBroadcast": hears}, [PAYMENTS, ("broadcastGrouping", "rule")], ["'rules'"]),
        (StatefulBolt, {**STATE, "executeBroadcast": hears}, [PAYMENTS, RULES, RULES], ["2 times", "Declare it once"]),
    ],
)
def test_what_can_not_be_broadcast_is_refused_with_the_remedy(base, hooks, groupings, said):
    with pytest.raises(TopologyError) as caught:
        wired(made(base, hooks), *groupings).createTopology()
    assert [part for part in said if part not in str(caught.value)] == []


def test_a_sink_has_no_rules():
    builder = wired(made(BasicBolt, ROWS), PAYMENTS)
    builder.setSink("out", ConsoleSink()).broadcastGrouping("rules")
    with pytest.raises(TopologyError, match=r"sink 'out' reads 'rules' by broadcastGrouping, .*use allGrouping"):
        builder.createTopology()


def test_windows_have_no_rules():
    windowed = made(StatefulWindowedBolt, {"initState": nothing, "execute": hears})
    with pytest.raises(TopologyError, match=r"puts all of its input into windows: let a bolt behind it go by them"):
        wired(windowed.withTumblingWindow("1 minute"), ("globalGrouping", "payments"), RULES).createTopology()


def test_the_hook_is_one_of_bolts_with_state():
    with pytest.raises(TypeError, match="executeBroadcast is a hook of Stateful"):
        type("Check", (Bolt,), {**ROWS, "executeBroadcast": hears})


@pytest.mark.parametrize("name", ["executeBroadCast", "execute_broadcast", "processBroadcastElement"])
def test_names_that_look_like_the_hook_are_refused(name):
    with pytest.raises(TypeError, match="the hook is executeBroadcast"):
        type("Check", (StatefulBolt,), {**STATE, name: hears})


def test_rows_may_come_in_any_way_where_rules_are_all_that_is_kept():
    bolt = made(StatefulBolt, {**STATE, "executeBroadcast": hears})
    assert doubts(wired(bolt, ("shuffleGrouping", "payments"), RULES).createTopology()) == []


def test_broadcast_inputs_move_no_key():
    topology = wired(made(StatefulBolt, {**STATE, "executeBroadcast": hears}), PAYMENTS, RULES).createTopology()
    assert routing(topology, "check") == (("fields", "string"),)


def test_rules_of_a_dataframe_pass_one_task_and_have_barriers():
    bolt = made(StatefulBolt, {**STATE, "executeBroadcast": hears})
    plan = compile_plan(wired(bolt, PAYMENTS, RULES, tasks=9).createTopology())
    assert {name: plan.components[name].parallelism for name in plan.streams} == {"payments": 3, "rules": 1}
    assert plan.broadcast_channels("check", 1) == {(1, "rules", 0)}


# ---- A combiner that can't add up the bolt's input is refused before anything starts, with the remedy.


COUNTED = "word string, count long"


def bolt(**members):
    return type("Mine", (BasicBolt,), {"execute": lambda self, tup, collector: None, **members})()


def combine(self, a, b):
    return a


def init(self, tup):
    return tup


def batch(self, batch):
    return batch


def combiner_wired(reader, fields="word string", grouping="fieldsGrouping", *keys):
    builder = TopologyBuilder("words")
    builder.setSpout("words", MemoryTransactionalSpout([], fields))
    declarer = builder.setBolt("count", reader)
    getattr(declarer, grouping)("words", *(keys or (("word",) if grouping in BY_KEY else ())))
    return builder.createTopology()


BY_KEY = ("fieldsGrouping", "partialKeyGrouping")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"combine": combine, "combineBatch": batch}, ["combine and combineBatch", "take one out"]),
        ({"initCombine": init}, ["initCombine", "def combine(self, a, b)"]),
        ({"initCombine": init, "combineBatch": batch}, ["initCombine", "for combine only"]),
        ({"combinedFields": COUNTED}, ["combinedFields", "def combineBatch(self, batch)"]),
        ({"combinedFields": "word strong", "combineBatch": batch}, ["combinedFields", "strong"]),
        ({"combinedFields": {"default": COUNTED}, "combineBatch": batch}, ["combinedFields", "a schema is Spark DDL"]),
    ],
)
def test_hooks_that_do_not_belong_together_are_refused(members, words):
    with pytest.raises(TopologyError) as error:
        TopologyBuilder("words").setBolt("count", bolt(**members))
    assert all(word in str(error.value) for word in ["bolt 'count'", "Mine", *words]), str(error.value)


@pytest.mark.parametrize(
    ("members", "fields", "grouping", "words"),
    [
        ({"combine": combine}, "word string", "shuffleGrouping", ["shuffle grouping", "or combineBatch"]),
        ({"combine": combine}, "word string", "globalGrouping", ["global grouping"]),
        ({"combineBatch": batch}, "word string", "directGrouping", ["directGrouping", "another grouping"]),
        ({"combine": combine}, "word array<string>", "fieldsGrouping", ["'word'", "use combineBatch"]),
        ({"combine": combine, "combinedFields": COUNTED}, "word string", "fieldsGrouping", ["initCombine(self, tup)"]),
        ({"combineBatch": batch, "combinedFields": "n long"}, "word string", "fieldsGrouping", ["not have 'word'"]),
        ({"combineBatch": batch, "combinedFields": "word int"}, "word long", "partialKeyGrouping", ["other types"]),
    ],
)  # fmt: skip
def test_an_input_that_can_not_be_added_up_is_refused(members, fields, grouping, words):
    with pytest.raises(TopologyError) as error:
        combiner_wired(bolt(**members), fields, grouping)
    assert all(word in str(error.value) for word in ["bolt 'count'", "'words'", *words]), str(error.value)


@pytest.mark.parametrize(
    ("members", "fields", "grouping"),
    [
        ({"combine": combine}, COUNTED, "fieldsGrouping"),
        ({"combine": combine, "combinedFields": COUNTED}, COUNTED, "partialKeyGrouping"),
        ({"combine": combine, "initCombine": init, "combinedFields": COUNTED}, "word string", "fieldsGrouping"),
        ({"combineBatch": batch, "combinedFields": "n long"}, "word string", "globalGrouping"),
        ({"combineBatch": batch}, "word array<string>", "fieldsGrouping"),
    ],
)
def test_others_are_not(members, fields, grouping):
    assert isinstance(combiner_wired(bolt(**members), fields, grouping), Topology)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("combine_batch", "combineBatch"),
        ("combineBatchs", "combineBatch"),
        ("Combine", "combine"),
        ("init_combine", "initCombine"),
        ("combined_fields", "combinedFields"),
    ],
)
def test_a_near_miss_names_the_hook(name, right):
    with pytest.raises(TypeError, match=rf"Mine\.{name} would never be called: the hook is {right}"):
        bolt(**{name: lambda self, *_: None})


@pytest.mark.parametrize(
    ("name", "hook", "expected"),
    [
        ("combine", lambda self, a: a, r"combine\(self, a, b\)"),
        ("initCombine", lambda self: None, r"initCombine\(self, tup\)"),
    ],
)
def test_other_arguments_are_refused(name, hook, expected):
    with pytest.raises(TypeError, match=expected):
        bolt(**{name: hook})


def test_a_spout_has_no_combiner():
    """Nobody would call it."""
    assert not hasattr(TransactionalSpout, "combine")


# ---- A topology that reads its own output is fed without end: it is refused, unless that is said to be wanted.


SERVERS = "one:9092,two:9092"


def topology(spout, sink, **options):
    builder = TopologyBuilder("loop")
    builder.setSpout("records", spout)
    builder.setBolt("pass", Pass("value string")).shuffleGrouping("records")
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
