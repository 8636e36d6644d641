"""Moves money between accounts in plain Python, without Spark, and is killed at random: no cent is made or lost.

    python examples/ledger_plain.py               the demo: killed 4 times, then checked by SQL
    python examples/ledger_plain.py --kills 20    with so many kills

The ledger of `ledger.py`, by transactions from plain Python: a file of transfers is one `with` block.
It needs `pip install ".[sql]"`.
"""

import threading

from ledger_kills import main
from ledger_rules import ENTRY, TRANSFER, move, sinks, transfers_of

from statefx import TransactionalClient


def run(work):
    """Run the ledger until it is told to end; which files have been done is part of the same transactions."""
    more = threading.Event()  # never set: only waited for
    with TransactionalClient(
        work / "checkpoint",
        id="ledger",
        sinks=sinks(work),
        schemas={"entries": ENTRY, "refused": TRANSFER},
        state=["ledger", "files"],
    ) as client:
        with client.transaction() as t:
            last = t.get("files", "last", "")
        while True:
            ending = (work / "end").exists()  # looked for before the files: none comes after it
            files = sorted(path for path in (work / "transfers").glob("*.csv") if path.name > last)
            for path in files:
                with client.transaction() as t:
                    for transfer in transfers_of(path):
                        entries = move(t.state("ledger"), *transfer)
                        if entries is None:
                            t.send("refused", [transfer])
                        else:
                            t.send("entries", entries)
                    t.put("files", "last", path.name)
                last = path.name
            if ending:
                return
            if not files:
                more.wait(0.01)


if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, run))
