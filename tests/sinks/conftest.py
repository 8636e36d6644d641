"""Marks of the shipped suite of sinks, whose users have none."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark those that change a database at each of many steps; files take a tenth of that."""
    crashes = "test_a_crash_at_any_step_leaves_each", "test_what_is_taken_back_is_gone_after_any_crash"
    if item.name.startswith(crashes) and "TestSqlite" in item.nodeid:
        item.add_marker("slow")
