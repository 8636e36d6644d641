"""``statefx status``, ``top`` and ``why``: a running or dead topology in a terminal, from its document.

``status`` asks the driver for it. The others read `observed.json` beside the log, and ask nothing of the driver.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from statefx import shell
from statefx.checkpoint import Checkpoint
from statefx.errors import StatefxError
from statefx.log.observation import OVER, WRONG, read_observation, secs_of
from statefx.log.requests import TAKEN_SECS

REFRESH_SECS = 1.0

BAR_CHARS = 24

TRANSACTIONS_SHOWN = 8

_ACTIVITIES = (
    ("busy", "█", "red"),
    ("blocked", "▓", "yellow"),
    ("committing", "▒", "blue"),
    ("restoring", "▒", "magenta"),
    ("idle", "·", "dim"),
)

_COLOURS = {
    "healthy": "bold green", "idle": "bold green", "starting": "bold cyan", "ended": "bold",
    "stuck": "bold red", "failing": "bold red", "failed": "bold red", "dead": "bold red", "unknown": "bold yellow",
}  # fmt: skip

_WIDTH_WITHOUT_TERMINAL = 10_000
"""Into a file or a pipe no line is cut."""

waiting = click.option(
    "--wait",
    type=click.FloatRange(0),
    default=TAKEN_SECS,
    show_default=True,
    metavar="SECS",
    help="A driver that does not react for so long counts as gone.",
)


@click.command()
@shell.location
@waiting
@shell.config
@shell.form
def status(checkpoint: str, wait: float, config: Mapping[str, Any] | None, as_json: bool | None) -> int:
    """Say in one sentence how a topology is.

    Behind it stand its tasks, transactions, sources and sinks. Its driver is asked, wherever it runs. Where none
    answers, this is what one last wrote. The exit code is 1 if the topology is stuck, failing, failed or dead, or
    nothing is known of it.
    """
    return _show(Checkpoint(checkpoint, config).status(wait=wait), as_json)


def _show(document: Mapping[str, Any], as_json: bool | None) -> int:
    if shell.in_json(as_json):
        click.echo(json.dumps(document))
    else:
        console = _console()
        with console.capture() as printed:
            console.print(screen(document, time.time()))
        click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))
    return 1 if document["health"]["state"] in WRONG else 0


@click.command()
@shell.location
@click.option("--once", is_flag=True, help="Show it once, as status does.")
@shell.config
@shell.form
def top(checkpoint: str, once: bool, config: Mapping[str, Any] | None, as_json: bool | None) -> int:
    """Show what a topology does, each second anew; q ends it.

    From what its driver last wrote beside the log: also from another machine, and after the driver's death. With --json
    a document a second, one a line. With --once the exit code is 1 if the topology is stuck, failing, failed or dead,
    or nothing is known of it.
    """
    at = Checkpoint(checkpoint, config)
    document = at.observation()
    if once or (as_json is None and not (sys.stdout.isatty() and sys.stdin.isatty())):
        return _show(document, as_json)
    if as_json:
        while True:
            click.echo(json.dumps(document))
            sys.stdout.flush()
            time.sleep(REFRESH_SECS)
            document = _again(at, document)
    with _keys() as key, Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(document, time.time(), live.console.size.height), refresh=True)
            if key(REFRESH_SECS) in ("q", "Q", "\x1b"):
                return 0
            document = _again(at, document)


def _again(at: Checkpoint, last: dict[str, Any]) -> dict[str, Any]:
    """Return the document of now, or the last one where it can't be read: a store may be away for a while."""
    try:
        found = read_observation(at._folders)
        if found["health"]["state"] not in OVER:
            return found
        same = last["health"]["state"] == found["health"]["state"] and last.get("writtenAt") == found["writtenAt"]
        return last if same else at.observation()  # the log knows how far it has come: read once, not each second
    except (OSError, StatefxError) as error:
        sentence = f"The checkpoint can't be read now ({error}): this is what was read last."
        return {**last, "health": {"state": "unknown", "since": None, "sentence": sentence, "remedy": ""}}


@click.command()
@shell.location
@shell.config
@shell.form
def why(checkpoint: str, config: Mapping[str, Any] | None, as_json: bool | None) -> int:
    """Say why a topology is slow or late.

    What bounds its throughput, what keeps its results late, and what would help; the weightiest first.
    """
    found = Checkpoint(checkpoint, config).why()
    click.echo(json.dumps(found.as_dict()) if shell.in_json(as_json) else clean(found, "\n"))
    return 0


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL, highlight=False)


@contextmanager
def _keys() -> Iterator[Any]:
    """Have the terminal hand over each key at once; yields what waits for one, some seconds at most."""
    import termios  # noqa: PLC0415 - Windows has none, and all other commands work there
    import tty  # noqa: PLC0415

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def key(secs: float) -> str:
        ready, _, _ = select.select([file], [], [], secs)
        return sys.stdin.read(1) if ready else ""

    tty.setcbreak(file)
    try:
        yield key
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


# ---- what is shown


def clean(text: object, kept: str = "") -> str:
    r"""Return a text with nothing that a terminal would obey.

    >>> print(clean("a" + chr(27) + "[2J"))
    a\x1b[2J
    """
    return "".join(each if each.isprintable() or each in kept else repr(each)[1:-1] for each in str(text))


def screen(document: Mapping[str, Any], now: float, height: int | None = None) -> RenderableType:
    """Return a document as `top` shows it; of `height` lines the components get what is left."""
    parts: list[RenderableType] = [_head(document, now)]
    if document["health"]["state"] in OVER:  # nothing takes longer since
        now = secs_of(document.get("endedAt")) or secs_of(document.get("writtenAt")) or now
    components = document.get("components") or {}
    shown = len(components) if height is None else max(3, height - 24)
    if components:
        parts += ["", _components(document, shown)]
    if document.get("transactions"):
        parts += ["", _transactions(document["transactions"], secs_of(document.get("writtenAt")))]
    if document.get("sources"):
        parts += ["", _sources(document["sources"])]
    if document.get("sinks"):
        parts += ["", _sinks(document["sinks"], now)]
    return Group(*parts)


def _head(document: Mapping[str, Any], now: float) -> RenderableType:
    health, driver = document["health"], document.get("driver") or {}
    written = secs_of(document.get("writtenAt"))
    age = "" if written is None else f", written {_span(now - written)} ago"
    title = Text.assemble(
        (clean(document.get("topology") or document.get("checkpoint")), "bold"),
        f"  generation {document.get('generation', '?')}, process {driver.get('pid', '?')} on "
        f"{clean(driver.get('host', '?'))}{age}",
    )
    state = Text.assemble((health["state"], _COLOURS.get(health["state"], "bold")), f"  {clean(health['sentence'])}")
    lines: list[RenderableType] = [title, state]
    if health.get("remedy"):
        lines.append(Text(clean(health["remedy"]), style="italic"))
    sources = (document.get("sources") or {}).values()
    if health["state"] in OVER:
        at = str(document.get("endedAt") or document.get("writtenAt") or "")[11:19]
        lines.append(Text(f"Rates, lag and tasks are those of {at} UTC, when its driver wrote them last", style="dim"))
    elif sources:
        lines.append(Text(f"{sum(each.get('rateOut') or 0.0 for each in sources):,.0f} rows/s read"))
    return Group(*lines)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=False)
    for name in names:
        right = name.endswith(("/s", "ms", "rows", "state", "lag", "tasks", "late", "txid", "behind"))
        # What is long stands in the last column: where the terminal is narrow, that one gives way and no other.
        table.add_column(name, justify="right" if right else "left", no_wrap=name not in _LONG, overflow="ellipsis")
    return table


_LONG = ("phases", "stuck")
_LEGEND = "█ busy ▓ blocked ▒ restoring, committing · idle"


def _add(table: Table, *cells: str | Text, style: str | None = None) -> None:
    """Add a row of texts as they are: rich obeys what stands in brackets, and refuses a reason like "no [/data]"."""
    table.add_row(*(Text(each) if isinstance(each, str) else each for each in cells), style=style)


def _components(document: Mapping[str, Any], most: int) -> RenderableType:
    table = _table("component", "kind", "tasks", _LEGEND, "in/s", "out/s", "state", "behind", "late")
    kinds = {one["name"]: one for one in (document.get("graph") or {}).get("components", ())}
    components = list(document["components"].items())
    for name, one in components[:most]:
        activity = one.get("activity")
        busiest = max((each.get("activity") or {}).get("busy", 0.0) for each in one.get("tasks") or [{}])
        graph = kinds.get(name, {})
        _add(
            table,
            clean(name),
            clean(graph.get("kind", "")),
            str(graph.get("tasks") or ""),
            bar(activity) if activity else Text("", style="dim"),
            "-" if graph.get("kind") in ("spout", "stream") else f"{one.get('rowsInPerSec') or 0:,.0f}",
            "-" if graph.get("kind") == "sink" else f"{one.get('rowsOutPerSec') or 0:,.0f}",
            _bytes(one.get("stateBytes")),
            _span(one.get("freshnessSecs")),
            f"{one.get('late') or 0:,}",
            style="bold" if busiest > 0.8 else None,
        )
    if len(components) <= most:
        return table
    return Group(table, Text(f"... and {len(components) - most} more components", style="dim"))


def bar(activity: Mapping[str, float]) -> Text:
    """Return the division of a component's time as a bar, with the busy share as a number.

    >>> bar({"busy": 0.5, "blocked": 0.25, "idle": 0.25}).plain
    '████████████▓▓▓▓▓▓······  50 %'
    """
    text, left = Text(), BAR_CHARS
    for name, char, style in _ACTIVITIES:
        share = min(max(activity.get(name, 0.0), 0.0), 1.0)
        chars = left if name == "idle" else min(left, round(BAR_CHARS * share))
        text.append(char * chars, style)
        left -= chars
    return text.append(f"  {100 * activity.get('busy', 0.0):.0f} %")


def _transactions(transactions: Sequence[Mapping[str, Any]], written: float | None) -> RenderableType:
    """Return a table of the last transactions; those that run have the time until the document was `written`."""
    table = _table("txid", "attempt", "outcome", "began", "ms", "rows", "phases")
    for one in reversed(transactions[-TRANSACTIONS_SHOWN:]):
        outcome = clean((one.get("outcome") == "running" and one.get("phase")) or one.get("outcome", ""))
        began, ended = secs_of(one.get("began")), secs_of(one.get("ended")) or written
        took = "" if began is None or ended is None else f"{1000 * (ended - began):,.0f}"
        phases = ", ".join(f"{name} {ms:,.0f}" for name, ms in (one.get("durationMs") or {}).items() if ms >= 1)
        _add(
            table,
            str(one.get("txid", "")),
            str(one.get("attempt", "")),
            Text(outcome, style="red" if outcome == "rolled back" else ""),
            clean((one.get("began") or "")[11:23]),
            took,
            f"{one.get('rows') or 0:,}",
            Text(clean(one.get("reason") or phases), no_wrap=True, overflow="ellipsis"),
        )
    return table


def _sources(sources: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    table = _table("source", "lag", "in/s", "out/s", "ready in", "event time")
    for name, one in sources.items():
        time_ = one.get("eventTime") or {}
        held = time_.get("heldBackBy")
        behind = "" if time_.get("behindSecs") is None else f", {_span(time_['behindSecs'])} behind"
        _add(
            table,
            clean(name),
            "" if one.get("lagRecords") is None else f"{one['lagRecords']:,.0f}",
            "" if one.get("rateIn") is None else f"{one['rateIn']:,.0f}",
            f"{one.get('rateOut') or 0:,.0f}",
            _span(one.get("etaSecs")),
            "" if held is None else f"held by {clean(held)}{behind}",
        )
    return table


def _sinks(sinks: Mapping[str, Mapping[str, Any]], now: float) -> RenderableType:
    table = _table("sink", "txid", "rows", "commit ms", "stuck")
    for name, one in sinks.items():
        since = secs_of(one.get("stuckSince"))
        stuck = "" if since is None else f"for {_span(now - since)}: {clean(one.get('why') or '')}"
        _add(
            table,
            clean(name),
            str(one.get("txid") or ""),
            "" if one.get("rows") is None else f"{one['rows']:,}",
            "" if one.get("commitMs") is None else f"{one['commitMs']:,.0f}",
            Text(stuck, style="red"),
        )
    return table


def _span(secs: float | None) -> str:
    """Return a span of time in the unit that fits.

    >>> [_span(each) for each in (None, 0.25, 90, 7200, 200000)]
    ['', '0.2 s', '90 s', '2.0 h', '2.3 d']
    """
    if secs is None:
        return ""
    for unit, length, least in (("d", 86400, 172800), ("h", 3600, 7200), ("min", 60, 180)):
        if abs(secs) >= least:
            return f"{secs / length:.1f} {unit}"
    return f"{secs:.0f} s" if abs(secs) >= 10 else f"{secs:.1f} s"


def _bytes(size: float | None) -> str:
    """Return a size in the unit that fits.

    >>> _bytes(None), _bytes(900), _bytes(3_500_000)
    ('', '900 B', '3.5 MB')
    """
    if size is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
