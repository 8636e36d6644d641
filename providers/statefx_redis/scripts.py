"""What has to happen at once on the server. Every script answers with a word and what belongs to it.

Scripts are sent with their text: a server that was restarted or replaced knows none. A script never fails after
its first write: types are looked at before, and memory is refused at the first write or not at all.
"""

from __future__ import annotations

_META = """
local function meta()
  local m = redis.call('HMGET', KEYS[1], 'generation', 'txid', 'token', 'count', 'committing_txid',
                       'committing_token', 'progress', 'lineage')
  return {generation = tonumber(m[1] or '0'), known = m[1], txid = tonumber(m[2] or '0'), token = m[3] or '',
          count = tonumber(m[4] or '0'), next_txid = m[5], next_token = m[6], progress = tonumber(m[7] or '0'),
          raw = m}
end
local function foreign(kinds)
  for i, kind in ipairs(kinds) do
    local found = redis.call('TYPE', KEYS[i])['ok']
    if found ~= 'none' and found ~= kind then
      return {'FOREIGN', KEYS[i], found, kind}
    end
  end
end
"""

_LOOK = """
local function look(token)
  return {meta().raw, redis.call('HLEN', KEYS[2]), redis.call('ZCARD', KEYS[3]),
          redis.call('HGET', KEYS[4], token), redis.call('HLEN', KEYS[5])}
end
"""

LOOK = f"""{_META}{_LOOK}
return foreign({{'hash', 'hash', 'zset', 'hash', 'hash'}}) or look(ARGV[1])
"""
"""keys of a namespace; token -> [meta, fields, ordered, entry, chunks]."""

SCAN = f"""{_META}{_LOOK}
local wrong = foreign({{'hash', 'hash', 'zset', 'hash', 'hash'}})
if wrong then return wrong end
local keys = redis.call('ZRANGEBYLEX', KEYS[3], ARGV[2], ARGV[3], 'LIMIT', 0, tonumber(ARGV[4]))
local values, size, most = {{}}, 0, tonumber(ARGV[5])
while #values < #keys and size < most do
  local part = redis.call('HMGET', KEYS[2], unpack(keys, #values + 1, math.min(#values + 50, #keys)))
  for i = 1, #part do
    values[#values + 1] = part[i]
    size = size + #(part[i] or '')
  end
end
local found = look(ARGV[1])
found[6], found[7] = keys, values
return found
"""
"""As `LOOK`; token, least, most, keys at most, bytes about -> as `LOOK`, with keys and values of the first of them."""

PREPARE = f"""{_META}
local wrong = foreign({{'hash', 'hash', 'hash'}})
if wrong then return wrong end
local m, entry = meta(), cjson.decode(ARGV[4])
if entry.generation < m.generation then return {{'FENCED', m.generation}} end
if m.txid ~= entry.base_txid or m.token ~= entry.base_token or m.next_token then
  return {{'MOVED', m.txid, m.token}}
end
if not m.known then
  if ARGV[1] ~= 'registered' then return {{'REGISTER'}} end
  redis.call('HSET', KEYS[1], 'generation', entry.generation, 'lineage', ARGV[2])
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('HSET', KEYS[3], unpack(ARGV, 5))
return {{'OK'}}
"""
"""meta, tokens, prepared; 'registered' or '', lineage, token, entry, field, chunk, ... -> OK."""

COMMIT = f"""{_META}
local wrong = foreign({{'hash', 'hash', 'zset', 'hash', 'hash'}})
if wrong then return wrong end
local data, order, tokens, prepared = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local generation, txid, token = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local m = meta()
if generation < m.generation then return {{'FENCED', m.generation}} end
if m.txid == txid and m.token == token then return {{'DONE'}} end
if txid <= m.txid then return {{'PASSED', m.txid, m.token}} end
local entry = redis.call('HGET', tokens, token)
if not entry then return {{'MISSING'}} end
entry = cjson.decode(entry)
if entry.txid ~= txid or redis.call('HLEN', prepared) ~= entry.chunks + 1 then return {{'MISSING'}} end
if m.txid ~= entry.base_txid or m.token ~= entry.base_token then return {{'MOVED', m.txid, m.token}} end
if m.next_token and m.next_token ~= token then return {{'PASSED', m.next_txid, m.next_token}} end
local fields, ordered = redis.call('HLEN', data), redis.call('ZCARD', order)
if fields ~= m.count or ordered ~= m.count then return {{'COUNT', m.count, fields, ordered}} end
local progress = m.progress
if progress < entry.chunks then
  local chunk = redis.call('HGET', prepared, tostring(progress))
  local sound, changes = pcall(cmsgpack.unpack, chunk)
  if not sound then return {{'MISSING'}} end
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

REGISTER = """
local newest = tonumber(redis.call('HGET', KEYS[1], 'generation') or '0')
if tonumber(ARGV[1]) < newest then return {'FENCED', newest} end
redis.call('SADD', KEYS[2], ARGV[2])
return {'OK'}
"""
"""keys of a lineage; generation, tag -> OK."""

FENCE = """
local newest = tonumber(redis.call('HGET', KEYS[1], 'generation') or '0')
if tonumber(ARGV[1]) < newest then return {'FENCED', newest} end
redis.call('HSET', KEYS[1], 'generation', ARGV[1])
return {'OK', redis.call('SMEMBERS', KEYS[2])}
"""
"""keys of a lineage; generation -> OK and the tags of its namespaces."""

RAISE = f"""{_META}
local wrong = foreign({{'hash'}})
if wrong then return wrong end
local m = meta()
if tonumber(ARGV[1]) < m.generation then return {{'FENCED', m.generation}} end
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'lineage', ARGV[2])
return {{'OK'}}
"""
"""meta; generation, lineage -> OK: the namespace refuses older generations."""

DROP = f"""{_META}
local wrong = foreign({{'hash', 'hash', 'hash'}})
if wrong then return wrong end
local m = meta()
if tonumber(ARGV[1]) < m.generation then return {{'FENCED', m.generation}} end
local entry = redis.call('HGET', KEYS[2], ARGV[2])
if not entry then return {{'KEPT'}} end
entry = cjson.decode(entry)
if entry.txid > m.txid or entry.generation > tonumber(ARGV[1]) then return {{'KEPT'}} end
redis.call('UNLINK', KEYS[3])
redis.call('HDEL', KEYS[2], ARGV[2])
return {{'DROPPED'}}
"""
"""meta, tokens, prepared; generation, token -> DROPPED, or KEPT."""
