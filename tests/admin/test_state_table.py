"""State as a table of Arrow: of every provider, at every kept transaction, typed or as JSON."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statefx import Checkpoint
from statefx.admin.columns import Decoder, json_text, shown_of
from statefx.errors import CheckpointError, CodecError, ConfigError, StateCorruptedError, TopologyError
from statefx.operators.schema import Form
from statefx.state.encoding.codec import StandardCodec
from statefx.storage import FolderStorage
from tests.admin.checkpoints import KEYS, Keep, KeepAll, Keeper, Newer, keeper, keeping, put, ruled, server
from tests.testing.codecs import Json
from tests.testing.places import place
from tests.testing.topologies import SMALL

__all__ = ["keeper", "place", "server"]

TYPED = {"key": "word string", "value": "count long"}
WORK = [put(a=1, b=2, c=3), put(a=2, d=4), put(b=None, c=3), put(a=5, e=6)]
STATES = [{}, {"a": 1, "b": 2, "c": 3}, {"a": 2, "b": 2, "c": 3, "d": 4}, {"a": 2, "c": 3, "d": 4}]
STATES.append({"a": 5, "c": 3, "d": 4, "e": 6})


def shown(table: pa.Table) -> dict[str, int]:
    """Return the rows of a typed table, each key once."""
    rows = table.to_pylist()
    assert len({row["word"] for row in rows}) == len(rows)
    return {row["word"]: row["count"] for row in rows}


def test_it_has_what_a_view_has(keeper: Keeper) -> None:
    keeper.run(*WORK)
    found = Checkpoint(keeper.folder).table("keep", schema=TYPED)
    assert found.schema.names == ["word", "count", "task", "space"]
    assert shown(found) == STATES[-1]
    with Checkpoint(keeper.folder).state("keep", byTask=True) as view:
        assert {(row["task"], row["word"]): row["count"] for row in found.to_pylist()} == dict(view.items())
    assert set(found["space"].to_pylist()) == {"state"}


@pytest.mark.slow
def test_a_range_and_a_task(keeper: Keeper) -> None:
    keeper.run(*WORK)
    assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED, start="b", stop="e")) == {"c": 3, "d": 4}
    assert Checkpoint(keeper.folder).table("keep", start="e", stop="b").num_rows == 0
    by_task = [Checkpoint(keeper.folder).table("keep", schema=TYPED, task=task) for task in (0, 1)]
    assert shown(pa.concat_tables(by_task)) == STATES[-1]
    assert {row["task"] for row in by_task[1].to_pylist()} == {1}
    assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED, start="d")) == {"d": 4, "e": 6}


def test_keys_of_every_type_are_json_in_their_order(keeper: Keeper) -> None:
    keeper.run(put(a=1), topology=keeping(1, KeepAll()))
    found = Checkpoint(keeper.folder).table("keep")
    with Checkpoint(keeper.folder).state("keep") as view:
        kept = list(view.items())
    assert [json.loads(value)[1] for value in found["value"].to_pylist()] == [str(key) for key, _ in kept]
    assert [json.loads(key) for key in found["key"].to_pylist()][:3] == [None, False, True]
    assert len(found) == len(KEYS)


def test_maps_and_what_is_over(keeper: Keeper) -> None:
    begun = datetime.now(UTC) - timedelta(hours=1)
    tester = keeper.run(
        {"rows": [("old", 1, "recent"), ("p", 7, "plain"), ("q", 8, "plain"), ("own", 0, "own")]}, now=begun
    )
    tester.advance(3600)
    tester.send({"rows": [("new", 2, "recent")]})
    assert shown(Checkpoint(keeper.folder).table("keep", map="recent", schema=TYPED)) == {"new": 2}
    plain = Checkpoint(keeper.folder).table("keep", map="plain", schema=TYPED, start="q")
    assert shown(plain) == {"q": 8}
    assert plain["space"].to_pylist() == ["map plain"]
    with pytest.raises(CheckpointError, match=r"its maps are \['plain', 'recent'\]"):
        Checkpoint(keeper.folder)._table("keep", map="nothing")
    with Checkpoint(keeper.folder).state("keep", map="recent") as view:
        assert dict(view.items()) == {"new": 2}


def test_a_broadcast_map_is_shown_once(keeper: Keeper) -> None:
    keeper.run({"rows": [("a", 1), ("b", 2)], "rules": [("limit", 5)]}, topology=ruled())
    found = Checkpoint(keeper.folder).table("keep", map="rules", schema=TYPED)
    assert found.to_pylist() == [{"word": "limit", "count": 5, "task": 0, "space": "broadcast rules"}]
    with Checkpoint(keeper.folder).state("keep", map="rules") as view:
        assert dict(view.items()) == {"limit": 5}


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_each_transaction(place: Path, provider: str) -> None:
    with Keeper(place, provider) as keeper:
        keeper.run(*WORK)
        for txid in range(1, len(STATES)):
            assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED, at=txid)) == STATES[txid]
        for before in range(len(STATES)):
            for after in range(1, len(STATES)):
                diff = Checkpoint(keeper.folder).table("keep", schema=TYPED, diff=(before, after))
                assert diff.schema.names == ["op", "word", "before", "after", "task", "space"]
                check(diff, STATES[before], STATES[after])


@pytest.mark.slow
def test_transactions_since_the_older_snapshot(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK, limits=SMALL)
        assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED, at=3)) == STATES[3]
        check(Checkpoint(keeper.folder).table("keep", schema=TYPED, diff=(3, 4)), STATES[3], STATES[4])
        with pytest.raises(CheckpointError, match="transaction 1 of the state of keep/0 is not kept any more"):
            Checkpoint(keeper.folder)._table("keep", at=1)


def check(diff: pa.Table, before: dict[str, int], after: dict[str, int]) -> None:
    """Compare with what two states say."""
    found = {row["word"]: (row["op"], row["before"], row["after"]) for row in diff.to_pylist()}
    assert len(found) == len(diff)
    expected = {}
    for key in before.keys() | after.keys():
        was, now = before.get(key), after.get(key)
        if was != now:
            expected[key] = ("insert" if was is None else "delete" if now is None else "update", was, now)
    assert found == expected


@pytest.mark.slow
def test_merged_files_tell_each_transaction_they_took_in(place: Path) -> None:
    limits = SMALL.__class__(files_max=2, sweep_every=1, min_age_secs=0.0, versions_kept=6)
    with Keeper(place) as keeper:
        keeper.run(*(put(**{f"k{n % 7}": n, "all": n}) for n in range(1, 31)), limits=limits)
        for txid in (30, 27, 25):
            found = shown(Checkpoint(keeper.folder).table("keep", schema=TYPED, at=txid))
            assert found == {f"k{n % 7}": n for n in range(1, txid + 1)} | {"all": txid}
        with pytest.raises(CheckpointError, match="not kept any more"):
            Checkpoint(keeper.folder)._table("keep", at=3)


@pytest.mark.slow
def test_a_savepoint_shows_what_was(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:2]).close()
        Checkpoint(keeper.folder).savepoint("before")
        keeper.run(*WORK[2:], limits=SMALL)
        assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED, at="before")) == STATES[2]
        check(Checkpoint(keeper.folder).table("keep", schema=TYPED, diff=("before", None)), STATES[2], STATES[4])
        with pytest.raises(CheckpointError, match=r"no savepoint 'after'; there are \['before'\]"):
            Checkpoint(keeper.folder)._table("keep", at="after")


@pytest.mark.slow
def test_a_version_whose_files_are_deleted_says_so(place: Path) -> None:
    limits = SMALL.__class__(files_max=2, sweep_every=1, min_age_secs=0.0, versions_kept=2)
    with Keeper(place) as keeper:
        tester = keeper.run(*WORK, limits=limits)
        table = Checkpoint(keeper.folder)._table("keep", schema=TYPED)
        assert shown(table.table()) == STATES[-1]
        for number in range(20):
            tester.send(put(a=number))
        with pytest.raises(CheckpointError, match="transaction 4 of the state of 'keep' is not kept any more"):
            table.table()


def test_a_damaged_file_is_told(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        path = max((keeper.folder / "state/keep/0").glob("*.changelog"), key=lambda each: each.stat().st_size)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(StateCorruptedError, match=path.name):
            Checkpoint(keeper.folder).table("keep", task=0)
        path.unlink()
        with pytest.raises(StateCorruptedError, match="missing"):
            Checkpoint(keeper.folder).table("keep", task=0)


@pytest.mark.slow
def test_a_damaged_key_never_hides_a_block_of_a_range(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run({"rows": [(f"k{n:06d}", n, "own") for n in range(30_000)]}, topology=keeping(1))
        (path,) = (keeper.folder / "state/keep/0").glob("*.changelog")
        data = path.read_bytes()
        for first in (b"u8k008192", b"u8k016384"):
            at = data.index(first) + len(first) - 4
            for digit in b"0a":  # before where it was, and behind
                path.write_bytes(data[:at] + bytes([digit]) + data[at + 1 :])
                number = int(first[3:])
                for start, stop in ((number, number + 1), (number - 2, number + 2), (number + 9, number + 10)):
                    table = Checkpoint(keeper.folder)._table("keep", start=f"k{start:06d}", stop=f"k{stop:06d}")
                    with pytest.raises(StateCorruptedError):
                        table.table()


def test_values_of_several_fields(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(put(a=1), topology=keeping(1, KeepAll()))
        checkpoint = Checkpoint(keeper.folder)
        table = checkpoint.table("keep", schema={"value": "n int, text string"}, start="", stop=b"")
        assert table.select(["key", "n"]).to_pylist()[:2] == [{"key": '""', "n": 11}, {"key": '"a"', "n": 12}]
        pairs = checkpoint.table("keep", schema={"key": "letter string, n long"}, start=("a", 1), stop=("a", 2))
        assert pairs.select(["letter", "n"]).to_pylist() == [{"letter": "a", "n": 1}]
        found = Checkpoint(keeper.folder)._table(
            "keep", diff=(0, 1), schema={"value": "n int, text string"}, start="a", stop="b"
        )
        assert found.table()["after"].to_pylist()[0] == {"n": 12, "text": "a"}
        assert found.table()["before"].to_pylist()[0] is None


def test_values_of_two_versions_of_the_bolt(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:1]).close()
        keeper.run(put(a=7, z=1), topology=keeping(2, Newer()))
        found = Checkpoint(keeper.folder).table("keep", schema=TYPED)
        assert shown(found) == {"a": 7, "b": 2, "c": 3, "z": 1}
        (kept,) = Checkpoint(keeper.folder).explain("keep", "a").tasks
        assert [file.value for file in kept.files] == [7, 1]


def test_a_codec_of_the_users_own(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.config["topology.state.provider.config"] = {"codec": "tests.testing.codecs:Json"}
        keeper.run(*WORK)
        found = Checkpoint(keeper.folder)._table("keep", schema=TYPED)
        assert shown(found.table()) == STATES[-1]
        assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED, codec=Json())) == STATES[-1]
        with Checkpoint(keeper.folder).state("keep") as view:
            assert dict(view.items()) == STATES[-1]
        (kept,) = Checkpoint(keeper.folder).explain("keep", "a").tasks
        assert kept.value == 5
        with pytest.raises(CheckpointError, match="was written with codec"):
            Checkpoint(keeper.folder)._table("keep", codec=StandardCodec())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"at": 1, "diff": (1, 2)}, ConfigError, "give one of them"),
        ({"diff": 3}, ConfigError, "two transactions"),
        ({"at": True}, ConfigError, "the number of a transaction, or the name of a savepoint"),
        ({"at": -1}, ConfigError, "the number of a transaction"),
        ({"at": 9}, CheckpointError, "not committed in .*: the last one is 4"),
        ({"at": "x"}, CheckpointError, "no savepoint 'x'; there are none"),
        ({"task": 2}, CheckpointError, r"tasks 0\.\.1"),
        ({"task": True}, ConfigError, r"tasks 0\.\.1, got task=True: give a number"),
        ({"map": ""}, ConfigError, r"can't be the name of a map: give the one"),
        ({"start": []}, CodecError, "a list"),
        ({"schema": "word string"}, ConfigError, "the types of key and value"),
        ({"schema": {"values": "n long"}}, ConfigError, "the types of key and value"),
        ({"schema": {"value": "n lung"}}, ConfigError, "lung"),
        ({"schema": {"value": "task long"}}, ConfigError, r"two columns would be called \['task'\]"),
        ({"schema": {"key": "before string"}}, ConfigError, r"two columns would be called \['before'\]"),
    ],
)
def test_wrong_arguments(place: Path, given, error, said) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        with pytest.raises(error, match=said):
            Checkpoint(keeper.folder)._table("keep", **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"value": "count string"}, "the value of 'a' is 5, which does not fit value='count string'"),
        ({"value": "a long, b long"}, "the value of 'a' is 5"),
        ({"key": "n long"}, "a key is 'a', which does not fit key='n bigint'"),
    ],
)
def test_what_does_not_fit_a_type_is_named(place: Path, schema, said) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK, topology=keeping(1))
        with pytest.raises(ConfigError, match=said):
            Checkpoint(keeper.folder).table("keep", schema=schema)


@pytest.mark.server
def test_a_server_has_the_newest_version_alone(place: Path, server: Any) -> None:
    with Keeper(place, server=server) as keeper:
        keeper.run(*WORK)
        assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED, at=4)) == STATES[4]
        for given in ({"at": 2}, {"diff": (2, 4)}):
            with pytest.raises(ConfigError, match="kept by 'redis', which has the newest version alone"):
                Checkpoint(keeper.folder)._table("keep", **given)


def test_before_anything_is_committed_it_is_empty(keeper: Keeper) -> None:
    keeper.start(keeping())
    found = Checkpoint(keeper.folder).table("keep", schema=TYPED)
    assert found.num_rows == 0
    assert found.schema.names == ["word", "count", "task", "space"]
    with pytest.raises(CheckpointError, match="holds no state of 'other'"):
        Checkpoint(keeper.folder)._table("other")


ENTRIES = st.dictionaries(
    st.one_of(st.text(max_size=3), st.integers(-(2**65), 2**65), st.tuples(st.text(max_size=2), st.integers(-9, 9))),
    st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.booleans(), max_size=2)),
    max_size=8,
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(work=st.lists(ENTRIES, min_size=1, max_size=6), bounds=st.tuples(st.text(max_size=2), st.text(max_size=2)))
def test_any_entries_in_any_range(work, bounds, tmp_path_factory) -> None:
    from statefx import KeyValueState
    from statefx.state.changelog.chain import Changelog
    from statefx.state.contract.store import EMPTY, Namespace, StateContext
    from statefx.state.registry import load_provider

    folder = tmp_path_factory.mktemp("any")
    provider = load_provider("statefx_memory:MemoryStateProvider", {})
    storage, namespace, version = FolderStorage(str(folder)), Namespace("l", "keep", 0), EMPTY
    for each in work:
        context = StateContext(1, version, storage, str(folder), files_max=2)
        state = KeyValueState(provider.newState(namespace, context), version=version)
        state.deleteRange(0, 3)
        state.putAll(each)
        state.prepareCommit(version.txid + 1)
        state.commit(version.txid + 1)
        version = state.version
        everything, ranged = dict(state.items()), dict(state.items(min(bounds), max(bounds)))
        state.close()
    for start, stop, expected in ((None, None, everything), (min(bounds), max(bounds), ranged)):
        shown = shown_of(None, "", StandardCodec(), start, stop)
        decoder = Decoder(StandardCodec(), shown.head, Form(), 1)
        route = Changelog(namespace, storage).route(version, None, None)
        (whole,) = shown.ranges
        found = [(k, v) for keys, values in route.entries(*whole) for k, v in zip(keys, values, strict=True)]
        decoded = decoder.decoded([value for _, value in found])
        keys = [decoder._codec.decode_key(key) for key, _ in found]
        assert list(zip(keys, decoded, strict=True)) == list(expected.items())


THINGS = st.one_of(
    st.lists(st.integers(), min_size=1, unique=True),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, unique=True),
    *(st.lists(st.text(alphabet, max_size=4), min_size=1, unique=True) for alphabet in ("ab", 'a"\\\x7f\n\xe9 ~')),
    st.lists(st.one_of(st.text(max_size=2), st.integers(), st.booleans(), st.none()), min_size=1, unique_by=repr),
)


@pytest.mark.slow
@given(keys=THINGS, value=THINGS, surrogates=st.booleans())
def test_json_does_not_depend_on_what_else_is_in_the_block(keys, value, surrogates) -> None:
    codec, head = StandardCodec(), shown_of(None, "", StandardCodec()).head
    stored = {head + codec.encode_key(key): key for key in keys if key is not None and not isinstance(key, bool)}
    entries = [(each, stored[each], value[at % len(value)]) for at, each in enumerate(sorted(stored))]
    if surrogates:
        entries = [(each, key, f"{thing}\ud800" if at == 0 else thing) for at, (each, key, thing) in enumerate(entries)]
    block = [each for each, *_ in entries], [codec.encode_value(thing) for *_, thing in entries]
    for columns in Decoder(codec, head, Form(), 1).rows(iter([block])):
        assert columns[0].to_pylist() == [json_text(key) for _, key, _ in entries]
        assert columns[1].to_pylist() == [json_text(thing) for *_, thing in entries]


@pytest.mark.slow
def test_savepoints_of_another_number_of_tasks(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:2]).close()
        Checkpoint(keeper.folder).savepoint("before")
        Checkpoint(keeper.folder).rescale(
            {"keep": 3}, groupingKey={"keep": lambda key: key[1] if isinstance(key, tuple) else key}
        )
        keeper.run(*WORK[2:], topology=keeping(3), limits=SMALL)
        before = Checkpoint(keeper.folder).table("keep", schema=TYPED, at="before")
        assert shown(before) == STATES[2]
        assert set(before["task"].to_pylist()) <= {0, 1}
        assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED)) == STATES[4]
        assert {each.value for each in Checkpoint(keeper.folder).explain("keep", "a").tasks} == {5}
        with pytest.raises(ConfigError, match="another number of tasks"):
            Checkpoint(keeper.folder)._table("keep", diff=("before", None))
        found = Checkpoint(keeper.folder).verify()
        assert found.ok, str(found)
        for path in (keeper.folder / "state").rglob("*.changelog"):
            if any(name in path.name for name in ("001-", "002-")):
                path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert not Checkpoint(keeper.folder).verify().ok
        with pytest.raises(StateCorruptedError):
            Checkpoint(keeper.folder).table("keep", at="before")


@pytest.mark.slow
def test_after_going_back(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:2]).close()
        Checkpoint(keeper.folder).savepoint("before")
        keeper.run(*WORK[2:]).close()
        Checkpoint(keeper.folder).restore("before")
        assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED)) == STATES[2]
        keeper.run(put(z=9))
        assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED)) == STATES[2] | {"z": 9}
        assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED, at=2)) == STATES[2]
        with pytest.raises(CheckpointError, match=r"transaction 3 of .* was given up by restore or repair"):
            Checkpoint(keeper.folder)._table("keep", at=3)
        (kept,) = Checkpoint(keeper.folder).explain("keep", "a").tasks
        assert [txid for _, txid in kept.transactions] == [2, 1]
        assert Checkpoint(keeper.folder).verify().ok


@pytest.mark.slow
def test_a_bolt_of_another_name(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:2]).close()
        Checkpoint(keeper.folder).savepoint("before")
        keeper.run(*WORK[2:], topology=keeping(2, id="words"), rename={"keep": "words"})
        assert shown(Checkpoint(keeper.folder).table("words", schema=TYPED)) == STATES[4]
        assert shown(Checkpoint(keeper.folder).table("words", schema=TYPED, at=3)) == STATES[3]
        assert shown(Checkpoint(keeper.folder).table("keep", schema=TYPED, at="before")) == STATES[2]
        (kept,) = Checkpoint(keeper.folder).explain("words", "a").tasks
        assert [txid for _, txid in kept.transactions] == [4, 2, 1]
        assert Checkpoint(keeper.folder).verify().ok


class Typed(Keep):
    """Says what its keys and values are."""

    stateSchema = {"key": "word string", "value": "count long", "maps": {"plain": {"value": "times int"}}}


@pytest.mark.slow
def test_types_that_the_bolt_declares_are_those_of_every_reader_and_may_change(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        assert Checkpoint(keeper.folder)._table("keep").schema.names == ["key", "value", "task", "space"]
        keeper.run({"rows": [("p", 7, "plain"), ("r", 1, "recent")]}, topology=keeping(2, Typed()))
        found = Checkpoint(keeper.folder).table("keep")
        assert shown(found) == STATES[-1]
        plain = Checkpoint(keeper.folder).table("keep", map="plain")
        assert plain.drop_columns("task").to_pylist() == [{"key": '"p"', "times": 7, "space": "map plain"}]
        other = Checkpoint(keeper.folder)._table("keep", map="plain", schema={"value": "n long"})
        assert other.schema.names[1] == "n"
        assert Checkpoint(keeper.folder)._table("keep", schema={}).schema.names == ["key", "value", "task", "space"]
        assert Checkpoint(keeper.folder)._table("keep", map="recent").schema.names == ["key", "value", "task", "space"]
        writer = Checkpoint(keeper.folder)._writer("keep", mode="merge", grouping_key=lambda key: key)
        assert writer.encoder.columns == ["word", "count"]
        keeper.run(put(z=1))
        assert Checkpoint(keeper.folder)._table("keep").schema.names == ["key", "value", "task", "space"], (
            "it may go again"
        )


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"key": "word strin"}, "strin"),
        ({"keys": "word string"}, "give the types of key and value"),
        ({"key": "task int"}, "two columns would be called"),
        ({"maps": {"": {"key": "a int"}}}, "no name of a map"),
        ({"maps": {"recent": "a int"}}, "texts of DDL"),
        ({"maps": "recent"}, "types of maps as"),
        ("word string", "stateSchema='word string': write"),
    ],
)
def test_types_that_can_not_be_are_refused_by_the_topology(declared: Any, said: str) -> None:
    bolt = type("Wrong", (Keep,), {"stateSchema": declared})()
    with pytest.raises(TopologyError, match=said):
        keeping(2, bolt)
