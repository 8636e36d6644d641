"""The support bundle: what is in it, and that no value and no secret is."""

import io
import json
import logging
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx import Checkpoint
from statefx.coordinator.observation import Observer
from statefx.errors import BoltError
from statefx.testing import TopologyTester
from statefx.ui import archive
from statefx.ui.bundle import Masked, Tail, bundle, frames
from statefx.ui.watched import Watched
from tests.ui.checkpoints import bank, filled

VALUES = ("ann@example.org", "4111111111111111", "hunter2-hunter2")
LOGGER = logging.getLogger("statefx")


@pytest.fixture
def tail():
    handler = Tail()
    LOGGER.addHandler(handler)
    yield handler
    LOGGER.removeHandler(handler)


def opened(one, lines=()):
    with zipfile.ZipFile(io.BytesIO(bundle(one, lines))) as file:
        return {name: file.read(name).decode() for name in file.namelist()}


def document(found):
    email, card, secret = VALUES
    return found | {
        "topology": "bank",
        "graph": {"components": [{"name": "balances", "operator": "Balances", "kind": "bolt"}], "edges": []},
        "health": {"state": "stuck", "since": "2026-01-02T03:04:05.000+00:00", "sentence": f"can't write {email}"},
        "exceptions": [
            {
                "type": "ValueError", "component": "balances", "message": f"no account {email}",
                "traceback": f'  File "/srv/bank.py", line 7, in execute\n    fail("{email}")\nValueError: {card}',
            }
        ],
        "sources": {"payments": {"lagRecords": 7, "said": {"last": card}}},
        "metrics": [{"name": "refused", "labels": {"component": "balances", "account": email}, "value": 3}],
        "config": {"topology.state.provider": "rocksdb", "feed.url": f"http://me:{secret}@feed", "feed.key": secret,
                   "topology.state.provider.config": {"password": secret, "cache_mb": 64}},
    }  # fmt: skip


@pytest.fixture
def one(tmp_path):
    place = filled(tmp_path / "checkpoint", 2, VALUES)
    checkpoint = Checkpoint(place)
    return Watched("bank", checkpoint, lambda: document(archive.observed(checkpoint)), 0.0)


@pytest.mark.slow
def test_no_value_and_no_secret_is_in_any_part(one, tail):
    LOGGER.warning("bolt %s has failed for %s", "balances", VALUES[0])
    LOGGER.warning("%s", VALUES[1])
    LOGGER.warning("row " + VALUES[2])  # noqa: G003 - as a user's own line may come
    found = opened(one, tail.records)
    assert {name: [value for value in VALUES if value in text] for name, text in found.items()} == {
        name: [] for name in found
    }


@pytest.mark.slow
def test_no_value_of_a_bolt_that_fails_is_in_what_its_driver_observed(tmp_path, tail):
    secret = "ann-of-a-secret"
    with TopologyTester(bank(onError="fail"), tmp_path / "checkpoint") as tester:
        observer = Observer(tester._launch, tester._coordinator.log, tester._progress, tester._progress.status)
        tester.send({"payments": [(secret, 5)]})
        with pytest.raises(BoltError, match=secret):
            tester.send({"payments": [(secret, 0)]})
        one = Watched("bank", Checkpoint(tmp_path / "checkpoint"), observer.document, 0.0)
        assert secret in json.dumps(one.snapshot().document)
        found = opened(one, tail.records)
    assert [name for name, text in found.items() if secret in text] == []
    (error,) = json.loads(found["observation.json"])["exceptions"]
    assert (error["type"], error["component"], "checkpoints.py" in error["traceback"]) == (
        "ValueError",
        "balances",
        True,
    )


@pytest.mark.slow
def test_what_helps_is_in_it(one, tail):
    LOGGER.warning("transaction %d of %s took %.1f s", 7, "balances", 1.25)
    LOGGER.handle(
        LOGGER.makeRecord(
            "statefx", 30, archive.__file__, 1, "transaction %d of %s: %s", (7, "balances", VALUES[0]), None
        )
    )
    found = opened(one, tail.records)
    assert set(found) == {
        "README.txt", "observation.json", "transactions.json", "history.json", "state.json", "environment.json",
        "log.txt",
    }  # fmt: skip
    seen = json.loads(found["observation.json"])
    assert (seen["health"]["state"], seen["health"]["since"][:4]) == ("stuck", "2026")
    assert (seen["exceptions"][0]["type"], seen["exceptions"][0]["component"]) == ("ValueError", "balances")
    assert seen["exceptions"][0]["traceback"] == 'File "/srv/bank.py", line 7, in execute'
    assert seen["config"] == {
        "topology.state.provider": "rocksdb", "feed.url": "(left out)", "feed.key": "(left out)",
        "topology.state.provider.config": {"password": "(left out)", "cache_mb": 64},
    }  # fmt: skip
    assert seen["sources"]["payments"]["lagRecords"] == 7
    assert [each["txid"] for each in json.loads(found["transactions.json"])["attempts"]] == [3, 2, 1]
    assert "transaction 7 of balances: (15 characters)" in found["log.txt"]
    assert "pyspark" in json.loads(found["environment.json"])


@pytest.mark.slow
def test_what_can_not_be_read_is_said_in_its_place(one, monkeypatch):
    def broken(checkpoint):
        raise OSError(5, f"no {VALUES[0]}")

    monkeypatch.setattr(archive, "history", broken)
    found = opened(one)
    assert json.loads(found["history.json"]) == {
        "unread": f"(OSError; {len('OSError: [Errno 5] no ' + VALUES[0])} characters)"
    }
    assert json.loads(found["state.json"])["bolts"]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "reason", "message", "config"]), inner)
    ),
    max_leaves=10,
)


def texts(data):
    if isinstance(data, dict):
        return [text for each in data.values() for text in texts(each)]
    if isinstance(data, list):
        return [text for each in data for text in texts(each)]
    return [data] if isinstance(data, str) else []


def with_secrets(data):
    """Mark each text; names of keys are no values."""
    if isinstance(data, dict):
        return {key: with_secrets(each) for key, each in data.items()}
    if isinstance(data, list):
        return [with_secrets(each) for each in data]
    return f"secret-{data}" if isinstance(data, str) else data


@pytest.mark.slow
@given(PLAIN)
def test_no_text_stays_that_is_not_known(data):
    marked = with_secrets(data)
    if isinstance(marked, dict):
        assert [text for text in texts(Masked(["count"]).data(marked)) if "secret-" in text] == []


def test_frames_are_all_that_stays_of_a_traceback():
    said = 'Traceback (most recent call last):\n  File "/a b/c.py", line 3, in f\n    x = "ann"\nValueError: ann\n'
    assert frames(said) == 'File "/a b/c.py", line 3, in f'
