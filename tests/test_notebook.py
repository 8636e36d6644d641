"""What notebooks show: well-formed HTML whatever is in it, within a limit of time, and figures."""

import re
import sys
import threading
import time
from html.parser import HTMLParser

import pytest

from statefx import Checkpoint
from statefx.errors import CheckpointError, ConfigError
from statefx.notebook import (
    ShownProgress,
    bounded,
    figure,
    page,
    progress_html,
    query_html,
    view_html,
)
from tests.admin.checkpoints import Keeper, put
from tests.docs.tables import DOCS
from tests.docs.test_code_blocks import program
from tests.testing.places import place
from tests.topology.test_drawing import HOSTILE, graph

__all__ = ["place"]


class Reader(HTMLParser):
    """Fails for tags that are not closed; keeps the names of tags and attributes, and the text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts, self.styles = [], set(), set(), [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.styles += [value for name, value in attrs if name == "style"]

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.styles if self.open[-1] == "style" else self.texts).append(data)

    @property
    def text(self):
        return " ".join(self.texts)


TAGS = {
    *("div", "span", "style", "p", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "g", "rect", "title", "path", "text", "tspan", "polygon", "polyline", "circle"),
}


def read(html):
    """Parse HTML, and check that nothing in it comes from elsewhere or runs."""
    reader = Reader(html)
    assert reader.tags <= TAGS
    assert not {name for name in reader.attributes if name.startswith("on") or name in ("href", "src")}
    assert not re.search(r"url\(|@import|[<>]", "".join(reader.styles))
    return reader


def progress(txid=7, name="count", secs=0):
    return {
        "txid": txid, "attempt": 0, "timestamp": f"2026-01-02T03:04:{secs:02}.000+00:00", "numInputRows": 1000 * txid,
        "processedRowsPerSecond": 5000.0 + txid, "sources": {name: {"lagRecords": 100 - txid}}, "watermarks": {},
        "rowsLate": {}, "rowsSetAside": {name: 3}, "rows": {name: 1000 * txid}, "stateKeysChanged": {name: 5},
        "stateBytesChanged": {}, "stateKeys": {}, "stateBytes": {name: 12_345},
        "boltMs": {name: {"restore": 1.0, "open": 2.0, "execute": 30.0, "finish": 4.0, "slowest": 20.0}},
        "durationMs": {"run": 100.0 + txid, "hooks": 2.0, "log": 8.0},
    }  # fmt: skip


def observation(name="count"):
    """A document as `Query.observation` has it."""
    return {
        "topology": name,
        "status": {"phase": "idle", "isActive": True},
        "health": {"state": "stuck", "since": "2026-01-02", "sentence": f"stuck: {name}", "remedy": f"see to {name}"},
        "graph": graph([("in", name)]),
        "components": {name: {"activity": {"busy": 0.5, "idle": 0.5}, "rowsInPerSec": 120.0}},
        "edges": [{"from": "in", "to": name, "stream": "default", "rowsPerSec": 120.0}],
        "sources": {"in": {"lagRecords": 7}},
        "transactions": [
            {"txid": 7, "attempt": 1, "outcome": "rolled back", "ended": "2026-01-02", "durationMs": {"run": 5.0},
             "rows": 12, "reason": name},
        ],
        "recent": [progress(txid, name, txid) for txid in range(1, 9)],
        "error": name,
    }  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_and_values_are_text(name):
    read(query_html(observation(name)))
    read(progress_html(progress(name=name)))
    read(view_html(name, 3, iter([(name, {name: [name]}), ((name, 1), name.encode("utf-8", "replace"))])))
    read(page(bounded(lambda: (_ for _ in ()).throw(CheckpointError(name))) or ""))


def test_a_query_shows_health_graph_plots_and_last_transactions():
    html = query_html(observation())
    text = read(html).text
    for part in ("stuck: count", "see to count", "rolled back", "rows/s: 5k", "duration: 118 ms", "lag 7"):
        assert part in text or part in html, part
    assert 'data-component="count"' in html
    assert 'data-activity="busy"' in html


@pytest.mark.parametrize(
    ("state", "error", "colour"),
    [
        ("healthy", None, "good"), ("idle", None, "good"), ("ended", None, ""), ("ended", "BoltError: no", "bad"),
        ("failed", "BoltError: no", "bad"), ("stuck", None, "bad"), ("dead", None, "bad"), ("unknown", None, ""),
    ],
)  # fmt: skip
def test_a_badge_is_green_red_or_grey(state, error, colour):
    html = query_html(observation() | {"health": {"state": state, "sentence": "s"}, "error": error})
    assert f'<span class="badge {colour}">{state}</span>' in html


def test_an_attempt_that_was_rolled_back_has_its_time():
    began, ended = "2026-01-02T03:04:05.000+00:00", "2026-01-02T03:04:05.296+00:00"
    one = {"txid": 3, "attempt": 0, "outcome": "rolled back", "began": began, "ended": ended, "durationMs": {}}
    assert "296.0" in read(query_html(observation() | {"transactions": [one]})).text
    assert "0.0" not in read(query_html(observation() | {"transactions": [one | {"ended": None}]})).text


@pytest.mark.parametrize("left", [{}, {"status": None, "graph": None, "recent": None}, {"recent": [{}], "health": 5}])
def test_an_observation_that_lacks_most_is_shown(left):
    read(query_html(left))


def test_a_query_says_what_bounds_it():
    busy = {"busy": 0.96, "idle": 0.04}
    document = observation() | {
        "health": {"state": "healthy", "sentence": "Transactions are committed."},
        "components": {
            "in": {"activity": {"busy": 0.1, "blocked": 0.9}},
            "count": {"activity": busy, "tasks": [{"task": 0, "activity": busy, "rowsInPerSec": 100.0}]},
        },
    }
    text = read(query_html(document)).text
    assert "'count' bounds throughput: task 0 works 96 % of the time" in text
    assert "bounds" not in read(query_html(document | {"components": {"count": 5}})).text, "of a document that is none"


def test_a_query_that_was_ended_by_an_error_says_it_once_and_in_red():
    health = {"state": "failed", "sentence": "The query was ended by BoltError: no price.", "remedy": "Fix the cause."}
    html = query_html(observation() | {"health": health, "error": "BoltError: no price", "transactions": []})
    text = read(html).text
    assert text.count("BoltError: no price") == text.count("Fix the cause.") == 1
    assert "bounds" not in text
    assert 'bad">failed<' in html


def test_a_query_without_health_says_what_status_does():
    document = observation() | {"health": None, "transactions": None, "error": None}
    text = read(query_html(document)).text
    assert "running" in text
    assert "8,000" in text, "rows of the last transaction, from recentProgress"


def test_progress_is_a_dict_that_shows_itself():
    shown = ShownProgress(progress())
    assert shown == progress()
    text = read(shown._repr_html_()).text
    for part in ("7, attempt 0", "7,000 rows in 117 ms (run 107, hooks 2, log 8)", "12,345", "set aside"):
        assert part in text


def test_the_picture_of_the_page_is_what_its_program_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(program((DOCS / "notebooks.md").read_text(encoding="utf-8")), "notebooks.md", "exec"), {})
    assert (DOCS / "_static/balances.svg").read_text() == (tmp_path / "balances.svg").read_text(), "draw it again"


# ---- within a limit


def test_what_does_not_answer_is_said_within_the_limit():
    answer = threading.Event()
    began = time.monotonic()
    try:
        for _ in range(12):  # also of the waiting threads there is an end
            assert "no answer within 0.01 seconds" in read(bounded(lambda: str(answer.wait(60)), 0.01)).text
        waiting = [thread for thread in threading.enumerate() if thread.name == "statefx-notebook"]
        assert len(waiting) <= 8
        assert time.monotonic() - began < 4
    finally:
        answer.set()
    for thread in waiting:
        thread.join(30)
    assert bounded(lambda: "again") == "again"


class Broken:
    def __repr__(self):
        raise KeyboardInterrupt


def test_what_raises_is_left_to_the_repr():
    assert bounded(lambda: view_html("count", 1, iter([("a", Broken())]))) is None
    assert bounded(lambda: str(1 / 0)) is None


def test_an_error_of_statefx_is_shown():
    def refuse():
        raise CheckpointError("there is no checkpoint in <here>")

    assert "there is no checkpoint in <here>" in read(bounded(refuse)).text


# ---- checkpoints and views


@pytest.mark.slow
def test_a_checkpoint_shows_what_its_log_knows(place):
    with Keeper(place) as keeper:
        for number in range(12):
            keeper.run(put(a=number, b=number))
        checkpoint = Checkpoint(keeper.folder)
        checkpoint.savepoint("before-lunch")
        text = read(checkpoint._repr_html_()).text
    for part in ("keeping", str(keeper.folder), "keep", "before-lunch", "transaction 12", "COMMITTED", "memory"):
        assert part in text


def test_a_folder_that_is_no_checkpoint_says_so(tmp_path):
    assert f"there is no checkpoint in {tmp_path}" in read(Checkpoint(tmp_path)._repr_html_()).text
    assert not list(tmp_path.iterdir())


def test_a_view_shows_its_first_keys_and_reads_no_more(place):
    with Keeper(place) as keeper:
        keeper.run(put(**{f"key{number:03}": number for number in range(50)}))
        with Checkpoint(keeper.folder).state("keep") as view:
            text = read(view._repr_html_()).text
        assert "&lt;" not in text
        assert "'key019'" in text
        assert "'key020'" not in text
        assert "the first 20 keys; there are more" in text
        assert "transaction 1" in text
        assert "closed" in read(view._repr_html_()).text or view._repr_html_() is None


def test_a_view_reads_one_entry_more_than_it_shows():
    def entries():
        yield from zip(range(21), range(21), strict=True)
        raise AssertionError("nobody asked for more")

    assert "there are more" in read(view_html("count", 1, entries())).text


def test_large_values_are_cut_before_they_are_written_down():
    wide = dict.fromkeys(range(100000), "x" * 1000)
    html = view_html("count", 1, iter([(b"\x00" * 10_000_000, wide), ("deep", [[[[[[1]]]]]])]))
    assert len(html) < 20_000
    assert "10,000,000 bytes" in read(html).text


# ---- figures


@pytest.fixture
def figures():
    pytest.importorskip("matplotlib")


@pytest.mark.slow
def test_a_figure_has_rates_phases_and_lag_of_each_transaction(figures):
    recent = [progress(txid, "in", txid) for txid in range(1, 9)]
    rates, phases, lag = figure("word-count", recent).axes
    assert list(rates.lines[0].get_ydata()) == [5000.0 + txid for txid in range(1, 9)]
    areas = {area.get_label(): area.get_paths()[0].get_extents().height for area in phases.collections}
    assert list(areas) == ["run", "hooks", "log"]
    assert phases.get_ylim()[1] >= 118
    (line,) = lag.lines
    assert line.get_label() == "in"
    assert list(line.get_ydata()) == [100.0 - txid for txid in range(1, 9)]
    assert lag.get_ylabel() == "lag, records"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "records"),
    [
        ({"partitions": 4, "avgOffsetsBehindLatest": 2.5, "maxOffsetsBehindLatest": 9}, [10.0]),
        ({"emitted": 9, "pending": 3}, [3.0]),
    ],
)
def test_lag_is_what_each_kind_of_spout_says(figures, says, records):
    axes = figure("in", [progress() | {"sources": {"in": says}}]).axes
    assert list(axes[2].lines[0].get_ydata()) == records


@pytest.mark.slow
def test_lag_without_spouts_is_that_of_watermarks_or_left_out(figures):
    marked = progress(secs=30) | {"sources": {"in": None}, "watermarks": {"count": "2026-01-02T03:04:10+00:00"}}
    axes = figure("in", [progress(1, secs=29) | {"sources": {}}, marked]).axes
    assert axes[2].lines[0].get_ydata()[1] == 20.0
    assert "watermark" in axes[2].get_ylabel()
    assert len(figure("in", [progress() | {"sources": {}}]).axes) == 2


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_a_figure_is_a_picture_in_a_notebook(figures, count):
    drawn = figure("<b>$x_", [progress(txid + 1, secs=txid % 60) for txid in range(count)])
    assert drawn._repr_png_().startswith(b"\x89PNG")
    assert bool(drawn.axes[1].patches) == (count == 1), "an area of one has no width"
    assert ("nothing has been committed yet" in [text.get_text() for text in drawn.axes[0].texts]) == (not count)


def test_without_matplotlib_plot_says_what_to_install(monkeypatch):
    for name in ("matplotlib", "matplotlib.dates", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'statefx[plot]'")):
        figure("word-count", [])
