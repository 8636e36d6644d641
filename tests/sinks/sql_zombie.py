"""A driver of one SqlSink that stops itself in the middle of a transaction of the database, for test_sql_faults.

    python -m tests.sinks.sql_zombie '{"url": ..., "place": ..., "at": "UPDATE"}'

It commits transactions 1 and 2 of table ``words``, each until it is done or refused, as a driver does, and stops before
the first statement that begins with `at`, or before COMMIT. Prints what becomes of each transaction.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

from sqlalchemy import event
from sqlalchemy.engine import Engine

from statefx.errors import FencedError, SinkError
from statefx.protocol.identity import TransactionAttempt
from tests.sinks.database import FIRST, START, HandDriven, words

TRIES = 5


def main(url, place, at):
    sink = HandDriven(SimpleNamespace(url=url, place=Path(place)))
    first, second = sink.prepare([words("a")], txid=1), sink.prepare([words("b")], txid=2)
    (Path(place) / "prepared.json").write_text(json.dumps(first), encoding="ascii")
    committer = sink.committer(FIRST)
    if not at.startswith("CREATE"):
        committer.fence(START, takeover=False)
    stopped = []

    def stop():
        if not stopped:
            stopped.append(at)
            os.kill(os.getpid(), signal.SIGSTOP)

    if at == "COMMIT":
        writing = []
        event.listen(
            Engine, "before_cursor_execute", lambda *given: given[2].startswith("UPDATE") and writing.append(1)
        )
        event.listen(Engine, "commit", lambda connection: writing and stop())
    event.listen(Engine, "before_cursor_execute", lambda *given: given[2].strip().startswith(at) and stop())
    if at.startswith("CREATE"):
        done("fence", lambda: committer.fence(START, takeover=False))
    for txid, named in [(1, first), (2, second)]:
        done(txid, lambda txid=txid, named=named: committer.commit(TransactionAttempt(txid, 0), named))


def done(what, do):
    for _ in range(TRIES):
        try:
            do()
        except FencedError:
            sys.stdout.write(f"{what} fenced\n")
            return
        except SinkError as error:
            sys.stderr.write(f"{what} {error.message}\n")
        else:
            sys.stdout.write(f"{what} done\n")
            return


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
