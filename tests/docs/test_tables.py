"""What the pages list is what there is: settings, options, states, hooks, errors, records, arguments."""

import ast
import dataclasses
import inspect
import json
import re
import xml.etree.ElementTree as ET
from collections import deque
from itertools import chain, pairwise, product
from pathlib import Path
from typing import get_args

import pytest

import statefx
import statefx.errors
import statefx.state
from statefx.config import SETTINGS
from statefx.connectors.kafka import KafkaSink, KafkaSpout
from statefx.coordinator import janitor
from statefx.coordinator.attempt import Attempt
from statefx.coordinator.participants import SnapshotPolicy
from statefx.coordinator.progress import Progress, TransactionProgress
from statefx.log import log
from statefx.log.location import FORMAT
from statefx.operators.hooks import BOLTS
from statefx.protocol import pipeline as module
from statefx.protocol.commands import (
    Acked,
    Appended,
    Failed,
    Idle,
    Offered,
    Resolution,
    Resolved,
    Segment,
    Stop,
    Unresolved,
)
from statefx.protocol.completeness import Complete
from statefx.protocol.identity import EMPTY, Namespace, TransactionAttempt, Version
from statefx.protocol.jsonform import from_json, to_json
from statefx.protocol.log_rules import SNAPSHOTS_KEPT
from statefx.protocol.pipeline import Pipeline, Shape
from statefx.protocol.records import Record
from statefx.protocol.reports import Ack
from statefx.protocol.transaction import Event, Phase, TransactionState, mermaid
from statefx.runtime.task import METRICS
from statefx.spark.session import RECOMMENDED
from statefx.state import changelog
from statefx.state.changelog import store
from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.files import changelog_name, read_file, read_head
from statefx.state.changelog.merging import covers
from statefx.state.contract.store import FILES_MAX
from statefx.storage import FolderStorage
from statefx.topology import BoltDeclarer
from tests.docs.tables import DOCS, TABLES, shown
from tests.test_surface import EXPORTS


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def first_cells(text: str, heading: str) -> list[str]:
    below = text.partition(f"{heading}\n")[2]
    assert below, f"no heading {heading!r}"
    rows = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert rows
    return [line.split("|")[1].strip().strip("`") for line in rows[0].splitlines()[2:]]


@pytest.mark.parametrize("name", TABLES)
def test_a_generated_table_is_what_the_code_says(name):
    assert shown(name).strip() == TABLES[name]().strip(), "write it anew: python tests/docs/tables.py"


def test_every_setting_is_in_the_reference():
    assert first_cells(page("configuration"), "## Settings") == [setting.key for setting in SETTINGS]


def test_the_drawn_states_are_those_of_the_table():
    arrows = ET.parse(DOCS / "_static" / "states.svg").iter("{http://www.w3.org/2000/svg}path")
    drawn = [line for arrow in arrows for line in arrow.get("data-transition", "").split("; ") if line]
    assert sorted(drawn) == sorted(line.strip() for line in mermaid().splitlines()[1:])


def test_the_drawn_states_are_labelled_with_their_transitions():
    tree = ET.parse(DOCS / "_static" / "states.svg")
    texts = " ".join(text.text or "" for text in tree.iter("{http://www.w3.org/2000/svg}text"))
    for line in mermaid().splitlines()[2:]:
        states, _, label = line.strip().partition(": ")
        assert all(state in texts for state in states.split(" --> "))
        assert label in texts


def test_every_hook_is_in_the_table_with_its_arguments():
    shown_hooks = first_cells(page("stateful-bolts"), "## Hooks")
    assert sorted(shown_hooks) == sorted(f"{hook}({', '.join(arguments)})" for hook, arguments in BOLTS.called.items())


def test_every_grouping_is_in_the_table():
    there = {name for name in vars(BoltDeclarer) if name.endswith("Grouping")}
    assert {cell.partition("(")[0] for cell in first_cells(page("stateful-bolts"), "## Groupings")} == there


def test_every_error_is_in_the_table():
    classes = [thing for thing in vars(statefx.errors).values() if inspect.isclass(thing)]
    there = {thing.__name__ for thing in classes if issubclass(thing, statefx.errors.StatefxError)}
    cells = first_cells(page("errors"), "## Errors and remedies")
    named = [name for cell in cells for name in re.findall(r"\w+", cell)]
    assert sorted(named) == sorted(there - {"StatefxError"})


@pytest.fixture
def told():
    acks = {("count", 0): Ack(TransactionAttempt(1, 0), "count", 0, "t", metrics=dict.fromkeys(METRICS, 1.0))}
    progress = Progress()
    progress.begin(Attempt(TransactionAttempt(1, 0), complete=Complete({}, acks)))
    return progress.end(1, {}).as_dict()


def test_every_key_of_last_progress_is_in_the_tables(told):
    text = page("observing")
    cells = [re.findall(r"\w+", cell.replace("`", "")) for cell in first_cells(text, "## `lastProgress`")]
    assert [key for cell in cells for key in cell] == list(told)
    assert first_cells(text.partition("Times in `boltMs`")[2], "added up:\n") == list(told["boltMs"]["count"])
    assert first_cells(text.partition("Times in `durationMs`")[2], "in them:\n") == list(told["durationMs"])


def test_what_is_to_be_watched_is_there(told):
    keys = {*told, *told["boltMs"]["count"], *told["durationMs"], "stuck", "status"}
    rows = page("observing").partition("## What to watch")[2].partition("\n## ")[0].splitlines()
    signs = [name for row in rows if row.startswith("|") for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(signs) > 5
    assert set(signs) <= keys


def test_every_key_of_status_is_told_of():
    progress = Progress()
    progress.begin(Attempt(TransactionAttempt(1, 0)))
    progress.stuck("commit", 1, "")
    progress.found_sinks(["out"], [])
    progress.failing("out", "away")
    told, status = page("observing").partition("## `status`")[2].partition("##")[0], progress.status()
    assert all(f"`{key}`" in told for key in [*status, *status["sinks"]["out"], "isActive", "message"])


def test_the_line_of_a_transaction_is_what_is_logged():
    figures = {
        "statefx_input_rows": {(): 12_000},
        "statefx_state_keys_changed": {("count",): 340},
        "statefx_transaction_duration_seconds": {("run",): 0.17, ("hooks",): 0.0, ("log",): 0.012, ("all",): 0.182},
    }
    done = TransactionProgress(7, 0, figures, 0.0)
    assert f"word-count: {done}\n" in page("observing")


def test_every_kind_of_record_is_in_the_table():
    kinds = {shape.kind for shape in get_args(Record)}
    below = page("on-disk").partition("| `checksum` |")[2]
    assert set(first_cells(f"x\n{below.partition(chr(10))[2]}", "x")) == kinds


@pytest.mark.parametrize("of", [statefx.submit, KafkaSpout, KafkaSink])
def test_every_parameter_is_in_the_reference(of):
    """By its docstring, from which the reference is made: pages have no table of their own."""
    text = (inspect.getdoc(of) or "").partition("Parameters\n---")[2].partition("\n\n")[0]
    named = [name for names in re.findall(r"^(\w[\w, ]*) : ", text, re.MULTILINE) for name in names.split(", ")]
    parameters = inspect.signature(of).parameters.values()
    assert named == [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]  # those are refused


def test_the_recommended_session_is_what_submit_hints_at():
    text = page("configuration")
    assert first_cells(text, "## Recommended session") == list(RECOMMENDED)
    block = re.search(r"```python\n(from pyspark.*?)```", text, re.DOTALL)
    assert block
    texts = [node.value for node in ast.walk(ast.parse(block[1])) if isinstance(node, ast.Constant)]
    assert set(RECOMMENDED.items()) <= set(pairwise(texts))


@pytest.mark.parametrize(
    "text",
    [
        f'{{"format": {FORMAT}}}',
        f"After {log.RECORDS_BEFORE_CHECKPOINT} records",
        f"more than {FILES_MAX} to {2 * FILES_MAX - 1} files",
        {0.125: "an eighth of all tasks"}[SnapshotPolicy().share],
        f"the last {janitor.VERSIONS_KEPT} transactions",
        f"more than {SnapshotPolicy().min_bytes >> 20} MiB",
        f"newest {['no', 'one', 'two', 'three'][SNAPSHOTS_KEPT]} snapshots",
        f"Every {janitor.EVERY_TRANSACTIONS} transactions",
        f"older than {janitor.MIN_AGE_SECS:g} seconds",
        f"not sooner than {janitor.MIN_AGE_SECS * janitor.PAUSE_SHARE:g} seconds after",
        f"has opened for {store.IDLE_SECS:g} seconds",
        f"last used {store.IDLE_BYTES >> 20} MiB",
    ],
)
def test_numbers_of_the_layout_are_those_of_the_code(text):
    assert text in " ".join(page("on-disk").split())


def rows_below(text: str, heading: str) -> list[list[str]]:
    below = text.partition(heading)[2]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines()[2:]]


def version(text: str) -> Version | None:
    found = re.findall(r"`(\d+)-(\w+)`", text)
    return Version(int(found[0][0]), found[0][1]) if found else None


def test_the_worked_chain_is_what_is_written_and_read(tmp_path):
    text = inspect.getdoc(changelog) or ""
    chain, names = Changelog(Namespace("lineage", "count", 0), FolderStorage(tmp_path)), []
    for file, follows, holds, takes_in, _ in rows_below(text, "Five files"):
        before = version(re.findall("`.*?`", takes_in)[-1]) if takes_in else version(follows)
        pairs = [pair.split("=") for pair in holds.split()]
        writes = [(key.encode(), None if value == "deleted" else value.encode()) for key, value in pairs]
        if takes_in:  # what comes from the files that it takes in is not written by the transaction itself
            writes = [(key, value) for key, value in writes if key != b"or"]
        chain.prepare(version(file), 1, before or EMPTY, writes, files_max=2 if takes_in else 99)
        name = changelog_name(chain.namespace.prefix, version(file))
        written = read_head(chain.storage, name)
        assert written.identity.predecessor == (version(follows) or EMPTY)
        covered = [older for older in names if covers(written, version(older))]
        assert " ".join(covered) == takes_in
        found = {
            key: value
            for keys, values in read_file(chain.storage, written)
            for key, value in zip(keys, values, strict=True)
        }
        assert [
            f"{key.decode()}={value.decode() if value else 'deleted'}" for key, value in found.items()
        ] == holds.split()
        names.append(file)
    opened = rows_below(text, "What opening a version reads")
    assert len(opened) > 4
    for wanted, cached, begins, reads, _ in opened:
        route = Changelog(chain.namespace, chain.storage).route(version(wanted), None, version(cached))
        assert route.cached == (begins == "the cache")
        assert [step.identity.version for step in route.steps] == [version(each) for each in reads.split()]


PUBLIC = [package for package in EXPORTS if package is not statefx.state]
"""What a state provider is given stands there by module."""


@pytest.mark.parametrize("package", PUBLIC, ids=lambda package: package.__name__)
def test_every_public_name_is_in_the_reference(package):
    """Under the name by which a user imports it."""
    documented = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)$", page("api"), re.MULTILINE))
    assert {f"{package.__name__}.{name}" for name in package.__all__} - documented == set()


def test_errors_and_what_a_provider_is_given_are_in_the_reference_by_module():
    assert ".. automodule:: statefx.errors" in page("api")
    assert ".. automodule:: statefx.state.contract.store" in page("api")


def test_storm_names_that_are_refused_are_named():
    text = (page("how-to/from-storm") + page("how-to/from-flink")).lower()
    assert all(name in text for name in BOLTS.storm)


def test_what_is_said_of_the_query_is_there():
    cells = re.search(r"^\| `StreamingQuery`: (.*?) \|", page("how-to/from-foreachbatch"), re.MULTILINE)
    assert cells
    assert all(hasattr(statefx.Query, name) for name in re.findall(r"`(\w+)(?:\(\))?`", cells[1]))


# ---- The records to which `docs/on-disk.md` links are those that the log writes.


PAGE = (Path(__file__).parents[2] / "docs" / "on-disk.md").read_text(encoding="utf-8")
EXAMPLES = [json.loads(line) for line in (DOCS / "_static" / "records.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("body", EXAMPLES, ids=lambda body: body["kind"])
def test_a_record_that_is_shown_is_read_and_written_as_shown(body):
    assert to_json(from_json(Record, body)) == body


def test_there_is_one_of_each_kind_and_the_table_tells_of_it():
    kinds = {record.kind for record in get_args(Record)}
    assert {body["kind"] for body in EXAMPLES} == kinds
    assert all(f"`{kind}`" in PAGE for kind in kinds)


# ---- The drawn stages of a transaction are those that the pipeline goes through, whatever happens in whatever order.


TRANSACTIONS = 1
SHAPES = [
    Shape(
        pending=pending,
        segments=segments,
        writes_processed=writes,
        commits_at_decision=commits_at_decision,
        attempts_max=1,
    )
    for pending, segments, writes, commits_at_decision in product((1, 2), (1, 2), (False, True), (False, True))
    if segments == 2 or (pending == 1 and not writes)
]


def happenings(pipeline):
    yield from (Offered(), Idle(), Stop(now=False), Stop(now=True))
    if pipeline.appending is not None:
        yield Appended(pipeline.appending)
    for entry in pipeline.entries:
        yield Failed(entry.name)
        yield from (Acked(segment, entry.name) for segment in Segment)
        yield from (kind(each, entry.name) for kind in (Resolved, Unresolved) for each in Resolution)


def named(entry):
    return f"{entry.phase}/{entry.stage.name}"


def every_state(pipeline):
    """Each event in each state that any order of events leads to: the state before, the event, the state after."""
    known, waiting = {pipeline}, deque([pipeline])
    while waiting:
        before = waiting.popleft()
        for each in happenings(before):
            after, _ = before.on(each)
            yield before, each, after
            if after not in known and after.committed < TRANSACTIONS:
                known.add(after)
                waiting.append(after)


@pytest.fixture
def steps(monkeypatch):
    """Where a watched pipeline notes the single steps of its transactions, as the picture names them."""
    found, commit, step = set(), Pipeline._commit, TransactionState.step

    def note(before, after):
        if isinstance(before, TransactionState) and before.name == after.name and named(before) != named(after):
            found.add(f"{named(before)} {named(after)}")
        return after

    def replace(value, **changes):
        return note(value, dataclasses.replace(value, **changes))

    def stepping(state, event, *stage):
        after = step(state, event, *stage)
        return after if event is Event.START else note(state, after)

    def committing(self, entry):
        outcome = commit(self, entry)
        if outcome is not None and outcome[0].committed == entry.txid:
            found.add(f"{named(entry)} end")
        return outcome

    monkeypatch.setattr(module, "replace", replace)
    monkeypatch.setattr(TransactionState, "step", stepping)
    monkeypatch.setattr(Pipeline, "_commit", committing)
    return found


@pytest.mark.slow
def test_the_drawn_stages_are_those_of_the_pipeline(steps):
    for shape in SHAPES:
        left = [TransactionState(phase, 1) for phase in (Phase.PREPARING, Phase.COMMITTING)]  # by a former driver
        beginnings = [Pipeline(shape), *(Pipeline.recover(shape, 0, [state], {1: 1})[0] for state in left)]
        for before, event, after in chain.from_iterable(map(every_state, beginnings)):
            if isinstance(event, Offered) and len(after.entries) > len(before.entries):
                steps.add(f"start {named(after.entries[-1])}")
            if isinstance(event, Appended) and event.append.kind == "ROLLED_BACK":
                steps.add(f"{named(before.entries[-1])} end")
    arrows = ET.parse(DOCS / "_static" / "stages.svg").iter("{http://www.w3.org/2000/svg}path")
    drawn = [step for arrow in arrows for step in arrow.get("data-steps", "").split("; ") if step]
    assert sorted(drawn) == sorted(steps)
