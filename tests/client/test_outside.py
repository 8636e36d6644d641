"""What others see of a client at work, and ask of it: metrics, its document, requests from a shell."""

import gc
import json
import socket
import threading
import time
import urllib.request
import weakref
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from statefx import Checkpoint, TransactionalClient
from statefx.client import outside
from statefx.command import main
from statefx.errors import CheckpointError, ConfigError, FencedError
from statefx.metrics.prometheus import collector
from tests.client.ledgers import client, work

BOUND_SECS = 20.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Begin at once, and look often: the tests would wait for a second each."""
    monkeypatch.setattr(outside, "FIRST_SECS", 0.0)
    monkeypatch.setattr(outside, "LOOK_SECS", 0.02)


def until(condition):
    end = time.monotonic() + BOUND_SECS
    while not (found := condition()):
        assert time.monotonic() < end
        threading.Event().wait(0.01)
    return found


def listens(place, generation=1):
    return until((place / "ck" / "requests" / f"{generation:020}" / "driver.json").exists)


def value(found, name, **labels):
    (one,) = [each for each in found.metrics if each["name"] == name and labels.items() <= each["labels"].items()]
    return one["value"]


def threads():
    return [each for each in threading.enumerate() if each.name in ("statefx-observer", "statefx-requests")]


@pytest.mark.slow
def test_metrics_count_transactions_rows_and_state(place):
    with client(place) as found:
        work(found)
        assert value(found, "statefx_transactions_total", outcome="committed") == found.committed == 6
        assert value(found, "statefx_transaction_duration_seconds", phase="all")["count"] == 6
        assert value(found, "statefx_rows_total", to="entries", direction="in") == 8
        assert value(found, "statefx_sink_last_txid", component="entries") == 6
        assert value(found, "statefx_state_keys_changed_total", component="progress") == 5
        registry = CollectorRegistry()
        registry.register(collector(found))
        assert b'statefx_transactions_total{outcome="committed",topology="ledger"} 6.0' in generate_latest(registry)


@pytest.mark.slow
def test_prometheus_reads_them_at_a_port_until_the_client_is_closed(place):
    with client(place, {"topology.metrics.port": 0}) as found:
        work(found)
        with urllib.request.urlopen(found.metricsUrl, timeout=BOUND_SECS) as answer:
            assert b'topology="ledger"' in answer.read()
        url = found.metricsUrl
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=BOUND_SECS)


@pytest.mark.slow
def test_a_port_that_is_taken_is_refused_before_another_client_is_fenced(place):
    with client(place) as found, closing(socket.create_server(("127.0.0.1", 0))) as other:
        with pytest.raises(ConfigError, match="give another port"):
            client(place, {"topology.metrics.port": other.getsockname()[1]})
        work(found)


def test_a_page_of_its_own_is_refused_with_the_command_that_shows_one(place):
    with pytest.raises(ConfigError, match=f"run statefx ui {place}/ck"):
        client(place, {"topology.ui.port": 0})


@pytest.mark.slow
def test_status_is_what_the_client_does_now(place):
    with client(place) as found:
        listens(place)
        work(found)
        seen = Checkpoint(place / "ck").status()
    assert seen["asked"]["answered"]
    assert (seen["topology"], seen["health"]["state"]) == ("ledger", "healthy")
    assert [(each["txid"], each["outcome"]) for each in seen["transactions"]] == [(n, "committed") for n in range(1, 7)]
    assert seen["components"]["entries"]["rowsIn"] == 8
    assert {each["name"] for each in seen["graph"]["components"]} >= {"entries", "refused", "accounts", "progress"}


@pytest.mark.slow
def test_a_client_without_work_is_idle_and_one_that_is_closed_has_ended(place):
    with client(place):
        listens(place)
        assert Checkpoint(place / "ck").status()["health"]["state"] == "idle"
    seen = Checkpoint(place / "ck").status()
    assert (seen["health"]["state"], seen["asked"]["answered"]) == ("ended", False)


@pytest.mark.slow
def test_a_transaction_that_was_rolled_back_is_no_sickness(place):
    with client(place) as found:
        listens(place)
        work(found, abort_at=2)
        assert Checkpoint(place / "ck").status()["health"]["state"] == "healthy"


@pytest.mark.slow
def test_a_savepoint_is_taken_and_deleted_without_fencing_the_client(place):
    checkpoint = Checkpoint(place / "ck")
    with client(place) as found:
        listens(place)
        work(found)
        assert checkpoint.savepoint("before").txid == 6
        with found.transaction() as t:
            t.put("progress", "done", 9)
        checkpoint.deleteSavepoint("before")
        with found.transaction() as t:
            t.put("progress", "done", 10)
        assert (found.generation, found.committed, checkpoint.savepoints()) == (1, 8, ())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["stop", "pause", "resume"])
def test_what_only_its_program_can_do_is_refused_with_the_remedy(place, capsys, command):
    with client(place) as found:
        listens(place)
        assert main([command, str(place / "ck")]) == 1
        assert "is a TransactionalClient" in (said := capsys.readouterr().err)
        assert "client.close()" in said
        work(found)


def test_the_level_of_a_logger_is_set(place):
    with client(place):
        listens(place)
        done = Checkpoint(place / "ck").loglevel("ERROR", "shop.client")
    assert done.result == {"logger": "shop.client", "level": "ERROR", "was": "NOTSET"}


@pytest.mark.slow
def test_a_client_that_lives_for_a_moment_leaves_no_sign(place, monkeypatch):
    monkeypatch.setattr(outside, "FIRST_SECS", 60.0)
    began = time.monotonic()
    with client(place) as found:
        work(found)
    assert time.monotonic() - began < BOUND_SECS
    assert not (place / "ck" / "requests").exists()
    assert Checkpoint(place / "ck").observation()["health"]["state"] == "ended"


@pytest.mark.soak
@pytest.mark.slow
def test_a_client_that_is_dropped_goes_and_its_threads_with_it(place):
    before = len(threads())
    found = client(place)
    listens(place)
    session = weakref.ref(found._session)
    del found
    gc.collect()
    assert session() is None
    until(lambda: len(threads()) == before)
    with pytest.raises(CheckpointError, match="no driver is at work"):
        Checkpoint(place / "ck").stop()


@pytest.mark.slow
def test_a_client_that_was_fenced_says_nothing_of_its_successor(place):
    with client(place) as old:
        listens(place)
        with client(place) as found:
            listens(place, 2)
            with pytest.raises(FencedError), old.transaction() as t:
                t.put("progress", "done", 1)
            old.close()
            seen = Checkpoint(place / "ck").status()
            assert (seen["generation"], seen["health"]["state"], seen["asked"]["answered"]) == (2, "idle", True)
            work(found)


def test_json_of_status_in_a_shell(place, capsys):
    with client(place):
        listens(place)
        assert main(["status", str(place / "ck"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["health"]["state"] == "idle"


def test_what_is_seen_of_a_client_needs_no_state(place):
    sinks = {"out": outside_sink(place)}
    with TransactionalClient(place / "ck", id="words", sinks=sinks, schemas={"out": "word string"}) as found:
        with found.transaction() as t:
            t.send("out", [("a",)])
        assert value(found, "statefx_rows_total", to="out", direction="in") == 1


def outside_sink(place):
    from statefx.connectors.files import FileSink

    return FileSink(place / "out")
