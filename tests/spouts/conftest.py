"""What tests of spouts share."""

import pytest

from tests.spouts.queues import make, queue

__all__ = ["make", "queue"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what the shipped suite of spouts starts a process for: the mark is none of its users'."""
    if item.name.startswith("test_the_same_metadata_emits_the_same_rows_in_another_process"):
        item.add_marker("slow")
