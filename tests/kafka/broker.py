"""A real Kafka broker for tests: KRaft, on loopback, alone or with others; it ends with the process that started it."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tests.kafka.libraries import java, libraries, quiet
from tests.ports import free_port, is_free

WAIT_SECS = 60

# Nothing of it is worth a good compiler, and its data are lost with the machine: there is nothing to wait a disk for.
# One whose threads have died of a full heap would answer nobody, and be there.
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError")

CLASSES = Path(__file__).parents[2] / "build" / "kafka-classes.jsa"
"""`tests/kafka/class_archive.py` makes it, for `make test`. A JVM ignores one that is not of its version and jars."""

# Ends the broker when this process is gone, however it went: the pipe that it reads is closed then.
WATCH = 'cat >/dev/null; kill -9 "$1" 2>/dev/null; rm -rf "$2"'

SETTINGS = {
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    # Who comes back after a SIGKILL is not let in before the session of the one before has ended: by default 9 s.
    # As long as a JVM takes to start. With 1 s a busy machine had live ones shut out, and clients told of new leaders.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 200,
    # Whom no rule names may do everything, so a test can deny things to everybody.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "log.retention.check.interval.ms": 100,
    "log.initial.task.delay.ms": 100,
    # A start after a SIGKILL looks through each partition that there is, and makes its index again.
    "log.index.size.max.bytes": 1 << 16,
    "log.segment.delete.delay.ms": 1000,
    "log.cleaner.dedupe.buffer.size": 16 << 20,  # by default a quarter of the heap
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}
"""For clients of tests: a broker that is restarted is back in two seconds."""


class KafkaBroker:
    """A broker of its own: free ports, a temporary folder; ended with `close`.

    Parameters
    ----------
    listeners : Mapping of str to str
        Further ones: the protocol of each, such as ``SASL_SSL``, by its name.
    port : int, optional
        By default a free one.
    joins : KafkaBroker, optional
        Whose cluster it joins, as another node; that one stays the controller.
    **settings : object
        As in server.properties; underscores stand for dots.

    Attributes
    ----------
    ports : dict of str to int
        By the name of the listener.
    """

    def __init__(
        self,
        listeners: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        joins: KafkaBroker | None = None,
        **settings: object,
    ) -> None:
        self._libraries = libraries()
        self.port = port or free_port()
        self._cluster: dict[str, Any] = {"id": _id(), "controller": free_port(), "nodes": 0}
        if joins is not None:
            self._cluster = joins._cluster
        self._cluster["nodes"] += 1
        self.node: int = self._cluster["nodes"]
        self.ports = {"PLAINTEXT": self.port} | {name: free_port() for name in listeners or {}}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"} | dict(listeners or {})
        advertised = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        self.folder = Path(tempfile.mkdtemp(prefix="statefx-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._topics = 0
        self.admin = AdminClient(self.client())
        """A client that is not statefx's; kept, since one that is collected drops what it has not answered yet."""
        own = {
            "process.roles": "broker" if joins else "broker,controller",
            "node.id": self.node,
            "listeners": advertised if joins else f"{advertised},CONTROLLER://127.0.0.1:{self._cluster['controller']}",
            "advertised.listeners": advertised,
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            # Voters that are named here, and the two lines below, are all that formatting would make: another JVM, 5 s.
            "controller.quorum.voters": f"1@127.0.0.1:{self._cluster['controller']}",
            "log.dirs": self.folder / "data",
        }
        lines = SETTINGS | own | {name.replace("_", "."): value for name, value in settings.items()}
        (self.folder / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        (self.folder / "data").mkdir()
        (self.folder / "data" / "meta.properties").write_text(
            f"version=1\ncluster.id={self._cluster['id']}\nnode.id={self.node}\ndirectory.id={_id()}\n"
        )
        self.start()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        """What clients call ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it on the data it has, and wait until it answers."""
        archived = (f"-XX:SharedArchiveFile={CLASSES}", "-Xlog:disable") if CLASSES.exists() else ()
        command = [java(), *JVM, *archived, "-cp", f"{self._libraries}/*", "kafka.Kafka", "server.properties"]
        with (self.folder / "log").open("ab") as log:
            # Process groups of their own: Ctrl-C is for the tests, which then end the broker. Not sessions, which Linux
            # gives shares of the processor (`sched_autogroup_enabled`): beside busy loops, and clients that wait for
            # it, a broker in one got 1.9 s of 60, and seemed to hang. In the session of the tests it starts in 9 s.
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=quiet(), stdout=log, stderr=log, process_group=0
            )
        self._watch = subprocess.Popen(
            ["sh", "-c", WATCH, "sh", str(self._process.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            process_group=0,
        )
        limit = time.monotonic() + WAIT_SECS
        while True:
            with suppress(KafkaException):
                if self.admin.list_topics(timeout=1).brokers:
                    return self
            # While it does not count itself yet, it tells of a cluster without brokers: a client that hears so may ask
            # nobody any more (librdkafka's issue 5301).
            self.admin = AdminClient(self.client())
            ended = self._process.poll() is not None
            assert not ended, (self.folder / "log").read_text()
            assert time.monotonic() < limit, (self.folder / "log").read_text()

    def client(self, **settings: Any) -> dict[str, Any]:
        """Return the settings of a client that is not statefx's; underscores stand for dots."""
        return {
            "bootstrap.servers": self.address,
            **QUICK,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }

    def topic(
        self, partitions: int = 1, name: str | None = None, nodes: Sequence[int] | None = None, **config: object
    ) -> str:
        """Make a topic and return its name; of settings, underscores stand for dots.

        Parameters
        ----------
        nodes : sequence of int, optional
            For each partition the only node that has it.
        """
        self._revive()
        self._topics += 1
        name = name or f"t{self._topics}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        where: dict[str, Any] = {"replication_factor": 1}
        if nodes is not None:
            partitions, where = len(nodes), {"replica_assignment": [[node] for node in nodes]}
        made = NewTopic(name, num_partitions=partitions, config=settings, **where)
        self._decided(lambda: self.admin.create_topics([made])[name])
        self._wait_for_partitions(name, partitions)
        return name

    def _revive(self) -> None:
        """Have it answer, whatever a test has left that has failed."""
        assert self._process is not None
        assert self._watch is not None
        if self._process.poll() is None:
            self.thaw()
            return
        if self._watch.poll() is None:
            self.kill()
        self.start()

    def _wait_for_partitions(self, topic: str, count: int) -> None:
        """Wait until the broker goes by what its controller has written down."""
        limit = time.monotonic() + WAIT_SECS
        while True:
            with suppress(KafkaException):
                found = self.admin.list_topics(topic, timeout=1).topics[topic].partitions
                if len(found) == count and all(each.leader >= 0 for each in found.values()):
                    return
            assert time.monotonic() < limit, f"{topic} does not come"

    def _decided(self, ask: Callable[[], Future[None]]) -> None:
        """Ask the controller for something, again while it takes the broker for dead: one that was frozen, or too busy.

        It is back in a moment.
        """
        limit = time.monotonic() + WAIT_SECS
        while True:
            try:
                return ask().result(WAIT_SECS)
            except FutureTimeoutError:
                raise AssertionError(f"no answer of the broker:\n{self._log_end()}") from None
            except KafkaException as error:
                if error.args[0].name() != "INVALID_REPLICATION_FACTOR" or time.monotonic() > limit:
                    raise

    def _log_end(self) -> str:
        return (self.folder / "log").read_text()[-5000:]

    def alter(self, topic: str, **config: object) -> None:
        """Change settings of a topic; underscores stand for dots."""
        changes = [
            ConfigEntry(key.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
        self.admin.incremental_alter_configs([altered])[altered].result(WAIT_SECS)

    def limit_consumers(self, client: str, bytes_per_sec: int) -> None:
        """Set a quota of what consumers with a client id may read; Kafka's own program does it, no client can."""
        main = [java(), "-cp", f"{self._libraries}/*", "kafka.admin.ConfigCommand", "--bootstrap-server", self.address]
        quota = ["--alter", "--add-config", f"consumer_byte_rate={bytes_per_sec}"]
        whose = ["--entity-type", "clients", "--entity-name", client]
        subprocess.run([*main, *quota, *whose], env=quiet(), check=True, timeout=WAIT_SECS, capture_output=True)

    def add_partitions(self, topic: str, total: int) -> None:
        """Make more partitions, so that there are `total`."""
        self._decided(lambda: self.admin.create_partitions([NewPartitions(topic, total)])[topic])
        self._wait_for_partitions(topic, total)

    def allow(self, names: Mapping[str, str], operations: Iterable[Sequence[str]]) -> None:
        """Allow everybody some operations, as kind and operation; and on these resources nothing else.

        Parameters
        ----------
        names : Mapping of str to str
            Of resources, by kind: ``topic``, ``group``, ``transactional_id``.
        operations : iterable of pairs of str
        """
        rules = [(kind, "User:ANONYMOUS", operation.upper()) for kind, operation in operations]
        # A resource without any rule is everybody's.
        rules += [(kind, "User:nobody", "ALL") for kind in names]
        made = [
            AclBinding(
                ResourceType[kind.upper()], names[kind], ResourcePatternType.LITERAL, who, "*",
                AclOperation[operation], AclPermissionType.ALLOW,
            )
            for kind, who, operation in rules
        ]  # fmt: skip
        for each in self.admin.create_acls(made).values():
            each.result(WAIT_SECS)
        self._wait_for_rules(names, len(made))

    def revoke(self, names: Mapping[str, str]) -> None:
        """Drop all rules of these resources: everybody may do everything."""
        for each in self.admin.delete_acls(_rules(names)).values():
            each.result(WAIT_SECS)
        self._wait_for_rules(names, 0)

    def _wait_for_rules(self, names: Mapping[str, str], count: int) -> None:
        """Wait until the broker goes by what its controller has written down."""
        limit = time.monotonic() + WAIT_SECS
        while sum(len(self.admin.describe_acls(each).result(WAIT_SECS)) for each in _rules(names)) != count:
            assert time.monotonic() < limit, "the rules don't come"

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until the broker has forgotten it: offsets of groups go a little before."""
        self.admin.delete_topics([topic])[topic].result(WAIT_SECS)
        limit = time.monotonic() + WAIT_SECS
        while topic in self.admin.list_topics(timeout=WAIT_SECS).topics:
            assert time.monotonic() < limit, f"{topic} is still there"

    def send(self, topic: str, *values: Any, partition: int = 0, timestamp: int | None = None, **settings: Any) -> None:
        """Write records, outside of any transaction, and wait until they are there."""
        producer = Producer(self.client(**settings))
        for value in values:
            producer.produce(topic, value, None, partition, timestamp=timestamp or int(time.time() * 1000))
        assert producer.flush(WAIT_SECS) == 0

    def transact(self, topic: str, *values: Any, commit: bool = True) -> None:
        """Write records in a transaction: behind them stands its marker, which takes an offset."""
        with self.open_transaction(topic, *values) as producer:
            (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_SECS)
        self.settle(topic)

    def settle(self, topic: str) -> None:
        """Wait until the last transaction of a topic has its marker: the producer is answered before.

        In between nothing of it is read; and who kills the broker then may leave the transaction open.
        """
        limit = time.monotonic() + WAIT_SECS
        while len({self._end(topic, level) for level in IsolationLevel}) > 1:
            assert time.monotonic() < limit, "the transaction does not end"

    def _end(self, topic: str, level: IsolationLevel) -> int:
        """Return the end of partition 0, as readers of that level see it."""
        place = TopicPartition(topic, 0)
        found = self.admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)
        return int(found[place].result(WAIT_SECS).offset)

    @contextmanager
    def open_transaction(self, topic: str, *values: Any) -> Iterator[Producer]:
        """Write records in a transaction that stays open; it is aborted if nobody commits it."""
        producer = Producer(self.client(transactional_id=f"writer-{uuid.uuid4().hex}"))
        producer.init_transactions(WAIT_SECS)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(WAIT_SECS) == 0
        yield producer
        with suppress(KafkaException):  # it was committed
            producer.abort_transaction(WAIT_SECS)

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Return what a group has committed, by partition of a topic."""
        asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        return {each.partition: each.offset for each in asked.result(WAIT_SECS).topic_partitions if each.topic == topic}

    def read(self, topic: str, count: int) -> list[bytes]:
        """Return the first committed records of partition 0, by a client that is not statefx's."""
        consumer = Consumer(self.client(group_id="test"))
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        limit = time.monotonic() + WAIT_SECS
        while len(found) < count:
            assert time.monotonic() < limit, f"{topic} has {found}"
            found += [each.value() for each in consumer.consume(count, 0.1) if each.error() is None]
        consumer.close()
        return found

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        assert self._watch is not None
        # The watch first: the number of a process that is gone may soon be another one's.
        self._watch.kill()
        self._watch.communicate()
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """SIGKILL, and a new process on the same data."""
        self.kill()
        self.start()

    def end(self) -> None:
        """SIGTERM, and wait until it has ended."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(WAIT_SECS)

    def freeze(self) -> None:
        """SIGSTOP: it is there, and does not answer.

        On a busy machine the signal takes a while: a thread that runs at this moment may answer once more.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task")
        limit = time.monotonic() + WAIT_SECS
        while not all((each / "stat").read_text().rpartition(")")[2].split()[0] == "T" for each in threads.iterdir()):
            assert time.monotonic() < limit, "the broker does not stop"

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and delete its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _rules(names: Mapping[str, str]) -> list[AclBindingFilter]:
    kinds, names_ = [ResourceType[kind.upper()] for kind in names], names.values()
    anything = AclOperation.ANY, AclPermissionType.ANY
    return [
        AclBindingFilter(kind, name, ResourcePatternType.LITERAL, None, None, *anything)
        for kind, name in zip(kinds, names_, strict=True)
    ]


def _id() -> str:
    """Return an identity as Kafka writes it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


USUAL = 9092
"""Where programs of the documentation look for a broker."""

NONE = 'none yet; make kafka ARGS="payments:2 totals" makes two'

SAID = """\
Kafka answers at {address}; Ctrl-C ends it, and what it holds is deleted.
Topics: {topics}.

    {python} -m tests.kafka.records {address} write {topic} '{{"account": "ann", "amount": 5}}'
    {python} -m tests.kafka.records {address} read {topic}
"""


def main(topics: Sequence[str]) -> None:
    """Run one with topics, such as ``payments:2``, until Ctrl-C; ``make kafka``."""
    wanted = dict(_topic(each) for each in topics)
    with KafkaBroker(port=USUAL if is_free(USUAL) else None) as broker:
        for name, partitions in wanted.items():
            broker.topic(partitions, name)
        python = os.path.relpath(sys.executable)
        told = {
            "address": broker.address,
            "topics": ", ".join(wanted) or NONE,
            "topic": next(iter(wanted), "payments"),
            "python": python,
        }
        until_interrupted(SAID.format(**told))


def until_interrupted(said: str) -> None:
    """Print what is said, and wait for Ctrl-C, or for SIGINT from a script."""
    # A shell has what it starts in the background ignore SIGINT, and Python then leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        print(said, flush=True)  # noqa: T201 - what it is run for
        signal.pause()


def _topic(given: str) -> tuple[str, int]:
    """Return the name and the number of partitions that ``name`` or ``name:partitions`` says."""
    name, _, partitions = given.partition(":")
    if not re.fullmatch(r"[\w.\-]{1,249}", name, re.ASCII) or not re.fullmatch(r"([1-9]\d{0,3})?", partitions):
        raise SystemExit(f'{given!r} is no topic: name them as in make kafka ARGS="payments:2 totals"')
    return name, int(partitions or 1)


if __name__ == "__main__":
    main(sys.argv[1:])
