"""Checkpoints that releases have left are read and gone on from, with what is recorded of each."""

import json
import tarfile

import pytest

from tests.providers.redis_server import RedisServer
from tests.releases.kinds import KINDS
from tests.releases.make import FOLDER, configured

RECORDED = sorted(FOLDER.glob("*/*.json"))


@pytest.fixture(scope="module")
def server():
    with RedisServer(appendonly="no") as server:
        yield server


def cases():
    for path in RECORDED:
        marks = pytest.mark.server if KINDS[path.stem].provider == "redis" else ()
        yield pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [*cases()])
def test_checkpoint_of_release_is_gone_on_from(recorded, request, place, monkeypatch):
    kind, expected = KINDS[recorded.stem], json.loads(recorded.read_text())
    server = request.getfixturevalue("server") if kind.provider == "redis" else None
    with tarfile.open(recorded.with_suffix(".tar.gz")) as archive:
        archive.extractall(place, filter="data")
    monkeypatch.chdir(place)
    with configured(kind, server) as config:
        assert kind.shown(config) == expected["shown"]
        assert kind.go_on(config) == expected["emitted"]
        assert kind.shown(config) == expected["later"]


def test_each_kind_has_a_checkpoint_of_some_release():
    assert {path.stem for path in RECORDED} == KINDS.keys()
