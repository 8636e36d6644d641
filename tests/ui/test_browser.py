"""What the page shows in a real Chromium, next to what its data say."""

import io
import json
import threading
import zipfile

import httpx2 as httpx
import pytest

from statefx import Checkpoint
from statefx.ui import archive, serving
from tests.ui.browsing import opened_tab
from tests.ui.checkpoints import filled
from tests.ui.waiting import wait_until

pytestmark = pytest.mark.slow

HOSTILE = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">'\"\n\u202e&amp;"


class Shown:
    """A server over a real checkpoint, whose observation a test changes."""

    def __init__(self, folder, tick_secs=0.05):
        self.checkpoint = Checkpoint(filled(folder / "checkpoint", 3, ["carl"]))
        self.checkpoint.savepoint("before-upgrade")
        self.changes = changes()
        self._tick_secs = tick_secs
        self.open(0)

    def open(self, port):
        self.server = serving.opened("127.0.0.1", port, "--port")
        self.server.site._tick = self._tick_secs
        self.server.show("bank", self.checkpoint, self.observe, self._tick_secs)._spent = float
        self.server.start()

    def observe(self):
        return archive.observed(self.checkpoint) | self.changes

    @property
    def url(self):
        return self.server.url()

    def data(self):
        return httpx.get(f"{self.url}v1/topologies/bank", timeout=10).json()

    def close(self):
        self.server.stop()
        assert self.server.ended(10)


GRAPH = {
    "levels": 3,
    "components": [
        {"name": "payments", "kind": "spout", "level": 0, "tasks": 2, "operator": "KafkaSpout", "provider": None},
        {"name": "balances", "kind": "bolt", "level": 1, "tasks": 2, "operator": "Balances", "provider": "rocksdb"},
        {"name": "ledger", "kind": "sink", "level": 2, "tasks": 1, "operator": "SqlSink", "provider": None},
    ],
    "edges": [
        {"from": "payments", "to": "balances", "stream": "default", "grouping": "fields(account)"},
        {"from": "balances", "to": "ledger", "stream": "changed", "grouping": "shuffle"},
    ],
}


def figures(**more):
    return {
        "activity": {"busy": 0.7, "idle": 0.2, "blocked": 0.1, "restoring": 0, "committing": 0},
        "rowsInPerSec": 1234.5, "rowsOutPerSec": 1234.5, "rowsIn": 5000, "rowsOut": 5000, "stateKeys": None,
        "stateBytes": None, "watermark": None, "freshnessSecs": None, "late": 0, "setAside": 0,
        "tasks": [{"task": 0, "rowsIn": 4000, "rowsInPerSec": 9, "activity": None, "msPerSec": {"execute": 7.5}},
                  {"task": 1, "rowsIn": 1000, "rowsInPerSec": 9, "activity": None, "msPerSec": {}}],
        **more,
    }  # fmt: skip


ACTIVITIES = ["busy", "blocked", "idle", "restoring", "committing"]

AT = "2026-01-02T03:04:05.000+00:00"


def changes():
    """What a driver might say besides what the log of the checkpoint does."""
    late = {"freshnessSecs": 3.5, "watermark": AT}
    return {
        "topology": "bank",
        "graph": GRAPH,
        "config": {"topology.state.provider": "rocksdb", "feed.password": "***", "topology.ui.port": 4450},
        "driver": {"host": "shop-1", "pid": 7, "machine": "b4eef43c pid:[4026531836]", "began": "8702604"},
        "health": {"state": "stuck", "since": AT, "sentence": "Stuck: no database.", "remedy": "Start it."},
        "components": {
            "payments": figures(freshnessSecs=1.0, watermark=AT),
            "balances": figures(**late, stateBytes=48_000_000, stateKeys=77, late=4, setAside=9),
            "ledger": figures(**late),
        },
        "edges": [{"from": "payments", "to": "balances", "stream": "default", "rowsPerSec": 1234.5, "rows": 9}],
        "sources": {
            "payments": {
                "lagRecords": 4321, "lagSecs": 12.0, "rateIn": 100, "rateOut": 200, "etaSecs": 43.0,
                "eventTime": {"heldBackBy": "payments-3", "behindSecs": 60, "silentSecs": 9},
            }
        },
        "sinks": {
            "ledger": {"txid": 2, "rows": 11, "bytes": 99, "commitMs": 4.5, "stuckSince": AT, "why": "refused"}
        },
        "tasksOf": [{
            "txid": 3, "attempt": 0,
            "tasks": [
                {
                    "component": "balances", "task": 1, "beganMs": 10, "endedMs": 60,
                    "phases": [["execute", 10, 50], ["finish", 50, 60]],
                },
                {"component": "payments", "task": 0, "beganMs": 0, "endedMs": 20, "phases": [["execute", 0, 20]]},
            ],
        }],
        "exceptions": [
            {
                "at": AT, "count": 2, "component": "balances", "task": 1, "type": "ValueError", "message": "no account",
                "traceback": '  File "/srv/bank.py", line 7, in execute',
            }
        ],
    }  # fmt: skip


@pytest.fixture
def shown(tmp_path):
    found = Shown(tmp_path)
    yield found
    found.close()


@pytest.fixture
def page(shown, tab):
    """A page whose data the test changes."""
    return loaded(tab, shown)


def loaded(tab, shown):
    tab.goto(shown.url)
    tab.locator(".connection.live").wait_for()
    return tab


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """Data that no test changes: a checkpoint, a server and a tab for all of these tests take a third of their time."""
    found = Shown(tmp_path_factory.mktemp("still"), tick_secs=1)
    yield found
    found.close()


@pytest.fixture(scope="module")
def still_tab(browser):
    with opened_tab(browser) as found:
        yield found


@pytest.fixture
def read(still, still_tab):
    """A page of these data, as it is when it was opened."""
    still_tab.set_viewport_size({"width": 1440, "height": 1000})
    still_tab.emulate_media(color_scheme="light")
    return loaded(still_tab, still)


def cells(page, selector):
    """The texts of a table, row by row, when it is there."""
    page.locator(f"{selector} tbody tr").first.wait_for()
    return page.locator(f"{selector} tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.innerText.trim()))"
    )


def test_the_sentence_stands_first_with_the_remedy(read, still):
    health = still.data()["health"]
    verdict = read.locator("main > section").first.locator("#verdict")
    assert verdict.locator(".sentence").inner_text() == health["sentence"]
    assert verdict.locator(".remedy").inner_text().endswith(health["remedy"])
    assert read.title() == "stuck: bank · statefx"


def test_panels_stand_in_the_order_of_their_weight(read):
    found = read.locator("main > section").evaluate_all("all => all.map(each => each.id)")
    assert found == [
        "health", "graph", "transactions", "gantt", "freshness", "lag", "sinks", "state", "problems", "history",
        "settings", "support",
    ]  # fmt: skip


def test_the_graph_has_every_component_and_edge(read, still):
    graph = still.data()["graph"]
    nodes = read.locator("g.node").evaluate_all("all => all.map(each => each.dataset.component)")
    ends = "all => all.map(({dataset}) => [dataset.from, dataset.to, dataset.stream])"
    edges = read.locator("g.edge").evaluate_all(ends)
    assert nodes == [each["name"] for each in graph["components"]]
    assert edges == [[each["from"], each["to"], each["stream"]] for each in graph["edges"]]
    label = read.locator("g.node[data-component=balances]").get_attribute("aria-label")
    assert "busy 70 %" in label
    assert "1.2k rows a second in" in label
    assert "48 MB of state" in label


def test_a_chosen_component_shows_its_tasks(read):
    read.locator("g.node[data-component=balances]").click()
    read.locator("#details .tasks tbody tr").nth(1).wait_for()
    assert [row[2] for row in cells(read, "#details .tasks")] == ["4k", "1k"]
    assert "payments, fields(account)" in read.locator("#details .facts").inner_text()


def test_the_table_of_components_sorts(read):
    names = read.locator("#components .link")
    assert wait_until(lambda: names.all_inner_texts() == ["payments", "balances", "ledger"])
    read.get_by_role("button", name="state", exact=True).click()
    assert wait_until(lambda: names.all_inner_texts() == ["balances", "payments", "ledger"])
    assert read.locator("#components th[aria-sort=descending]").inner_text().startswith("state")


def test_the_strip_has_a_bar_for_each_transaction(read, still):
    found = still.data()["transactions"]
    bars = read.locator(".tx").evaluate_all(
        "all => all.map(each => [Number(each.dataset.txid), each.classList.contains('ok')])"
    )
    assert bars == [[each["txid"], each["outcome"] == "committed"] for each in found]


def test_the_gantt_has_a_lane_for_each_task_by_level(read):
    lanes = read.locator(".lane .who").evaluate_all("all => all.map(each => each.innerText)")
    assert lanes == ["payments/0", "balances/1"]
    assert read.locator(".lane").last.locator(".part").count() == 2


def test_the_gantt_shows_the_transaction_that_is_chosen_in_the_strip(page, shown):
    one = {"outcome": "committed", "began": AT, "ended": AT, "rows": 1, "durationMs": {"run": 5}}
    work = {"component": "balances", "task": 0, "beganMs": 0, "endedMs": 9, "phases": [["execute", 0, 9]]}
    shown.changes["transactions"] = [one | {"txid": txid, "attempt": 0} for txid in (41, 42, 43)]
    shown.changes["tasksOf"] = [
        {"txid": txid, "attempt": 0, "count": 1, "tasks": [work | {"task": txid}]} for txid in (42, 43)
    ]
    said = page.locator("#gantt")
    page.locator("#gantt .lane", has_text="balances/43").wait_for()
    page.locator(".tx[data-txid='42']").click()
    page.locator("#gantt .lane", has_text="balances/42").wait_for()
    assert "Transaction 42: 1 task" in said.inner_text()
    page.locator(".tx[data-txid='42']").press("ArrowLeft")
    said.get_by_text("Nothing is known of the tasks of transaction 41").wait_for()
    page.locator(".tx[data-txid='41']").press("End")
    page.locator("#gantt .lane", has_text="balances/43").wait_for()


@pytest.mark.soak
def test_a_word_has_one_colour_whatever_else_is_shown(page, shown):
    def colours():
        return {
            name: page.locator(f"#{section} .legend li", has_text=name).first.locator("i").evaluate(
                "each => getComputedStyle(each).backgroundColor"
            )
            for section, names in (("graph", ACTIVITIES), ("transactions", ("run", "hooks", "log")), ("gantt", steps))
            for name in names
        }  # fmt: skip

    one = {"txid": 4, "attempt": 0, "outcome": "committed", "began": AT, "ended": AT, "rows": 1}
    shown.changes["transactions"] = [one | {"durationMs": {"run": 5, "hooks": 2, "log": 1}}]
    page.locator("#transactions .legend", has_text="hooks").wait_for()
    steps = ["execute", "finish"]
    before = colours()
    task = shown.changes["tasksOf"][0]["tasks"][1]
    more = [["restore", 0, 5], ["open", 5, 9], *task["phases"]]
    shown.changes["tasksOf"] = [{"txid": 4, "attempt": 0, "tasks": [task | {"phases": more}]}]
    page.locator("#gantt .legend", has_text="restore").wait_for()
    steps = ["restore", "open", "execute"]
    after = colours()
    both = before.keys() & after.keys()
    assert {name: after[name] for name in both} == {name: before[name] for name in both}
    assert after["restore"] == before["restoring"]
    unlike = [*ACTIVITIES, "run", "hooks", "log", "open"]
    assert len({after[name] for name in unlike}) == len(unlike)


def test_a_sink_has_a_dash_where_it_has_no_rows(read):
    table = cells(read, "#components")
    rows = {name: next(row[2:4] for row in table if row[0].startswith(name)) for name in ("payments", "ledger")}
    assert rows["ledger"] == ["1.2k/s", "\N{EN DASH}"]
    assert rows["payments"] == ["\N{EN DASH}", "1.2k/s"]


def test_freshness_says_what_was_added_where_and_who_holds_it(read):
    found = [row[:3] for row in cells(read, "#fresh")]
    assert found == [["payments", "1.0 s", "+1.0 s"], ["balances", "3.5 s", "+2.5 s"], ["ledger", "3.5 s", "\u2013"]]
    assert "held back by payments-3" in read.locator("#freshness .note").inner_text()


def test_lag_and_sinks_say_what_the_data_say(read):
    assert cells(read, "#lags") == [["payments", "4,321", "12 s", "100/s", "200/s", "43 s"]]
    (sink,) = cells(read, "#sink-table")
    assert (sink[0], sink[2:]) == ("ledger", ["2", "11", "99 B", "4.5 ms"])
    assert read.locator("#sinks .failed").inner_text() == "ledger refused"
    assert sink[1].startswith("stuck for")


def test_state_shows_bolts_and_looks_up_a_key(read):
    ((name, provider, size, keys, *_),) = cells(read, "#bolts")
    assert (name, provider, size, keys) == ("balances", "memory", "48 MB", "77")
    read.locator("form.lookup input[name=key]").fill("ann")
    read.keyboard.press("Enter")
    read.locator("#found pre").wait_for()
    assert read.locator("#found pre").inner_text() == "303"
    assert "state/" in read.locator("#found table").inner_text()


def test_maps_are_asked_for_when_a_key_is_looked_up(read):
    choice = read.locator("form.lookup select[name=map]")
    read.locator("form.lookup input[name=key]").wait_for()
    assert choice.count() == 0
    read.locator("form.lookup input[name=key]").fill("ann")
    choice.select_option("seen")
    read.keyboard.press("Enter")
    read.locator("#found pre").wait_for()
    assert read.locator("#found pre").inner_text() == "102"


def test_a_key_that_is_not_there_is_said(read):
    read.locator("form.lookup input[name=key]").fill("nobody")
    read.get_by_role("button", name="Look up").click()
    read.get_by_text('No task has "nobody"').wait_for()


def test_problems_show_frames_dead_letters_and_late_rows(read):
    error = read.locator("#exceptions > li").first
    assert "ValueError in balances/1" in error.inner_text()
    assert error.locator("pre").inner_text().strip() == 'File "/srv/bank.py", line 7, in execute'
    read.locator("#aside summary").click()
    read.get_by_text('"carl"').wait_for()
    assert "nothing for carl" in read.locator("#aside table").inner_text()
    assert read.locator("#late").inner_text() == "balances 4 rows came too late"


def test_history_and_settings_are_shown(read):
    assert [row[:2] for row in cells(read, "#savepoints")] == [["before-upgrade", "4"]]
    assert [row[:3] for row in cells(read, "#generations")] == [["1", "1 to 4", "4"]]
    assert read.locator("#config").inner_text().split() == [
        "topology.state.provider",
        "rocksdb",
        "feed.password",
        "***",
        "topology.ui.port",
        "4450",
    ]
    facts = read.locator("#settings .facts").first.inner_text()
    assert "shop-1" in facts
    assert "pid:[4026531836]" not in facts


def test_the_support_bundle_is_downloaded(read):
    with read.expect_download() as download:
        read.get_by_role("link", name="Download the support bundle").click()
    with zipfile.ZipFile(io.BytesIO(download.value.path().read_bytes())) as file:
        assert json.loads(file.read("observation.json"))["topology"] == "bank"
    assert download.value.suggested_filename == "statefx-bank.zip"


def test_changes_come_by_themselves(page, shown):
    shown.changes["health"] = {"state": "healthy", "since": None, "sentence": "All is well again.", "remedy": ""}
    page.locator(".sentence", has_text="All is well again.").wait_for()
    filled(shown.checkpoint.location, 2)
    page.locator(".tx[data-txid='6']").wait_for()
    assert page.title() == "bank · statefx"


@pytest.mark.soak
def test_a_query_that_was_ended_by_an_error_says_it_once(page, shown):
    sentence, remedy = "The query was ended by BoltError: no price.", "Fix the cause and submit again."
    shown.changes |= {"error": "BoltError: no price", "writtenAt": AT, "endedAt": AT}
    shown.changes["health"] = {"state": "failed", "since": AT, "sentence": sentence, "remedy": remedy}
    page.locator(".sentence", has_text=sentence).wait_for()
    overview = page.locator("main > section").first.inner_text()
    assert overview.count("BoltError: no price") == overview.count(remedy) == 1
    assert "Rates, lag and tasks are those of" in overview
    assert page.locator("#verdict.bad .state").inner_text().lower().startswith("failed")
    assert page.title() == "failed: bank · statefx"


@pytest.mark.soak
def test_elements_stay_the_same_while_changes_come(page, shown):
    """What a reader has focused, scrolled or selected would else be gone each second."""
    page.locator("#generations").wait_for()
    page.evaluate("window.before = [...document.querySelectorAll('main *')]")
    shown.changes["health"] = changes()["health"] | {"sentence": "Nothing to read."}
    page.locator(".sentence", has_text="Nothing to read.").wait_for()
    kept = "window.before.filter(each => !each.isConnected).map(each => each.outerHTML.slice(0, 80))"
    assert page.evaluate(kept) == []


def test_what_is_open_and_typed_stays_while_changes_come(page, shown):
    field = page.locator("form.lookup input[name=key]")
    field.fill("half a key")
    page.locator("#transactions details.more summary").click()
    shown.changes["health"] = {"state": "idle", "since": None, "sentence": "Nothing to read.", "remedy": ""}
    page.locator(".sentence", has_text="Nothing to read.").wait_for()
    assert field.input_value() == "half a key"
    assert page.locator("#transactions details.more").get_attribute("open") is not None
    field.press("End")
    field.press("s")
    assert field.input_value() == "half a keys"


def test_a_lost_connection_is_told_and_found_again(page, shown):
    port = shown.server.port
    shown.close()
    page.get_by_role("alert").wait_for()
    said = page.get_by_role("alert").inner_text()
    assert "The connection is lost." in said
    assert f"statefx ui {shown.checkpoint.location}" in said
    assert page.locator("#verdict .sentence").inner_text() == "Stuck: no database."
    shown.open(port)
    page.get_by_role("alert").wait_for(state="detached", timeout=30_000)
    assert page.locator(".connection").inner_text() == "Live"


NAMED = {"balances", "changed", "Balances", "no account", "refused", "Start it.", "payments-3", "ledger"}


def hostile(value):
    """Replace what a user or a server may have named."""
    if isinstance(value, dict):
        return {hostile(key): hostile(each) for key, each in value.items()}
    if isinstance(value, list):
        return [hostile(each) for each in value]
    return HOSTILE if isinstance(value, str) and value in NAMED else value


def test_hostile_names_are_shown_and_never_run(tab, shown):
    shown.changes = hostile(changes()) | {"topology": HOSTILE}
    tab.goto(shown.url)
    tab.locator("g.node").nth(1).click()
    tab.locator("#details").wait_for()
    assert tab.evaluate("document.querySelectorAll('main script, main img').length") == 0
    assert tab.title().startswith("stuck: <script>")
    for place in ("h1", "#components", "#details h3", ".remedy", "#sink-table", "#exceptions", "#freshness .note"):
        assert "<script>document.title='hacked'</script>" in tab.locator(place).inner_text(), place


def test_the_graph_is_walked_by_keyboard(read):
    read.locator("g.node[tabindex='0']").focus()
    read.keyboard.press("ArrowRight")
    assert read.evaluate("document.activeElement.dataset.component") == "balances"
    read.keyboard.press("Enter")
    read.locator("#details").wait_for()
    assert read.locator("g.node[tabindex='0']").count() == 1


def test_the_strip_is_walked_by_keyboard(read):
    read.locator(".tx[tabindex='0']").focus()
    read.keyboard.press("ArrowLeft")
    read.locator("#chosen strong", has_text="Transaction 3").wait_for()
    read.keyboard.press("Home")
    read.locator("#chosen strong", has_text="Transaction 1").wait_for()
    assert read.evaluate("document.activeElement.dataset.txid") == "1"


def test_the_first_tab_stop_skips_to_the_page(read):
    read.keyboard.press("Tab")
    assert read.evaluate("document.activeElement.textContent") == "Skip to the page"
    read.keyboard.press("Enter")
    assert read.evaluate("document.activeElement.id") == "health"


OVER = """() => [...document.querySelectorAll("main *")]
  .filter((each) => !each.closest(".scroll, .bars, svg, .visually-hidden, pre") && each.getBoundingClientRect().width)
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)
  .map((each) => each.outerHTML.slice(0, 80))"""
"""What ends beyond the right side, and can't be scrolled to where it stands."""


@pytest.mark.daily(3)
@pytest.mark.parametrize("width", [390, 768, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_runs_over_the_side(read, width, scheme):
    read.emulate_media(color_scheme=scheme)
    read.set_viewport_size({"width": width, "height": 844})
    assert read.evaluate("document.documentElement.scrollWidth") <= width
    assert read.evaluate(OVER) == []


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const linear = (part) => part / 255 <= .03928 ? part / 255 / 12.92 : ((part / 255 + .055) / 1.055) ** 2.4;
  const light = (c) => .2126 * linear(c[0]) + .7152 * linear(c[1]) + .0722 * linear(c[2]);
  const ground = (each) => {
    for (let at = each; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour[3] > 200) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const each of document.querySelectorAll("main *, header *, nav *")) {
    const has_text = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!has_text || each.closest("svg, .visually-hidden") || !each.getClientRects().length) continue;
    const [a, b] = [light(rgb(getComputedStyle(each).color)), light(ground(each))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) found.push([((a + .05) / (b + .05)).toFixed(2), each.outerHTML.slice(0, 100)]);
  }
  return found;
}"""
"""What has less contrast than WCAG 2 wants of text (AA)."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(read, scheme):
    read.emulate_media(color_scheme=scheme)
    assert read.evaluate(CONTRAST) == []


@pytest.mark.soak
def test_two_hundred_components_of_64_tasks_stay_usable(shown, tab):
    names = [f"component-{number}" for number in range(200)]
    tasks = [{"task": task, "rowsIn": task, "activity": None, "ms": {}} for task in range(64)]
    shown.changes = changes() | {
        "graph": {
            "levels": 10,
            "components": [GRAPH["components"][1] | {"name": name, "tasks": 64} for name in names],
            "edges": [
                {"from": names[each - 20 - each % 3], "to": names[each], "stream": "default", "grouping": "shuffle"}
                for each in range(23, 200)
            ],
        },
        "components": {name: figures(tasks=tasks) for name in names},
    }
    tab.goto(shown.url)
    tab.locator("g.node").nth(199).wait_for()
    assert len(httpx.get(f"{shown.url}v1/topologies/bank", timeout=10).content) < 300_000
    took = tab.evaluate("""async () => {
      const began = performance.now();
      const node = document.querySelector("g.node[data-component='component-77']");
      node.dispatchEvent(new MouseEvent("click", {bubbles: true}));
      await new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)));
      return performance.now() - began; }""")
    assert took < 1000
    tab.locator("#details .tasks tbody tr").nth(63).wait_for()
    tab.locator("#graph details.more summary").click()
    tab.locator(".filter input").fill("component-19")
    assert wait_until(lambda: tab.locator("#components tbody tr").count() == 11)


def test_a_token_is_asked_for_and_kept(tmp_path, tab, monkeypatch):
    monkeypatch.setenv(serving.TOKEN, "0123456789abcdef-token")
    server = serving.opened("0.0.0.0", 0, "--port")
    serving.standing(server, Checkpoint(filled(tmp_path / "checkpoint", 1)))
    server.start()
    tab.goto(f"http://127.0.0.1:{server.port}/")
    tab.get_by_label("Token").fill("0123456789abcdef-token")
    tab.get_by_role("button", name="Open").click()
    tab.locator("#verdict .sentence").wait_for()
    assert "token" not in tab.url
    tab.reload()
    tab.locator("#verdict .sentence").wait_for()
    server.stop()
    assert server.ended(10)
    assert [each for each in threading.enumerate() if each.name == f"statefx-page-{server.port}"] == []
