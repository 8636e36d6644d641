"""A combiner that can't add up the bolt's input is refused before anything starts, with the remedy."""

import pytest

from statefx import BasicBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import TopologyError
from statefx.operators import TransactionalSpout
from statefx.topology.graph import Topology

COUNTED = "word string, count long"


def bolt(**members):
    return type("Mine", (BasicBolt,), {"execute": lambda self, tup, collector: None, **members})()


def combine(self, a, b):
    return a


def init(self, tup):
    return tup


def batch(self, batch):
    return batch


def wired(reader, fields="word string", grouping="fieldsGrouping", *keys):
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
        wired(bolt(**members), fields, grouping)
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
    assert isinstance(wired(bolt(**members), fields, grouping), Topology)


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
