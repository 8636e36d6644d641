"""Rooms and rules that pages and code name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {folder.name for folder in (ROOT / "statefx").iterdir() if folder.is_dir()}


def test_every_room_stands_on_its_page() -> None:
    rows = set(re.findall(r"^\| `(\w+)/` \|", (ROOT / "docs/internals/rooms.md").read_text(), re.MULTILINE))
    assert rows == {room for room in ROOMS if (ROOT / "statefx" / room / "__init__.py").exists()}


RULES = r"[Rr]ules? (\d+(?:\.\d+)?(?:(?:, | and | to |, and )\d+(?:\.\d+)?)*)"


@pytest.mark.slow
def test_rules_that_are_cited_exist_and_all_are_cited() -> None:
    """A number is all that leads from a line to the reason why it is there."""
    page = (ROOT / "docs/internals/protocol.md").read_text()
    known = {*re.findall(r"^## (\d+)\.", page, re.MULTILINE), *re.findall(r"\*\*(\d+\.\d+)\*\*", page)}
    assert {"1", "13", "1.1"} <= known
    cited = [
        (path.relative_to(ROOT), number)
        for folder in ("statefx", "providers", "tests", "docs/internals")
        for path in sorted((ROOT / folder).rglob("*.*"))
        if path.suffix in (".py", ".md")
        for numbers in re.findall(RULES, re.sub(r"\s*\n\s*(?:# )?", " ", path.read_text()))
        for number in re.findall(r"\d+(?:\.\d+)?", numbers)
    ]
    assert [f"{path}: {number}" for path, number in cited if number not in known] == []
    used = {number for path, number in cited if path.parts[0] != "docs"}
    assert [rule for rule in known if "." in rule and rule not in used] == [], "cite it where its code is, or delete it"
