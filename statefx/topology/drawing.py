"""A topology drawn by levels from left to right, as SVG that needs nothing else: for notebooks, pages and files.

A layered drawing after Sugiyama. Each component stands in the column after the last one that it reads from; long edges
go through empty places of the columns between; a few passes of barycentres over the columns leave few crossings;
heights then follow the neighbours. The same graph always gives the same picture.

Written here since the columns are known, which leaves two passes of the method: grandalf (GPL or EPL, last released in
2023) chooses columns by itself and recurses along paths, and the other libraries of registries are compiled.

A graph is what an observation has under ``graph``: plain data, of which keys may be missing::

    {"components": [{"name", "kind", "tasks", "operator", "provider", "stateful", "committer"}, ...],
     "edges": [{"from", "to", "stream", "grouping"}, ...]}
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from statefx.operators.context import DEFAULT_STREAM

Graph = Mapping[str, Any]
"""Plain data, see above."""

Point = tuple[float, float]


class Node(NamedTuple):
    """The place of a component: its column from 0, the upper left corner of its box, and its size, in pixels."""

    name: str
    level: int
    x: float
    y: float
    w: float
    h: float


class Route(NamedTuple):
    """The way of an edge: from `source` to `target` through `points`, level where two have one height."""

    source: str
    target: str
    stream: str
    points: tuple[Point, ...]
    grouping: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything stands, in pixels; y grows downwards."""

    nodes: tuple[Node, ...]
    edges: tuple[Route, ...]
    width: float
    height: float


# ---- text


NAME_SIZE, TEXT_SIZE, LABEL_SIZE = 13.0, 11.0, 10.0
"""Sizes of text in pixels: names, what stands below them, and what stands on edges."""

BOLD = 1.1
"""How much wider names are, which are bold."""
_EM = {
    **dict.fromkeys("iljtfrI.,:;!'|()[]{} /\\-`\"", 0.42),
    **dict.fromkeys("mMW@%", 1.0),
    **dict.fromkeys("wOQGDNHUKRCAXYV&+=<>~#_", 0.82),
}
"""Widths of letters by the size of the text, in the widest of the usual fonts; others are 0.66, or 1.1 if not Latin."""


def width_of(text: str, size: float) -> float:
    """Return how wide a text may become, in pixels: no usual font without serifs makes it wider."""
    return size * sum(_EM.get(char) or (0.66 if char < "\u0250" else 1.1) for char in text)


def fitted(text: str, size: float, room: float) -> str:
    """Return the text, cut with an ellipsis where it might be wider than `room` pixels."""
    if width_of(text[:400], size) <= room and len(text) <= 400:
        return text
    room -= width_of("…", size)
    end = 0
    for char in text[:400]:
        room -= width_of(char, size)
        if room < 0:
            break
        end += 1
    return text[:end].rstrip() + "…"


_NO_XML = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF), "\ufffd")
_MARKUP = {ord(char): f"&#{ord(char)};" for char in "&<>\"'\n\r\t"}


def escaped(text: object) -> str:
    """Return a text as content or as an attribute of HTML and XML, which gives it back as it was.

    Characters that XML can't have become U+FFFD.
    """
    whole = str(text).encode("utf-8", "replace").decode() if not str(text).isascii() else str(text)
    return whole.translate(_NO_XML).translate(_MARKUP)


def shown(text: object) -> str:
    """Return a text in one line, without characters that hide or turn round what stands beside them."""
    plain = (" " if char.isspace() else char for char in str(text)[:2000])
    return "".join(char for char in plain if unicodedata.category(char) not in ("Cc", "Cf", "Cs"))


def brief(number: float) -> str:
    """Return a number in at most four characters and a letter.

    >>> brief(950), brief(12_345), brief(7_000_000), brief(0.25)
    ('950', '12.3k', '7M', '0.25')
    """
    size, letter = abs(number), ""
    for power in "kMGTP":
        if size < 999.5:
            break
        size, letter = size / 1000, power
    digits = f"{size:.0f}" if size >= 99.95 else f"{size:.1f}" if size >= 9.995 or letter else f"{size:.2g}"
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"{'-' if number < 0 else ''}{digits}{letter}"


# ---- layout


_MARGIN = 16.0
_NODE_GAP, _LINE_GAP = 22.0, 14.0
_PORT = 14.0
"""Between the ends of two edges at a box, in pixels: a label has room above each."""
_PORT_NARROW = 6.0
_LABELS_MAX = 12
"""A component with more inputs has no labels at them: its box would be taller than a screen."""
_LABEL_ROOM = 132.0
_SPAN_MAX = 24
"""Edges over more columns go straight: places for them would be more work than all else."""
_LID_ROOM, _SLANT = 8.0, 12.0
"""How much higher a box is for the lid of a cylinder, and how far the side of a sink leans, in pixels."""
_PASSES = 10
_WORK = 40_000
"""Passes over a graph with many places are fewer: so many places in all."""


@dataclass(slots=True)
class _Places:
    """The graph in columns. Places from 0 on are components, those after them the empty ones of long edges."""

    sizes: list[Point]
    column: list[int]
    columns: list[list[int]]
    before: list[list[int]]
    """Of each place, those in the column before that it has an edge from; `after` likewise."""
    after: list[list[int]]
    ways: list[list[int]]
    """Of each edge, its places from source to target."""
    at: list[int] = field(default_factory=list)
    """Of each place, its number in its column from the top."""


def layout(graph: Graph, *, lines: int = 2) -> Layout:
    """Lay a graph out.

    Parameters
    ----------
    graph : Mapping
        Components and edges, see the module. Edges from or to a component that is not there are left out.
    lines : int
        How many lines of text a box has room for: 2, or 3.

    Returns
    -------
    Layout
        Nodes in the order of the components, edges in theirs.
    """
    components = {str(one.get("name")): one for one in _entries(graph.get("components"))}
    edges = [
        one
        for one in _entries(graph.get("edges"))
        if all(isinstance(end := one.get(side), str) and end in components for side in ("from", "to"))
    ]
    number = {name: i for i, name in enumerate(components)}
    ends = [(number[one["from"]], number[one["to"]]) for one in edges]
    column = _columns(len(components), ends)
    widths = _widths(list(components.values()), column, lines)
    degrees = [[0, 0] for _ in components]
    for source, target in ends:
        degrees[source][1] += 1
        degrees[target][0] += 1
    sizes = [
        (widths[column[i]], _height(degrees[i], lines) + (_LID_ROOM if _is_stateful(one) else 0))
        for i, one in enumerate(components.values())
    ]
    places = _places(sizes, column, ends)
    _reduce_crossings(places)
    ports = _ports(places, degrees)
    y = _heights(places, ports)
    left, leads = _gaps(widths, edges, ends, column, degrees, lines)
    top = min((y[i] - places.sizes[i][1] / 2 for i in range(len(y))), default=0.0)
    y = [each - top + _MARGIN for each in y]
    nodes = tuple(
        Node(name, column[i], left[column[i]], y[i] - sizes[i][1] / 2, *sizes[i]) for i, name in enumerate(components)
    )
    routes = tuple(
        Route(
            one["from"], one["to"], str(one.get("stream") or DEFAULT_STREAM),
            _points(places, way, ports[i], y, left, widths, leads), str(one.get("grouping") or ""),
        )
        for i, (one, way) in enumerate(zip(edges, places.ways, strict=True))
    )  # fmt: skip
    bottom = max((node.y + node.h for node in nodes), default=0.0)
    bottom = max([bottom, *(each for place, each in enumerate(y) if place >= len(sizes))])
    width = left[-1] + widths[-1] if widths else 0.0
    return Layout(nodes, routes, round(width + _MARGIN, 1), round(bottom + _MARGIN, 1))


def _entries(things: Any) -> list[Mapping[str, Any]]:
    """Return those of some things that are data with names: a document may be of another release."""
    return [one for one in things if isinstance(one, Mapping)] if isinstance(things, Iterable) else []


def _columns(count: int, ends: Sequence[tuple[int, int]]) -> list[int]:
    """Return the column of each component: after all that it reads from. What is in a circle stands where it falls."""
    waiting = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in ends:
        if source != target:
            readers[source].append(target)
            waiting[target] += 1
    column = [0] * count
    placed = [False] * count
    ready = [i for i in range(count) if not waiting[i]]
    rest = iter(range(count))
    while True:
        while ready:
            i = ready.pop()
            placed[i] = True
            for reader in readers[i]:
                if not placed[reader]:
                    column[reader] = max(column[reader], column[i] + 1)
                    waiting[reader] -= 1
                    if not waiting[reader]:
                        ready.append(reader)
        left = next((i for i in rest if not placed[i]), None)
        if left is None:
            return column
        ready.append(left)


def _widths(components: Sequence[Mapping[str, Any]], column: Sequence[int], lines: int) -> list[float]:
    """Return the width of each column's boxes, so that most texts have room."""
    widths = [116.0 if lines == 2 else 184.0] * (max(column, default=-1) + 1)
    for one, at in zip(components, column, strict=True):
        name = width_of(shown(one.get("name"))[:60], NAME_SIZE) * BOLD
        wanted = (
            max(name, width_of(below_name(one)[:60], TEXT_SIZE)) + 24 + (_SLANT if one.get("kind") == "sink" else 0)
        )
        widths[at] = max(widths[at], min(wanted, 216.0))
    return widths


def _height(degrees: Sequence[int], lines: int) -> float:
    inputs, outputs = degrees
    ports = max((inputs - 1) * _port(inputs), (outputs - 1) * _port(outputs), 0.0)
    return max(30.0 + 17.0 * (lines - 1), ports + 26.0)


def _port(count: int) -> float:
    """Return how far the ends of `count` edges are from each other."""
    return _PORT if count <= _LABELS_MAX else _PORT_NARROW


def _places(sizes: list[Point], column: list[int], ends: Sequence[tuple[int, int]]) -> _Places:
    count = len(sizes)
    places = _Places(list(sizes), list(column), [], [[] for _ in sizes], [[] for _ in sizes], [])
    for source, target in ends:
        way = [source]
        if 1 < column[target] - column[source] <= _SPAN_MAX:
            for between in range(column[source] + 1, column[target]):
                way.append(len(places.sizes))
                places.sizes.append((0.0, 0.0))
                places.column.append(between)
                places.before.append([])
                places.after.append([])
        way.append(target)
        places.ways.append(way)
        for one, following in pairwise(way):
            if places.column[following] == places.column[one] + 1:
                places.after[one].append(following)
                places.before[following].append(one)
    places.columns = [[] for _ in range(max(places.column, default=-1) + 1)]
    seen = [False] * len(places.sizes)
    for first in sorted(range(count), key=lambda i: (column[i], i)):  # depth first: what belongs together stays so
        stack = [first]
        while stack:
            one = stack.pop()
            if not seen[one]:
                seen[one] = True
                places.columns[places.column[one]].append(one)
                stack.extend(reversed(places.after[one]))
    places.at = [0] * len(places.sizes)
    for members in places.columns:
        _number(places, members)
    return places


def _number(places: _Places, members: Iterable[int]) -> None:
    for number, one in enumerate(members):
        places.at[one] = number


def _crossings(places: _Places, members: Sequence[int]) -> int:
    """Return how often edges out of one column cross."""
    crossings, seen = 0, list[int]()
    for one in members:
        for reader in sorted(places.at[reader] for reader in places.after[one]):
            place = bisect_right(seen, reader)
            crossings += len(seen) - place
            seen.insert(place, reader)
    return crossings


def _reduce_crossings(places: _Places) -> None:
    """Order each column by the barycentres of its neighbours, to and fro, and keep the best of all passes."""
    best = [list(members) for members in places.columns]
    fewest = sum(_crossings(places, members) for members in places.columns)
    idle = 0
    for turn in range(max(2, min(_PASSES, _WORK // (len(places.sizes) or 1)))):
        if not fewest or idle > 3:
            break
        forward = turn % 2 == 0
        neighbours = places.before if forward else places.after
        for members in places.columns[1:] if forward else places.columns[-2::-1]:
            centre = {
                one: sum(places.at[each] for each in near) / len(near) if (near := neighbours[one]) else places.at[one]
                for one in members
            }
            # Of equal ones the order is turned round now and then: they may be what crosses.
            members.sort(key=lambda one: (centre[one], -places.at[one] if turn % 4 > 1 else places.at[one]))
            _number(places, members)
        crossings = sum(_crossings(places, members) for members in places.columns)
        idle += 1
        if crossings < fewest:
            fewest, best, idle = crossings, [list(members) for members in places.columns], 0
    places.columns = best
    for members in best:
        _number(places, members)


def _ports(places: _Places, degrees: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """Return how far from the middles of their boxes each edge leaves and arrives."""
    leaving: dict[int, list[tuple[int, int, int]]] = {}
    arriving: dict[int, list[tuple[int, int, int]]] = {}
    for edge, way in enumerate(places.ways):
        leaving.setdefault(way[0], []).append((places.at[way[1]], places.column[way[1]], edge))
        arriving.setdefault(way[-1], []).append((places.at[way[-2]], -places.column[way[-2]], edge))
    offsets = [[0.0, 0.0] for _ in places.ways]
    for side, ends in enumerate((leaving, arriving)):
        for found in ends.values():
            found.sort()
            for number, (_, _, edge) in enumerate(found):
                offsets[edge][side] = (number - (len(found) - 1) / 2) * _port(len(found))
    return [(out, into) for out, into in offsets]


def _heights(places: _Places, ports: Sequence[tuple[float, float]]) -> list[float]:
    """Return the middle of each place: near those of its neighbours, in the order of its column."""
    before: list[list[tuple[int, float, float]]] = [[] for _ in places.sizes]  # (neighbour, how far off, weight)
    after: list[list[tuple[int, float, float]]] = [[] for _ in places.sizes]
    count = len(places.sizes)
    real = [size[1] > 0 for size in places.sizes]
    for way, (out, into) in zip(places.ways, ports, strict=True):
        for number, (one, following) in enumerate(pairwise(way)):
            shift = (out if number == 0 else 0.0) - (into if number == len(way) - 2 else 0.0)
            weight = (1.0, 2.0, 8.0)[(not real[one]) + (not real[following])]  # a long edge is a straight one
            before[following].append((one, shift, weight))
            after[one].append((following, -shift, weight))
    y = [0.0] * count
    for members in places.columns:
        _spread(places, members, {}, y)
    rounds = max(2, min(6, _WORK // (count or 1)))
    for turn in range(rounds):
        for members in places.columns[1:]:
            _spread(places, members, _wanted(members, y, before), y)
        both = after if turn < rounds - 1 else None
        for members in reversed(places.columns[:-1]):
            _spread(places, members, _wanted(members, y, both or after, None if both else before), y)
    _straighten(places, ports, y)
    return y


def _straighten(places: _Places, ports: Sequence[tuple[float, float]], y: list[float]) -> None:
    """Give the places of each long edge one height, that of an end of it if there is room, without moving others."""
    for way, (out, into) in zip(places.ways, ports, strict=True):
        between = way[1:-1]
        if between:
            middle = sum(y[one] for one in between) / len(between)
            for height in (y[way[0]] + out, y[way[-1]] + into, middle):
                if abs(height - middle) <= 2 * _NODE_GAP and all(_has_room(places, one, height, y) for one in between):
                    for one in between:
                        y[one] = height
                    break


def _has_room(places: _Places, one: int, height: float, y: Sequence[float]) -> bool:
    """Return whether a place of a long edge may be moved there and keep its distances in its column."""
    members, at = places.columns[places.column[one]], places.at[one]
    above = y[members[at - 1]] + places.sizes[members[at - 1]][1] / 2 if at else -1e9
    below = y[members[at + 1]] - places.sizes[members[at + 1]][1] / 2 if at + 1 < len(members) else 1e9
    return above + _LINE_GAP - 0.1 <= height <= below - _LINE_GAP + 0.1


def _wanted(
    members: Iterable[int],
    y: Sequence[float],
    near: Sequence[Sequence[tuple[int, float, float]]],
    also: Sequence[Sequence[tuple[int, float, float]]] | None = None,
) -> dict[int, tuple[float, float]]:
    """Return where the neighbours of places would have them, and how much that weighs."""
    wanted: dict[int, tuple[float, float]] = {}
    for one in members:
        around = [*near[one], *(also[one] if also is not None else ())]
        weight = sum(each[2] for each in around)
        if weight:
            wanted[one] = sum((y[other] + shift) * each for other, shift, each in around) / weight, weight
    return wanted


def _spread(places: _Places, members: Sequence[int], wanted: Mapping[int, tuple[float, float]], y: list[float]) -> None:
    """Set the heights of a column: the nearest to those wanted that keep order and distances (least squares).

    Neighbours that would overlap become one block, at the mean of what they want (pool adjacent violators).
    """
    blocks: list[list[Any]] = []  # [sum of weighted tops, weight, members], tops as if all distances were 0
    offset, last = 0.0, None
    for one in members:
        if last is not None:
            gap = _NODE_GAP if places.sizes[one][1] and places.sizes[last][1] else _LINE_GAP
            offset += (places.sizes[last][1] + places.sizes[one][1]) / 2 + gap
        middle, weight = wanted.get(one, (y[one], 0.1))
        blocks.append([(middle - offset) * weight, weight, [(one, offset)]])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
            total, weight, joined = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += weight
            blocks[-1][2] += joined
        last = one
    for total, weight, joined in blocks:
        for one, below in joined:
            y[one] = total / weight + below


def _gaps(
    widths: Sequence[float],
    edges: Sequence[Mapping[str, Any]],
    ends: Sequence[tuple[int, int]],
    column: Sequence[int],
    degrees: Sequence[Sequence[int]],
    lines: int,
) -> tuple[list[float], list[float]]:
    """Return where each column begins, and how long edges run level before it: there stand their labels."""
    leads = [12.0] * len(widths)
    arriving = [0] * len(widths)
    for one, (_, target) in zip(edges, ends, strict=True):
        arriving[column[target]] += 1
        if degrees[target][0] <= _LABELS_MAX:
            room = min(width_of(label_of(one.get("stream"), one.get("grouping")), LABEL_SIZE), _LABEL_ROOM)
            leads[column[target]] = max(leads[column[target]], room + (16 if lines == 2 else 56))  # with its rate
    left, x = [], _MARGIN
    for at, width in enumerate(widths):
        if at:
            x += leads[at] + min(28.0 + 3 * arriving[at], 90.0)
        left.append(x)
        x += width
    return left, leads


def _points(
    places: _Places,
    way: Sequence[int],
    ports: tuple[float, float],
    y: Sequence[float],
    left: Sequence[float],
    widths: Sequence[float],
    leads: Sequence[float],
) -> tuple[Point, ...]:
    first, last = way[0], way[-1]
    points = [(left[places.column[first]] + widths[places.column[first]], y[first] + ports[0])]
    for one in way[1:-1]:
        at = places.column[one]
        points += [(left[at] - leads[at], y[one]), (left[at] + widths[at], y[one])]
    at = places.column[last]
    points += [(left[at] - leads[at], y[last] + ports[1]), (left[at], y[last] + ports[1])]
    return tuple((round(x, 1), round(height, 1)) for x, height in points)


# ---- what is said of components and edges


_KINDS = {"stream": "DataFrame", "spout": "spout", "bolt": "bolt", "sink": "sink"}


def below_name(component: Mapping[str, Any]) -> str:
    """Return what stands below a component's name: its class, its tasks, what keeps its state."""
    kind = str(component.get("kind") or "bolt")
    operator = "DataFrame" if kind == "stream" else shown(component.get("operator") or _KINDS.get(kind, kind))
    tasks = component.get("tasks")
    times = f" \u00d7 {tasks}" if tasks and kind != "stream" else ""
    provider = component.get("provider")
    return f"{operator}{times}" + (f" · {shown(provider)}" if provider else "")


def _kind(component: Mapping[str, Any]) -> str:
    kind = str(component.get("kind") or "bolt")
    return kind if kind in _KINDS else "bolt"


def _is_stateful(component: Mapping[str, Any]) -> bool:
    return bool(component.get("stateful") or component.get("provider"))


def label_of(stream: object, grouping: object) -> str:
    """Return what stands on an edge: the stream, if it has a name of its own, and the grouping."""
    named = "" if stream in (None, "", DEFAULT_STREAM) else shown(stream)
    return ": ".join(part for part in (named, shown(grouping or "")) if part)


# ---- colours


PALETTE: Mapping[str, tuple[str, str]] = {
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9da7b3"),
    "line": ("#818b98", "#7d8590"),
    "paper": ("#ffffff", "#0d1117"),
    "box": ("#f3f5f7", "#1c2128"),
    "input": ("#e3f2ee", "#143029"),
    "state": ("#ece8fa", "#2a2444"),
    "sink": ("#fbeedd", "#38290f"),
    "busy": ("#d9700f", "#f0883e"),
    "idle": ("#aebac7", "#4b535d"),
    "blocked": ("#8250df", "#a475f9"),
    "restoring": ("#1b7c83", "#39c5cf"),
    "committing": ("#0969da", "#58a6ff"),
    "good": ("#1a7f37", "#3fb950"),
    "bad": ("#cf222e", "#f85149"),
}
"""Name of a colour -> what it is on a light page and on a dark one.

A page that sets ``--statefx-NAME`` on an element around a drawing has its own colour there.
"""

ACTIVITIES = ("busy", "blocked", "idle", "restoring", "committing")
"""What the time of a task is divided into, in the order of a bar."""


def theme(scope: str) -> str:
    """Return CSS that gives what the selector `scope` names the colours ``--sx-NAME`` of a light or a dark page.

    By the system's preference, unless the page around says what it is: Jupyter, VS Code, Colab and Sphinx do.
    """
    light = "".join(f"--sx-{name}:var(--statefx-{name},{colours[0]});" for name, colours in PALETTE.items())
    dark = "".join(f"--sx-{name}:var(--statefx-{name},{colours[1]});" for name, colours in PALETTE.items())
    says_light = ":is([data-jp-theme-light=true],.vscode-light,[data-theme=light],[theme=light])"
    says_dark = ":is([data-jp-theme-light=false],.vscode-dark,[data-theme=dark],[theme=dark])"
    return (
        f"{scope}{{{light}}}@media (prefers-color-scheme:dark){{{scope}{{{dark}}}}}"
        f"{says_light} {scope}{{{light}}}{says_dark} {scope}{{{dark}}}"
    )


def paint(what: str, colour: str) -> str:
    """Return a declaration that paints; programs that know no variables have the light colour."""
    return f"{what}:{PALETTE[colour][0]};{what}:var(--sx-{colour})"


FONT = 'font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif'

_SCOPE = ".statefx-graph"


def _style() -> str:
    rules = {
        "text": f"{paint('fill', 'ink')};{FONT};text-anchor:middle",
        ".name": f"font-size:{NAME_SIZE:g}px;font-weight:600",
        ".below,.figures": f"font-size:{TEXT_SIZE:g}px",
        ".below": paint("fill", "soft"),
        ".label": f"font-size:{LABEL_SIZE:g}px;text-anchor:end;{paint('fill', 'soft')};{paint('stroke', 'paper')};"
        "stroke-width:3px;stroke-linejoin:round;paint-order:stroke",
        ".label .rate": paint("fill", "ink"),
        ".legend": f"font-size:{TEXT_SIZE:g}px;text-anchor:start;{paint('fill', 'soft')}",
        ".paper": paint("fill", "paper"),
        ".line,.head,.lid": f"fill:none;{paint('stroke', 'line')};stroke-width:1.3px;stroke-linejoin:round",
        ".box": f"{paint('fill', 'box')};{paint('stroke', 'line')};stroke-width:1.3px",
        ".stream .box,.spout .box": paint("fill", "input"),
        ".stateful .box": paint("fill", "state"),
        ".sink .box": paint("fill", "sink"),
        ".stream path.box": "stroke-dasharray:4 3",
        ".measured .box": paint("fill", "box"),
        **{f".{activity}": paint("fill", activity) for activity in ACTIVITIES},
    }
    inside = "".join(
        ",".join(f"{_SCOPE} {one.strip()}" for one in selector.split(",")) + f"{{{body}}}"
        for selector, body in rules.items()
    )
    return theme(_SCOPE) + inside


# ---- paths


_LID = 6.0


class Box(NamedTuple):
    """How a component is drawn: paths of SVG, the second perhaps empty, and the height of the middle of its text."""

    outline: str
    inner: str
    middle: float


class Course(NamedTuple):
    """How an edge is drawn: paths of SVG."""

    line: str
    head: str


def paths(graph: Graph, placed: Layout) -> tuple[dict[str, Box], list[Course]]:
    """Return the shapes of a graph's components, by name, and its edges, in their order, as they were laid out."""
    components = {str(one.get("name")): one for one in _entries(graph.get("components"))}
    boxes = {}
    for node in placed.nodes:
        component = components[node.name]
        stateful = _is_stateful(component)
        outline, inner = _outline(node, _kind(component), stateful, bool(component.get("committer")))
        boxes[node.name] = Box(outline, inner, node.y + node.h / 2 + (_LID_ROOM / 2 if stateful else 0))
    slanted = {node.name: node for node in placed.nodes if components[node.name].get("kind") == "sink"}
    return boxes, [_course(route, slanted.get(route.target)) for route in placed.edges]


def _course(route: Route, slanted: Node | None) -> Course:
    points = list(route.points)
    x, y = points[-1]
    if slanted is not None:
        x = round(slanted.x + _SLANT * (1 - (y - slanted.y) / slanted.h), 1)
        points[-1] = x, y
    line = [f"M{points[0][0]:g},{points[0][1]:g}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        half = round((x0 + x1) / 2, 1)
        line.append(f"H{x1:g}" if y0 == y1 else f"C{half:g},{y0:g} {half:g},{y1:g} {x1:g},{y1:g}")
    return Course("".join(line), f"M{x - 6:g},{y - 3.5:g}L{x:g},{y:g}L{x - 6:g},{y + 3.5:g}")


def _outline(node: Node, kind: str, stateful: bool, committer: bool) -> tuple[str, str]:
    """Return the outline of a component's box, and what is drawn inside of it."""
    _, _, x, y, w, h = node
    if kind in ("stream", "spout"):
        r = min(22.0, h / 2)
        corner = f"a{r:g},{r:g} 0 0 1"
        across, down = w - 2 * r, h - 2 * r
        path = f"M{x + r:g},{y:g}h{across:g}{corner} {r:g},{r:g}v{down:g}{corner} -{r:g},{r:g}"
        return f"{path}h-{across:g}{corner} -{r:g},-{r:g}v-{down:g}{corner} {r:g},-{r:g}z", ""
    if kind == "sink":
        return f"M{x + _SLANT:g},{y:g}H{x + w:g}L{x + w - _SLANT:g},{y + h:g}H{x:g}z", ""
    if stateful:
        arc = f"a{w / 2:g},{_LID:g} 0 0"
        side = h - 2 * _LID
        top = y + _LID
        return f"M{x:g},{top:g}{arc} 1 {w:g},0v{side:g}{arc} 1 -{w:g},0z", f"M{x:g},{top:g}{arc} 0 {w:g},0"
    inner = f"M{x + 6:g},{y:g}v{h:g}M{x + w - 6:g},{y:g}v{h:g}" if committer else ""
    return f"M{x:g},{y:g}h{w:g}v{h:g}h-{w:g}z", inner


# ---- SVG


def svg(
    graph: Graph,
    *,
    overlay: Mapping[str, Mapping[str, Any]] | None = None,
    edges: Iterable[Mapping[str, Any]] | None = None,
    sources: Mapping[str, Mapping[str, Any]] | None = None,
    name: str = "",
) -> str:
    """Return a drawing of `graph` as an ``<svg>`` element that refers to nothing outside of it.

    Each component is a ``<g class="node" data-component=NAME>``, each edge a
    ``<g class="edge" data-from=NAME data-to=NAME data-stream=STREAM>``. Streams and spouts are rounded, streams dashed;
    what keeps state is a cylinder, sinks are slanted, committers have double sides.

    Parameters
    ----------
    graph : Mapping
        Components and edges, see the module.
    overlay : Mapping, optional
        What was measured, as an observation's ``components``: boxes then show how the time was spent and rows a second.
    edges, sources : optional
        Those of the observation: rows a second of edges, lag of spouts.
    name : str
        The topology's, for who has the picture read out.
    """
    lines = 2 if overlay is None else 3
    measures = {name: one for name, one in (overlay or {}).items() if isinstance(one, Mapping)}
    lags = {name: one for name, one in (sources or {}).items() if isinstance(one, Mapping)}
    placed = layout(graph, lines=lines)
    components = {str(one.get("name")): one for one in _entries(graph.get("components"))}
    rates = {
        (str(one.get("from")), str(one.get("to")), str(one.get("stream") or DEFAULT_STREAM)): one
        for one in _entries(edges)
    }
    activities = {activity for one in measures.values() for activity in _shares(one)}
    height = placed.height + (24 if activities else 0)
    width = max(placed.width, 420.0 if activities else 160.0)
    said = f"topology {shown(name)}, {len(components)} components" if name else f"{len(components)} components"
    size = f'width="{width:g}" height="{height:g}"'
    # Where it is wider than what it stands in it shrinks, as far as it can still be read.
    style = f"max-width:100%;height:auto;min-width:{0.62 * width:.0f}px"
    parts = [
        f'<svg class="statefx-graph" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escaped(said)}"',
        f' {size} viewBox="0 0 {width:g} {height:g}" style="{style}"><style>{_style()}</style>',
        f'<rect class="paper" {size} rx="6"/>',
    ]
    inputs = Counter(route.target for route in placed.edges)
    boxes, courses = paths(graph, placed)
    parts += [
        _edge(route, course, rates.get(route[:3]), labelled=inputs[route.target] <= _LABELS_MAX)
        for route, course in zip(placed.edges, courses, strict=True)
    ]
    for node in placed.nodes:
        measured = None if overlay is None else measures.get(node.name, {})
        parts.append(_node(node, boxes[node.name], components[node.name], measured, lags.get(node.name)))
    if not placed.nodes:
        parts.append(f'<text class="below" x="{width / 2:g}" y="{height / 2 + 4:g}">no components</text>')
    if activities:
        parts.append(_legend(placed.height + 6, activities))
    return "".join([*parts, "</svg>"])


def _edge(route: Route, course: Course, measured: Mapping[str, Any] | None, *, labelled: bool) -> str:
    rate = _amount(measured, "rowsPerSec")
    label = label_of(route.stream, route.grouping)
    title = f"{shown(route.source)} → {shown(route.target)}\n{label}" + (
        "" if rate is None else f"\n{brief(rate)} rows/s, {brief(_amount(measured, 'rows') or 0)} rows"
    )
    text = ""
    if labelled:
        said = escaped(fitted(label, LABEL_SIZE, _LABEL_ROOM))
        if rate is not None:
            said += f' <tspan class="rate">{brief(rate)}/s</tspan>'
        x, y = route.points[-1]
        text = f'<text class="label" x="{x - 8:g}" y="{y - 3:g}">{said}</text>'
    return (
        f'<g class="edge" data-from="{escaped(route.source)}" data-to="{escaped(route.target)}" '
        f'data-stream="{escaped(route.stream)}"><title>{escaped(title)}</title>'
        f'<path class="line" d="{course.line}"/><path class="head" d="{course.head}"/>{text}</g>'
    )


def _node(
    node: Node,
    box: Box,
    component: Mapping[str, Any],
    measured: Mapping[str, Any] | None,
    source: Mapping[str, Any] | None,
) -> str:
    kind = _kind(component)
    stateful = _is_stateful(component)
    shares = _shares(measured)
    classes = ["node", kind, *(["stateful"] if stateful else []), *(["measured"] if shares else [])]
    most = max(shares, key=lambda activity: shares[activity]) if shares else ""
    x, w = node.x, node.w
    centre = x + w / 2
    room = w - (20 + (_SLANT if kind == "sink" else 0))
    first = box.middle - (3 if measured is None else 12)
    parts = [
        f'<g class="{" ".join(classes)}" data-component="{escaped(node.name)}" data-kind="{kind}"',
        f' data-activity="{most}">' if most else ">",
        f"<title>{escaped(_title(node, component, measured, source))}</title>",
        f'<path class="box" d="{box.outline}"/>',
    ]
    if most:
        parts.append(f'<path class="{most}" fill-opacity="{0.06 + 0.34 * shares[most]:.2f}" d="{box.outline}"/>')
    parts += [
        f'<path class="lid" d="{box.inner}"/>' if box.inner else "",
        _text("name", centre, first, fitted(shown(node.name), NAME_SIZE * BOLD, room)),
        _text("below", centre, first + 15, fitted(below_name(component), TEXT_SIZE, room)),
    ]
    if measured is not None:
        parts.append(_text("figures", centre, first + 30, fitted(_figures(kind, measured, source), TEXT_SIZE, room)))
        parts.append(_bar(x + 22, first + 35, w - 44, shares))
    return "".join([*parts, "</g>"])


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escaped(text)}</text>'


def _amount(measured: Mapping[str, Any] | None, key: str) -> float | None:
    """Return a figure of an observation; None where it is not known, or no number."""
    found = (measured or {}).get(key)
    if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 1e18:  # nor NaN
        return float(found)
    return None


def _shares(measured: Mapping[str, Any] | None) -> dict[str, float]:
    """Return which part of its time a component did what; empty where nothing is known."""
    activity = (measured or {}).get("activity")
    if not isinstance(activity, Mapping):
        return {}
    found = {name: min(1.0, share) for name in ACTIVITIES if (share := _amount(activity, name) or 0.0) > 0}
    total = sum(found.values())
    return {name: share / max(1.0, total) for name, share in found.items()}


def _figures(kind: str, measured: Mapping[str, Any], source: Mapping[str, Any] | None) -> str:
    rate = _amount(measured, "rowsOutPerSec" if kind in ("stream", "spout") else "rowsInPerSec")
    size, lag = _amount(measured, "stateBytes"), _amount(source, "lagRecords")
    parts = [
        None if rate is None else f"{brief(rate)} rows/s",
        None if size is None else f"{brief(size)}B",
        None if lag is None else f"lag {brief(lag)}",
    ]
    return " · ".join(part for part in parts if part) or "\u2013"


def _bar(x: float, y: float, width: float, shares: Mapping[str, float]) -> str:
    """Return a bar of how a component's time was spent."""
    parts = []
    for activity, share in shares.items():
        parts.append(f'<rect class="{activity}" x="{x:.1f}" y="{y:g}" width="{width * share:.1f}" height="4"/>')
        x += width * share
    return f'<g class="shares">{"".join(parts)}</g>'


def _title(
    node: Node, component: Mapping[str, Any], measured: Mapping[str, Any] | None, source: Mapping[str, Any] | None
) -> str:
    """Return all that is known of a component, in lines: what a pointer on it shows."""
    kind = str(component.get("kind") or "bolt")
    lines = [shown(node.name)[:400], f"{kind} {below_name(component)}" if kind != "stream" else "DataFrame"]
    shares = _shares(measured)
    if shares:
        lines.append(", ".join(f"{activity} {share:.0%}" for activity, share in shares.items()))
    for said, key in (("rows/s in", "rowsInPerSec"), ("rows/s out", "rowsOutPerSec"), ("keys", "stateKeys")):
        found = _amount(measured, key)
        lines += [] if found is None else [f"{brief(found)} {said}"]
    for said, found in (
        ("{}B of state", _amount(measured, "stateBytes")),
        ("{} records behind", _amount(source, "lagRecords")),
        ("{} s behind", _amount(source, "lagSecs")),
    ):
        lines += [] if found is None else [said.format(brief(found))]
    return "\n".join(lines)


def _legend(y: float, activities: Collection[str]) -> str:
    parts, x = [], _MARGIN
    for activity in ACTIVITIES:
        if activity in activities or activity in ("busy", "blocked", "idle"):
            parts.append(f'<rect class="{activity}" x="{x:g}" y="{y:g}" width="10" height="10" rx="2"/>')
            parts.append(f'<text class="legend" x="{x + 15:g}" y="{y + 9:g}">{activity}</text>')
            x += 15 + width_of(activity, TEXT_SIZE) + 14
    return "".join(parts)
