"""Which partitions there are, how far each can be read, and what a transaction reads of each; on the driver."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from statefx.connectors.kafka.calls import REQUEST_SECS, answer, close_consumer
from statefx.connectors.kafka.clients import Clients
from statefx.connectors.kafka.group import Group
from statefx.connectors.kafka.library import has_code, kafka
from statefx.connectors.kafka.rows import Place
from statefx.errors import FailedException, InputError

if TYPE_CHECKING:
    from confluent_kafka import Consumer

logger = logging.getLogger("statefx")

END, _BEGINNING = -1, -2
"""What the protocol has in the place of a time."""

_EPOCH, _MILLI = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)

DISCOVERY_SECS = 10.0
"""The pause between two looks for new partitions and topics. A look is one request for all topics."""

DOUBT_SECS = 5.0
"""How long a broker must say what would end the query before it is believed. One that has just started does not know
all topics yet, and its partitions may end before where they ended; both pass."""

SAMPLE_ROWS = 50
SAMPLE_SECS = 1.0
SAMPLE_AGAIN_SECS = 30.0
"""How the size of records is found out where bytes are bounded: no request tells it."""

SHOWN = 100
"""Partitions whose offsets are shown with each transaction: the last hundred transactions are kept."""

Start = str | datetime | Mapping[str, Mapping[int, int]]


def is_named(topic: str, topics: Sequence[str] | re.Pattern[str]) -> bool:
    """Tell whether a topic is one of those that are named, or fits the pattern."""
    return topics.fullmatch(topic) is not None if isinstance(topics, re.Pattern) else topic in topics


class Limits(NamedTuple):
    """What one transaction reads at most; None: as much as there is."""

    rows: int | None
    bytes: int | None
    partitions: int | None


class Cluster:
    """The driver's view of the topics.

    Parameters
    ----------
    clients : Clients
    group : str
        The consumer group that `tell_group` commits offsets to.
    topics : sequence of str or re.Pattern
    clock : callable
        Seconds.
    """

    def __init__(
        self, clients: Clients, group: str, topics: Sequence[str] | re.Pattern[str], clock: Any = time.monotonic
    ) -> None:
        # It reads no more than a few records, to see how large they are.
        small = {"fetch.message.max.bytes": 65_536, "queued.max.messages.kbytes": 1_024, "socket.timeout.ms": 10_000}
        self._group = Group(group)
        self.consumer: Consumer = clients.consumer(group, **small, on_commit=self._group.on_commit)
        self._clients = clients
        self._admin = clients.admin()
        self._topics = topics
        self._clock = clock
        self._looked: float | None = None
        self._doubts: dict[str, float] = {}
        self.ids: dict[str, str] = {}
        """The ids of topics: a topic that is made again has another one."""
        self.epochs: dict[Place, int] = {}
        """The epochs of the leaders that had the ends: they tell records from others at the same offsets."""
        self.places: list[Place] = []

    def discover(self, read: Iterable[str]) -> None:
        """Look which partitions there are, if the last look was long ago.

        Parameters
        ----------
        read : iterable of str
            Topics that were read, which may be gone, or no longer be named.
        """
        now = self._clock()
        if self._looked is not None and now < self._looked + DISCOVERY_SECS and not self.doubts:
            return
        wanted, read = self._wanted(), {topic for topic in read if self.reads(topic)}
        names = sorted({*wanted, *read})
        if not names and self._looked is None:
            logger.warning("no topic matches %r yet; those that come later are read", self._topics.pattern)  # type: ignore[union-attr]
        found = self._described(names)
        missing = [name for name in wanted if name not in found and name not in read]
        if self.doubted("there is no topic that topics= names", bool(missing)):
            raise InputError(
                f"there is no topic {missing[0]!r}, or the user of this client may not see it: create it, give the "
                "user DESCRIBE and READ, or name another one",
                topic=missing[0],
            )
        places = [Place(name, number) for name in names if name in found for number in sorted(found[name][1])]
        # The client looks for new partitions of topics that it knows every 5 minutes, and refuses to ask about others.
        for name in sorted({place.topic for place in set(places) - set(self.places)} & set(self.ids)):
            self._listed(topic=name)
        self.ids, self.places = {name: said[0] for name, said in found.items()}, places
        self._looked = self._clock()
        self._group.repeat(self.consumer, self.ids)

    def reads(self, topic: str) -> bool:
        """Tell whether a topic is one of those that are to be read."""
        return is_named(topic, self._topics)

    def _wanted(self) -> list[str]:
        if not isinstance(self._topics, re.Pattern):
            return list(self._topics)
        return [name for name in self._listed() if self.reads(name) and not name.startswith("__")]

    def _listed(self, **topic: str) -> Mapping[str, Any]:
        """Return what the client now knows of all topics, or of one."""
        try:
            found: Mapping[str, Any] = self.consumer.list_topics(**topic, timeout=REQUEST_SECS).topics
        except kafka().KafkaException as error:
            raise self._clients.failure(error, "the topics can't be listed") from error
        return found

    def _described(self, names: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
        """Return by topic its identity and its partitions; without those that are not there."""
        found: dict[str, tuple[str, list[int]]] = {}
        if not names:
            return found
        asked = self._admin.describe_topics(kafka().TopicCollection(list(names)), request_timeout=REQUEST_SECS)
        for name, future in asked.items():
            try:
                said = answer(future)
            except kafka().KafkaException as error:
                if not has_code(error, "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"):
                    raise self._clients.failure(error, f"topic {name!r} can't be asked about") from error
            else:
                found[name] = str(said.topic_id), [part.id for part in said.partitions]
        return found

    @property
    def doubts(self) -> bool:
        """Whether a broker says something that is not believed yet."""
        return any(self._clock() < since + DOUBT_SECS for since in self._doubts.values())

    def doubted(self, what: str, wrong: bool) -> bool:
        """Tell whether something is wrong; FailedException while it may still pass (`DOUBT_SECS`).

        Parameters
        ----------
        what : str
            A sentence that says what is wrong, the same one at each look.
        wrong : bool
            Whether a broker says so now.
        """
        if not wrong:
            self._doubts.pop(what, None)
            return False
        since = self._doubts.setdefault(what, self._clock())
        if self._clock() < since + DOUBT_SECS:
            raise FailedException(f"{what}, a broker says; one that has just started may be wrong, and is asked again")
        return True

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return how far partitions can be read: with ``read_committed``, their last stable offsets."""
        told = self._told(dict.fromkeys(places, END))
        self.epochs = {place: each.leader_epoch for place, each in told.items() if each.leader_epoch is not None}
        return {place: each.offset for place, each in told.items()}

    def beginnings(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the first offsets that are there."""
        return self.offsets(dict.fromkeys(places, _BEGINNING))

    def offsets(self, times: Mapping[Place, int]) -> dict[Place, int]:
        """Return the offsets of times, or of what stands for the ends of a partition; one request for each broker.

        The client for administrators has a call of its own for this, and it is not to be trusted: while a broker did
        not answer, it told offsets all the same, and it ended the process by a failed assertion.
        """
        return {place: each.offset for place, each in self._told(times).items()}

    def _told(self, times: Mapping[Place, int]) -> dict[Place, Any]:
        try:
            return ask_offsets(self.consumer, times)
        except kafka().KafkaException as error:
            self._looked = None  # a topic may be gone
            raise self._clients.failure(error, "the offsets of partitions can't be asked for") from None

    def tell_group(self, read: Mapping[Place, int]) -> None:
        """Commit to the group what was read, for those who watch it."""
        self._group.tell(self.consumer, read, self.ids)

    def close(self) -> None:
        """Close the client, which waits until the group has the last offsets."""
        close_consumer(self.consumer)


def ask_offsets(consumer: Consumer, times: Mapping[Place, int]) -> dict[Place, Any]:
    """Return what the brokers say of the offsets of times; KafkaException if one of them is not known."""
    if not times:
        return {}
    asked = [kafka().TopicPartition(*place, at) for place, at in times.items()]
    told: list[Any] = consumer.offsets_for_times(asked, timeout=REQUEST_SECS)
    wrong = next((each.error for each in told if each.error is not None), None)
    if wrong is not None:
        raise kafka().KafkaException(wrong)
    return {Place(each.topic, each.partition): each for each in told}


def first_offsets(cluster: Cluster, start: Start, places: Sequence[Place]) -> dict[Place, int]:
    """Return where a first run begins, by partition.

    Raises
    ------
    InputError
        An offset was given that is not there, or of a partition that is not there.
    """
    found, ends = cluster.beginnings(places), cluster.ends(places)
    if start == "latest":
        return ends
    if isinstance(start, datetime):
        # Before 1970 the protocol has no times: -1 is the end. No record is older. Between two milliseconds, the later.
        millis = max(0, -((_EPOCH - start) // _MILLI))
        later = cluster.offsets(dict.fromkeys(found, millis))
        return {place: later[place] if later.get(place, -1) >= 0 else ends[place] for place in found}
    if isinstance(start, Mapping):
        given = {Place(topic, number): at for topic, offsets in start.items() for number, at in offsets.items()}
        for place, first in given.items():
            if place in found and found[place] <= first <= ends[place]:
                found[place] = first
                continue
            why = f"which has those from {found[place]} to {ends[place]}" if place in found else "which is not there"
            raise InputError(
                f"start= names offset {first} of {place}, {why}", topic=place.topic, partition=place.partition,
                offset=first,
            )  # fmt: skip
    return found


def distances(read: Mapping[Place, int], ends: Mapping[Place, int]) -> dict[str, Any]:
    """Return how far reading is behind the ends, for those who watch; by the names of Spark's own connector."""
    behind = [max(0, ends.get(place, offset) - offset) for place, offset in read.items()]
    found: dict[str, Any] = {
        "partitions": len(behind),
        "minOffsetsBehindLatest": min(behind, default=0),
        "avgOffsetsBehindLatest": round(sum(behind) / max(1, len(behind)), 1),
        "maxOffsetsBehindLatest": max(behind, default=0),
    }
    if len(behind) <= SHOWN:
        for name, offsets in (("endOffset", read), ("latestOffset", {p: ends[p] for p in read if p in ends})):
            found[name] = {topic: {} for topic in sorted({place.topic for place in offsets})}
            for place, offset in sorted(offsets.items()):
                found[name][place.topic][str(place.partition)] = offset
    return found


class Shares:
    """What each partition may have of a transaction.

    Those that had to wait come first the next time, so none waits for ever.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._turn = -1

    def of(self, lags: Mapping[int, int], sizes: Mapping[int, float]) -> dict[int, int]:
        """Return how many offsets of each partition are read.

        Parameters
        ----------
        lags : Mapping of int to int
            How many offsets there are to be read, by number of the partition.
        sizes : Mapping of int to float
            Bytes of a record, where they are bounded.
        """
        waiting = sorted((number for number, lag in lags.items() if lag), key=lambda n: (n <= self._turn, n))
        if not waiting:
            return {}
        rows_max = sum(lags.values()) if self._limits.rows is None else self._limits.rows
        if self._limits.bytes is not None:
            average = sum(sizes.values()) / len(sizes) if sizes else 1.0
            rows_max = max(1, min(rows_max, int(self._limits.bytes / max(average, 1.0))))
        chosen = waiting[: min(self._limits.partitions or len(waiting), rows_max)]
        self._turn = chosen[-1]
        shares, left = {}, rows_max
        # The shortest first: what they leave is for the others, in equal parts.
        for place, number in enumerate(sorted(chosen, key=lambda n: lags[n])):
            shares[number] = min(lags[number], left // (len(chosen) - place))
            left -= shares[number]
        return shares


class Sizes:
    """How large the records of partitions are: the first ones of a batch stand for all of it."""

    def __init__(self, consumer: Consumer, clock: Any = time.monotonic) -> None:
        self._consumer = consumer
        self._clock = clock
        self._known: dict[Place, tuple[float | None, float]] = {}
        """The size of a record, None where there was none, and until when that is believed."""

    def of(self, starts: Mapping[Place, int]) -> dict[Place, float]:
        """Return the average size of a record, by partition; of those that have given none within a second, nothing."""
        now = self._clock()
        unknown = {place: start for place, start in starts.items() if now > self._known.get(place, (0.0, -1.0))[1]}
        if unknown:
            self._sample(unknown)
        return {place: size for place in starts if (size := self._known[place][0]) is not None}

    def _sample(self, starts: Mapping[Place, int]) -> None:
        found: dict[Place, list[int]] = {place: [] for place in starts}
        self._consumer.assign([kafka().TopicPartition(*place, start) for place, start in starts.items()])
        end = self._clock() + SAMPLE_SECS
        while self._clock() < end and any(len(sizes) < SAMPLE_ROWS for sizes in found.values()):
            for each in self._consumer.consume(SAMPLE_ROWS, 0.05):
                sizes = found.get(Place(each.topic() or "", each.partition() or 0), [])
                if each.error() is None:
                    sizes.append(len(each.value() or b"") + len(each.key() or b""))
                elif has_code(each.error(), "_PARTITION_EOF"):
                    sizes += [0] * SAMPLE_ROWS  # there are no more
        self._consumer.unassign()
        for place, sizes in found.items():
            real = [size for size in sizes if size]
            average = sum(real) / len(real) if real else None
            self._known[place] = average, self._clock() + SAMPLE_AGAIN_SECS
