"""An input by broadcastGrouping that a bolt can't keep, or has no use for, is refused before anything starts."""

import pytest

from statefx import BasicBolt, Bolt, ConsoleSink, StatefulBolt, StatefulWindowedBolt, TopologyBuilder
from statefx.errors import TopologyError
from statefx.plan.levels import compile_plan
from statefx.testing import rows
from statefx.topology.identity import routing
from statefx.topology.submission import doubts


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
