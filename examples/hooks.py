"""The hooks of a stateful bolt, in the order in which they come; the second transaction fails at its first attempt.

Bolts run in processes of Spark's, so each call is written down in a file that is shown in the end.
"""

import tempfile
from pathlib import Path

from statefx import StatefulBolt, TopologyBuilder, session, submit
from statefx.errors import FailedException


class Diary(StatefulBolt):
    def __init__(self, path):
        self.path = path

    def note(self, what):
        with open(self.path, "a") as diary:
            diary.write(f"transaction {self.context.txid}, attempt {self.context.attempt}: {what}\n")

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.state = state
        self.note(f"initState with {dict(state.items())}")

    def execute(self, tup, collector):
        self.note(f"execute {tup.value!r}")
        self.state.put(tup.value, self.context.txid)
        if tup.value == "eggs" and self.context.attempt == 0:
            raise FailedException("no eggs at the first attempt")

    def prePrepare(self, txid):
        self.note("prePrepare: all is in, state may still be changed")

    def preCommit(self, txid):
        self.note("preCommit: nothing can take it back; in an object of its own, after initState")

    def preRollback(self):
        self.note("preRollback: likewise, to undo what was done outside of state")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="statefx-hooks-") as work:
        inbox, diary = Path(work, "inbox"), Path(work, "diary")
        inbox.mkdir()
        spark = session("hooks", config={"spark.ui.enabled": "false"})
        builder = TopologyBuilder("hooks")
        builder.setStream("lines", spark.readStream.text(str(inbox)))
        builder.setBolt("diary", Diary(str(diary))).globalGrouping("lines")
        query = submit(builder.createTopology(), spark, checkpointLocation=Path(work, "checkpoint"))
        for text in ("milk", "eggs"):
            Path(inbox, text).write_text(text)
            query.processAllAvailable()
        query.stop()
        spark.stop()
        print(diary.read_text(), end="")
