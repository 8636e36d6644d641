"""The page of a query that runs on Spark, over HTTP and in a real browser."""

import os
import socket
import sys
import threading
import time

import httpx2 as httpx
import pytest

from statefx import Checkpoint, submit
from statefx.errors import ConfigError
from tests.ui.checkpoints import flowing
from tests.ui.waiting import wait_until

SECS = 15
"""How long the cost is measured."""
PAGE = {"topology.ui.port": 0, "topology.state.checkpoint.interval.ms": 200}


@pytest.fixture
def query(spark, tmp_path):
    query = submit(flowing(bad=2), spark, tmp_path / "checkpoint", PAGE)
    yield query
    query.stop()


def test_a_port_that_is_taken_is_refused_before_the_checkpoint_is_touched(spark, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is taken"):
            submit(flowing(), spark, tmp_path / "checkpoint", {"topology.ui.port": port})
    assert not (tmp_path / "checkpoint").exists()


def test_a_start_that_fails_gives_the_port_back(spark, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "something").write_text("else")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Exception, match="no checkpoint"):
        submit(flowing(), spark, tmp_path / "checkpoint", {"topology.ui.port": port})
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def binds():
            try:
                again.bind(("127.0.0.1", port))
            except OSError:
                return False
            return True

        assert wait_until(binds)


def test_without_the_setting_there_is_no_page(spark, tmp_path):
    query = submit(flowing(), spark, tmp_path / "checkpoint")
    assert query.uiUrl is None
    query.stop()


def test_the_page_shows_what_the_query_says(query):
    assert wait_until(lambda: len(query.recentProgress) > 3)
    with httpx.Client(base_url=query.uiUrl, timeout=10) as client:
        (listed,) = client.get("/v1/topologies").json()["topologies"]
        assert listed["name"] == "bank"
        found = client.get("/v1/topologies/bank").json()
        assert found["generation"] == 1
        assert [each["name"] for each in found["graph"]["components"]] == ["payments", "balances", "told"]
        assert {each["name"] for each in found["layout"]["nodes"]} == {"payments", "balances", "told"}
        assert found["components"]["balances"]["setAside"] == 1
        assert client.get("/healthz").status_code == 200
        tasks = client.get("/v1/topologies/bank/tasks", params={"component": "balances"}).json()["tasks"]
        assert [each["task"] for each in tasks] == [0, 1]
        key = client.get("/v1/topologies/bank/state/key", params={"component": "balances", "key": "account-1"}).json()
        assert int(key["rows"][0]["value"]) == key["txid"] * (key["txid"] + 1) // 2


def test_the_page_ends_with_the_query_and_the_checkpoint_shows_the_end(query):
    url = query.uiUrl
    assert httpx.get(f"{url}healthz").status_code == 200
    query.stop()

    def is_gone():
        try:
            httpx.get(f"{url}healthz", timeout=1)
        except httpx.HTTPError:
            return True
        return False

    assert wait_until(is_gone)


@pytest.mark.slow
def test_a_browser_sees_the_query_live_and_its_end(query, tab, tmp_path):
    assert wait_until(lambda: len(query.recentProgress) > 3)
    tab.goto(query.uiUrl)
    tab.get_by_role("status").filter(has_text="Live").wait_for()
    assert tab.locator("h1").inner_text() == "bank"
    nodes = tab.locator("g.node")
    nodes.first.wait_for()
    assert nodes.evaluate_all("all => all.map(each => each.dataset.component)") == ["payments", "balances", "told"]
    before = int(tab.locator(".tx").last.get_attribute("data-txid"))
    assert wait_until(lambda: int(tab.locator(".tx").last.get_attribute("data-txid")) > before + 3)
    nodes.nth(1).click()
    tab.locator("#details .tasks tbody tr").nth(1).wait_for()
    tab.locator("form.lookup input[name=key]").fill("account-3")
    tab.get_by_role("button", name="Look up").click()
    tab.locator("#found pre").wait_for()
    assert int(tab.locator("#found pre").inner_text()) > 0
    query.stop()
    tab.get_by_role("alert").wait_for()
    assert "The topology ended" in tab.get_by_role("alert").inner_text()
    ended = Checkpoint(tmp_path / "checkpoint").observation()["health"]
    assert (ended["state"], ended["sentence"].partition(" at ")[0]) == ("ended", "It was stopped by query.stop()")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the processor's time of a thread is read from /proc")
@pytest.mark.soak
def test_an_open_page_costs_less_than_a_hundredth_of_a_core(query):
    """The threads that answer a page and observe for it, while it reads all that changes."""
    assert wait_until(lambda: len(query.recentProgress) > 3)

    def spent():
        named = (each for each in threading.enumerate() if each.name.startswith(("statefx-page", "AnyIO worker")))
        ours = [each for each in named if each.native_id is not None]  # None: it is just starting
        assert ours
        return sum(map(cpu_secs, ours))

    with httpx.stream("GET", f"{query.uiUrl}v1/topologies/bank/events", timeout=10) as answer:
        lines = answer.iter_lines()
        next(lines)
        began, before = time.monotonic(), spent()
        for _ in lines:
            if time.monotonic() - began > SECS:
                break
    share = (spent() - before) / (time.monotonic() - began)
    assert share < 0.01, f"{share:.2%}"


def cpu_secs(thread):
    """Return how much of a processor a thread has used, in ticks of 10 ms."""
    with open(f"/proc/self/task/{thread.native_id}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
