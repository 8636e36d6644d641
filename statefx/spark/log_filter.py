"""Lines of Spark's own log that would mislead about our queries, and are left out.

- "Current batch is falling behind. The trigger interval is 1000 milliseconds": our default is the *least* time between
  two transactions, so no batch is ever behind it. (Without an interval, Spark would look for new input every 10 ms.)
- "Failed to cancel job group <run>. Cannot find active jobs for it": Spark cancels a query's jobs twice when it is
  stopped, and warns where there are none, as is usual after we have waited for the last one.

A filter on the appenders, which only sees what would be written. One on Spark's loggers would give these a
configuration of their own, and then pyspark's shell shows all their INFO lines.
"""

from __future__ import annotations

import contextlib
import re
import threading
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

_RUNS_KEPT = 8
"""Spark writes the second kind a little after the query has ended, so the runs before are remembered for a while."""

_lock = threading.Lock()
_runs: dict[str, int | None] = {}
_filters: list[tuple[Any, Any]] = []
"""The filter that is there, with the JVM it is in: a stopped session's may have gone, and its objects with it."""


def hide_misleading(context: SparkContext, run: str, interval_ms: int | None = None) -> None:
    """Keep out of Spark's log what would mislead about a run of a query.

    Parameters
    ----------
    context : SparkContext
    run : str
        Its id, which Spark takes for the group of its jobs.
    interval_ms : int or None
        Its trigger's interval, if the user has not asked for one; None: warn of batches that fall behind.
    """
    with _lock:
        _runs.pop(run, None)
        _runs[run] = interval_ms
        while len(_runs) > _RUNS_KEPT:
            del _runs[next(iter(_runs))]
        # log4j may be replaced by something else, and the context may be gone: then Spark says what it says
        with contextlib.suppress(Py4JError, TypeError, AttributeError):
            _replace_filters(context)


def _replace_filters(context: Any) -> None:
    jvm = context._jvm
    appenders = list(
        jvm.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration().getAppenders().values()
    )
    results = jvm.java.lang.Class.forName("org.apache.logging.log4j.core.Filter$Result")
    deny, neutral = (results.getField(name).get(None) for name in ("DENY", "NEUTRAL"))
    create = jvm.org.apache.logging.log4j.core.filter.RegexFilter.createFilter
    created = create(pattern(_runs), None, False, deny, neutral)
    for appender in appenders:
        appender.addFilter(created)
    for where, former in _filters:
        if where is jvm:
            for appender in appenders:
                appender.removeFilter(former)
    _filters[:] = [(jvm, created)]


def pattern(runs: dict[str, int | None]) -> str:
    """Return the regular expression that matches the lines to leave out."""
    groups = "|".join(re.escape(run) for run in runs)
    found = [rf"Failed to cancel job group (?:{groups})\."]
    intervals = {interval for interval in runs.values() if interval is not None}
    found += [rf"falling behind\. The trigger interval is {interval} milliseconds" for interval in sorted(intervals)]
    return f".*(?:{'|'.join(found)}).*"
