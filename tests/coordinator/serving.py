"""A driver that only serves requests, as a process of its own: ``python -m tests.coordinator.serving FOLDER DIES``.

It takes a savepoint when it is asked to, and dies by SIGKILL ``before`` or ``after`` that, or is ``suspended``
before it; ``never`` has it live.
"""

import os
import signal
import sys
import threading
from typing import Any

from statefx.coordinator.requests import RequestServer
from statefx.log import pins
from statefx.log.location import Folders
from statefx.log.log import TransactionLog
from statefx.log.takeover import read_checkpoint, take_generation
from statefx.state.registry import load_provider


def taken(location: object) -> TransactionLog:
    """Take the next generation of a checkpoint, as a driver does."""
    folders = Folders(str(location))
    return take_generation(folders, read_checkpoint(folders).topology, frozenset(), shared=False)


def take_savepoint(log: TransactionLog, name: str) -> dict[str, Any]:
    found = pins.take(log, load_provider("statefx_memory:MemoryStateProvider", {}), name)
    return {"name": found.name, "txid": found.txid, "time": found.time.isoformat(), "bytes": found.bytes}


def main(location: str, dies: str) -> None:
    log = taken(location)

    def savepoint(name: str) -> dict[str, Any]:
        if dies in ("before", "suspended"):
            os.kill(os.getpid(), signal.SIGKILL if dies == "before" else signal.SIGSTOP)
            threading.Event().wait(60)  # the system may stop this thread some moments later
        found = take_savepoint(log, name)
        if dies == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    server = RequestServer(log, {"savepoint": savepoint}, look_secs=0.02)
    server.start()
    sys.stdin.read()
    server.end({"result": {"ended": True}})


if __name__ == "__main__":
    main(*sys.argv[1:])
