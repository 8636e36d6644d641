"""Kills the word count while a transaction is PREPARING, then while one is COMMITTING, and checks what comes out.

The count is a process of its own, with its JVM; SIGKILL leaves them no time for a last word. The transaction log
tells when to kill, and afterwards whether the kill fell where it should.
"""

import math
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from statefx import openState
from statefx.coordinator.log import read_state
from statefx.errors import CheckpointError

PROGRAM = Path(__file__).with_name("word_count.py")
ROLLED = {"PREPARING": "back", "COMMITTING": "forward"}
TRIES = 4
LOOK_SECS = 0.003
AT_WORK_SECS = 0.3  # so long after a transaction began its tasks are at work


class DemoError(Exception):
    """The demonstration can't go on."""


def demo(provider, files, batch):
    """Run it all; return the exit code."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="statefx-demo-", ignore_cleanup_errors=True) as work:
        corpus, checkpoint = Path(work, "corpus"), Path(work, "checkpoint")
        try:
            found, size = gather(corpus, files)
            batch = min(batch, math.ceil(found / 8))  # a few files, too, make transactions enough to be killed in
            print(f"{found:,} files of Python's standard library, {size / 1e6:.1f} MB, {batch} to a transaction")
            count = Count(corpus, checkpoint, provider, batch)
            count.kill_in("PREPARING", after=2)
            count.kill_in("COMMITTING", after=count.killed[0][1] + 1)
            count.finish()
        except DemoError as error:
            print(f"\nthe demo has failed: {error}", file=sys.stderr)
            return 1
        print()
        for phase, txid in count.killed:
            print(f"transaction {txid} was killed in {phase} and rolled {ROLLED[phase]} at the next start")
        exact = compare(corpus, checkpoint)
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0 if exact else 1


class Count:
    """The word count on one checkpoint, started as often as it takes."""

    def __init__(self, corpus, checkpoint, provider, batch):
        self.killed = []
        self.checkpoint = checkpoint
        self.errors = checkpoint.with_name("errors.txt")
        self.command = [sys.executable, PROGRAM, corpus, checkpoint, f"--provider={provider}", f"--batch={batch}"]
        self.said = []

    def kill_in(self, phase, after):
        """Start the count, and kill it in `phase` of a transaction later than `after`."""
        for _ in range(TRIES):
            print(f"\nstart; to be killed when a transaction after {after} is {phase}", flush=True)
            child = self.start()
            while not self.is_time(phase, after):
                self.check_alive(child)
            if phase == "PREPARING":
                self.check_alive(child, AT_WORK_SECS)
            os.killpg(child.pid, signal.SIGKILL)  # the JVM is in the group; Spark's Python workers die of its death
            self.end(child)
            found, txid = self.under_way()
            print(f"  SIGKILL: the log says that transaction {txid} is {found}", flush=True)
            if found == phase:
                self.killed.append((phase, txid))
                return
            print(f"  that was not in {phase}: once more", flush=True)
            after = txid
        raise DemoError(f"{TRIES} kills have all missed {phase}; there may be too few transactions (see --batch)")

    def finish(self):
        """Start the count and let it come to its end."""
        print("\nstart; to run to the end", flush=True)
        child = self.start()
        self.end(child)
        self.check_alive(child, ended_well=0)
        for phase, txid in self.killed:
            line = f"transaction {txid} had been interrupted: rolled {ROLLED[phase]}"
            if not any(line in said for said in self.said):
                raise DemoError(f"the count never said {line!r}")

    def start(self):
        """Start the count in a process group of its own; what it prints is passed on."""
        with self.errors.open("w") as errors:
            child = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        child.reader = threading.Thread(target=self.pass_on, args=[child.stdout])
        child.reader.start()
        return child

    def pass_on(self, stream):
        with stream:
            for line in stream:
                self.said.append(line)
                print(line, end="", flush=True)

    def end(self, child):
        child.wait()
        child.reader.join()

    def is_time(self, phase, after):
        found, txid = self.under_way()
        return found == phase and txid > after

    def under_way(self):
        """Return phase and txid of the transaction under way, or COMMITTED and the last one's, from the log."""
        try:
            log = read_state(self.checkpoint / "transactions")
        except CheckpointError:  # not written yet
            return "not begun", 0
        if log.in_flight:
            return str(log.in_flight[0].phase), log.in_flight[0].txid
        return "COMMITTED", log.committed

    def check_alive(self, child, secs=LOOK_SECS, ended_well=None):
        """Wait for `secs`; if the child ends, that is an error unless its exit code is `ended_well`."""
        try:
            code = child.wait(secs)
        except subprocess.TimeoutExpired:
            return
        if code != ended_well:
            self.end(child)
            raise DemoError(f"the word count ended with exit code {code}:\n{self.errors.read_text()[-4000:]}")


def gather(corpus, files):
    """Link the standard library's sources into one folder; return how many, and their bytes."""
    corpus.mkdir()
    library = Path(sysconfig.get_path("stdlib"))
    sources = sorted(
        path for path in library.rglob("*.py") if not {"site-packages", "dist-packages"} & set(path.parts[:-1])
    )
    found = size = 0
    for path in sources[:files]:
        try:
            size += len(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):  # some test the reading of just such files
            continue
        (corpus / f"{found:05}-{path.name}").symlink_to(path)
        found += 1
    if found < 8:
        raise DemoError(f"{found} Python files in {library}: at least 8 are needed")
    return found, size


def compare(corpus, checkpoint):
    """Compare the state, key by key, with a plain recount of the corpus; tell the result."""
    expected = Counter()
    for path in corpus.iterdir():
        expected.update(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", path.read_text(encoding="utf-8")))
    with openState(checkpoint, "count") as counts:
        counted = dict(counts.items())
    wrong = {word for word in expected.keys() | counted.keys() if expected.get(word) != counted.get(word)}
    if not wrong:
        print(f"exact: {len(counted):,} keys, {sum(counted.values()):,} occurrences")
        return True
    print(f"NOT exact: {len(wrong):,} of {len(expected):,} keys differ")
    for word in sorted(wrong)[:20]:
        print(f"  {word}: {counted.get(word)} instead of {expected.get(word)}")
    return False
