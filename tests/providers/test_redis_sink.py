"""RedisSink against a real server: the contract of sinks, and what goes wrong with a server and its clients."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from redis import ResponseError

from statefx import Sink, TopologyBuilder
from statefx.errors import (
    BoltError,
    ConfigError,
    FencedError,
    SinkError,
    SinkMismatchError,
    SinkOwnedError,
    TopologyError,
)
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, WriterContext
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows
from statefx.testing.sink_contract import SinkContract
from statefx_redis import RedisSink, sink
from statefx_redis.server import Server
from tests.providers.redis_server import RedisServer

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])
FIRST = Owner("app", "origin", 1)
START = CheckpointPosition(0, 0)
QUICK = {"retries": 0, "backoff_secs": 0.01}

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="no") as server:
        yield server


@pytest.fixture
def durable() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@contextmanager
def trips(step: Callable[[], None], after: bool = False) -> Iterator[None]:
    """Call `step` before each round trip, or after it."""
    original = Server.trip

    def trip(server: Server, client: Any, do: Callable[[Any], Any]) -> Any:
        if not after:
            step()
        answer = original(server, client, do)
        if after:
            step()
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "trip", trip)
        yield


def published(client: Any, kind: str, name: str) -> list[dict[str, Any]]:
    found = {
        "hash": lambda: list(client.hgetall(name).values()),
        "list": lambda: client.lrange(name, 0, -1),
        "stream": lambda: [entry[b"row"] for _, entry in client.xrange(name)],
    }[kind]()
    return [json.loads(each) for each in found]


class InRedis(SinkContract):
    kind = "hash"

    @pytest.fixture(autouse=True)
    def _server(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        monkeypatch.setattr("os.fsync", lambda descriptor: None)

    def make(self, place: Path) -> Sink:
        return RedisSink(self.server.url, f"words-{place}", "word" if self.kind == "hash" else (), kind=self.kind)

    def read(self, sink: Sink) -> list[str]:
        assert isinstance(sink, RedisSink)
        return [row["word"] for row in published(self.server.client(), self.kind, sink.name)]

    def steps(self, step: Callable[[], None]) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(super().steps(step))
        stack.enter_context(trips(step))
        return stack


class TestHash(InRedis):
    pass


class TestList(InRedis):
    kind = "list"


class TestStream(InRedis):
    kind = "stream"


class TestStagedOnTheServer(InRedis):
    """Transactions of which one round trip can't carry even two rows."""

    kind = "list"

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sink, "CHUNK_ENTRIES", 1)
        monkeypatch.setattr(sink, "BATCH_BYTES", 1)


class Place:
    """One sink, driven by hand."""

    def __init__(
        self, server: RedisServer, folder: Path, kind: str = "list", name: str = "out", **options: Any
    ) -> None:
        self.server = server
        self.storage = FolderStorage(folder / "ck")
        self.sink = RedisSink(
            server.url, name, "word" if kind == "hash" else (), kind=kind, options={**QUICK, **options}
        )

    def committer(self, owner: Owner = FIRST, reached: CheckpointPosition = START) -> Any:
        found = self.sink.committer(CommitterContext("out", owner, SCHEMA, self.storage))
        found.check(reached, takeover=False)
        found.fence(reached, takeover=False)
        return found

    def write(self, txid: int, *words: str | None) -> Any:
        context = WriterContext("out", 0, 1, TransactionAttempt(txid, 0), f"t{txid}", SCHEMA, self.storage)
        writer = self.sink.writer(context)
        writer.write(pa.RecordBatch.from_pydict({"word": words, "n": range(len(words))}, schema=SCHEMA))
        return {0: writer.prepare(txid)}

    def read(self) -> list[str]:
        return [row["word"] for row in published(self.server.client(), self.sink.kind, self.sink.name)]


@pytest.fixture
def place(server: RedisServer, tmp_path: Path) -> Place:
    return Place(server, tmp_path, name=f"out-{tmp_path.name}")


def commit(committer: Any, txid: int, named: Any) -> None:
    committer.commit(TransactionAttempt(txid, 0), named)


@pytest.mark.parametrize("kind", ["hash", "list", "stream"])
@pytest.mark.parametrize("staged", [False, True])
def test_a_reader_sees_a_transaction_whole_or_not_at_all(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, staged: bool
) -> None:
    if staged:
        monkeypatch.setattr(sink, "CHUNK_ENTRIES", 3)
        monkeypatch.setattr(sink, "BATCH_BYTES", 100)
    place = Place(server, tmp_path, kind, f"whole-{kind}-{staged}")
    committer = place.committer()
    seen: set[int] = set()
    count = {"hash": "hlen", "list": "llen", "stream": "xlen"}[kind]
    reader = server.client()
    with trips(lambda: seen.add(getattr(reader, count)(place.sink.name))):
        for txid in (1, 2):
            commit(committer, txid, place.write(txid, *(f"{txid}-{n}" for n in range(50))))
    seen.add(getattr(reader, count)(place.sink.name))
    assert seen == {0, 50, 100}
    assert sorted(place.read()) == sorted(f"{txid}-{n}" for txid in (1, 2) for n in range(50))
    assert [name for name in reader.scan_iter("*staged*") if place.sink.name.encode() in name] == []


@pytest.mark.parametrize("after", [False, True])
def test_a_server_that_is_killed_at_any_round_trip_has_each_transaction_once(
    durable: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(sink, "CHUNK_ENTRIES", 2)
    monkeypatch.setattr(sink, "BATCH_BYTES", 1)
    words = list("abcdef")
    for at in range(1, 100):
        place = Place(durable, tmp_path / str(at), name=f"out-{at}", retries=6)
        named, left = place.write(1, *words), at
        committer = place.committer()

        def kill() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                durable.restart()

        for _ in range(20):
            try:
                with trips(kill, after):
                    commit(committer, 1, named)
            except SinkError:
                continue
            break
        assert place.read() == words
        if left > 0:
            break
    assert at > 4


def test_a_server_that_is_killed_while_its_script_runs_has_all_rows_or_none(
    durable: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script takes seconds for each chunk here; other clients are then told that the server is busy."""
    monkeypatch.setattr(sink, "CHUNK_ENTRIES", 2)
    monkeypatch.setattr(sink, "BATCH_BYTES", 1)
    place = Place(durable, tmp_path)
    committer = place.committer()
    commit(committer, 1, place.write(1, *"abcd"))
    named, client = place.write(2, *"efgh"), durable.client()
    client.config_set("lua-time-limit", 1)
    failed: list[SinkError] = []

    def fail() -> None:
        try:
            commit(committer, 2, named)
        except SinkError as error:
            failed.append(error)

    slow = "redis.call('LPOP', KEYS[3])\n  local x = 0\n  for i = 1, 3e9 do x = x + i end"
    with monkeypatch.context() as patch:
        patch.setattr(sink, "PUBLISH", sink.PUBLISH.replace("redis.call('LPOP', KEYS[3])", slow))
        thread = threading.Thread(target=fail)
        thread.start()
        while not _is_busy(client):
            assert thread.is_alive()
        durable.kill()
        thread.join(20)
    assert failed
    durable.start()
    assert place.read() == list("abcd")
    commit(committer, 2, named)
    assert place.read() == list("abcdefgh")


def _is_busy(client: Any) -> bool:
    try:
        client.ping()
    except ResponseError as error:
        return "BUSY" in str(error)
    return False


def test_a_server_that_forgot_transactions_stops_the_sink(durable: RedisServer, tmp_path: Path) -> None:
    place = Place(durable, tmp_path)
    committer = place.committer()
    commit(committer, 1, place.write(1, "a"))
    dump = durable.dump()
    commit(committer, 2, place.write(2, "b"))
    durable.restore(dump)  # as a failover to a replica that has not got the last transaction
    with pytest.raises(SinkMismatchError, match="is at transaction 1, and 3 is to be published"):
        commit(committer, 3, place.write(3, "c"))
    with pytest.raises(SinkMismatchError):
        place.committer(Owner("app", "origin", 2), CheckpointPosition(2, 2))
    assert place.read() == ["a"]


def test_a_copy_at_the_path_of_its_original_is_a_fork_to_its_sinks(server: RedisServer, tmp_path: Path) -> None:
    """As in two containers, of which each has its own volume at the path; the original has gone on."""

    def send(word: str, key: str = "forked", **adopt: Any) -> None:
        builder = TopologyBuilder("forks")
        builder.setStream("lines", rows("word string"))
        builder.setSink("out", RedisSink(server.url, key, kind="list")).shuffleGrouping("lines")
        with TopologyTester(builder.createTopology(), tmp_path / "ck", **adopt) as tester:
            tester.send({"lines": [(word,)]})

    def sent(key: str = "forked") -> list[str]:
        return [row["word"] for row in published(server.client(), "list", key)]

    send("a")
    shutil.copytree(tmp_path / "ck", tmp_path / "copy")
    send("b")
    (tmp_path / "ck").rename(tmp_path / "away")
    (tmp_path / "copy").rename(tmp_path / "ck")
    with pytest.raises(SinkOwnedError, match="adopt=\\['fork', 'takeover'\\]"):
        send("c", adopt="fork")
    send("c", "forked-own", adopt="fork")
    send("d", "forked-own", adopt="fork")
    (tmp_path / "ck").rename(tmp_path / "copy")
    (tmp_path / "away").rename(tmp_path / "ck")
    send("e")
    assert (sent(), sent("forked-own")) == (["a", "b", "e"], ["c", "d"])


def test_a_full_server_takes_nothing_and_all_of_it_when_it_has_room(server: RedisServer, place: Place) -> None:
    committer = place.committer()
    small, large = place.write(1, "a" * 1000), place.write(2, *("b" * 100_000 for _ in range(30)))
    client = server.client()
    try:
        client.config_set("maxmemory", "1")
        for _ in range(2):
            with pytest.raises(SinkError, match="out of memory"):
                commit(committer, 1, small)
        client.config_set("maxmemory", "0")
        commit(committer, 1, small)
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 1_500_000)
        with pytest.raises(SinkError, match="out of memory"):
            commit(committer, 2, large)
        assert len(place.read()) == 1
    finally:
        client.config_set("maxmemory", "0")
    commit(committer, 2, large)
    assert len(place.read()) == 31


@pytest.mark.parametrize("trip", [3, 4])  # between two that send rows; before the script
def test_rows_that_vanish_while_they_are_sent_are_sent_again(
    server: RedisServer, place: Place, monkeypatch: pytest.MonkeyPatch, trip: int
) -> None:
    monkeypatch.setattr(sink, "CHUNK_ENTRIES", 1)
    monkeypatch.setattr(sink, "BATCH_BYTES", 1)
    committer, named, client = place.committer(), place.write(1, *"ab"), server.client()
    left = trip

    def forget() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            client.delete(*client.scan_iter("*staged*"))

    with trips(forget), pytest.raises(SinkError, match="has lost rows"):
        commit(committer, 1, named)
    commit(committer, 1, named)
    assert place.read() == list("ab")


def test_an_answer_that_is_lost_doubles_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "CHUNK_ENTRIES", 1)
    monkeypatch.setattr(sink, "BATCH_BYTES", 1)
    committer, named = place.committer(), place.write(1, *"abc")
    original = Server.trip

    def again(server: Server, client: Any, do: Callable[[Any], Any]) -> Any:
        original(server, client, do)
        return original(server, client, do)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "trip", again)
        commit(committer, 1, named)  # it is refused by its own marker, looks at it, and knows that it is done
    commit(committer, 1, named)
    assert place.read() == list("abc")


def test_what_was_sent_by_who_died_expires(server: RedisServer, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "CHUNK_ENTRIES", 1)
    monkeypatch.setattr(sink, "BATCH_BYTES", 1)
    committer, named, client = place.committer(), place.write(1, *"abc"), server.client()
    with trips(lambda: _die_at(client)), pytest.raises(RuntimeError):
        commit(committer, 1, named)
    (left,) = client.scan_iter("*staged*")
    assert 0 < client.ttl(left) <= 3600
    client.delete(left)


def _die_at(client: Any) -> None:
    if list(client.scan_iter("*staged*")):
        raise RuntimeError


def test_a_key_of_another_type_is_refused_before_a_start_and_at_a_commit(server: RedisServer, place: Place) -> None:
    client = server.client()
    client.set(place.sink.name, "mine")
    with pytest.raises(SinkError, match="is a string, and RedisSink writes a list there: give the sink another name"):
        place.committer()
    client.delete(place.sink.name)
    committer, named = place.committer(), place.write(1, "a")
    client.set(place.sink.name, "mine")
    with pytest.raises(SinkError, match="is a string"):
        commit(committer, 1, named)
    client.rename(place.sink.name, "moved")
    commit(committer, 1, named)
    assert place.read() == ["a"]


def test_a_marker_that_was_changed_or_deleted_is_no_marker(server: RedisServer, place: Place) -> None:
    committer, named, client = place.committer(), place.write(1, "a"), server.client()
    marker = place.sink.companion("marker")
    kept = client.hgetall(marker)
    client.hdel(marker, "origin")
    with pytest.raises(SinkError, match="somebody has changed its marker"):
        commit(committer, 1, named)
    client.delete(marker)
    with pytest.raises(SinkMismatchError, match="the marker, which records"):
        commit(committer, 1, named)
    client.set(marker, "x")
    with pytest.raises(SinkError, match="another type"):
        commit(committer, 1, named)
    client.delete(marker)
    client.hset(marker, mapping=kept)
    commit(committer, 1, named)
    assert place.read() == ["a"]


def test_who_gives_up_a_transaction_moves_the_marker(server: RedisServer, tmp_path: Path) -> None:
    place, client = Place(server, tmp_path, name="totals"), server.client()
    committer = place.committer()
    lost = place.write(1, "lost")
    client.hset("statefx:{totals}:marker:totals", "txid", 1)  # as the page on recovery says
    commit(committer, 1, lost)
    commit(committer, 2, place.write(2, "b"))
    assert place.read() == ["b"]


@pytest.mark.parametrize("kind", ["hash", "list", "stream"])
def test_large_values_are_published_whole(server: RedisServer, tmp_path: Path, kind: str) -> None:
    place = Place(server, tmp_path, kind, f"large-{kind}")
    committer, words = place.committer(), [letter * 10_000_000 for letter in "ab"]
    commit(committer, 1, place.write(1, *words))
    assert sorted(place.read()) == words


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", ["out", "{app}:out", "a:{b}"])
def test_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: RedisServer, name: str) -> None:
    """One node that has all slots; it refuses scripts over several slots."""
    monkeypatch.setattr(sink, "CHUNK_ENTRIES", 1)
    monkeypatch.setattr(sink, "BATCH_BYTES", 1)
    place = Place(cluster, tmp_path, name=name, cluster=True)
    committer, named = place.committer(), place.write(1, *"ab")
    for _ in range(2):
        commit(committer, 1, named)
    assert place.read() == list("ab")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    with RedisServer(appendonly="no", cluster_enabled="yes", cluster_announce_ip="127.0.0.1") as server:
        client = server.client()
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True):
            client.ping()
        yield server


def test_names_and_values_of_every_type(server: RedisServer, tmp_path: Path) -> None:
    values = {
        pa.string(): "ü \n",
        pa.int64(): -(2**62),
        pa.bool_(): True,
        pa.float64(): 1.5,
        pa.decimal128(10, 2): Decimal("1.10"),
        pa.timestamp("us", "UTC"): datetime(2020, 1, 1, tzinfo=UTC),
        pa.binary(): b"\0\xff",
        pa.list_(pa.int64()): [1, None],
    }
    schema = pa.schema([(str(number), kind) for number, kind in enumerate(values)])
    named = RedisSink(server.url, "types", [str(n) for n in range(6)])
    named.check_schema(schema)
    storage = FolderStorage(tmp_path)
    writer = named.writer(WriterContext("out", 0, 1, TransactionAttempt(1, 0), "t", schema, storage))
    writer.write(pa.RecordBatch.from_pylist([{str(n): value for n, value in enumerate(values.values())}], schema))
    prepared = {0: writer.prepare(1)}
    committer = named.committer(CommitterContext("out", FIRST, schema, storage))
    committer.fence(START, takeover=False)
    commit(committer, 1, prepared)
    ((name, row),) = server.client().hgetall("types").items()
    plain = ["ü \n", -(2**62), True, 1.5, "1.10", "2020-01-01T00:00:00Z"]
    assert json.loads(name) == plain
    assert list(json.loads(row).values()) == [*plain, "AP8=", [1, None]]


def topology(sink: Sink, name: str = "t") -> Any:
    builder = TopologyBuilder(name)
    builder.setStream("lines", rows("word string, n long"))
    builder.setSink("out", sink).shuffleGrouping("lines")
    return builder.createTopology()


def test_a_null_in_the_key_fails_the_transaction_while_it_can_be_rolled_back(
    server: RedisServer, tmp_path: Path
) -> None:
    named = RedisSink(server.url, "nulls", "word", options=QUICK)
    with TopologyTester(topology(named), tmp_path) as tester:
        tester.send({"lines": [("a", 1)]})
        with pytest.raises(
            BoltError, match=r"'word' names the rows, and is null in \{'word': None, 'n': 2\}: leave out"
        ):
            tester.send({"lines": [("b", 1), (None, 2)]})
    with TopologyTester(topology(named), tmp_path) as tester:
        tester.send({"lines": [("a", 3), ("c", 4)]})
        assert tester.txid == 2
    assert sorted(row["n"] for row in published(server.client(), "hash", "nulls")) == [3, 4]


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: RedisSink("http://x", "n", "word"), ConfigError, "RedisSink: url must be like redis://"),
        (lambda: RedisSink("redis://x", "n", "word", options={"retry": 1}), ConfigError, "did you mean 'retries'"),
        (lambda: RedisSink("redis://x", "n", "word", kind="set"), ConfigError, "no kind 'set'"),
        (lambda: RedisSink("redis://x", "n"), ConfigError, "a hash needs the fields that name a row"),
        (lambda: RedisSink("redis://x", "n", "word", kind="list"), ConfigError, "a list has no key"),
        (lambda: RedisSink("redis://x", "a}b{", "word"), ConfigError, "braces in it are for one part"),
        (lambda: topology(RedisSink("redis://x", "n", "id")), TopologyError, "RedisSink's key is 'id'; its rows have"),
    ],
)
def test_mistakes_are_named_before_anything_is_started(make: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_a_server_that_is_away_or_may_evict_is_refused_before_a_start(server: RedisServer, tmp_path: Path) -> None:
    away = RedisSink("redis://:secret@127.0.0.1:1/0", "n", "word", options=QUICK)
    with pytest.raises(SinkError, match="can't be reached after 1 tries") as caught:
        TopologyTester(topology(away), tmp_path / "away")
    assert "secret" not in str(caught.value) + repr(away.target)
    client = server.client()
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(SinkError, match="may evict rows"):
            TopologyTester(topology(RedisSink(server.url, "n", "word")), tmp_path / "evicting")
    finally:
        client.config_set("maxmemory-policy", "noeviction")


ZOMBIE = """
import os, signal, sys
from statefx.errors import StatefxError
from statefx.testing import TopologyTester
from statefx_redis import RedisSink, sink
from statefx_redis.server import Server
from tests.providers.test_redis_sink import topology

url, checkpoint, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
sink.CHUNK_ENTRIES = sink.BATCH_BYTES = 1
original, passed = Server.trip, 0

def trip(server, client, do):
    global passed
    passed += tester is not None
    if passed == at:
        os.kill(os.getpid(), signal.SIGSTOP)
    return original(server, client, do)

tester = None
Server.trip = trip
tester = TopologyTester(topology(RedisSink(url, "zombie", kind="list")), checkpoint)
try:
    tester.send({"lines": [("a", 1), ("b", 2)]})
except StatefxError as error:
    sys.exit(f"{type(error).__name__} after {passed} trips")
"""


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 4])  # before it reads the marker; when its rows are there, before the script
def test_a_driver_that_was_stopped_and_replaced_publishes_nothing_more(
    server: RedisServer, tmp_path: Path, at: int
) -> None:
    client = server.client()
    client.flushall()
    command = [sys.executable, "-c", ZOMBIE, server.url, str(tmp_path), str(at)]
    zombie = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()})
    try:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        with TopologyTester(topology(RedisSink(server.url, "zombie", kind="list")), tmp_path) as tester:
            assert tester.txid == 1  # rolled forward: COMMITTING was durable
            tester.send({"lines": [("c", 3)]})
            zombie.send_signal(signal.SIGCONT)
            _, errors = zombie.communicate(timeout=60)
            assert b"FencedError" in errors
            tester.send({"lines": [("d", 4)]})
    finally:
        zombie.kill()
        zombie.wait()
    assert [row["word"] for row in published(client, "list", "zombie")] == list("abcd")


def test_the_fence_holds_against_a_script_that_was_on_its_way(server: RedisServer, place: Place) -> None:
    zombie, named = place.committer(), place.write(1, "a")
    calls: list[int] = []

    def replace() -> None:
        calls.append(1)
        if len(calls) == 2:  # it has read the marker, and its script is sent now
            place.committer(Owner("app", "origin", 2))

    with trips(replace), pytest.raises(FencedError, match="generation 2 has taken over"):
        commit(zombie, 1, named)
    assert place.read() == []
