"""Writes the checkpoints of a release, with what they hold: ``python -m tests.releases.make``.

Only when a release is made, or when the format changes before it: checkpoints of a release are never written again.
"""

import gzip
import io
import json
import pickle
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from statefx import __version__
from tests.providers.redis_server import RedisServer
from tests.releases.kinds import KINDS, Kind

FOLDER = Path(__file__).parent
DUMP = "redis"
"""The file with what a Redis server has of a checkpoint."""


@contextmanager
def configured(kind: Kind, server: RedisServer | None) -> Iterator[dict[str, Any]]:
    """Yield the settings of a kind; with a server, it gets what the file `DUMP` has, and that file what it has then."""
    config: dict[str, Any] = {"topology.state.provider": kind.provider}
    if server is None:
        yield config
        return
    client = server.client()
    client.flushall()
    for key, data in pickle.loads(Path(DUMP).read_bytes()).items() if Path(DUMP).exists() else ():
        client.restore(key, 0, data)
    yield {**config, "topology.state.provider.config": {"url": server.url}}
    Path(DUMP).write_bytes(pickle.dumps({key: client.dump(key) for key in sorted(client.keys())}))


def packed(folder: Path) -> bytes:
    """Return all files below a folder, as an archive that depends on nothing else."""
    data = io.BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.type = tarfile.DIRTYPE if path.is_dir() else tarfile.REGTYPE
            entry.mode, content = 0o755 if path.is_dir() else 0o644, b"" if path.is_dir() else path.read_bytes()
            entry.size, entry.mtime = len(content), int(path.stat().st_mtime)
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def main(out: Path) -> None:
    out.mkdir(exist_ok=True)
    with RedisServer(appendonly="no") as redis:
        for name, kind in KINDS.items():
            server = redis if kind.provider == "redis" else None
            with tempfile.TemporaryDirectory() as folder, chdir(folder):
                with configured(kind, server) as config:
                    kind.make(config)
                archive = packed(Path.cwd())
                with configured(kind, server) as config:
                    recorded: dict[str, Any] = {"shown": kind.shown(config)}
                    recorded["emitted"] = kind.go_on(config)
                    recorded["later"] = kind.shown(config)
            (out / f"{name}.tar.gz").write_bytes(archive)
            (out / f"{name}.json").write_text(json.dumps(recorded, indent=1) + "\n")
            print(name, len(archive), "bytes")


if __name__ == "__main__":
    main(FOLDER / (sys.argv[1] if len(sys.argv) > 1 else __version__))
