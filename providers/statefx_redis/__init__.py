"""State on a Redis server (or cluster), shared by all machines."""

from statefx_redis.provider import RedisStateProvider

__all__ = ["RedisStateProvider"]
