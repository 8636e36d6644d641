"""What can go wrong with a broker under a KafkaSink: it dies, is silent, forgets the marker, or ends a transaction."""

import time

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from statefx import TopologyBuilder
from statefx.connectors.kafka import KafkaSink, clients
from statefx.connectors.kafka import topic as topics
from statefx.connectors.kafka.topic import KafkaTopic
from statefx.coordinator.retrying import StoppedError
from statefx.errors import SinkError, SinkMismatchError, SinkOwnedError
from statefx.testing import Crash, Limits, TopologyTester, rows
from tests.kafka.broker import KafkaBroker
from tests.kafka.topics import STEPS, once, read, settled, steps
from tests.spark.running import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]

BOUND_SECS = 40


def topology(sink, name="words"):
    builder = TopologyBuilder(name)
    builder.setStream("lines", rows("word string"))
    builder.setSink("out", sink, parallelism=2).shuffleGrouping("lines")
    return builder.createTopology()


@pytest.fixture
def topic(kafka):
    yield kafka.topic(partitions=2)
    kafka.thaw()  # whatever has failed


def sink(kafka, topic, **arguments):
    quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
    return KafkaSink(kafka.address, topic, value="word", config=quick, **arguments)


def values(kafka, topic, level="read_committed"):
    return sorted(each.value().decode() for each in read(kafka, topic, level))


@pytest.mark.parametrize(
    "moment",
    [
        "before _mark",
        *(pytest.param(f"before {step}", marks=pytest.mark.soak) for step in ("_begin", "_send", "_commit")),
        pytest.param("after _commit", marks=pytest.mark.soak),
    ],
)
def test_a_broker_that_is_killed_and_comes_back_has_each_row_once(kafka, topic, tmp_path, moment):
    with TopologyTester(topology(sink(kafka, topic)), tmp_path) as tester:
        tester.send({"lines": [("a",)]})
        with once(tester, moment, kafka.restart):
            tester.send({"lines": [("b",), ("c",)]})
        tester.send({"lines": [("d",)]})
    assert values(kafka, topic) == ["a", "b", "c", "d"]


def test_a_broker_that_is_away_is_told_in_the_status_until_it_is_back(kafka, topic, tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "START_SECS", 0.5)
    reasons, times = [], []
    with TopologyTester(topology(sink(kafka, topic, transactionTimeoutSecs=1)), tmp_path) as tester:

        def told():
            reasons.append(tester.status["stuck"]["reason"])
            times.append(time.monotonic())
            if len(times) > 1:
                kafka.start()
                return
            tester.when("pause", told)
            # The next attempt may wait for each answer as long as a user's.
            monkeypatch.setattr(topics, "CALL_SECS", 20.0)

        tester.send({"lines": [("a",)]})
        tester.when("before COMMITTING(2, 0)", kafka.kill)
        tester.when("pause", told)
        tester.send({"lines": [("b",)]})
    assert "no broker answers" in reasons[0] or "took longer than 1 s" in reasons[0], reasons
    assert "no broker answers" in reasons[1], reasons
    assert times[1] - times[0] < 15, "one question after the other waits for a broker that is away"
    assert values(kafka, topic) == ["a", "b"]


@pytest.mark.parametrize("dies", [False, True])
def test_a_broker_that_ends_late_what_it_has_answered_counts_as_no_backup(kafka, topic, tmp_path, monkeypatch, dies):
    """It dies behind its answer, say: readers see the marker before it until it has come up and found what was open."""
    monkeypatch.setattr(topics, "_STABLE_SECS", 0.2)
    commit, initialise, late = KafkaTopic._commit, KafkaTopic._initialised, []

    def answer(self):
        self._producer.flush()
        late.append(self._producer)
        self._has_lost = True
        monkeypatch.setattr(KafkaTopic, "_commit", commit)

    def ended(self):
        while late:
            late.pop().commit_transaction()
        return initialise(self)

    monkeypatch.setattr(KafkaTopic, "_initialised", ended)
    with TopologyTester(topology(sink(kafka, topic)), tmp_path) as tester:
        tester.when("before COMMITTING(1, 0)", lambda: monkeypatch.setattr(KafkaTopic, "_commit", answer))
        tester.send({"lines": [("a",)]})
        if not dies:
            tester.when("pause", lambda: pytest.fail(tester.status["stuck"]["reason"]))
            tester.send({"lines": [("b",)]})
    if dies:
        with TopologyTester(topology(sink(kafka, topic)), tmp_path) as tester:
            tester.send({"lines": [("b",)]})
    assert values(kafka, topic) == ["a", "b"]


@pytest.mark.parametrize(
    "moment",
    [
        "before COMMITTING(2, 0)",
        *(pytest.param(f"before {step}", marks=pytest.mark.soak) for step in STEPS[2:]),
        pytest.param("after _commit", marks=pytest.mark.soak),
    ],
)
def test_a_broker_that_is_silent_does_not_hold_the_driver(kafka, topic, tmp_path, moment):
    with TopologyTester(topology(sink(kafka, topic, transactionTimeoutSecs=2)), tmp_path) as tester:
        tester.send({"lines": [("a",)]})
        tester.when("pause", kafka.thaw)
        began = time.monotonic()
        with once(tester, moment, kafka.freeze):
            tester.send({"lines": [("b",)]})
        if moment == "after _commit":
            tester.close()
            kafka.thaw()
        assert time.monotonic() - began < BOUND_SECS
    assert values(kafka, topic) == ["a", "b"]


@pytest.mark.soak
@pytest.mark.parametrize("known", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_broker_that_is_silent_while_rows_are_prepared_fails_no_query(kafka, topic, tmp_path, monkeypatch, known):
    with TopologyTester(topology(sink(kafka, topic, transactionTimeoutSecs=2)), tmp_path) as tester:
        tester.send({"lines": [("a",)]})
        monkeypatch.setattr(topics, "_LIMITS_SECS", 0)  # all that is known is old
        if not known:
            monkeypatch.setattr(topics, "_known_limits", {})
        tester.when("before PREPARING(2, 0)", kafka.freeze)
        tester.when("pause", kafka.thaw)
        sent = tester.send({"lines": [("b",)]})
        assert sent.progress.attempt == (0 if known else 1)
    assert values(kafka, topic) == ["a", "b"]


@pytest.mark.soak
@pytest.mark.parametrize(
    "moment",
    [
        "the beginning",
        *(
            pytest.param(f"before {step}", marks=pytest.mark.soak)
            for step in ("_initialised", "_begin", "_mark", "_commit")
        ),
    ],
)
def test_a_start_while_the_broker_is_silent_ends_with_an_error_and_the_next_one_goes_on(kafka, topic, tmp_path, moment):
    out = sink(kafka, topic, transactionTimeoutSecs=2)
    with TopologyTester(topology(out), tmp_path) as tester:
        tester.send({"lines": [("a",)]})
    left = [kafka.freeze]
    began = time.monotonic()
    if moment == "the beginning":
        left.pop()()
    with (
        steps(lambda now: now == moment and left and left.pop()()),
        pytest.raises(SinkError, match="no broker answers"),
    ):
        TopologyTester(topology(out), tmp_path)
    assert time.monotonic() - began < BOUND_SECS
    kafka.thaw()
    with TopologyTester(topology(out), tmp_path) as tester:
        tester.send({"lines": [("b",)]})
    assert values(kafka, topic) == ["a", "b"]


@pytest.mark.soak
def test_a_stop_while_the_broker_is_silent_ends_soon_and_the_next_start_publishes(kafka, topic, tmp_path):
    out = sink(kafka, topic, transactionTimeoutSecs=2)
    with TopologyTester(topology(out), tmp_path, limits=Limits(pauses=1)) as tester:  # as a query that is stopped
        tester.send({"lines": [("a",)]})
        tester.when("before COMMITTING(2, 0)", kafka.freeze)
        began = time.monotonic()
        with pytest.raises(StoppedError, match="it is committed first"):
            tester.send({"lines": [("b",)]})
    assert time.monotonic() - began < BOUND_SECS
    kafka.thaw()
    with TopologyTester(topology(out), tmp_path):
        pass
    assert values(kafka, topic) == ["a", "b"]


@pytest.mark.soak
def test_a_broker_that_has_just_been_made_or_started_is_waited_for(patient, tmp_path):
    """Kafka's own topics are made when they are first asked for, and their coordinators load them after each start."""
    with KafkaBroker() as kafka:
        topic = kafka.topic(partitions=2)
        for number in range(3):
            with TopologyTester(topology(sink(kafka, topic)), tmp_path) as tester:
                tester.send({"lines": [(str(number),)]})
            kafka.restart()
        assert values(kafka, topic) == ["0", "1", "2"]


def test_a_broker_that_ends_a_transaction_for_its_time_is_told_and_the_rows_come_once(kafka, topic, tmp_path):
    reasons = []
    with TopologyTester(topology(sink(kafka, topic, transactionTimeoutSecs=1)), tmp_path) as tester:
        tester.send({"lines": [("a",)]})
        tester.when("pause", lambda: reasons.append(tester.status["stuck"]["reason"]))
        assert settled(kafka, topic, BOUND_SECS)  # else the first one's late marker is taken for the end
        with once(tester, "after _send", lambda: wait_for_end(kafka, topic)):
            tester.send({"lines": [("b",)]})
    assert "publishing took longer than 1 s" in reasons[0]
    assert "raise transactionTimeoutSecs" in reasons[0]
    assert values(kafka, topic) == ["a", "b"]


def wait_for_end(kafka, topic):
    """Wait until the broker has rows of a transaction that is open, and then until it has ended it."""
    wait_for(lambda: not settled(kafka, topic, 0), "rows that are not committed", BOUND_SECS)
    assert settled(kafka, topic, BOUND_SECS), "the broker does not end it"


def test_a_marker_that_was_deleted_is_refused_and_can_be_taken_over(kafka, topic, tmp_path):
    out = sink(kafka, topic)
    with TopologyTester(topology(out), tmp_path) as tester:
        tester.send({"lines": [("a",)]})
    kafka.admin.delete_consumer_groups([out.publisher.transactional_id])[out.publisher.transactional_id].result(
        BOUND_SECS
    )
    with pytest.raises(SinkMismatchError, match="adopt='takeover'"):
        TopologyTester(topology(out), tmp_path)
    with TopologyTester(topology(out), tmp_path, adopt="takeover") as tester:
        tester.send({"lines": [("b",)]})
    assert values(kafka, topic) == ["a", "b"]


@pytest.mark.soak
def test_a_marker_that_is_deleted_while_a_decided_transaction_waits_is_never_a_second_write(kafka, topic, tmp_path):
    out, reasons = sink(kafka, topic), []

    def delete():
        kafka.admin.delete_consumer_groups([out.publisher.transactional_id])[out.publisher.transactional_id].result(
            BOUND_SECS
        )
        raise ConnectionError("and the answer to the commit is lost")

    with TopologyTester(topology(out), tmp_path) as tester:
        tester.send({"lines": [("a",)]})

        def told():
            reasons.append(tester.status["stuck"]["reason"])
            if len(reasons) == 1:
                tester.when("pause", told)
            else:
                tester.close()

        tester.when("pause", told)
        with once(tester, "after _commit", delete), pytest.raises(Exception, match="decided"):
            tester.send({"lines": [("b",)]})
    assert "takeover" in reasons[-1]
    assert values(kafka, topic) == ["a", "b"]


def test_what_is_decided_is_published_by_another_address_of_the_brokers(kafka, topic, tmp_path):
    def by(host):
        return topology(KafkaSink(f"{host}:{kafka.port}", topic, value="word", transactionalId="me"))

    def die():
        raise Crash

    tester = TopologyTester(by("127.0.0.1"), tmp_path)
    tester.send({"lines": [("a",)]})
    with once(tester, "before _begin", die), pytest.raises(Crash):
        tester.send({"lines": [("b",)]})
    with TopologyTester(by("localhost"), tmp_path) as successor:
        successor.run([{"lines": [("a",)]}, {"lines": [("b",)]}])
    assert values(kafka, topic) == ["a", "b"]
    kafka.admin.delete_consumer_groups(["me"])["me"].result(BOUND_SECS)
    with pytest.raises(SinkMismatchError, match="adopt='takeover'"):  # the marker is known by any address
        TopologyTester(by("127.0.0.1"), tmp_path)


def test_an_offset_of_somebody_else_in_the_group_is_no_marker(kafka, topic, tmp_path):
    out = sink(kafka, topic)
    place = ConsumerGroupTopicPartitions(out.publisher.transactional_id, [TopicPartition(topic, 0, 0)])
    kafka.admin.alter_consumer_group_offsets([place])[out.publisher.transactional_id].result(BOUND_SECS)
    with pytest.raises(Exception, match="is no marker: somebody has reset it"):
        TopologyTester(topology(out), tmp_path)


def test_another_topology_that_writes_to_the_topic_is_refused_or_takes_another_id(kafka, topic, tmp_path):
    with TopologyTester(topology(sink(kafka, topic)), tmp_path / "one") as tester:
        tester.send({"lines": [("a",)]})
    with pytest.raises(SinkOwnedError, match="adopt='takeover'"):
        TopologyTester(topology(sink(kafka, topic), "others"), tmp_path / "two")
    out = sink(kafka, topic, transactionalId="others")
    with TopologyTester(topology(out, "others"), tmp_path / "two") as tester:
        tester.send({"lines": [("b",)]})
    assert values(kafka, topic) == ["a", "b"]


def test_what_was_not_committed_is_seen_by_readers_of_uncommitted_rows_alone(kafka, topic, tmp_path):
    def fail():
        wait_for(lambda: not settled(kafka, topic, 0), "rows at the broker")
        raise ConnectionError("the network is gone")

    with TopologyTester(topology(sink(kafka, topic)), tmp_path) as tester, once(tester, "before _commit", fail):
        tester.send({"lines": [("a",)]})
    assert values(kafka, topic) == ["a"]
    assert values(kafka, topic, "read_uncommitted") == ["a", "a"]
