"""Every tool that writes state anew: wherever it is killed, all entries are as before, or all are as they become."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from statefx import BatchBolt, Checkpoint, Stateful, TopologyBuilder
from statefx.admin.migration import Migrator
from statefx.admin.rekeying import Rekey, older_form
from statefx.admin.rescaling import rescalings
from statefx.admin.rewrite import Rewrite, copies
from statefx.admin.savepoints import copy_pin, go_back
from statefx.coordinator.launch import Launch
from statefx.errors import ConfigError, FencedError
from statefx.log.location import Folders
from statefx.log.log import read_state
from statefx.state.registry import load_provider
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows
from statefx.testing.crashes import crashes
from statefx.testing.steps import DurableSteps, SteppedLog, SteppedProvider, SteppedStorage
from tests.admin.checkpoints import server
from tests.coordinator.changing import names_on
from tests.coordinator.migrating import REFERENCES
from tests.providers.redis_server import Content, RedisServer
from tests.testing.places import place
from tests.testing.topologies import SMALL

__all__ = ["place", "server"]

PROVIDERS = ("memory", "rocksdb", pytest.param("redis", marks=pytest.mark.server))
START = datetime(2026, 1, 1, tzinfo=UTC)
TYPED = {"key": "word string", "value": "n long"}


class One(Stateful, BatchBolt):
    """Counts words in every space whose entries belong to keys."""

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts, self.pairs = state, state.map("pairs")
        self.recent = state.map("recent", ttl="4000 days")

    def key(self, word):
        return word

    def form(self, number):
        return number

    def number(self, value):
        return value

    def execute(self, tup, collector):
        key = self.key(tup.word)
        for entries, kept in ((self.counts, key), (self.recent, key), (self.pairs, (key, "pair"))):
            before = entries.get(kept)
            entries.put(kept, self.form(tup.times + (0 if before is None else self.number(before))))
        self.timers.set(key, self.context.processingTime + timedelta(days=1), processing=True)

    def onTimer(self, key, at, value, collector):
        self.counts.put(key, self.form(1000 + self.number(self.counts.get(key, self.form(0)))))


class Two(One):
    """Its next version: keys have a part more, and values are in a list."""

    stateVersion = 2

    def key(self, word):
        return word, "word"

    def form(self, number):
        return [number]

    def number(self, value):
        return value[0]

    def migrateState(self, version, key, value):
        return [value]

    def migrateKey(self, version, key):
        match key:
            case ("pairs", (word, "pair")):
                return "pairs", ((word, "word"), "pair")
            case (name, word):
                return name, (word, "word")
        return key, "word"

    def downgradeState(self, version, key, value):
        return value[0]

    def downgradeKey(self, version, key):
        match key:
            case ("pairs", ((word, "word"), "pair")):
                return "pairs", (word, "pair")
            case (name, (word, "word")):
                return name, word
        return key[0]

    def groupingKey(self, key):
        match key:
            case ("pairs", ((word, _), _)) | (_, (word, _)) | (word, _):
                return word


class Told(One):
    """Says itself what its keys are grouped by."""

    def groupingKey(self, key):
        return word_of(key)


def key_of(bolt: One) -> Callable[[Any], Any]:
    return bolt.groupingKey if isinstance(bolt, Two) else word_of


def word_of(key: Any) -> str:
    """What a key of version 1 is grouped by; of a map, name and key."""
    match key:
        case ("pairs", (word, _)) | (_, word):
            return str(word)
    return str(key)


def topology(tasks: int = 2, bolt: One | None = None, name: str = "count") -> Any:
    builder = TopologyBuilder("words")
    builder.setStream("words", rows("word string, times long"))
    builder.setBolt(name, bolt or One(), tasks).fieldsGrouping("words", "word")
    return builder.createTopology()


class Site:
    """A checkpoint of one provider, and what is needed to change it step by step."""

    def __init__(self, place: Path, provider: str, server: RedisServer | None) -> None:
        self.place, self.folder, self.kept_by = place, place / "checkpoint", provider
        self.name = "count"
        self.options: dict[str, dict[str, Any]] = {name: {} for name in REFERENCES}
        if server is not None:
            self.options["redis"] = {"url": server.url, "retries": 1, "backoff_secs": 0.01}

    def config(self, folder: Path | None = None) -> dict[str, Any]:
        """Return settings of whatever keeps the state now."""
        kept_by = self.keeper(folder or self.folder)
        return {
            "topology.state.provider": REFERENCES[kept_by],
            "topology.state.provider.config": self.options[kept_by],
        }

    def keeper(self, folder: Path) -> str:
        """Return the name of the provider that keeps the state now."""
        if not (folder / "transactions").exists():
            return self.kept_by
        known = read_state(FolderStorage(folder)).topology.stateful[self.name].provider
        return next(name for name, reference in REFERENCES.items() if reference == known)

    def run(self, folder: Path, words: dict[str, int], topology: Any, days: int = 0) -> None:
        now = START + timedelta(days=days)
        with TopologyTester(topology, folder, self.config(folder), now=now, limits=SMALL) as tester:
            tester.send({"words": list(words.items())})

    def check_server(self, server: RedisServer | None) -> None:
        """See that the server keeps what is named, and nothing of what was, or was written in vain."""
        state = read_state(FolderStorage(self.folder))
        if server is not None and self.keeper(self.folder) == "redis":
            assert names_on(server, self) == {state.kept_as.get(self.name, self.name)}

    def mark(self) -> Any:
        """Return what tells a bolt that was rewritten from what it was."""
        state = read_state(FolderStorage(self.folder))
        known = state.topology.stateful["count"]
        return known.provider, known.parallelism, known.state_version, state.heads, state.kept_as

    def entries(self, folder: Path | None = None) -> Counter[Any]:
        """Return the multiset of what all tasks hold: word, space and number."""
        found: Counter[Any] = Counter()
        state = read_state(FolderStorage(folder or self.folder))
        bolt = Two() if state.topology.stateful[self.name].state_version == 2 else One()
        upgrade = Two().migrateState if isinstance(bolt, Two) else None
        for space in (None, "pairs", "recent"):
            with Checkpoint(folder or self.folder, self.config(folder)).state(
                self.name, migrate=upgrade, map=space, byTask=True
            ) as view:
                for (_, key), value in view.items():
                    word = key[0] if space == "pairs" else key
                    found[(word[0] if isinstance(bolt, Two) else word, space, bolt.number(value))] += 1
        return found


@dataclass(frozen=True)
class Tool:
    """A tool: in steps that are counted, as users call it, what it makes of counts, and what it leaves."""

    life: Callable[[Site, DurableSteps], object]
    again: Callable[[Site], object]
    becomes: Callable[[dict[str, int]], dict[str, int]] = dict
    after: Callable[[], Any] = topology
    own: Callable[[dict[str, int]], dict[str, int]] | None = None
    """Of the bolt's own keys alone, where maps stay."""
    begins: Callable[[], Any] = topology
    target: str = "checkpoint"


def folders(site: Site, steps: DurableSteps, name: str = "checkpoint") -> Folders:
    return Folders(str(site.place / name), wrap=partial(SteppedStorage, steps=steps))


def provider(site: Site, steps: DurableSteps, name: str | None = None) -> SteppedProvider:
    name = name or site.kept_by
    return SteppedProvider(load_provider(REFERENCES[name], site.options[name]), steps)


def opened(steps: DurableSteps) -> Any:
    return partial(SteppedLog, steps=steps, limit=100)


def rewritten(site: Site, steps: DurableSteps, of: Callable[[Any], Any]) -> None:
    at = folders(site, steps)
    found = read_state(at.storage)
    Rewrite(at, provider(site, steps), of(found), "do it again", opened(steps)).run(found)


def rescaling(site: Site, steps: DurableSteps) -> None:
    rewritten(site, steps, lambda found: rescalings(found, {"count": 3}, {"count": word_of}, str(site.folder)))


def rekeying(site: Site, steps: DurableSteps) -> None:
    config = site.config()
    launch = Launch(topology(3, Two()), config, site.folder, None, caller="submit", dumps=None, rescale=True)
    rewritten(site, steps, launch.steps)


def start_again(site: Site) -> None:
    TopologyTester(topology(3, Two()), site.folder, site.config(), rescale=True, now=START).close()


def downgrading(site: Site, steps: DurableSteps) -> None:
    def of(found: Any) -> Any:
        form = older_form(found.topology.stateful["count"], Two(), 1, word_of)
        return {"count": Rekey("count", form, "given version 1")}

    rewritten(site, steps, of)


ROWS = {"to": 70, "be": None, "new": 1, "w3": 33}


def table() -> pa.Table:
    return pa.table({"word": list(ROWS), "n": pa.array(list(ROWS.values()), pa.int64())})


def writing(mode: str, site: Site, steps: DurableSteps) -> None:
    writer = Checkpoint(site.folder, site.config())._writer("count", mode=mode, schema=TYPED, grouping_key=word_of)
    writer.folders, writer.provider, writer.opened = folders(site, steps), provider(site, steps), opened(steps)
    writer.write_table(table())


def write_again(mode: str, site: Site) -> None:
    Checkpoint(site.folder, site.config()).write("count", table(), mode=mode, schema=TYPED, groupingKey=word_of)


def merged(counts: dict[str, int]) -> dict[str, int]:
    return {word: n for word, n in (counts | ROWS).items() if n is not None}


def overwritten(counts: dict[str, int]) -> dict[str, int]:
    return {word: n for word, n in ROWS.items() if n is not None}


def migrating(to: str, site: Site, steps: DurableSteps) -> None:
    at = folders(site, steps)
    found = read_state(at.storage)
    target = {"target": provider(site, steps, to), "to": REFERENCES[to]}
    Migrator(at, provider(site, steps), copies(found), "migrate", opened(steps), **target).move(found)


def migrate_again(to: str, site: Site) -> None:
    if read_state(FolderStorage(site.folder)).topology.stateful["count"].provider != REFERENCES[to]:
        config = {"topology.state.provider.config": site.options[site.kept_by]}
        Checkpoint(site.folder, config).migrate(REFERENCES[to], site.options[to])


def copying(site: Site, steps: DurableSteps) -> None:
    source = Folders(str(site.folder))
    found = read_state(source.storage)
    kept, pin = provider(site, steps), found.pinned["one"]
    copy_pin(source, found, kept, pin, folders(site, steps, "copy"), opened=opened(steps))


def copy_again(site: Site) -> None:
    if not list(site.place.glob("copy/transactions/*.json")):
        for path in sorted(site.place.glob("copy/**/*"), reverse=True):  # as the refusal says: delete that folder
            path.rmdir() if path.is_dir() else path.unlink()
        Checkpoint(site.folder).restore("one", to=site.place / "copy")


def restoring(site: Site, steps: DurableSteps) -> None:
    at = folders(site, steps)
    found = read_state(at.storage)
    go_back(at, found, provider(site, steps), found.pinned["one"], opened(steps))


TOOLS = {
    "rescale": Tool(
        rescaling, lambda site: Checkpoint(site.folder).rescale({"count": 3}, groupingKey={"count": word_of}),
        after=partial(topology, 3),
    ),
    "migrateKey": Tool(rekeying, start_again, after=lambda: topology(3, Two())),
    "downgrade": Tool(
        downgrading, lambda site: Checkpoint(site.folder).downgrade("count", Two(), 1, groupingKey=word_of),
        begins=lambda: topology(2, Two()),
    ),
    "merge": Tool(partial(writing, "merge"), partial(write_again, "merge"), own=merged),
    "overwrite": Tool(partial(writing, "overwrite"), partial(write_again, "overwrite"), own=overwritten),
    "migrate": Tool(partial(migrating, "rocksdb"), partial(migrate_again, "rocksdb")),
    "migrate to memory": Tool(partial(migrating, "memory"), partial(migrate_again, "memory")),
    "migrate to a server": Tool(partial(migrating, "redis"), partial(migrate_again, "redis")),
    "copy": Tool(copying, copy_again, target="copy"),
    "restore": Tool(restoring, lambda site: Checkpoint(site.folder).restore("one")),
}  # fmt: skip
KEEPS_VERSIONS = {"copy", "restore"}
FIRST = {"to": 1, "be": 2, **{f"w{number}": number + 1 for number in range(6)}}
SECOND = {"to": 5, "late": 1}


def expected(counts: dict[str, int], own: dict[str, int]) -> Counter[Any]:
    return Counter(
        {
            **{(word, None, number): 1 for word, number in own.items()},
            **{(word, space, number): 1 for space in ("pairs", "recent") for word, number in counts.items()},
        }
    )


def added(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {word: counts.get(word, 0) + more.get(word, 0) for word in {*counts, *more}}


def cases() -> Iterator[Any]:
    for name in TOOLS:
        for kept_by in ("memory", "rocksdb", "redis"):
            to = {"migrate": "rocksdb", "migrate to memory": "memory", "migrate to a server": "redis"}.get(name)
            if kept_by == to or (kept_by == "redis" and name in KEEPS_VERSIONS):
                continue
            marks = [pytest.mark.slow, *([pytest.mark.server] if "redis" in (kept_by, to) else [])]
            if kept_by == "rocksdb" and name != "rescale":  # its files are those of "memory"
                marks.append(pytest.mark.soak)
            yield pytest.param(name, kept_by, id=f"{name}, {kept_by}", marks=marks)


def begun(place: Path, request: pytest.FixtureRequest, name: str, kept_by: str) -> tuple[Any, Any, Site]:
    """Return a tool, the server that it needs, if any, and a site on which its topology has run."""
    tool = TOOLS[name]
    server = request.getfixturevalue("server") if kept_by == "redis" or name == "migrate to a server" else None
    site = Site(place, kept_by, server)
    site.run(site.folder, FIRST, tool.begins())
    if name in KEEPS_VERSIONS:
        Checkpoint(site.folder).savepoint("one")
    return tool, server, site


@pytest.mark.daily(1)
@pytest.mark.parametrize(("name", "kept_by"), [*cases()])
def test_a_rewrite_killed_at_any_moment_keeps_all_entries(
    place: Path, request: pytest.FixtureRequest, name: str, kept_by: str
) -> None:
    tool, server, site = begun(place, request, name, kept_by)
    if name in KEEPS_VERSIONS:
        site.run(site.folder, SECOND, tool.begins())
    then = added(FIRST, SECOND) if name in KEEPS_VERSIONS else FIRST
    before, after = expected(then, then), expected(FIRST, FIRST if tool.own is None else tool.own(FIRST))
    assert site.entries() == before
    target, seen, mark = place / tool.target, list[bool](), site.mark()
    for point in crashes(place, partial(tool.life, site), *([Content(server)] if server else [])):
        switched = list(target.glob("transactions/*.json")) if tool.target == "copy" else site.mark() != mark
        if tool.target == "copy":
            assert site.entries() == before
        if switched or tool.target != "copy":
            assert site.entries(target) == (after if switched else before)
        if not point.is_rerun:
            seen.append(bool(switched))
        if not point.is_new(bool(switched), server and server.client().dbsize()):
            continue
        tool.again(site)
        assert site.entries(target) == after, "what was left is gone on with"
        more = {"to": 1, "other": 1}  # those set their timers anew, and the others' fire
        site.run(target, more, tool.after(), days=2)
        fired = dict.fromkeys(FIRST.keys() - more.keys(), 1000)
        own = added(added(FIRST if tool.own is None else tool.own(FIRST), fired), more)
        assert site.entries(target) == expected(added(FIRST, more), own), "each is in its task"
        site.check_server(server)
        assert Checkpoint(target, site.config(target)).verify().ok
    assert seen == sorted(seen)
    assert set(seen) == {False, True}


@pytest.mark.daily(2)
@pytest.mark.parametrize(("name", "kept_by"), [case for case in cases() if case.values[0] != "copy"])
def test_a_driver_that_takes_over_at_any_moment_wins(
    place: Path, request: pytest.FixtureRequest, name: str, kept_by: str, stride: int
) -> None:
    """A copy fences no driver."""
    tool, server, site = begun(place, request, name, kept_by)
    kept = Content(server) if server else {}
    shutil.copytree(site.folder, place / "before")
    content, rehearsal = deepcopy(kept), DurableSteps()
    tool.life(site, rehearsal)
    first = next(number for number, moment in enumerate(rehearsal.passed) if moment.startswith("after GENERATION"))
    moments = rehearsal.passed[first:-1]
    assert moments[-1].startswith(("before RESCALED", "before MIGRATED", "before RESTORED"))
    for moment in moments[list(TOOLS).index(name) % stride :: stride]:
        shutil.rmtree(site.folder)
        shutil.copytree(place / "before", site.folder)
        kept.clear()
        kept.update(content)
        steps = DurableSteps()
        steps.when(moment, partial(site.run, site.folder, SECOND, tool.begins()))
        with pytest.raises(FencedError):
            tool.life(site, steps)
        assert site.entries() == expected(added(FIRST, SECOND), added(FIRST, SECOND)), moment
        site.run(site.folder, SECOND, tool.begins())
        site.check_server(server)
        assert Checkpoint(site.folder, site.config()).verify().ok


# ---- one tool after another

WORDS = st.dictionaries(st.sampled_from([f"w{number}" for number in range(30)]), st.integers(1, 9), max_size=12)
CALLS = st.one_of(
    st.tuples(st.just("send"), WORDS),
    st.tuples(st.sampled_from(["merge", "overwrite"]), WORDS),
    st.tuples(st.just("rescale"), st.integers(1, 4)),
    st.tuples(st.just("version"), st.sampled_from([1, 2])),
    st.tuples(st.just("migrate"), st.sampled_from(["memory", "rocksdb", "redis"])),
    st.tuples(st.sampled_from(["restore", "copy"]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["savepoint", "rename"])),
)


@dataclass(frozen=True)
class Kept:
    """What a checkpoint keeps: numbers by word, those of the bolt's own keys, and of what topology they are."""

    counts: dict[str, int]
    own: dict[str, int]
    tasks: int = 2
    bolt: One = field(default_factory=One)
    name: str = "count"

    def send(self, site: Site, words: dict[str, int]) -> "Kept":
        site.run(site.folder, words, topology(self.tasks, self.bolt, self.name))
        return replace(self, counts=added(self.counts, words), own=added(self.own, words))

    def write(self, site: Site, mode: str, words: dict[str, int]) -> "Kept":
        texts = {
            "key": [json.dumps(self.bolt.key(word)) for word in words],
            "value": [json.dumps(self.bolt.form(times)) for times in words.values()],
        }
        table = pa.table({name: pa.array(column, pa.string()) for name, column in texts.items()})
        Checkpoint(site.folder).write(self.name, table, mode=mode, groupingKey=key_of(self.bolt))
        return replace(self, own={**(self.own if mode == "merge" else {}), **words})


BACK_AND_FORTH = [
    ("savepoint",), ("rescale", 3), ("version", 2), ("rename",), ("send", {"w1": 2}), ("savepoint",), ("restore", 0),
    ("send", {"w2": 3}), ("restore", 1), ("send", {"w3": 1}), ("version", 1), ("restore", 0), ("rescale", 1),
]  # fmt: skip
ON_A_SERVER = [
    ("rescale", 1), ("savepoint",), ("merge", {"w1": 5}), ("migrate", "redis"), ("rescale", 3), ("send", {"w2": 1}),
    ("rename",), ("rescale", 2), ("send", {"w3": 1}), ("migrate", "rocksdb"), ("savepoint",), ("overwrite", {"w4": 1}),
    ("copy", 0), ("send", {"w5": 2}),
]  # fmt: skip


class Life:
    """A checkpoint, what it keeps, and what its savepoints keep."""

    def __init__(self, site: Site) -> None:
        self.site, self.saved = site, list[Kept]()
        self.now = Kept({}, {}).send(site, FIRST)

    def rescale(self, tasks: int) -> None:
        Checkpoint(self.site.folder).rescale({self.now.name: tasks}, groupingKey={self.now.name: key_of(self.now.bolt)})
        self.now = replace(self.now, tasks=tasks)

    def version(self, version: int) -> None:
        bolt = self.now.bolt
        self.now = replace(self.now, bolt=Two() if version == 2 else One())
        if version > bolt.stateVersion:
            self.now.send(self.site, {})
        elif version < bolt.stateVersion:
            Checkpoint(self.site.folder).downgrade(self.now.name, bolt, version, groupingKey=word_of)

    def rename(self) -> None:
        name = "count" if self.now.name == "counted" else "counted"
        Checkpoint(self.site.folder).rename({self.now.name: name})
        self.now = replace(self.now, name=name)

    def migrate(self, to: str) -> None:
        keeper = self.site.keeper(self.site.folder)
        if to != keeper:
            for name in range(len(self.saved)):
                Checkpoint(self.site.folder).deleteSavepoint(f"s{name}")
            self.saved.clear()
            options = self.site.options
            Checkpoint(self.site.folder, {"topology.state.provider.config": options[keeper]}).migrate(
                REFERENCES[to], options[to]
            )

    def savepoint(self) -> None:
        if self.site.keeper(self.site.folder) == "redis":
            with pytest.raises(ConfigError, match="has its newest version alone"):
                Checkpoint(self.site.folder).savepoint("none")
        else:
            Checkpoint(self.site.folder).savepoint(f"s{len(self.saved)}")
            self.saved.append(self.now)

    def restore(self, chosen: int) -> None:
        if self.saved:
            Checkpoint(self.site.folder).restore(f"s{chosen % len(self.saved)}")
            self.now = self.saved[chosen % len(self.saved)]

    def copy(self, chosen: int) -> None:
        """Go on with a copy, of a savepoint or of what there is."""
        copy, at = Path(mkdtemp(dir=self.site.place)) / "copy", chosen % (len(self.saved) + 1)
        if self.site.keeper(self.site.folder) == "redis":
            with pytest.raises(ConfigError, match="has its newest version alone"):
                Checkpoint(self.site.folder).restore(to=copy)
            return
        Checkpoint(self.site.folder).restore(f"s{at}" if at < len(self.saved) else None, to=copy)
        self.now, self.site.folder = [*self.saved, self.now][at], copy
        self.saved.clear()


@pytest.mark.slow
@pytest.mark.server
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(provider="memory", calls=BACK_AND_FORTH)
@example(provider="rocksdb", calls=ON_A_SERVER)
@given(provider=st.sampled_from(["memory", "rocksdb", "redis"]), calls=st.lists(CALLS, min_size=4, max_size=10))
def test_rewrites_in_any_order_keep_what_each_of_them_keeps(
    place: Path, server: RedisServer, provider: str, calls: Any
) -> None:
    """Also those of savepoints, which have the tasks, the version and the name of their time."""
    site = Site(Path(mkdtemp(dir=place)), provider, server)
    life = Life(site)
    for call, *arguments in calls:
        if call in ("send", "merge", "overwrite"):
            life.now = life.now.send(site, *arguments) if call == "send" else life.now.write(site, call, *arguments)
        else:
            getattr(life, call)(*arguments)
        site.name = life.now.name
        assert site.entries() == expected(life.now.counts, life.now.own), call
        assert Checkpoint(site.folder, site.config()).verify().ok
        if call == "send":
            site.check_server(server)
    now = life.now.send(site, FIRST)
    assert site.entries() == expected(now.counts, now.own), "each is in its task"


@pytest.mark.slow
def test_a_new_bolt_may_have_a_groupingkey_in_a_rescaling_start(place: Path) -> None:
    site = Site(place, "memory", None)
    site.run(site.folder, FIRST, topology(2, Told()))
    builder = TopologyBuilder("words")
    builder.setStream("words", rows("word string, times long"))
    builder.setBolt("count", Told(), 3).fieldsGrouping("words", "word")
    builder.setBolt("new", Told(), 2).fieldsGrouping("words", "word")
    with TopologyTester(builder.createTopology(), site.folder, site.config(), rescale=True, now=START):
        assert site.entries() == expected(FIRST, FIRST)
