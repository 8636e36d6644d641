"""Metrics of users: what a task has counted in an attempt, and the totals of counters, which the log keeps.

Of counters COMMITTING has what the transaction adds to each, and the log's state the totals: so a transaction that is
decided counts once, whoever commits it, and one that is rolled back never. Gauges and histograms are of the driver that
lives, and no record has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Number = int | float

Totals = Mapping[str, Mapping[str, Number]]
"""Component -> series -> number."""

TOTALS_MAX = 1000
"""Series of counters in one topology; each is some 60 bytes in every CHECKPOINT of the log."""

OTHERS_MAX = 100
"""Series that stand for those beyond the limit: each name has one of its own, and names have no end either."""

OTHER = "other"
"""The value of each label of a series that stands for those beyond the limit; and the name of the last one of all."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What one task has counted in an attempt, by series (`series_of`)."""

    counters: Mapping[str, Number] = field(default_factory=dict)  # what is added
    gauges: Mapping[str, Number] = field(default_factory=dict)  # the last value
    # Upper bounds of buckets, how many are in each, with those above the last one; and the sum of all.
    histograms: Mapping[str, tuple[tuple[float, ...], tuple[int, ...], float]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.counters or self.gauges or self.histograms)


NOTHING_COUNTED = Counted()


def series_of(name: str, labels: Mapping[str, str]) -> str:
    """Return the text of a series, which is its key in acks and in the log.

    >>> series_of("refused", {"reason": "card", "bank": "a"})
    'refused{"bank":"a","reason":"card"}'
    """
    return name + json.dumps(dict(sorted(labels.items())), separators=(",", ":")) if labels else name


def parts_of(series: str) -> tuple[str, dict[str, str]]:
    """Return the name and the labels of a series.

    >>> parts_of('refused{"bank":"a","reason":"card"}')
    ('refused', {'bank': 'a', 'reason': 'card'})
    """
    name, brace, labels = series.partition("{")
    return name, json.loads(brace + labels) if brace else {}


def other_of(series: str) -> str:
    """Return the series that stands for those beyond the limit.

    >>> other_of('refused{"bank":"a","reason":"card"}'), other_of("refused_17")
    ('refused{"bank":"other","reason":"other"}', 'other')
    """
    name, labels = parts_of(series)
    return series_of(name, dict.fromkeys(labels, OTHER)) if labels else OTHER


def placed(series: str, number: int, most: int, is_known: Callable[[str], bool]) -> str:
    """Return under which series something is counted, where there are `number` and should be `most`."""
    if number >= most and not is_known(series):
        series = other_of(series)
        if number >= most + OTHERS_MAX and not is_known(series):
            return OTHER
    return series


def decided(totals: Totals, counted: Iterable[tuple[str, Mapping[str, Number]]]) -> dict[str, dict[str, Number]]:
    """Return what a transaction adds to the counters of each component, `counted` by its tasks.

    A series that would be one too many becomes that of all others, before it is written (rule 16.4).
    """
    added: dict[str, dict[str, Number]] = {}
    number = sum(map(len, totals.values()))
    for component, counters in counted:
        for series, amount in counters.items():
            known, own = totals.get(component, {}), added.setdefault(component, {})
            series = placed(series, number, TOTALS_MAX, lambda each: each in known or each in own)  # noqa: B023
            if series not in known and series not in own:
                number += 1
            own[series] = own.get(series, 0) + amount
    return added


def then(totals: Totals, added: Totals) -> Totals:
    """Return the totals after a transaction.

    >>> then({"pay": {"refused": 2}}, {"pay": {"refused": 1}, "bill": {"sent": 5}})
    {'pay': {'refused': 3}, 'bill': {'sent': 5}}
    """
    if not added:
        return totals
    found = {component: dict(own) for component, own in totals.items()}
    for component, counters in added.items():
        own = found.setdefault(component, {})
        for series, amount in counters.items():
            own[series] = own.get(series, 0) + amount
    return found
