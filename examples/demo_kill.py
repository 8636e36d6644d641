"""Kills the word count while a transaction is PREPARING, then while one is COMMITTING, and checks what comes out.

The count is a process of its own, with its JVM; SIGKILL leaves them no time for a last word. The transaction log
tells when to kill, and afterwards whether the kill fell where it should.
"""

import contextlib
import json
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

from statefx import Checkpoint
from statefx.errors import CheckpointError
from statefx.log.log import read_state
from statefx.storage import FolderStorage

PROGRAM = Path(__file__).with_name("word_count.py")
ROLLED = {"PREPARING": "back", "COMMITTING": "forward"}
TRIES = 4
LOOK_SECS = 0.003
AT_WORK_SECS = 0.05  # so long after a transaction began its tasks are at work
LINGER_SECS = 0.2  # a commit takes some milliseconds, less than a busy machine needs to see it and to kill


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
            with Count(corpus, checkpoint, provider, batch) as count:
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
        self.said = []
        self.child = None
        self.checkpoint = checkpoint
        self.errors = checkpoint.with_name("errors.txt")
        self.command = [sys.executable, PROGRAM, corpus, checkpoint, f"--provider={provider}", f"--batch={batch}"]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.child is not None and self.child.poll() is None:
            self.kill()

    def kill_in(self, phase, after):
        """Start the count, and kill it in `phase` of a transaction later than `after`."""
        for _ in range(TRIES):
            print(f"\nstart; to be killed when a transaction after {after} is {phase}", flush=True)
            self.start("--linger", str(LINGER_SECS if phase == "COMMITTING" else 0))
            while not self.is_time(phase, after):
                self.let_run(LOOK_SECS)
            if phase == "PREPARING":
                self.let_run(AT_WORK_SECS)
            self.kill()
            found, txid = self.under_way()
            print(f"  SIGKILL: the log says that transaction {txid} is {found}", flush=True)
            if found == phase:
                self.killed.append((phase, txid))
                return
            print(f"  that was not in {phase}: once more", flush=True)
            after = txid
        raise DemoError(f"{TRIES} kills have all missed {phase}; there may be too few transactions (see --batch)")

    def finish(self):
        """Start the count, let it come to its end, and check that it met what was interrupted."""
        print("\nstart; to run to the end", flush=True)
        self.start()
        if self.child.wait() != 0:
            self.fail()
        self.reader.join()
        for phase, txid in self.killed:
            line = f"transaction {txid} had been interrupted: rolled {ROLLED[phase]}"
            if not any(line in said for said in self.said):
                raise DemoError(f"the count never said {line!r}")

    def start(self, *arguments):
        """Start the count in a process group of its own; what it prints is passed on."""
        with self.errors.open("w") as errors:
            self.child = subprocess.Popen(
                [*self.command, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0
            )
        self.reader = threading.Thread(target=self.pass_on, args=[self.child.stdout])
        self.reader.start()

    def pass_on(self, stream):
        with stream:
            for line in stream:
                self.said.append(line)
                print(line, end="", flush=True)

    def let_run(self, secs):
        """Wait; it is an error if the count ends meanwhile."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(secs)
            self.fail()

    def kill(self):
        """Kill driver and JVM, which are one process group; Spark's Python workers end when they miss the JVM."""
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self.reader.join()

    def fail(self):
        raise DemoError(
            f"the word count ended with exit code {self.child.returncode}; the end of what it had to say:\n"
            f"{self.errors.read_text()[-4000:]}"
        )

    def is_time(self, phase, after):
        found, txid = self.under_way()
        return found == phase and txid > after

    def under_way(self):
        """Return phase and txid of the transaction under way, or COMMITTED and the last one's, from the log."""
        try:
            log = read_state(FolderStorage(self.checkpoint))
        except CheckpointError:  # not written yet
            return "not begun", 0
        if log.in_flight:
            return str(log.in_flight[0].phase), log.in_flight[0].txid
        return "COMMITTED", log.committed


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
            path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):  # some test the reading of just such files
            continue
        size += path.stat().st_size
        (corpus / f"{found:05}-{path.name}").symlink_to(path)
        found += 1
    if found < 8:
        raise DemoError(f"{found} Python files in {library}: at least 8 are needed")
    return found, size


def compare(corpus, checkpoint):
    """Compare the state, key by key, with a plain recount of the corpus; print and return how it went."""
    expected = Counter()
    for path in corpus.iterdir():
        expected.update(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", path.read_text(encoding="utf-8")))
    with Checkpoint(checkpoint).state("count") as counts:
        counted, txid = dict(counts.items()), counts.txid
    reports = sorted((checkpoint.parent / "reports").glob("*.json"))
    last = {"txid": txid, "words": expected.total(), "keys": len(expected)}
    reported = len(reports) == txid and json.loads(reports[-1].read_text()) == last
    wrong = {word for word in expected.keys() | counted.keys() if expected[word] != counted.get(word, 0)}
    if reported and not wrong:
        print(f"exact: {len(counted):,} keys, {sum(counted.values()):,} occurrences")
        return True
    print(f"NOT exact: {len(wrong):,} of {len(expected):,} keys differ")
    for word in sorted(wrong)[:20]:
        print(f"  {word}: {counted.get(word)} instead of {expected[word]}")
    if not reported:
        print(f"  reports: {len(reports)} of {txid}, the last says {reports and reports[-1].read_text()}, not {last}")
    return False
