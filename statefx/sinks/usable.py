"""Whether a FileSink can use its folder: found out before a driver that is at work is fenced."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from statefx.errors import SinkError


def check_writable(folder: str) -> None:
    """Make sure that files can be made in a folder, and the folder itself if there is none; nothing is left behind.

    Whether a user may write is not asked for, but tried: root may write everywhere, and not to a file system that is
    read only, or that makes no folders, such as /sys.

    Parameters
    ----------
    folder : str
        Absolute.

    Raises
    ------
    OSError
        From the file system.
    """
    nearest = folder
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    os.rmdir(tempfile.mkdtemp(prefix=".probe-", dir=nearest))


@contextmanager
def told(folder: str) -> Iterator[None]:
    """Say which folder can't be used, why, and what to do.

    Raises
    ------
    SinkError
        For an OSError of the block.
    """
    try:
        yield
    except OSError as error:
        raise SinkError(
            f"FileSink can't write to the folder {folder} ({error}): give a folder in which this user may create "
            "files, on the driver and on the executors",
            path=folder,
        ) from error
