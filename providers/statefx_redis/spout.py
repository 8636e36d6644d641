"""RedisStreamSpout: the messages of a stream of a Redis server, by a consumer group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.types as kinds

from statefx.connectors.queue import Message, PendingAcks, QueueSpout, check_idle_secs
from statefx.errors import ConfigError, InputError, SinkError, TopologyError, TransactionConflictError
from statefx.operators.sealed_names import Sealed, sealed_by
from statefx.operators.spouts import Backlog
from statefx.state.contract.store import require
from statefx_redis.settings import Settings

if TYPE_CHECKING:
    from statefx_redis.server import Server


CHUNK = 1000
"""Entries that one call of a script is given; a script may unpack some thousands."""

SENSIBLE_SECS = 10 * 365 * 86_400
"""An entry that looks older has an id that a user made."""

SEAL = """
local owner, name, sealed, txid, attempt = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local function may(has)
  if has == owner or has == name then return true end
  if string.sub(has, 1, #sealed) ~= sealed then return false end
  local t, a = string.match(has, '^(%d+)/(%d+)/', #sealed + 1)
  t, a = tonumber(t), tonumber(a)
  return t < txid or (t == txid and a < attempt)
end
for i = 7, #ARGV do
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)
  local has = found[1] and found[1][2] or ''
  if not may(has) then return {'LOST', ARGV[i], has} end
end
for i = 7, #ARGV do
  if #redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i]) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], name, 0, ARGV[i], 'JUSTID')
  end
end
return {'OK'}
"""
"""stream; group, owner, name, how names of the owner begin, txid, attempt, id, ... -> OK; LOST, id, who has it.

Names of the owner are those of earlier attempts, which were rolled back; one of a later attempt is not taken back by a
call that arrives late. An entry that was deleted meanwhile stays with its owner: from Redis 7 on XCLAIM would forget
it, and the next attempt would take it for lost."""

RENEW = """
for i = 3, #ARGV do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0
      and #redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i]) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
  end
end
return {'OK'}
"""
"""stream; group, consumer, id, ... -> OK: the time of those entries begins anew that the consumer still has, and that
no transaction has sealed."""

CLAIM = """
local claimed = {}
for i = 5, #ARGV do
  local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)
  if found[1] and not string.find(found[1][2], ARGV[4], 1, true) then
    for _, entry in ipairs(redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[i])) do
      claimed[#claimed + 1] = entry
    end
  end
end
return {'OK', claimed}
"""
"""stream; group, consumer, idle milliseconds, what is in the names of sealed ones, id, ... -> OK, entries that the
consumer has now."""

_EACH = """
repeat
  local found = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1000, ARGV[2])
  if found.err then  -- the group may be gone, with its stream
    if string.find(found.err, 'NOGROUP') then return {{'OK'}} end
    return found
  end
  local ids = {{}}
  for i, each in ipairs(found) do ids[i] = each[1] end
  if #ids > 0 then {do} end
until #ids == 0
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return {{'OK'}}
"""

FINISH = _EACH.format(do="redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))")
"""stream; group, consumer -> OK: acknowledged is what the consumer had."""

MOVE = _EACH.format(
    do="for _, id in ipairs(ids) do redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, id, 'JUSTID') end"
)
"""stream; group, consumer, other consumer -> OK: the other one has what this one had."""


class RedisStreamSpout(QueueSpout):
    """Emits the entries of a Redis stream, each to one task of those that read it in the same group.

    Parameters
    ----------
    url : str
        Of the server, as for the redis state provider.
    stream : str
        The key of the stream; it is made if it is not there.
    fields : str or StructType
        The fields of an entry, of type ``string`` or ``binary``; one that an entry lacks is null, others are left out.
        ``"row string"`` reads what `RedisSink` writes into a stream.
    group : str
        The consumer group; it is made if it is not there, to begin with the oldest entry.
    idleSecs : float
        After which an entry that was handed out and not acknowledged is taken from a consumer that is gone. Those of a
        task that lives are renewed.
    maxTries, retryDelay, exactlyOnce
        As of `QueueSpout`.
    options : Mapping, optional
        Further options of the redis state provider.

    Raises
    ------
    ConfigError, TopologyError
        An argument can't be used, or redis-py is not installed.

    Notes
    -----
    By default an entry is acknowledged (XACK) after the commit, so a crash between the two has it delivered again. With
    `exactlyOnce` it is passed to a consumer whose name is that of the transaction before that is decided, and
    acknowledged with the decision: ``XINFO CONSUMERS`` shows these as ``.../@sealed/<txid>/...``. Readers of the group
    that are not of statefx must leave them alone. The id of an entry is the server's, ``1700000000000-0``.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        fields: Any,
        group: str,
        *,
        idleSecs: float = 60.0,
        maxTries: int = 5,
        retryDelay: float = 1.0,
        exactlyOnce: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require("redis", "redis", "RedisStreamSpout", "the driver", ConfigError)
        super().__init__(fields, maxTries=maxTries, retryDelay=retryDelay, exactlyOnce=exactlyOnce)
        for what, value in (("stream", stream), ("group", group)):
            if not isinstance(value, str) or not value:
                raise ConfigError(f"RedisStreamSpout needs the name of a {what}, got {value!r}")
        check_idle_secs("RedisStreamSpout", idleSecs)
        self._fields = []
        for field in self.schema:
            if not (kinds.is_string(field.type) or kinds.is_binary(field.type)):
                raise TopologyError(
                    f"RedisStreamSpout: field {field.name!r} is {field.type}, and entries of a stream have texts and "
                    "bytes: declare it string, and turn it into a number in a bolt",
                    field=field.name,
                )
            self._fields.append((field.name.encode(), kinds.is_string(field.type)))
        # No tries of the client's own: a call that waits holds up what the task is told.
        self.settings = Settings.of({"retries": 0, **(options or {}), "url": url}, "RedisStreamSpout")
        self.stream, self.group = stream, group
        self.renewSecs = idleSecs / 4
        self._idle_ms = int(idleSecs * 1000)

    def reads(self, target: str) -> bool:
        """Return whether a sink writes to the stream."""
        return target == f"{self.settings.address}#{self.stream}"

    def pendingAcks(self) -> PendingAcks:
        return _PendingAcks(self.settings, self.stream, self.group)

    def backlog(self) -> Backlog | None:
        """Return what the group was not given yet, as the server knows it: XINFO GROUPS tells that from Redis 7 on.

        It knows nothing of a group whose stream had entries deleted in its middle, or that was set to another place.
        How long the first one has waited is in its id, where the server made that.
        """
        from statefx_redis.server import server_of  # noqa: PLC0415 - as below

        def ask(client: Any) -> tuple[int, list[Any], int] | None:
            if not client.exists(self.stream):  # no task has made it yet
                return None
            groups = client.xinfo_groups(self.stream)
            found: Any = next((each for each in groups if each["name"] == self.group.encode()), {})
            if found.get("lag") is None:
                return None
            after = found["last-delivered-id"].decode()
            return found["lag"], client.xrange(self.stream, f"({after}", "+", count=1), client.time()[0]

        answer = server_of(self.settings).call(self.stream, ask)
        if answer is None:
            return None
        records, first, now = answer
        if not first:
            return Backlog(records, 0.0)
        waited = now - int(first[0][0].partition(b"-")[0]) / 1000
        return Backlog(records, max(waited, 0.0) if waited < SENSIBLE_SECS else None)

    def connect(self, context: Any) -> None:
        """Begin with what this task had been given before."""
        from statefx_redis.server import Server  # noqa: PLC0415 - redis-py is not needed to declare a spout

        self._server: Server = Server(self.settings)
        self._begun = False
        self._own: str | None = "0"
        self._claims = time.monotonic()

    def receive(self, limit: int) -> Iterable[Message]:
        """Return entries that this task had before, then those of consumers that are gone, then new ones."""
        if not self._begun:
            self._begin()
        if self._own is not None:
            found = self._read(self._own, limit)
            self._own = found[-1][0].decode() if found else None
            if found:
                return self._again(found)
        now = time.monotonic()
        if now >= self._claims:
            claimed = self._claimed(limit)
            if claimed:
                return claimed
            self._claims = now + self.renewSecs
        return [Message(id.decode(), self._values(id, values)) for id, values in self._read(">", limit)]

    def finish(self, ids: Sequence[Any]) -> None:
        self._call(lambda client: client.xack(self.stream, self.group, *ids))

    def renew(self, ids: Sequence[Any]) -> None:
        for at in range(0, len(ids), CHUNK):
            self._server.eval(RENEW, [self.stream], self.group, self.owner, *ids[at : at + CHUNK])

    def _call(self, do: Any) -> Any:
        return self._server.call(self.stream, do)

    def _begin(self) -> None:
        """Make the group, and take what other objects of this task had."""

        def make(client: Any) -> None:
            from redis.exceptions import ResponseError  # noqa: PLC0415 - as above

            try:
                client.xgroup_create(self.stream, self.group, id="0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):  # it is there
                    raise

        self._call(make)
        for name in _consumers(self._server, self.stream, self.group, self.place):
            if self.succeeds(name):
                self._server.eval(MOVE, [self.stream], self.group, name, self.owner)
        self._begun = True

    def _read(self, after: str, limit: int) -> list[Any]:
        found = self._call(lambda client: client.xreadgroup(self.group, self.owner, {self.stream: after}, count=limit))
        entries: list[Any] = found[0][1] if isinstance(found, list) and found else []
        return entries

    def _claimed(self, limit: int) -> list[Message]:
        """Take over entries of consumers that are gone."""
        # Not by XAUTOCLAIM: before Redis 7 it does not tell which entries were deleted, and claims them ever again.
        idle: list[Any] = []
        after = "-"
        while not idle:
            page = self._call(
                lambda client, after=after: client.xpending_range(
                    self.stream, self.group, after, "+", limit, idle=self._idle_ms
                )
            )
            if not page:
                return []
            idle = [each for each in page if Sealed.read(each["consumer"].decode(errors="backslashreplace")) is None]
            after = f"({page[-1]['message_id'].decode()}"
        tries = {each["message_id"]: each["times_delivered"] for each in idle}
        _, found = self._server.eval(CLAIM, [self.stream], self.group, self.owner, self._idle_ms, sealed_by(""), *tries)
        entries = [(id, dict(zip(fields[::2], fields[1::2], strict=True))) for id, fields in filter(None, found)]
        there = {id for id, values in entries if values}
        # The others were deleted, or another task was quicker.
        gone = [id for id in tries if id not in there and not self._call(partial(_entry, self.stream, id))]
        if gone:
            self.finish(gone)
        return [Message(id.decode(), self._values(id, values), tries[id]) for id, values in entries if values]

    def _again(self, entries: Sequence[Any]) -> list[Message]:
        """Return entries that this task had been given before; those that were deleted since are given up."""
        first, last = entries[0][0], entries[-1][0]
        found = self._call(
            lambda client: client.xpending_range(
                self.stream, self.group, first, last, 10 * len(entries), consumername=self.owner
            )
        )
        # To read them once more does not count as handed out; to take them over does.
        tries = {each["message_id"]: max(0, each["times_delivered"] - 1) for each in found}
        gone = [id for id, values in entries if not values]
        if gone:
            self.finish(gone)
        return [Message(id.decode(), self._values(id, values), tries.get(id, 0)) for id, values in entries if values]

    def _values(self, id: bytes, entry: Mapping[bytes, bytes]) -> tuple[Any, ...]:
        values = []
        for name, is_text in self._fields:
            value: Any = entry.get(name)
            if is_text and value is not None:
                try:
                    value = value.decode()
                except UnicodeDecodeError as error:
                    raise InputError(
                        f"entry {id.decode()} of {self.stream}: field {name.decode()!r} is not UTF-8 ({error}): "
                        "declare it as binary and decode it in a bolt, or take the entry off the queue (XACK "
                        f"{self.stream} {self.group} {id.decode()})",
                        field=name.decode(),
                        key=id.decode(),
                    ) from error
            values.append(value)
        return tuple(values)


def _entry(stream: str, id: bytes, client: Any) -> Any:
    return client.xrange(stream, id, id)


def _consumers(server: Server, stream: str, group: str, prefix: str) -> dict[str, int]:
    """Return the consumers of a group whose names begin so, and how many entries each has."""

    def ask(client: Any) -> Any:
        from redis.exceptions import ResponseError  # noqa: PLC0415 - as above

        try:
            return client.xinfo_consumers(stream, group)
        except ResponseError as error:
            if str(error).startswith("NOGROUP") or "no such key" in str(error):
                return []
            raise

    # Names of others are any bytes.
    found = {each["name"].decode(errors="backslashreplace"): each["pending"] for each in server.call(stream, ask)}
    return {name: pending for name, pending in found.items() if name.startswith(prefix)}


class _PendingAcks(PendingAcks):
    """A name is that of a consumer, which has the entries of its transaction."""

    def __init__(self, settings: Settings, stream: str, group: str) -> None:
        self._settings, self._stream, self._group = settings, stream, group

    @property
    def target(self) -> str:
        return f"{self._settings.address}#{self._stream}/{self._group}"

    @property
    def _server(self) -> Server:
        from statefx_redis.server import server_of  # noqa: PLC0415 - as above

        return server_of(self._settings)

    def check(self) -> None:
        self._server.check(SinkError, "messages")

    def seal(self, owner: str, ids: Sequence[str], name: str) -> None:
        found = Sealed.read(name)
        assert found is not None
        own = (self._group, owner, name, sealed_by(owner), found.txid, found.attempt)
        for at in range(0, len(ids), CHUNK):
            answer = self._server.eval(SEAL, [self._stream], *own, *ids[at : at + CHUNK])
            if answer[0] == b"LOST":
                has = answer[2].decode()
                raise TransactionConflictError(
                    f"{self.target}: entry {answer[1].decode()} was taken over "
                    f"{f'by consumer {has!r}' if has else 'and acknowledged by another consumer'}: it was not renewed "
                    "for longer than idleSecs. Nothing of the transaction is kept, and no message is lost: start "
                    "again, and set idleSecs higher",
                    txid=found.txid,
                )

    def acknowledge(self, name: str) -> None:
        self._each(FINISH, name)

    def sealed(self, prefix: str) -> Mapping[str, int]:
        found = _consumers(self._server, self._stream, self._group, prefix)
        return {name: pending for name, pending in found.items() if Sealed.read(name) is not None}

    def release(self, name: str) -> None:
        found = Sealed.read(name)
        assert found is not None
        self._each(MOVE, name, found.owner)

    def _each(self, script: str, *arguments: str) -> None:
        self._server.eval(script, [self._stream], self._group, *arguments)
