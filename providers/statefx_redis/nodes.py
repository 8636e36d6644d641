"""What a server must be to keep state, or the rows of a sink."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from statefx.errors import DeniedError, StatefxError

if TYPE_CHECKING:
    from statefx_redis.server import Server

logger = logging.getLogger("statefx")

OLDEST = (6, 2)


def check_nodes(server: Server, refusal: type[StatefxError], kept: str) -> None:
    """Refuse servers that can't keep what is `kept` there, by an error of the class `refusal`."""
    try:
        nodes = server.nodes()
    except DeniedError as error:
        raise refusal(error.message, **error.data) from None
    for info in nodes:
        _check_node(server.settings.address, info, refusal, kept)


def _check_node(address: str, info: Mapping[str, Any], refusal: type[StatefxError], kept: str) -> None:
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST:
        raise refusal(f"{address} is Redis {version}: 6.2 or later is needed", server=address)
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise refusal(
            f"{address} may evict {kept} (maxmemory-policy {policy}): set maxmemory-policy noeviction",
            server=address,
            policy=policy,
        )
    if info.get("role") == "slave":
        raise refusal(f"{address} is a read-only replica: give the url of the primary", server=address)
    if str(info.get("aof_enabled", "1")) == "0":
        logger.warning(
            "%s has appendonly off: after a crash of the server it may be older than the checkpoint, and %s is then "
            "refused as such; set appendonly yes",
            address,
            kept,
        )


def require_redis(who: str, where: str, refusal: type[StatefxError]) -> None:
    """Refuse to go on without redis-py."""
    try:
        import redis  # noqa: F401, PLC0415  # only whether it is there
    except ImportError as error:
        raise refusal(
            f"{who} needs redis-py, which can't be imported on {where} ({error}): pip install statefx[redis]"
        ) from error
