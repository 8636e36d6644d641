"""What others see of a client at work, and ask of it: metrics, its document beside the log, requests from a shell.

Two threads do it, those that a query has as well. They have nothing of the session, so that a client that its program
drops without `close` goes, and they with it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Never
from weakref import finalize

from statefx import logs
from statefx.coordinator.coordinator import Coordinator
from statefx.coordinator.launch import Launch
from statefx.coordinator.observation import Observer
from statefx.coordinator.requests import LOOK_SECS, STOP, RequestServer
from statefx.errors import CheckpointError
from statefx.log import pins
from statefx.log.observation import bounded
from statefx.log.requests import error_to_tell
from statefx.metrics.registry import Registry

if TYPE_CHECKING:
    from statefx.metrics.prometheus import MetricsServer

FIRST_SECS = 1.0
"""After which time a client begins to answer: many live shorter, and would wait for nothing but their own sign."""

_OVER = {"error": error_to_tell(CheckpointError("the client has been closed"))}


class Outside:
    """The side of one client that its program does not see; `start` begins, `close` and `abandon` end it."""

    def __init__(self, launch: Launch, coordinator: Coordinator, served: MetricsServer | None) -> None:
        # Not the coordinator, which has the session.
        self._log, self._progress = coordinator.log, coordinator.progress
        self._provider = launch.provider
        self.location = launch.folders.location
        self._observer = Observer(launch, self._log, self._progress, self._status, first_secs=FIRST_SECS)
        self._requests = RequestServer(self._log, self._commands(), look_secs=LOOK_SECS, first_secs=FIRST_SECS)
        self._served = served
        if served is not None:
            served.attach(self)

    def start(self, session: object) -> None:
        """Begin to be seen; `session` is what ends it when nobody has it any more."""
        self._dropped = finalize(session, self.abandon)
        self._dropped.atexit = False
        self._observer.start()
        self._requests.start()

    def close(self, error: BaseException | None) -> None:
        """Answer what is open, write the end, and go; `error` has ended the client."""
        self._dropped.detach()
        self._observer.end(error, "The client was closed")
        self._requests.end(_OVER)
        if self._served is not None:
            self._served.close()

    def abandon(self) -> None:
        """End soon; the garbage collector may call this in the middle of anything, so it waits for no lock."""
        self._observer.end(None, "The client was dropped", waits=False)
        self._requests.end(_OVER, waits=False)

    # ---- what is seen

    @property
    def url(self) -> str | None:
        """Where Prometheus reads the metrics, if it does."""
        return None if self._served is None else self._served.url

    @property
    def registry(self) -> Registry:
        """The metrics."""
        return self._progress.measures.registry

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All metrics as they are now, as plain data."""
        return self.registry.as_dicts()

    def _status(self) -> dict[str, Any]:
        status = self._progress.status() | {"isActive": True}
        status.pop("failed", None)  # a client repeats nothing: what was rolled back is over
        return status

    # ---- what is asked

    def _commands(self) -> dict[str, Callable[..., Mapping[str, Any]]]:
        return {
            "status": lambda: {"observation": json.loads(bounded(self._observer.document()))},
            "savepoint": self._take,
            "deleteSavepoint": self._delete,
            "loglevel": logs.set_level,
            **{name: self._refusing(name) for name in ("pause", "resume", STOP)},
        }

    def _take(self, name: str) -> dict[str, Any]:
        return pins.to_answer(pins.take(self._log, self._provider, name))

    def _delete(self, name: str) -> dict[str, Any]:
        pins.delete(self._log, name)
        return {"name": name}

    def _refusing(self, command: str) -> Callable[..., Never]:
        def refuse(**arguments: Any) -> Never:
            raise CheckpointError(
                f"{command}: process {os.getpid()} on {socket.gethostname()}, at work on {self.location}, is a "
                "TransactionalClient: its own program begins each transaction, and nobody else can hold it back. "
                "Nothing was changed: end that program, or have it call client.close()",
                path=self.location,
            )

        return refuse
