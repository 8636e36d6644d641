"""Topics that are deleted while a KafkaSpout goes on with the others (``lost='skip'``)."""

import json
import pickle
import random
import re
import time
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaError, KafkaException

from statefx import Context, TopologyBuilder
from statefx.connectors.kafka import planning
from statefx.connectors.kafka.planning import Cluster
from statefx.coordinator.driver_spout import DriverSpout
from statefx.errors import FailedException
from statefx.log.beside import committed_metadata
from statefx.log.log import read_state
from statefx.operators.context import DRIVER
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester
from tests.spouts import timed
from tests.spouts.kafka_topologies import spout

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """What a broker says is believed at once, and asked for with each look."""
    for name in ("DOUBT_SECS", "DISCOVERY_SECS"):
        monkeypatch.setattr(planning, name, 0.0)


class Driver:
    """The driver from one start to the next; `said` is what the log has."""

    def __init__(self, reads, said=()):
        self.said = json.loads(json.dumps(dict(said)))
        self.own = DriverSpout("records", pickle.loads(pickle.dumps(reads)), 1)
        self.own.spout.open(Context({"topology.transactional.id": "a"}, "records", DRIVER, 1, 1))
        self.own.spout.initPartitions({int(name): each for name, each in self.said.items()})
        self.forgotten = set(map(str, range(max(map(int, self.said), default=-1)))) - self.said.keys()

    def plan(self):
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            with suppress(FailedException):  # a topic that was just made has no leader yet
                return self.own.plan(1, self.said)
        raise TimeoutError

    def look(self):
        planned = self.plan()
        self.said = {name: each for name, each in {**self.said, **planned}.items() if each is not None}
        return planned

    def gone(self):
        return {name for name, each in self.said.items() if "gone" in each}

    def close(self):
        self.own.spout.close()


class Hidden(set):
    """Topics that a broker does not tell of, which is cut off from the others."""

    def __init__(self, monkeypatch):
        described, wanted = planning.describe_topics, Cluster._wanted

        def describe(admin, names):
            unknown = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            seen = [name for name in names if name not in self]
            return (described(admin, seen) if seen else {}) | dict.fromkeys(self & set(names), unknown)

        monkeypatch.setattr(planning, "describe_topics", describe)
        monkeypatch.setattr(Cluster, "_wanted", lambda own: [name for name in wanted(own) if name not in self])


class Schedule:
    """What happens to three topics and their driver, step by step; each look is compared with the looks before."""

    def __init__(self, kafka, monkeypatch, chance, prefix):
        self.kafka, self.monkeypatch, self.chance = kafka, monkeypatch, chance
        self.names = [f"{prefix}-{number}" for number in range(3)]
        self.hidden, self.finished = Hidden(monkeypatch), set()
        self.sent = {}
        """The topics that are there, and how many records each has."""
        self.ends = defaultdict(int)
        """By topic's id and partition, up to where they were planned."""
        self.reads = spout(kafka, re.compile(f"{prefix}-.*"), start=chance.choice(["earliest", "latest"]), lost="skip")
        self.make(self.names[0])
        self.send(self.names[0])
        self.driver = Driver(self.reads)
        if self.reads.start == "latest":
            self.ends[self.ids[self.names[0]], 0] = 1
        self.look()

    @property
    def ids(self):
        return self.driver.own.spout._planning.cluster.ids

    def step(self):
        step = self.chance.choice([*["make", "delete", "start"] * 2, "hide", "send", *["look"] * 3, "lost", "later"])
        name = self.chance.choice(self.names)
        if step in ("start", "look", "lost"):
            getattr(self, step)()
        elif (name in self.sent) != (step == "make"):
            getattr(self, step)(name)

    def make(self, name):
        self.kafka.topic(self.chance.randint(1, 2), name)
        self.sent[name] = 0

    def delete(self, name):
        self.kafka.delete(name)
        del self.sent[name]
        self.hidden.discard(name)

    def hide(self, name):
        self.hidden ^= {name}

    def send(self, name):
        self.kafka.send(name, "a")
        self.sent[name] += 1

    def look(self):
        for number, said in self.driver.look().items():
            assert (number in self.finished) == (said is None), "what is finished is only forgotten"
            if said is not None and "gone" in said:
                self.finished.add(number)
            elif said is not None:
                part = said["id"], said["partition"]
                assert said["start"] == self.ends[part], "no offset is read twice, and none is left out"
                self.ends[part] = said["end"]

    def lost(self):
        self.driver.plan()

    def start(self):
        self.driver.close()
        self.driver = Driver(self.reads, self.driver.said)
        self.finished |= self.driver.forgotten

    def later(self, name):
        if not self.hidden:
            self.look()  # with what the start has seen
            self.look()
            self.send(name)
            with self.monkeypatch.context() as patched:
                patched.setattr(planning, "FORGET_SECS", -1.0)
                self.look()
                assert len(self.driver.said) <= 2 * len(self.sent) + 2


@pytest.mark.daily(3)
@pytest.mark.parametrize("seed", range(20))
def test_each_offset_is_planned_once_whatever_topics_go_and_come_back(seed, kafka, monkeypatch):
    schedule = Schedule(kafka, monkeypatch, random.Random(seed), f"goes-{seed}")
    for _ in range(60):
        schedule.step()
    schedule.hidden.clear()
    for _ in range(3):
        schedule.look()
    assert {name: schedule.ends[schedule.ids[name], 0] for name in schedule.sent} == schedule.sent
    schedule.driver.close()


def test_one_that_is_back_with_nothing_new_is_remembered_when_its_former_number_is_forgotten(kafka, monkeypatch):
    hidden = Hidden(monkeypatch)
    reads = spout(kafka, re.compile("back-.*"), lost="skip")
    for name in ("back-1", "back-2"):
        kafka.send(kafka.topic(name=name), "a")
    driver = Driver(reads)
    driver.look()
    hidden.add("back-1")
    driver.look()
    hidden.clear()
    for _ in range(2):
        driver.look()
    monkeypatch.setattr(planning, "FORGET_SECS", -1.0)
    for _ in range(2):
        kafka.send("back-2", "b")
        driver.look()
    assert not driver.gone()
    driver.close()
    again = Driver(reads, driver.said)
    kafka.send("back-1", "b")
    planned = [each for _ in range(2) for each in again.look().values()]
    found = {(each["topic"], each["start"], each["end"]) for each in planned}
    assert found == {("back-1", 1, 2)}
    again.close()


def test_a_start_after_all_topics_are_gone_is_no_first_one(kafka, monkeypatch):
    """It would begin at the end."""
    monkeypatch.setattr(planning, "FORGET_SECS", -1.0)
    kafka.topic(2, "all-gone")
    reads = spout(kafka, re.compile("all-gone"), start="latest", lost="skip")
    driver = Driver(reads)
    driver.look()
    kafka.delete("all-gone")
    for _ in range(2):
        driver.look()
        driver.close()
        driver = Driver(reads, driver.said)
    assert driver.gone() == driver.said.keys() == {"0", "1"}
    driver.close()
    kafka.send(kafka.topic(1, "all-gone"), "a", "b")
    driver = Driver(reads, driver.said)
    assert [(each["start"], each["end"]) for each in driver.look().values() if each is not None] == [(0, 2)]
    driver.close()


def test_a_topic_that_is_named_and_is_gone_for_long_is_not_refused_by_a_start(kafka, monkeypatch):
    monkeypatch.setattr(planning, "FORGET_SECS", -1.0)
    goes, stays = kafka.topic(), kafka.topic()
    reads = spout(kafka, [goes, stays], lost="skip")
    driver = Driver(reads)
    driver.look()
    kafka.delete(goes)
    for _ in range(4):
        kafka.send(stays, "a")
        driver.look()
        driver.close()
        driver = Driver(reads, driver.said)
    assert driver.gone() == {"0"}
    kafka.send(kafka.topic(name=goes), "a")
    for _ in range(4):
        kafka.send(stays, "a")
        driver.look()
    assert {(each["topic"], each["end"]) for each in driver.said.values()} == {(goes, 1), (stays, 8)}
    driver.close()


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_deleted_topic_holds_no_watermark_and_leaves_nothing(tasks, kafka, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "FORGET_SECS", -1.0)
    begin = datetime.now(UTC).replace(microsecond=0)
    reads = spout(kafka, re.compile(f"dated-{tasks}-.*"), columns=("value", "timestamp"), lost="skip")
    builder = TopologyBuilder("kafka")
    builder.setSpout("records", reads, tasks, timestamp="timestamp")
    builder.setBolt("watch", timed.Watch()).globalGrouping("records")

    def send(day, secs):
        for partition in (0, 1):
            sent = int(begin.timestamp() + secs) * 1000
            kafka.send(f"dated-{tasks}-{day}", "a", partition=partition, timestamp=sent)

    tester = TopologyTester(builder.createTopology(), tmp_path / "ck", now=begin)
    for day in range(5):
        kafka.topic(2, f"dated-{tasks}-{day}")
        send(day, 10 * day)
        tester.drain()
        if day:
            kafka.delete(f"dated-{tasks}-{day - 1}")
        tester.drain()
        send(day, 10 * day + 5)
        tester.drain()
        past = (begin - timed.START).total_seconds()
        assert timed.watermarks(tester)[-1] - past == 10 * day + 5
        if day % 2:
            tester = tester.restart()
    tester.close()
    state, storage = read_state(FolderStorage(tmp_path / "ck")), FolderStorage(tmp_path / "ck")
    assert set(state.unit_times) == {"records/8", "records/9", "records/-1"}
    assert committed_metadata(storage, state, "records").keys() == {"8", "9"}
