"""The shape of an observation document: what readers may count on in one that lies beside the log.

A tool, a copy that was cut, or another release may have written it. Whoever shows a document looks at its shape once,
here, and at no value after that. What no reader looks at may be anything, and more may be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

_Number = int | float | None
_Text = str | None
_Shares = dict[str, float] | None
_Amounts = dict[str, float] | None


class _Said(TypedDict):
    state: str
    sentence: str


class _Health(_Said, total=False):
    since: _Text
    remedy: _Text


class _Driver(TypedDict, total=False):
    host: _Text
    pid: int | None
    machine: _Text
    began: _Text


class _Node(TypedDict, total=False):
    kind: str
    level: int
    tasks: int | None
    operator: _Text
    provider: _Text


class _Named(_Node):
    name: str


_Edge = TypedDict("_Edge", {"from": str, "to": str, "stream": str})


class _Graph(TypedDict):
    components: list[_Named]
    edges: list[_Edge]


class _Task(TypedDict, total=False):
    task: int
    activity: _Shares
    rowsIn: _Number
    rowsOut: _Number
    rowsInPerSec: _Number
    msPerSec: _Amounts


class _Component(TypedDict, total=False):
    activity: _Shares
    rowsIn: _Number
    rowsOut: _Number
    rowsInPerSec: _Number
    rowsOutPerSec: _Number
    late: _Number
    setAside: _Number
    stateKeys: _Number
    stateBytes: _Number
    watermark: _Text
    freshnessSecs: _Number
    tasks: list[_Task]


class _Time(TypedDict, total=False):
    idleAfterSecs: _Number
    newest: _Text
    time: _Text
    heldBackBy: _Text
    behindSecs: _Number
    silentSecs: _Number


class _Source(TypedDict, total=False):
    lagRecords: _Number
    lagSecs: _Number
    rateIn: _Number
    rateOut: _Number
    etaSecs: _Number
    eventTime: _Time


class _Sink(TypedDict, total=False):
    txid: int | None
    rows: _Number
    bytes: _Number
    commitMs: _Number
    stuckSince: _Text
    why: _Text


class _Ends(TypedDict, total=False):
    rowsPerSec: _Number
    rows: _Number


class _Attempt(TypedDict):
    txid: int
    attempt: int
    outcome: str


class _Transaction(_Attempt, total=False):
    began: _Text
    ended: _Text
    durationMs: _Amounts
    rows: _Number
    reason: _Text
    phase: _Text


class _Work(TypedDict):
    component: str
    task: int
    beganMs: float
    endedMs: float
    phases: list[tuple[str, float, float]]


class _Worked(TypedDict):
    txid: int
    attempt: int
    count: int
    tasks: list[_Work]


class _Exception(TypedDict, total=False):
    at: _Text
    component: _Text
    task: int | None
    type: _Text
    message: _Text
    traceback: _Text
    count: int


class _Status(TypedDict, total=False):
    runs: int | None
    paused: dict[str, Any] | None
    stuck: dict[str, Any] | None


class _Document(TypedDict, total=False):
    generation: int
    topology: _Text
    lineage: _Text
    driver: _Driver | None
    checkpoint: _Text
    startedAt: _Text
    writtenAt: _Text
    endedAt: _Text
    error: _Text
    health: _Health
    status: _Status | None
    graph: _Graph | None
    ratesOverSecs: _Number
    components: dict[str, _Component] | None
    edges: list[_Ends] | None
    sources: dict[str, _Source] | None
    sinks: dict[str, _Sink] | None
    transactions: list[_Transaction] | None
    tasksOf: list[_Worked] | None
    exceptions: list[_Exception] | None
    metrics: list[dict[str, Any]] | None
    recent: list[dict[str, Any]] | None
    config: dict[str, Any] | None
    leftOut: dict[str, int] | None


def oddity(document: Mapping[str, Any]) -> str:
    """Return where a document has another shape than readers know, and how, or "" if it has none.

    >>> oddity({"generation": 1, "transactions": {}})
    'transactions: Expected `array | null`, got `object`'
    """
    try:
        msgspec.convert(document, _Document)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        what, _, where = str(error).partition(" - at `$.")
        return f"{where.rstrip('`')}: {what}" if where else what
    return ""
