"""The folder that a spout reads, and the remedies for paths that are not folders."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit

from statefx.errors import InputError, TopologyError

_MANIFESTS = ("_spark_metadata", "_statefx")
_REMEDY = "Mount it, or let Spark read it: setStream(id, spark.readStream.format(...).schema(...).load(path))"


def folder_of(given: Any) -> str:
    """Return the absolute path of a folder, which need not be there yet.

    Raises
    ------
    TopologyError
        It is a URL, a pattern, a file, or begins with ``~``: as a path it would be a folder that never has a file.
    """
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path.strip():
        raise TopologyError(f"path={given!r}: it is a folder, such as 'data/in'")
    if scheme := re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", path):
        if scheme[1].lower() != "file":
            raise TopologyError(
                f"path={path!r}: FilePartitionedSpout reads folders of the file system, and no URLs. {_REMEDY}"
            )
        url = urlsplit(path)
        if url.netloc not in ("", "localhost"):
            raise TopologyError(f"path={path!r} names the host {url.netloc!r}: write file:///{url.netloc}{url.path}")
        path = unquote(url.path)
    if path.startswith("~"):
        raise TopologyError(f"path={path!r}: ~ is not resolved. Write os.path.expanduser({path!r})")
    resolved = os.path.abspath(path)
    if os.path.isdir(resolved):
        return resolved
    if re.search(r"[*?\[{]", path):
        raise TopologyError(
            f"path={path!r}: patterns are not resolved. Name the folder; all of its files are read, except those whose "
            "names begin with _ or ., and files of its subfolders"
        )
    _refuse_file(resolved)
    return resolved


def refuse_missing(folder: str) -> None:
    """Refuse a folder that is not there when its topology starts: it would be waited for without an end."""
    if not os.path.isdir(folder):
        _refuse_file(folder)
        raise InputError(
            f"{folder} is not there, or the driver may not see it: correct the path (a relative one begins at the "
            "folder in which the program runs), or make the folder before the start",
            path=folder,
        )


def _refuse_file(path: str) -> None:
    if os.path.exists(path):
        raise TopologyError(
            f"{path} is no folder: FilePartitionedSpout reads all files of a folder. Put the file into a folder of its "
            "own, and name that"
        )


def refuse_manifest(folder: str) -> None:
    """Refuse a folder in which a manifest, not the presence of a file, says what is committed."""
    for name in _MANIFESTS:
        if os.path.exists(os.path.join(folder, name)):
            raise TopologyError(
                f"{folder} has {name}: a sink writes there, and its folder also has files of transactions that "
                "are not committed. Read it with setStream(id, readCommitted(spark, path, stream=True))"
            )
