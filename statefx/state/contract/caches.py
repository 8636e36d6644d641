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
    """Return a folder, `cache_folder` as one that this user alone can read and write; PermissionError: it is not so.

    The temporary folder is everyone's: who makes this one there first could change state in it, or read it. Who names
    another, as a test does, answers for it.
    """
    if path != cache_folder():
        return path
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)  # not of what a link leads to: whoever made the link may let it lead elsewhere later
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        os.chmod(path, 0o700)  # one that was made by hand, say: others could look into it, and change nothing
        return path
    raise PermissionError(
        errno.EACCES,
        f"caches need a folder that this user alone can read and write, and this is {stat.filemode(found.st_mode)}, of "
        f"user {found.st_uid}. Delete it while no topology runs on this machine, or name another place: set the "
        "environment variable TMPDIR before Python starts, or for caches of state RocksDB's option `dir`",
        path,
    )
