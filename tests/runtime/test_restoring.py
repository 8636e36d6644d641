"""A task that restores state for long shows it, and only then."""

import os
import threading

import pytest

from statefx.runtime import restoring
from statefx.storage import FolderStorage


def test_nothing_is_under_way_where_nothing_restores(tmp_path):
    assert not restoring.under_way(FolderStorage(tmp_path / "none"))


def test_a_quick_restore_leaves_no_file(tmp_path):
    with restoring.restoring(FolderStorage(tmp_path), "count-0"):
        assert not restoring.under_way(FolderStorage(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_long_restore_shows_until_it_ends(tmp_path):
    look = threading.Event()
    with restoring.restoring(FolderStorage(tmp_path), "count-0-a1b2"):
        shown = any(restoring.under_way(FolderStorage(tmp_path)) == ["count-0"] or look.wait(0.05) for _ in range(200))
    assert shown
    assert not restoring.under_way(FolderStorage(tmp_path))


def test_a_dead_task_is_forgotten(tmp_path):
    path = tmp_path / "restoring" / "count-0"
    path.parent.mkdir()
    path.touch()
    later = path.stat().st_mtime + restoring.FRESH_SECS + 1
    assert not restoring.under_way(FolderStorage(tmp_path), clock=lambda: later)
    assert not path.exists()
