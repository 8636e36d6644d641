"""The scripts of RedisSink: rows and marker in one of them, so that nobody sees one without the other."""

from __future__ import annotations

MARKER = ("application", "origin", "generation", "txid")
"""Fields of the marker's hash, as scripts are given them."""

STAGED_SECS = 3600
"""A driver that dies while it sends a large transaction leaves what it has sent; the server forgets it by itself."""

STAGE = f"""
local had = redis.call('LLEN', KEYS[1])
if had == tonumber(ARGV[1]) then
  redis.call('RPUSH', KEYS[1], unpack(ARGV, 2))
  redis.call('EXPIRE', KEYS[1], {STAGED_SECS})
  had = had + #ARGV - 1
end
return {{'OK', had}}
"""
"""staged; chunks that are there, chunk, ... -> OK, how many there are now. Again is a no-op: an answer may be lost."""

_FIELDS = ", ".join(f"'{name}'" for name in MARKER)

PUBLISH = f"""
if redis.replicate_commands then redis.replicate_commands() end  -- 6.2: ids of a stream's entries differ each time
local kind, staged = ARGV[1], tonumber(ARGV[2])
for i, wanted in ipairs({{'hash', kind, 'list'}}) do
  local found = redis.call('TYPE', KEYS[i])['ok']
  if found ~= 'none' and found ~= wanted then return {{'TYPE', KEYS[i], found, wanted}} end
end
local found = redis.call('HMGET', KEYS[1], {_FIELDS})
for i = 1, 4 do
  if (found[i] or '') ~= ARGV[2 + i] then return {{'MOVED'}} end
end
if redis.call('LLEN', KEYS[3]) ~= staged then return {{'LOST'}} end
local function add(chunk)
  local entries = cmsgpack.unpack(chunk)
  if kind == 'hash' then
    redis.call('HSET', KEYS[2], unpack(entries))
  elseif kind == 'list' then
    redis.call('RPUSH', KEYS[2], unpack(entries))
  else
    for _, entry in ipairs(entries) do
      redis.call('XADD', KEYS[2], '*', 'row', entry)
    end
  end
end
for i = 11, #ARGV do
  add(ARGV[i])
end
for _ = 1, staged do
  add(redis.call('LINDEX', KEYS[3], 0))  -- before LPOP: a script's first write must be one that a full server refuses
  redis.call('LPOP', KEYS[3])
end
redis.call('HSET', KEYS[1], 'application', ARGV[7], 'origin', ARGV[8], 'generation', ARGV[9], 'txid', ARGV[10])
return {{'OK'}}
"""
"""marker, data, staged; type of data, chunks staged, the marker before (or four empty texts), the marker, chunk, ...
-> OK; MOVED: the marker is another; TYPE: a key is of another type; LOST: what was staged is not there."""
