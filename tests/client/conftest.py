"""What tests of clients share."""

import pytest

from statefx.client.outside import Outside
from tests.spouts.queues import make, queue

__all__ = ["make", "queue"]


@pytest.fixture
def unseen(monkeypatch):
    """Have clients without the threads that others see them by: thousands of lives that end in a crash leave theirs."""
    monkeypatch.setattr(Outside, "start", lambda outside, session: None)
    monkeypatch.setattr(Outside, "close", lambda outside, error: None)
