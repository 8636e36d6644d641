"""Keys on a Redis server whose values are not what statefx wrote: each call is right, or says which key it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pytest

from statefx.errors import StateCorruptedError
from statefx.state.contract.store import EMPTY, Retention, Version
from statefx.testing.site import Site, image, prepare, writes
from statefx_redis import RedisStateProvider, scripts
from statefx_redis import store as store_module
from statefx_redis.scripts import Names, lineage_keys
from tests.providers.redis_server import RedisServer

BEFORE = {b"a": b"1", b"b": b"1"}
CHANGES = {b"%d" % n: b"2" for n in range(6)}
AFTER = {**BEFORE, **CHANGES}

NUMBERS = [None, b"", b"abc", b"-1", b"1.5", b"0x1", b"9" * 30, b"\xff\x00"]
TEXTS = [None, b"", b"\xff\xfe", b"someone's"]
ENTRY = {"txid": 2, "generation": 1, "base_txid": 1, "base_token": "", "chunks": 3}
ENTRIES = [b"", b"\xff", b"x", b"7", b"[]", b"{}"] + [
    json.dumps({**ENTRY, field: value}).encode()
    for field in ENTRY
    for value in ("1", None, 1.5, [])
    if (field, value) != ("base_token", "1")
]
CHUNKS = [b"", b"x", b"\xc1", *map(msgpack.packb, (7, [], [[]], [b"", b""], [[], [b"k"]], [[], [1, 2]], [[3], []]))]
INDEXES = [b"", b"x", b"\xc1", *map(msgpack.packb, (7, [7], {"a": 1}))]


@dataclass
class Scene:
    """One transaction committed, the next one prepared, and perhaps half committed."""

    site: Site
    first: Version
    second: Version
    names: Names
    client: Any

    def calls(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield everything that a task or a driver does with the namespace, with the check of what it gives back."""
        for version, expected in ((self.first, BEFORE), (self.second, AFTER)):
            for read_only in (True, False):
                yield f"read {version.txid}", lambda v=version, e=expected, r=read_only: self.read(v, e, r)
        provider, namespace, storage = self.site.provider, self.site.namespace(), self.site.storage
        retention = Retention(1, self.first, (), 0)
        yield "fence", lambda: provider.fence(self.site.lineage, 1, storage)
        yield "sweep", lambda: provider.sweep(namespace, storage, provider.artefacts(namespace, storage), retention)
        yield "rollback", lambda: self.site.open(self.first).rollback(2, "0" * 32)
        yield "prepare", lambda: prepare(self.site.open(self.first), 2, writes(CHANGES))
        yield "commit", lambda: self.site.open(self.first).commit(2, self.second.token)
        yield "read after the commit", lambda: self.read(self.second, AFTER, False)

    def read(self, version: Version, expected: dict[bytes, bytes], read_only: bool) -> None:
        found = image(self.site.open(version, read_only=read_only))
        assert found in ((expected, AFTER) if read_only else (expected,)), version


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="no") as server:
        yield server


@pytest.fixture
def scene(server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
    monkeypatch.setattr(store_module, "CHUNK_ENTRIES", 2)

    def made(half_committed: bool = False) -> Scene:
        site = Site(RedisStateProvider({"url": server.url, "retries": 0}), tmp_path)
        site.start(1)
        first = site.commit(EMPTY, BEFORE)
        second = Version(2, prepare(site.open(first), 2, writes(CHANGES)))
        names, client = Names.of("statefx", site.namespace()), server.client()
        if half_committed:
            assert client.eval(scripts.COMMIT, 5, *names.all(second.token), 1, 2, second.token)[0] == b"MORE"
        return Scene(site, first, second, names, client)

    return made


def told(scene: Scene, key: str) -> list[str]:
    """Make every call; return those that found the damage."""
    found = []
    for name, call in scene.calls():
        try:
            call()
        except StateCorruptedError as error:
            if error.data.get("path") == key and key in error.message:
                found.append(name)
    return found


def set_field(client: Any, key: str, field: str, value: bytes | None) -> None:
    if value is None:
        client.hdel(key, field)
    else:
        client.hset(key, field, value)


@pytest.mark.parametrize(
    ("field", "values", "half_committed"),
    [
        ("generation", NUMBERS, False),
        ("txid", NUMBERS, False),
        ("token", TEXTS, False),
        ("count", NUMBERS, False),
        ("lineage", TEXTS, False),
        ("committing_txid", NUMBERS, True),
        ("committing_token", [None], True),
        ("progress", NUMBERS, True),
    ],
)
def test_a_damaged_field_of_the_meta_hash(
    scene: Callable[..., Scene], field: str, values: list[bytes | None], half_committed: bool
) -> None:
    for value in values:
        there = scene(half_committed)
        set_field(there.client, there.names.meta, field, value)
        found = told(there, there.names.meta)
        assert {"read 1", "commit"} & set(found), (value, found)


def test_a_damaged_registration_of_a_token(scene: Callable[..., Scene]) -> None:
    for value in ENTRIES:
        there = scene()
        there.client.hset(there.names.tokens, there.second.token, value)
        found = told(there, there.names.tokens)
        assert {"read 2", "commit"} <= set(found), (value, found)


def test_a_damaged_registration_of_another_token_is_found_by_the_sweep_alone(scene: Callable[..., Scene]) -> None:
    for value in ENTRIES:
        there = scene()
        there.client.hset(there.names.tokens, "0" * 32, value)
        assert told(there, there.names.tokens) == ["sweep"]


@pytest.mark.parametrize("half_committed", [False, True])
def test_a_damaged_chunk(scene: Callable[..., Scene], half_committed: bool) -> None:
    for value in CHUNKS:
        there = scene(half_committed)
        there.client.hset(there.names.prepared(there.second.token), "1", value)
        found = told(there, there.names.prepared(there.second.token))
        assert {"read 2", "commit"} <= set(found), (value, found)
        if not half_committed:
            assert there.client.hgetall(there.names.meta)[b"progress"] == b"1", "the chunk before it was applied"
            assert there.client.hget(there.names.data, "2") is None


def test_a_damaged_index_of_chunks(scene: Callable[..., Scene]) -> None:
    for value in INDEXES:
        there = scene()
        there.client.hset(there.names.prepared(there.second.token), "index", value)
        assert "read 2" in told(there, there.names.prepared(there.second.token)), value


def test_a_chunk_that_was_renamed(scene: Callable[..., Scene]) -> None:
    """As many fields as there were."""
    for field in ("1", "index"):
        there = scene()
        key = there.names.prepared(there.second.token)
        there.client.hset(key, "someone's", there.client.hget(key, field))
        there.client.hdel(key, field)
        assert "read 2" in told(there, key), field


def test_an_order_that_is_not_that_of_the_keys(scene: Callable[..., Scene]) -> None:
    there = scene()
    there.client.zadd(there.names.order, {"a": 7})
    assert {"read 1", "read 2", "commit"} <= set(told(there, there.names.order))


def test_an_ordered_key_that_was_replaced(scene: Callable[..., Scene]) -> None:
    there = scene()
    there.client.zrem(there.names.order, "a")
    there.client.zadd(there.names.order, {"c": 0})
    assert "read 1" in told(there, there.names.data)


def test_damaged_keys_of_the_lineage(scene: Callable[..., Scene]) -> None:
    for value in NUMBERS[1:]:
        there = scene()
        [lineage, _] = lineage_keys("statefx", there.site.lineage)
        there.client.hset(lineage, "generation", value)
        assert "fence" in told(there, lineage), value
    for member in (b"", b"x", b"\xff", b"other:count:0", b"%s:count" % there.site.lineage.encode()):
        there = scene()
        [_, namespaces] = lineage_keys("statefx", there.site.lineage)
        there.client.sadd(namespaces, member)
        assert told(there, namespaces) == ["fence"], member
        assert not there.client.exists(Names("statefx", member.decode("utf-8", "replace")).meta)


def test_keys_of_another_type(scene: Callable[..., Scene]) -> None:
    for call, of in (
        ("fence", lambda there: lineage_keys("statefx", there.site.lineage)[0]),
        ("fence", lambda there: lineage_keys("statefx", there.site.lineage)[1]),
        ("fence", lambda there: there.names.meta),
        ("sweep", lambda there: there.names.prepared(there.second.token)),
        ("commit", lambda there: there.names.prepared(there.second.token)),
    ):
        there = scene()
        there.client.delete(of(there))
        there.client.set(of(there), "someone's")
        assert call in told(there, of(there)), of(there)
