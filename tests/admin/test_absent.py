"""``statefx`` in a shell: every command, asked for what is not there, fails and says what there is."""

import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from urllib.parse import quote

import pytest

import statefx
from statefx import Checkpoint, StatefulBolt, TopologyBuilder
from statefx.command import _cli, _in_shell, main
from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError
from statefx.testing import TopologyTester, rows
from tests.bolts import Ignores, WithState
from tests.spouts.queues import NOTES
from tests.testing.topologies import Works

STORED = "holds no state of 'nobody'; its stateful bolts are ['count']"
MAPS = "'count' keeps nothing in a map 'typo' in CK; its maps are ['last']"
TASKS = "bolt 'count' has tasks 0..1, got --task 7"
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
    "migrate": "migrate {ck} rocksdb --yes",
    "abort": "abort {ck} --yes",
    "status": "status {ck}",
    "stop": "stop {ck}",
    "pause": "pause {ck}",
    "resume": "resume {ck}",
    "loglevel": "loglevel {ck} DEBUG",
    "top": "top {ck} --once",
    "why": "why {ck}",
    "ui": "ui {ck}",
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
    ("restore {ck} --txid 99 --yes", "transaction 99 is not committed in CK: the last one is 2"),
    ("restore {ck} --txid 99 --to {ck}-copy", "transaction 99 is not committed in CK: the last one is 2"),
    ("abort {ck} --yes", "no transaction is open in the checkpoint in CK"),
    ("stop {ck}", "stop: no driver is at work on the checkpoint in CK. Nothing was changed, and there is nothing to"),
    ("pause {ck}", "no driver is at work on the checkpoint in CK"),
    ("resume {ck}", "no driver is at work on the checkpoint in CK"),
    ("loglevel {ck} DEBUG", "no driver is at work on the checkpoint in CK"),
]  # fmt: skip


NOT_DONE = [
    ("savepoint {ck} 'a b'", 2, "a savepoint's name has"),
    ("savepoint {ck} 7", 2, "reads as a transaction's number"),
    ("savepoint {ck} kept", 1, "there is a savepoint 'kept' already, of transaction 2"),
    ("delete-savepoint {ck} gone", 1, SAVEPOINTS),
    ("restore {ck}", 2, "the name of a savepoint, or --txid, and not both"),
    ("restore {ck} gone", 1, SAVEPOINTS),
    ("rename {ck}", 2, "say who is called what, or who is dropped; in CK there are ['count', 'in', 'other']"),
    ("rename {ck} nobody=tally", 1, "'nobody' keeps nothing"),
    ("rename {ck} --drop nobody", 1, "'nobody' keeps nothing"),
    ("rename {ck} count=other", 2, "the checkpoint in CK has both 'count' and 'other'"),
    ("rename {ck} count=a/b", 2, "can't be a component's id"),
    ("rename {ck} count=a count=b", 2, "'count' is given two new ids, 'a' and 'b'"),
    ("rename {ck} --drop in", 2, "is a streaming DataFrame"),
    ("rescale {ck} nobody=3", 1, "has no stateful bolt 'nobody'; there are ['count', 'other']"),
    ("rescale {ck} count=0", 2, "must have from 1 to"),
    ("rescale {ck} count=3 count=4", 2, "'count' is given 3 tasks, and 4"),
    ("rescale {ck} other=3", 1, "it has one task, which holds every key"),
    ("downgrade {ck} count=2 tests.admin.test_absent:Newer", 1, "has version 1: a start with a bolt of version 2"),
    ("downgrade {ck} nobody=1 tests.admin.test_absent:Newer", 1, "holds no state of 'nobody'"),
    ("downgrade {ck} count=1 nowhere.at.all:Newer", 2, "in the folder of your program, or with that folder in PYTHON"),
    ("write-state {ck} nobody {rows}", 1, "holds no state of 'nobody'"),
    ('write-state {ck} count {rows} --schema \'{{"key": "word string"}}\'', 2, "--schema is for Parquet"),
    ("migrate {ck} memory", 2, "is kept by 'memory' already"),
    ("migrate {ck} nothing", 2, "nothing"),
    ("migrate {ck} rocksdb", 1, "has the savepoints ['kept']"),
    ("abort {ck}", 1, "no transaction is open in the checkpoint in CK"),
]
"""What can't be done, without --yes, which is not what is lacking."""


class Count(StatefulBolt):
    def initState(self, state):
        self.counts, self.last = state, state.map("last")

    def execute(self, tup, collector):
        self.counts[tup.word] = self.counts.get(tup.word, 0) + 1
        self.last[tup.word] = 1


class Lines(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.value, 1)


class Newer(Count):
    stateVersion = 2

    def downgradeState(self, version, key, value):
        return value


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return made(tmp_path_factory.mktemp("absent"))


def made(folder):
    builder = TopologyBuilder("absent")
    builder.setStream("in", rows("word string"))
    builder.setBolt("count", Count(), 2).fieldsGrouping("in", "word")
    for name in ("ck", "two"):
        if name == "two":
            builder.setBolt("other", Count()).fieldsGrouping("in", "word")
        with TopologyTester(builder.createTopology(), folder / name) as tester:
            tester.send({"in": [("a",), ("b",)]})
            tester.send({"in": [("a",)]})
        Checkpoint(folder / name).savepoint("kept")
    with closing(sqlite3.connect(folder / "jobs.db")) as jobs, jobs:
        jobs.execute(f"create table jobs (id integer primary key autoincrement, text text, {', '.join(NOTES)})")
        jobs.execute("create index jobs_owner on jobs (statefx_owner)")
    (folder / "rows.json").write_text('{"key": "a", "value": 1}\n')
    return folder


def refused(command, folder, ck, capsys):
    queue = shlex.quote(json.dumps({"url": f"sqlite:///{folder}/jobs.db", "table": "jobs", "exactlyOnce": True}))
    words = shlex.split(command.format(ck=ck, rows=folder / "rows.json", queue=queue))
    return told(words, ck, capsys, 1)


def told(words, ck, capsys, code):
    found, printed = main(words), capsys.readouterr()
    assert (found, printed.out) == (code, ""), (found, printed)
    (line,) = printed.err.splitlines()
    return line.replace(str(ck), "CK")


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_commands_are_asked():
    assert CHECKPOINTS.keys() == _cli.commands.keys()


@pytest.mark.parametrize("command", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_checkpoint_that_is_not_there_is_named(command, checkpoint, capsys):
    said = refused(command, checkpoint, checkpoint / "nowhere", capsys)
    assert "there is no checkpoint in CK" in said


@pytest.mark.parametrize(("command", "says"), OTHERS, ids=[command.replace("{ck} ", "") for command, _ in OTHERS])
def test_what_is_not_there_is_named_with_what_is(command, says, checkpoint, capsys):
    assert says in refused(command, checkpoint, checkpoint / "ck", capsys)


@pytest.mark.parametrize(("command", "code", "says"), NOT_DONE, ids=[each[0].replace("{ck} ", "") for each in NOT_DONE])
def test_what_can_not_be_done_is_refused_without_yes_as_with_it(command, code, says, checkpoint, capsys):
    ck = checkpoint / "two"
    before, words = files(ck), shlex.split(command.format(ck=ck, rows=checkpoint / "rows.json"))
    said = told(words, ck, capsys, code)
    assert says in said
    assert "say --yes" not in said
    assert told([*words, "--yes"], ck, capsys, code) == said
    assert files(ck) == before


@pytest.mark.parametrize(
    "command",
    [
        "savepoint {ck} new", "delete-savepoint {ck} kept", "restore {ck} kept", "rename {ck} count=tally",
        "rescale {ck} count=3 --by-key", "write-state {ck} count {rows} --by-key",
    ],
)  # fmt: skip
def test_a_copy_is_refused_under_its_own_name_without_yes_as_with_it(command, checkpoint, tmp_path, capsys):
    ck = tmp_path / "copied"
    shutil.copytree(checkpoint / "ck", ck)
    words = shlex.split(command.format(ck=ck, rows=checkpoint / "rows.json"))
    said = told(words, ck, capsys, 1)
    assert f"the checkpoint in CK was last run in {checkpoint / 'ck'}, and can't be changed before" in said
    assert "submit(..., adopt='fork')" in said
    assert told([*words, "--yes"], ck, capsys, 1) == said


def test_what_a_copy_lacks_is_said_of_the_copy(checkpoint, tmp_path):
    ck = Checkpoint(tmp_path / "copied")
    shutil.copytree(checkpoint / "two", ck.location)
    calls = [
        lambda: ck.table("count", at="gone"),
        lambda: ck.restore("gone"),
        lambda: ck.deleteSavepoint("gone"),
        lambda: ck.rescale({"gone": 3}),
        lambda: ck.rename({"gone": "here"}),
        lambda: ck.rename({"count": "other"}),
        lambda: ck.savepoint("new"),
        lambda: ck.migrate("rocksdb"),
        ck.abort,
    ]
    for call in calls:
        with pytest.raises((CheckpointError, ConfigError)) as refused:
            call()
        assert ck.location in str(refused.value)
        assert str(checkpoint / "two") not in str(refused.value) or "was last run in" in str(refused.value)
    copy = ck.restore(to=tmp_path / "own")
    assert Checkpoint(copy.location).savepoint("new").txid == 2
    restored = Checkpoint(copy.location).transactions()[0]
    assert restored.state == "RESTORED"
    assert restored.ended_ms


@pytest.mark.parametrize("adopt", ["move", "fork"])
def test_what_a_start_on_a_copy_lacks_is_said_of_the_copy(adopt, tmp_path):
    def topology(spout):
        builder = TopologyBuilder("copied")
        builder.setSpout(spout, Works([{"lines": [("a",)]}]))
        builder.setBolt("count", Lines()).globalGrouping(spout)
        return builder.createTopology()

    with TopologyTester(topology("in"), tmp_path / "first") as tester:
        tester.emit()
    shutil.copytree(tmp_path / "first", tmp_path / "copied")
    if adopt == "move":
        shutil.rmtree(tmp_path / "first")
    with pytest.raises(CheckpointMismatchError, match="spout 'in' has read in") as refused:
        TopologyTester(topology("out"), tmp_path / "copied", adopt=adopt)
    assert str(tmp_path / "copied") in str(refused.value)
    assert str(tmp_path / "first") not in str(refused.value)


@pytest.mark.parametrize("map", ["", 3, "a\0b", ["last"]])
def test_what_can_not_be_a_map_is_refused_the_same_way(map, checkpoint, capsys):
    ck = Checkpoint(checkpoint / "ck")
    for call in (
        lambda: ck.state("count", map=map),
        lambda: ck.table("count", map=map),
        lambda: ck.explain("count", "a", map=map),
    ):
        with pytest.raises(ConfigError, match=r"can't be the name of a map: give the one"):
            call()
    if map == "":
        for words in (["state"], ["state", "--at", "1"], ["explain", "a"]):
            command = [words[0], ck.location, "count", *words[1:], "--map", ""]
            assert "--map '' can't be the name of a map" in told(command, ck.location, capsys, 2)


def test_rescaling_to_what_is_there_needs_no_yes(checkpoint, capsys):
    assert main(["rescale", str(checkpoint / "ck"), "count=2", "--table"]) == 0
    assert capsys.readouterr().out.startswith("nothing was to be done")


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"statefx, version {statefx.__version__}\n"


@pytest.mark.parametrize("url", ["sqlite:///{folder}/nothing%20here.db", "sqlite:///{folder}/no/q.db"])
def test_a_queue_that_is_not_there_is_not_made(url, checkpoint, tmp_path, capsys):
    given = json.dumps({"url": url.format(folder=tmp_path), "table": "jobs", "exactlyOnce": True})
    command = ["resolve", str(checkpoint / "ck"), "statefx.connectors.sql:SqlQueueSpout", given]
    assert "unable to open database file: give the URL of a file that is there" in told(command, "CK", capsys, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_queue_in_a_file_of_an_odd_name_is_found(checkpoint, tmp_path, capsys):
    shutil.copy(checkpoint / "jobs.db", tmp_path / "a %20?#b.db")
    url = f"sqlite:///{quote(str(tmp_path))}/{quote('a %20?#b.db')}"
    given = json.dumps({"url": url, "table": "jobs", "exactlyOnce": True})
    assert main(["resolve", str(checkpoint / "ck"), "statefx.connectors.sql:SqlQueueSpout", given]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a %20?#b.db"]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("or txid=, and not both", "or --txid, and not both"),
        ("say unknown='release', and origin=, whose they are", "say --unknown release, and --origin, whose they are"),
        ("got task=7", "got --task 7"),
        ("Say sinks='append' if", "Say --sinks append if"),
        ("call Checkpoint(location).restore(txid=7, to='x')", "call Checkpoint(location).restore(txid=7, to='x')"),
        ("start with rename={'a': its name}", "start with rename={'a': its name}"),
        ("at=7, or txid=7 in restore", "--at 7, or --txid 7 in restore"),
    ],
)  # fmt: skip
def test_messages_say_options_for_arguments(message, shown):
    assert _in_shell(message) == shown


NOTHING = {
    "transactions": ("transactions {ck}", "no transaction has begun yet"),
    "state": ("state {ck}", "no bolt of this topology keeps state"),
    "state of a bolt": ("state {two} count", "'count' is empty"),
    "state as it was": ("state {two} count --at 1", "there was nothing of 'count' at transaction 1"),
    "state that changed": ("state {two} count --since 1", "nothing of 'count' has changed from transaction 1 to 2"),
    "maps": ("maps {two} count", "'count' has no maps, lists or values"),
    "quarantined": ("quarantined {two} count", "no rows of 'count' are held back"),
    "savepoints": ("savepoints {ck}", "there are no savepoints"),
    "resolve": ("resolve {ck} statefx.connectors.sql:SqlQueueSpout {queue}", "no messages are sealed there"),
}
LISTS = {
    name
    for name, command in _cli.commands.items()
    if "Listing" in str(getattr(command.callback, "__annotations__", {}).get("return"))
}


class Nothing(WithState):
    def execute(self, tup, collector):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("form", ["--json", "--table"])
def test_a_list_without_rows_says_so_on_stderr(form, checkpoint, tmp_path, capsys):
    assert LISTS - {"log", "explain"} == {command.split()[0] for command, _ in NOTHING.values()}, (
        "all that may be empty"
    )
    for name in ("ck", "two"):
        builder = TopologyBuilder("nothing")
        builder.setStream("in", rows("word string"))
        builder.setBolt("count", Nothing() if name == "two" else Ignores()).fieldsGrouping("in", "word")
        with TopologyTester(builder.createTopology(), tmp_path / name) as tester:
            for _ in range(2 * (name == "two")):
                tester.send({"in": [("a",)]})
    queue = shlex.quote(json.dumps({"url": f"sqlite:///{checkpoint}/jobs.db", "table": "jobs", "exactlyOnce": True}))
    for command, says in NOTHING.values():
        words = shlex.split(command.format(ck=tmp_path / "ck", two=tmp_path / "two", queue=queue))
        assert main([*words, form]) == 0
        printed = capsys.readouterr()
        assert (printed.err, len(printed.out.splitlines())) == (f"{says}\n", 1 if form == "--table" else 0), words


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
        "'count' has no keys of its own; it has counts (map), last (map): say --map counts or --map last\n",
    )
    assert main(["explain", str(tmp_path / "ck"), "count", "a"]) == 1
    assert capsys.readouterr().err.endswith("; it has counts (map), last (map): say --map counts or --map last\n")


def test_a_bolt_that_has_no_keys_at_all_names_what_shows_it(tmp_path, capsys):
    class Newest(Count):
        def initState(self, state):
            self.newest = state.value("newest")

        def execute(self, tup, collector):
            self.newest.put(tup.word)

    builder = TopologyBuilder("newest")
    builder.setStream("in", rows("word string"))
    builder.setBolt("count", Newest()).globalGrouping("in")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        tester.send({"in": [("a",)]})
    assert main(["state", str(tmp_path / "ck"), "count"]) == 0
    shown = "Checkpoint(location).state('count').value('newest')"
    assert capsys.readouterr().err.endswith(f"it has newest (value): in Python {shown} shows it\n")
    assert Checkpoint(tmp_path / "ck").state("count").value("newest") == {0: "a"}


def test_a_migration_is_said_in_a_sentence(checkpoint, tmp_path):
    ck = Checkpoint(checkpoint / "ck").restore(to=tmp_path / "own").location
    assert re.fullmatch(
        r"the state of 1 bolt at transaction 2 was moved from memory to rocksdb: 2 tasks, 4 entries, \d+ bytes, "
        r"\d+\.\d s; submit with topology\.state\.provider='rocksdb'",
        str(Checkpoint(ck).migrate("rocksdb")),
    )


@pytest.mark.slow
def test_a_process_exits_with_the_code(checkpoint):
    done = subprocess.run(
        [sys.executable, "-m", "statefx", "explain", checkpoint / "ck", "count", "z"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")
