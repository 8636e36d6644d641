"""What transactions read of each partition, range by range: planned on the driver."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from statefx.connectors.kafka.clients import (
    AWAY,
    REQUEST_SECS,
    Clients,
    bounded,
    close_consumer,
    denial,
    describe_topics,
    has_code,
    kafka,
    text_of,
)
from statefx.connectors.kafka.rows import TopicPartition
from statefx.errors import FailedException, InputError, StatefxError

if TYPE_CHECKING:
    from confluent_kafka import Consumer

logger = logging.getLogger("statefx")

# ---- what is gone before it was read


class Losses:
    """Decides whether the query ends with what is gone, and warns where it goes on (``lost='skip'``)."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self._said: dict[TopicPartition, str] = {}

    def pass_over(self, tp: TopicPartition, start: int, first: int) -> None:
        """Pass over the offsets from `start` to before `first`; InputError if that is not allowed, as below."""
        said = f"{first - start} offsets of {tp}, from {start} to before {first}, were deleted and never read"
        if not self.allowed:
            raise InputError(
                f"{said}: by the topic's retention, or by hand. Start with a new checkpointLocation, or set "
                "lost='skip' to go on behind them",
                topic=tp.topic, partition=tp.partition, start=start, stop=first,
            )  # fmt: skip
        logger.warning("%s; they are skipped (lost='skip')", said)

    def made_again(self, tp: TopicPartition, offset: int) -> None:
        said = f"topic {tp.topic!r} was deleted, or deleted and made again; {tp} was read up to offset {offset}"
        self._leave(f"{said} of the former one", "read the new one from its beginning", tp, offset)

    def deleted(self, tp: TopicPartition, offset: int) -> None:
        said = f"topic {tp.topic!r} was deleted; {tp} was read up to offset {offset}"
        self._leave(said, "go on with the other topics", tp, offset)

    def _leave(self, said: str, then: str, tp: TopicPartition, offset: int) -> None:
        if not self.allowed:
            raise InputError(
                f"{said}. Start with a new checkpointLocation, or set lost='skip' to {then}",
                topic=tp.topic, partition=tp.partition, offset=offset,
            )  # fmt: skip
        if self._said.get(tp) != said:  # a deleted topic stays deleted, with each look
            self._said[tp] = said
            logger.warning("%s; records behind that may never have been read (lost='skip')", said)

    def forget(self, tp: TopicPartition) -> None:
        self._said.pop(tp, None)


def cut_off(tp: TopicPartition, offset: int, end: str) -> InputError:
    """Return the error of a partition whose last records are gone that were read: no policy allows that."""
    return InputError(
        f"{tp} was read up to offset {offset}, and {end}: its last records were lost in the cluster (an election of "
        "a replica that did not have them), or its data were restored. New records take the offsets of those that were "
        "read. Start with a new checkpointLocation",
        topic=tp.topic, partition=tp.partition, offset=offset,
    )  # fmt: skip


# ---- the consumer group that is told what is committed: nothing depends on it, and the driver's end alone waits for it

_MEMBERS = "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID"

_LISTEN_SECS = 0.02


class Group:
    """Commits offsets to a consumer group, by a client which is no member of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._wanted: dict[TopicPartition, int] = {}
        self._known: dict[TopicPartition, int] = {}
        """Offsets that the group has committed."""
        self._asked: Consumer | None = None
        """The client whose commit has no answer yet."""
        self._refusal = ""
        """Why it has not taken more: logged once, and not with each transaction."""

    def tell(self, consumer: Consumer, read: Mapping[TopicPartition, int], topics: Collection[str]) -> None:
        """Commit to the group those of the offsets `read` that have changed, of topics that are there."""
        self._wanted = dict(read)
        for tp in self._known.keys() - read.keys():
            del self._known[tp]
        self.go_on(consumer, topics)

    def go_on(self, consumer: Consumer, topics: Collection[str]) -> None:
        """Tell the group what it has not taken yet, unless it refuses; see `repeat`."""
        self._listen(consumer)
        if not self._refusal:
            self.repeat(consumer, topics)

    def repeat(self, consumer: Consumer, topics: Collection[str]) -> bool:
        """Tell the group what it has not taken, also if it refused; return whether there is anything.

        One commit is on its way at a time: one that the client sends again would come behind the next, and undo it.
        While the group is denied, the client keeps what it is told, and its end waits for all of that.
        """
        self._listen(consumer)
        told = [
            kafka().TopicPartition(*tp, offset)
            for tp, offset in self._wanted.items()
            if self._known.get(tp) != offset and tp.topic in topics
        ]
        if told and self._asked is not consumer:
            consumer.commit(offsets=told)
            self._asked = consumer
        return bool(told)

    def finish(self, consumer: Consumer, topics: Collection[str], secs: float) -> None:
        """Wait until the group has taken everything, unless it refuses."""
        limit = time.monotonic() + secs
        self._listen(consumer)
        while not self._refusal and self.repeat(consumer, topics) and time.monotonic() < limit:
            self._listen(consumer, _LISTEN_SECS)

    def _listen(self, consumer: Consumer, secs: float = 0) -> None:
        """Have the client call `on_commit`; that access to the group is denied, it says by an event alone."""
        while (event := consumer.poll(secs)) is not None:
            if has_code(event.error(), "GROUP_AUTHORIZATION_FAILED"):
                self._note(event.error())

    def on_commit(self, error: Any, told: Sequence[Any]) -> None:
        """Note what the group has taken, and log why it has not; librdkafka's callback of this name."""
        self._asked = None
        if error is None:
            self._known |= {TopicPartition(tp.topic, tp.partition): tp.offset for tp in told if tp.error is None}
            error = next((tp.error for tp in told if tp.error is not None), None)
        self._note(error)

    def _note(self, error: Any) -> None:
        if error is None:
            self._refusal = ""
            return
        why = text_of(error).rstrip(".")
        if has_code(error, *_MEMBERS):
            why += ". Consumers that subscribe to topics are members of it: give the spout a group of its own"
        elif has_code(error, "GROUP_AUTHORIZATION_FAILED"):
            why += ". Give the user of this client READ on the group"
        if why != self._refusal:
            self._refusal = why
            logger.warning(
                "offsets can't be reported to the group %r: %s. Nothing depends on it but what watches "
                "the group's lag; KafkaSpout(group=None) leaves it out. This is said once", self._name, why,
            )  # fmt: skip


# ---- which partitions there are, and how far each can be read

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

_BELIEVED = -math.inf

_DOUBT_AGAIN_SECS = 0.1
"""Between two looks of a start while it is not believed yet that a topic is not there."""

FORGET_SECS = 86_400.0
"""How long it is kept in mind how far a deleted topic was read. If it is there again with the same id, it was never
deleted (a broker that was cut off from the others said so), and goes on there: else its records would count twice."""

LEADER_SECS = 1.0
"""With ``unavailable='skip'``: how long a leader may take to answer when it is asked apart from the others."""

LEADER_AGAIN_SECS = 5.0
"""With ``unavailable='skip'``: the pause before leaders that did not answer are asked again, each for `LEADER_SECS`."""

SHOWN = 100
"""Partitions whose offsets are shown with each transaction: the last hundred transactions are kept."""

Start = str | datetime | Mapping[str, Mapping[int, int]]


def is_named(topic: str, topics: Sequence[str] | re.Pattern[str]) -> bool:
    return topics.fullmatch(topic) is not None if isinstance(topics, re.Pattern) else topic in topics


class Cluster:
    """The driver's view of the topics.

    With `skips`, `ends` and `beginnings` leave out partitions whose leader does not answer (``unavailable='skip'``).
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
        self._new_consumer: Callable[..., Consumer] = partial(
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
        """By what is doubted, since when; or `_BELIEVED`."""
        self.ids: dict[str, str] = {}
        """The ids of topics: a topic that is made again has another one."""
        self.epochs: dict[TopicPartition, int] = {}
        """The epochs of the leaders that had the ends: they tell records from others at the same offsets."""
        self.partitions: list[TopicPartition] = []

    def _failure(self, error: Any, what: str) -> StatefxError:
        """Return the error of a question that has failed, and have other clients if it is they who are lost."""
        self._doubts.clear()  # who did not answer may have just started when it does
        if has_code(error, *AWAY):
            if self._clients.is_stranded(self.consumer):
                self.consumer = self._new_consumer()
            if self._clients.is_stranded(self._admin):
                self._admin = self._clients.admin(REQUEST_SECS)
        return self._clients.failure(error, what)

    def discover(self, read: Iterable[str]) -> None:
        """Look which partitions there are, if the last look was long ago.

        Topics in `read` were read, and may be gone, or no longer be named.
        """
        now = self._clock()
        if self._looked is not None and now < self._looked + DISCOVERY_SECS and not self.doubts:
            self._group.go_on(self.consumer, self.ids)
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

    def insists_on(self, topic: str) -> bool:
        """Return whether a topic has to be there, or to have been read: it is named, and not by a pattern."""
        return not isinstance(self._topics, re.Pattern) and topic in self._topics

    def look_again(self) -> None:
        """Have the next `discover` ask, however short a time ago the last one did."""
        self._looked = None

    def reads(self, topic: str) -> bool:
        return is_named(topic, self._topics)

    def _wanted(self) -> list[str]:
        if not isinstance(self._topics, re.Pattern):
            return list(self._topics)
        return [name for name in self._listed() if self.reads(name) and not name.startswith("__")]

    def _listed(self, **topic: str) -> Mapping[str, Any]:
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

    @property
    def is_unsure(self) -> bool:
        """Whether something was doubted, and neither repeated until it was believed nor taken back."""
        return any(since != _BELIEVED for since in self._doubts.values())

    def doubted(self, what: str, wrong: bool) -> bool:
        """Return whether something is wrong; FailedException while it may still pass (`DOUBT_SECS`).

        `what` is a sentence that says what is wrong, the same one at each look; `wrong`, whether a broker says so now.
        """
        if not wrong:
            self._doubts.pop(what, None)
            return False
        since = self._doubts.setdefault(what, self._clock())
        if self._clock() < since + DOUBT_SECS:
            raise FailedException(f"{what}, a broker says; one that has just started may be wrong, and is asked again")
        self._doubts[what] = _BELIEVED
        return True

    def doubt_anew(self, *beginnings: str) -> None:
        """Forget what was doubted, and believed, by the beginnings of what `doubted` was told."""
        self._doubts = {what: since for what, since in self._doubts.items() if not what.startswith(beginnings)}

    def insist(self, look: Callable[[], object]) -> bool:
        """Look, as a start does, again while something is doubted; False where it fails for another reason.

        So a start raises where a topic is not there, or access is denied. Where no broker answers, it does not: the
        query waits, and its status says so.
        """
        while True:
            try:
                look()
                return True
            except FailedException:
                if not self.doubts:
                    return False
                time.sleep(_DOUBT_AGAIN_SECS)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return how far partitions can be read: with ``read_committed``, their last stable offsets."""
        told = self._ask_available(dict.fromkeys(partitions, END))
        self.epochs = {tp: answer.leader_epoch for tp, answer in told.items() if answer.leader_epoch is not None}
        return {tp: answer.offset for tp, answer in told.items()}

    def last_end(self, tp: TopicPartition) -> int:
        """Return where a partition ends with records of open transactions, by a client for this one question."""
        consumer = self._new_consumer(**{"isolation.level": "read_uncommitted"})
        try:
            return int(_ask_offsets(consumer, {tp: END})[tp].offset)
        except kafka().KafkaException as error:
            raise self._failure(error, _UNANSWERED) from None
        finally:
            close_consumer(consumer)

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        told = self._ask_available(dict.fromkeys(partitions, BEGINNING))
        return {tp: answer.offset for tp, answer in told.items()}

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets of times, `END` or `BEGINNING`, of all these partitions; one request for each broker.

        The client for administrators has a call of its own for this, and it is not to be trusted: while a broker did
        not answer, it told offsets all the same, and it ended the process by a failed assertion.
        """
        return {tp: answer.offset for tp, answer in self._ask(times).items()}

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
            self._doubts.clear()  # as in `_failure`
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
        self._group.tell(self.consumer, read, self.ids)

    def close(self) -> None:
        """Close the client when the group has the last offsets; one that does not come to its end is left behind."""
        with suppress(kafka().KafkaException):
            bounded(self._end, REQUEST_SECS)

    def _end(self, secs: float) -> None:
        try:
            self._group.finish(self.consumer, self.ids, secs)
        finally:
            self.consumer.close()


def _shown(partitions: Collection[TopicPartition]) -> str:
    """Return the names of partitions, of many the first ten."""
    more = f" and {len(partitions) - 10} more" if len(partitions) > 10 else ""
    return ", ".join(map(str, sorted(partitions)[:10])) + more


def _ask_offsets(
    consumer: Consumer, times: Mapping[TopicPartition, int], secs: float | None = None
) -> dict[TopicPartition, Any]:
    if not times:
        return {}
    asked = [kafka().TopicPartition(*tp, at) for tp, at in times.items()]
    told: list[Any] = consumer.offsets_for_times(asked, timeout=REQUEST_SECS if secs is None else secs)
    wrong = next((answer.error for answer in told if answer.error is not None), None)
    if wrong is not None:
        raise kafka().KafkaException(wrong)
    return {TopicPartition(answer.topic, answer.partition): answer for answer in told}


def first_offsets(cluster: Cluster, start: Start, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return where a first run begins, by partition: all of them have to answer, since a later look finds other ends.

    InputError if an offset was given that is not there, or of a partition that is not there.
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
    """Shares of the partitions in a transaction that reads `rows_max` rows at most; None: any number.

    Those that had to wait come first the next time, so none waits for ever.
    """

    def __init__(self, rows_max: int | None) -> None:
        self._rows_max = rows_max
        self._turn = -1

    def of(self, lags: Mapping[int, int]) -> dict[int, int]:
        """Return how many offsets of each partition are read, by its number as in `lags`, what there is to be read."""
        waiting = sorted((number for number, lag in lags.items() if lag), key=lambda n: (n <= self._turn, n))
        if not waiting:
            return {}
        rows_max = sum(lags.values()) if self._rows_max is None else self._rows_max
        chosen = waiting[:rows_max]
        self._turn = chosen[-1]
        shares, left = {}, rows_max
        # The shortest first: what they leave is for the others, in equal parts.
        for turn, number in enumerate(sorted(chosen, key=lambda n: lags[n])):
            shares[number] = min(lags[number], left // (len(chosen) - turn))
            left -= shares[number]
        return shares


# ---- what transactions read of each partition

NO_TOPIC = TopicPartition("", 0)
"""Stands in the log for a first run that finds no topic, and is to begin later than the beginning (`start`). The next
run sees by it that it is not the first one: it reads a topic that was made meanwhile from its beginning. The first
partition that comes takes its number, which would else hold the watermark for ever."""


_NO_RANGE = {**NO_TOPIC._asdict(), "id": "", "start": 0, "end": 0}


def ends_of(read: Iterable[Any]) -> dict[TopicPartition, int]:
    """Return how far partitions were read, by the metadata of their last ranges; without those that are gone."""
    return {tp: said["end"] for said in read if "gone" not in said and (tp := partition_of(said)) != NO_TOPIC}


def partition_of(said: Any) -> TopicPartition:
    return TopicPartition(said["topic"], said["partition"])


class Ranges:
    """The partitions by their numbers, and the next range of each.

    The metadata of a range is ``topic``, ``partition``, the ``id`` of the topic, ``start`` and ``end`` (the offset
    behind the last); the epochs of the leaders that had the records before these two, ``start_epoch`` and
    ``end_epoch``, where they are known; and ``gap``, how many offsets before the range are passed over, if any.

    When a topic was deleted (``lost='skip'``), each of its partitions has a last range, which has no offsets, and in
    ``gone`` the time: it is finished, and nothing more is read under its number. A topic that comes under that name has
    other numbers. A day later they are forgotten.
    """

    def __init__(self, cluster: Cluster, start: Start, rows_max: int | None, losses: Losses) -> None:
        self.cluster = cluster
        self._start = start
        self._losses = losses
        self._shares = Shares(rows_max)
        self._numbers: dict[int, TopicPartition] = {}
        """Without those that are gone."""
        self._count = 0
        """How many numbers there have ever been."""
        self._newest = -1
        """The greatest number of which something is known to be in the log. It stays there, so that the next start
        gives nobody a number of one that was forgotten, and knows that it is not the first one."""
        self._gone: dict[int, Any] = {}
        """The last ranges of partitions that are gone, by number, as far as the log has them."""
        self._back: dict[TopicPartition, Any] = {}
        """Where partitions go on that are not gone after all, while nothing was planned by their new number."""
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
        """Partitions of topics that are no longer named."""

    def close(self) -> None:
        self.cluster.close()

    def begin(self, metadata: Mapping[int, Any]) -> None:
        """Take over from the metadata which number stands for which partition, and look what there is."""
        self._newest = max(metadata, default=-1)
        self._count = self._newest + 1  # those without metadata were forgotten: they count as finished
        for number, said in metadata.items():
            if "gone" in said:
                self._gone[number] = said
            else:
                self._numbers[number] = tp = partition_of(said)
                self._read[tp] = said
        self._has_looked = self.cluster.insist(self.count)

    def of(self, tp: TopicPartition, last: Any) -> Any:
        """Look at one partition alone, and return its next range; None if there is none, or it is not there."""
        self._numbers, self._read = {0: tp}, {} if last is None else {tp: last}
        self._look()
        found = self.plan(0, last)
        return None if found is None or "gone" in found else found

    def to_plan(self) -> list[int]:
        """Return the numbers of partitions that may have a next range: a look costs nothing for the others."""
        # Only `plan` takes a doubt back; else the next broker that starts, a month later, would be believed at once.
        every = self.cluster.is_unsure
        return [number for number, tp in self._numbers.items() if every or not self._is_done(tp)]

    def _is_done(self, tp: TopicPartition) -> bool:
        """Return whether a partition was read to its end, or its topic is no longer named."""
        topic_id, said = self.cluster.ids.get(tp.topic), self._read.get(tp)
        if tp in self._left:
            return topic_id is None
        if said is None or tp in self._planned or tp in self._back:  # whether one has begun with that, `plan` is told
            return False
        until = 0 if self._until is None else self._until.get((tp, said["id"]), 0)  # more, if a broker tells less now
        return bool(topic_id == said["id"] and self.ends.get(tp) == said["end"] >= until)

    def count(self) -> int:
        """Look what there is, and return how many partitions there have been; new ones come last."""
        if self._has_looked:  # a moment ago, by the start
            self._has_looked = False
            return self._count
        cluster = self.cluster
        gone = (said["topic"] for said in self._gone.values())
        cluster.discover({*gone, *(tp.topic for tp in self._read | self._planned if tp != NO_TOPIC)})
        known = set(self._numbers.values())
        self._number([tp for tp in cluster.partitions if tp not in known])
        self._look()
        if not self._count and self._start != "earliest":
            self._numbers[0], self._count = NO_TOPIC, 1
        return self._count

    def _number(self, new: Sequence[TopicPartition]) -> None:
        """Give partitions their numbers."""
        free = [number for number, tp in self._numbers.items() if tp == NO_TOPIC]
        numbers = [*free, *range(self._count, self._count + len(new))][: len(new)]
        self._numbers |= zip(numbers, new, strict=True)
        self._count = max([self._count, *(number + 1 for number in numbers)])
        # The last that is gone of each: they may have been back before.
        gone = {(partition_of(said), said["id"]): said for _, said in sorted(self._gone.items())} if new else {}
        for tp in new:
            if (said := gone.get(self._identity(tp))) is not None:
                self._back[tp] = self._read[tp] = said

    def _look(self) -> None:
        """Ask what there is to be read of all partitions, and share out what a transaction may read."""
        cluster, read, listed = self.cluster, self._read | self._planned, set(self.cluster.partitions)
        numbers = {tp: number for number, tp in self._numbers.items() if tp in listed}
        fresh = [tp for tp in numbers if tp not in read]
        if self._first is None:
            # A first run begins where it was told to. What is found later is all new.
            known = bool(read or self._gone) or self._start == "earliest"
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
        end = self.ends[tp]  # a range that ends behind it would stand in the log, and be waited for by all runs
        return end if self._until is None else min(end, self._until.get(self._identity(tp), -1))

    def _identity(self, tp: TopicPartition) -> tuple[TopicPartition, str]:
        return tp, self.cluster.ids[tp.topic]

    def plan(self, partition: int, last: Any) -> Any:
        """Return the next range of offsets.

        The first one of a partition says where it begins, also if there is nothing in it yet: ``latest`` would be
        another offset after a restart.
        """
        tp = self._numbers.get(partition)
        if tp is None:
            return None
        if tp == NO_TOPIC:
            return None if last is not None else _NO_RANGE
        if last is not None:
            self._newest = max(self._newest, partition)
            if "gone" in last:
                self._leave(partition, tp, last)
                return None
        if is_first := last is None or last == _NO_RANGE:
            last = self._back.get(tp)
        else:
            self._back.pop(tp, None)
        former = self._planned.get(tp, self._read.get(tp))
        self._planned.pop(tp, None)
        self._read |= {tp: last} if last is not None else {}
        if last != former:  # what was planned last never began: the shares were those of other ranges
            self._planned.clear()
            self._look()
        found = self._end_of(tp, last) if self._is_gone(tp, last) else self._next(partition, tp, last, is_first)
        if found is not None:
            self._planned[tp] = found
        return found

    def _next(self, partition: int, tp: TopicPartition, last: Any, is_first: bool) -> Any:
        """Return the next range of a partition that is there; None if there is none, but one if it `is_first`."""
        if (found := self._begin(tp, last)) is None:
            return None
        if self._until is not None:
            bound = self._until.get(self._identity(tp))
            # Else this run would end before its end, as a broker that starts tells smaller ones.
            shorter = bound is not None and tp in self.ends and self.ends[tp] < bound
            self.cluster.doubted(f"{tp} ends before where it ended when this run began", shorter)
            if bound is None:
                return None  # it came later: the next run reads it from its beginning
        start, gap = found
        end = start
        if tp in self.ends:
            end = max(start, min(self._readable(tp), start + self._share.get(partition, 0)))
        topic_id, epoch = self.cluster.ids[tp.topic], self.cluster.epochs.get(tp)
        goes_on = last is not None and (start, topic_id) == (last["end"], last["id"])
        if goes_on and end == start and not is_first:
            return None
        planned = {"topic": tp.topic, "partition": tp.partition, "id": topic_id, "start": start, "end": end}
        start_epoch = last.get("end_epoch") if goes_on else None
        more = {"gap": gap or None, "start_epoch": start_epoch, "end_epoch": epoch}
        return planned | {name: said for name, said in more.items() if said is not None}

    def _end_of(self, tp: TopicPartition, last: Any) -> Any:
        """Return the last range of a partition that is gone."""
        said = {"id": "", "end": 0} if last is None else last
        kept = {name: said[name] for name in ("id", "end", "end_epoch") if name in said}
        return {**tp._asdict(), **kept, "start": said["end"], "gone": int(time.time())}

    def _is_gone(self, tp: TopicPartition, last: Any) -> bool:
        """Return whether a partition is no longer there, since its topic was deleted; InputError if that must not be.

        A topic that was made again may have fewer partitions.
        """
        cluster = self.cluster
        if not cluster.reads(tp.topic):
            return False
        topic_id = cluster.ids.get(tp.topic)
        is_deleted = cluster.doubted(_no_topic(tp), topic_id is None)
        if last is None:
            return is_deleted
        if is_deleted:
            self._losses.deleted(tp, last["end"])
        elif topic_id != last["id"]:
            self._losses.made_again(tp, last["end"])
            return tp not in cluster.partitions
        return is_deleted

    def _leave(self, number: int, tp: TopicPartition, last: Any) -> None:
        """Take note that the last range of a partition is in the log: nothing more is read by its number."""
        self._gone[number] = last
        del self._numbers[number]
        for known in (self._read, self._planned, self._back, self.known_ends, self._first or {}):
            known.pop(tp, None)
        self.cluster.doubt_anew(_no_topic(tp), f"{tp} ")  # the next one of this name is another one
        self._losses.forget(tp)

    def to_forget(self) -> list[int]:
        """Return the numbers of partitions that are gone for long."""
        before = time.time() - FORGET_SECS
        found = [
            number
            for number, said in self._gone.items()
            if said["gone"] <= before and number < self._newest and not self._is_needed(partition_of(said))
        ]
        for number in found:
            del self._gone[number]
        return found

    def _is_needed(self, tp: TopicPartition) -> bool:
        """Return whether the log needs the last range: it alone says where the partition goes on, or knows the topic.

        A start refuses a topic that is named, is not there and was never read.
        """
        return tp in self._back or (self.cluster.insists_on(tp.topic) and tp not in self._read)

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
        self._left.discard(tp)
        topic_id = cluster.ids[tp.topic]
        shorter = topic_id == last["id"] and tp in self.ends and self.ends[tp] < start
        if cluster.doubted(f"{tp} ends before the offset up to which it was read", shorter):
            if (end := cluster.last_end(tp)) < start:
                raise cut_off(tp, start, f"now ends at {end}")
            raise FailedException(
                f"{tp} was read up to offset {start} by isolation='read_uncommitted', and a transaction before that, "
                f"from offset {self.ends[tp]} on, is still open: it is read on when that has ended"
            )
        if topic_id != last["id"]:
            return (cluster.offsets({tp: BEGINNING})[tp], 0) if tp in self.ends else None
        if tp not in self.ends:
            return None  # its leader is away
        return self._behind_gap(tp, start)


def _no_topic(tp: TopicPartition) -> str:
    """Return what is doubted of a topic that is not there."""
    return f"there is no topic {tp.topic!r}"
