"""What waits in the queues and tables that spouts read: asked on a thread of its own, so that no transaction waits."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from statefx.coordinator.measuring import Measures
from statefx.operators.hooks import overrides
from statefx.operators.spouts import Backlog, Spout

logger = logging.getLogger("statefx")

LOOK_SECS = 10.0
"""How often a source is asked, at most."""

SHARE = 0.01
"""How much of the time a source may be busy with the answer: one that takes long is asked less often."""


class Backlogs:
    """Asks the spouts that can tell how much waits for them, and has it counted as their lag.

    `spouts` are those of the topology by name, never opened; `metadata` returns what was committed of the partitions
    of one. What a spout raises is logged once, and then nothing is known of its lag: an old one would mislead.
    """

    def __init__(
        self,
        spouts: Mapping[str, Any],
        measures: Measures,
        metadata: Callable[[str], Mapping[int, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spouts = {name: spout for name, spout in spouts.items() if overrides(type(spout), "backlog")}
        self._measures, self._metadata, self._clock = measures, metadata, clock
        self._away: set[str] = set()
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to ask, on a daemon thread."""
        if self._spouts:
            arguments = (weakref.ref(self), self._ended)
            threading.Thread(target=_asking, args=arguments, name="statefx-backlogs", daemon=True).start()

    def end(self) -> None:
        """Cease to ask; a question that is under way is not waited for."""
        self._ended.set()

    def look(self) -> float:
        """Ask each spout once; return how many seconds to leave them alone."""
        began = self._clock()
        for name, spout in self._spouts.items():
            try:
                found = spout.backlog() if isinstance(spout, Spout) else spout.backlog(self._metadata(name))
                self._take(name, found)
            except BaseException as error:  # noqa: BLE001 - a source's client raises what it likes, also CancelledError
                self._measures.lost(name)
                if name not in self._away:
                    self._away.add(name)
                    logger.warning(
                        "spout %r can't tell how much waits for it, and is asked again; transactions don't wait for "
                        "it. Logged once: %s: %s", name, type(error).__name__, error,
                    )  # fmt: skip
        return max(LOOK_SECS, (self._clock() - began) / SHARE)

    def _take(self, name: str, found: object) -> None:
        if found is None:
            self._measures.lost(name)
            return
        if not isinstance(found, Backlog):
            raise TypeError(f"backlog() returned {found!r}, not a statefx.connectors.Backlog or None")
        said = {"lagRecords": found.records}
        self._measures.reached(name, said if found.oldestSecs is None else {**said, "lagSecs": found.oldestSecs})


def _asking(found: weakref.ref[Backlogs], ended: threading.Event) -> None:
    pause = 0.0
    while not ended.wait(pause):
        backlogs = found()
        if backlogs is None:
            return
        pause = backlogs.look()
        del backlogs
