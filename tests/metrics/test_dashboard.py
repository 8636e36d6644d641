"""The dashboard and the alert rules: their metrics are there, each alert can fire, and a real Prometheus takes all."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from statefx import submit
from statefx.metrics.catalog import METRICS
from statefx.metrics.prometheus import MetricsServer
from tests.kafka.libraries import UnavailableError
from tests.metrics.prometheus_server import PrometheusServer, program, promtool
from tests.metrics.test_prometheus import Measured, filled
from tests.spark.test_metrics import topology, until

DOCS = Path(__file__).parents[2] / "docs"
RULES = DOCS / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((DOCS / "prometheus" / "dashboard.json").read_text())
EXPRESSIONS = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())

NAMES = {
    f"{metric.exposed}{part}"
    for metric in METRICS
    for part in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
}


@pytest.fixture
def prometheus():
    """Commands of Prometheus, fetched if need be."""
    try:
        return program("prometheus")
    except UnavailableError as why:
        pytest.skip(f"no Prometheus: {why}")


@pytest.mark.parametrize("text", [RULES.read_text(), *EXPRESSIONS.values()], ids=["rules", *EXPRESSIONS])
def test_each_metric_that_is_named_is_in_the_table(text):
    code = re.sub(r"summary: .*|description: >-(?:\n {12}.*)+", "", text)
    used = set(re.findall(r"\bstatefx_\w+", code))
    assert used
    assert used - NAMES == set()


@pytest.mark.parametrize("text", [RULES.read_text(), *EXPRESSIONS.values()], ids=["rules", *EXPRESSIONS])
def test_each_label_that_is_named_is_one_of_the_metric(text):
    labels = {label for metric in METRICS for label in metric.labels} | {"topology", "le", "job", "instance"}
    by = {name for names in re.findall(r"\bby \(([^)]*)\)", text) for name in names.replace(" ", "").split(",")}
    matched = set(re.findall(r"[{,](\w+)(?:=~|=|!=)\"", text))
    assert by | matched <= labels


def test_each_alert_says_what_to_do():
    rules = RULES.read_text()
    assert len(ALERTS) > 10
    assert rules.count("summary:") == rules.count("description:") == len(ALERTS)


def test_panels_stand_side_by_side_and_have_ids_of_their_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def series(name, values, **labels):
    shown = ",".join(f'{label}="{value}"' for label, value in {"topology": "t", **labels}.items())
    return {"series": f"{name}{{{shown}}}", "values": values}


FIRING = {
    "StatefxDown": [{"series": 'up{job="statefx",instance="i"}', "values": "0x120"}],
    "StatefxStuck": [series("statefx_stuck_since_seconds", "1x120")],
    "StatefxSinkStuck": [series("statefx_sink_stuck_since_seconds", "1x120", component="out")],
    "StatefxRollsBack": [
        series("statefx_transactions_total", "0+5x120", outcome="rolled_back"),
        series("statefx_transactions_total", "0+10x120", outcome="committed"),
    ],
    "StatefxStartsAgain": [series("statefx_generation", "1+0.1x120")],
    "StatefxRunsLost": [series("statefx_runs_total", "1+1x120")],
    "StatefxFallsBehind": [
        series("statefx_source_lag_seconds", "400x120", component="in"),
        series("statefx_source_lag_records", "100+10x120", component="in"),
    ],
    "StatefxSourceStale": [series("statefx_freshness_seconds", "1000x120", component="b")],
    "StatefxWatermarkHeld": [series("statefx_watermark_held_seconds", "700x120", component="in", unit="3")],
    "StatefxBottleneck": [
        series("statefx_task_time_seconds_total", "0+57x120", component="b", task="0", activity="busy"),
        series("statefx_task_time_seconds_total", "0+3x120", component="b", task="0", activity="idle"),
    ],
    "StatefxSkewed": [
        series("statefx_task_rows_total", f"0+{600 if task == 0 else 1}x120", component="b", task=str(task))
        for task in range(8)
    ],
    "StatefxRestores": [
        series("statefx_task_time_seconds_total", "0+30x120", component="b", task="0", activity="restoring")
    ],
    "StatefxSlowDisk": [
        series("statefx_log_append_seconds_bucket", "0x120", record="COMMITTING", le="0.1"),
        series("statefx_log_append_seconds_bucket", "0+60x120", record="COMMITTING", le="0.25"),
        series("statefx_log_append_seconds_bucket", "0+60x120", record="COMMITTING", le="+Inf"),
    ],
    "StatefxRowsSetAside": [series("statefx_rows_set_aside_total", "0+1x120", component="b")],
    "StatefxRowsLate": [series("statefx_rows_late_total", "0+1x120", component="b")],
    "StatefxMessagesTimedOut": [series("statefx_messages_timed_out_total", "0+1x120")],
    "StatefxSeriesLeftOut": [series("statefx_series_left_out_total", "0+1x120", metric="statefx_rows")],
}
"""Series of two hours, a value a minute, at the end of which an alert fires."""


def test_each_alert_has_series_that_fire_it():
    assert list(FIRING) == ALERTS


@pytest.mark.server
@pytest.mark.slow
def test_the_rules_are_prometheus_rules(prometheus):
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool("check", "rules", RULES)


ONCE = {
    "StatefxRowsSetAside": ["statefx_rows_set_aside_total", "statefx_dead_letters_total"],
    "StatefxMessagesTimedOut": ["statefx_messages_timed_out_total"],
}
"""Counters of which one burst, and nothing after it, fires an alert."""


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize(("alert", "name"), [(alert, name) for alert, names in ONCE.items() for name in names])
@pytest.mark.parametrize("values", ["0 500x10", "_x30 500x10", "7x30 _x30 0 7x10"])
def test_an_alert_fires_for_one_burst(prometheus, tmp_path, alert, name, values):
    """Of a driver that has been scraped before, of one that has not, and of one that has followed another."""
    minutes = sum(int(part.partition("x")[2] or 0) + 1 for part in values.split()) - 5
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    asked = [{"expr": firing, "eval_time": f"{minutes}m", "exp_samples": [{"labels": "{}", "value": 1}]}]
    case = {"interval": "1m", "input_series": [series(name, values)], "promql_expr_test": asked}
    path = tmp_path / "test.yml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}))
    promtool("test", "rules", path)


@pytest.mark.daily(5)
@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_for_its_sickness_and_not_for_health(prometheus, tmp_path, alert):
    healthy = [{"series": each["series"], "values": "1x120"} for each in FIRING[alert]]
    if "stuck" in str(healthy):
        healthy = [{**each, "values": "0x120"} for each in healthy]
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0'

    def case(own, samples):
        asked = [{"expr": firing, "eval_time": "119m", "exp_samples": samples}]
        return {"interval": "1m", "input_series": own, "promql_expr_test": asked}

    cases = [case(FIRING[alert], [{"labels": "{}", "value": 1}]), case(healthy, [])]
    test = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}
    path = tmp_path / "test.yml"
    path.write_text(json.dumps(test))
    promtool("test", "rules", path)


def ready(expression):
    """An expression of the dashboard as Grafana asks it."""
    return expression.replace("$topology", ".*").replace("$__rate_interval", "1m")


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.soak
def test_a_real_prometheus_scrapes_a_real_run_and_draws_the_dashboard(spark, place, prometheus):
    config = {"topology.metrics.port": 0, "topology.state.checkpoint.interval.ms": 0}
    query = submit(topology(), spark, place / "ck", config)
    try:
        until(query, 2)
        target = query.metricsUrl.removeprefix("http://").partition("/")[0]
        with PrometheusServer(target, RULES) as server:
            server.wait_for("statefx_transactions_total")
            until(query, query.lastProgress["txid"] + 10)
            server.wait_for('rate(statefx_task_time_seconds_total{component="slow"}[1m]) > 0')
            drawn = {name: server.query(ready(expression)) for name, expression in EXPRESSIONS.items()}
            busy = server.query('avg by (component) (rate(statefx_task_time_seconds_total{activity="busy"}[1m]))')
            seen = server.query("seen_total")
            (rules,) = server.get("rules")["groups"]
    finally:
        query.stop()
    assert {rule["health"] for rule in rules["rules"]} <= {"ok", "unknown"}
    assert max(busy, key=busy.__getitem__) == (("component", "slow"),)
    assert all(number % 20 == 0 for number in seen.values()), "whole transactions"
    for name in ("Rows a second A", "Busy, by component A", "Rows by edge A", "Time of all tasks A", "State A"):
        assert drawn[name], name


@pytest.mark.server
@pytest.mark.slow
def test_a_real_prometheus_takes_each_metric(prometheus):
    served = MetricsServer("127.0.0.1", 0)
    with closing(served):
        served.attach(Measured(filled()))
        with PrometheusServer(served.url.removeprefix("http://").partition("/")[0]) as server:
            server.wait_for("statefx_generation")
            names = set(server.get("label/__name__/values"))
    assert NAMES - names == set()
