"""State on a Redis server (or cluster), shared by all machines; a sink that writes to one; a spout of a stream."""

from statefx_redis.provider import RedisStateProvider
from statefx_redis.sink import RedisSink
from statefx_redis.spout import RedisStreamSpout

__all__ = ["RedisSink", "RedisStateProvider", "RedisStreamSpout"]
