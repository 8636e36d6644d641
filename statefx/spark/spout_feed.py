"""Transactions whose input spouts emit: without a query of Spark, the coordinator's loop runs in the query's thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from statefx.coordinator.coordinator import Coordinator
from statefx.coordinator.progress import SLOW_SECS
from statefx.coordinator.spouts import SpoutSource
from statefx.spark.pipelined.engine import PipelinedEngine

logger = logging.getLogger("statefx")

_POLL_SECS = 0.05
_WATCH_SECS = 1.0


class SpoutFeed:
    """Runs the transactions of a topology's spouts (see `Feed`)."""

    def __init__(self, source: SpoutSource, coordinator: Coordinator, engine: PipelinedEngine) -> None:
        self._source = source
        self._coordinator = coordinator
        self._engine = engine
        self._ended = threading.Event()

    def run(self, started: Callable[[], None]) -> None:
        """Run transactions until the trigger asks for no more (see `Feed.run`)."""
        threading.Thread(target=self._watch, name="statefx-hooks", daemon=True).start()
        try:
            self._source.open()
            started()
            self._coordinator.run(self._source)
        finally:
            self._ended.set()
            self._source.close()

    def _watch(self) -> None:
        """Warn of each hook on the driver that takes long: the loop that calls it waits for it."""
        progress, told = self._coordinator.progress, None
        while not self._ended.wait(_WATCH_SECS):
            asked = progress.asked(SLOW_SECS)
            if asked is not None and asked != told:
                logger.warning("%s: nothing is committed while it runs", asked.reason(progress.clock()))
                told = asked

    def drain(self) -> None:
        """Begin no further transaction, and wait for the lowest one under way (see `Feed.drain`)."""
        self._coordinator.stop()
        self._ended.wait()

    def cancel(self) -> None:
        """Cancel what runs (see `Feed.cancel`)."""
        if not self._ended.is_set():
            self._coordinator.stop(now=True)
            self._engine.stop()

    def process_all_available(self, ended: threading.Event) -> None:
        """Wait until the spouts had nothing more to read, and all that they had is committed."""
        enough = self._source.idle_looks + 2  # the first of them may have begun before this call
        while not ended.is_set() and self._source.idle_looks < enough:
            ended.wait(_POLL_SECS)
