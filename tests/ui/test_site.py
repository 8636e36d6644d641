"""The data of the page, over checkpoints of real topologies."""

import shutil
import threading
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from statefx import Checkpoint
from statefx.testing import Limits, TopologyTester
from statefx.ui import archive
from statefx.ui.site import Site
from statefx.ui.watched import Watched
from statefx_memory import MemoryStateProvider
from tests.ui.checkpoints import bank, filled

TOP = "/v1/topologies"


@pytest.fixture
def place(tmp_path):
    return filled(tmp_path / "checkpoint")


def served(place, observe=None, name="bank"):
    checkpoint = Checkpoint(place)
    site = Site(tick_secs=0.01)
    site.topologies[name] = Watched(
        name, checkpoint, observe or (lambda: archive.observed(checkpoint)), 0.0, spent=float
    )
    return TestClient(site.app, base_url="http://127.0.0.1")


def test_topologies_are_listed(place):
    (found,) = served(place).get(TOP).json()["topologies"]
    assert (found["name"], found["checkpoint"]) == ("bank", str(place))


def test_a_checkpoint_shows_the_transactions_of_its_log(place):
    found = served(place).get(f"{TOP}/bank").json()["transactions"]
    assert [(each["txid"], each["outcome"], each["rows"]) for each in found] == [(n, "committed", 3) for n in (1, 2, 3)]


def test_the_log_is_shown_newest_first(place):
    found = served(place).get(f"{TOP}/bank/transactions").json()
    assert [each["txid"] for each in found["attempts"]] == [3, 2, 1]
    assert (found["leftOut"], found["attempts"][0]["generation"]) == (0, 1)


@pytest.mark.slow
def test_history_has_savepoints_generations_and_changes(place):
    Checkpoint(place).savepoint("before")
    filled(place, 1)
    Checkpoint(place).rescale(
        {"balances": 3}, groupingKey={"balances": lambda key: key[1] if isinstance(key, tuple) else key}
    )
    found = served(place).get(f"{TOP}/bank/history").json()
    assert [(each["name"], each["txid"]) for each in found["savepoints"]] == [("before", 3)]
    assert [(each["first"], each["last"], each["committed"]) for each in found["generations"]] == [(4, 4, 1), (1, 3, 3)]
    assert {"GENERATION", "PINNED", "RESCALED"} <= {each["record"] for each in found["changes"]}


def test_state_lists_bolts(place):
    (bolt,) = served(place).get(f"{TOP}/bank/state").json()["bolts"]
    assert (bolt["component"], bolt["tasks"], bolt["provider"]) == ("balances", 2, "memory")


def test_maps_of_a_bolt_are_named(place):
    page = served(place)
    assert page.get(f"{TOP}/bank/state/maps", params={"component": "balances"}).json()["maps"] == ["seen"]
    assert page.get(f"{TOP}/bank/state/maps", params={"component": "nobody"}).status_code == 404


@pytest.mark.parametrize("path", ["", "state", "state/maps", "history", "transactions"])
def test_what_a_page_shows_opens_no_state(place, monkeypatch, path):
    """State that fits over all workers alone would be in the memory of the driver then, or on its disk."""
    opened = []
    monkeypatch.setattr(MemoryStateProvider, "newState", lambda *given: opened.append(given))
    assert served(place).get(f"{TOP}/bank/{path}".rstrip("/"), params={"component": "balances"}).status_code == 200
    assert opened == []


@pytest.mark.parametrize("path", ["", "state", "history", "transactions"])
def test_what_a_page_asks_again_and_again_needs_no_file_of_state(place, path):
    shutil.rmtree(place / "state")
    assert served(place).get(f"{TOP}/bank/{path}".rstrip("/")).status_code == 200


def test_a_key_shows_its_value_and_where_it_comes_from(place):
    found = served(place).get(f"{TOP}/bank/state/key", params={"component": "balances", "key": "ann"}).json()
    now, *files = found["rows"]
    assert (now["kind"], now["value"], found["txid"]) == ("now", "303", 3)
    assert files
    assert all(each["path"].startswith("state/") for each in files)


def test_a_key_of_a_map_is_looked_up(place):
    given = {"component": "balances", "key": '"ann"', "map": "seen"}
    assert served(place).get(f"{TOP}/bank/state/key", params=given).json()["rows"][0]["value"] == "102"


def test_a_key_that_is_not_there_has_no_rows(place):
    found = served(place).get(f"{TOP}/bank/state/key", params={"component": "balances", "key": "nobody"}).json()
    assert found["rows"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"component": "nobody", "key": "1"}, 404, "balances"),
        ({"component": "balances", "key": "1", "map": "other"}, 404, "seen"),
        ({"component": "balances", "key": "1", "task": "9"}, 404, "task"),
        ({"component": "balances", "key": "1", "task": "-1"}, 400, "task"),
        ({"component": "balances", "key": '{"a": 1}'}, 400, "key"),
        ({"component": "balances"}, 400, "key=..."),
        ({"key": "1"}, 400, "component=..."),
    ],
)
def test_a_look_up_that_can_not_be_says_why(place, given, status, said):
    found = served(place).get(f"{TOP}/bank/state/key", params=given)
    assert (found.status_code, said in found.json()["error"]) == (status, True), found.text


def test_a_value_that_is_long_is_cut(place, monkeypatch):
    monkeypatch.setattr(archive, "VALUE_CHARS", 2)
    found = served(place).get(f"{TOP}/bank/state/key", params={"component": "balances", "key": "ann"}).json()
    assert found["rows"][0]["value"] == "30 ... and 1 characters more"


@pytest.mark.soak
@pytest.mark.slow
def test_ten_thousand_dead_letters_are_shown_as_the_first_of_them(tmp_path):
    place = filled(tmp_path / "checkpoint", 1, [f"account-{number}" for number in range(10_000)])
    found = served(place).get(f"{TOP}/bank/deadletters", params={"component": "balances"}).json()
    assert (len(found["keys"]), found["more"]) == (archive.HELD_KEYS, True)
    assert "nothing for account-" in found["keys"][0]["error"]


@pytest.mark.parametrize(
    "path", ["nobody", "nobody/events", "bank/nothing", "..%2f..%2fetc%2fpasswd", "bank%2f..%2f..%2fx"]
)
def test_a_topology_that_is_not_shown_is_not_found(place, path):
    assert served(place).get(f"{TOP}/{path}").status_code == 404


@pytest.mark.parametrize(
    "file",
    [
        "../door.py",
        "..%2fdoor.py",
        "%2e%2e/door.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "main.js%00",
        "",
        ".",
        "__init__.py",
    ],
)
def test_no_path_leads_out_of_the_assets(place, file):
    found = served(place).get(f"/assets/{file}")
    assert found.status_code == 404
    assert "import" not in found.text


def test_the_page_and_its_files_are_served(place):
    page = served(place)
    assert 'src="/assets/main.js"' in page.get("/").text
    assert page.get("/assets/main.js").headers["content-type"].startswith("text/javascript")
    assert page.get("/assets/style.css").headers["content-type"].startswith("text/css")


def test_a_name_of_any_kind_is_found_by_its_address(tmp_path):
    name = 'a/b "c" <script>\n?x=1&y#é'
    place = filled(tmp_path / "checkpoint", 1)
    page = served(place, name=name)
    found = page.get(f"{TOP}/{quote(name, safe='')}/history")
    assert found.status_code == 200, found.text


@pytest.mark.soak
@pytest.mark.slow
def test_a_reader_while_the_log_is_folded_sees_a_whole_one(place):
    answers, done = [], threading.Event()
    page = served(place)

    def read():
        while not done.is_set():
            answers.append(page.get(f"{TOP}/bank"))

    reader = threading.Thread(target=read)
    with TopologyTester(bank(), place, limits=Limits(fold_after=5)) as tester:
        reader.start()
        for number in range(60):
            tester.send({"payments": [("ann", 1 + number)]})
        done.set()
        reader.join()
    found = [answer.json() for answer in answers]
    last = [each["transactions"][-1]["txid"] for each in found if not each["unread"]]
    assert len(last) > 1
    assert last == sorted(last)
    assert [each["unread"] for each in found if each["unread"]] == []


@pytest.mark.slow
def test_health_is_503_while_it_is_sick(place):
    for state, error, status in [
        ("healthy", None, 200), ("idle", None, 200), ("starting", None, 200), ("ended", None, 200),
        ("failed", "ValueError: x", 503), ("stuck", None, 503), ("failing", None, 503), ("dead", None, 503),
        ("unknown", None, 503), (None, None, 503),
    ]:  # fmt: skip
        page = served(place, lambda state=state, error=error: {"health": {"state": state}, "error": error})
        assert page.get("/healthz").status_code == status, state


@pytest.mark.slow
def test_what_can_not_be_observed_is_said_and_the_last_stands(place, caplog):
    answers = iter([{"topology": "bank", "health": {"state": "healthy"}}])
    page = served(place, lambda: next(answers))
    assert page.get(f"{TOP}/bank").json()["unread"] is None
    for _ in range(3):
        found = page.get(f"{TOP}/bank").json()
        assert (found["topology"], found["unread"]) == ("bank", "StopIteration: ")
    assert len([each for each in caplog.records if "can't be observed" in each.message]) == 1


def test_tasks_are_sent_when_they_are_asked_for(place):
    tasks = [{"task": 0, "rowsIn": 30}, {"task": 1, "rowsIn": 10}]
    page = served(place, lambda: {"components": {"count": {"tasks": tasks, "rowsIn": 40}}})
    assert page.get(f"{TOP}/bank").json()["components"] == {"count": {"rowsIn": 40, "skew": {"ratio": 1.5, "task": 0}}}
    assert page.get(f"{TOP}/bank/tasks", params={"component": "count"}).json()["tasks"] == tasks
    assert page.get(f"{TOP}/bank/tasks", params={"component": "x"}).status_code == 404


@pytest.mark.slow
def test_the_tasks_of_a_transaction_are_sent_when_they_are_asked_for(place):
    known = [{"txid": txid, "attempt": 1, "count": 1, "tasks": []} for txid in (5, 6, 7)]
    page = served(place, lambda: {"tasksOf": known})
    assert page.get(f"{TOP}/bank").json()["tasksOf"] == known[-1:], "the last one is there unasked"
    asked = {"txid": "6", "attempt": "1"}
    assert page.get(f"{TOP}/bank/worked", params=asked).json() == known[1]
    answer = page.get(f"{TOP}/bank/worked", params=asked | {"attempt": "0"})
    assert (answer.status_code, answer.json()["error"]) == (
        404, "times of tasks are known of the last 3 transactions that this driver has committed",
    )  # fmt: skip
    assert page.get(f"{TOP}/bank/worked").status_code == 400
