"""Where Kafka's jars can't be had, tests are skipped with the reason, and nothing half is left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.kafka.libraries import UnavailableError, libraries
from tests.ports import free_port

pytestmark = pytest.mark.slow

NOWHERE = """
<ivysettings><settings defaultResolver="away"/><resolvers>
  <ibiblio name="away" m2compatible="true" root="http://127.0.0.1:{}/"/>
</resolvers></ivysettings>
"""
SKIPPED = "there is no Kafka: org.apache.kafka kafka_2.13 "


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a machine that has never fetched anything, and that reaches nobody."""
    (tmp_path / ".ivy2").mkdir()
    (tmp_path / ".ivy2" / "ivysettings.xml").write_text(NOWHERE.format(free_port()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "statefx"


def test_what_can_t_be_fetched_is_named_and_leaves_nothing(offline: Path) -> None:
    with pytest.raises(UnavailableError, match=r"org\.apache\.kafka kafka_2\.13 \S+ can't be fetched: \S"):
        libraries()
    assert list(offline.iterdir()) == []


def test_a_run_without_kafka_ends_with_the_reason(offline: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/kafka/test_broker.py",
        "-k",
        "sigkill",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    *_, summary, counts = done.stdout.splitlines()
    assert summary.startswith("SKIPPED")
    assert SKIPPED in summary
    assert counts.startswith("1 skipped")
    assert list(offline.iterdir()) == []
