"""A tester whose tasks live in runs, as those of the pipelined engine do; what is lost or frozen is up to chance."""

import random

from statefx.testing import TopologyTester
from statefx.testing.living import LocalRunEngine
from statefx.testing.processes import Process

LOST, FROZEN, WOKEN = 0.003, 0.003, 0.014
"""How likely each is at a step: a slot's process dies; freezes, and the run ends without it; all frozen ones wake."""


class LivingTester(TopologyTester):
    """Runs the same slots as Spark's pipelined engine would, over channels in this process.

    Parameters
    ----------
    breaks : bool
        Whether slots are lost and frozen.
    timeout_secs : float
        Of an attempt.
    """

    def __init__(self, *arguments, breaks=False, timeout_secs=600.0, **options):
        self._breaks, self._timeout_secs = breaks, timeout_secs
        super().__init__(*arguments, **options)

    def _make_engine(self, deployment, seed):
        def worker():
            return Process(deployment, self._steps, self._cache, fresh=self._same["freshObjects"])

        engine = LocalRunEngine(deployment, worker, seed or 0, self._timeout_secs, self._clock)
        engine.faults = []  # those of tasks that are run again have no meaning here
        if self._breaks:
            self._chance = random.Random(seed)
            engine.chances = self._break
        return engine

    def _break(self, engine):
        run = engine.runs[-1] if engine.runs else None
        if run is None or run.is_over or not run.is_ready:
            return
        slot, draw = self._chance.choice(list(run.slots.values())), self._chance.random()
        if draw < LOST:
            run.lose(slot.slot)
        elif draw < LOST + FROZEN:
            slot.frozen = True
            run.fail("silence")
        elif draw < LOST + FROZEN + WOKEN:
            self.thaw()

    def thaw(self):
        """Let all slots go on that are frozen, also those of runs that are over."""
        for run in self._engine.runs:
            for slot in run.slots.values():
                slot.frozen = False

    def wake(self):
        """Let everything happen that still can, also in runs that are over."""
        self.thaw()
        self._driving(self._engine.settle)

    def close(self):
        self._engine.close()
        super().close()
