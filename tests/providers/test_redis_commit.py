"""A commit on a Redis server: whole for whoever looks, taken up where it was left, refused to who was replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statefx.errors import FencedError, StateCorruptedError, StateError, StatePhaseError
from statefx.state.contract.store import EMPTY, Retention, StateStore, Version
from statefx.testing.site import Site, changed, image, prepare, writes
from statefx_redis import RedisStateProvider, scripts
from statefx_redis import store as store_module
from statefx_redis.scripts import Names
from statefx_redis.server import Server
from tests.providers.redis_faults import Apart, Trips, crashes
from tests.providers.redis_server import RedisServer

OLD = {b"%02d" % n: b"old" for n in range(12)}
CHANGES: dict[bytes, bytes | None] = {b"%02d" % n: (None if n % 5 == 0 else b"new") for n in range(1, 20)}
NEW = changed(OLD, writes(CHANGES))
ALL = sorted(OLD.keys() | NEW.keys())


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="no") as server:
        yield server


@pytest.fixture
def site(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose transactions take many round trips."""
    monkeypatch.setattr(store_module, "CHUNK_ENTRIES", 4)
    monkeypatch.setattr(store_module, "BATCH_BYTES", 60)
    monkeypatch.setattr(store_module, "FIRST_KEYS", 5)
    monkeypatch.setattr(store_module, "MOST_KEYS", 5)
    site = Site(RedisStateProvider({"url": server.url}), tmp_path)
    site.start(1)
    yield site
    site.close()


def keys(site: Site, task: int = 0) -> Names:
    return Names.of("statefx", site.namespace(task=task))


def begin(site: Site, task: int = 0) -> tuple[Version, Version]:
    """Commit `OLD` and prepare `CHANGES`; return both versions."""
    store = site.open(task=task)
    old = Version(1, prepare(store, 1, writes(OLD)))
    store.commit(1, old.token)
    return old, Version(2, prepare(store, 2, writes(CHANGES)))


def test_a_crash_at_any_round_trip_leaves_the_old_image_or_the_new(site: Site) -> None:
    seen = set()
    for at in crashes():
        old, new = None, None
        with Trips(at) as trips:
            store = site.open(task=at)
            old = Version(1, prepare(store, 1, writes(OLD)))
            store.commit(1, old.token)
            new = Version(2, prepare(store, 2, writes(CHANGES)))
            store.commit(2, new.token)
        logged = new or old or EMPTY  # a commit follows its record in the log at once
        for _ in range(2):
            assert image(site.open(logged, task=at, read_only=True)) == ({}, OLD, NEW)[logged.txid]
            store = site.open((EMPTY, EMPTY, old)[logged.txid] or EMPTY, task=at)
            if logged != EMPTY:
                store.commit(logged.txid, logged.token)
        seen.add(logged.txid)
        store = site.open(logged, task=at)
        token = prepare(store, logged.txid + 1, writes({b"next": b"1"}))
        store.commit(logged.txid + 1, token)
        assert image(store)[b"next"] == b"1"
        if not trips.crashed:
            break
    assert seen == {0, 1, 2}
    assert at > 30


@pytest.mark.slow
def test_a_late_copy_of_any_call_changes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is given up, the call is sent on another, and what is left of it on the first one comes after all.

    It comes at every later moment, since any of them may be the one.
    """
    original, copied, made = Server.eval, 0, list[tuple[Server, str, Any, tuple[Any, ...]]]()

    def late() -> None:
        if copied <= len(made):
            server, script, names, arguments = made[copied - 1]
            server.call(names[0], lambda client: client.eval(script, len(names), *names, *arguments))

    def call(server: Server, script: str, names: Any, *arguments: Any) -> Any:
        late()
        answer = original(server, script, names, *arguments)
        made.append((server, script, names, arguments))
        late()
        return answer

    monkeypatch.setattr(Server, "eval", call)
    while copied <= len(made):
        copied += 1
        made.clear()
        old, new = begin(site, task=copied)
        rolled_back = site.open(old, task=copied)
        rolled_back.rollback(2, prepare(rolled_back, 2, writes({b"a": b"of an attempt"})))
        assert image(site.open(new, task=copied, read_only=True)) == NEW, "from the decision on"
        site.open(old, task=copied).commit(2, new.token)
        site.sweep(Retention(1, new, (), 0), task=copied)
        assert image(site.open(new, task=copied)) == NEW
    assert copied > 30


def got(store: StateStore) -> dict[bytes, bytes | None]:
    return dict(zip(ALL, store.get(ALL), strict=True))


def scanned(store: StateStore) -> dict[bytes, bytes | None]:
    return dict(store.scan(None, None))


@pytest.mark.parametrize("read", [got, scanned])
def test_readers_see_all_of_a_commit_or_nothing_at_every_step(
    site: Site, read: Callable[[StateStore], dict[bytes, bytes | None]]
) -> None:
    old, new = begin(site)
    readers = [site.open(old, read_only=True) for _ in range(2)]
    seen = []

    def look(moment: int) -> None:
        for reader in (*readers, site.open(new, read_only=True)):
            found = {key: value for key, value in read(reader).items() if value is not None}
            assert found in (OLD, NEW)
            seen.append((moment, found == NEW))

    store = site.open(old)
    with Trips(between=look) as trips:
        store.commit(2, new.token)
    assert trips.passed >= 10, "the commit takes many steps"
    firsts = [is_new for moment, is_new in seen[0::3]]
    assert firsts == sorted(firsts)
    assert firsts[0] is False
    assert firsts[1] is True, "from the first step on it is the new image"
    assert all(is_new for _, is_new in seen[2::3]), "who is told the new version by the log reads it at any time"


def stepped(site: Site, old: Version, new: Version) -> Callable[[], bool]:
    """Return what makes one step of the commit, and tells whether there was one left."""
    names = keys(site)
    server = site.provider._server()  # type: ignore[attr-defined]
    done = []

    def step() -> bool:
        if not done:
            answer = server._client.eval(scripts.COMMIT, 5, *names.all(new.token), 1, 2, new.token)
            assert answer[0] in (b"MORE", b"DONE")
            done.extend([True] * (answer[0] == b"DONE"))
        return not done

    return step


def advance(step: Callable[[], bool], steps: int) -> int:
    return sum(1 for _ in range(steps) if step())


@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("burst", [1, 9])
def test_a_read_that_straddles_steps_of_a_commit_is_of_one_version(
    site: Site, monkeypatch: pytest.MonkeyPatch, before: int, at: int, burst: int
) -> None:
    """The commit goes on between any two commands of one pipeline, and between the trips of one read."""
    monkeypatch.setattr(store_module, "GET_KEYS", 5)
    old, new = begin(site)
    step = stepped(site, old, new)
    reader = site.open(old, read_only=True)
    advance(step, before)
    commands = []

    def turn() -> None:
        commands.append(1)
        if len(commands) > at:
            advance(step, burst)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "trip", lambda self, client, do: do(Apart(client, turn)))
        found = dict(zip(ALL, reader.get(ALL), strict=True))
    assert {key: value for key, value in found.items() if value is not None} in (OLD, NEW)
    assert len(commands) >= 5


@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("at", range(8))
def test_a_scan_that_straddles_steps_of_a_commit_is_of_one_version_or_says_so(site: Site, before: int, at: int) -> None:
    old, new = begin(site)
    step = stepped(site, old, new)
    reader = site.open(old, read_only=True)
    advance(step, before)
    found: dict[bytes, bytes] = {}
    overtaken: StateCorruptedError | None = None
    with Trips(between=lambda moment: moment > at and step()):
        try:
            found.update(reader.scan(None, None))
        except StateCorruptedError as error:
            overtaken = error
    if overtaken is None:
        assert found in ((OLD, NEW) if before == 0 else (NEW,))
    else:
        assert before == 0, "only a scan that began in the old version can be overtaken"
        assert overtaken.missing


def test_two_readers_beside_a_writer_in_threads(site: Site) -> None:
    wide = [b"%04d" % n for n in range(200)]
    version = site.commit(EMPTY, dict.fromkeys(wide, b"0"))
    failures: list[object] = []
    seen: list[set[bytes]] = [set(), set()]
    done = threading.Event()

    def read(number: int) -> None:
        reader = site.open(version, read_only=True)
        while not done.is_set():
            found = set(reader.get(wide))
            if len(found) != 1:
                failures.append(found)
            seen[number] |= found  # type: ignore[arg-type]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    head = version
    for txid in range(2, 6):
        head = site.commit(head, dict.fromkeys(wide, b"%d" % txid))
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all(len(each) > 1 for each in seen), "they read while it wrote"


def test_an_outside_reader_can_tell_that_a_commit_is_under_way(site: Site, server: RedisServer) -> None:
    old, new = begin(site)
    step = stepped(site, old, new)
    client = server.client()
    marks = [b"committing_txid", b"committing_token", b"txid"]
    assert client.hmget(keys(site).meta, marks) == [None, None, b"1"]
    step()
    assert client.hmget(keys(site).meta, marks) == [b"2", new.token.encode(), b"1"]
    while step():
        pass
    assert client.hmget(keys(site).meta, marks) == [None, None, b"2"]
    assert client.hgetall(keys(site).data) == NEW
    assert client.zrange(keys(site).order, 0, -1) == sorted(NEW)
    assert not client.exists(keys(site).prepared(new.token), keys(site).tokens)


def test_what_the_log_names_can_be_read_before_the_server_is_told(site: Site) -> None:
    old, new = begin(site)
    assert image(site.open(new)) == NEW
    assert image(site.open(old)) == OLD
    store = site.open(new)
    assert list(store.scan(b"07", b"13")) == sorted((k, v) for k, v in NEW.items() if b"07" <= k < b"13")


def test_a_commit_that_the_server_lost_is_done_again_by_the_next_prepare(site: Site) -> None:
    _, new = begin(site)
    store = site.open(new)
    token = prepare(store, 3, writes({b"a": b"3"}))
    assert image(site.open(new)) == NEW
    store.commit(3, token)
    assert image(store) == {**NEW, b"a": b"3"}


def test_a_commit_under_way_is_never_rolled_back(site: Site) -> None:
    old, new = begin(site)
    stepped(site, old, new)()
    with pytest.raises(StatePhaseError):
        site.open(old).rollback(2, new.token)
    other = site.open(old)
    with pytest.raises(StateError):
        prepare(other, 2, writes({b"a": b"late"}))
    site.open(old).commit(2, new.token)
    assert image(site.open(new)) == NEW


def test_a_commit_on_top_of_another_version_than_it_was_prepared_on_is_refused(site: Site) -> None:
    token = prepare(site.open(), 2, writes({b"a": b"not of this chain"}))
    store = site.open(site.commit(EMPTY, OLD))
    with pytest.raises(StateCorruptedError):
        store.commit(2, token)
    assert image(store) == OLD


# ---- generations


def test_a_commit_that_a_newer_generation_interrupts_is_finished_by_it(site: Site) -> None:
    old, new = begin(site)
    zombie = site.open(old)
    with pytest.raises(FencedError) as caught, Trips(between=lambda moment: moment == 4 and site.start(2)):
        zombie.commit(2, new.token)
    assert caught.value.newest == 2
    assert image(site.open(new, generation=2)) == NEW
    site.open(old, generation=2).commit(2, new.token)
    assert image(site.open(new, generation=2)) == NEW


def test_who_has_been_replaced_is_told_so_when_the_server_has_gone_on(site: Site) -> None:
    zombie = site.open()
    site.start(2)
    store = site.open(generation=2)
    store.commit(1, prepare(store, 1, []))
    store.commit(2, prepare(store, 2, []))
    with pytest.raises(FencedError):
        zombie.get([b"a"])
    with pytest.raises(FencedError):
        site.open()
    with pytest.raises(StateCorruptedError):
        site.open(generation=2)


@pytest.mark.parametrize("moment", range(7))
def test_a_namespace_that_is_new_is_fenced_too(site: Site, moment: int) -> None:
    """The zombie's first prepare races with the newer generation, which knows no namespace yet."""
    zombie = site.open()
    token = None
    try:
        with Trips(between=lambda passed: passed == moment and site.start(2)):
            if moment == 0:
                site.start(2)
            token = prepare(zombie, 1, writes({b"a": b"zombie"}))
    except FencedError:
        pass
    else:
        with pytest.raises(FencedError):
            zombie.commit(1, token)
    heir = site.open(generation=2)
    assert image(heir) == {}
    heir.commit(1, prepare(heir, 1, writes({b"a": b"heir"})))
    assert image(heir) == {b"a": b"heir"}


def test_a_crash_while_fencing_at_any_round_trip_is_mended_by_fencing_again(site: Site) -> None:
    for task in range(3):
        prepare(site.open(task=task), 1, [])
    for at in crashes():
        with Trips(at) as trips:
            site.start(at + 1)
        site.start(at + 1)
        for task in range(3):
            store = site.open(task=task, generation=at)
            with pytest.raises(FencedError):
                prepare(store, 1, [])
        if not trips.crashed:
            break
    assert at > 6


# ---- sweep


def sweep(site: Site, head: Version, generation: int = 1, during: Callable[[], object] = lambda: None) -> int:
    return site.sweep(Retention(generation, head, (), 0), meanwhile=during)


def test_sweep_deletes_what_nobody_can_name_any_more(site: Site, server: RedisServer) -> None:
    client = server.client()
    with Trips(8):
        prepare(site.open(), 1, writes(CHANGES))  # half of it
    others = [prepare(site.open(), 1, writes({b"a": b"1"})) for _ in range(2)]
    rolled_back = site.open()
    rolled_back.rollback(1, prepare(rolled_back, 1, []))
    assert client.hlen(keys(site).tokens) == 4
    assert sweep(site, EMPTY) == 0, "any of them may still be named"
    head = Version(1, others[0])
    site.open().commit(1, others[0])
    later = prepare(site.open(head), 2, writes({b"a": b"2"}))
    prepare(site.open(head, generation=2), 2, [])
    assert sweep(site, head) == 3
    assert sweep(site, head) == 0
    assert client.hlen(keys(site).tokens) == 2
    assert client.exists(keys(site).prepared(later))
    assert not client.exists(keys(site).prepared(others[1]))
    tags = {key.rpartition(b":")[2] for key in client.keys(f"*{{{keys(site).tag}}}:prepared:*")}
    assert {each.decode() for each in client.hkeys(keys(site).tokens)} == {tag.decode() for tag in tags}


def test_sweep_lists_before_it_reads_the_log_and_keeps_a_commit_under_way(site: Site) -> None:
    old, new = begin(site)
    stepped(site, old, new)()
    assert sweep(site, old, during=lambda: prepare(site.open(task=1), 1, [])) == 0
    assert sweep(site, new) == 0
    site.open(old).commit(2, new.token)
    assert image(site.open(new)) == NEW


def test_sweep_of_an_older_generation_is_refused(site: Site) -> None:
    token = prepare(site.open(), 1, [])
    prepare(site.open(), 1, [])
    site.open().commit(1, token)
    with pytest.raises(FencedError):
        sweep(site, Version(1, token), during=lambda: site.start(2))
    assert sweep(site, Version(1, token), generation=2) == 1


def test_sweep_keeps_what_a_newer_generation_prepared(site: Site) -> None:
    token = prepare(site.open(), 1, [])
    prepare(site.open(generation=2), 1, [])
    site.open().commit(1, token)
    assert sweep(site, Version(1, token)) == 0
    assert sweep(site, Version(1, token), generation=2) == 1


# ---- how long it takes


def test_a_get_of_many_keys_is_one_round_trip(site: Site) -> None:
    version = site.commit(EMPTY, {b"%04d" % n: b"1" for n in range(50)})
    store = site.open(version)
    with Trips() as trips:
        store.get([b"%04d" % n for n in range(5000)])
    assert trips.passed == 2, "one before, one after"


@pytest.mark.soak
@pytest.mark.slow
def test_a_commit_of_100_000_keys_never_stops_other_clients_for_long(server: RedisServer, tmp_path: Path) -> None:
    site = Site(RedisStateProvider({"url": server.url}), tmp_path)
    site.start(1)
    store = site.open()
    token = prepare(store, 1, [(b"%08d" % n, b"value-%d" % n) for n in range(100_000)])
    client: Any = server.client()
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 5000)
    client.slowlog_reset()
    store.commit(1, token)
    client.config_set("slowlog-log-slower-than", -1)
    found = sorted(each["duration"] / 1000 for each in client.slowlog_get(5000) if each["command"][:4] == b"EVAL")
    assert len(found) == 200
    assert found[len(found) * 9 // 10] < 10, "milliseconds; the rest is a busy machine's"
    site.close()
