"""What a KafkaSink may do is denied: at the start, between transactions, and in the middle of one."""

import re

import pytest

from statefx import TopologyBuilder
from statefx.connectors.kafka import KafkaSink
from statefx.errors import SinkError
from statefx.testing import TopologyTester, rows
from tests.kafka.topics import once, read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]

NEEDED = {
    "topic Write": r"lacks WRITE of topic 't\d+': allow both WRITE",
    "topic Read": r"lacks READ of topic 't\d+': allow both WRITE \(its messages\) and READ",
    "group Read": r"GROUP_AUTHORIZATION_FAILED\): allow this client's user Read of the consumer group 'statefx\.t\d+'",
    "transactional_id Write": r"allow this client's user Write of the transactional id 'statefx\.t\d+'",
}
"""What it needs, as a kind of resource and an operation, and what it says without."""

WITHDRAWN = {
    "topic Write": r"TOPIC_AUTHORIZATION_FAILED\): allow this client's user Write and Read of topic 't\d+'",
    **{name: told for name, told in NEEDED.items() if not name.startswith("topic")},
}

LOOKED_AT = {
    "topic Write": ["before COMMITTING(2, 0)", "before _send"],
    "group Read": ["before _mark", "before COMMITTING(2, 0)", "before _send"],
    "transactional_id Write": ["before COMMITTING(2, 0)", "before _send", "before _mark", "before _commit"],
}
"""Moments after which the broker still looks at it, in the same transaction."""

CASES = [
    pytest.param(name, moment, marks=pytest.mark.soak if number else [])
    for name, moments in LOOKED_AT.items()
    for number, moment in enumerate(moments)
]


@pytest.fixture
def topic(kafka):
    return kafka.topic(partitions=2)


@pytest.fixture
def grant(kafka, topic):
    """Return what allows everybody what the sink needs, but one of it; by default all. Only who says so is allowed."""
    names = {"topic": topic, "group": f"statefx.{topic}", "transactional_id": f"statefx.{topic}"}

    def granted(without=None):
        kafka.revoke(names)
        kafka.allow(names, [each.split() for each in NEEDED if each != without])

    granted()
    yield granted
    kafka.revoke(names)


def topology(kafka, topic):
    builder = TopologyBuilder("words")
    builder.setStream("lines", rows("word string"))
    builder.setSink("out", KafkaSink(kafka.address, topic, value="word"), parallelism=2).shuffleGrouping("lines")
    return builder.createTopology()


@pytest.mark.daily(1)
@pytest.mark.parametrize("lacking", NEEDED)
def test_what_is_denied_at_the_start_is_told_before_anything_is_read(kafka, topic, grant, tmp_path, lacking):
    grant(without=lacking)
    with pytest.raises(SinkError, match=NEEDED[lacking]):
        TopologyTester(topology(kafka, topic), tmp_path)
    grant()
    with TopologyTester(topology(kafka, topic), tmp_path) as tester:
        tester.send({"lines": [("a",)]})
    assert [each.value() for each in read(kafka, topic)] == [b"a"]


@pytest.mark.daily(1)
@pytest.mark.parametrize(("lacking", "moment"), CASES)
def test_what_is_withdrawn_while_the_topology_runs_is_told_and_it_goes_on(
    kafka, topic, grant, tmp_path, lacking, moment
):
    reasons = []

    def told():
        if re.search(WITHDRAWN[lacking], tester.status["stuck"]["reason"]):  # a busy broker may also be told to be away
            reasons.append(tester.status["stuck"]["reason"])
        if len(reasons) == 2:  # also a producer that is made anew is refused
            grant()
        else:
            tester.when("pause", told)

    with TopologyTester(topology(kafka, topic), tmp_path) as tester:
        tester.send({"lines": [("a",)]})
        tester.when("pause", told)
        with once(tester, moment, lambda: grant(without=lacking)):
            tester.send({"lines": [("b",), ("c",)]})
        tester.send({"lines": [("d",)]})
    assert sorted(each.value() for each in read(kafka, topic)) == [b"a", b"b", b"c", b"d"]
    assert len(reasons) == 2
