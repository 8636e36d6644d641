"""Modules that the pages for developers name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {folder.name for folder in (ROOT / "statefx").iterdir() if folder.is_dir()}


@pytest.mark.parametrize("page", sorted((ROOT / "docs/internals").glob("*.md")), ids=lambda page: page.name)
def test_the_modules_it_names_are_there(page: Path) -> None:
    named = re.findall(r"`(?:statefx/)?((\w+)/[\w/]+\.py)`", page.read_text())
    missing = [
        path for path, room in named if not (ROOT / ("statefx" if room in ROOMS - {"tests"} else "") / path).exists()
    ]
    assert not missing
