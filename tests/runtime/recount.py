"""Windows, from lists of all rows: nothing is shared, nothing merged, nothing kept for later."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta

from statefx import Count

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def at(secs):
    return NOON + timedelta(seconds=secs)


def secs_of(time):
    return None if time is None else (time - NOON).total_seconds()


KINDS = {
    "tumbling": (10, 10),
    "sliding": (20, 10),
    "sliding, with panes of 1 s": (13, 5),
    "session": 6,
    "counted": Count(3),
    "counted, sliding": (Count(4), Count(2)),
    "counted, with blocks of 1": (Count(5), Count(3)),
}


def windowed(bolt, kind):
    given = KINDS[kind]
    if kind == "session":
        return bolt.withSessionWindow(timedelta(seconds=given))
    if isinstance(given, Count):
        return bolt.withTumblingWindow(given)
    length, slide = (each if isinstance(each, Count) else f"{each} seconds" for each in given)
    return bolt.withWindow(length, slide)


class Recount:
    def __init__(self, kind):
        self.kind, self.given = kind, KINDS[kind]
        self.rows = defaultdict(list)  # by key: (secs, number, watermark when it came)
        self.before = float("-inf")  # the watermark, before the transaction
        self.found, self.late = [], []
        self.fired = defaultdict(dict)  # by key: start -> numbers

    def take(self, rows, watermark):
        """Count one transaction: (key, secs, number) of its rows, and the watermark at its end, None if unknown."""
        for key, secs, number in rows:
            if self.kind.startswith("counted"):
                self.count(key, number)
            elif self.kind == "session":
                self.join(key, secs, number)
            elif secs is None or max(self.starts(secs)) + self.length <= self.before:
                self.late.append(number)
            else:
                self.rows[key].append((secs, number, self.before))
        if watermark is not None:
            self.close_sessions(watermark) if self.kind == "session" else self.close(watermark)
            self.before = max(watermark, self.before)

    @property
    def length(self):
        return self.given[0]

    def starts(self, secs):
        length, slide = self.given
        newest = int(secs // slide) * slide
        return [start for start in range(newest, newest - length - slide, -slide) if start <= secs < start + length]

    def close(self, now):
        if self.kind.startswith("counted"):
            return
        length, slide = self.given
        for key, rows_of in self.rows.items():
            ends = {start + length for secs, _, _ in rows_of for start in self.starts(secs)}
            for end in sorted(end for end in ends if self.before < end <= now):
                start = end - length
                inside = sorted(number for secs, number, _ in rows_of if start <= secs < end)
                previous = self.fired[key].get(start - slide, [])
                self.fired[key][start] = inside
                self.found.append(
                    (key, start, end, inside, sorted({*inside} - {*previous}), sorted({*previous} - {*inside}))
                )

    def join(self, key, secs, number):
        gap = self.given
        near = [] if secs is None else [one for one in self.rows[key] if one[0] - gap < secs < one[1] + gap]
        if not near and (secs is None or secs + gap <= self.before):
            self.late.append(number)
            return
        for one in near:
            self.rows[key].remove(one)
        numbers = sorted([number, *(each for one in near for each in one[2])])
        times = [secs, *(one[0] for one in near), *(one[1] for one in near)]
        self.rows[key].append((min(times), max(times), numbers))

    def close_sessions(self, now):
        for key, sessions in self.rows.items():
            for one in [one for one in sessions if one[1] + self.given <= now]:
                sessions.remove(one)
                self.found.append((key, one[0], one[1] + self.given, one[2], one[2], []))

    def count(self, key, number):
        length, slide = (self.given, self.given) if isinstance(self.given, Count) else self.given
        length, slide = length.tuples, slide.tuples
        self.rows[key].append(number)
        numbers = self.rows[key]
        if len(numbers) % slide == 0:
            stop = len(numbers)
            start = max(0, stop - length)
            expired = numbers[max(0, stop - slide - length) : start]
            new = numbers[stop - slide :]
            self.found.append((key, None, None, *map(sorted, (numbers[start:], new, expired))))
