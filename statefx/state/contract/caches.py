"""The folder on a machine where providers and drivers keep what may be lost at any time."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress


def cache_folder() -> str:
    """Return where this user's folder for caches is on this machine: below the temporary folder. See `own_folder`."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    return os.path.join(tempfile.gettempdir(), f"statefx-{user}")


def own_folder(path: str) -> str:
    """Return a folder that this user alone can read and write, made if it is not there; PermissionError: it is not so.

    The temporary folder is everyone's: who makes this one there first could change state in it, or read it.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)  # not of what a link leads to: whoever made the link may let it lead elsewhere later
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return path
    raise PermissionError(
        errno.EACCES,
        f"caches need a folder that this user alone can read and write, and this is {stat.filemode(found.st_mode)}, of "
        f"user {found.st_uid}. Delete it while no topology runs on this machine, or name another place: set the "
        "environment variable TMPDIR before Python starts, or for caches of state RocksDB's option `dir`",
        path,
    )
