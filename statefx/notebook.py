"""Pictures and tables in notebooks: what ``_repr_html_`` of a query, a checkpoint or a view returns, and plots.

Each function makes HTML of plain data: one piece that refers to nothing outside of it, whose styles apply to nothing
else, on light and on dark pages. Whatever came from a user is escaped. `bounded` runs them, so that a notebook neither
hangs nor shows an error of statefx's where a `repr` would do.
"""

from __future__ import annotations

import io
import logging
import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from statefx.errors import ConfigError, StatefxError
from statefx.log.observation import secs_of
from statefx.log.pins import savepoint
from statefx.metrics.lag import lag_told
from statefx.protocol.log_state import LogState
from statefx.state.registry import name_of
from statefx.topology.drawing import FONT, PALETTE, brief, escaped, paint, shown, svg, theme
from statefx.why import why

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger("statefx")


# ---- within a limit


LIMIT_SECS = 3.0
"""How long a notebook waits for a lock, a folder or an object store."""

_WAITING_MAX = 8
"""So many may wait for what does not answer; further ones are not begun."""

_waiting = threading.BoundedSemaphore(_WAITING_MAX)


def bounded(make: Callable[[], str], limit_secs: float = LIMIT_SECS) -> str | None:
    """Return the HTML that `make` returns, or None if it raises: then a notebook shows the `repr`.

    An error of statefx's is shown as HTML, and so is that nothing came in time: `make` runs on a thread of its own.
    """
    answers: list[str | None] = []
    answered = threading.Event()

    def run() -> None:
        try:
            answers.append(_answer(make))
        finally:
            _waiting.release()
            answered.set()

    late = page(_note(f"no answer within {limit_secs:g} seconds: what is to be shown is busy, or its storage is away"))
    if not _waiting.acquire(blocking=False):
        return late
    try:
        threading.Thread(target=run, name="statefx-notebook", daemon=True).start()
    except RuntimeError:  # the interpreter ends, or has no more threads
        _waiting.release()
        return None
    if not answered.wait(limit_secs):
        return late
    return answers[0]


def _answer(make: Callable[[], str]) -> str | None:
    try:
        return make()
    except StatefxError as error:
        return page(_note(str(error)))
    except BaseException:
        logger.debug("no HTML for a notebook", exc_info=True)
        return None


# ---- pieces of HTML


_SCOPE = ".statefx-shown"


def _style() -> str:
    here = f"{_SCOPE}{_SCOPE}"  # twice: notebooks have rules of their own for tables
    rules = {
        "": f"{FONT};font-size:13px;line-height:1.45;{paint('color', 'ink')};{paint('background', 'paper')};"
        f"border:1px solid;{paint('border-color', 'idle')};border-radius:8px;padding:12px 16px;max-width:1100px",
        " .head": "font-size:15px;font-weight:600;margin-bottom:4px;overflow-wrap:anywhere",
        " .badge": f"font-size:12px;font-weight:600;padding:1px 8px;border-radius:9px;{paint('color', 'paper')};"
        f"{paint('background', 'soft')};margin-left:8px;white-space:nowrap",
        " .badge.good": paint("background", "good"),
        " .badge.bad": paint("background", "bad"),
        " .soft": paint("color", "soft"),
        " p": "margin:4px 0;overflow-wrap:anywhere",
        " .bad-text": paint("color", "bad"),
        " .wide": "overflow-x:auto;margin:8px 0;max-height:640px",
        " .plots": "display:flex;flex-wrap:wrap;gap:12px;margin:8px 0",
        " table": f"border-collapse:collapse;border:0;margin:0;{FONT};font-size:12px;{paint('color', 'ink')}",
        " caption": "text-align:left;font-weight:600;padding:4px 0;caption-side:top",
        " tr": "background:none",
        " th, td": "text-align:left;padding:2px 14px 2px 0;border:0;vertical-align:top;max-width:480px;"
        "overflow-wrap:anywhere;unicode-bidi:isolate",
        " th": f"font-weight:600;border-bottom:1px solid;{paint('border-color', 'idle')};{paint('color', 'soft')};"
        "white-space:nowrap",
        " .n": "text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap",
        " code": "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;background:none;padding:0;"
        "white-space:pre-wrap;color:inherit",
        " .plot text": f"{FONT};font-size:11px;{paint('fill', 'ink')}",
        " .plot .axis": paint("fill", "soft"),
        " .plot .area": f"{paint('fill', 'committing')};fill-opacity:.14",
        " .plot .curve": f"fill:none;{paint('stroke', 'committing')};stroke-width:1.5px;stroke-linejoin:round",
        " .plot .base": f"fill:none;{paint('stroke', 'idle')};stroke-width:1px",
        " .plot .dot": paint("fill", "committing"),
    }
    return theme(_SCOPE) + "".join(
        ",".join(here + part for part in selector.split(",")) + f"{{{body}}}" for selector, body in rules.items()
    )


def page(*parts: str) -> str:
    """Return the parts as one element, with its styles."""
    return f'<div class="statefx-shown"><style>{_style()}</style>{"".join(parts)}</div>'


def _head(title: str, name: object, badge: str = "", colour: str = "") -> str:
    mark = f'<span class="badge {colour}">{escaped(badge)}</span>' if badge else ""
    return f'<div class="head"><span class="soft">{escaped(title)}</span> {escaped(_cut(shown(name)))}{mark}</div>'


def _note(text: str, colour: str = "soft") -> str:
    return f'<p class="{colour}">{escaped(_cut(text, 1000))}</p>' if text else ""


def _cut(text: str, chars: int = 200) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]], none: str = "") -> str:
    """Return a table; numbers stand at the right. Without rows: `none`."""
    lines = [list(map(_cell, row)) for row in rows]
    if not lines:
        return _note(none)
    right = [any(cell.startswith('<td class="n"') for cell in column) for column in zip(*lines, strict=True)]
    heads = "".join(
        f'<th class="n">{escaped(name)}</th>' if numbers else f"<th>{escaped(name)}</th>"
        for name, numbers in zip(header, right, strict=True)
    )
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in lines)
    caption = f"<caption>{escaped(title)}</caption>" if title else ""
    return f'<div class="wide"><table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(thing: object) -> str:
    if thing is None:
        return "<td></td>"
    if isinstance(thing, bool) or not isinstance(thing, int | float):
        text = str(thing)
        whole = f' title="{escaped(_cut(text, 2000))}"' if len(text) > 200 else ""
        return f"<td{whole}>{escaped(_cut(text))}</td>"
    return f'<td class="n">{thing:,}</td>' if isinstance(thing, int) else f'<td class="n">{thing:,.1f}</td>'


def _plot(title: str, values: Sequence[float], unit: str = "") -> str:
    """Return a small plot of some hundred values at most, oldest first, from 0 on."""
    points = [value for value in values if isinstance(value, int | float) and 0 <= value < 1e18]
    if len(points) < 2:
        return ""
    width, height, left, top, right = 320.0, 92.0, 4.0, 24.0, 8.0
    most = max(points) or 1.0
    step = (width - left - right) / (len(points) - 1)
    low = height - 6
    spots = [(left + i * step, low - (low - top - 4) * value / most) for i, value in enumerate(points)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    x, y = spots[-1]
    return (
        f'<svg class="plot" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escaped(title)}: {brief(points[-1])}{unit}, at most {brief(most)}">'
        f'<text x="{left:g}" y="13">{escaped(title)}: {brief(points[-1])}{unit}</text>'
        f'<text class="axis" x="{width - right:g}" y="13" text-anchor="end">max {brief(most)}</text>'
        f'<path class="base" d="M{left:g},{low:g}H{width - right:g}"/>'
        f'<polygon class="area" points="{left:g},{low:g} {line} {x:.1f},{low:g}"/>'
        f'<polyline class="curve" points="{line}"/><circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/></svg>'
    )


def _time(time_ms: float) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if time_ms else ""


def _clock(iso: object) -> str:
    """Return a time of an observation without what nobody compares; what is none, as it is."""
    try:
        return f"{datetime.fromisoformat(str(iso)):%Y-%m-%d %H:%M:%S}" if iso else ""
    except ValueError:
        return str(iso)


def _mapping(thing: object) -> Mapping[str, Any]:
    """Return a part of an observation, which an older driver may lack."""
    return thing if isinstance(thing, Mapping) else {}


# ---- what is shown


_GOOD, _BAD = ("healthy", "idle", "running"), ("stuck", "failing", "failed", "dead")
_ROWS = 20
_TRANSACTIONS = 8


def query_html(observation: Mapping[str, Any]) -> str:
    """Return a query as its observation shows it: what it does, its graph, its last transactions."""
    health, status = _mapping(observation.get("health")), _mapping(observation.get("status"))
    name = observation.get("topology") or ""
    graph = _mapping(observation.get("graph"))
    recent = [one for one in observation.get("recent") or () if isinstance(one, Mapping)]
    error = observation.get("error") or status.get("message")
    overlay = observation.get("components")
    drawing = svg(
        graph,
        overlay=overlay if isinstance(overlay, Mapping) else None,
        edges=observation.get("edges") or (),
        sources=_mapping(observation.get("sources")),
        name=str(name),
    )
    plots = _plot("rows/s", [one.get("processedRowsPerSecond", 0) for one in recent]) + _plot(
        "duration", [_total_ms(one) for one in recent], " ms"
    )
    return page(
        _health_head("query", name, {"state": "running" if status.get("isActive") else "ended"} | dict(health), error),
        _note(str(error), "bad-text") if error and health.get("state") != "failed" else "",  # its sentence says it
        *(_note(text, "why") for text in _bounds(observation)),
        f'<div class="wide">{drawing}</div>' if graph.get("components") else "",
        f'<div class="plots">{plots}</div>' if plots else "",
        _last_transactions(observation, recent),
    )


_BOUNDS = 2
"""How many sentences a query shows of what bounds it: `Query.why` has all."""


def _bounds(observation: Mapping[str, Any]) -> list[str]:
    """Return what bounds a query or keeps its results late, the weightiest first."""
    try:
        found = why(observation).bounds
    except Exception:  # noqa: BLE001 - of a document of another release; all else is shown
        return []
    return [f"{one.sentence} {one.remedy}" for one in found[:_BOUNDS]]


def _health_head(title: str, name: object, health: Mapping[str, Any], error: object = None) -> str:
    state = str(health.get("state") or "")
    colour = "bad" if error or state in _BAD else "good" if state in _GOOD else ""
    said = _note(str(health.get("sentence") or ""), "said") + _note(str(health.get("remedy") or ""))
    return _head(title, name, state, colour) + said


def _total_ms(progress: Mapping[str, Any]) -> float:
    return float(sum(_mapping(progress.get("durationMs")).values()))


def _took_ms(attempt: Mapping[str, Any]) -> float | None:
    """Return how long an attempt took, also one that was rolled back, whose phases are not known; None if it runs."""
    began, ended = secs_of(attempt.get("began")), secs_of(attempt.get("ended"))
    return _total_ms(attempt) or (None if began is None or ended is None else 1000 * (ended - began))


def _last_transactions(observation: Mapping[str, Any], recent: Sequence[Mapping[str, Any]]) -> str:
    entries = [one for one in observation.get("transactions") or () if isinstance(one, Mapping)][-_TRANSACTIONS:]
    rows: Iterable[Sequence[object]]
    header: tuple[str, ...]
    if entries:
        header = ("txid", "attempt", "outcome", "ended", "rows", "ms", "")
        rows = [
            (
                one.get("txid"), one.get("attempt"), one.get("outcome"), _clock(one.get("ended")), one.get("rows"),
                _took_ms(one), one.get("reason") or "",
            )
            for one in reversed(entries)
        ]  # fmt: skip
    else:
        header = ("txid", "attempt", "committed", "rows", "rows/s", "ms")
        rows = [
            (
                one.get("txid"), one.get("attempt"), _clock(one.get("timestamp")), one.get("numInputRows"),
                one.get("processedRowsPerSecond"), _total_ms(one),
            )
            for one in reversed(recent[-_TRANSACTIONS:])
        ]  # fmt: skip
    return _table("Last transactions", header, rows, "nothing has been committed yet")


class ShownProgress(dict[str, Any]):
    """One committed transaction, as a dict that a notebook shows as a table."""

    def _repr_html_(self) -> str | None:
        return bounded(lambda: progress_html(self))


def progress_html(progress: Mapping[str, Any]) -> str:
    """Return one entry of ``recentProgress``."""
    phases = ", ".join(f"{phase} {ms:,.0f}" for phase, ms in _mapping(progress.get("durationMs")).items())
    said = (
        f"{progress.get('numInputRows', 0):,} rows in {_total_ms(progress):,.0f} ms ({phases}), "
        f"{brief(progress.get('processedRowsPerSecond', 0))} rows/s, committed {progress.get('timestamp', '')}"
    )
    received, spent = _mapping(progress.get("rows")), _mapping(progress.get("boltMs"))
    sizes, changed = _mapping(progress.get("stateBytes")), _mapping(progress.get("stateKeysChanged"))
    watermarks, late = _mapping(progress.get("watermarks")), _mapping(progress.get("rowsLate"))
    aside = _mapping(progress.get("rowsSetAside"))
    names = list(dict.fromkeys([*spent, *received, *watermarks]))
    rows = [
        (
            name, received.get(name), *(spent.get(name, {}).get(part) for part in _SPENT), changed.get(name),
            sizes.get(name), watermarks.get(name), late.get(name), aside.get(name),
        )
        for name in names
    ]  # fmt: skip
    header = ("component", "rows", *(f"{part} ms" for part in _SPENT), "keys changed", "state bytes", "watermark")
    return page(
        _head("transaction", f"{progress.get('txid')}, attempt {progress.get('attempt')}"),
        _note(said, "said"),
        _table("", (*header, "late", "set aside"), rows),
        _table("Sources", ("spout", "says"), [(name, _repr(says)) for name, says in _sources(progress)]),
    )


_SPENT = ("restore", "open", "execute", "finish", "slowest")


def _sources(progress: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return _mapping(progress.get("sources")).items()


def checkpoint_html(location: str, state: LogState, observed: Mapping[str, Any]) -> str:
    """Return a checkpoint as its log shows it: what committed last, who writes it, what it keeps.

    `observed` is what its driver last wrote of itself, if that can be read: the graph, and whether it runs.
    """
    health, graph = _mapping(observed.get("health")), _mapping(observed.get("graph"))
    drawing = svg(graph, name=state.topology.name) if graph.get("components") else ""
    begun = "".join(f", transaction {entry.txid} is {entry.phase}" for entry in state.in_flight)
    sizes = state.stored_bytes()
    bolts = [
        (id, bolt.parallelism, name_of(bolt.provider), sizes.get(id, 0), bolt.state_version)
        for id, bolt in sorted(state.topology.stateful.items())
    ]
    past = [
        (
            one.txid, one.attempt, one.generation, state.state_of(one),
            _time(one.ended_ms or one.committing_ms or one.prepared_ms),
            (one.ended_ms - one.prepared_ms) / 1000 if one.ended_ms and one.prepared_ms else None,
            one.input_rows, one.output_rows, one.reason,
        )
        for one in reversed(state.past()[-_TRANSACTIONS:])
    ]  # fmt: skip
    savepoints = sorted(
        (savepoint(name, pin) for name, pin in state.pinned.items()), key=lambda one: (one.txid, one.name)
    )
    kept = [(one.name, one.txid, f"{one.time:%Y-%m-%d %H:%M:%S} UTC", one.bytes) for one in savepoints]
    header = ("txid", "attempt", "generation", "state", "at", "seconds", "rows in", "rows out", "why")
    return page(
        _health_head("checkpoint of", state.topology.name, health, observed.get("error")),
        _note(f"{location}, generation {state.generation}"),
        _note(f"Last committed: transaction {state.committed}{begun}. Written {_time(state.time_ms)}.", "said"),
        f'<div class="wide">{drawing}</div>' if drawing else "",
        _table("State", ("bolt", "tasks", "provider", "bytes", "version"), bolts),
        _table("Savepoints", ("name", "txid", "taken", "bytes"), kept, "no savepoints"),
        _table("Last transactions", header, past, "nothing has been committed yet"),
    )


def view_html(name: str, txid: int, entries: Iterable[tuple[Any, Any]]) -> str:
    """Return the first entries of committed state; no more of them are read than are shown."""
    first = list(islice(entries, _ROWS + 1))
    rows = [(_repr(key), _repr(value)) for key, value in first[:_ROWS]]
    return page(
        _head("state of", name, f"transaction {txid}"),
        _table("", ("key", "value"), rows, "no keys"),
        _note(f"the first {_ROWS} keys; there are more") if len(first) > _ROWS else "",
    )


class _Short(reprlib.Repr):
    """A `repr` of at most some hundred characters, which does not write down all of what is large."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 4, 160, 200, 60
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 12

    def repr_bytes(self, thing: bytes, level: int) -> str:
        return repr(thing) if len(thing) <= 40 else f"{thing[:32]!r}… ({len(thing):,} bytes)"


_short = _Short()


def _repr(thing: object) -> str:
    return _short.repr(thing)


# ---- figures


def figure(name: str, recent: Sequence[Mapping[str, Any]]) -> Figure:
    """Return a figure of the transactions in `recent`, oldest first: rows a second, phases, lag.

    The lag is that of spouts that say it, in records; otherwise how far watermarks are behind, in seconds. If neither
    is known, there is no third plot.

    Raises
    ------
    ConfigError
        matplotlib is not installed.
    """
    try:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plot draws with matplotlib, which is not installed: pip install 'statefx[plot]'") from error

    class Shown(Figure):
        """A figure that a notebook shows once, whether or not pyplot has been imported there."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    lags, unit = _lags(recent)
    count = 3 if lags else 2
    made = Shown(figsize=(9.0, 2.2 * count), layout="constrained", facecolor="white")
    axes: Sequence[Axes] = made.subplots(count, 1, sharex=True)
    made.suptitle(name, x=0.01, ha="left", fontsize=12, fontweight="bold")
    times: list[Any] = [datetime.fromisoformat(one["timestamp"]) for one in recent]
    _draw_rates(axes[0], times, recent)
    _draw_phases(axes[1], times, recent)
    if lags:
        for number, (spout, values) in enumerate(lags.items()):
            axes[2].plot(times, values, label=spout, color=_LINES[number % len(_LINES)], **_line(times))
        _finish(axes[2], f"lag, {unit}", legend=True)
    if not recent:
        axes[0].text(0.5, 0.5, "nothing has been committed yet", ha="center", transform=axes[0].transAxes)
    locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes[-1].set_xlabel("committed at, UTC", fontsize=9)
    return made


_LINES = [PALETTE[name][0] for name in ("committing", "busy", "blocked", "restoring", "good", "bad", "soft")]
_PHASES = {"run": "busy", "wait": "blocked", "hooks": "restoring", "log": "committing"}


def _line(times: Sequence[Any]) -> dict[str, Any]:
    return {"linewidth": 1.6, "marker": "o" if len(times) < 30 else None, "markersize": 3.5}


def _draw_rates(axes: Axes, times: Sequence[Any], recent: Sequence[Mapping[str, Any]]) -> None:
    rates = [one["processedRowsPerSecond"] for one in recent]
    axes.plot(times, rates, color=_LINES[0], **_line(times))
    axes.fill_between(times, rates, color=_LINES[0], alpha=0.12, linewidth=0)
    _finish(axes, "rows/s")


def _draw_phases(axes: Axes, times: Sequence[Any], recent: Sequence[Mapping[str, Any]]) -> None:
    phases = dict.fromkeys([*_PHASES, *(name for one in recent for name in one["durationMs"])])
    stacks = {phase: [one["durationMs"].get(phase, 0.0) for one in recent] for phase in phases}
    stacks = {phase: values for phase, values in stacks.items() if any(values)}
    colours = [PALETTE[_PHASES.get(phase, "idle")][0] for phase in stacks]
    if len(times) == 1:  # an area has no width
        below = 0.0
        for (phase, values), colour in zip(stacks.items(), colours, strict=True):
            axes.bar(times, values, bottom=below, width=1e-5, label=phase, color=colour)
            below += values[0]
        axes.margins(x=3)
    elif stacks:
        axes.stackplot(times, *stacks.values(), labels=list(stacks), colors=colours, alpha=0.85)
    _finish(axes, "ms of a transaction", legend=True)


def _finish(axes: Axes, label: str, *, legend: bool = False) -> None:
    axes.set_ylabel(label, fontsize=9)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#e4e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    if legend and axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=9)


def _lags(recent: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[float]], str]:
    """Return the lag of each spout, or of each watermark, and its unit."""
    spouts = dict.fromkeys(name for one in recent for name, says in _sources(one) if _records(says) is not None)
    if spouts:
        lags = {name: [_records(_mapping(one.get("sources")).get(name)) for one in recent] for name in spouts}
        return {
            name: [float("nan") if lag is None else lag for lag in found] for name, found in lags.items()
        }, "records"
    marked = dict.fromkeys(name for one in recent for name in _mapping(one.get("watermarks")))
    return {name: [_behind_secs(one, name) for one in recent] for name in marked}, "s behind the watermark"


def _records(says: Any) -> float | None:
    """Return how many records a spout is behind, if it says so."""
    if (told := lag_told(says)) is not None:
        return float(told[0])
    pending = _mapping(says).get("pending")
    return float(pending) if isinstance(pending, int | float) else None


def _behind_secs(progress: Mapping[str, Any], name: str) -> float:
    mark = _mapping(progress.get("watermarks")).get(name)
    if mark is None:
        return float("nan")
    return (datetime.fromisoformat(progress["timestamp"]) - datetime.fromisoformat(mark)).total_seconds()
