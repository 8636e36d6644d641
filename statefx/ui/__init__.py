"""The page of a topology: what it does, what is wrong and why, in a browser; it reads, and never writes.

A query opens it with ``topology.ui.port``; ``statefx ui CHECKPOINT`` opens it for a checkpoint whose driver is dead or
elsewhere. Needs the extra ``ui``, which is imported by `opened` alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from statefx.checkpoint import Checkpoint
from statefx.errors import ConfigError

if TYPE_CHECKING:
    from statefx.ui.serving import Page

__all__: list[str] = []

_PACKAGES = ("starlette", "uvicorn")


def claimed(
    host: str, port: int, name: str, location: str | os.PathLike[str], config: Mapping[str, Any] | None = None
) -> Page:
    """Take the port of a query that is about to start; the page is shown when `Page.show` is called.

    Parameters
    ----------
    host : str
        An address of this machine, or a name of one; ``0.0.0.0`` and ``::`` are all of them.
    port : int
        0 takes any that is free. Queries of one process may share one.
    name : str
        The topology's.
    location, config
        Its checkpoint, and the settings, as of `Checkpoint`.

    Raises
    ------
    ConfigError
        The extra is not installed, the port is taken, or the address is none of this machine's.
    """
    check_installed("topology.ui.port")
    from statefx.ui.serving import claim

    return claim(host, port, name, Checkpoint(location, config))


def check_installed(wanted: str) -> None:
    """Raise ConfigError if the extra is not installed; `wanted` is what needs it."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ConfigError(
            f"{wanted} opens a page, which takes {' and '.join(missing)}: pip install 'statefx[ui]' where it runs",
            packages=missing,
        )
