"""Fixtures that tests of KafkaSink share."""

import pytest

from statefx.connectors.kafka import clients, topic


@pytest.fixture
def quick(monkeypatch):
    """A broker of tests that is restarted is back in two seconds: nobody waits long for one that is gone."""
    for module, name, secs in (
        (topic, "CALL_SECS", 2.0),
        (topic, "_MARKER_ASK_SECS", 0.5),
        (topic, "_ABORT_SECS", 0.5),
        (topic, "_STABLE_SECS", 0.2),
        (clients, "GRACE_SECS", 0.5),
        (clients, "BELIEVED_SECS", 0.5),
        (clients, "START_SECS", 1.0),
        (clients, "FAILURE_SECS", 0.5),
    ):
        monkeypatch.setattr(module, name, secs)


@pytest.fixture
def patient(quick, monkeypatch):
    """A broker that was just made takes longer until it is ready, on a busy machine."""
    monkeypatch.setattr(topic, "CALL_SECS", 20.0)
