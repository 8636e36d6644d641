"""RedisSink: rows into a hash, a list or a stream of a Redis server, each transaction at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from statefx.connectors.staged import StagedRows, StagedSink, Stager, Target, refuse_nulls
from statefx.errors import ConfigError, SinkError, StateError, TopologyError
from statefx.operators.json_values import JsonRows, key_writer, refuse_keys
from statefx.operators.sinks import Marker, SinkWriter, WriterContext
from statefx.state.contract.store import require
from statefx_redis.scripts import BATCH_BYTES, CHUNK_BYTES, CHUNK_ENTRIES, grouped, packed
from statefx_redis.settings import Settings

if TYPE_CHECKING:
    from statefx_redis.server import Server

KINDS = ("hash", "list", "stream")

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

_NAME = re.compile(r"[^{}]+|[^{}]*\{([^{}]+)\}[^{}]*")


class RedisSink(StagedSink):
    """Writes rows to one key of a Redis server; each transaction once, and all of it at one moment.

    A hash has a field for each row, a list an item, a stream an entry with the field ``row``. Each holds the row as a
    JSON object (`statefx.operators.json_values`). The rows of a transaction and the marker, a key of its own, are
    written by one script: a reader sees all of them or none. Rows wait in the checkpoint until then.

    Parameters
    ----------
    url : str
        ``redis://user:password@host:6379/0``, ``rediss://`` (TLS) or ``unix://``. The driver connects alone.
    name : str
        The key that is written to.
    key : str or sequence of str
        For a hash: fields whose values name the row, as text; of several as a JSON array. A row whose name is there
        replaces it. Of several rows with one name in one transaction the last one counts; group by the key, so that all
        of them come from one task, in its order.
    kind : str
        ``hash``, ``list`` or ``stream``.
    options : Mapping, optional
        Further options of the redis state provider: ``cluster``, ``timeout_secs``, ``prefix`` of the marker and so on.

    Raises
    ------
    ConfigError
        An argument can't be used, or redis-py is not installed.

    Notes
    -----
    The server does nothing else while a transaction is published. A transaction of more than 1 MB is sent in parts
    before, to a key that expires by itself, and takes twice its memory for a moment.

    What the server forgets is gone, rows and marker together: after a crash without ``appendfsync always``, or a
    failover to a replica that lags behind. The sink notices that the marker is older than the checkpoint, and stops.
    """

    def __init__(
        self,
        url: str,
        name: str,
        key: str | Sequence[str] = (),
        *,
        kind: str = "hash",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        require("redis", "redis", "RedisSink", "the driver", ConfigError)
        self.key = (key,) if isinstance(key, str) else tuple(key)
        if kind not in KINDS:
            raise ConfigError(f"RedisSink has no kind {kind!r}; there are {', '.join(map(repr, KINDS))}")
        if (kind == "hash") != bool(self.key):
            wants = "needs the fields that name a row: key='id'" if kind == "hash" else "has no key: leave it out"
            raise ConfigError(f"RedisSink: a {kind} {wants}")
        found = _NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None:
            raise ConfigError(
                f"RedisSink needs the name of a key, got {name!r}; braces in it are for one part, {{...}}, which says "
                "where a Redis Cluster keeps it"
            )
        self.settings = Settings.of({**(options or {}), "url": url}, "RedisSink")
        self.name = name
        self.kind = kind
        self._tag = found[1] or name

    @property
    def target(self) -> str:
        """The server's address without user and password, and the key."""
        return f"{self.settings.address}#{self.name}"

    def companion(self, what: str) -> str:
        """Return the name of a key on the same node of a cluster."""
        return f"{self.settings.prefix}:{{{self._tag}}}:{what}:{self.name}"

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse keys that there are not, and those that are no text; and fields that JSON can't hold."""
        refuse_keys(schema, "RedisSink")
        for name in self.key:
            if schema.get_field_index(name) < 0:
                raise TopologyError(f"RedisSink's key is {name!r}; its rows have {', '.join(schema.names)}", field=name)
            kind = schema.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                raise TopologyError(f"RedisSink's key can't be {name!r}, which is {kind}", field=name)

    def writer(self, context: WriterContext) -> SinkWriter:
        return _Writer(self, context)

    def connect(self, schema: pa.Schema) -> Target:
        """Return the target; it connects when it is first asked something."""
        return _RedisTarget(self)


_ROW = pa.schema([("row", pa.binary())])
_NAMED_ROW = pa.schema([("name", pa.binary()), ("row", pa.binary())])


class _Writer(Stager):
    """Stages rows as the server will have them: what has no such form is refused, and the transaction rolled back."""

    def __init__(self, sink: RedisSink, context: WriterContext) -> None:
        super().__init__(replace(context, schema=_NAMED_ROW if sink.key else _ROW))
        self._sink = sink
        self._json = JsonRows(context.schema)
        self._key_of = key_writer([context.schema.field(name).type for name in sink.key]) if sink.key else None

    def write(self, batch: pa.RecordBatch) -> None:
        refuse_nulls(self._sink.target, self._sink.key, batch)
        columns = [pa.array(self._json.encode(batch), pa.binary())]
        if self._key_of is not None:
            keys = zip(*(batch.column(name).to_pylist() for name in self._sink.key), strict=True)
            columns.insert(0, pa.array([self._key_of(key) for key in keys], pa.binary()))
        super().write(pa.RecordBatch.from_arrays(columns, schema=_NAMED_ROW if self._sink.key else _ROW))


class _RedisTarget(Target):
    """The key that is written to, and the key of its marker."""

    def __init__(self, sink: RedisSink) -> None:
        self._sink = sink
        self._marker = sink.companion("marker")

    def check(self) -> None:
        """Refuse a server that can't keep rows, and a key that is something else (see `Target.check`)."""
        with self._server() as server:
            server.check(SinkError, "rows")
            name = self._sink.name
            found = server.call(name, lambda client: client.type(name)).decode()
            if found not in ("none", self._sink.kind):
                raise self._type_error(name, found, self._sink.kind)

    def marker(self) -> Marker | None:
        with self._server() as server:
            found = server.call(self._marker, lambda client: client.hmget(self._marker, MARKER))
        if not any(found):
            return None
        if not all(found) or not found[2].isdigit() or not found[3].lstrip(b"-").isdigit():
            raise SinkError(
                f"{self._sink.target}: somebody has changed its marker, {self._marker}: restore it from a backup; or "
                "delete it, and start with adopt='takeover' if you know which rows are there",
                target=self._sink.target,
            )
        return Marker(found[0].decode(), found[1].decode(), int(found[2]), int(found[3]))

    def publish(self, marker: Marker, previous: Marker | None, rows: StagedRows) -> None:
        """Send the rows, in parts if they are many, and have one script write all of them."""
        with self._server() as server:
            staged, at_once, count = self._sink.companion(f"staged:{uuid4().hex}"), list[bytes](), 0
            for batch in _batches(rows):
                if at_once:
                    count = self._stage(server, staged, count, at_once)
                at_once = batch
            if count:  # the script is then short, and what it is sent is nothing that has to be sent again
                count, at_once = self._stage(server, staged, count, at_once), []
            before = ("",) * 4 if previous is None else astuple(previous)
            keys = [self._marker, self._sink.name, staged]
            answer = server.eval(PUBLISH, keys, self._sink.kind, count, *before, *astuple(marker), *at_once)
        self._take(answer)

    def _stage(self, server: Server, staged: str, count: int, chunks: Sequence[bytes]) -> int:
        answer = server.eval(STAGE, [staged], count, *chunks)
        if answer[1] != count + len(chunks):
            raise self._lost()
        return count + len(chunks)

    def _take(self, answer: Sequence[Any]) -> None:
        match answer[0]:
            case b"MOVED":
                raise SinkError(
                    f"{self._sink.target}: another driver has published meanwhile", target=self._sink.target
                )
            case b"TYPE":
                raise self._type_error(*(each.decode() for each in answer[1:]))
            case b"LOST":
                raise self._lost()

    def _type_error(self, key: str, found: str, wanted: str) -> SinkError:
        return SinkError(
            f"{self._sink.target}: {key} is a {found}, and RedisSink writes a {wanted} there: give the sink another "
            "name, or rename what is there",
            target=self._sink.target,
        )

    def _lost(self) -> SinkError:
        return SinkError(
            f"{self._sink.target}: the server has lost rows that were sent to it and not published yet; all are sent "
            "again",
            target=self._sink.target,
        )

    @contextmanager
    def _server(self) -> Iterator[Server]:
        """Yield the server, whose errors speak of state."""
        from statefx_redis.server import server_of  # noqa: PLC0415  # imports redis, an extra

        try:
            yield server_of(self._sink.settings)
        except StateError as error:
            raise SinkError(error.message, target=self._sink.target) from error


def _batches(staged: StagedRows) -> Iterator[list[bytes]]:
    """Yield chunks for one round trip each; of a chunk the server writes all rows with one command.

    A row is its name, if it has one, and its text.
    """
    rows = (zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in staged)
    sized = ((row, sum(map(len, row))) for row in chain.from_iterable(rows))
    chunks = (packed(list(chain.from_iterable(some))) for some in grouped(sized, CHUNK_BYTES, CHUNK_ENTRIES))
    return grouped(((chunk, len(chunk)) for chunk in chunks), BATCH_BYTES)
