"""What a checkpoint knows of its topology, as the log holds it."""

import json

import pytest

from statefx.protocol.jsonform import NewerError, from_json, to_json
from statefx.protocol.topology_identity import NO_TOPOLOGY, TopologyIdentity
from tests.coordinator.histories import IDENTITY


@pytest.mark.parametrize("identity", [IDENTITY, NO_TOPOLOGY, TopologyIdentity("words", "batch")])
def test_it_is_read_as_it_was_written(identity: TopologyIdentity) -> None:
    assert from_json(TopologyIdentity, json.loads(json.dumps(to_json(identity)))) == identity


@pytest.mark.parametrize("where", [(), ("stateful", "count"), ("stateful", "count", "key_fields", 0)])
def test_what_a_newer_release_knows_of_it_is_not_passed_over(where: tuple[str | int, ...]) -> None:
    body = json.loads(json.dumps(to_json(IDENTITY)))
    inner = body
    for step in where:
        inner = inner[step]
    inner["sinks"] = {}
    with pytest.raises(NewerError, match="'sinks' that is not known to this release"):
        from_json(TopologyIdentity, body)


def test_another_provider_keeps_all_of_its_state() -> None:
    moved = IDENTITY.kept_by("new:New", None)
    assert (moved.name, moved.input, moved.stateful.keys()) == ("word-count", "stream", {"count"})
    count = moved.stateful["count"]
    assert (count.provider, count.options) == ("new:New", None)
    assert count.routing == IDENTITY.stateful["count"].routing
