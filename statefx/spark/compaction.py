"""Which compacted lists of files Spark looks for in the folder of a file source.

Spark's ``CompactibleFileStreamLog`` names the list of every n-th batch ``<number>.compact``: it holds all before it.
Spark writes n down nowhere. Each start finds it again, from the names of the compacted lists and the setting
``spark.sql.streaming.fileSource.log.compactInterval``: it is the distance of the newest two. Of one alone Spark derives
n, not always that of the last run: of ``19.compact``, with 10 as the setting, it derives 20. The transaction log gives
up all compacted lists but one where one is enough, and the setting may be changed, so two starts may find different n.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

SETTING = "spark.sql.streaming.fileSource.log.compactInterval"
DEFAULT = 10
"""Spark's own."""


def missing_compacted(compacted: Set[int], newest: int, setting: int) -> range:
    """Return the numbers of the compacted lists that Spark's start will look for, and that were never written.

    With these too, Spark finds the same interval by their distance. All are later than those that are there; usually
    there are none to return. `newest` is the number of the newest list, compacted or not.
    """
    interval = _interval(compacted, setting)
    last = max(compacted, default=-1)
    if (last + 1) % interval:  # of no history that Spark has written: nothing that is added would make it one
        return range(0)
    return range(last + interval, newest + 1, interval)


def _interval(compacted: Set[int], setting: int) -> int:
    """Return the interval with which Spark's start will read, as ``CompactibleFileStreamLog.compactInterval`` does."""
    if not compacted:
        return setting
    *before, last = sorted(compacted)
    if before:
        return last - before[-1]
    if setting < (last + 1) // 2:
        return next((each for each in range(setting, (last + 1) // 2 + 1) if (last + 1) % each == 0), last + 1)
    return last + 1


def united(lists: Iterable[str | None]) -> str | None:
    """Return the compacted list of these, in their order; None if one is missing, or their formats are not the same."""
    parts = [each.partition("\n") if each is not None else ("", "", "") for each in lists]
    formats = {head for head, _, _ in parts}
    if len(formats) != 1 or "" in formats:
        return None
    return "\n".join([*formats, *(entries for _, _, entries in parts if entries)])
