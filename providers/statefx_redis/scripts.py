"""The protocol with the server: names of keys, changes in chunks, scripts and their answers.

A script is what has to happen at once on the server. Every script answers with a word and what belongs to it.

Scripts are sent with their text: a server that was restarted or replaced knows none. A script never fails after
its first write: types are looked at before, and memory is refused at the first write or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import quote, unquote

import msgpack

from statefx.errors import FencedError, StateCorruptedError
from statefx.state.contract.store import Namespace, TaskId


@dataclass(frozen=True, slots=True)
class Names:
    """The keys of one namespace; `tag` is ``lineage:component:task``, percent-encoded, so no name runs into another."""

    prefix: str
    tag: str

    @classmethod
    def of(cls, prefix: str, namespace: Namespace) -> Self:
        return cls(prefix, f"{quote(namespace.lineage, '')}:{quote(namespace.component, '')}:{namespace.task}")

    def are_of(self, lineage: str) -> bool:
        """Return whether they can be names of a task of `lineage`."""
        of, *task = self.tag.split(":")
        return of == quote(lineage, "") and len(task) == 2 and task[1].isdecimal()

    @property
    def task(self) -> TaskId:
        _, component, number = self.tag.split(":")
        return TaskId(unquote(component), int(number))

    def _key(self, last: str) -> str:
        return f"{self.prefix}:{{{self.tag}}}:{last}"

    @property
    def meta(self) -> str:
        """Hash: the version that is committed, and the commit that is under way."""
        return self._key("meta")

    @property
    def data(self) -> str:
        """Hash: committed keys and values."""
        return self._key("data")

    @property
    def order(self) -> str:
        """Sorted set: the committed keys, in the order of their bytes."""
        return self._key("order")

    @property
    def tokens(self) -> str:
        """Hash: every prepared token, and what it stands for."""
        return self._key("tokens")

    def prepared(self, token: str) -> str:
        """Hash: the changes that `token` names, in chunks."""
        return self._key(f"prepared:{token}")

    def all(self, token: str) -> list[str]:
        """Return the keys that scripts take, in their order."""
        return [self.meta, self.data, self.order, self.tokens, self.prepared(token)]


def lineage_keys(prefix: str, lineage: str) -> list[str]:
    """Return the keys of a lineage: a hash with its generation, and the set of its namespaces' tags."""
    tag = f"{prefix}:{{{quote(lineage, '')}}}"
    return [f"{tag}:lineage", f"{tag}:namespaces"]


CHUNK_ENTRIES = 500
"""Entries in a chunk: one script call moves no more, and Lua hands 8,000 arguments to a command at most."""

CHUNK_BYTES = 256 << 10
"""Keys and values, or rows, in a chunk; one that is longer has a chunk of its own."""

BATCH_BYTES = 1 << 20
"""Chunks sent in one round trip, unless one is longer. A sink's transaction that fits in one is not staged first."""

_Item = TypeVar("_Item")


def grouped(sized: Iterable[tuple[_Item, int]], most_bytes: int, most: float = math.inf) -> Iterator[list[_Item]]:
    """Yield the items in lists of `most` at most and of `most_bytes`; one that is longer has a list of its own."""
    group: list[_Item] = []
    size = 0
    for item, more in sized:
        if group and (len(group) >= most or size + more > most_bytes):
            yield group
            group, size = [], 0
        group.append(item)
        size += more
    if group:
        yield group


def packed(parts: Sequence[list[bytes]] | Sequence[bytes]) -> bytes:
    """Return `parts` as the server's scripts read them: raw strings, which any server's cmsgpack knows."""
    data: bytes = msgpack.packb(parts, use_bin_type=False)
    return data


REMEDY = (
    "restore the server from a backup that is as new as the checkpoint, or start again with a new "
    "checkpointLocation; keep persistence on and maxmemory-policy noeviction"
)


def sound(answer: Any) -> Any:
    """Return a script's answer, unless it has found a key damaged, or a newer generation."""
    if answer[0] == b"DAMAGED":
        raise damaged(text(answer[1]), text(answer[2]))
    if answer[0] == b"FENCED":
        raise fenced(text(answer[1]), answer[2], int(answer[3]))
    return answer


def fenced(key: str, newest: int, generation: int) -> FencedError:
    return FencedError(
        f"{key}: generation {newest} has taken over from generation {generation}; stop this driver",
        generation=generation,
        newest=newest,
    )


def damaged(key: str, what: str) -> StateCorruptedError:
    return StateCorruptedError(f"{key}: {what}: someone overwrote it. To go on, {REMEDY}.", path=key, missing=False)


def text(found: bytes) -> str:
    """Return bytes of the server to be compared and shown; ours are ASCII, those of others may be anything."""
    return found.decode("utf-8", "backslashreplace")


_SOUND = """
local function damaged(key, what)
  return {'DAMAGED', key, what}
end
local function whole(text)
  return #text < 16 and string.find(text, '^%d+$') ~= nil
end
local function number(key, field)
  local text = redis.call('HGET', key, field) or '0'
  if whole(text) then return tonumber(text) end
  return nil, damaged(key, 'its field ' .. field .. ' holds no number')
end
local function foreign(kinds)
  for i, kind in ipairs(kinds) do
    local found = redis.call('TYPE', KEYS[i])['ok']
    if found ~= 'none' and found ~= kind then
      return damaged(KEYS[i], 'it is a ' .. found .. ', where statefx keeps a ' .. kind)
    end
  end
end
"""
"""Whatever a script reads, it looks at before it computes with it: a script's own error says nothing of the key."""

_META = f"""{_SOUND}
local FIELDS = {{'generation', 'txid', 'token', 'count', 'committing_txid', 'committing_token', 'progress', 'lineage'}}
local PAIRS = {{{{1, 8}}, {{2, 3}}, {{5, 6}}, {{5, 7}}}}
local function meta()
  local m = redis.call('HMGET', KEYS[1], unpack(FIELDS))
  for _, i in ipairs({{1, 2, 4, 5, 7}}) do
    if m[i] and not whole(m[i]) then
      return nil, damaged(KEYS[1], 'its field ' .. FIELDS[i] .. ' holds no number')
    end
  end
  local lost = (m[2] or m[4] or m[5]) and not m[1] and 1
  for _, pair in ipairs(PAIRS) do
    if m[pair[1]] and not m[pair[2]] then lost = pair[2] end
    if m[pair[2]] and not m[pair[1]] then lost = pair[1] end
  end
  if lost then
    return nil, damaged(KEYS[1], 'its field ' .. FIELDS[lost] .. ' is gone')
  end
  return {{generation = tonumber(m[1] or '0'), known = m[1], txid = tonumber(m[2] or '0'), token = m[3] or '',
          count = tonumber(m[4] or '0'), next_txid = m[5], next_token = m[6], progress = tonumber(m[7] or '0'),
          raw = m}}
end
"""
"""A namespace's meta hash; fields that are written together, `PAIRS`, must be there together."""

_ENTRY = """
local function entry_of(key, token)
  local text = redis.call('HGET', key, token)
  if not text then return nil end
  local sound, entry = pcall(cjson.decode, text)
  sound = sound and type(entry) == 'table' and type(entry.base_token) == 'string'
  for _, name in ipairs({'txid', 'generation', 'base_txid', 'chunks'}) do
    sound = sound and type(entry[name]) == 'number' and entry[name] == math.floor(entry[name])
  end
  if sound then return entry end
  return nil, damaged(key, 'its field ' .. token .. ' is not what was written')
end
"""
"""How a token is registered; see `prepared.Entry`."""

_ORDERED = """
local function ordered(key)
  local members = redis.call('ZCARD', key)
  if redis.call('ZCOUNT', key, '0', '0') == members then return members end
  return nil, damaged(key, 'some of its scores are not 0, so that its order is not that of the keys')
end
"""

_LOOK = f"""{_ENTRY}{_ORDERED}
local function look(token)
  local m, wrong = meta()
  if wrong then return wrong end
  local entry, unsound = entry_of(KEYS[4], token)
  if unsound then return unsound end
  local members, unordered = ordered(KEYS[3])
  if unordered then return unordered end
  return {{m.raw, redis.call('HLEN', KEYS[2]), members,
          entry and {{entry.txid, entry.generation, entry.base_txid, entry.base_token, entry.chunks}} or false,
          redis.call('HLEN', KEYS[5])}}
end
"""

LOOK = f"""{_META}{_LOOK}
return foreign({{'hash', 'hash', 'zset', 'hash', 'hash'}}) or look(ARGV[1])
"""
"""keys of a namespace; token -> [meta, fields, ordered, entry, chunks]."""

SCAN = f"""{_META}{_LOOK}
local wrong = foreign({{'hash', 'hash', 'zset', 'hash', 'hash'}})
if wrong then return wrong end
local keys
if ARGV[6] == '1' then
  keys = redis.call('ZREVRANGEBYLEX', KEYS[3], ARGV[3], ARGV[2], 'LIMIT', 0, tonumber(ARGV[4]))
else
  keys = redis.call('ZRANGEBYLEX', KEYS[3], ARGV[2], ARGV[3], 'LIMIT', 0, tonumber(ARGV[4]))
end
local values, size, most = {{}}, 0, tonumber(ARGV[5])
while #values < #keys and size < most do
  local part = redis.call('HMGET', KEYS[2], unpack(keys, #values + 1, math.min(#values + 50, #keys)))
  for i = 1, #part do
    values[#values + 1] = part[i]
    size = size + #(part[i] or '')
  end
end
local found = look(ARGV[1])
if found[1] ~= 'DAMAGED' then found[6], found[7] = keys, values end
return found
"""
"""As `LOOK`; token, least, most, keys at most, bytes about, '1' for the last ones first -> as `LOOK`, with keys, and
values of the first of them."""

COUNT = f"""{_META}{_LOOK}
local wrong = foreign({{'hash', 'hash', 'zset', 'hash', 'hash'}})
if wrong then return wrong end
local found = look(ARGV[1])
if found[1] ~= 'DAMAGED' then found[6] = redis.call('ZLEXCOUNT', KEYS[3], ARGV[2], ARGV[3]) end
return found
"""
"""As `LOOK`; token, least, most -> as `LOOK`, with how many keys there are between."""

PREPARE = f"""{_META}{_ENTRY}
local wrong = foreign({{'hash', 'hash', 'hash'}})
if wrong then return wrong end
local m, unsound = meta()
if unsound then return unsound end
local entry = cjson.decode(ARGV[4])
if entry.generation < m.generation then return {{'FENCED', KEYS[1], m.generation, entry.generation}} end
if m.txid ~= entry.base_txid or m.token ~= entry.base_token or m.next_token then
  return {{'MOVED', m.txid, m.token}}
end
local before, unregistered = entry_of(KEYS[2], ARGV[3])
if unregistered then return unregistered end
if before and before.chunks >= 0 then return {{'OK'}} end  -- a late copy: by now all is there, and may be decided
if not m.known then
  if ARGV[1] ~= 'registered' then return {{'REGISTER'}} end
  redis.call('HSET', KEYS[1], 'generation', entry.generation, 'lineage', ARGV[2])
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('HSET', KEYS[3], unpack(ARGV, 5))
return {{'OK'}}
"""
"""meta, tokens, prepared; 'registered' or '', lineage, token, entry, field, chunk, ... -> OK. Again is a no-op."""

_CHUNK = """
local function chunk_of(key, field)
  local sound, changes = pcall(cmsgpack.unpack, redis.call('HGET', key, field) or '')
  sound = sound and type(changes) == 'table' and type(changes[1]) == 'table' and type(changes[2]) == 'table'
  sound = sound and #changes[2] % 2 == 0
  for part = 1, sound and 2 or 0 do
    for _, text in ipairs(changes[part]) do
      sound = sound and type(text) == 'string'
    end
  end
  if sound then return changes end
  return nil, damaged(key, 'its chunk ' .. field .. ' is not what was written')
end
"""

COMMIT = f"""{_META}{_ENTRY}{_ORDERED}{_CHUNK}
local wrong = foreign({{'hash', 'hash', 'zset', 'hash', 'hash'}})
if wrong then return wrong end
local data, order, tokens, prepared = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local generation, txid, token = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local m, unsound = meta()
if unsound then return unsound end
if generation < m.generation then return {{'FENCED', KEYS[1], m.generation, generation}} end
if m.txid == txid and m.token == token then return {{'DONE'}} end
if txid <= m.txid then return {{'PASSED', m.txid, m.token}} end
local entry, unregistered = entry_of(tokens, token)
if unregistered then return unregistered end
if not entry then return {{'MISSING'}} end
if entry.txid ~= txid or redis.call('HLEN', prepared) ~= entry.chunks + 1 then return {{'MISSING'}} end
if m.txid ~= entry.base_txid or m.token ~= entry.base_token then return {{'MOVED', m.txid, m.token}} end
if m.next_token and m.next_token ~= token then return {{'PASSED', m.next_txid, m.next_token}} end
local members, unordered = ordered(order)
if unordered then return unordered end
local fields = redis.call('HLEN', data)
if fields ~= m.count or members ~= m.count then return {{'COUNT', m.count, fields, members}} end
local progress = m.progress
if progress < entry.chunks then
  local changes, unread = chunk_of(prepared, tostring(progress))
  if unread then return unread end
  local gone, put, ranks = changes[1], changes[2], {{}}
  for i = 1, #put, 2 do
    ranks[i], ranks[i + 1] = '0', put[i]
  end
  progress = progress + 1
  redis.call('HSET', KEYS[1], 'generation', generation, 'committing_txid', txid, 'committing_token', token,
             'progress', progress)
  if #put > 0 then
    if redis.call('HSET', data, unpack(put)) > 0 then  -- keys that were there are in order already
      redis.call('ZADD', order, unpack(ranks))
    end
  end
  if #gone > 0 then
    redis.call('HDEL', data, unpack(gone))
    redis.call('ZREM', order, unpack(gone))
  end
  redis.call('HSET', KEYS[1], 'count', redis.call('HLEN', data))
end
if progress < entry.chunks then return {{'MORE', progress, entry.chunks}} end
redis.call('HSET', KEYS[1], 'generation', generation, 'txid', txid, 'token', token)
redis.call('HDEL', KEYS[1], 'committing_txid', 'committing_token', 'progress')
redis.call('HDEL', tokens, token)
redis.call('UNLINK', prepared)
return {{'DONE'}}
"""
"""keys of a namespace; generation, txid, token -> one more chunk is applied: MORE, or DONE."""

_NEWEST = f"""{_SOUND}
local wrong = foreign({{'hash', 'set'}})
if wrong then return wrong end
local newest, unsound = number(KEYS[1], 'generation')
if unsound then return unsound end
if tonumber(ARGV[1]) < newest then return {{'FENCED', KEYS[1], newest, ARGV[1]}} end
"""

REGISTER = f"""{_NEWEST}
redis.call('SADD', KEYS[2], ARGV[2])
return {{'OK'}}
"""
"""keys of a lineage; generation, tag -> OK."""

FENCE = f"""{_NEWEST}
redis.call('HSET', KEYS[1], 'generation', ARGV[1])
return {{'OK', redis.call('SMEMBERS', KEYS[2])}}
"""
"""keys of a lineage; generation -> OK and the tags of its namespaces."""

RAISE = f"""{_META}
local wrong = foreign({{'hash'}})
if wrong then return wrong end
local m, unsound = meta()
if unsound then return unsound end
if tonumber(ARGV[1]) < m.generation then return {{'FENCED', KEYS[1], m.generation, ARGV[1]}} end
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'lineage', ARGV[2])
return {{'OK'}}
"""
"""meta; generation, lineage -> OK: the namespace refuses older generations."""

DROP = f"""{_META}{_ENTRY}
local wrong = foreign({{'hash', 'hash', 'hash'}})
if wrong then return wrong end
local m, unsound = meta()
if unsound then return unsound end
if tonumber(ARGV[1]) < m.generation then return {{'FENCED', KEYS[1], m.generation, ARGV[1]}} end
local entry, unregistered = entry_of(KEYS[2], ARGV[2])
if unregistered then return unregistered end
if not entry then return {{'KEPT'}} end
if entry.txid > m.txid or entry.generation > tonumber(ARGV[1]) then return {{'KEPT'}} end
redis.call('UNLINK', KEYS[3])
redis.call('HDEL', KEYS[2], ARGV[2])
return {{'DROPPED'}}
"""
"""meta, tokens, prepared; generation, token -> DROPPED, or KEPT."""

FORGET = f"""{_META}
local wrong = foreign({{'hash', 'hash', 'zset', 'hash'}})
if wrong then return wrong end
local m, unsound = meta()
if unsound then return unsound end
if not m.known or tonumber(ARGV[1]) < m.generation then return {{'KEPT'}} end
local txid = tonumber(m.next_txid or m.txid)
if txid > tonumber(ARGV[2]) then return {{'AHEAD', txid, m.next_token or m.token}} end
redis.call('UNLINK', unpack(KEYS))
return {{'DROPPED'}}
"""
"""keys of a namespace, and of all that is prepared in it; generation, txid -> DROPPED; KEPT: it is a newer
generation's, or about to be written for the first time; AHEAD: it has come, or is about to come, further than that."""

UNREGISTER = f"""{_NEWEST}
redis.call('SREM', KEYS[2], ARGV[2])
return {{'OK'}}
"""
"""keys of a lineage; generation, tag -> OK."""
