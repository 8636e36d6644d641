"""Where Kafka's jars can't be had, the reason is named, and nothing half is left behind."""

from pathlib import Path

import pytest

from tests.kafka.libraries import UnavailableError, libraries
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.server]

NOWHERE = """
<ivysettings><settings defaultResolver="away"/><resolvers>
  <ibiblio name="away" m2compatible="true" root="http://127.0.0.1:{}/"/>
</resolvers></ivysettings>
"""


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
