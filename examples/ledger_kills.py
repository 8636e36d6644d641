"""Kills the ledger with SIGKILL when its transaction log has reached a state that chance chooses, and checks the end.

The state of the log is the kind of its newest record. What it was when the process was dead is written down: a process
may go on for a moment after it was seen in a state.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ledger_rules import OPENING, check

from statefx import Checkpoint
from statefx.errors import CheckpointError

STATES = ["GENERATION", "ROLLED_BACK", "PREPARING", "COMMITTING", "COMMITTED", "CHECKPOINT"]
"""Kinds of records that are the newest of a log for a while; the first two come with a start, if at all."""

CURRENCIES, ACCOUNTS = ["eur", "usd", "yen"], ["ann", "bob", "cid", "dan"]
FOLDED = 150  # records after which a log must have been folded
LOOK_SECS = 0.0005
END_SECS = 240


class LedgerError(Exception):
    """The demonstration can't go on."""


def main(program, about, run):
    """Run the ledger in a folder, or the demo, which starts that again and again."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="?", type=Path, help="run the ledger in this folder, as the demo does")
    parser.add_argument("--kills", type=int, default=4, help="how often it is killed (default: %(default)s)")
    parser.add_argument("--each", type=int, default=0, help="at least so often in each state of the log")
    parser.add_argument("--seed", type=int, help="of the transfers and the kills")
    options = parser.parse_args()
    if options.work is not None:
        return run(options.work)
    return demo(program, options.kills, options.each, options.seed)


def demo(program, kills, each, seed):
    """Kill the ledger at least `kills` times, and at least `each` times in every state; return the exit code."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no ledger outlives the demo
    with tempfile.TemporaryDirectory(prefix="statefx-ledger-", ignore_cleanup_errors=True) as folder:
        ledger = Killed(Path(folder), program, random.Random(seed))
        print(f"{Path(program).name}, to be killed {kills} times", flush=True)
        try:
            while ledger.hits.total() < kills or any(ledger.hits[state] < each for state in STATES):
                ledger.live_and_die(folds=each > 0)
            ledger.finish()
        except LedgerError as error:
            print(f"\nthe demo has failed: {error}", file=sys.stderr)
            return 1
        wrong, applied, refused = check(ledger.work)
        records = ledger.newest()[0]
    print("killed when the newest record of the log was")
    for state, times in ledger.hits.most_common():
        print(f"  {state:12}{times:4} times")
    print(f"{applied:,} transfers applied, {refused:,} refused, in {records:,} records of the log")
    for name, found in wrong.items():
        print(f"{name}: {found[:10]}")
    print("NOT exact" if wrong else "exact: each transfer once, no money made or lost, no account below zero")
    print(f"{time.monotonic() - began:.0f} s in all")
    return 1 if wrong else 0


class Killed:
    """A ledger in a folder, started again and again."""

    def __init__(self, work, program, chance):
        self.work = work
        self.chance = chance
        self.hits = Counter()
        self.command = [sys.executable, program, str(work)]
        self.ahead = 5  # files of transfers that wait for the ledger
        self.files = self.transfers = 0
        self.said = work / "said"
        self.log = work / "checkpoint" / "transactions"
        (work / "transfers").mkdir()

    def live_and_die(self, *, folds):
        """Start the ledger, let it work, and kill it in one of the states that were met most rarely."""
        since, last = self.newest()
        wanted = self.choose(last, folds=folds)
        until = since + (0 if wanted in STATES[:2] else self.chance.randrange(1, 10))
        child = self.start()
        try:
            number, kind = since, ""
            while not (kind == wanted and number > until):
                if (kind and wanted in STATES[:2] and number > since + 4) or number > since + FOLDED:
                    break  # it was too quick: whatever it is in now
                if (self.log / f"{number + 1:020}.json").exists():
                    number, kind = self.newest()
                    self.feed()
                else:
                    self.let_run(child)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        state = self.newest()[1]
        self.hits[state] += 1
        print(f"  SIGKILL {self.hits.total()}: the newest record of the log is {state}", flush=True)
        self.look()

    def choose(self, last, *, folds):
        """Return a state that can come, one of those with the fewest hits."""
        can = [state for state in STATES if (state, folds) != ("CHECKPOINT", False)]
        if last != "PREPARING":  # nothing is left to be rolled back by the next start
            can.remove("ROLLED_BACK")
        fewest = min(self.hits[state] for state in can)
        return self.chance.choice([state for state in can if self.hits[state] == fewest])

    def start(self):
        """Start the ledger in a process group of its own, with its JVM."""
        self.feed()
        with self.said.open("w") as said:
            return subprocess.Popen(self.command, stdout=said, stderr=said, process_group=0)

    def let_run(self, child, secs=LOOK_SECS):
        """Wait; it is an error if the ledger ends meanwhile."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(secs)
            raise LedgerError(f"the ledger ended with {child.returncode}: {self.said.read_text()[-4000:]}")

    def newest(self):
        """Return number and kind of the newest record of the log."""
        while True:
            try:
                name = max(name for name in os.listdir(self.log) if name.endswith(".json"))
                record = json.loads((self.log / name).read_text())["record"]
                return int(name.removesuffix(".json")), record["kind"]
            except FileNotFoundError:  # folded away between the two, or there is no log yet
                if not self.log.exists():
                    return 0, ""
            except ValueError:  # an empty folder
                return 0, ""

    def feed(self):
        """Write files of transfers, so that the ledger never has to wait."""
        done = self.newest()[0] // 3  # three records to a transaction, or more
        while self.files < done + self.ahead and not (self.work / "end").exists():
            self.files += 1
            rows = []
            for _ in range(self.chance.randrange(1, 8)):
                self.transfers += 1
                source, target = self.chance.sample(ACCOUNTS, 2)
                amount = self.chance.randrange(1, OPENING)
                rows.append(f"{self.transfers},{self.chance.choice(CURRENCIES)},{source},{target},{amount}\n")
            draft = self.work / "draft"
            draft.write_text("".join(rows))
            draft.replace(self.work / "transfers" / f"{self.files:06}.csv")

    def look(self):
        """Look at the balances that readers see while nothing runs."""
        try:
            with Checkpoint(self.work / "checkpoint").state("ledger") as state:
                balances = dict(state.items())
        except CheckpointError:  # it was killed before there was a log
            return
        if sum(balances.values()) != OPENING * len(balances) or min(balances.values(), default=0) < 0:
            raise LedgerError(f"money was made or lost: {balances}")

    def finish(self):
        """Let the ledger come to its end."""
        self.feed()
        (self.work / "end").touch()
        child = self.start()
        try:
            child.wait(END_SECS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(child.pid, signal.SIGKILL)
        if child.returncode:
            raise LedgerError(f"the ledger ended with {child.returncode}: {self.said.read_text()[-4000:]}")
        self.look()
