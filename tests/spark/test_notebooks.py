"""What a notebook shows of a query that runs: its HTML, and the data of its figure."""

import pytest

from statefx import submit
from tests.spark.bolts import word_count
from tests.spark.running import feed, lines_of
from tests.test_notebook import read

pytestmark = pytest.mark.slow


def test_a_running_query_shows_itself_and_plots_its_transactions(spark, place):
    pytest.importorskip("matplotlib")
    feed(place / "in", **{name: [f"{name} b c"] * 50 for name in "abc"})
    query = submit(
        word_count(lines_of(spark, place / "in")), spark, place / "ck", trigger={"processingTime": "0 seconds"}
    )
    try:
        query.processAllAvailable()
        recent = query.recentProgress
        assert len(recent) == 3
        shown = read(query._repr_html_())
        figure = query.plot()
    finally:
        query.stop()
    for name in ("word-count", "lines", "split", "count", "healthy"):
        assert name in shown.text
    rates, phases = figure.axes
    assert list(rates.lines[0].get_ydata()) == [one["processedRowsPerSecond"] for one in recent]
    assert phases.collections[0].get_label() == "run"
    assert phases.dataLim.ymax == pytest.approx(max(sum(one["durationMs"].values()) for one in recent))
    assert "3" in read(query.lastProgress._repr_html_()).text
    assert read(query._repr_html_()).text, "also of a query that has ended"
