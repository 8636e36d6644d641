"""``python -m statefx``: every command, asked for what is not there, fails and says what there is."""

import json
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from statefx import Checkpoint, StatefulBolt, TopologyBuilder
from statefx.command import _cli, main
from statefx.testing import TopologyTester, rows
from tests.spouts.queues import NOTES

STORED = "holds no state of 'nobody'; its stateful bolts are ['count']"
MAPS = "'count' keeps nothing in a map 'typo' in CK; its maps are ['last']"
TASKS = "bolt 'count' has tasks 0..1, got task=7"
KEYS = "at transaction 2: no task has it, and no file of CK; the first keys there are"
SAVEPOINTS = "has no savepoint 'gone'; there are ['kept']"

CHECKPOINTS = {
    "log": "log {ck}",
    "transactions": "transactions {ck}",
    "state": "state {ck}",
    "maps": "maps {ck} count",
    "explain": "explain {ck} count a",
    "quarantined": "quarantined {ck} count",
    "verify": "verify {ck}",
    "resolve": "resolve {ck} statefx.connectors.sql:SqlQueueSpout {queue}",
    "savepoints": "savepoints {ck}",
    "savepoint": "savepoint {ck} new --yes",
    "delete-savepoint": "delete-savepoint {ck} kept --yes",
    "restore": "restore {ck} kept --yes",
    "repair": "repair {ck}",
    "rename": "rename {ck} count=tally --yes",
    "rescale": "rescale {ck} count=3 --yes",
    "downgrade": "downgrade {ck} count=1 tests.admin.test_absent:Newer --yes",
    "write-state": "write-state {ck} count {rows} --yes",
}
OTHERS = [
    ("state {ck} nobody", STORED),
    ("state {ck} nobody --at 1", STORED),
    ("maps {ck} nobody", STORED),
    ("explain {ck} nobody a", STORED),
    ("quarantined {ck} nobody", STORED),
    ("rescale {ck} nobody=3 --yes", "nobody"),
    ("downgrade {ck} nobody=1 tests.admin.test_absent:Newer --yes", STORED),
    ("write-state {ck} nobody {rows} --yes", STORED),
    ("rename {ck} nobody=tally --yes", "'nobody' keeps nothing; in CK there are ['count', 'in']"),
    ("rename {ck} --drop nobody --yes", "'nobody' keeps nothing; in CK there are ['count', 'in']"),
    ("state {ck} count --map typo", MAPS),
    ("state {ck} count --map typo --at 1", MAPS),
    ("state {ck} count --map typo --since 1", MAPS),
    ("explain {ck} count a --map typo", MAPS),
    ("explain {ck} count z", f"'z' of 'count' {KEYS}"),
    ("explain {ck} count z --map last", "no file in map 'last' of CK; the first keys there are"),
    ("explain {ck} count 1", f"1 of 'count' {KEYS}"),
    ("state {ck} count --task 7", TASKS),
    ("state {ck} count --task 7 --at 1", TASKS),
    ("explain {ck} count a --task 7", TASKS),
    ("state {ck} count --at gone", SAVEPOINTS),
    ("state {ck} count --since gone", SAVEPOINTS),
    ("delete-savepoint {ck} gone --yes", SAVEPOINTS),
    ("restore {ck} gone --yes", SAVEPOINTS),
    ("restore {ck} gone", SAVEPOINTS),
    ("restore {ck} gone --to {ck}-copy", SAVEPOINTS),
    ("state {ck} count --at 99", "transaction 99 is not committed in CK: the last one is 2"),
    ("state {ck} count --since 99", "transaction 99 is not committed in CK: the last one is 2"),
    ("restore {ck} --txid 99 --yes", "transaction 99 had left; those that it knows are 1 to 2"),
    ("restore {ck} --txid 99 --to {ck}-copy", "transaction 99 had left; those that it knows are 1 to 2"),
]  # fmt: skip


class Count(StatefulBolt):
    def initState(self, state):
        self.counts, self.last = state, state.map("last")

    def execute(self, tup, collector):
        self.counts[tup.word] = self.counts.get(tup.word, 0) + 1
        self.last[tup.word] = 1


class Newer(Count):
    stateVersion = 2

    def downgradeState(self, version, key, value):
        return value


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("absent")
    builder = TopologyBuilder("absent")
    builder.setStream("in", rows("word string"))
    builder.setBolt("count", Count(), 2).fieldsGrouping("in", "word")
    with TopologyTester(builder.createTopology(), folder / "ck") as tester:
        tester.send({"in": [("a",), ("b",)]})
        tester.send({"in": [("a",)]})
    Checkpoint(folder / "ck").savepoint("kept")
    with closing(sqlite3.connect(folder / "jobs.db")) as jobs, jobs:
        jobs.execute(f"create table jobs (id integer primary key autoincrement, text text, {', '.join(NOTES)})")
        jobs.execute("create index jobs_owner on jobs (statefx_owner)")
    (folder / "rows.json").write_text('{"key": "a", "value": 1}\n')
    return folder


def refused(command, folder, ck, capsys):
    queue = shlex.quote(json.dumps({"url": f"sqlite:///{folder}/jobs.db", "table": "jobs", "exactlyOnce": True}))
    words = shlex.split(command.format(ck=ck, rows=folder / "rows.json", queue=queue))
    code, printed = main(words), capsys.readouterr()
    assert (code in (1, 2), printed.out) == (True, ""), (code, printed)
    (line,) = printed.err.splitlines()
    return line.replace(str(ck), "CK")


def test_all_commands_are_asked():
    assert CHECKPOINTS.keys() == _cli.commands.keys()


@pytest.mark.parametrize("command", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_checkpoint_that_is_not_there_is_named(command, checkpoint, capsys):
    said = refused(command, checkpoint, checkpoint / "nowhere", capsys)
    assert "there is no checkpoint in CK" in said


@pytest.mark.parametrize(("command", "says"), OTHERS, ids=[command.replace("{ck} ", "") for command, _ in OTHERS])
def test_what_is_not_there_is_named_with_what_is(command, says, checkpoint, capsys):
    assert says in refused(command, checkpoint, checkpoint / "ck", capsys)


def test_a_bolt_without_keys_of_its_own_names_its_maps(tmp_path, capsys):
    class Maps(Count):
        def initState(self, state):
            self.counts, self.last = state.map("counts"), state.map("last")

    builder = TopologyBuilder("maps")
    builder.setStream("in", rows("word string"))
    builder.setBolt("count", Maps()).globalGrouping("in")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        tester.send({"in": [("a",)]})
    assert main(["state", str(tmp_path / "ck"), "count"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        "",
        "'count' has no keys of its own; it has counts (map), last (map): say --map\n",
    )


@pytest.mark.slow
def test_a_process_exits_with_the_code(checkpoint):
    done = subprocess.run(
        [sys.executable, "-m", "statefx", "explain", checkpoint / "ck", "count", "z"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")
