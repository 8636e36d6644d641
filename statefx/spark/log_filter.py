"""Lines of Spark's own log that would mislead about our queries, and are left out.

- "Current batch is falling behind. The trigger interval is 1000 milliseconds": our default is the *least* time between
  two transactions, so no batch is ever behind it. (Without an interval, Spark would look for new input every 10 ms.)
- "Failed to cancel job group <run>. Cannot find active jobs for it": Spark cancels a query's jobs twice when it is
  stopped, and warns where there are none, as is usual after we have waited for the last one.
"""

from __future__ import annotations

import re
import threading
from typing import Any

from pyspark import SparkContext

from statefx.spark.internals import deny_log_lines

_RUNS_KEPT = 8
"""Spark writes the second kind a little after the query has ended, so the runs before are remembered for a while."""

_lock = threading.Lock()
_runs: dict[str, int | None] = {}
_filter: Any = None
"""What the last call of `deny_log_lines` returned."""


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
    global _filter  # noqa: PLW0603 - log4j is the process's own
    with _lock:
        _runs.pop(run, None)
        _runs[run] = interval_ms
        while len(_runs) > _RUNS_KEPT:
            del _runs[next(iter(_runs))]
        _filter = deny_log_lines(context, pattern(_runs), _filter)


def pattern(runs: dict[str, int | None]) -> str:
    """Return the regular expression that matches the lines to leave out."""
    groups = "|".join(re.escape(run) for run in runs)
    found = [rf"Failed to cancel job group (?:{groups})\."]
    intervals = {interval for interval in runs.values() if interval is not None}
    found += [rf"falling behind\. The trigger interval is {interval} milliseconds" for interval in sorted(intervals)]
    return f".*(?:{'|'.join(found)}).*"
