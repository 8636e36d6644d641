"""The examples are run as a newcomer runs them, from another folder, and must say what they are there to show."""

import os
import random
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from statefx.testing import TopologyTester
from tests.programs import Programs
from tests.sinks.postgres_server import PostgresServer

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TIMEOUT_SECS = 280
SHORT_LINES = 60

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def run(name: str, *arguments: str, folder: Path, timeout_secs: float = TIMEOUT_SECS) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        # Unbuffered output would hide that an example prints after a process that it started.
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        timeout=timeout_secs,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert list(folder.iterdir()) == [], "an example leaves something behind where it was run"
    return done.stdout


def told(programs: Programs, name: str, *arguments: object) -> list[str]:
    """Run an example that starts and kills nothing, from another folder; return the lines that it prints."""
    done = programs.run(EXAMPLES / name, *arguments)
    assert done["failure"] is None, f"{done['stdout'][-4000:]}\n{done['stderr'][-4000:]}\n{done['failure']}"
    assert done["left"] == [], "an example leaves something behind where it was run"
    return str(done["stdout"]).splitlines()


def test_hooks_come_in_their_order(programs):
    lines = told(programs, "hooks.py")
    assert [re.sub(r"transaction (\d), attempt (\d): (\w+).*", r"\1.\2 \3", line) for line in lines] == [
        "1.0 initState",
        "1.0 execute",
        "1.0 prePrepare",
        "1.0 initState",
        "1.0 preCommit",
        "2.0 initState",
        "2.0 execute",
        "2.0 initState",
        "2.0 preRollback",
        "2.1 initState",
        "2.1 execute",
        "2.1 prePrepare",
        "2.1 initState",
        "2.1 preCommit",
    ]
    assert lines[5].endswith("initState with {'milk': 1}")
    assert lines[9].endswith("initState with {'milk': 1}"), "the failed attempt left nothing behind"
    assert lines[12].endswith("initState with {'eggs': 2, 'milk': 1}"), "preCommit sees what was prepared"


@pytest.mark.soak
def test_a_sum_that_was_killed_goes_on(tmp_path):
    assert run("resume_after_crash.py", folder=tmp_path).splitlines() == [
        "interrupted before: []",
        "first run: exit code -9, transaction 1, sum 5050",
        "interrupted before: [{'txid': 2, 'rolled': 'back'}]",
        "second run: exit code 0, transaction 4, sum 20200",
        "expected: 20200",
    ]


@pytest.mark.soak
def test_an_interval_join_is_as_a_recount_says_though_it_is_killed(tmp_path):
    assert run("orders_payments.py", folder=tmp_path).splitlines() == [
        "first run: exit code -9",
        "second run: exit code 0",
        "sales are those of a recount: True",
        "reminders are those of a recount: True",
        "payments without an order are those of a recount: True",
        "late payments are those of a recount: True",
        "none of them is empty: True",
    ]


def test_a_provider_of_ones_own_keeps_state(programs):
    assert told(programs, "custom_provider.py") == [
        "after transaction 1: {'be': 2, 'not': 1, 'or': 1, 'to': 2}",
        "after transaction 2: {'be': 3, 'not': 1, 'or': 1, 'to': 3}",
    ]


@pytest.mark.soak
def test_the_most_frequent_words_are_in_a_table_whoever_is_killed(tmp_path):
    with PostgresServer() as server:
        lines = run("top_k_to_postgres.py", server.url(), folder=tmp_path).splitlines()
        tables = server.run("postgres", "select tablename from pg_tables where schemaname = 'public' order by 1")
    assert (lines[0], lines[-1]) == ("the table is in postgresql", "exact")
    assert "interrupted before: [{'txid': 3, 'rolled': 'forward'}]" in lines
    assert "second run: exit code 0; transaction 4: [('to', 5), ('be', 4), ('the', 1)]" in lines
    assert tables == [("statefx_markers",), ("top_words",)]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_three_stores_are_as_without_failure_whoever_is_killed(tmp_path):
    kills = 20
    lines = run("top_domains.py", "--kills", str(kills), folder=tmp_path, timeout_secs=150 + 100 * kills).splitlines()
    starts = [line for line in lines if line.startswith("start ")]
    assert [re.search(r"exit code (-?\d+)", line)[1] for line in starts] == [*["-9"] * kills, "0"], lines
    assert lines[-1] == "exact: all three stores are as without failure", lines


@pytest.mark.soak
def test_three_stores_are_as_without_failure(programs, tmp_path):
    """What the example starts; it runs the same logs without Spark, too."""
    example: Any = runpy.run_path(str(EXAMPLES / "top_domains.py"))
    logs, work, calm = (tmp_path / name for name in ("logs", "work", "calm"))
    example["write_logs"](logs, example["TRANSACTIONS"], random.Random(0))
    for folder in (work, calm):
        folder.mkdir()
    topology = example["topology"](logs, calm, example["Kill"](0, None, 0))
    with TopologyTester(topology, calm / "checkpoint", example["CONFIG"]) as tester:
        tester.drain()
    assert told(programs, "top_domains.py", logs, work, "never", 0) == ["interrupted before: []"]
    assert example["stores"](work) == example["stores"](calm)


@pytest.mark.soak
def test_words_are_ranked_in_windows_whoever_is_killed(tmp_path):
    lines = run("top_words.py", folder=tmp_path).splitlines()
    assert [line for line in lines if " run: " in line] == ["first run: exit code -9", "second run: exit code 0"]
    assert "{'txid': 12, 'rolled': 'back'}" in next(line for line in lines if line.startswith("interrupted before: [{"))
    assert lines[-2:] == ["until 12:39: question 188, to 166, the 75", "exact: 40 windows"]


def test_words_are_ranked_in_windows(programs, tmp_path):
    """By the second start: the first one would kill its driver."""
    example: Any = runpy.run_path(str(EXAMPLES / "top_words.py"))
    with TopologyTester(example["topology"](tmp_path), tmp_path / "checkpoint"):
        pass
    assert told(programs, "top_words.py", tmp_path) == ["interrupted before: []"]
    assert example["ranked"](tmp_path) == example["recount"]()


@pytest.mark.soak
def test_sessions_end_when_nobody_clicks_whoever_is_killed(tmp_path):
    lines = run("sessions.py", folder=tmp_path).splitlines()
    assert [line for line in lines if " run: " in line] == ["first run: exit code -9", "second run: exit code 0"]
    assert re.fullmatch(r"\d+ clicks in \d+ sessions of 5 users; 3 late clicks", lines[-2]), lines
    assert lines[-1] == "exact: each session as a recount has it, and each late click once", lines


def test_the_global_count_has_each_tuple_once(programs):
    assert told(programs, "global_count.py") == [
        "transaction 1, attempt 0: 0 + 9 = 9",
        "transaction 2, attempt 0: 9 + 7 = 16",
        "transaction 3, attempt 0: 16 + 3 = 19",
        "transaction 3, attempt 1: found 19",
        "global count: 19",
    ]


def test_messages_are_processed_or_given_up(programs):
    words = "to be or not to be that is the question whether it is nobler to suffer"
    counts = dict(sorted(Counter(words.split()).items()))
    assert told(programs, "guaranteed_word_count.py") == [
        "'to be or not to be': done after 1 try",
        "'that is the question': done after 1 try",
        "'?': given up after 3 tries",
        "'whether it is nobler': done after 1 try",
        "'to suffer': done after 1 try",
        f"{counts}",
    ]


def test_a_work_queue(programs):
    assert told(programs, "work_queue.py") == [
        "billed: {'ann': 10, 'bob': 21, 'cid': 5}",
        "dead letter: ann, -1: bolt 'check': -1 is no amount",
    ]


@pytest.mark.soak
def test_a_join_acks_what_it_has_held_over_transactions(programs):
    assert told(programs, "late_join.py") == [
        "before there are payments, 0 of 60 orders are acked",
        "57 orders are sold and acked; each once, as a recount says: True",
        "waiting: [(0, 'orders'), (1, 'orders'), (2, 'orders'), (60, 'payments'), (61, 'payments')]",
    ]


@pytest.mark.soak
def test_state_of_a_former_version_is_read_in_the_new_form(programs):
    assert told(programs, "upgrade_state.py") == [
        "InEuros has stored {'ann': 12.5, 'bob': 5.0}",
        "InCents has stored {'ann': 1349, 'bob': 5.0}",
        "and reads {'ann': 1349, 'bob': 500}",
    ]
    assert len((EXAMPLES / "upgrade_state.py").read_text().splitlines()) < SHORT_LINES


@pytest.mark.soak
def test_the_demo_is_killed_twice_and_exact(tmp_path):
    said = run("word_count.py", "--files", "72", "--batch", "6", folder=tmp_path)
    back = re.search(r"transaction (\d+) was killed in PREPARING and rolled back", said)
    forward = re.search(r"transaction (\d+) was killed in COMMITTING and rolled forward", said)
    assert back, said
    assert forward, said
    assert int(back[1]) < int(forward[1])
    assert re.search(r"^exact: [\d,]+ keys, [\d,]+ occurrences$", said, re.MULTILINE), said


@pytest.mark.soak
def test_files_of_ones_own_are_counted_once(programs, tmp_path):
    """What the demo starts and kills."""
    (tmp_path / "texts").mkdir()
    for start, counts in enumerate(({"or 2", "not 2", "to_be 4"}, {"or 3", "not 3", "to_be 6"})):
        for number in range(2 - start):
            (tmp_path / "texts" / f"{start}-{number}.py").write_text("to_be or not\nto_be\n")
        said = told(programs, "word_count.py", tmp_path / "texts", tmp_path / "checkpoint", "--batch=1")
        assert set(said[-1].removeprefix("  most frequent: ").split(", ")) == counts


@pytest.mark.soak
def test_the_demo_tells_why_the_count_failed(tmp_path):
    """Here before it has a JVM, which would take ten seconds of a processor."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "word_count.py"), "--files", "10"],
        cwd=tmp_path,
        env={**os.environ, "JAVA_HOME": str(tmp_path / "no-java")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECS,
        check=False,
    )
    assert done.returncode == 1
    assert "JAVA_GATEWAY_EXITED" in done.stderr


@pytest.mark.parametrize("name", ["hooks.py", "resume_after_crash.py"])
def test_an_example_stays_short(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < SHORT_LINES
