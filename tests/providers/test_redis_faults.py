"""A Redis server that is killed, emptied, restored, full, read-only, slow, or tampered with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from statefx.errors import (
    CommitFailedError,
    CommitOutcomeUnknownError,
    DeniedError,
    FencedError,
    ProviderError,
    StateCorruptedError,
    StateError,
    UnreachableError,
)
from statefx.state.contract.store import EMPTY, Retention, Version
from statefx.testing.site import Site, image, prepare, writes
from statefx_redis import RedisStateProvider
from statefx_redis import store as store_module
from statefx_redis.scripts import Names
from tests.providers.redis_faults import Proxy, Trips
from tests.providers.redis_server import RedisServer, free_port

QUICK = {"retries": 2, "backoff_secs": 0.01}
BEFORE = {b"a": b"1", b"b": b"1"}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def site(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(store_module, "CHUNK_ENTRIES", 2)
    site = Site(RedisStateProvider({"url": server.url, **QUICK}), tmp_path)
    site.start(1)
    yield site
    site.close()


def provider(url: str, **options: Any) -> RedisStateProvider:
    return RedisStateProvider({"url": url, **QUICK, **options})


def names(site: Site) -> Names:
    return Names.of("statefx", site.namespace())


def changes(txid: int) -> dict[bytes, bytes | None]:
    return {b"%d" % n: b"%d" % txid for n in range(6)}


# ---- killed


def test_a_server_that_is_killed_and_restarted_between_any_two_round_trips_is_not_noticed(
    site: Site, server: RedisServer
) -> None:
    """With its data; in opening, reading, preparing and committing."""
    head, at = EMPTY, 0
    while True:
        at += 1
        txid = head.txid + 1
        with Trips(between=lambda moment, at=at: moment == at and server.restart()) as trips:  # type: ignore[misc]
            store = site.open(head)
            if head != EMPTY:
                assert store.get([b"0", b"x"]) == [b"%d" % head.txid, None]
            head = Version(txid, prepare(store, txid, writes(changes(txid))))
            store.commit(*(head.txid, head.token))
        assert image(site.open(head)) == changes(txid)
        if trips.passed < at:
            break
    assert at > 10


def test_a_server_that_stays_down_is_an_error_that_says_where(site: Site, server: RedisServer) -> None:
    store = site.open(site.commit(EMPTY, BEFORE))
    token = prepare(store, 2, writes(changes(2)))
    server.kill()
    with pytest.raises(StateError, match=f"127.0.0.1:{server.port}.*can't be reached after 3 tries"):
        store.get([b"a"])
    with pytest.raises(StateError):
        list(store.scan(None, None))
    with pytest.raises(CommitFailedError):
        store.commit(2, token)
    with pytest.raises(UnreachableError):
        site.start(2)
    server.start()
    store.commit(2, token)
    assert image(store) == {**BEFORE, **changes(2)}


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_commit_whose_reply_is_lost_has_an_unknown_outcome_and_can_be_repeated(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    monkeypatch.setattr(store_module, "CHUNK_ENTRIES", 2)
    site = Site(provider(server.url, retries=0), tmp_path)
    site.start(1)
    store = site.open()
    token = prepare(store, 1, writes(changes(1)))

    def lose(moment: int) -> None:
        if moment == 2 * lost:
            raise redis.ConnectionError("the reply is lost")

    with pytest.raises(CommitOutcomeUnknownError) as caught, Trips(between=lose):
        store.commit(1, token)
    assert (caught.value.txid, caught.value.token) == (1, token)
    assert image(store) == changes(1), "it has happened, or is under way and read as whole"
    store.commit(1, token)
    assert image(store) == image(site.open(Version(1, token))) == changes(1)


@pytest.mark.daily(1)
@pytest.mark.parametrize("towards", ["server", "client"])
def test_connections_that_are_cut_anywhere_cost_nothing_but_tries(
    server: RedisServer, tmp_path: Path, towards: str
) -> None:
    for cut_after in (1, 40, 300, 1500, 2500, 5000, 9000):
        with Proxy(server.port, cut_after, cuts=4, towards=towards) as proxy:
            site = Site(provider(f"redis://127.0.0.1:{proxy.port}", retries=20, backoff_secs=0.001), tmp_path)
            site.start(1)
            head = site.commit(EMPTY, BEFORE)
            head = site.commit(head, {b"%04d" % n: b"x" * 20 for n in range(300)})
            store = site.open(head)
            assert len(image(store)) == 302
            site.close()


def test_a_slow_network_is_only_slow(server: RedisServer, tmp_path: Path) -> None:
    with Proxy(server.port, drop=512) as proxy:
        site = Site(provider(f"redis://127.0.0.1:{proxy.port}", timeout_secs=30), tmp_path)
        site.start(1)
        assert image(site.open(site.commit(EMPTY, BEFORE))) == BEFORE


def test_a_server_that_does_not_answer_in_time_is_an_error(server: RedisServer, tmp_path: Path) -> None:
    site = Site(provider(server.url, timeout_secs=0.05, retries=1), tmp_path)
    site.start(1)
    store = site.open()
    client = server.client()
    client.client_pause(500)
    with pytest.raises(UnreachableError, match="TimeoutError"):
        store.get([b"a"])
    client.client_unpause()
    assert store.get([b"a"]) == [None]


# ---- not what it was


def test_a_server_that_was_emptied_is_found_out(site: Site, server: RedisServer) -> None:
    version = site.commit(EMPTY, BEFORE)
    store = site.open(version)
    server.empty()
    with pytest.raises(StateCorruptedError) as caught:
        site.open(version)
    for text in ("transaction 1 ", version.token, "transaction 0 ", "backup"):
        assert text in str(caught.value)
    for call in (lambda: store.get([b"a"]), lambda: list(store.scan(None, None)), lambda: prepare(store, 2, [])):
        with pytest.raises(StateCorruptedError):
            call()


def test_a_server_that_was_restored_from_an_older_dump_is_found_out(site: Site, server: RedisServer) -> None:
    first = site.commit(EMPTY, BEFORE)
    dump = server.dump()
    second = site.commit(first, {b"c": b"2"})
    server.restore(dump)
    with pytest.raises(StateCorruptedError) as caught:
        site.open(second)
    for text in (first.token, second.token, "older dump"):
        assert text in str(caught.value)
    assert image(site.open(first)) == BEFORE


def test_a_server_restored_from_a_dump_that_holds_what_was_prepared_goes_on(site: Site, server: RedisServer) -> None:
    first = site.commit(EMPTY, BEFORE)
    token = prepare(site.open(first), 2, writes({b"a": None, b"c": b"2"}))
    dump = server.dump()
    site.open(first).commit(2, token)
    server.restore(dump)
    store = site.open(Version(2, token))
    assert image(store) == {b"b": b"1", b"c": b"2"}
    store.commit(3, prepare(store, 3, writes({b"d": b"3"})))
    assert image(store) == {b"b": b"1", b"c": b"2", b"d": b"3"}


def test_another_attempt_of_the_same_txid_is_not_the_logs(site: Site) -> None:
    first = site.commit(EMPTY, BEFORE)
    with pytest.raises(StateCorruptedError):
        site.open(Version(1, "0" * 32))
    with pytest.raises(StateCorruptedError):
        site.open(Version(2, "0" * 32))
    base = site.open(first)
    token = prepare(base, 2, [])
    site.commit(first, {b"c": b"other"})
    with pytest.raises(StateCorruptedError):
        site.open(Version(3, token))


def test_a_reader_of_a_version_that_the_server_has_left_behind_is_told_to_open_again(site: Site) -> None:
    first = site.commit(EMPTY, BEFORE)
    held = site.open(first, read_only=True)
    second = site.commit(first, {b"a": b"2"})
    with pytest.raises(StateCorruptedError) as caught:
        site.open(first, read_only=True)
    assert caught.value.missing
    assert held.get([b"a"]) == [b"2"], "one that is open goes on with the server"
    writer = site.open(first)
    with pytest.raises(StateCorruptedError):
        writer.get([b"a"])
    writer.commit(2, second.token)
    assert image(writer) == {b"a": b"2", b"b": b"1"}


Tamper = Callable[[Any, Names], object]
TAMPERS: dict[str, Tamper] = {
    "a value is gone": lambda c, n: c.hdel(n.data, "a"),
    "all values are gone": lambda c, n: c.delete(n.data),
    "an ordered key is gone": lambda c, n: c.zrem(n.order, "a"),
    "the order is gone": lambda c, n: c.delete(n.order),
    "the meta hash is gone": lambda c, n: c.delete(n.meta),
    "a value was added": lambda c, n: c.hset(n.data, "foreign", "1"),
    "values are of another type": lambda c, n: (c.delete(n.data), c.set(n.data, "x")),
    "the order is of another type": lambda c, n: (c.delete(n.order), c.set(n.order, "x")),
    "the meta hash is of another type": lambda c, n: (c.delete(n.meta), c.sadd(n.meta, "x")),
    "tokens are of another type": lambda c, n: (c.delete(n.tokens), c.set(n.tokens, "x")),
}


@pytest.fixture(scope="module")
def tampered() -> Iterator[RedisServer]:
    with RedisServer(appendonly="no") as server:
        yield server


@pytest.mark.parametrize("tamper", TAMPERS)
def test_what_someone_did_to_our_keys_is_found_out(tampered: RedisServer, tmp_path: Path, tamper: str) -> None:
    site = Site(provider(tampered.url), tmp_path)
    site.start(1)
    version = site.commit(EMPTY, BEFORE)
    store = site.open(version)
    token = prepare(site.open(version), 2, writes({b"c": b"2"}))
    TAMPERS[tamper](tampered.client(), names(site))
    for call in (
        lambda: site.open(version),
        lambda: store.get([b"a"]),
        lambda: list(store.scan(None, None)),
        lambda: store.commit(2, token),
    ):
        with pytest.raises(StateCorruptedError) as caught:
            call()
        assert names(site).meta.rpartition(":")[0] in str(caught.value)


@pytest.mark.parametrize("field", ["0", "1", "index", None])
def test_a_prepared_chunk_that_is_gone_is_found_out_before_anything_is_changed(
    tampered: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str | None
) -> None:
    monkeypatch.setattr(store_module, "CHUNK_ENTRIES", 2)
    site = Site(provider(tampered.url), tmp_path)
    site.start(1)
    version = site.commit(EMPTY, BEFORE)
    token = prepare(site.open(version), 2, writes(changes(2)))
    key, client = names(site).prepared(token), tampered.client()
    if field is None:
        client.delete(key)
    else:
        client.hdel(key, field)
    with pytest.raises(StateCorruptedError, match=token):
        site.open(Version(2, token))
    store = site.open(version)
    with pytest.raises(StateCorruptedError, match=token):
        store.commit(2, token)
    assert image(store) == BEFORE


def test_a_key_of_another_type_where_a_new_namespace_begins(tampered: RedisServer, tmp_path: Path) -> None:
    site = Site(provider(tampered.url), tmp_path)
    site.start(1)
    tampered.client().set(names(site).data, "theirs")
    with pytest.raises(StateCorruptedError, match="is a string, where statefx keeps a hash"):
        site.open()
    assert tampered.client().get(names(site).data) == b"theirs"


# ---- refusing


def test_memory_that_runs_out_fails_the_call_and_changes_nothing(site: Site, server: RedisServer) -> None:
    version = site.commit(EMPTY, BEFORE)
    store = site.open(version)
    token = prepare(store, 2, writes(changes(2)))
    server.client().config_set("maxmemory", 1000)
    with pytest.raises(StateError, match=r"out of memory.*raise maxmemory"):
        prepare(site.open(version), 2, writes(changes(2)))
    with pytest.raises(CommitFailedError, match="out of memory"):
        store.commit(2, token)
    assert image(store) == BEFORE
    server.client().config_set("maxmemory", 0)
    store.commit(2, token)
    assert image(store) == {**BEFORE, **changes(2)}


def test_memory_that_runs_out_in_the_middle_of_a_commit(site: Site, server: RedisServer) -> None:
    version = site.commit(EMPTY, BEFORE)
    store = site.open(version)
    token = prepare(store, 2, writes(changes(2)))
    full = lambda moment: moment == 2 and server.client().config_set("maxmemory", 1000)  # noqa: E731
    with pytest.raises(CommitOutcomeUnknownError, match="out of memory"), Trips(between=full):
        store.commit(2, token)
    assert image(store) == {**BEFORE, **changes(2)}, "it is decided, and read as whole"
    server.client().config_set("maxmemory", 0)
    site.open(version).commit(2, token)
    assert image(site.open(Version(2, token))) == {**BEFORE, **changes(2)}


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_may_evict_is_refused_at_start(server: RedisServer, tmp_path: Path, policy: str) -> None:
    server.client().config_set("maxmemory-policy", policy)
    with pytest.raises(ProviderError, match=f"maxmemory-policy {policy}.*noeviction"):
        Site(provider(server.url), tmp_path).start(1)
    assert server.client().dbsize() == 0


def test_a_server_that_keeps_nothing_on_disk_is_warned_of(
    tampered: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "statefx"):
        Site(provider(tampered.url), tmp_path).start(1)
    assert "appendonly" in caplog.text


def test_a_replica_is_refused_at_start_and_later(site: Site, server: RedisServer, tmp_path: Path) -> None:
    version = site.commit(EMPTY, BEFORE)
    store = site.open(version)
    token = prepare(store, 2, writes(changes(2)))
    client = server.client()
    client.replicaof("127.0.0.1", free_port())
    with pytest.raises(ProviderError, match="read-only replica"):
        Site(provider(server.url), tmp_path).start(1)
    with pytest.raises(StateError, match="read-only replica"):
        prepare(site.open(version), 2, [])
    with pytest.raises(CommitFailedError, match="read-only replica"):
        store.commit(2, token)
    client.replicaof("NO", "ONE")
    store.commit(2, token)
    assert image(store) == {**BEFORE, **changes(2)}


def test_a_wrong_password_is_refused_and_not_shown(tmp_path: Path) -> None:
    with RedisServer(appendonly="no", requirepass="right-horse") as server:
        good = provider(server.url, password="right-horse")
        site = Site(good, tmp_path)
        site.start(1)
        version = site.commit(EMPTY, BEFORE)
        for options in ({"password": "wrong-horse"}, {}, {"username": "nobody", "password": "wrong-horse"}):
            bad = Site(provider(server.url, **options), tmp_path, site.lineage)
            with pytest.raises(ProviderError, match="check username and password") as caught:
                bad.start(2)
            assert "horse" not in str(caught.value)
            with pytest.raises(DeniedError) as denied:
                bad.open(version)
            assert "horse" not in f"{denied.value} {denied.value!r} {denied.value.data}"
        with_url = provider(server.url.replace("//", "//:right-horse@"))
        assert image(Site(with_url, tmp_path, site.lineage).open(version)) == BEFORE
        site.close()


def test_a_server_that_repeats_the_password_in_its_error(tmp_path: Path) -> None:
    with RedisServer(appendonly="no", rename_command="AUTH RENAMED") as server:
        with pytest.raises(StateError, match=r"unknown command.*\*\*\*") as caught:
            Site(provider(server.url, password="right-horse"), tmp_path).start(1)
        assert "horse" not in str(caught.value)


def test_a_user_who_may_not_write_is_told(server: RedisServer, tmp_path: Path) -> None:
    granted = {"passwords": ["+secret"], "categories": ["+@all", "-@scripting"], "keys": ["*"]}
    server.client().acl_setuser("reader", enabled=True, **granted)
    site = Site(provider(server.url, username="reader", password="secret"), tmp_path)
    with pytest.raises(DeniedError, match="permissions") as caught:
        site.start(1)
    assert "secret" not in str(caught.value)


# ---- ways to it


def test_a_unix_socket(server: RedisServer, tmp_path: Path) -> None:
    site = Site(provider(f"unix://{server.socket}?db=3"), tmp_path)
    site.start(1)
    assert image(site.open(site.commit(EMPTY, BEFORE))) == BEFORE
    assert server.client(db=3).dbsize() > 0
    assert server.client().dbsize() == 0


def test_storms_mapping(server: RedisServer, tmp_path: Path) -> None:
    config = {"host": "127.0.0.1", "port": server.port, "timeout": 2000, "database": 2, "password": None}
    site = Site(RedisStateProvider({"jedisPoolConfig": config, "prefix": "storm"}), tmp_path)
    site.start(1)
    assert image(site.open(site.commit(EMPTY, BEFORE))) == BEFORE
    assert all(key.startswith(b"storm:{") for key in server.client(db=2).scan_iter())


def test_prefixes_are_apart(server: RedisServer, tmp_path: Path) -> None:
    one, two = (Site(provider(server.url, prefix=name), tmp_path, "f" * 32) for name in ("one", "two"))
    version = one.commit(EMPTY, BEFORE)
    assert image(two.open()) == {}
    assert image(one.open(version)) == BEFORE


def test_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node that has all slots; it refuses scripts over several slots, and keys that were not declared."""
    monkeypatch.setattr(store_module, "CHUNK_ENTRIES", 2)
    with RedisServer(cluster_enabled="yes", cluster_announce_ip="127.0.0.1") as server:
        client = server.client()
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True):
            client.ping()
        site = Site(provider(server.url, cluster=True, retries=8), tmp_path)
        site.start(1)
        heads = {}
        for task in range(3):
            store = site.open(task=task)
            heads[task] = Version(1, prepare(store, 1, writes(changes(1))))
            store.commit(1, heads[task].token)
        site.start(2)
        for task, head in heads.items():
            assert image(site.open(head, task=task, generation=2)) == changes(1)
            prepare(site.open(head, task=task, generation=2), 2, [])
            with pytest.raises(FencedError):
                prepare(site.open(head, task=task), 2, [])
            after = Version(2, "0" * 32)
            retained = Retention(2, after, (), 0)
            assert site.sweep(retained, task=task) == 0
        site.close()
