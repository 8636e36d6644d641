"""Which partitions there are, how far each can be read, and what a transaction reads of each; on the driver."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from statefx.connectors.kafka.calls import AWAY, REQUEST_SECS, close_consumer, describe_topics, has_code, kafka, text_of
from statefx.connectors.kafka.clients import Clients, denial
from statefx.connectors.kafka.group import Group
from statefx.connectors.kafka.rows import TopicPartition
from statefx.errors import FailedException, InputError, StatefxError

if TYPE_CHECKING:
    from confluent_kafka import Consumer

logger = logging.getLogger("statefx")

END, BEGINNING = -1, -2
"""What the protocol has instead of a time."""

_NO_LEADER = -1
"""What a broker answers for the leader of a partition that has none."""

_UNANSWERED = "the offsets of partitions can't be asked for"

_EPOCH, _MILLI = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)

DISCOVERY_SECS = 10.0
"""The pause between two looks for new partitions and topics. A look is one request for all topics."""

DOUBT_SECS = 5.0
"""How long a broker must say what would end the query before it is believed. One that has just started does not know
all topics yet, and its partitions may end before where they ended; both pass."""

LEADER_SECS = 1.0
"""With ``unavailable='skip'``: how long a leader may take to answer when it is asked apart from the others."""

LEADER_AGAIN_SECS = 5.0
"""With ``unavailable='skip'``: the pause before leaders that did not answer are asked again, each for `LEADER_SECS`."""

SHOWN = 100
"""Partitions whose offsets are shown with each transaction: the last hundred transactions are kept."""

Start = str | datetime | Mapping[str, Mapping[int, int]]


def is_named(topic: str, topics: Sequence[str] | re.Pattern[str]) -> bool:
    """Tell whether a topic is one of those that are named, or fits the pattern."""
    return topics.fullmatch(topic) is not None if isinstance(topics, re.Pattern) else topic in topics


class Limits(NamedTuple):
    """What one transaction reads at most; None: as much as there is."""

    rows: int | None
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
    skips : bool
        Whether `ends` and `beginnings` leave out partitions whose leader does not answer (``unavailable='skip'``).

    Attributes
    ----------
    away : set of TopicPartition
        Partitions whose leader did not answer when it was asked last.
    """

    def __init__(
        self,
        clients: Clients,
        group: str,
        topics: Sequence[str] | re.Pattern[str],
        clock: Callable[[], float] = time.monotonic,
        *,
        skips: bool = False,
    ) -> None:
        self._group = Group(group)
        self._clients = clients
        self._new_consumer: Callable[[], Consumer] = partial(
            clients.consumer, group, on_commit=self._group.on_commit, **{"socket.timeout.ms": 10_000}
        )
        self.consumer, self._admin = self._new_consumer(), clients.admin(REQUEST_SECS)
        self._topics = topics
        self._clock = clock
        self._skips = skips
        self.away: set[TopicPartition] = set()
        self._away_until = 0.0
        """When those of `away` are asked again."""
        self._trouble = ""
        """Why a leader did not answer."""
        self._looked: float | None = None
        self._doubts: dict[str, float] = {}
        self.ids: dict[str, str] = {}
        """The ids of topics: a topic that is made again has another one."""
        self.epochs: dict[TopicPartition, int] = {}
        """The epochs of the leaders that had the ends: they tell records from others at the same offsets."""
        self.partitions: list[TopicPartition] = []

    def _failure(self, error: Any, what: str) -> StatefxError:
        """Return the error of a question that has failed, and have other clients if it is they who are lost."""
        if has_code(error, *AWAY):
            if self._clients.is_stranded(self.consumer):
                self.consumer = self._new_consumer()
            if self._clients.is_stranded(self._admin):
                self._admin = self._clients.admin(REQUEST_SECS)
        return self._clients.failure(error, what)

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
        partitions = [
            TopicPartition(name, number) for name in names if name in found for number in sorted(found[name][1])
        ]
        # The client looks for new partitions of topics that it knows every 5 minutes, and refuses to ask about others.
        for name in sorted({tp.topic for tp in set(partitions) - set(self.partitions)} & set(self.ids)):
            self._listed(topic=name)
        self.ids, self.partitions = {name: said[0] for name, said in found.items()}, partitions
        self._looked = self._clock()
        self._group.repeat(self.consumer, self.ids)

    def look_again(self) -> None:
        """Have the next `discover` ask, however short a time ago the last one did."""
        self._looked = None

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
            raise self._failure(error, "the topics can't be listed") from error
        return found

    def _described(self, names: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
        """Return by topic its identity and its partitions; without those that are not there."""
        found: dict[str, tuple[str, list[int]]] = {}
        if not names:
            return found
        for name, said in describe_topics(self._admin, names).items():
            if not isinstance(said, Exception):
                found[name] = str(said.topic_id), [part.id for part in said.partitions]
            elif not has_code(said, "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"):
                raise self._failure(said, f"topic {name!r} can't be asked about") from said
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

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return how far partitions can be read: with ``read_committed``, their last stable offsets."""
        told = self._ask_available(dict.fromkeys(partitions, END))
        self.epochs = {tp: each.leader_epoch for tp, each in told.items() if each.leader_epoch is not None}
        return {tp: each.offset for tp, each in told.items()}

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offsets that are there."""
        told = self._ask_available(dict.fromkeys(partitions, BEGINNING))
        return {tp: each.offset for tp, each in told.items()}

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets of times, `END` or `BEGINNING`, of all these partitions; one request for each broker.

        The client for administrators has a call of its own for this, and it is not to be trusted: while a broker did
        not answer, it told offsets all the same, and it ended the process by a failed assertion.
        """
        return {tp: each.offset for tp, each in self._ask(times).items()}

    def _ask(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        try:
            return _ask_offsets(self.consumer, times)
        except kafka().KafkaException as error:
            self._looked = None  # a topic may be gone
            if has_code(error, "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"):
                # A broker that had just started told the client of no partitions, and the client asks it about none of
                # them until it looks again, which it does every 5 minutes.
                for name in {tp.topic for tp in times}:
                    self._listed(topic=name)
            raise self._failure(error, _UNANSWERED) from None

    def _ask_available(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        """Ask as `_ask` does; with `skips`, leave out partitions whose leader does not answer, and note them."""
        if not self._skips:
            return self._ask(times)
        asked = {tp: at for tp, at in times.items() if tp not in self.away}
        try:
            told = _ask_offsets(self.consumer, asked)
        except kafka().KafkaException:
            # One leader that does not answer fails the question to all of them.
            self._looked = None
            told = self._ask_leaders(times)
        else:
            if len(asked) < len(times) and self._clock() >= self._away_until:
                told |= self._ask_leaders({tp: at for tp, at in times.items() if tp not in asked})
        self._note_away(times, told)
        if times and not told:
            raise FailedException(f"{_UNANSWERED}: no leader answers: {self._trouble}")
        return told

    def _ask_leaders(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        """Ask the leader of each partition apart from the others; return what those say that answer."""
        topics = self._listed()
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, at in times.items():
            known = topics[tp.topic].partitions.get(tp.partition) if tp.topic in topics else None
            by_leader.setdefault(_NO_LEADER if known is None else known.leader, {})[tp] = at
        told: dict[TopicPartition, Any] = {}
        for leader, asked in by_leader.items():
            if leader == _NO_LEADER:
                self._trouble = "the cluster knows of no leader"
                continue
            try:
                told |= _ask_offsets(self.consumer, asked, LEADER_SECS)
            except kafka().KafkaException as error:
                if denied := denial(error, _UNANSWERED):
                    raise denied from None
                self._trouble = text_of(error)
        self._away_until = self._clock() + LEADER_AGAIN_SECS
        return told

    def _note_away(self, asked: Collection[TopicPartition], told: Collection[TopicPartition]) -> None:
        before = self.away
        self.away = (before - {*asked}) | ({*asked} - {*told})
        if gone := self.away - before:
            logger.warning(
                "%s: no leader answers (%s), so the other partitions are read without (unavailable='skip')",
                _shown(gone), self._trouble,
            )  # fmt: skip
        if back := before - self.away:
            logger.warning("%s: the leader answers again", _shown(back))

    def tell_group(self, read: Mapping[TopicPartition, int]) -> None:
        """Commit to the group what was read, for those who watch it."""
        self._group.tell(self.consumer, read, self.ids)

    def close(self) -> None:
        """Close the client, which waits until the group has the last offsets."""
        close_consumer(self.consumer)


def _shown(partitions: Collection[TopicPartition]) -> str:
    """Return the names of partitions, of many the first ten."""
    more = f" and {len(partitions) - 10} more" if len(partitions) > 10 else ""
    return ", ".join(map(str, sorted(partitions)[:10])) + more


def _ask_offsets(
    consumer: Consumer, times: Mapping[TopicPartition, int], secs: float | None = None
) -> dict[TopicPartition, Any]:
    """Return what the brokers say of the offsets of times; KafkaException if one of them is not known."""
    if not times:
        return {}
    asked = [kafka().TopicPartition(*tp, at) for tp, at in times.items()]
    told: list[Any] = consumer.offsets_for_times(asked, timeout=REQUEST_SECS if secs is None else secs)
    wrong = next((each.error for each in told if each.error is not None), None)
    if wrong is not None:
        raise kafka().KafkaException(wrong)
    return {TopicPartition(each.topic, each.partition): each for each in told}


def first_offsets(cluster: Cluster, start: Start, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return where a first run begins, by partition: all of them have to answer, since a later look finds other ends.

    Raises
    ------
    InputError
        An offset was given that is not there, or of a partition that is not there.
    """
    found = cluster.offsets(dict.fromkeys(partitions, BEGINNING))
    ends = cluster.offsets(dict.fromkeys(partitions, END))
    if start == "latest":
        return ends
    if isinstance(start, datetime):
        # Before 1970 the protocol has no times: -1 is the end. No record is older. Between two milliseconds, the later.
        millis = max(0, -((_EPOCH - start) // _MILLI))
        later = cluster.offsets(dict.fromkeys(found, millis))
        return {tp: later[tp] if later.get(tp, -1) >= 0 else ends[tp] for tp in found}
    if isinstance(start, Mapping):
        given = {
            TopicPartition(topic, number): at for topic, offsets in start.items() for number, at in offsets.items()
        }
        for tp, first in given.items():
            if tp in found and found[tp] <= first <= ends[tp]:
                found[tp] = first
                continue
            why = f"which has those from {found[tp]} to {ends[tp]}" if tp in found else "which is not there"
            raise InputError(
                f"start= names offset {first} of {tp}, {why}", topic=tp.topic, partition=tp.partition,
                offset=first,
            )  # fmt: skip
    return found


def distances(
    read: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], away: Collection[TopicPartition] = ()
) -> dict[str, Any]:
    """Return how far reading is behind the ends, by the names of Spark's own connector.

    Of partitions that are `away`, the end is the last one that is known.
    """
    behind = [max(0, ends.get(tp, offset) - offset) for tp, offset in read.items()]
    found: dict[str, Any] = {
        "partitions": len(behind),
        "minOffsetsBehindLatest": min(behind, default=0),
        "avgOffsetsBehindLatest": round(sum(behind) / max(1, len(behind)), 1),
        "maxOffsetsBehindLatest": max(behind, default=0),
    }
    if away:
        found["unavailable"] = [str(tp) for tp in sorted(away)[:SHOWN]]
    if len(behind) <= SHOWN:
        for name, offsets in (("endOffset", read), ("latestOffset", {p: ends[p] for p in read if p in ends})):
            found[name] = {topic: {} for topic in sorted({tp.topic for tp in offsets})}
            for tp, offset in sorted(offsets.items()):
                found[name][tp.topic][str(tp.partition)] = offset
    return found


class Shares:
    """What each partition may have of a transaction.

    Those that had to wait come first the next time, so none waits for ever.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._turn = -1

    def of(self, lags: Mapping[int, int]) -> dict[int, int]:
        """Return how many offsets of each partition are read.

        Parameters
        ----------
        lags : Mapping of int to int
            How many offsets there are to be read, by number of the partition.
        """
        waiting = sorted((number for number, lag in lags.items() if lag), key=lambda n: (n <= self._turn, n))
        if not waiting:
            return {}
        rows_max = sum(lags.values()) if self._limits.rows is None else self._limits.rows
        chosen = waiting[: min(self._limits.partitions or len(waiting), rows_max)]
        self._turn = chosen[-1]
        shares, left = {}, rows_max
        # The shortest first: what they leave is for the others, in equal parts.
        for turn, number in enumerate(sorted(chosen, key=lambda n: lags[n])):
            shares[number] = min(lags[number], left // (len(chosen) - turn))
            left -= shares[number]
        return shares
