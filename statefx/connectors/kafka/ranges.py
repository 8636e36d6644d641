"""What transactions read of each partition: planned on the driver, range by range."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from statefx.connectors.kafka.losses import Losses, cut_off
from statefx.connectors.kafka.planning import BEGINNING, Cluster, Limits, Shares, Start, first_offsets
from statefx.connectors.kafka.rows import TopicPartition
from statefx.errors import FailedException

logger = logging.getLogger("statefx")

_DOUBT_AGAIN_SECS = 0.1
"""Between two looks of a start while it is not believed yet that a topic is not there."""

NO_TOPIC = TopicPartition("", 0)
"""Stands in the log for a first run that finds no topic, and is to begin later than the beginning (`start`). The next
run sees by it that it is not the first one: it reads a topic that was made meanwhile from its beginning."""


def ends_of(read: Iterable[Any]) -> dict[TopicPartition, int]:
    """Return how far partitions were read, by the metadata of their last ranges."""
    return {tp: said["end"] for said in read if (tp := TopicPartition(said["topic"], said["partition"])) != NO_TOPIC}


class Ranges:
    """Which number stands for which partition, and the next range of each.

    The metadata of a range is ``topic``, ``partition``, the ``id`` of the topic, ``start`` and ``end`` (the offset
    behind the last); the epochs of the leaders that had the records before these two, ``start_epoch`` and
    ``end_epoch``, where they are known; and ``gap``, how many offsets before the range are passed over, if any.

    Parameters
    ----------
    cluster : Cluster
    start : Start
        Where a first run begins.
    limits : Limits
    losses : Losses
    """

    def __init__(
        self,
        cluster: Cluster,
        start: Start,
        limits: Limits,
        losses: Losses,
    ) -> None:
        self.cluster = cluster
        self._start = start
        self._losses = losses
        self._shares = Shares(limits)
        self._numbers: list[TopicPartition | None] = []
        self._first: dict[TopicPartition, int] | None = None
        """Where a first run begins, as of the first look: partitions that come later begin at their beginning."""
        self._until: dict[tuple[TopicPartition, str], int] | None = None
        """Where this run ends, if it is `bounded`, by partition and topic's id; None before the first look."""
        self.bounded = False
        """Whether this run reads only what was there when it began."""
        self._has_looked = False
        """Whether the start has looked, and no transaction has used that yet."""
        self.ends: dict[TopicPartition, int] = {}
        """The ends of partitions, as of the last look; without those whose leader did not answer."""
        self.known_ends: dict[TopicPartition, int] = {}
        """The ends of all partitions, as of the last look at each."""
        self._read: dict[TopicPartition, Any] = {}
        """The last range of each partition with which a transaction is known to have begun."""
        self._planned: dict[TopicPartition, Any] = {}
        """The ranges behind these that were planned, and with which no transaction is known to have begun."""
        self._left: set[TopicPartition] = set()
        """Partitions of topics that are no longer named, or were deleted."""

    def close(self) -> None:
        """End the clients."""
        self.cluster.close()

    def begin(self, metadata: Mapping[int, Any]) -> None:
        """Take over from the metadata which number stands for which partition, and look what there is.

        So the start raises where a topic is not there, or access is denied. Where no broker answers, it does not: the
        query waits, and its status says so.
        """
        self._numbers = [None] * (max(metadata, default=-1) + 1)
        for number, said in metadata.items():
            self._numbers[number] = tp = TopicPartition(said["topic"], said["partition"])
            self._read[tp] = said
        while not self._has_looked:
            try:
                self.count()
                self._has_looked = True
            except FailedException:
                if not self.cluster.doubts:
                    return
                time.sleep(_DOUBT_AGAIN_SECS)

    def of(self, tp: TopicPartition, last: Any) -> Any:
        """Look at one partition alone, and return its next range; None if there is none, or it is not there yet."""
        self._numbers, self._read = [tp], {} if last is None else {tp: last}
        self._look()
        return self.plan(0, last)

    def to_plan(self) -> list[int]:
        """Return the numbers of partitions that may have a next range: a look costs nothing for the others."""
        return [number for number, tp in enumerate(self._numbers) if tp is None or not self._is_done(tp)]

    def _is_done(self, tp: TopicPartition) -> bool:
        """Tell whether a partition was read to its end, or its topic is no longer there to be read."""
        topic_id, said = self.cluster.ids.get(tp.topic), self._read.get(tp)
        if tp in self._left:
            return topic_id is None
        if said is None or tp in self._planned:  # whether a transaction has begun with that, `plan` is told
            return False
        until = 0 if self._until is None else self._until.get((tp, said["id"]), 0)  # more, if a broker tells less now
        return bool(topic_id == said["id"] and self.ends.get(tp) == said["end"] >= until)

    def count(self) -> int:
        """Look what there is, and return how many partitions there have been; new ones come last."""
        if self._has_looked:  # a moment ago, by the start
            self._has_looked = False
            return len(self._numbers)
        cluster = self.cluster
        cluster.discover({tp.topic for tp in self._read | self._planned if tp != NO_TOPIC})
        known = set(self._numbers)
        new = iter([tp for tp in cluster.partitions if tp not in known])
        self._numbers = [next(new, None) if tp is None else tp for tp in self._numbers]
        self._numbers += new
        self._look()
        if not self._numbers and self._start != "earliest":
            self._numbers.append(NO_TOPIC)
        return len(self._numbers)

    def _look(self) -> None:
        """Ask what there is to be read of all partitions, and share out what a transaction may read."""
        cluster, read, listed = self.cluster, self._read | self._planned, set(self.cluster.partitions)
        numbers = {tp: number for number, tp in enumerate(self._numbers) if tp is not None and tp in listed}
        fresh = [tp for tp in numbers if tp not in read]
        if self._first is None:
            # A first run begins where it was told to. What is found later is all new.
            known = bool(read) or self._start == "earliest"
            self._first = {} if known else first_offsets(cluster, self._start, fresh)
        self.ends = cluster.ends(numbers)
        self.known_ends |= self.ends
        self._starts = self._begin_fresh(fresh)
        starts = self._starts | {tp: read[tp]["end"] for tp in numbers if tp in read}
        self._end_now(starts)
        lags = {tp: lag for tp, start in starts.items() if tp in self.ends and (lag := self._readable(tp) - start) > 0}
        told = [tp for tp in lags if tp in self._starts and self._start == "earliest"]
        self._beginnings = cluster.beginnings(lags.keys() - told)
        self._share = self._shares.of(
            {numbers[tp]: lag for tp, lag in lags.items() if tp in self._beginnings or tp in told}
        )

    def _begin_fresh(self, fresh: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where partitions begin that nothing was read of; without those whose leader would have to tell it."""
        assert self._first is not None
        found = self.cluster.beginnings(tp for tp in fresh if tp not in self._first and tp in self.ends)
        return found | {tp: self._first[tp] for tp in fresh if tp in self._first}

    def _end_now(self, starts: Mapping[TopicPartition, int]) -> None:
        """Note where this run ends; later if a broker that has just started says that less is there than was read."""
        ends = {tp: self.ends.get(tp, at) for tp, at in starts.items()}  # one that is away has ended for this run
        if self.bounded and self._until is None and all(ends[tp] >= at for tp, at in starts.items()):
            self._until = {self._identity(tp): end for tp, end in (ends | self.ends).items()}

    def _readable(self, tp: TopicPartition) -> int:
        """Return how far a partition is read, at most."""
        end = self.ends[tp]  # a range that ends behind it would stand in the log, and be waited for by all runs
        return end if self._until is None else min(end, self._until.get(self._identity(tp), -1))

    def _identity(self, tp: TopicPartition) -> tuple[TopicPartition, str]:
        return tp, self.cluster.ids[tp.topic]

    def plan(self, partition: int, last: Any) -> Any:
        """Return the next range of offsets.

        The first one of a partition says where it begins, also if there is nothing in it yet: ``latest`` would be
        another offset after a restart.
        """
        tp = self._numbers[partition]
        if tp is None:
            return None
        if tp == NO_TOPIC:
            return None if last is not None else {**NO_TOPIC._asdict(), "id": "", "start": 0, "end": 0}
        former = self._planned.get(tp, self._read.get(tp))
        self._planned.pop(tp, None)
        self._read |= {tp: last} if last is not None else {}
        if last != former:  # what was planned last never began: the shares were those of other ranges
            self._planned.clear()
            self._look()
        if (found := self._begin(tp, last)) is None:
            return None
        if self._until is not None:
            if (bound := self._until.get(self._identity(tp))) is None:
                return None  # it came later: the next run reads it from its beginning
            # Else this run would end before its end, as a broker that starts tells smaller ones.
            shorter = tp in self.ends and self.ends[tp] < bound
            self.cluster.doubted(f"{tp} ends before where it ended when this run began", shorter)
        start, gap = found
        end = start
        if tp in self.ends:
            end = max(start, min(self._readable(tp), start + self._share.get(partition, 0)))
        topic_id, epoch = self.cluster.ids[tp.topic], self.cluster.epochs.get(tp)
        goes_on = last is not None and (start, topic_id) == (last["end"], last["id"])
        if goes_on and end == start:
            return None
        planned = {"topic": tp.topic, "partition": tp.partition, "id": topic_id, "start": start, "end": end}
        start_epoch = last.get("end_epoch") if goes_on else None
        more = {"gap": gap or None, "start_epoch": start_epoch, "end_epoch": epoch}
        self._planned[tp] = planned | {name: said for name, said in more.items() if said is not None}
        return self._planned[tp]

    def _begin(self, tp: TopicPartition, last: Any) -> tuple[int, int] | None:
        """Return where a batch begins, and how many offsets before that are passed over; None if none does."""
        if last is not None:
            return self._went_on(tp, last)
        if tp not in self._starts:
            return None
        return self._behind_gap(tp, self._starts[tp])

    def _behind_gap(self, tp: TopicPartition, start: int) -> tuple[int, int]:
        first = self._beginnings.get(tp, start)
        if first <= start:
            return start, 0
        self._losses.pass_over(tp, start, first)
        return first, first - start

    def _went_on(self, tp: TopicPartition, last: Any) -> tuple[int, int] | None:
        """Return where a partition goes on, and how many offsets before that are passed over; None if it does not."""
        cluster, start = self.cluster, last["end"]
        if not cluster.reads(tp.topic):
            if tp not in self._left:
                self._left.add(tp)
                logger.warning(
                    "%s was read up to offset %d, and is read no more: topics= does not name its topic. When it is "
                    "named again, it goes on there", tp, start,
                )  # fmt: skip
            return None
        topic_id = cluster.ids.get(tp.topic)
        if cluster.doubted(f"there is no topic {tp.topic!r}", topic_id is None):
            self._losses.deleted(tp, start)
            self._left.add(tp)
            return None
        self._left.discard(tp)
        if topic_id != last["id"]:
            self._losses.made_again(tp, start)
            # The new one may have fewer partitions.
            return (cluster.offsets({tp: BEGINNING})[tp], 0) if tp in self.ends else None
        if tp not in self.ends:
            return None  # its leader is away
        if cluster.doubted(f"{tp} ends before the offset up to which it was read", self.ends[tp] < start):
            raise cut_off(tp, start, f"now ends at {self.ends[tp]}")
        return self._behind_gap(tp, start)
