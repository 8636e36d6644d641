"""State on a Redis server (or cluster), shared by all machines; and a sink that writes rows to one."""

from statefx_redis.provider import RedisStateProvider
from statefx_redis.sink import RedisSink

__all__ = ["RedisSink", "RedisStateProvider"]
