"""State that is moved to another provider: nothing is lost, doubled or mixed, whenever it ends."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from statefx import Checkpoint
from statefx.admin.migration import Migration
from statefx.admin.rewrite import Sum, Writes, sum_of
from statefx.coordinator.participants import SnapshotPolicy
from statefx.errors import (
    CheckpointError,
    CheckpointMismatchError,
    ConfigError,
    FencedError,
    ProviderError,
    StateCorruptedError,
    StateError,
)
from statefx.log.log import read_state
from statefx.state import EMPTY, Namespace, StateContext
from statefx.state.changelog import files
from statefx.state.contract.ranges import in_blocks
from statefx.state.registry import load_provider
from statefx.storage import FolderStorage
from statefx.testing import Crash, Limits
from statefx.testing.faults import JobFails
from statefx.testing.site import Site, prepare
from statefx.testing.steps import DurableSteps, every_crash
from statefx_memory import MemoryStateProvider
from statefx_redis import store as redis_store
from statefx_redis.store import RedisStateStore
from tests.conftest import ROOT
from tests.coordinator.migrating import BEFORE, PAIRS, REFERENCES, TRANSACTIONS, Mover
from tests.providers.local_crashes import crashing
from tests.providers.redis_faults import Trips, crashes
from tests.providers.redis_server import RedisServer
from tests.testing.topologies import words

ODD = "tests.coordinator.migrating"
SMALL = Limits(SnapshotPolicy(min_bytes=1, ratio=0, share=1), fold_after=6, sweep_every=1, min_age_secs=0.0)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(appendonly="no") as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def moved(mover: Mover, source: str, target: str) -> Migration:
    reference = REFERENCES.get(target, target)  # a name is looked up for longer than a crash takes
    config = {"topology.state.provider.config": mover.options.get(source) or {}}
    return Checkpoint(mover.folder, config).migrate(reference, mover.options.get(target))


# ---- what it does


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_run_that_was_moved_ends_as_one_that_was_not(place, server, source, target):
    limits = SMALL if PAIRS.index((source, target)) % 2 else None
    with Mover(place, server) as mover:
        mover.begin(source, limits=limits)
        done = moved(mover, source, target)
        assert (done.source, done.target, done.txid) == (REFERENCES[source], REFERENCES[target], BEFORE)
        assert (done.components, done.tasks) == (2, 3)
        assert done.keys == len(words(TRANSACTIONS[:BEFORE])) + len(("total", "txid"))
        assert done.bytes > done.keys
        assert done.seconds > 0
        mover.finish(target, limits=limits)


def test_a_checkpoint_without_a_transaction_is_moved_too(place, server):
    with Mover(place, server) as mover:
        mover.on("memory").close()
        done = moved(mover, "memory", "redis")
        assert (done.txid, done.components, done.tasks, done.keys, done.bytes) == (0, 2, 0, 0, 0)
        mover.finish("redis")


@pytest.mark.slow
def test_after_the_switch_only_the_new_provider_is_accepted(place):
    with Mover(place) as mover:
        mover.begin("memory")
        moved(mover, "memory", "rocksdb")
        with pytest.raises(CheckpointMismatchError) as caught:
            mover.on("memory")
        assert "has provider 'memory', " in str(caught.value)
        assert "written with 'rocksdb'" in str(caught.value)
        mover.finish("rocksdb")


def test_names_and_json_options_are_as_those_of_submit(place, server):
    with Mover(place, server) as mover:
        mover.begin("memory")
        assert (
            Checkpoint(str(mover.folder)).migrate("redis", f'{{"url": "{server.url}"}}').target == REFERENCES["redis"]
        )
        done = Checkpoint(mover.folder, {"topology.state.provider.config": {"url": server.url}}).migrate("memory")
        assert pickle.loads(pickle.dumps(done)) == done
        mover.finish("memory")


def test_a_reader_of_the_old_state_keeps_it(place):
    with Mover(place) as mover:
        mover.begin("memory")
        with Checkpoint(mover.folder).state("count") as before:
            moved(mover, "memory", "rocksdb")
            assert dict(before.items()) == words(TRANSACTIONS[:BEFORE])


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [("memory", "rocksdb"), ("rocksdb", "memory")])
def test_files_of_the_old_provider_are_swept_once_the_new_one_runs(place, source, target):
    with Mover(place) as mover:
        mover.begin(source)
        old = set(Path(mover.folder, "state").rglob("*.changelog"))
        moved(mover, source, target)
        assert old < set(Path(mover.folder, "state").rglob("*.changelog")), "the source is left as it was"
        tester = mover.on(target)
        tester.advance(3600)
        assert tester.sweep() == len(old)
        assert not old & set(Path(mover.folder, "state").rglob("*.changelog"))
        mover.finish(target)


def test_files_that_nobody_reads_any_more_may_be_deleted(place, server):
    with Mover(place, server) as mover:
        mover.begin("memory")
        moved(mover, "memory", "redis")
        shutil.rmtree(Path(mover.folder, "state"))
        with mover.on("redis") as tester:
            tester.run(TRANSACTIONS[: BEFORE + 1])
        moved(mover, "redis", "memory")
        mover.finish("memory")


def test_what_is_left_in_a_server_is_found_by_its_lineage(place, server):
    with Mover(place, server) as mover:
        mover.begin("redis")
        done = moved(mover, "redis", "memory")
        keys = server.client().keys(f"statefx:{{{done.left}*")
        assert {key.rpartition(b":")[2] for key in keys} >= {b"data", b"meta", b"lineage", b"namespaces"}
        server.client().delete(*keys)
        mover.finish("memory")


def test_a_migration_says_how_far_it_is(place, caplog):
    with Mover(place) as mover, caplog.at_level(logging.INFO, "statefx"):
        mover.begin("memory")
        caplog.clear()
        moved(mover, "memory", "rocksdb")
        # Of other tests, threads may be left that renew what a client which is dead has received.
        said = [record.getMessage() for record in caplog.records if record.module == "rewrite"]
        written = [text.partition(" is written and read back")[0] for text in said if "read back" in text]
        assert written == ["state of count/0", "state of count/1", "state of total/0"]
        assert "state of ['count', 'total'] is rewritten" in said[-1]


def test_no_password_is_written_into_the_checkpoint_or_said(place, caplog):
    with (
        RedisServer(appendonly="no", requirepass="right-horse") as server,
        Mover(place, server, password="right-horse") as mover,
        caplog.at_level(logging.DEBUG, "statefx"),
    ):
        mover.begin("memory")
        done = moved(mover, "memory", "redis")
        found = [path.read_bytes() for path in mover.folder.rglob("*") if path.is_file()]
        assert not [each for each in found if b"horse" in each]
        assert "horse" not in f"{caplog.text} {done}"


# ---- bounded memory


class Scanned:
    """What a store has, as it is copied."""

    sum: Sum | None = None

    def __init__(self, store: Any, keys: int) -> None:
        self.store, self.keys = store, keys

    def blocks(self) -> Iterator[Any]:
        return in_blocks(self.store.scan(None, None))


def test_the_writes_of_a_copy_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    site = Site(MemoryStateProvider({}), tmp_path)
    site.start(1)
    held = {b"%04d" % n: b"v%d" % n for n in range(1000)}
    store = site.open(site.commit(EMPTY, held))
    rows = sorted(held.items())
    reads: list[int] = []

    class Counting(Scanned):
        def blocks(self) -> Iterator[Any]:
            reads.append(0)
            for row in store.scan(None, None):
                reads[-1] += 1
                yield [row[0]], [row[1]]

    entries: Any = Writes(Counting(store, len(rows)))
    assert (len(entries), list(entries), list(entries)) == (1000, rows, rows)
    reads.clear()
    parts = [entries[n : n + 300] for n in range(0, 1200, 300)]
    assert [row for part in parts for row in part] == rows
    assert reads == [1000], "slice by slice the store is read once"
    assert (entries[0], entries[-1], entries[10]) == (rows[0], rows[-1], rows[10])
    assert (entries[5:2], entries[::250], entries[-2:]) == ([], rows[::250], rows[-2:])
    with pytest.raises(IndexError):
        entries[1000]
    reads.clear()
    assert next(iter(entries)) == rows[0]
    assert reads == [1], "no more is read than is asked for"
    site.close()


@pytest.mark.daily(1)
@pytest.mark.parametrize("target", ["rocksdb", "redis"])
def test_a_big_task_is_never_in_memory_as_a_whole(place, server, monkeypatch, target):
    """Only a part of what was read from the source has not been written yet, at any time."""
    origin = Site(MemoryStateProvider({}), place)
    origin.start(1)
    count = 40_000
    source = origin.open(origin.commit(EMPTY, {b"%08d" % n: bytes(200) for n in range(count)}))
    other = Site(load_provider(REFERENCES[target], {"url": server.url} if target == "redis" else {}), place / "other")
    other.start(1)
    ahead = most = 0

    class Watched(Scanned):
        def blocks(self) -> Iterator[Any]:
            nonlocal ahead, most
            for keys, values in super().blocks():
                ahead += len(keys)
                most = max(most, ahead)
                yield keys, values

    def watch(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def written(*arguments: Any) -> Any:
            nonlocal ahead
            ahead = 0
            return original(*arguments)

        monkeypatch.setattr(owner, name, written)

    watch(*((RedisStateStore, "_send") if target == "redis" else (files, "xxh3_64_digest")))
    store = other.open()
    token = prepare(store, 1, Writes(Watched(source, count)))
    assert 0 < most < count / 2
    store.commit(1, token)
    assert sum_of(Scanned(store, 0).blocks()) == sum_of(Scanned(source, 0).blocks())
    origin.close()
    other.close()


# ---- what it refuses, before anything is touched


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_folder_without_a_checkpoint(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match="there is no checkpoint in"):
            Checkpoint(folder).migrate("rocksdb")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"to": "memory"}, ConfigError, "is kept by 'memory' already"),
        ({"to": "rockdb"}, ProviderError, "did you mean 'rocksdb'"),
        ({"to": "nowhere.at.all:Provider"}, ProviderError, "can't be imported"),
        ({"to": "not a name"}, ConfigError, "migrate: to"),
        ({"to": 7}, ConfigError, "migrate: to"),
        ({"to": "rocksdb", "config": {"dri": "/tmp"}}, ConfigError, "did you mean 'dir'"),
        ({"to": "rocksdb", "config": "{"}, ConfigError, "migrate: config: .* no valid JSON"),
        ({"to": "rocksdb", "config": ["dir"]}, ConfigError, "migrate: config"),
    ],
)
def test_wrong_arguments(place, arguments, error, says):
    with Mover(place) as mover:
        mover.begin("memory")
        before = everything(mover.folder)
        with pytest.raises(error, match=says):
            Checkpoint(mover.folder).migrate(**arguments)
        with pytest.raises(ConfigError, match="'memory' takes no options"):
            Checkpoint(mover.folder, {"topology.state.provider.config": {"url": "redis://x"}}).migrate("rocksdb")
        assert everything(mover.folder) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "says"),
    [
        ("before COMMITTING(3, 0)", "transaction 3 .* is PREPARING.* rolled back"),
        ("after COMMITTING(3, 0)", "transaction 3 .* is COMMITTING.* rolled forward"),
    ],
)
def test_a_transaction_under_way_has_to_be_recovered_first(place, moment, says):
    with Mover(place) as mover:
        mover.begin("memory")
        tester = mover.on("memory")

        def crash() -> None:
            raise Crash(moment)

        tester.when(moment, crash)
        with pytest.raises(Crash):
            tester.run(TRANSACTIONS)
        before = everything(mover.folder)
        with pytest.raises(CheckpointError, match=says):
            moved(mover, "memory", "rocksdb")
        assert everything(mover.folder) == before
        mover.on("memory").close()
        moved(mover, "memory", "rocksdb")
        mover.finish("rocksdb")


@pytest.mark.slow
def test_a_transaction_that_begins_after_the_first_look(place):
    with Mover(place) as mover:
        mover.begin("memory")
        running = mover.on("memory")
        migrator = mover.migrator("memory", "rocksdb", DurableSteps())
        idle = read_state(migrator.folders.storage)
        refused: list[str] = []

        def start() -> None:
            with pytest.raises(CheckpointError, match=r"transaction 3 .* is PREPARING") as caught:
                migrator.run(idle)
            refused.append(str(caught.value))

        running.when("after PREPARING(3, 0)", start)
        running.send(TRANSACTIONS[BEFORE])
        running.close()
        assert refused
        assert mover.kept() == REFERENCES["memory"]
        moved(mover, "memory", "rocksdb")
        mover.finish("rocksdb")


@pytest.mark.slow
def test_a_checkpoint_that_was_moved_or_copied_has_to_be_run_first(place):
    with Mover(place) as mover:
        mover.begin("memory")
        mover.folder.rename(place / "elsewhere")
        mover.folder = place / "elsewhere"
        with pytest.raises(CheckpointMismatchError, match="adopt='move'"):
            moved(mover, "memory", "rocksdb")
        mover.on("memory", adopt="move").close()
        moved(mover, "memory", "rocksdb")
        mover.finish("rocksdb")


def test_a_server_that_is_down_is_found_out_before_anyone_is_fenced(place, own_server):
    with Mover(place, own_server) as mover:
        mover.begin("memory")
        running = mover.on("memory")
        own_server.kill()
        with pytest.raises(StateError, match="can't be reached"):
            moved(mover, "memory", "redis")
        running.run(TRANSACTIONS[: BEFORE + 1])
        running.close()
        own_server.start()
        moved(mover, "memory", "redis")
        running = mover.on("redis")
        own_server.kill()
        with pytest.raises(StateError, match="can't be reached"):
            moved(mover, "redis", "memory")
        own_server.start()
        running.run(TRANSACTIONS)
        running.close()
        moved(mover, "redis", "memory")
        mover.finish("memory")


def test_a_source_that_is_not_the_right_one_is_found_out_before_anyone_is_fenced(place, server):
    with RedisServer(appendonly="no") as other, Mover(place, server) as mover:
        mover.begin("redis")
        running = mover.on("redis")
        with pytest.raises(StateCorruptedError, match="was emptied"):
            Checkpoint(mover.folder, {"topology.state.provider.config": {"url": other.url}}).migrate("memory")
        running.run(TRANSACTIONS[: BEFORE + 1])
        running.close()
        moved(mover, "redis", "memory")
        mover.finish("memory")


def test_a_driver_that_has_gone_on_since_the_first_look_is_not_fenced(place: Path, server: RedisServer) -> None:
    with Mover(place, server) as mover:
        mover.begin("redis")
        running = mover.on("redis")
        migrator = mover.migrator("redis", "memory", DurableSteps())
        found = read_state(migrator.folders.storage)
        running.run(TRANSACTIONS[: BEFORE + 1])
        with pytest.raises(CheckpointError, match="has gone on meanwhile: stop its topology, and migrate"):
            migrator.run(found)
        running.run(TRANSACTIONS)
        running.close()
        mover.finish("redis")


# ---- failures on the way


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Forgetful", "Garbling", "Swapping"])
def test_a_copy_that_is_not_equal_is_never_switched_to(place, kind):
    with Mover(place) as mover:
        mover.begin("rocksdb")
        with pytest.raises(StateCorruptedError, match=r"what was written of .* is not what was read") as caught:
            Checkpoint(mover.folder).migrate(f"{ODD}:{kind}")
        assert caught.value.found != caught.value.expected
        assert (caught.value.found.keys < caught.value.expected.keys) == (kind == "Forgetful")
        assert mover.kept() == REFERENCES["rocksdb"]
        mover.finish("rocksdb")


@pytest.mark.slow
def test_a_target_that_holds_state_of_others_is_refused(place):
    with Mover(place) as mover:
        mover.begin("rocksdb")
        with pytest.raises(StateError, match=r"holds state of .* before anything was written"):
            Checkpoint(mover.folder).migrate(f"{ODD}:Occupied")
        mover.finish("rocksdb")


@pytest.mark.slow
def test_a_target_that_can_not_write_leaves_the_state_where_it_was(place):
    with Mover(place) as mover:
        mover.begin("rocksdb")
        with pytest.raises(StateError, match="the disk is full"):
            Checkpoint(mover.folder).migrate(f"{ODD}:Failing")
        moved(mover, "rocksdb", "memory")
        mover.finish("memory")


@pytest.mark.slow
def test_what_a_migration_left_that_did_not_switch_is_swept(place):
    with Mover(place) as mover:
        mover.begin("rocksdb")
        files = set(mover.folder.rglob("*.changelog"))
        steps = DurableSteps()

        def crash() -> None:
            raise Crash("MIGRATED")

        steps.when("before MIGRATED", crash)
        with pytest.raises(Crash):
            mover.move("rocksdb", "memory", steps)
        assert len(set(mover.folder.rglob("*.changelog")) - files) == 3
        tester = mover.on("rocksdb")
        tester.advance(3600)
        assert tester.sweep() == 3
        assert set(mover.folder.rglob("*.changelog")) == files
        mover.finish("rocksdb")


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_source_that_is_damaged_is_not_switched_from(place, damage):
    with Mover(place) as mover:
        mover.begin("memory")
        path = next(Path(mover.folder, "state", "total", "0").glob("*.changelog"))
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(StateCorruptedError, match=path.name.split("-")[-1]):
            moved(mover, "memory", "rocksdb")
        path.write_bytes(content)
        moved(mover, "memory", "rocksdb")
        mover.finish("rocksdb")


@pytest.mark.parametrize("step", ["prepare count/1 for 2", "commit count/1 for 2", "MIGRATED"])
def test_a_server_that_goes_away_half_way(place, own_server, step):
    with Mover(place, own_server) as mover:
        mover.begin("memory")
        steps = DurableSteps()
        steps.when(f"before {step}", own_server.kill)
        if step == "MIGRATED":
            mover.move("memory", "redis", steps)
            own_server.start()
        else:
            with pytest.raises(StateError, match=r"can't be reached|127\.0\.0\.1"):
                mover.move("memory", "redis", steps)
            assert mover.kept() == REFERENCES["memory"]
            own_server.start()
            moved(mover, "memory", "redis")
        mover.finish("redis")


# ---- crashes


def go_on(mover: Mover, source: str, target: str, anew: bool) -> None:
    """After a crash: the old provider goes on, or the migration is begun anew, or it had switched."""
    if mover.kept() == REFERENCES[target]:
        with pytest.raises(ConfigError, match="already"):
            moved(mover, source, target)
        with pytest.raises(CheckpointMismatchError):
            mover.on(source)
        mover.finish(target)
    elif anew:
        assert moved(mover, source, target).keys == len(words(TRANSACTIONS[:BEFORE])) + 2
        mover.finish(target)
    else:
        with mover.on(source, limits=SMALL) as tester:
            tester.run(TRANSACTIONS[: BEFORE + 1])
            assert tester.state("count") == words(TRANSACTIONS[: BEFORE + 1])
        moved(mover, source, target)
        mover.finish(target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target"), [("memory", "rocksdb"), pytest.param("redis", "memory", marks=pytest.mark.soak)]
)
def test_a_crash_at_any_call_of_the_operating_system(place, server, source, target, stride):
    for at in islice(every_crash(), (source == "redis") % stride, None, stride):
        with Mover(place, server, f"at-{at}") as mover:
            mover.begin(source)
            with crashing(at) as point:
                moved(mover, source, target)
            if point.hit is None:
                break
            go_on(mover, source, target, anew=at % 2 == 0)
    assert at > 40


@pytest.mark.slow
def test_a_crash_at_any_round_trip(place, server, monkeypatch, stride):
    monkeypatch.setattr(redis_store, "CHUNK_ENTRIES", 1)
    for at in islice(crashes(), 0, None, stride):
        with Mover(place, server, f"at-{at}") as mover:
            mover.begin("memory")
            with Trips(at) as trips:
                moved(mover, "memory", "redis")
            if not trips.crashed:
                break
            go_on(mover, "memory", "redis", anew=at % 2 == 0)
    assert at > 60


@pytest.mark.slow
@pytest.mark.soak
def test_a_process_that_is_killed_and_run_again(place):
    code = f"import sys; from statefx import Checkpoint; Checkpoint(sys.argv[1]).migrate('{ODD}:Killed')"
    with Mover(place) as mover:
        mover.begin("rocksdb")
        environment = {**os.environ, "STATEFX_TEST_MARKER": str(place / "marker")}
        for expected in (9, 0):
            done = subprocess.run(
                [sys.executable, "-c", code, str(mover.folder)], cwd=ROOT, env=environment, check=False
            )
            assert done.returncode == expected
            assert mover.kept() == (REFERENCES["rocksdb"] if expected else f"{ODD}:Killed")
        moved(mover, f"{ODD}:Killed", "rocksdb")
        mover.finish("rocksdb")


# ---- others on the checkpoint


def test_a_zombie_of_the_source_changes_nothing(place, server):
    """A task of the old driver that was not dead prepares and commits in the source after the switch."""
    with Mover(place, server) as mover:
        mover.begin("redis")
        state = read_state(FolderStorage(mover.folder))
        provider = load_provider(REFERENCES["redis"], mover.options["redis"])
        context = StateContext(1, state.heads["count/0"], FolderStorage(place), str(place))
        zombie = provider.newState(Namespace(state.lineage, "count", 0), context)
        token = prepare(zombie, 3, [(b"x", b"y")])
        moved(mover, "redis", "memory")
        with pytest.raises(FencedError):
            zombie.commit(3, token)
        mover.finish("memory")


@pytest.mark.slow
def test_attempts_and_folds_go_on_where_they_were(place):
    with Mover(place) as mover:
        limits = replace(SMALL, fold_after=1)
        with mover.on("memory", limits=limits) as tester:
            tester.run(TRANSACTIONS[:1])
            assert tester.send(TRANSACTIONS[1], JobFails()).progress.attempt == 1
        mover.move("memory", "rocksdb", limits=limits)
        tester = mover.on("rocksdb", limits=limits)
        assert tester.txid == 2
        assert tester.send(TRANSACTIONS[2]).progress.attempt == 0
        assert tester.state("count") == words(TRANSACTIONS[:3])


@pytest.mark.slow
def test_the_sum_tells_apart_what_only_looks_alike():
    alike = [[(b"a", b"bc")], [(b"ab", b"c")], [(b"a", b"b"), (b"c", b"")], [(b"c", b""), (b"a", b"b")]]
    assert len({sum_of(in_blocks(each)) for each in alike}) == len(alike)
