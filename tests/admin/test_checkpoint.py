"""`Checkpoint`: what each method says of a checkpoint, a component or an argument that is not there."""

import subprocess
import sys

import pyarrow as pa
import pytest

from statefx import Checkpoint, Stateful
from statefx.errors import CheckpointError, ConfigError
from tests.admin.checkpoints import Keeper, Newer, keeping, put
from tests.testing.places import place

__all__ = ["place"]

ROWS = pa.table({"key": ['"a"'], "value": ["1"]})


class Older(Newer):
    def downgradeState(self, version, key, value):
        return value


CALLS = {
    "state": lambda checkpoint, bolt: checkpoint.state(bolt),
    "table": lambda checkpoint, bolt: checkpoint.table(bolt),
    "write": lambda checkpoint, bolt: checkpoint.write(bolt, ROWS),
    "explain": lambda checkpoint, bolt: checkpoint.explain(bolt, "a"),
    "quarantined": lambda checkpoint, bolt: checkpoint.quarantined(bolt),
    "downgrade": lambda checkpoint, bolt: checkpoint.downgrade(bolt, Older(), 1),
    "rescale": lambda checkpoint, bolt: checkpoint.rescale({bolt: 3}),
    "rename": lambda checkpoint, bolt: checkpoint.rename({bolt: "other"}),
    "transactions": lambda checkpoint, bolt: checkpoint.transactions(),
    "abort": lambda checkpoint, bolt: checkpoint.abort(),
    "savepoint": lambda checkpoint, bolt: checkpoint.savepoint("one"),
    "savepoints": lambda checkpoint, bolt: checkpoint.savepoints(),
    "deleteSavepoint": lambda checkpoint, bolt: checkpoint.deleteSavepoint("one"),
    "restore": lambda checkpoint, bolt: checkpoint.restore("one"),
    "migrate": lambda checkpoint, bolt: checkpoint.migrate("rocksdb"),
    "verify": lambda checkpoint, bolt: checkpoint.verify(),
    "repair": lambda checkpoint, bolt: checkpoint.repair(yes=True),
    "observation": lambda checkpoint, bolt: checkpoint.observation(),
    "why": lambda checkpoint, bolt: checkpoint.why(),
    "status": lambda checkpoint, bolt: checkpoint.status(),
    "stop": lambda checkpoint, bolt: checkpoint.stop(),
    "pause": lambda checkpoint, bolt: checkpoint.pause(),
    "resume": lambda checkpoint, bolt: checkpoint.resume(),
    "loglevel": lambda checkpoint, bolt: checkpoint.loglevel("DEBUG"),
}
OF_A_BOLT = ("state", "table", "write", "explain", "quarantined", "downgrade", "rescale", "rename")


def test_every_method_is_called_here():
    methods = {name for name, value in vars(Checkpoint).items() if callable(value) and not name.startswith("_")}
    elsewhere = {"toDataFrame", "resolve"}  # with a session, in test_state_frame.py; with a queue, in test_absent.py
    assert methods == CALLS.keys() | elsewhere


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_missing_checkpoint_is_named_and_not_made(call, tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(CheckpointError, match=f"there is no checkpoint in {folder}"):
            call(Checkpoint(folder), "keep")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", OF_A_BOLT)
def test_unknown_component_is_named_with_those_there_are(name, place):
    with Keeper(place) as keeper:
        keeper.run(put(a=1), topology=keeping(bolt=Newer()))
        with pytest.raises((CheckpointError, ConfigError), match=r"'nobody'.*\['keep'(, 'rows')?\]"):
            CALLS[name](Checkpoint(keeper.folder), "nobody")


@pytest.mark.parametrize("location", [None, 5, "", b"ck", "hdfs://host/ck", "s3://bucket", ["ck"]])
def test_location_that_can_not_be_one_is_refused_at_once(location):
    with pytest.raises(ConfigError, match="checkpointLocation"):
        Checkpoint(location)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("rocksdb", "config must be a mapping"),
        ({"topology.state.provder": "rocksdb"}, "topology.state.provider"),
        ({"topology.state.provider.config": "{"}, "no valid JSON"),
    ],
)
def test_wrong_settings_are_refused_at_once(config, says):
    with pytest.raises(ConfigError, match=says):
        Checkpoint("ck", config)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda checkpoint: checkpoint.state("keep", "7"), r"tasks 0..1, got task='7': give a number"),
        (lambda checkpoint: checkpoint.state("keep", codec="json"), "codec must be an object"),
        (lambda checkpoint: checkpoint.table("keep", at=1.5), "give the number of a transaction"),
        (lambda checkpoint: checkpoint.table("keep", at=1, diff=(0, 1)), "give one of them"),
        (lambda checkpoint: checkpoint.toDataFrame("local", "keep"), "toDataFrame needs the SparkSession"),
        (lambda checkpoint: checkpoint.write("keep", [("a", 1)]), "write: give a DataFrame that is no stream"),
        (lambda checkpoint: checkpoint.write("keep", ROWS, mode="append"), "mode must be 'merge' or 'overwrite'"),
        (lambda checkpoint: checkpoint.write("keep", ROWS, groupingKey="key"), "groupingKey must be a function"),
        (lambda checkpoint: checkpoint.state(["keep"]), r"id of a bolt is a text, got \['keep'\]; .* \['keep'\]"),
        (lambda checkpoint: checkpoint.table({"keep": 1}), "id of a bolt is a text"),
        (lambda checkpoint: checkpoint.explain(["keep"], "a"), "id of a bolt is a text"),
        (lambda checkpoint: checkpoint.write(["keep"], ROWS), "id of a bolt is a text"),
        (lambda checkpoint: checkpoint.quarantined(["keep"]), "id of a bolt is a text"),
        (lambda checkpoint: checkpoint.downgrade(["keep"], Older(), 1), "id of a bolt is a text"),
        (lambda checkpoint: checkpoint.table("keep", map=["plain"]), "give the one that it has in the bolt"),
        (lambda checkpoint: checkpoint.state("keep", byTask="no"), "byTask must be True or False"),
        (lambda checkpoint: checkpoint.state("keep", migrate=3), "migrate must be a function"),
        (lambda checkpoint: checkpoint.write("keep", ROWS, progress=3), "progress must be a function"),
        (lambda checkpoint: checkpoint.rescale({"keep": 3}, progress=3), "progress must be a function"),
        (lambda checkpoint: checkpoint.restore(to="copy", progress=3), "progress must be a function"),
        (lambda checkpoint: checkpoint.migrate("rocksdb", progress=3), "progress must be a function"),
        (lambda checkpoint: checkpoint.downgrade("keep", Older(), 1, progress=3), "progress must be a function"),
        (lambda checkpoint: checkpoint.verify(progress=3), "progress must be a function"),
        (lambda checkpoint: checkpoint.repair(progress=3), "progress must be a function"),
        (lambda checkpoint: checkpoint.rescale({"keep": 3}, groupingKey={"keep": 3}), "groupingKey must be a function"),
        (lambda checkpoint: checkpoint.downgrade("keep", Older(), 1, groupingKey=3), "groupingKey must be a function"),
        (lambda checkpoint: checkpoint.resolve("jobs"), "is no queue"),
        (lambda checkpoint: checkpoint.savepoint(5), "a savepoint's name has"),
        (lambda checkpoint: checkpoint.restore(), "say what to go back to"),
        (lambda checkpoint: checkpoint.restore("one", txid=1), "and not both"),
        (lambda checkpoint: checkpoint.restore(txid=1, sinks="forget"), "sinks must be"),
        (lambda checkpoint: checkpoint.restore(to="copy", sinks="append"), "Leave sinks out"),
        (lambda checkpoint: checkpoint.rescale(8), "tasks must be a mapping"),
        (lambda checkpoint: checkpoint.rescale({"keep": 0}), "must have from 1"),
        (lambda checkpoint: checkpoint.rescale({"keep": 3}, groupingKey=str), "groupingKey must be a mapping"),
        (lambda checkpoint: checkpoint.rescale({"keep": 3}, spark="local"), "rescale needs the SparkSession"),
        (lambda checkpoint: checkpoint.migrate("memory"), "is kept by 'memory' already"),
        (lambda checkpoint: checkpoint.migrate("rocksdb", {"dri": "x"}), "did you mean 'dir'"),
        (lambda checkpoint: checkpoint.downgrade("keep", Stateful, 1), "an object of the bolt's class"),
        (lambda checkpoint: checkpoint.downgrade("keep", Older(), 0), "version must be"),
        (lambda checkpoint: checkpoint.rename(), "say who is called what"),
        (lambda checkpoint: checkpoint.repair(sinks="forget"), "sinks must be"),
    ],
)
def test_wrong_arguments_change_nothing(wrong, says, place):
    with Keeper(place) as keeper:
        keeper.run(put(a=1), topology=keeping(bolt=Newer()))
        before = sorted(path for path in keeper.folder.rglob("*") if path.is_file())
        with pytest.raises(ConfigError, match=says):
            wrong(Checkpoint(keeper.folder))
        assert sorted(path for path in keeper.folder.rglob("*") if path.is_file()) == before


def test_one_object_sees_what_is_committed_later(place):
    checkpoint = Checkpoint(place / "checkpoint")
    assert repr(checkpoint) == f"Checkpoint({checkpoint.location!r})"
    with Keeper(place) as keeper:
        assert checkpoint.location == str(keeper.folder)
        for number in (1, 2):
            keeper.run(put(a=number))
            with checkpoint.state("keep") as view:
                assert (view.txid, view["a"]) == (number, number)
            assert checkpoint.table("keep")["value"].to_pylist() == [str(number)]
            assert [each.txid for each in checkpoint.transactions()][-1] == number


@pytest.mark.slow
def test_everything_but_dataframes_works_without_pyspark(place):
    with Keeper(place) as keeper:
        keeper.run(put(a=1), topology=keeping(bolt=Newer()))
        code = f"""
import sys
sys.modules["pyspark"] = None
from statefx import Checkpoint
from statefx.errors import ConfigError
import pyarrow as pa
checkpoint = Checkpoint({str(keeper.folder)!r})
assert checkpoint.table("keep").num_rows == 1
checkpoint.write("keep", pa.table({{"key": ['"a"'], "value": ["2"]}}), groupingKey=str)
checkpoint.rescale({{"keep": 3}}, groupingKey={{"keep": str}})
with checkpoint.state("keep") as view:
    assert dict(view.items()) == {{"a": 2}}
try:
    checkpoint.write("keep", [1])
except ConfigError:
    print("refused")
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
