"""Every benchmark runs on a small input, so that one that fails is seen before somebody wants its figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SHARED = {"in_workers.py", "kafka_load.py", "kafka_quix.py", "measuring.py", "minutes.py", "nexmark_queries.py"}
"""What the systems import or start."""

SYSTEMS = sorted(path.name for path in (HERE / "systems").glob("*.py") if path.name not in SHARED)


def test_there_are_systems_and_what_they_share():
    assert len(SYSTEMS) > 20
    assert all((HERE / "systems" / name).exists() for name in SHARED)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("system", SYSTEMS)
def test_it_runs(system, tmp_path):
    """The figures are those of a machine at work; that there are some for every case is what counts."""
    output = tmp_path / "bench.json"
    done = subprocess.run(
        [sys.executable, HERE / "bench.py", "--quick", "--only", system, "--output", output],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    results = json.loads(output.read_text(encoding="utf-8"))["results"]
    assert results, "no case runs this system"
    assert [each for each in results if "error" in each or not each.get("measure")] == []
    assert done.stdout.count("failed") == 0
