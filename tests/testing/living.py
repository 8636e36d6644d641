"""A tester in which chance decides what is lost or frozen, as machines and connections are on Spark."""

import random

from statefx.protocol.identity import TaskId
from statefx.protocol.messages import ChainId
from statefx.runtime.user_objects import ProcessGone
from statefx.testing import Crash, TopologyTester

CHANCES = {"lose": 0.003, "cut": 0.003, "freeze": 0.003, "miss": 0.02, "thaw": 0.014, "time_out": 0.002}
"""How likely each is at a step: a chain's process dies; a connection is lost; a chain freezes; the driver misses the
sign of life of one that is frozen; all frozen ones wake; an attempt takes too long."""


class LivingTester(TopologyTester):
    """Breaks chains and connections.

    Parameters
    ----------
    breaks : bool
        Whether chains are lost and frozen.
    cut_at : tuple of ChainId, str, int, optional
        Which chain loses its connection, after how many frames ``to_chain`` or ``to_driver``; once.
    """

    def __init__(self, topology, place, config, *, seed, breaks=False, cut_at=None, **options):
        self._breaks, self._cut_at, self._chance = breaks, cut_at, random.Random(seed)
        self.orphans = []
        """Testers whose drivers are gone: what is left of their chains goes on meanwhile."""
        super().__init__(topology, place, config, seed=seed, **options)

    def _driving(self, do):
        self._engine.chances = self._before_step
        return super()._driving(do)

    def _before_step(self, engine):
        if self.orphans and self._chance.random() < 0.5:
            self._chance.choice(self.orphans).step_orphans()
        if self._cut_at is not None:
            place, way, after = self._cut_at
            chain = engine.runs[-1].chains[place] if engine.runs else None
            if chain is not None and chain.carried[way] >= after:
                self._cut_at = None
                chain.cut()
        if self._breaks:
            self._break(engine)

    def _break(self, engine):
        run = engine.runs[-1] if engine.runs else None
        if run is None or run.is_over or not run.is_ready:
            return
        draw = self._chance.random()
        for what, chance in CHANCES.items():
            if draw < chance:
                getattr(self, f"_{what}")(run, self._chance.choice(list(run.chains.values())))
                return
            draw -= chance

    def _lose(self, run, chain):
        run.lose(chain.chain)

    def _cut(self, run, chain):
        chain.cut()

    def _freeze(self, run, chain):
        chain.frozen = True

    def _miss(self, run, chain):
        if any(each.frozen for each in run.chains.values()):
            run.fail("silence")

    def _thaw(self, run, chain):
        self.thaw()

    def _time_out(self, run, chain):
        self.time_out()

    def time_out(self):
        """Let the time of what is under way be over."""
        self._now += self._launch.settings.transaction_timeout_secs

    def lose(self):
        """Lose a chain of the run that there is."""
        run = self._engine.runs[-1] if self._engine.runs else None
        if run is not None and run.is_ready and not run.is_over:
            run.lose(self._chance.choice(list(run.chains)))

    @property
    def carried(self):
        """How many frames each connection of the first run has carried, by chain and way."""
        return {
            (place, way): n for place, chain in self._engine.runs[0].chains.items() for way, n in chain.carried.items()
        }

    @property
    def runs(self):
        """How many runs there were."""
        return len(self._engine.runs)

    def thaw(self):
        """Let all chains go on that are frozen, also those of runs that are over."""
        for run in self._engine.runs:
            for chain in run.chains.values():
                chain.frozen = False

    def wake(self):
        """Let everything happen that still can, also in runs that are over."""
        self.thaw()
        super().wake()

    def _end(self, error):
        self._ended = error  # its chains may go on, see `vanish`

    def vanish(self):
        """Let the driver be gone, and its chains go on by `step_orphans`."""
        self._steps.crashed = self._steps._crash_at = None  # it was the driver's crash
        self._engine.vanish()
        self.thaw()

    def step_orphans(self):
        """Let something happen to a chain that has lost its driver; tell whether anything could."""
        return self._engine.step()


def _once(tester, moment, do):
    """Call `do` at a moment that is next, or at the first one that begins so, where that ends with a slash."""

    def look(found):
        if found.startswith(moment):
            tester._steps.each_moment = lambda found: None
            do()

    if moment.endswith("/"):
        tester._steps.each_moment = look
    else:
        tester.when(moment, do)


def lose_run(tester, moment):
    """Let the run of all chains be lost at a moment, once; each of them goes on until it notices."""
    _once(tester, moment, lambda: tester._engine.runs[-1].fail("it was lost"))


def left_behind(tester, txid=1):
    """Return how many times tasks have prepared a transaction in attempts that failed."""
    done = [step for step in tester.steps if step.startswith("after prepare") and step.endswith(f" for {txid}")]
    return len(done) - len(set(done))


class Zombie:
    """The chain of a task freezes at a moment of its own, as by SIGSTOP, and the driver misses its sign of life.

    Attributes
    ----------
    chain : LocalChain or None
        None: the moment has not come.
    """

    def __init__(self, tester, moment, component, task=0):
        self.chain = None
        self._engine = tester._engine
        self._place = ChainId(*tester._launch.plan.place[TaskId(component, task)])
        _once(tester, moment, self._freeze)

    def _freeze(self):
        run = self._engine.runs[-1]
        self.chain = run.chains[self._place]
        self.chain.frozen = True
        run.fail("silence")
        try:
            self.chain._pause()
        except ProcessGone as gone:  # what it was writing stays as it is, as after a crash
            raise Crash("killed while it was frozen") from gone

    def go_on(self):
        """Let it go on to its end, here and now, if it is frozen; called by anyone but itself."""
        if self.chain is None:
            return
        self.chain.frozen = False
        self.chain._hang_up()
        while not self.chain.ended:
            self.chain.step()
