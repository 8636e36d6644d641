"""Documents beside the log that no driver of this release has written: each reader says so, and none breaks."""

import copy
import io
import json
import random
from itertools import product

import pytest
from rich.console import Console

from statefx import Checkpoint
from statefx.command import main
from statefx.log.location import OBSERVED
from statefx.log.log import read_state
from statefx.log.observation import BYTES_MAX, READ_MAX, observation_with_log
from statefx.testing import TopologyTester
from statefx.top import screen
from statefx.ui.watched import Watched, encoded
from statefx.why import why
from tests.coordinator.test_observation import until, written
from tests.testing.topologies import lines, word_count


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A checkpoint with the document that its driver wrote last."""
    place = tmp_path_factory.mktemp("real") / "ck"
    with TopologyTester(word_count(), place) as tester, written(tester):
        tester.send(lines("to be or not to be"))
        until((place / OBSERVED).exists)
    return place


def document(real):
    return json.loads((real / OBSERVED).read_text())


@pytest.fixture
def put(real):
    """Puts another document in the place of the real one, for one test."""
    before = (real / OBSERVED).read_bytes()

    def put(data):
        (real / OBSERVED).write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return real

    yield put
    (real / OBSERVED).write_bytes(before)


def shown(place, capsys):
    """What all readers show of a checkpoint, as texts; none may raise."""
    at = Checkpoint(place)
    found = {}
    for name in ("status", "top", "why"):
        arguments = {"status": ["--wait", "0"], "top": ["--once"], "why": []}[name]
        assert main([name, str(place), *arguments, "--table"][: -1 if name == "why" else None]) in (0, 1)
        found[name] = capsys.readouterr().out
    page = Watched("t", at, at.observation).snapshot()
    assert page.document["unread"] is None
    found["page"] = encoded(page.document["health"]).decode()
    return found


WRONG = {
    "empty": (lambda whole: b"", "it is cut off, or no JSON"),
    "cut off": (lambda whole: json.dumps(whole).encode()[:-30], "it is cut off, or no JSON"),
    "bytes": (lambda whole: bytes(range(256)), "it is cut off, or no JSON"),
    "nested": (lambda whole: b"[" * 200_000, "it is cut off, or no JSON"),
    "a list": (lambda whole: [whole], "it is no JSON object"),
    "null": (lambda whole: b"null", "it is no JSON object"),
    "newer": (lambda whole: whole | {"format": 2}, "it has format 2, and this statefx reads 1"),
    "no format": (lambda whole: {}, "it has format None"),
    "huge": (lambda whole: whole | {"topology": "x" * READ_MAX}, f"and a driver writes {BYTES_MAX:,} at most"),
    "components": (lambda whole: whole | {"components": [1]}, "(components: Expected `object | null`, got `array`)"),
    "a task": (lambda whole: whole | {"components": {"a": {"tasks": ["x"]}}}, "Expected `object`, got `str`"),
    "a share": (lambda whole: whole | {"components": {"a": {"activity": {"busy": "x"}}}}, "Expected `float`"),
    "an edge": (lambda whole: whole | {"graph": {"components": [], "edges": [{}]}}, "missing required field `from`"),
    "health": (lambda whole: whole | {"health": None}, "(health: Expected `object`, got `null`)"),
    "a time": (lambda whole: whole | {"writtenAt": 5}, "(writtenAt: Expected `str | null`, got `int`)"),
    "generation": (lambda whole: whole | {"generation": "1"}, "(generation: Expected `int`, got `str`)"),
    "not a number": (
        lambda whole: json.dumps(whole | {"components": {"a": {"activity": {"busy": float("nan")}}}}).encode(),
        "Expected `float`, got `null`",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_odd_document_is_told_in_one_sentence(name, real, put, capsys):
    odd, reason = WRONG[name]
    place = put(odd(document(real)))
    health = Checkpoint(place).observation()["health"]
    assert health["state"] == "unknown"
    assert health["sentence"].startswith(f"{OBSERVED} in {place} can't be used: ")
    assert reason in health["sentence"]
    assert len(health["sentence"]) < 400
    found = shown(place, capsys)
    assert all(OBSERVED in text for text in found.values()), found


ODD = ["<script>\x1b[2J", -1, 1e308, 10**30, None, [], {"x": None}]
TRIED = 150


def paths(value, *path):
    """The places of a document, of a list its first item."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from paths(each, *path, key)


@pytest.mark.slow
def test_no_value_anywhere_in_a_document_breaks_a_reader(real, put):
    """Places are given odd values: what is of another shape is told, and all else is shown as it is."""
    whole = document(real)
    count = whole["components"]["count"]
    whole["components"] = {"count": count | {"tasks": count["tasks"][:1]}}
    whole |= {"sources": {"lines": SOURCE}, "sinks": {"out": SINK}, "exceptions": [EXCEPTION]}
    folders = Checkpoint(real)._folders
    log, told = read_state(folders.storage), {True: 0, False: 0}
    places = list(paths({name: whole[name] for name in whole if name not in ("metrics", "config", "recent")}))
    for path, odd in random.Random(7).sample(list(product(places, ODD)), TRIED):
        changed = copy.deepcopy(whole)
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = odd
        put(changed)
        try:
            found = observation_with_log(folders, log)
            is_odd = "can't be used" in found["health"]["sentence"]
            told[is_odd] += 1
            if not is_odd:
                str(why(found))
                Console(file=io.StringIO(), width=200).print(screen(found, 2e9))
                assert Watched("t", None, lambda found=found: found).snapshot().document["unread"] is None
        except Exception as error:
            raise AssertionError(f"{'.'.join(map(str, path))} = {odd!r}") from error
    assert told[True] > TRIED / 10
    assert told[False] > TRIED / 10


TIME = {"heldBackBy": "1", "behindSecs": 99.0, "silentSecs": 99.0, "idleAfterSecs": None, "newest": "t", "time": "t"}
SOURCE = {"lagRecords": 5, "lagSecs": 1.5, "rateIn": 2.0, "rateOut": 1.0, "etaSecs": 9.0, "eventTime": TIME}
SINK = {"txid": 1, "rows": 5, "bytes": 9, "commitMs": 300.0, "stuckSince": "2026-01-01T00:00:00+00:00", "why": "away"}
EXCEPTION = {"at": "t", "component": "a", "task": 1, "type": "E", "message": "m", "traceback": "", "count": 1}
