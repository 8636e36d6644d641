"""The page of a topology: what it does, what is wrong and why, in a browser; it reads, and never writes.

A query opens it with ``topology.ui.port``; ``statefx ui CHECKPOINT`` opens it for a checkpoint whose driver is dead or
elsewhere. Needs the extra ``ui``, which is imported by `opened` alone.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from statefx.errors import ConfigError

if TYPE_CHECKING:
    from statefx.ui.serving import Server

__all__: list[str] = []

_PACKAGES = ("starlette", "uvicorn")


def opened(host: str, port: int, wanted: str = "topology.ui.port") -> Server:
    """Return a server that has the port, before anything is shown on it.

    Parameters
    ----------
    host : str
        An address of this machine, or a name of one; ``0.0.0.0`` and ``::`` are all of them.
    port : int
        0 takes any that is free.
    wanted : str
        Who asks for it, for errors.

    Raises
    ------
    ConfigError
        The extra is not installed, the port is taken, or the address is none of this machine's.
    """
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ConfigError(
            f"{wanted} opens a page, which takes {' and '.join(missing)}: pip install 'statefx[ui]' where the driver "
            "runs, or leave it out",
            packages=missing,
        )
    from statefx.ui.serving import opened

    return opened(host, port, wanted)
