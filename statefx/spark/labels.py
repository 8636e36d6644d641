"""What Spark's UI shows of our jobs and stages: topology, transaction and bolts instead of a line of py4j.

The description of a job and its stages is a local property of the thread. A stage's own name is the call site at which
its RDD was made, and Spark makes all RDDs of a plan in one go. So the plan's exchanges are asked for theirs one after
the other, lowest first, each under a call site of its own; the last stage takes the one that is set at the end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext
from pyspark.serializers import BatchedSerializer, CPickleSerializer
from pyspark.sql import DataFrame
from pyspark.util import _load_from_socket

from statefx.plan.levels import INGEST, Plan
from statefx.plan.segments import segments_of
from statefx.protocol.commands import Segment
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.order import ResolutionOrder

_DESCRIPTION = "spark.job.description"
_LONG = "callSite.long"
STAGE_NAME = "callSite.short"
"""The local property that names the stages which are made while it is set."""

_SHOWN = 120
"""Characters of bolts in one name: a topology may have hundreds of bolts, and the UI's tables don't fold."""

_NODE = re.compile(r"^(\d+) ([ :]*[:+]- )?(?:\*\(\d+\) )?(\w+)")


class Labels:
    """What the jobs of one topology are called.

    Parameters
    ----------
    name : str
        The topology's.
    plan : Plan
    details : str
        What the UI shows where a stage is unfolded.
    """

    def __init__(self, name: str, plan: Plan, details: str) -> None:
        self._name = name
        self._details = details
        read = f"read {_short(', '.join(plan.streams))}"
        self._bolts = {
            segment: [_bolts(plan, level) for level in part.levels] for segment, part in segments_of(plan).items()
        }
        before = {Segment.WHOLE: [read], Segment.PROCESSING: [read], Segment.ORDERED: []}
        behind = {Segment.WHOLE: [], Segment.PROCESSING: ["acks"], Segment.ORDERED: []}
        self._stages = {each: [*before[each], *bolts, *behind[each]] for each, bolts in self._bolts.items()}

    def name_segment(self, own: Any, rows: DataFrame, segment: Segment, attempt: TransactionAttempt) -> list[Any]:
        """Name the job of a segment of an attempt, and each of its stages.

        Parameters
        ----------
        own : java.util.Properties
            The thread's local properties.
        rows : DataFrame
            From `Chain.over`.
        segment : Segment
        attempt : TransactionAttempt

        Returns
        -------
        list of ShuffleDependency
            Those of the plan, lowest first.
        """
        names, levels = self.name_stages(own, segment, attempt), len(self._bolts[segment])
        plan = rows._jdf.queryExecution().executedPlan()
        found = exchanges(plan.numberedTreeString(), levels)
        shuffles = []
        for name, position in zip(names[-1 - len(found) : -1], found, strict=True):
            own.setProperty(STAGE_NAME, name)
            shuffles.append(plan.apply(position).shuffleDependency())
        own.setProperty(STAGE_NAME, names[-1])
        return shuffles

    def name_stages(self, own: Any, segment: Segment, attempt: TransactionAttempt) -> list[str]:
        """Name the job of a segment of an attempt; return the names of its stages, lowest first.

        The first one is that of a shuffle below the first level, which not all plans have.
        """
        text = _text(attempt)
        own.setProperty(_DESCRIPTION, f"{self._name} {text}: {_short(' > '.join(self._bolts[segment]))}")
        own.setProperty(_LONG, self._details)
        return [f"{stage} {text}" for stage in self._stages[segment]]

    def name_hooks(self, own: Any, order: ResolutionOrder) -> None:
        """Name the job that runs a commit or a rollback, and its stage."""
        counts = Counter(component for component, _ in order.tasks)
        doing = _short(f"{order.resolution} {', '.join(f'{name}[{count}]' for name, count in counts.items())}")
        text = _text(order.attempt)
        own.setProperty(_DESCRIPTION, f"{self._name} {text}: {doing}")
        own.setProperty(_LONG, self._details)
        own.setProperty(STAGE_NAME, f"{doing} {text}")


@contextmanager
def own_properties(context: SparkContext) -> Iterator[Any]:
    """Let this thread have local properties of its own for as long as the block lasts.

    A streaming query goes on with what it had: its description, and the call site that names the stages of the
    user's own plan.

    Yields
    ------
    java.util.Properties
        A copy of what the thread had.
    """
    inner = context._jsc.sc()
    kept = inner.getLocalProperties()
    own = kept.clone()
    inner.setLocalProperties(own)
    try:
        yield own
    finally:
        if context._jsc is not None:  # else somebody has stopped it
            inner.setLocalProperties(kept)


def collected(frame: DataFrame) -> list[bytes]:
    """Return the payloads of ``frame.collect()``; that would put a call site of its own in the place of ours."""
    rows = loaded(frame._jdf.collectToPython(), BatchedSerializer(CPickleSerializer()))  # type: ignore[no-untyped-call]
    return [bytes(row.payload) for row in rows]


def loaded(served: Any, serializer: Any) -> list[Any]:
    """Read what the JVM serves at a socket."""
    found: Any = _load_from_socket(served, serializer)
    if not hasattr(found, "__enter__"):  # up to Spark 4.2 it yields the rows themselves
        return list(found)
    with found as rows:
        return list(rows)


def exchanges(tree: str, levels: int) -> list[int]:
    """Find the shuffles of a chain of stages in the text of its physical plan.

    Parameters
    ----------
    tree : str
        Spark's ``numberedTreeString``.
    levels : int
        How many stages of ours there are, each a MapInArrow.

    Returns
    -------
    list of int
        Numbers of the Exchange nodes, lowest first: the one that feeds the first level, if there is one, those between
        levels, and the one at the cut. Empty if the plan has another form.
    """
    # The text is one call into the JVM; to walk the tree would be several for each node, in every transaction.
    found: list[int] = []
    above = levels
    for line in tree.splitlines():
        node = _NODE.match(line)
        if node is None:
            continue  # an expression of the user's with a line break in it
        if ":" in (node[2] or ""):  # several inputs: what comes now is the user's own
            break
        if node[3] == "MapInArrow" and above:
            above -= 1
        elif node[3] == "Exchange":
            found.insert(0, int(node[1]))
            if not above:
                break
    return found if not above and len(found) >= levels - 1 else []


def _bolts(plan: Plan, level: int) -> str:
    """Name the bolts whose tasks run at a level, with how many there are of each."""
    chains = {tuple(component for component, _ in chain): None for chain in plan.levels[level]}
    return _short(", ".join(" > ".join(_bolt(plan, component) for component in chain) for chain in chains))


def _bolt(plan: Plan, component: str) -> str:
    return f"{component.removeprefix(INGEST)}[{plan.components[component].parallelism}]"


def _text(attempt: TransactionAttempt) -> str:
    return f"tx {attempt.txid} attempt {attempt.attempt}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
