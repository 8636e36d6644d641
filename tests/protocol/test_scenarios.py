"""Every script in ``testdata/`` leaves exactly the trace it shows.

``STATEFX_REWRITE_SCENARIOS=1`` writes what happens into the scripts; read the difference before keeping it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.protocol.scenario import run

SCRIPTS = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scenario(path):
    script = path.read_text()
    happened = run(script)
    if os.environ.get("STATEFX_REWRITE_SCENARIOS") == "1":
        path.write_text(happened)
    assert happened == path.read_text()


def test_there_are_scripts():
    assert len(SCRIPTS) >= 15
