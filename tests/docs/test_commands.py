"""The commands that a page shows print what it shows: run on the checkpoint of a small word count."""

import re
import shlex
from pathlib import Path

import pytest

from statefx.command import _cli, main
from statefx.testing import TopologyTester
from statefx.testing.faults import JobFails
from tests.docs.tables import DOCS
from tests.testing.topologies import archived, lines, word_count


def section(title: str) -> str:
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


SECTION = section("The command line")
SHOWN = [block.partition("\n")[::2] for block in re.findall(r"```console\n\$ (.*?)```", SECTION, re.DOTALL)]
CHANGING = re.findall(r"```console\n(.*?)```", (DOCS / "changing.md").read_text(encoding="utf-8"), re.DOTALL)
NOT_THE_SAME = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z": "TIME",
    r"\b\d+\.\d{3}\b": "SECS",
    r"[0-9a-f]{32}": "ID",
    r"\S*/checkpoints": "checkpoints",
    r" +": " ",  # columns are as wide as what is in them
}


def checkpoint(place: Path) -> None:
    (place / "out").mkdir()
    with TopologyTester(archived(place / "out"), place / "checkpoints" / "word-count") as tester:
        tester.send(lines("to be or not to be"))
        tester.send(lines("that is the question"), JobFails(reason="executor 3 was lost"))


def same(text: str) -> list[str]:
    for pattern, stands in NOT_THE_SAME.items():
        text = re.sub(pattern, stands, text)
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_the_page_shows(place, command, output, capsys, monkeypatch):
    checkpoint(place)
    monkeypatch.chdir(place)
    words = shlex.split(command)
    assert words[0] == "statefx"
    code = main([*words[1:], *([] if "--json" in words else ["--table"])])  # pages show what a terminal does
    printed = capsys.readouterr()
    assert same(printed.out + printed.err) == same(output), printed.out + printed.err
    assert code == (1 if printed.err else 0)


def test_each_command_is_shown():
    assert {shlex.split(command)[1] for command, _ in SHOWN} == {"transactions", "state", "explain", "verify"}
    changing = {shlex.split(line)[2] for block in CHANGING for line in block.splitlines()}
    asking = {
        shlex.split(line)[2] for line in section("Controlling a running query").splitlines() if line.startswith("$ ")
    }
    page = (DOCS / "observing.md").read_text(encoding="utf-8")
    watching = set(re.findall(r"^\$ statefx (\w+)", page, re.MULTILINE))
    assert changing | asking | watching == set(_cli.commands) - {"log", "transactions"}


@pytest.mark.slow
def test_the_commands_that_change_a_checkpoint_do_so_one_after_the_other(place, capsys, monkeypatch):
    block, _ = CHANGING
    with TopologyTester(word_count(), place / "checkpoints" / "word-count") as tester:
        tester.send(lines("to be or not to be"))
    monkeypatch.chdir(place)
    (place / "rows.json").write_text('{"key": "to", "value": 7}\n{"key": "or", "value": null}\n')
    commands = [shlex.split(line.removeprefix("$ "))[1:] for line in block.splitlines()]
    printed = ""
    for words in commands:
        if "--yes" in words:
            assert main([each for each in words if each != "--yes"]) == 2
            assert "Nothing was changed" in capsys.readouterr().err
        assert main(words) == 0, capsys.readouterr().err
        printed += capsys.readouterr().out
    assert "before-v2" in printed
    assert '"tasks": {"count": [2, 8]}' in printed
    assert '"rows": 1, "deleted": 1' in printed
    assert '"names": {"count": "tally"}' in printed
    assert main(["rescale", "checkpoints/word-count", "count", "--yes"]) == 2
    assert "write it as in count=8" in capsys.readouterr().err
